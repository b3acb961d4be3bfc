"""Long answers worked off in slices: between two of them the engine takes turns, so that nobody waits for an answer.

Each slice reads the state as of a commit; the work itself has to look afresh after every stop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

from dray.core.lifecycle.state.state import State
from dray.hub.rows import Reader, RowsWanted

T = TypeVar("T")
Made = TypeVar("Made")
SLICE_S = 0.004
# So many documents take about as long as a slice.
PORTION = 64
# Slices of so many long answers may fall into one turn.
AT_ONCE = 4
_at_work: WeakKeyDictionary[Reader, asyncio.Semaphore] = WeakKeyDictionary()


async def spread(work: Iterator[T]) -> T:
    """Run work that needs no state to its end, with a breath for the loop in between; gives what it said last."""
    until = time.perf_counter() + SLICE_S
    said: list[T] = []
    for step in work:
        said[:] = [step]
        if time.perf_counter() >= until:
            await asyncio.sleep(0)
            until = time.perf_counter() + SLICE_S
    return said[0]


def _look_at(look: Callable[[State, Sequence[T]], list[Made]], some: Sequence[T], state: State) -> list[Made]:
    return look(state, some)


async def portions(
    engine: Reader, items: Sequence[T], look: Callable[[State, Sequence[T]], list[Made]], size: int = PORTION
) -> AsyncIterator[list[Made]]:
    """Look at many things, a portion of them in one turn; whoever has enough stops asking for more."""
    for first in range(0, len(items), size):
        some = items[first : first + size]
        async with _at_work.setdefault(engine, asyncio.Semaphore(AT_ONCE)):
            made = await engine.read(partial(_look_at, look, some))
        yield made


async def work_off(engine: Reader, begin: Callable[[State], Iterator[T]], slice_s: float = SLICE_S) -> T:
    """Run work that stops now and then to its end, and give what it said last."""
    work: list[Iterator[T]] = []
    said: list[T] = []

    def go_on(state: State) -> bool:
        if not work:
            work.append(begin(state))
        until = time.perf_counter() + slice_s
        try:
            while time.perf_counter() < until:
                step = list(_one(work[0]))
                if not step:
                    return True
                said[:] = step
        except RowsWanted:
            # Work that was broken off cannot go on: once its rows are there it begins anew.
            work.clear()
            raise
        return False

    async with _at_work.setdefault(engine, asyncio.Semaphore(AT_ONCE)):
        while not await engine.read(go_on):
            pass
    return said[0]


def _one(work: Iterator[T]) -> Iterator[T]:
    """The next thing that is said, or nothing."""
    for step in work:
        yield step
        return
