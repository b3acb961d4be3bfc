"""The agent: what a machine runs to be a worker. It dials out, runs what the hub assigns, and reports what truly
happened.
"""
