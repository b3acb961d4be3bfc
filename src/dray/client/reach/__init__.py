"""Finding the hub and talking to it."""
