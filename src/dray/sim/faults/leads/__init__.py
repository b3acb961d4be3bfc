"""A database that hubs share, and who leads there."""
