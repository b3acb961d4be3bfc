"""Clients at a hub that does not lead: what it answers them itself, and how the rest is passed on."""
