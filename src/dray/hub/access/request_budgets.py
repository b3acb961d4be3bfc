"""What one caller may have under way, and ask for in a while: so that no caller keeps the others waiting.

Small questions of a caller go a few at a time, in their order. Those with a weight (lists, plans, reasons) go two at a
time, and what they and their answers came to is taken from a bucket that fills again. Behind both is a queue with an
end; past it, and with an empty bucket, the answer is 429 with a time. Surprising rule: what a request costs is taken
when it has ended, since nobody knows before how long an answer will be, so a bucket may be in debt.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from dray.errors import Overloaded
from dray.hub.access.caller import Caller

# One unit is about a third of a millisecond of the hub's one thread.
UNITS_PER_S = 1000.0
BURST = 4000.0
UNIT_BYTES = 16 << 10
HEAVY_AT_ONCE, HEAVY_QUEUED = 2, 32
SMALL_AT_ONCE, SMALL_QUEUED = 64, 1024
# Those that wait for an estimate beside what they cost.
LONG_AT_ONCE, LONG_QUEUED = 16, 64
STREAMS_OF_CALLER = 256
KEPT_CALLERS = 1024


class Size(NamedTuple):
    """How many of a caller's requests go at once, and how many may wait behind them."""

    at_once: int
    queued: int


class _Line:
    """Requests of one caller and one kind, under way and waiting. `queued`: those whose number is bounded here."""

    __slots__ = ("_size", "queued", "running", "waiting")

    def __init__(self, size: Size) -> None:
        self._size = size
        self.running = self.queued = 0
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self, who: str, patient: bool = False) -> None:
        if self.running < self._size.at_once:
            self.running += 1
            return
        if not patient and self.queued >= self._size.queued:
            raise Overloaded(
                f"{who} has {self.running} requests under way and {self.queued} waiting, the limit: "
                "ask again when they are answered",
                1.0,
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        self.queued += not patient
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave()  # it was called up and gave up at the same moment
            elif turn in self.waiting:
                self.waiting.remove(turn)
            raise
        finally:
            self.queued -= not patient

    def leave(self) -> None:
        while self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1

    def refuse(self, why: Overloaded) -> None:
        """Send everybody away who waits."""
        while self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_exception(why)


class _Caller:
    __slots__ = ("at", "heavy", "left", "long", "small", "streams")

    def __init__(self, at: float) -> None:
        self.small = _Line(Size(SMALL_AT_ONCE, SMALL_QUEUED))
        self.heavy = _Line(Size(HEAVY_AT_ONCE, HEAVY_QUEUED))
        self.long = _Line(Size(LONG_AT_ONCE, LONG_QUEUED))
        self.left, self.at = BURST, at
        self.streams = 0

    @property
    def idle(self) -> bool:
        busy = self.small.running or self.heavy.running or self.long.running or self.streams
        return not busy and self.left >= BURST


class Budgets:
    """All callers of one hub, by their tokens. `streams`: how many answers that stay open there may be in all."""

    def __init__(self, streams: int = 4096, clock: Callable[[], float] = time.monotonic) -> None:
        self._streams, self._streams_most, self._clock = 0, streams, clock
        self._callers: dict[str, _Caller] = {}

    async def enter_small(self, token_id: str) -> None:
        """Begin a small question; each is to be ended by `leave_small`."""
        await self._caller(token_id).small.enter(f"token {token_id}")

    def leave_small(self, token_id: str) -> None:
        """A small question has been answered."""
        self._callers[token_id].small.leave()

    async def enter(self, token_id: str, waits: bool = False, patient: bool = False) -> None:
        """Begin a request with a weight; each is to be ended by `leave`.

        `waits`: it may take its time doing nothing. `patient`: whoever asks is bounded elsewhere, and waits its turn.
        """
        caller = self._caller(token_id)
        self._check_purse(token_id, caller)
        await (caller.long if waits else caller.heavy).enter(f"token {token_id}", patient)

    def leave(self, token_id: str, units: float, waits: bool = False) -> None:
        """A request with a weight has come to so much."""
        caller = self._callers[token_id]
        self._fill(caller)
        caller.left -= units
        if caller.left <= 0:
            caller.heavy.refuse(self._empty(token_id, caller))
        (caller.long if waits else caller.heavy).leave()

    def open_stream(self, token_id: str) -> None:
        """Begin an answer that stays open, and may hold a file; each is to be ended by `close_stream`."""
        caller = self._caller(token_id)
        most = min(STREAMS_OF_CALLER, self._streams_most // 2)
        if caller.streams >= most or self._streams >= self._streams_most:
            held = f"token {token_id} holds {caller.streams} answers open, there are {self._streams} in all"
            raise Overloaded(f"{held}: end one first", 1.0)
        caller.streams += 1
        self._streams += 1

    def close_stream(self, token_id: str) -> None:
        """An answer that stayed open has ended."""
        self._callers[token_id].streams -= 1
        self._streams -= 1

    def _caller(self, token_id: str) -> _Caller:
        caller = self._callers.get(token_id)
        if caller is None:
            if len(self._callers) >= KEPT_CALLERS:
                self._forget_idle()
            caller = self._callers[token_id] = _Caller(self._clock())
        return caller

    def _forget_idle(self) -> None:
        for caller in self._callers.values():
            self._fill(caller)
        self._callers = {name: caller for name, caller in self._callers.items() if not caller.idle}

    def _fill(self, caller: _Caller) -> None:
        now = self._clock()
        caller.left = min(BURST, caller.left + (now - caller.at) * UNITS_PER_S)
        caller.at = now

    def _check_purse(self, token_id: str, caller: _Caller) -> None:
        if caller.left <= BURST / 2:
            self._fill(caller)
        if caller.left <= 0:
            raise self._empty(token_id, caller)

    def _empty(self, token_id: str, caller: _Caller) -> Overloaded:
        wait_s = (1 - caller.left) / UNITS_PER_S
        return Overloaded(
            f"token {token_id} has asked for more than one caller may in a while: ask again in {wait_s:.1f} s, for "
            "smaller pages or less often",
            wait_s,
        )


class Toll:
    """What one question takes of its caller's budget, whichever way it came in. `rests`: it waits for something to
    happen and costs nothing meanwhile; `waits`: for an estimate, beside what it costs.
    """

    __slots__ = ("_budgets", "_caller", "_rests", "_streams", "_waits", "_weight")

    def __init__(
        self,
        budgets: Budgets,
        caller: Caller,
        weight: float | None,
        streams: bool,
        rests: bool = False,
        waits: bool = False,
    ) -> None:
        self._budgets, self._caller, self._weight, self._streams = budgets, caller, weight, streams
        self._rests, self._waits = rests, waits

    async def enter(self) -> None:
        """Begin; raises where this caller has too much under way. To be ended by `leave`."""
        token_id = self._caller.token_id
        if self._rests:
            return
        if self._streams:
            self._budgets.open_stream(token_id)
        elif self._weight is not None:
            await self._budgets.enter(token_id, self._waits)
        elif not self._caller.may("admin"):
            await self._budgets.enter_small(token_id)

    def leave(self, sent_bytes: int) -> None:
        """It has ended, and its answer took so many bytes."""
        token_id, weight = self._caller.token_id, self._weight
        if self._rests:
            return
        if self._streams:
            self._budgets.close_stream(token_id)
        elif weight is not None:
            self._budgets.leave(token_id, weight and weight + sent_bytes / UNIT_BYTES, self._waits)
        elif not self._caller.may("admin"):
            self._budgets.leave_small(token_id)
