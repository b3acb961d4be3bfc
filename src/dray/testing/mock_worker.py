"""A worker for tests, blocking: every step is a call, nothing happens by itself.

Knows sockets and nothing of what the messages mean. Its async twin has the same methods.
"""

from __future__ import annotations

import contextlib
import socket as sockets
import time
from collections.abc import Mapping
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

from dray.testing.worker_script import PATIENCE_S, Assignment, Message, ScriptedWorker, read_assignment


class MockWorker(ScriptedWorker):
    """A worker that only does what it is told. Speaks JSON and names no features unless asked to.

    `recv(kind)` keeps what it passes over, so that a test may look for messages in any order.
    """

    _socket: ClientConnection | None = None
    _opened: contextlib.ExitStack

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Dial the hub; nothing is said yet."""
        self._opened = contextlib.ExitStack()
        self._socket = self._opened.enter_context(connect(self._address, **self._options))

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye; 1000 and 1001 hand unaccepted work back at once."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close(code, reason)
            self._opened.close()

    def drop(self) -> None:
        """Break the connection without a goodbye, as a cut cable would."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.socket.shutdown(sockets.SHUT_RDWR)
            self._opened.close()

    def send(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Say anything at all, right or wrong."""
        self._connection().send(self.script.encode(kind, payload))

    def send_raw(self, frame: bytes | str) -> None:
        """Send a frame as it stands."""
        self._connection().send(frame)

    def register(self, timeout_s: float = PATIENCE_S, **fields: Any) -> Message:
        """Register and wait for the hub's `ack`; fields such as `active_tasks` or `labels` may be added."""
        self.send("register", self.script.register(**fields))
        return self.recv("ack", timeout_s)

    def ready(self, credits: int = 1, reason: str = "polling") -> None:  # noqa: A002 - the word of the protocol
        """Ask for work: sets the credit, never adds."""
        self.send("ready_for_work", self.script.ready(credits, reason))

    def heartbeat(self, **fields: Any) -> None:
        self.send("heartbeat", self.script.heartbeat(**fields))

    def assigned(self, timeout_s: float = PATIENCE_S) -> Assignment:
        """Wait for a task."""
        return read_assignment(self.recv("job_assign", timeout_s))

    def accept(self, task: Assignment | str, **fields: Any) -> None:
        self.send("job_accepted", self.script.about(task, **fields))

    def started(self, task: Assignment | str, pid: int = 1, **fields: Any) -> None:
        """Say that user code runs; only workers with the feature `job_started` need to."""
        self.send("job_started", self.script.about(task, pid=pid, **fields))

    def result(
        self,
        task: Assignment | str,
        state: str = "succeeded",
        exit_code: int | None = None,
        value: bytes = b"",
        **fields: Any,
    ) -> None:
        """Report how a task ended; `value` needs msgpack."""
        self.send("job_result", self.script.result(task, state, exit_code, value, **fields))

    def run_one(self, state: str = "succeeded", timeout_s: float = PATIENCE_S, **fields: Any) -> Assignment:
        """Take one task, accept it and report its end: the shortest way through a job."""
        self.ready()
        task = self.assigned(timeout_s)
        self.accept(task)
        self.result(task, state, **fields)
        return task

    def recv(self, kind: str | None = None, timeout_s: float = PATIENCE_S) -> Message:
        """Wait for a message, of one kind if named. Raises `TimeoutError` that says what came instead."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.script.find(kind)
            if found is not None:
                return found
            try:
                frame = self._connection().recv(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise TimeoutError(self.script.missed(kind, timeout_s)) from None
            self.script.held += self.script.decode(frame)

    def _connection(self) -> ClientConnection:
        if self._socket is None:
            raise ConnectionError(f"worker {self.script.worker_id} is not connected: open it first")
        return self._socket
