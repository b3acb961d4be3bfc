"""A TCP relay between an agent and its hub that can lose one direction, cut, or turn callers away.

A direction that lost a byte on a connection stays lost on it, as behind a router that forgot the flow: what TCP would
resend for minutes is simply never heard of.
"""

from __future__ import annotations

import contextlib
import socket
import threading

CHUNK = 1 << 16


class Relay:
    """`up` is from the agent to the hub, `down` the way back."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lost: set[str] = set()
        self._pairs: list[tuple[socket.socket, socket.socket, set[str]]] = []
        self._lock = threading.Lock()
        self.refuses = False
        self.dialled = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lose(self, direction: str, later_too: bool = False) -> None:
        """Lose one direction of every connection there is; with `later_too` of new ones as well."""
        with self._lock:
            for _, _, lost in self._pairs:
                lost.add(direction)
            if later_too:
                self._lost.add(direction)

    def lead_to(self, port: int) -> None:
        """New connections go elsewhere, as with an address that moves; those that are there break."""
        self._target = ("127.0.0.1", port)
        self.cut()

    def heal(self) -> None:
        """New connections work again; those that lost something never do."""
        self.refuses = False
        self._lost.clear()

    def cut(self) -> None:
        """Break every connection."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for agent, hub, _ in pairs:
            _close(agent, hub)

    def close(self) -> None:
        self.refuses = True
        _close(self._listener)
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                agent, _ = self._listener.accept()
            except OSError:
                return
            self.dialled += 1
            try:
                if self.refuses:
                    raise ConnectionRefusedError
                hub = socket.create_connection(self._target)
            except OSError:
                _close(agent)
                continue
            lost = set(self._lost)
            with self._lock:
                self._pairs.append((agent, hub, lost))
            for source, sink, direction in ((agent, hub, "up"), (hub, agent, "down")):
                threading.Thread(target=_pump, args=(source, sink, direction, lost), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, direction: str, lost: set[str]) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            if direction not in lost:
                sink.sendall(data)
    # An end that is lost is not heard either: the other side must find out by itself.
    if direction not in lost:
        _close(source, sink)


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
