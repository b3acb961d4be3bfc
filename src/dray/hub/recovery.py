"""Rows + fold of the log's tail through the same `apply` = the state that was committed.

Whatever the rows had not caught up with when the last hub died is in the tail; nothing else is needed.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.events import Clock, unpack_facts
from dray.core.lifecycle.recovery import load, read_ledger, recall
from dray.core.lifecycle.rules import Rules
from dray.core.lifecycle.state import Counters, State
from dray.hub.store.base import Store

BATCH = 1000


class Recovered(NamedTuple):
    """The state after the last committed turn, its number, and where hub time stood."""

    state: State
    seq: int
    now_ms: int
    clock_base: bytes


def recover(store: Store, rules: Rules) -> Recovered:
    """Load what is live and fold in what the rows do not show yet."""
    snapshot = store.load()
    state = State(rules)
    state.now_ms = snapshot.now_ms
    counters = msgspec.msgpack.decode(snapshot.counters, type=Counters) if snapshot.counters else Counters()
    read_ledger(state, snapshot.ledger)
    load(state, counters, (snapshot.jobs, snapshot.tasks, snapshot.attempts, snapshot.workers))
    for task in list(state.tasks.values()):
        if (task.queued or task.current) and task.last_uid and task.last_uid not in state.attempts:
            attempt = store.find_attempt(task.last_uid)
            if attempt is not None:
                recall(state, attempt)
    seq, now_ms = snapshot.applied_seq, snapshot.now_ms
    while entries := store.tail(seq, BATCH):
        for entry in entries:
            for fact in unpack_facts(entry.facts):
                apply(state, fact, Clock(entry.now_ms, entry.at_ms))
            seq, now_ms = entry.seq, max(now_ms, entry.now_ms)
    return Recovered(state, seq, now_ms, snapshot.clock_base)
