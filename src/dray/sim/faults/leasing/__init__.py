"""Executors that ask for work instead of being told, and the hub's end of what they ask."""
