"""Documents of the HTTP API as types."""
