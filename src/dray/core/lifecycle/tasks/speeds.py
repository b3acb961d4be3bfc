"""How fast jobs of one name run on each kind of card: what attempts tell is put on record, and outlives the hub.

What attempts say of their progress is a signal, so that what follows from it becomes a fact of its own before anybody
goes by it. A rate is the middle one of the last that were measured: one lie, or one jump, moves it little, and shows
in the record's error, by which whoever asks decides whether to believe it.
"""

from __future__ import annotations

import math
from statistics import median

from dray.core.lifecycle.state.effects import Effect
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.experience import MOST_NAMES, SpeedSample
from dray.core.lifecycle.state.service_events import SpeedsSeen
from dray.core.lifecycle.state.state import State
from dray.core.model.records.ledger import SpeedRecord

SPEED = "speed"
MOST_SAMPLES, MOST_FRESH, MOST_ERROR, MOST_RATE = 8, 256, 9.0, 1e12


def look(state: State) -> list[SpeedsSeen]:
    """What was measured and is not on record yet; more than a turn should carry is left out."""
    fresh, state.experience.speeds.fresh = state.experience.speeds.fresh, []
    return [SpeedsSeen(tuple(fresh[:MOST_FRESH]))] if fresh else []


def seen(state: State, event: SpeedsSeen, clock: Clock) -> list[Effect]:
    """Put what was measured on record."""
    for sample in event.samples:
        if sample.name and math.isfinite(sample.rate) and 0 < sample.rate <= MOST_RATE:
            _record(state, sample, clock.at_ms)
    return []


def recall(state: State) -> None:
    """Know what is on record, after a load."""
    state.experience.speeds.fresh = []
    found = [record for record in state.ledger.values() if isinstance(record, SpeedRecord)]
    for record in sorted(found, key=lambda one: (one.at_ms, one.name, one.kind)):
        _learn(state, record)


def _record(state: State, sample: SpeedSample, at_ms: int) -> None:
    key, speeds = f"{sample.kind} {sample.name}", state.experience.speeds
    known = state.ledger.get((SPEED, key))
    before = known if isinstance(known, SpeedRecord) else SpeedRecord(sample.name, sample.kind)
    error = before.error
    if before.samples:
        wrong = min(MOST_ERROR, abs(median(before.samples) / sample.rate - 1))
        error = wrong if len(before.samples) == 1 else (3 * error + wrong) / 4
    record = SpeedRecord(
        sample.name, sample.kind, (*before.samples, sample.rate)[-MOST_SAMPLES:], error, at_ms
    )
    state.enter(SPEED, key, record)
    _learn(state, record)
    if len(speeds.rates) > MOST_NAMES:
        name, kind = next(iter(speeds.rates))
        state.enter(SPEED, f"{kind} {name}", None)
        speeds.forget(name, kind)


def _learn(state: State, record: SpeedRecord) -> None:
    samples = record.samples
    state.experience.speeds.learn(record.name, record.kind, median(samples), len(samples), record.error)
