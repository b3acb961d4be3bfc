"""The sole owner of the state. One turn: drain, apply, timers, pass, one commit, then effects.

Nothing leaves before the commit that justifies it: replies, messages and notices of a turn wait for it, and what
arrives meanwhile is the next turn's batch. If a commit fails, or a turn cannot be decided, the engine stops; the hub
reloads from disk, so memory never runs ahead of it and never goes on half changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from dray.core.lifecycle.state.events import Clock, EpochStarted, Fact
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.timers import forget_answered, next_look_ms
from dray.core.scheduling.passes.turn import TIMERS
from dray.errors import NotReady
from dray.hub.engine.clock import HubClock
from dray.hub.engine.failed_turns import Setbacks
from dray.hub.engine.inbox import Inbox
from dray.hub.engine.projection import Projector
from dray.hub.engine.turns import (
    Commit,
    Conductor,
    Decide,
    Decision,
    Deliver,
    Leaving,
    Request,
    Step,
    TurnFailed,
)
from dray.hub.rows import RowKey, Rows
from dray.hub.store.base import Chunk, Turn
from dray.hub.store.writer import StoreWriter

T = TypeVar("T")
DRAIN = 512
SKIPPED_WAIT_S = 1.0
MAX_INBOX = 8192
# How soon after a turn the next one begins for patient messages alone, where for a while there were no others: beside
# work they would wait for a turn that takes long.
PATIENCE_S, QUIET_S = 0.005, 0.1


class EffectRunner(Protocol):
    """Turns committed effects into I/O."""

    def run(self, effects: list[Leaving], seq: int, clock: Clock) -> None: ...


class Observer(Protocol):
    """Hears how long things took."""

    def observe_turn(self, seconds: float) -> None: ...
    def observe_plan(self, seconds: float) -> None: ...
    def observe_commit(self, seconds: float) -> None: ...


class Engine:
    """Runs turns until it is stopped or a commit fails."""

    def __init__(
        self,
        rows: Rows,
        writer: StoreWriter,
        clock: HubClock,
        runner: EffectRunner,
        observer: Observer,
        projector: Projector,
        seq: int,
        setbacks: Setbacks,
    ) -> None:
        self.state, self._rows = rows.state, rows
        self._setbacks = setbacks
        self._settled = False
        self._writer, self._clock, self._runner, self._observer = writer, clock, runner, observer
        self._projector = projector
        self._inbox = Inbox(DRAIN)
        self._conductor = Conductor(rows, seq, self._inbox)
        self._taken: list[Request] = []
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        # When the last turn began, and the last that was not for patient messages alone; what ends the wait of those.
        self._turned_s = self._worked_s = 0.0
        self._soon: asyncio.TimerHandle | None = None
        self._stopping = False
        self._epoch_wanted = 0
        self._settlers: list[asyncio.Future[None]] = []
        self._doom: BaseException | None = None
        self.failure: BaseException | None = None
        # The last turn that anything which leaves may speak of.
        self.told = seq
        # Hears of each turn once it is committed and before anything of it leaves.
        self.tell_turn: Callable[[Turn], None] = lambda turn: None

    @property
    def seq(self) -> int:
        """The number of the last turn."""
        return self._conductor.seq

    @property
    def fresh(self) -> Sequence[Chunk]:
        """The chunks of the turn that is under way, which the store does not show yet."""
        return self._conductor.fresh

    @property
    def log_lag(self) -> int:
        """How many turns the rows are behind."""
        return self._projector.lag(self.state, self.seq)

    # --- the way in -------------------------------------------------------------------------------------------------

    def post(
        self,
        decide: Decide,
        who: str = "",
        body: Any = None,
        presses: bool = False,
        wants: tuple[RowKey, ...] = (),
        patient: bool = False,
    ) -> None:
        """Queue a message that nobody awaits; one that has broken a turn before is refused."""
        request = Request(decide, None, 1, who, body, wants=wants, patient=patient)
        if self._setbacks:
            self._setbacks.refuse(request.origin)
        self._inbox.add(request, presses)
        if patient and not self._inbox.hurries:
            self._wake_soon()
        else:
            self._wake.set()
        if len(self._inbox) >= MAX_INBOX:
            self._room.clear()

    def change(
        self,
        decide: Decide,
        weight: int = 1,
        who: str = "",
        body: Any = None,
        kind: str = "",
        presses: bool = False,
        wants: tuple[RowKey, ...] = (),
        brings: Iterable[str] = (),
    ) -> asyncio.Future[Any]:
        """Queue a request; the future has its answer once the commit that justifies it is there."""
        if self._stopping or self.failure is not None:
            raise NotReady("the hub is stopping: try again in a moment")
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request = Request(decide, done, weight, who, body, kind, wants, brings=brings)
        if self._setbacks:
            self._setbacks.refuse(request.origin)
        self._inbox.add(request, presses)
        self._wake.set()
        return done

    async def read(self, look: Callable[[State], T], *wants: RowKey) -> T:
        """Read the state as of the last commit, after all that was queued before; and the rows that it may want."""
        answer: T = await self.change(lambda state, clock: Decision(answer=look), wants=wants)
        return answer

    async def ask(self, look: Callable[[State], T], *wants: RowKey) -> T:
        """Read the state as of the last commit, and rows that it may want, before bulk work that waits.

        For whoever has nothing else under way: what it changed was answered, and so committed, before it asks.
        """
        answer: T = await self.change(lambda state, clock: Decision(answer=look), presses=True, wants=wants)
        return answer

    def look(
        self,
        look: Callable[[State], T],
        then: Callable[[T], None],
        failed: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        """Ask, and hand the answer on, without a task of its own."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def tell(future: asyncio.Future[Any]) -> None:
            error = future.exception()
            if error is None:
                then(future.result())
            else:
                failed(error)

        done.add_done_callback(tell)
        self._inbox.add(Request(lambda state, clock: Decision(answer=look), done), presses=True)
        self._wake.set()

    async def settle(self) -> None:
        """Wait until the rows show all that has been committed so far: lists are read from them."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settlers.append(done)
        self._wake.set()
        await done

    def raise_epoch(self, at_least: int) -> None:
        """A worker has seen a later epoch: this store is older than what once ran here. Pass it before anything
        else.
        """
        self._epoch_wanted = max(self._epoch_wanted, at_least)
        self._wake.set()

    def fail(self, failure: BaseException) -> None:
        """End the turns: something outside them went wrong that no answer may outlive."""
        self._doom = self._doom or failure
        self._wake.set()

    def clock_ms(self) -> int:
        """Wall time, for people."""
        return self._clock.read().at_ms

    @property
    def is_behind(self) -> bool:
        """Whether more waits than one turn takes in."""
        return self._inbox.is_behind

    @property
    def is_full(self) -> bool:
        """Whether whoever reads messages is to wait: a flood of them must not eat the memory."""
        return not self._room.is_set()

    async def has_room(self) -> None:
        """Wait while the inbox is full."""
        await self._room.wait()

    # --- turns ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Turn after turn. Returns when stopped; raises when a commit failed or an invariant broke."""
        try:
            while not (self._stopping and not self._inbox and not self._conductor.put_back):
                await self._wait_for_work()
                if self._doom is not None:
                    raise self._doom
                await self._turn()
            await self._projector.flush(self.state, self.seq, self._clock.read())
        except BaseException as failure:
            self.failure = failure
            raise
        finally:
            self._refuse_rest()

    def stop(self) -> None:
        """Finish what is queued, write the rows, return from `run`."""
        self._stopping = True
        self._wake.set()

    async def _wait_for_work(self) -> None:
        if self._stopping or self._settlers or self._conductor.cut or self._conductor.put_back:
            return
        if self._inbox.hurries:
            return
        self._wake.clear()
        if self._inbox:
            self._wake_soon()
        waits = [
            wait for wait in (self._timer_wait_s(), self._projector.wait_s(self.state)) if wait is not None
        ]
        if self._setbacks.skipped():
            # What is left out is to be tried again when its time comes, also if nobody asks for anything.
            waits.append(SKIPPED_WAIT_S)
        if waits and min(waits) <= 0:
            return
        # A timer that rings the bell costs a tenth of `wait_for`, which makes a task of every wait.
        alarm = asyncio.get_running_loop().call_later(min(waits), self._wake.set) if waits else None
        await self._wake.wait()
        if alarm is not None:
            alarm.cancel()

    def _wake_soon(self) -> None:
        """Begin a turn once the last one is a little while ago: signs of life of many workers share one then."""
        if self._soon is not None:
            return
        now_s = time.perf_counter()
        left_s = self._turned_s + PATIENCE_S - now_s
        if left_s <= 0 or now_s < self._worked_s + QUIET_S:
            self._wake.set()
        else:
            self._soon = asyncio.get_running_loop().call_later(left_s, self._ring)

    def _ring(self) -> None:
        """In the middle of a turn too: what came meanwhile needs a bell of its own."""
        self._soon = None
        self._wake.set()

    def _timer_wait_s(self) -> float | None:
        if TIMERS in self._setbacks.skipped():
            return None
        forget_answered(self.state)
        due_ms = next_look_ms(self.state)
        return None if due_ms is None else max(0.0, (due_ms - self._clock.read().now_ms) / 1000)

    async def _turn(self) -> None:
        began = time.perf_counter()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        first: list[Fact] = []
        if self._epoch_wanted > self.state.counters.epoch:
            wanted = self._epoch_wanted
            first.append(EpochStarted(await self._writer.run(lambda store: store.raise_epoch(wanted))))
        requests = self._taken = self._drain()
        if len(self._inbox) < MAX_INBOX:
            self._room.set()
        await self._rows.fetch(key for request in requests for key in request.wants)
        clock = self._clock.read()
        committed: Turn | None = None
        for step in self._steps(requests, first, clock):
            if isinstance(step, Commit):
                decided = time.perf_counter()
                self._observer.observe_plan(decided - began)
                await self._writer.commit(step.turn)
                committed = step.turn
                self._observer.observe_commit(time.perf_counter() - decided)
            elif isinstance(step, Deliver):
                # Nothing leaves that a restart would not show: neither what was committed, nor what was only read.
                await self._writer.verify()
                self.told = self.seq
                if committed is not None:
                    self.tell_turn(committed)
                self._runner.run(step.effects, self.seq, clock)
            else:
                step.give()
        self._taken = []
        self._observer.observe_turn(time.perf_counter() - began)
        await self._project(clock)
        self._turned_s = began
        if requests and not (requests[0].patient and all(request.patient for request in requests)):
            self._worked_s = began
        if self._conductor.cut:
            await asyncio.sleep(0)

    def _steps(self, requests: list[Request], first: list[Fact], clock: Clock) -> Iterator[Step]:
        """Conduct one turn; where it cannot be decided somebody is to blame, or nobody is, and all others ask again."""
        try:
            yield from self._conductor.turn(requests, first, clock, self._setbacks.skipped())
        except TurnFailed as failed:
            culprit, fault = failed.request, None
            if culprit is not None:
                fault = self._setbacks.blame(culprit, failed)
            elif self._setbacks.careful and len(requests) == 1:
                culprit = requests[0]
                fault = self._setbacks.suspect(culprit, failed)
            else:
                self._setbacks.note(failed, len(requests))
            if culprit is not None and culprit.done is not None and fault is not None:
                culprit.done.set_exception(fault)
            raise

    def _drain(self) -> list[Request]:
        """Take the next batch. After a turn that failed with nobody to blame they come one by one, each after a turn
        without any.
        """
        if not self._setbacks.careful:
            return self._conductor.take_back() + self._inbox.take()
        self._settled = not self._settled
        return [] if self._settled else self._conductor.take_back(1) or self._inbox.take(1)

    async def _project(self, clock: Clock) -> None:
        if self._settlers:
            settlers, self._settlers = self._settlers, []
            await self._projector.project(self.state, self.seq, clock, settlers)
        elif self._projector.is_due(self.state):
            await self._projector.project(self.state, self.seq, clock)

    def _refuse_rest(self) -> None:
        for settler in self._settlers:
            if not settler.done():
                settler.set_exception(NotReady("the hub is stopping: try again in a moment"))
        for request in (*self._taken, *self._conductor.put_back, *self._inbox):
            if request.done is not None and not request.done.done():
                request.done.set_exception(NotReady("the hub stopped before it could answer this: try again"))
        self._taken = []
        self._inbox.clear()
        self._room.set()
