"""Worker sockets: what comes in by them, what goes out, what tasks print."""
