"""Deliberate bugs: the simulation must catch every one of them."""
