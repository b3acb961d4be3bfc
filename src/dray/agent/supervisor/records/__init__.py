"""What the supervisor writes down, and where."""
