"""One turn of the hub, as steps: what to commit, then what may leave. No I/O here; whoever conducts it does that.

The engine conducts turns on a real store and real sockets, the fault simulation on simulated ones, and may stop dead
between any two steps: the order of the steps, which every promise hangs on, exists once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

import msgspec

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import Clock, Event, Fact, is_fact, pack_facts
from dray.core.lifecycle.state.pass_events import TurnBegan
from dray.core.lifecycle.state.state import State
from dray.core.scheduling.explain.explain import View, headline
from dray.core.scheduling.passes.turn import take_turn
from dray.errors import BrokenInvariant, DrayError, InternalFault
from dray.hub.calls.results import AckCalls, Recorded
from dray.hub.rows import RowKey, Rows, RowsWanted
from dray.hub.store.base import AuditRecord, Chunk, KeyRow, Turn

# What leaves after the commit: effects of the core, and those that only a hub with sockets knows.
Leaving = Effect | Recorded | AckCalls
_EFFECTS = frozenset((*Effect.__args__, AckCalls))
_CHUNKS = frozenset(Chunk.__args__)
_encode = msgspec.msgpack.Encoder().encode
# A request that goes on asking for rows longer than this never ends.
MOST_ROUNDS = 16


class Waiting(Protocol):
    """Somebody who awaits an answer: a future, or the simulation's stand-in for a client."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class Decision(NamedTuple):
    """What a request comes to in its turn: events to fold in, what to record beside them, what to answer after."""

    events: Iterable[Event | Leaving | Chunk] = ()
    answer: Callable[[State], Any] | None = None
    audit: tuple[AuditRecord, ...] = ()
    keys: tuple[KeyRow, ...] = ()


Decide = Callable[[State, Clock], Decision]


class Origin(NamedTuple):
    """Where a request came from: what kind it is, whose, and what tells it from others of that kind (its key, or all of
    it). Only looked at once something went wrong.
    """

    kind: str
    who: str
    body: Any


class Request(NamedTuple):
    """One entry of the inbox. `done` is None for messages that nobody awaits; `weight` is how much work it brings.

    `who` sent it, `body` and `kind` tell what it is: not needed before something goes wrong. `wants` are the rows that
    deciding it may need, as far as that is known; a request that misses one is put back with it, `rounds` times so far.
    `patient`: it can wait a little for others to share its turn with. `brings` are workers besides who sent it of whom
    it brings a sign of life.
    """

    decide: Decide
    done: Waiting | None
    weight: int = 1
    who: str = ""
    body: Any = None
    kind: str = ""
    wants: tuple[RowKey, ...] = ()
    rounds: int = 0
    patient: bool = False
    brings: Iterable[str] = ()

    @property
    def origin(self) -> Origin:
        return Origin(self.kind or _spell_kind(self.body), self.who, self.body)


class TurnFailed(Exception):
    """A turn that could not be decided; nothing of it was committed, and memory is not to be used again.

    `request` is the one that was being taken, None where it was the turn's own work (`stage`: timers, pass, calls or
    record) that failed.
    """

    def __init__(self, stage: str, request: Request | None, cause: BaseException) -> None:
        super().__init__(f"{stage}: {type(cause).__name__}: {cause}")
        self.stage, self.request, self.cause = stage, request, cause


def _spell_kind(body: object) -> str:
    """`JobResult` as the protocol calls it; what has no body is one of the hub's own."""
    name = "" if body is None else type(body).__name__
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() or "request"


REQUESTS, RECORD = "requests", "record"


class Commit(NamedTuple):
    """Make this durable before the next step is taken."""

    turn: Turn


class Deliver(NamedTuple):
    """Let these effects leave."""

    effects: list[Leaving]


class Answer(NamedTuple):
    """Give these answers out."""

    answers: Sequence[tuple[Waiting, Any, BaseException | None]]

    def give(self) -> None:
        for done, value, refusal in self.answers:
            if done.done():
                continue
            if refusal is not None:
                done.set_exception(refusal)
            else:
                done.set_result(value)


Step = Commit | Deliver | Answer


class Conductor:
    """Holds the state and the number of the last turn. `inbox` is what waits for a turn after the present one."""

    def __init__(self, rows: Rows, seq: int, inbox: Iterable[Request] = ()) -> None:
        self.state, self.seq, self._rows, self._inbox = rows.state, seq, rows, inbox
        self.cut = False
        # Requests that miss rows: they come first in the next turn, whose rows are fetched anew.
        self.put_back: list[Request] = []
        self.fresh: list[Chunk] = []

    def turn(
        self,
        requests: Iterable[Request],
        first: Iterable[Fact],
        clock: Clock,
        skip: Container[str] = (),
    ) -> Iterator[Step]:
        """Take requests, timers and the pass, then commit, deliver and answer. `first` comes before everything.

        `skip` names stages that are left out because they failed again and again.
        """
        gathered = Gathered(self.state, clock)
        # Whoever looks for chunks while the turn is under way finds those that no store has yet.
        self.fresh = gathered.chunks
        commit: Commit | None = None
        try:
            with self._rows.deciding():
                self._decide(gathered, requests, first, skip)
            self.put_back[:0] = gathered.put_back
            if gathered.durable:
                gathered.stage = RECORD
                commit = Commit(gathered.record(self.seq + 1))
        except Exception as error:
            raise TurnFailed(gathered.stage, gathered.taking, error) from error
        if commit is not None:
            self.seq += 1
            yield commit
        self.fresh = []
        yield Deliver(gathered.effects)
        yield Answer(gathered.answers)

    def take_back(self, most: int | None = None) -> list[Request]:
        """Take what was put back, all of it or the first few, to be asked again in the next turn."""
        back = self.put_back[:most]
        del self.put_back[:most]
        return back

    def _decide(
        self, gathered: Gathered, requests: Iterable[Request], first: Iterable[Fact], skip: Container[str]
    ) -> None:
        gathered.fold(TurnBegan())
        for fact in first:
            gathered.fold(fact)
        for request in requests:
            if gathered.stalled:
                # Who asked later is decided later: otherwise of two edits the first would win.
                gathered.put_back.append(request)
                continue
            gathered.taking = request
            gathered.take(request)
        gathered.taking = None

        def unread() -> frozenset[str]:
            # What somebody awaits an answer to comes from a person.
            waiting = chain(gathered.put_back, self.put_back, self._inbox)
            names: set[str] = set()
            for request in waiting:
                if request.done is None:
                    names.add(request.who)
                names.update(request.brings)
            return frozenset(names)

        self.cut = take_turn(
            self.state, gathered.clock, gathered.fold, self._reason, skip, gathered.enter, unread
        )

    def _reason(self, job_id: str) -> str:
        return headline(self.state, self.state.jobs[job_id], View(self.state))


