"""The sole owner of the state. One turn: drain, apply, timers, pass, one commit, then effects.

Nothing leaves before the commit that justifies it: replies, messages and notices of a turn wait for it, and what
arrives meanwhile is the next turn's batch. If a commit fails the engine stops; the hub reloads from disk, so
memory never runs ahead of it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.effects import Effect, Note, NoWork
from dray.core.lifecycle.events import Clock, EpochStarted, Event, Fact, PlanDecided, is_fact, pack_facts
from dray.core.lifecycle.state import State
from dray.core.lifecycle.timers import due, next_due_ms
from dray.core.scheduling.explain import explain
from dray.core.scheduling.pass_ import plan, settle_plan
from dray.errors import BrokenInvariant, DrayError, NotReady
from dray.hub.clock import HubClock
from dray.hub.projection import Projector
from dray.hub.store.base import AuditRecord, KeyRow, Turn
from dray.hub.store.writer import StoreWriter

T = TypeVar("T")
DRAIN = 512
MAX_INBOX = 8192


class Decision(NamedTuple):
    """What a request comes to in its turn: events to fold in, what to record beside them, what to answer after the
    commit.
    """

    events: Iterable[Event | Effect] = ()
    answer: Callable[[State], Any] | None = None
    audit: tuple[AuditRecord, ...] = ()
    keys: tuple[KeyRow, ...] = ()


Decide = Callable[[State, Clock], Decision]


class Request(NamedTuple):
    """One entry of the inbox. `done` is None for messages that nobody awaits."""

    decide: Decide
    done: asyncio.Future[Any] | None


class EffectRunner(Protocol):
    """Turns committed effects into I/O."""

    def run(self, effects: list[Effect], seq: int, clock: Clock) -> None: ...


class Observer(Protocol):
    """Hears how long things took."""

    def observe_turn(self, seconds: float) -> None: ...
    def observe_plan(self, seconds: float) -> None: ...
    def observe_commit(self, seconds: float) -> None: ...


_notes = msgspec.msgpack.Encoder()


class Engine:
    """Runs turns until it is stopped or a commit fails."""

    def __init__(
        self,
        state: State,
        writer: StoreWriter,
        clock: HubClock,
        runner: EffectRunner,
        observer: Observer,
        projector: Projector,
        seq: int,
    ) -> None:
        self.state = state
        self.seq = seq
        self._writer, self._clock, self._runner, self._observer = writer, clock, runner, observer
        self._projector = projector
        self._inbox: deque[Request] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._stopping = False
        self._epoch_wanted = 0
        self._settlers: list[asyncio.Future[None]] = []
        self.failure: BaseException | None = None

    # --- the way in -------------------------------------------------------------------------------------------------

    def post(self, decide: Decide) -> None:
        """Queue a message that nobody awaits."""
        self._inbox.append(Request(decide, None))
        self._wake.set()
        if len(self._inbox) >= MAX_INBOX:
            self._room.clear()

    async def change(self, decide: Decide) -> Any:
        """Queue a request and wait for the commit that justifies its answer."""
        if self._stopping or self.failure is not None:
            raise NotReady("the hub is stopping: try again in a moment")
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._inbox.append(Request(decide, done))
        self._wake.set()
        return await done

    async def read(self, look: Callable[[State], T]) -> T:
        """Read the state as of the last commit."""
        answer: T = await self.change(lambda state, clock: Decision(answer=look))
        return answer

    def look(self, look: Callable[[State], T], then: Callable[[T], None]) -> None:
        """Read the state as of a commit and hand it on, without a task of its own."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda future: None if future.exception() else then(future.result()))
        self._inbox.append(Request(lambda state, clock: Decision(answer=look), done))
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

    def clock_ms(self) -> int:
        """Wall time, for people."""
        return self._clock.read().at_ms

    async def has_room(self) -> None:
        """Wait while the inbox is full: a flood of messages must not eat the memory."""
        await self._room.wait()

    # --- turns ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Turn after turn. Returns when stopped; raises when a commit failed or an invariant broke."""
        try:
            while not (self._stopping and not self._inbox):
                await self._wait_for_work()
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
        if self._inbox or self._stopping or self._settlers:
            return
        self._wake.clear()
        waits = [
            wait for wait in (self._timer_wait_s(), self._projector.wait_s(self.state)) if wait is not None
        ]
        if waits and min(waits) <= 0:
            return
        # A timer that rings the bell costs a tenth of `wait_for`, which makes a task of every wait.
        alarm = asyncio.get_running_loop().call_later(min(waits), self._wake.set) if waits else None
        await self._wake.wait()
        if alarm is not None:
            alarm.cancel()

    def _timer_wait_s(self) -> float | None:
        due_ms = next_due_ms(self.state)
        return None if due_ms is None else max(0.0, (due_ms - self._clock.read().now_ms) / 1000)

    async def _turn(self) -> None:
        began = time.perf_counter()
        clock = self._clock.read()
        turn = _TurnInProgress(self.state, clock)
        if self._epoch_wanted > self.state.counters.epoch:
            turn.fold(
                EpochStarted(await self._writer.run(lambda store: store.begin_epoch(self._epoch_wanted)))
            )
        for _ in range(min(DRAIN, len(self._inbox))):
            turn.take(self._inbox.popleft())
        if len(self._inbox) < MAX_INBOX:
            self._room.set()
        for event in due(self.state, clock, self._reason):
            turn.fold(event)
        cut = self._pass(turn)
        if turn.durable:
            self.seq += 1
            await self._commit(turn)
        self._runner.run(turn.effects, self.seq, clock)
        turn.answer()
        self._observer.observe_turn(time.perf_counter() - began)
        if self._settlers:
            settlers, self._settlers = self._settlers, []
            await self._projector.project(self.state, self.seq, clock, settlers)
        elif self._projector.is_due(self.state):
            await self._projector.project(self.state, self.seq, clock)
        if cut:
            self._wake.set()
            await asyncio.sleep(0)

    def _pass(self, turn: _TurnInProgress) -> bool:
        if not (self.state.backlog.awake or self.state.columns.roomier or self.state.polls):
            return False
        began = time.perf_counter()
        decided = plan(self.state)
        if decided.placements:
            turn.fold(PlanDecided(decided.placements))
        settle_plan(self.state, decided)
        served = {placement.worker for placement in decided.placements}
        turn.effects += [NoWork(worker) for worker in self.state.polls if worker not in served]
        self.state.polls.clear()
        self._observer.observe_plan(time.perf_counter() - began)
        return decided.cut

    async def _commit(self, turn: _TurnInProgress) -> None:
        began = time.perf_counter()
        shown = [effect for effect in turn.effects if isinstance(effect, Note)]
        notes = _notes.encode(
            [(note.type, note.job_id, note.task_id, note.worker, dict(note.data)) for note in shown]
        )
        record = Turn(
            self.seq,
            turn.clock.now_ms,
            turn.clock.at_ms,
            pack_facts(turn.facts),
            notes,
            turn.keys,
            turn.audit,
        )
        await self._writer.commit(record)
        self._observer.observe_commit(time.perf_counter() - began)

    def _reason(self, job_id: str) -> str:
        return explain(self.state, self.state.jobs[job_id]).summary

    def _refuse_rest(self) -> None:
        for settler in self._settlers:
            if not settler.done():
                settler.set_exception(NotReady("the hub is stopping: try again in a moment"))
        while self._inbox:
            done = self._inbox.popleft().done
            if done is not None and not done.done():
                done.set_exception(NotReady("the hub stopped before it could record this: try again"))


