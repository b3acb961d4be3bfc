"""A side process as its hub has it: started when first asked, one question at a time, thrown away when one is given up.

Scenes are packed between turns, a piece in each; no turn ever waits for an answer. Each kind of work that must not
wait for another has a process of its own, of the same program. Whoever asks sets the deadline, and gives the question
up by cancelling it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator

from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.hub.aside.frames import COURSE, FAULT, LENGTH, frame
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine

PROGRAM = "dray.hub.aside.program"
Pack = Callable[[State, Clock], Iterator[bytes]]
Hear = Callable[[bytes], None]


class WorkFailed(Exception):
    """The process answered, and what it answered is that it could not be done."""


# Its work could not be done, it is gone, or it was given up.
TROUBLES = (WorkFailed, OSError, asyncio.IncompleteReadError, TimeoutError)


class SideProcess:
    """One of them. `nicer`: by how much it stands back for the hub and for what runs on its machine."""

    def __init__(self, engine: Engine, clock: HubClock, nicer: int = 10) -> None:
        self._engine, self._clock, self._nicer = engine, clock, nicer
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    @property
    def busy(self) -> bool:
        """Whether a question is under way."""
        return self._turn.locked()

    async def ask(self, work: str, pack: Pack, hear: Hear | None = None) -> tuple[int, bytes]:
        """Have some work done on a scene: the moment of the scene, and the packed answer."""
        clock = self._clock.read()
        return clock.now_ms, await self.ask_about(work, self._scene(pack, clock), hear)

    async def ask_about(self, work: str, pieces: AsyncIterator[bytes], hear: Hear | None = None) -> bytes:
        """Have some work done on whatever these pieces are; `hear` is told how far it has come, packed."""
        async with self._turn:
            process = await self._running()
            assert process.stdin is not None  # it was started with pipes
            assert process.stdout is not None
            try:
                await _send(process.stdin, work, pieces)
                while (said := await _hear(process.stdout))[:1] == COURSE:
                    if hear is not None:
                        hear(said[1:])
            except BaseException:
                # Whoever asks next must not get this answer for their own.
                self.stop()
                raise
        if said[:1] == FAULT:
            raise WorkFailed(said[1:].decode(errors="replace"))
        return said[1:]

    def stop(self) -> None:
        """End the process; the next question starts another."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def _scene(self, pack: Pack, clock: Clock) -> AsyncIterator[bytes]:
        """Pack a scene, one piece per turn of the engine."""

        def begin(state: State) -> list[bytes]:
            pieces.append(pack(state, Clock(clock.now_ms, clock.at_ms)))
            return [*_next(pieces[0])]

        pieces: list[Iterator[bytes]] = []
        some = await self._engine.read(begin)
        while some:
            yield some[0]
            some = await self._engine.read(lambda state: [*_next(pieces[0])])

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                PROGRAM,
                str(self._nicer),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        return self._process


async def _send(pipe: asyncio.StreamWriter, work: str, pieces: AsyncIterator[bytes]) -> None:
    pipe.write(frame(work.encode()))
    async for piece in pieces:
        pipe.write(frame(piece))
        await pipe.drain()
    pipe.write(frame(b""))
    await pipe.drain()


async def _hear(pipe: asyncio.StreamReader) -> bytes:
    length = LENGTH.unpack(await pipe.readexactly(LENGTH.size))[0]
    return await pipe.readexactly(length)


def _next(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The next piece, or nothing."""
    for piece in pieces:
        yield piece
        return
