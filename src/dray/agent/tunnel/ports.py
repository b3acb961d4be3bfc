"""Ports of attempts as ends of streams: leased to exactly that attempt, which runs, and on this machine's loopback.

Nothing else can be reached here, whatever a hub asks for: not a port that nobody leased, nor one of an attempt that has
ended, whose number may be another's by now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from dray.agent.decide.attempts import Running
from dray.wire.streams.frames import PortTarget
from dray.wire.streams.mux import Stream
from dray.wire.streams.sockets import SocketEnd

HERE = "127.0.0.1"
CONNECT_S = 10.0


class Ports:
    """`running` gives the attempts that this agent answers for, by uid, as they are now."""

    def __init__(self, running: Callable[[], Mapping[str, Running]]) -> None:
        self._running = running
        self._connecting: set[asyncio.Task[None]] = set()

    def open(self, stream: Stream, target: PortTarget) -> None:
        """Connect a stream to what it asks for, or refuse it with a sentence."""
        if fault := self._fault(target):
            stream.refuse(fault)
            return
        end = stream.taker = SocketEnd(stream, accepts=True)
        task = asyncio.get_running_loop().create_task(_connect(stream, end, target.port))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _fault(self, target: PortTarget) -> str:
        attempt = self._running().get(target.attempt)
        if attempt is None or attempt.phase != "running":
            return f"attempt {target.attempt} does not run on this worker"
        if target.port not in attempt.ports:
            leased = ", ".join(map(str, attempt.ports)) or "none"
            return f"port {target.port} was not given to {attempt.task_id}: it has {leased}"
        return ""


async def _connect(stream: Stream, end: SocketEnd, port: int) -> None:
    try:
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().create_connection(lambda: end, HERE, port)
    except TimeoutError:
        stream.refuse(f"nothing answers on port {port} within {CONNECT_S:g} s")
    except OSError as fault:
        stream.refuse(f"nothing listens on port {port}: {fault.strerror or fault}")
