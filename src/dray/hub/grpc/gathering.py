"""What piles up for a reader of a stream between two of its messages, handed over as one list.

A thousand events in one message cost about as much as a few: a message for each would be five times the price. A source
that runs ahead of its reader waits; what is pushed by others cannot, and ends the stream instead.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar

from dray.errors import DrayError, TooManyRequests

KEEP_ALIVE_S = 15.0
MOST_HELD = 4096
MOST_BYTES = 1 << 20
T = TypeVar("T")


class Gathering(Generic[T]):
    """One stream's items. `weigh` gives the bytes of one."""

    def __init__(self, weigh: Callable[[T], int] = lambda item: 0) -> None:
        self._weigh = weigh
        self._held: list[T] = []
        self._bytes = 0
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        self._fault: DrayError | Exception | None = None
        self._at_once = self._ended = False

    def push(self, item: T) -> None:
        """Add something that nobody can hold back."""
        if len(self._held) >= MOST_HELD or self._bytes >= 16 * MOST_BYTES:
            self.fail(TooManyRequests("this peer does not read what it asked to be told of", 1.0))
        elif self._fault is None:
            self._add(item)

    async def put(self, item: T) -> None:
        """Add something, and wait while much is held."""
        if self._fault is None:
            self._add(item)
        while self._is_full and self._fault is None:
            self._room.clear()
            await self._room.wait()

    def end(self) -> None:
        """There will be no more."""
        self._ended = True
        self._wake.set()

    def fail(self, fault: Exception, at_once: bool = False) -> None:
        """End with a fault, behind what is held; `at_once`: nothing of that leaves any more."""
        if self._fault is None or at_once:
            self._fault, self._at_once = fault, at_once
        self._wake.set()
        self._room.set()

    async def fill(self, source: AsyncIterator[T | None]) -> None:
        """Take all that a source gives; None from it is a sign of life of its own, and passed by."""
        try:
            async for item in source:
                if item is None:
                    continue
                await self.put(item)
        except Exception as fault:  # noqa: BLE001 - raised again by `lists`, in the task that answers
            self.fail(fault)
        finally:
            self.end()
            close: Callable[[], Awaitable[Any]] | None = getattr(source, "aclose", None)
            if close is not None:
                await close()

    async def lists(self) -> AsyncIterator[list[T]]:
        """Give what has piled up, again and again; an empty list where nothing came for a while."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await self._wake.wait()
            self._wake.clear()
            if self._fault is not None and (self._at_once or not self._held):
                raise self._fault
            if self._ended and not self._held:
                return
            held, self._held, self._bytes = self._held, [], 0
            self._room.set()
            if self._ended or self._fault is not None:
                self._wake.set()
            yield held

    @property
    def _is_full(self) -> bool:
        return len(self._held) >= MOST_HELD or self._bytes >= MOST_BYTES

    def _add(self, item: T) -> None:
        self._held.append(item)
        self._bytes += self._weigh(item)
        self._wake.set()
