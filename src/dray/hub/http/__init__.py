"""The HTTP API: one table of calls, and the server around it."""
