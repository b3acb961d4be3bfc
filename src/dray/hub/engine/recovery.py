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
from dray.hub.store.base import LogEntry, Store

BATCH = 1000
# So often all is loaded again without the fact that could not be folded; further ones are left out half folded.
CLEAN_TRIES = 8
Place = tuple[int, int]


class Recovered(NamedTuple):
    """The state after the last committed turn, its number, where hub time stood, and what was set aside."""

    state: State
    seq: int
    now_ms: int
    clock_base: bytes
    faults: Faults


class _Unfoldable(Exception):
    """A fact that `apply` failed on: it may have changed half of what it is about."""

    def __init__(self, place: Place, fact: Fact) -> None:
        super().__init__()
        self.place, self.fact = place, fact


def recover(store: Store, rules: Rules) -> Recovered:
    """Load what is live and fold in what the rows do not show yet."""
    skipped: dict[Place, tuple[str, Exception]] = {}
    while True:
        try:
            found = _recover(store, rules, skipped)
        except _Unfoldable as odd:
            cause = odd.__cause__
            assert isinstance(cause, Exception), "raised from what went wrong"
            what = f"the fact {type(odd.fact).__name__} in turn {odd.place[0]}"
            skipped[odd.place] = (what, cause)
        else:
            found.faults.extend(skipped.values())
            return found


def _recover(store: Store, rules: Rules, skipped: dict[Place, tuple[str, Exception]]) -> Recovered:
    snapshot = store.load()
    faults: Faults = []
    state = State(rules)
    state.now_ms = snapshot.now_ms
    read_ledger(state, snapshot.ledger, faults)
    rows = (snapshot.jobs, snapshot.tasks, snapshot.attempts, snapshot.workers)
    load(state, _read_counters(snapshot.counters, faults), rows, faults)
    for task in list(state.tasks.values()):
        if (task.queued or task.current) and task.last_uid and task.last_uid not in state.attempts:
            attempt = store.find_attempt(task.last_uid)
            if attempt is not None:
                recall(state, attempt)
    seq, now_ms = snapshot.applied_seq, snapshot.now_ms
    while entries := store.tail(seq, BATCH):
        for entry in entries:
            for number, fact in enumerate(_read_facts(entry, faults)):
                if (entry.seq, number) in skipped:
                    continue
                try:
                    apply(state, fact, Clock(entry.now_ms, entry.at_ms))
                except Exception as error:
                    place = (entry.seq, number)
                    if len(skipped) < CLEAN_TRIES:
                        raise _Unfoldable(place, fact) from error
                    skipped[place] = (f"the fact {type(fact).__name__} in turn {entry.seq}", error)
            seq, now_ms = entry.seq, max(now_ms, entry.now_ms)
    return Recovered(state, seq, now_ms, snapshot.clock_base, faults)


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