def _look(decision: Decision) -> Decide:
    """Only the answer of what has been decided."""
    return lambda state, clock: Decision(answer=decision.answer)


class Gathered:
    """What one turn gathers before its commit."""

    def __init__(self, state: State, clock: Clock) -> None:
        self.state, self.clock = state, clock
        self.facts: list[Fact] = []
        self.effects: list[Leaving] = []
        self.keys: list[KeyRow] = []
        self.audit: list[AuditRecord] = []
        self.chunks: list[Chunk] = []
        self.answers: list[tuple[Waiting, Any, BaseException | None]] = []
        self.stage = REQUESTS
        self.taking: Request | None = None
        self.put_back: list[Request] = []
        self.stalled = False

    def enter(self, stage: str) -> None:
        """Note what the turn is at, for whoever has to say what failed."""
        self.stage = stage

    @property
    def durable(self) -> bool:
        return bool(self.facts or self.keys or self.audit or self.chunks)

    def take(self, request: Request) -> None:
        """Decide one request against the state as it stands now, and fold what it comes to in."""
        try:
            decision = request.decide(self.state, self.clock)
        except RowsWanted as missed:
            self.stalled = self._put_back(request, missed)
            return
        except BrokenInvariant:
            raise
        except DrayError as refusal:
            if request.done is not None:
                self.answers.append((request.done, None, refusal))
            return
        try:
            for item in decision.events:
                self.fold(item)
        except RowsWanted as missed:
            raise BrokenInvariant(f"half of a request is decided and {missed}: declare them") from missed
        self.keys += decision.keys
        self.audit += decision.audit
        if request.done is not None:
            try:
                self.answers.append((request.done, *self._compose(decision)))
            except RowsWanted as missed:
                # What was decided stands; the answer follows when its rows are there.
                self._put_back(request._replace(decide=_look(decision)), missed)

    def _put_back(self, request: Request, missed: RowsWanted) -> bool:
        """Have a request asked again once its rows are there; whether it will be."""
        wants = tuple(dict.fromkeys((*request.wants, *missed.keys)))
        if request.rounds < MOST_ROUNDS:
            self.put_back.append(request._replace(wants=wants, rounds=request.rounds + 1))
            return True
        fault = InternalFault(f"this asked for rows {MOST_ROUNDS} times and wants more: {missed}")
        if request.done is None:
            raise BrokenInvariant(fault.message)
        self.answers.append((request.done, None, fault))
        return False

    def _compose(self, decision: Decision) -> tuple[Any, BaseException | None]:
        """Look at the state for an answer; what goes wrong there is the asker's trouble, never the engine's."""
        if decision.answer is None:
            return None, None
        try:
            return decision.answer(self.state), None
        except Exception as refusal:  # noqa: BLE001 - answers only read: whatever fails is an error of that question
            # A future takes every exception but this one.
            return None, RuntimeError("stopped short") if isinstance(refusal, StopIteration) else refusal

    def fold(self, item: Event | Leaving | Chunk) -> None:
        """Apply an event; an effect that needs no event rides along, and so does what is only to be kept."""
        kind: type[Any] = type(item)
        if kind in _EFFECTS:
            self.effects.append(item)  # type: ignore[arg-type]  # narrowed by the exact type above
            return
        if kind is Recorded:
            self.effects.append(item)  # type: ignore[arg-type]  # as above
            item = item.chunk  # type: ignore[union-attr]  # as above
            kind = type(item)
        if kind in _CHUNKS:
            self.chunks.append(item)  # type: ignore[arg-type]  # as above
            return
        if is_fact(item):  # type: ignore[arg-type]  # neither an effect nor a chunk, so an event
            self.facts.append(item)  # type: ignore[arg-type]  # a struct is a fact
        self.effects += apply(self.state, item, self.clock)  # type: ignore[arg-type]  # an event, see above

    def record(self, seq: int) -> Turn:
        """Spell the turn for the log."""
        shown = [effect for effect in self.effects if isinstance(effect, Note)]
        notes = [(note.type, note.job_id, note.task_id, note.worker, dict(note.data)) for note in shown]
        clock = self.clock
        facts = pack_facts(self.facts)
        return Turn(seq, clock.now_ms, clock.at_ms, facts, _encode(notes), self.keys, self.audit, self.chunks)
