"""Answers that grow while they are read: the event feed, output that is followed, and waiting for a job to end.

Owns the meeting of four ends (the source runs dry, the reader goes away, its token ends, the hub stops) in one place.
The source
runs in a task of its own and what piles up leaves as one piece: at a thousand events per second a write for each
would be most of the cost. A reader that takes nothing for a while is cut off, because memory that waits for it
belongs to the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from dray.errors import Unauthenticated
from dray.hub.access.entrance import Receive, Scope, Send
from dray.hub.access.token_leases import Hold
from dray.hub.documents.public_feed import FeedEvent
from dray.hub.http.replies import encode, send_start, send_whole

KEEP_ALIVE_S = 15.0
SLOW_READER_S = 30.0
GOODBYE_S = 2.0
FIRST_PIECE_S = 0.2
HIGH_BYTES = 1 << 20
T = TypeVar("T")


class CallerGone(Exception):
    """The caller hung up while the hub was waiting on its behalf."""


class Stream(NamedTuple):
    """An answer that grows. `cut_on_close`: at the hub's stop it must look unfinished, not complete."""

    pieces: AsyncIterator[bytes]
    media: str
    keep_alive: bytes = b""
    cut_on_close: bool = False


class Pump:
    """Runs a source in its own task and hands over what has piled up since the last time."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._held: list[bytes] = []
        self._size = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._fault: Exception | None = None
        self._ended = False
        self.stopped = ""
        self._task = asyncio.ensure_future(self._run())

    async def take(self, timeout_s: float) -> bytes | None:
        """Wait for the next piece: b"" when none came in time, None when there will be no more."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        self._wake.clear()
        if self._held and self.stopped not in ("gone", "token"):
            whole = self._held[0] if len(self._held) == 1 else b"".join(self._held)
            self._held, self._size = [], 0
            self._room.set()
            # The end, a fault or a stop that came meanwhile is looked at on the next call.
            if self._ended or self.stopped:
                self._wake.set()
            return whole
        if self._fault is not None:
            raise self._fault
        return None if self._ended or self.stopped else b""

    def stop(self, reason: str) -> None:
        """End the stream from outside: the reader is `gone`, its `token` has ended, or the hub is `closing`."""
        self.stopped = self.stopped or reason
        if reason == "token":
            # Nothing leaves any more, not even what was there before.
            self._held, self._size = [], 0
        self._wake.set()

    async def close(self) -> None:
        """Stop the source and let it clean up."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            async for piece in self._pieces:
                self._held.append(piece)
                self._size += len(piece)
                self._wake.set()
                while self._size >= HIGH_BYTES:
                    self._room.clear()
                    await self._room.wait()
        except Exception as fault:  # noqa: BLE001 - raised again by take(), in the task that answers the request
            self._fault = fault
        finally:
            self._ended = True
            self._wake.set()
            closing: Callable[[], Awaitable[Any]] | None = getattr(self._pieces, "aclose", None)
            if closing is not None:
                await closing()


class Streams:
    """The open streams of one hub: what must end when it stops."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._pumps: set[Pump] = set()
        self.closing = asyncio.Event()
        self.keep_alive_s = KEEP_ALIVE_S
        self.slow_reader_s = SLOW_READER_S

    def __len__(self) -> int:
        return len(self._pumps)

    def close(self) -> None:
        """End every stream and every wait."""
        self.closing.set()
        for pump in self._pumps:
            pump.stop("closing")

    async def run(self, scope: Scope, receive: Receive, send: Send, stream: Stream, token_id: str) -> None:
        """Send a stream to its end. A fault before its first piece is raised: it can still be answered."""
        pump = Pump(stream.pieces)
        self._pumps.add(pump)
        gone = asyncio.ensure_future(wait_gone(receive))
        gone.add_done_callback(lambda _: pump.stop("gone"))
        fault = ""
        abort: asyncio.TimerHandle | None = None

        def end(why: str) -> None:
            nonlocal fault, abort
            fault = why
            pump.stop("token")
            # A write that the reader does not take would hold the connection open.
            abort = asyncio.get_running_loop().call_later(GOODBYE_S, _abort, scope)

        try:
            with self._hold(token_id, end):
                first = await pump.take(FIRST_PIECE_S)
                if scope["method"] == "HEAD":
                    await send_whole(send, 200, b"", stream.media.encode())
                    return
                await send_start(send, stream.media)
                whole = await self._copy(first, pump, send, stream)
            if whole:
                await send({"type": "http.response.body", "body": b""})
            elif pump.stopped != "gone":
                if fault and stream.keep_alive:
                    # A line that no reader takes for an event; what it asks next is answered 401.
                    await send(
                        {"type": "http.response.body", "body": f": {fault}\n\n".encode(), "more_body": True}
                    )
                await cut(scope, gone)
        finally:
            self._pumps.discard(pump)
            gone.cancel()
            if abort is not None:
                abort.cancel()
            await pump.close()

    async def _copy(self, piece: bytes | None, pump: Pump, send: Send, stream: Stream) -> bool:
        """Send pieces until there are no more; False where the reader must see that the answer is not whole."""
        try:
            while piece is not None:
                if body := piece or stream.keep_alive:
                    async with asyncio.timeout(self.slow_reader_s):
                        await send({"type": "http.response.body", "body": body, "more_body": True})
                piece = await pump.take(self.keep_alive_s)
        except TimeoutError:
            return False
        return pump.stopped not in ("gone", "token") and not (
            pump.stopped == "closing" and stream.cut_on_close
        )

    async def wait_for(self, receive: Receive, waiting: Awaitable[T], token_id: str) -> T | None:
        """Wait for an answer as long as somebody wants it and may have it; None when the hub stops meanwhile."""
        answer = asyncio.ensure_future(waiting)
        gone = asyncio.ensure_future(wait_gone(receive))
        closing = asyncio.ensure_future(self.closing.wait())
        fault = ""

        def end(why: str) -> None:
            nonlocal fault
            fault = why
            answer.cancel()

        try:
            with self._hold(token_id, end):
                await asyncio.wait([answer, gone, closing], return_when=asyncio.FIRST_COMPLETED)
            if fault:
                raise Unauthenticated(f"{fault}: the wait was broken off")
            if answer.done():
                return answer.result()
            if gone.done():
                raise CallerGone
            return None
        finally:
            for task in (answer, gone, closing):
                task.cancel()
            await asyncio.wait([answer, gone, closing])


async def wait_gone(receive: Receive) -> None:
    """Return once the other side has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cut(scope: Scope, gone: Awaitable[None]) -> None:
    """Break the connection under an answer that is not whole, so that nobody takes it for the end."""
    if _abort(scope):
        await gone


def _abort(scope: Scope) -> bool:
    abort = scope.get("extensions", {}).get("dray.abort")
    if abort is not None:
        abort()
    return abort is not None


async def feed_lines(feed: AsyncIterator[FeedEvent | None]) -> AsyncIterator[bytes]:
    """Spell events as server-sent events; None is a sign of life."""
    async for event in feed:
        if event is None:
            yield b": keep-alive\n\n"
        else:
            yield b"id: %b\nevent: %b\ndata: %b\n\n" % (
                event.id.encode(),
                event.type.encode(),
                encode(event.data),
            )
