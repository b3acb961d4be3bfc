"""What hub, agent, client and runner share: messages and documents as types, how a hub is reached, files and frames
between programs of one machine. Holds no state of any of them.
"""
