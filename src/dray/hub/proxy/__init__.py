"""Services over the hub's own HTTP: who asks, what is passed on of it, and answers as they come."""
