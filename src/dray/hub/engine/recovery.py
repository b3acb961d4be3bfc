"""Rows + fold of the log's tail through the same `apply` = the state that was committed.

Whatever the rows had not caught up with when the last hub died is in the tail; nothing else is needed. A value that
cannot be read or folded is set aside and told of: it may cost what it belongs to, never the start.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.recovery import Faults, load, read_ledger, recall
from dray.core.lifecycle.state.events import Clock, Fact, unpack_facts
from dray.core.lifecycle.state.state import Counters, State
from dray.core.lifecycle.state.timings import Rules
from dray.hub.store.base import LogEntry, Snapshot, Store

BATCH = 1000
# So often all is loaded again without the fact that could not be folded; further ones are left out half folded.
CLEAN_TRIES = 8
Place = tuple[int, int]


class Recovered(NamedTuple):
    """The state after the last committed turn, its number and epoch (0: not known), where hub time stood, and what was
    set aside."""

    state: State
    seq: int
    epoch: int
    now_ms: int
    clock_base: bytes
    faults: Faults


class Unfoldable(Exception):
    """A fact that `apply` failed on: it may have changed half of what it is about. All is loaded again without it."""

    def __init__(self, place: Place, fact: Fact) -> None:
        super().__init__()
        self.place, self.fact = place, fact


class Skipped:
    """Facts that are left out, each told of once."""

    def __init__(self) -> None:
        self._found: dict[Place, tuple[str, Exception]] = {}

    def __contains__(self, place: Place) -> bool:
        return place in self._found

    def note(self, odd: Unfoldable) -> None:
        """Leave a fact out from now on."""
        cause = odd.__cause__
        assert isinstance(cause, Exception), "raised from what went wrong"
        self._found[odd.place] = (f"the fact {type(odd.fact).__name__} in turn {odd.place[0]}", cause)

    def judge(self, place: Place, fact: Fact, error: Exception) -> None:
        """Have all loaded again without a fact that could not be folded, or go on where that was tried often enough."""
        odd = Unfoldable(place, fact)
        odd.__cause__ = error
        if len(self._found) < CLEAN_TRIES:
            raise odd
        self.note(odd)

    def tell(self) -> Faults:
        """All of them, with what went wrong."""
        return list(self._found.values())


class Fold:
    """A state on its way: made of rows, then brought on turn by turn. Who recovers and who follows both fold here."""

    def __init__(self, snapshot: Snapshot, rules: Rules, skipped: Skipped) -> None:
        self.faults: Faults = []
        self.seq, self.epoch, self.now_ms = snapshot.applied_seq, snapshot.epoch, snapshot.now_ms
        # When the last turn that was folded was taken; 0 while that is in the rows alone.
        self.turn_at_ms = 0
        self.clock_base, self._skipped = snapshot.clock_base, skipped
        self.state = state = State(rules)
        try:
            state.now_ms = snapshot.now_ms
            read_ledger(state, snapshot.ledger, self.faults)
            rows = (snapshot.jobs, snapshot.tasks, snapshot.attempts, snapshot.workers)
            load(state, _read_counters(snapshot.counters, self.faults), rows, self.faults)
            for task in list(state.tasks.values()):
                if (task.queued or task.current) and task.last_uid and task.last_uid not in state.attempts:
                    attempt = snapshot.find_attempt(task.last_uid)
                    if attempt is not None:
                        recall(state, attempt)
        finally:
            snapshot.close()

    def take(self, entry: LogEntry) -> None:
        """Fold one turn; raises `Unfoldable` where the state is to be made anew without one of its facts."""
        for number, fact in enumerate(_read_facts(entry, self.faults)):
            place = (entry.seq, number)
            if place in self._skipped:
                continue
            try:
                apply(self.state, fact, Clock(entry.now_ms, entry.at_ms))
            except Exception as error:  # noqa: BLE001 - whatever is odd about a stored value, it is set aside
                self._skipped.judge(place, fact, error)
        self.seq, self.epoch, self.now_ms = entry.seq, entry.epoch, max(self.now_ms, entry.now_ms)
        self.turn_at_ms = entry.at_ms

    def tell(self) -> Recovered:
        """The state as far as it is."""
        faults = [*self.faults, *self._skipped.tell()]
        return Recovered(self.state, self.seq, self.epoch, self.now_ms, self.clock_base, faults)


def recover(store: Store, rules: Rules) -> Recovered:
    """Load what is live and fold in what the rows do not show yet."""
    skipped = Skipped()
    while True:
        try:
            fold = Fold(store.load(), rules, skipped)
            while entries := store.tail(fold.seq, BATCH):
                for entry in entries:
                    fold.take(entry)
        except Unfoldable as odd:
            skipped.note(odd)
        else:
            return fold.tell()


def _read_facts(entry: LogEntry, faults: Faults) -> list[Fact]:
    try:
        return unpack_facts(entry.facts)
    except Exception as error:  # noqa: BLE001 - whatever is odd about a stored value, it is set aside
        faults.append((f"all of turn {entry.seq}", error))
        return []


def _read_counters(packed: bytes, faults: Faults) -> Counters:
    """Read the numbers that ids are drawn from. Without them they begin far beyond any that were given out."""
    try:
        return msgspec.msgpack.decode(packed, type=Counters) if packed else Counters()
    except Exception as error:  # noqa: BLE001 - as above
        faults.append(("the counters, in place of which new ones begin further on", error))
        return Counters(next_job=FAR, next_receipt=FAR)


FAR = 1 << 40
