"""Streams of bytes, many over one WebSocket: their frames, their windows, and the sockets at their ends."""
