"""Messages as bytes: closed, tagged unions in JSON and msgpack. Knows no sockets and no state."""
