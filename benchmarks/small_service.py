"""The smallest service there is, for benchmarks: it answers every request, and starts as fast as Python can."""

from __future__ import annotations

import sys

# Loads nothing that a socket does not need.
CODE = """
import os, socket
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", int(os.environ["DRAY_PORT"])))
server.listen(64)
while True:
    peer, _ = server.accept()
    peer.recv(4096)
    peer.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\nok")
    peer.close()
"""
COMMAND = [sys.executable, "-I", "-S", "-c", CODE]
ASK = b"GET / HTTP/1.0\r\nHost: x\r\n\r\n"