class _TurnInProgress:
    """What one turn gathers before its commit."""

    def __init__(self, state: State, clock: Clock) -> None:
        self.state, self.clock = state, clock
        self.facts: list[Fact] = []
        self.effects: list[Effect] = []
        self.keys: list[KeyRow] = []
        self.audit: list[AuditRecord] = []
        self._answers: list[tuple[asyncio.Future[Any], Any, BaseException | None]] = []

    @property
    def durable(self) -> bool:
        return bool(self.facts or self.keys or self.audit)

    def take(self, request: Request) -> None:
        """Decide one request against the state as it stands now, and fold what it comes to in."""
        try:
            decision = request.decide(self.state, self.clock)
        except DrayError as refusal:
            if request.done is not None:
                self._answers.append((request.done, None, refusal))
            return
        for item in decision.events:
            self.fold(item)
        self.keys += decision.keys
        self.audit += decision.audit
        if request.done is not None:
            self._answers.append((request.done, *self._compose(decision)))

    def _compose(self, decision: Decision) -> tuple[Any, BaseException | None]:
        """Look at the state for an answer; what is not there is the asker's trouble, never the engine's."""
        if decision.answer is None:
            return None, None
        try:
            return decision.answer(self.state), None
        except BrokenInvariant:
            raise
        except DrayError as refusal:
            return None, refusal

    def fold(self, item: Event | Effect) -> None:
        """Apply an event; an effect that needs no event rides along."""
        if type(item) in _EFFECTS:
            self.effects.append(item)  # type: ignore[arg-type]  # narrowed by the exact type above
            return
        if is_fact(item):  # type: ignore[arg-type]  # not an effect, so an event
            self.facts.append(item)  # type: ignore[arg-type]  # a struct is a fact
        self.effects += apply(self.state, item, self.clock)  # type: ignore[arg-type]  # an event, see above

    def answer(self) -> None:
        """Give the answers out: the commit has been made."""
        for done, value, refusal in self._answers:
            if done.done():
                continue
            if refusal is not None:
                done.set_exception(refusal)
            else:
                done.set_result(value)


_EFFECTS = frozenset(Effect.__args__)
