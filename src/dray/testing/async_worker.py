"""A worker for tests inside an event loop: every step is a call, nothing happens by itself.

The same methods as its blocking twin, to be awaited.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect

from dray.testing.worker_script import PATIENCE_S, Assignment, Message, ScriptedWorker, read_assignment


class AsyncMockWorker(ScriptedWorker):
    """A worker that only does what it is told. Speaks JSON and names no features unless asked to.

    `await recv(kind)` keeps what it passes over, so that a test may look for messages in any order.
    """

    _socket: ClientConnection | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Dial the hub; nothing is said yet."""
        self._socket = await connect(self._address, **self._options)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye; 1000 and 1001 hand unaccepted work back at once."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close(code, reason)

    async def drop(self) -> None:
        """Break the connection without a goodbye, as a cut cable would."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.transport.abort()

    async def send(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Say anything at all, right or wrong."""
        await self._connection().send(self.script.encode(kind, payload))

    async def send_raw(self, frame: bytes | str) -> None:
        """Send a frame as it stands."""
        await self._connection().send(frame)

    async def register(self, timeout_s: float = PATIENCE_S, **fields: Any) -> Message:
        """Register and wait for the hub's `ack`; fields such as `active_tasks` or `labels` may be added."""
        await self.send("register", self.script.register(**fields))
        return await self.recv("ack", timeout_s)

    async def ready(self, credits: int = 1, reason: str = "polling") -> None:  # noqa: A002 - the word of the protocol
        """Ask for work: sets the credit, never adds."""
        await self.send("ready_for_work", self.script.ready(credits, reason))

    async def heartbeat(self, **fields: Any) -> None:
        await self.send("heartbeat", self.script.heartbeat(**fields))

    async def assigned(self, timeout_s: float = PATIENCE_S) -> Assignment:
        """Wait for a task."""
        return read_assignment(await self.recv("job_assign", timeout_s))

    async def accept(self, task: Assignment | str, **fields: Any) -> None:
        await self.send("job_accepted", self.script.about(task, **fields))

    async def started(self, task: Assignment | str, pid: int = 1, **fields: Any) -> None:
        """Say that user code runs; only workers with the feature `job_started` need to."""
        await self.send("job_started", self.script.about(task, pid=pid, **fields))

    async def result(
        self,
        task: Assignment | str,
        state: str = "succeeded",
        exit_code: int | None = None,
        value: bytes = b"",
        **fields: Any,
    ) -> None:
        """Report how a task ended; `value` needs msgpack."""
        await self.send("job_result", self.script.result(task, state, exit_code, value, **fields))

    async def run_one(
        self, state: str = "succeeded", timeout_s: float = PATIENCE_S, **fields: Any
    ) -> Assignment:
        """Take one task, accept it and report its end: the shortest way through a job."""
        await self.ready()
        task = await self.assigned(timeout_s)
        await self.accept(task)
        await self.result(task, state, **fields)
        return task

    async def recv(self, kind: str | None = None, timeout_s: float = PATIENCE_S) -> Message:
        """Wait for a message, of one kind if named. Raises `TimeoutError` that says what came instead."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.script.find(kind)
            if found is not None:
                return found
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    frame = await self._connection().recv()
            except TimeoutError:
                raise TimeoutError(self.script.missed(kind, timeout_s)) from None
            self.script.held += self.script.decode(frame)

    def _connection(self) -> ClientConnection:
        if self._socket is None:
            raise ConnectionError(f"worker {self.script.worker_id} is not connected: open it first")
        return self._socket
