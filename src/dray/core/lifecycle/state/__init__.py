"""What the hub knows, and the values that change it."""
