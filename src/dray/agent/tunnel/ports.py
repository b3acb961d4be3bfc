"""Ports of attempts as ends of streams: leased to exactly that attempt, which runs, and on this machine's loopback.

Nothing else can be reached here, whatever a hub asks for: not a port that nobody leased, nor one of an attempt that has
ended, whose number may be another's by now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from dray.agent.decide.attempts import Running
from dray.agent.tunnel.kept import Kept, KeptEnd, Use
from dray.wire.streams.frames import PortTarget
from dray.wire.streams.mux import Stream, Taker
from dray.wire.streams.sockets import SocketEnd

HERE = "127.0.0.1"
CONNECT_S = 10.0


class Ports:
    """`running` gives the attempts that this agent answers for, by uid, as they are now."""

    def __init__(self, running: Callable[[], Mapping[str, Running]]) -> None:
        self._running = running
        self._connecting: set[asyncio.Task[None]] = set()
        self.kept = Kept(lambda use: not self._fault(use.attempt, use.port))

    def open(self, stream: Stream, target: PortTarget) -> None:
        """Connect a stream to what it asks for, or refuse it with a sentence."""
        if fault := self._fault(target.attempt, target.port):
            stream.refuse(fault)
        elif target.keep_for:
            stream.taker = _Chooser(self, stream, Use(target.attempt, target.port, target.keep_for))
        else:
            end = stream.taker = SocketEnd(stream, accepts=True)
            self.connect(stream, end, target.port)

    def connect(self, stream: Stream, end: SocketEnd, port: int) -> None:
        """Let an end have a connection of its own."""
        task = asyncio.get_running_loop().create_task(_connect(stream, end, port))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _fault(self, uid: str, port: int) -> str:
        attempt = self._running().get(uid)
        if attempt is None or attempt.phase != "running":
            return f"attempt {uid} does not run on this worker"
        if port not in attempt.ports:
            leased = ", ".join(map(str, attempt.ports)) or "none"
            return f"port {port} was not given to {attempt.task_id}: it has {leased}"
        return ""


class _Chooser(Taker):
    """Takes a stream until its first bytes are there, and gives it to a kept connection then, or to a new one.

    Not before: between the look whether the service has closed a connection and the write into it there is nothing.
    """

    def __init__(self, ports: Ports, stream: Stream, use: Use) -> None:
        self._ports, self._stream, self._use = ports, stream, use

    def view(self, view: memoryview) -> None:
        self._choose().view(view)

    def eof(self) -> None:
        self._choose().eof()

    def _choose(self) -> KeptEnd:
        kept, stream = self._ports.kept, self._stream
        end = kept.find(self._use)
        if end is not None:
            stream.taker = end
            end.resume(stream)
            return end
        fresh = KeptEnd(stream, kept, self._use)
        stream.taker = fresh
        self._ports.connect(stream, fresh, self._use.port)
        return fresh


async def _connect(stream: Stream, end: SocketEnd, port: int) -> None:
    try:
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().create_connection(lambda: end, HERE, port)
    except TimeoutError:
        stream.refuse(f"nothing answers on port {port} within {CONNECT_S:g} s")
    except OSError as fault:
        stream.refuse(f"nothing listens on port {port}: {fault.strerror or fault}")
