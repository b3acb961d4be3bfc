"""What every way into the hub may ask of it."""
