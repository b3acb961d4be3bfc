"""Somebody else on this machine: a process of another account that listens where a hub should be and writes down what
it is sent.
"""

from __future__ import annotations

import os
import pwd
import signal
import socket
import time
from typing import Self

NAME = "nobody"


class Listener:
    """Listens on a port of loopback, or at a path, as another account. `heard` is all that anybody sent it."""

    def __init__(self, port: int = 0, path: str = "", account: str = NAME) -> None:
        self.port, self._path, self._account = port, path, account
        self._child = self._report = -1

    def __enter__(self) -> Self:
        ready, told = os.pipe()
        self._report, report = os.pipe()
        self._child = os.fork()  # an interpreter of its own may be out of that account's reach
        if self._child == 0:
            os.close(ready)
            try:
                self._serve(told, report)
            finally:
                os._exit(1)
        os.close(told)
        os.close(report)
        self.port = int(os.read(ready, 16) or b"-1")
        os.close(ready)
        assert self.port >= 0, "the stranger could not listen"
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)
        os.close(self._report)

    def heard(self, calls: int, limit_s: float = 30.0) -> bytes:
        """What came with so many connections: one mark per connection, then its bytes."""
        os.set_blocking(self._report, False)
        got, deadline = b"", time.monotonic() + limit_s
        while got.count(b"<call>") < calls:
            assert time.monotonic() < deadline, f"fewer than {calls} came to the stranger: {got!r}"
            try:
                got += os.read(self._report, 1 << 16)
            except BlockingIOError:
                time.sleep(0.01)
        return got.replace(b"<call>", b"")

    def _serve(self, told: int, report: int) -> None:
        account = pwd.getpwnam(self._account)
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
        family = socket.AF_UNIX if self._path else socket.AF_INET
        with socket.socket(family) as listener:
            if self._path:
                listener.bind(self._path)
                os.chmod(self._path, 0o777)  # noqa: S103 - whoever likes may fall for it
            else:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("127.0.0.1", self.port))
            listener.listen()
            os.write(told, str(0 if self._path else listener.getsockname()[1]).encode())
            while True:
                peer, _ = listener.accept()
                os.write(report, b"<call>")
                # Answers nothing: whoever has something to say says it, and goes when it is tired of waiting.
                peer.settimeout(3)
                try:
                    while data := peer.recv(1 << 16):
                        os.write(report, data)
                except OSError:
                    pass
                peer.close()
