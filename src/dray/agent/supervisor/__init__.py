"""The supervisor: one small process per agent home that runs attempts and outlives the agent.

Standard library only, no network, one thread. Modules here import nothing else of dray, so that the process stays small
(forking is what it does all day) and cannot fail because of a broken dependency.
"""
