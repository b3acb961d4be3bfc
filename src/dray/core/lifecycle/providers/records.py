"""How it goes on the workers of each provider: one record each, that halves within a week.

Records of the ledger, so that they outlive the hub; facts alone change them. Only workers with the label `provider`
have one: all others cost nothing here. Worker-days flow on by themselves, and are brought up to date whenever something
else changes. The surprising rule: what a worker loses at one moment is one loss, however many tasks it ran.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from dray.core.lifecycle.providers.prices import spent_by
from dray.core.lifecycle.state.state import State
from dray.core.model.records.ledger import ProviderRecord
from dray.core.model.records.records import Attempt, Phase

KIND = "provider"
DAY_MS = 86_400_000
HALF_MS = 7 * DAY_MS
MONTH_HALF_MS = 30 * DAY_MS
# What may be tracked at once: the label is the worker's own word, and strangers may call themselves what they like.
MOST_PROVIDERS = 256
BINS = 24
# Half a loss a day, until it is known better.
SPOT_LOSSES = 2.5
FRESH_MS = 1000
# Which sums fade how fast, the one of worker-days among them; 0: as fast as the rules say.
_FADING = (
    (("losses", "days", "succeeded", "faults", "money"), "days", HALF_MS),
    (("recent_ends", "recent_faults", "recent_losses", "recent_days"), "recent_days", 0),
    (("month_losses", "month_days"), "month_days", MONTH_HALF_MS),
)


def watch(state: State, name: str, at_ms: int) -> None:
    """Have it judged then how a provider is doing, or sooner."""
    due_ms = state.provider_looks.get(name)
    if due_ms is None or at_ms < due_ms:
        state.provider_looks[name] = at_ms
        state.set_timer(at_ms, KIND, name)


def follow(state: State, worker_id: str) -> None:
    """A worker came, went, or is called something else: whose worker-days it adds to from here on."""
    worker = state.workers.get(worker_id)
    here = worker is not None and not (worker.silent or worker.left)
    label = worker.all_labels.get(KIND, "") if worker is not None else ""
    before = state.provider_of.get(worker_id, "")
    if before == label and (not label or state.provided[label][worker_id] is here):
        return
    if before:
        _bring_up(state, before)
        _take_out(state, before, worker_id)
    if label and (before == label or _has_room(state, label)):
        _bring_up(state, label)
        _put_in(state, label, worker_id, here)


def recall(state: State) -> None:
    """Find out whose workers there are, after a load: the records say up to when their days were counted."""
    for known in (state.provider_of, state.provided, state.providers_here):
        known.clear()
    for worker in state.workers.values():
        label = worker.all_labels.get(KIND, "")
        if label and _has_room(state, label):
            _put_in(state, label, worker.id, not (worker.silent or worker.left))


def _put_in(state: State, name: str, worker_id: str, here: bool) -> None:
    state.provider_of[worker_id] = name
    state.provided.setdefault(name, {})[worker_id] = here
    state.providers_here[name] = state.providers_here.get(name, 0) + here


def _take_out(state: State, name: str, worker_id: str) -> None:
    state.providers_here[name] -= state.provided[name].pop(worker_id)
    del state.provider_of[worker_id]
    if not state.provided[name]:
        del state.provided[name], state.providers_here[name]


def ended(state: State, attempt: Attempt) -> None:
    """Take in how one attempt ended. Failures are users' own, whatever their programs print of the machine: what is
    said there takes a worker into quarantine by rules of its own, and that is held against the provider.
    """
    name = state.provider_of.get(attempt.worker, "")
    if not name:
        return
    if attempt.phase is Phase.LOST:
        # Not yet: what a worker loses at one moment is counted as one, by `spoilt`.
        return
    record = _open(state, name)
    record.recent_ends += 1
    if attempt.phase is Phase.SUCCEEDED and not attempt.lane:
        record.succeeded += 1
    record.money += spent_by(attempt)
    if attempt.started and attempt.started_ms >= attempt.assigned_ms and not attempt.fed_ms:
        record.starts = _count_start(record.starts, attempt.started_ms - attempt.assigned_ms)
    if record.health != "ok":
        watch(state, name, state.now_ms)


def spoilt(state: State, worker_id: str, started: bool, money: int = 0) -> None:
    """A worker lost an attempt. Not `started`: it never began there, or the worker was found faulty."""
    name = state.provider_of.get(worker_id, "")
    if not name:
        return
    record = _open(state, name)
    record.money += money
    moment = f"{state.now_ms} {worker_id}"
    if record.last_loss == moment:
        return
    record.last_loss = moment
    record.recent_ends += 1
    _hold_against(state, name, record)
    if started:
        record.losses += 1
        record.recent_losses += 1
        record.month_losses += 1


def _hold_against(state: State, name: str, record: ProviderRecord) -> None:
    record.faults += 1
    record.recent_faults += 1
    watch(state, name, state.now_ms)


def read(state: State, name: str, now_ms: int) -> ProviderRecord:
    """A provider's record as it stands at a moment; one of which nothing is known has an empty one. Changes nothing."""
    known = state.ledger.get((KIND, name))
    if not isinstance(known, ProviderRecord):
        return ProviderRecord(since_ms=now_ms)
    return _brought_forward(known, state.providers_here.get(name, 0), now_ms, state.rules.provider_half_ms)


def _bring_up(state: State, name: str) -> None:
    """Count the worker-days up to now: how many workers there are is about to change."""
    state.enter(KIND, name, read(state, name, state.now_ms))


def _open(state: State, name: str) -> ProviderRecord:
    """A provider's record to be changed, which is written then; within a second nothing fades."""
    known = state.ledger.get((KIND, name))
    fresh = isinstance(known, ProviderRecord) and state.now_ms - known.since_ms < FRESH_MS
    record = (
        msgspec.structs.replace(known)
        if fresh and isinstance(known, ProviderRecord)
        else read(state, name, state.now_ms)
    )
    state.enter(KIND, name, record)
    return record


def _brought_forward(known: ProviderRecord, here: int, now_ms: int, recent_ms: int) -> ProviderRecord:
    span_ms = max(0, now_ms - known.since_ms)
    record = msgspec.structs.replace(known, since_ms=max(now_ms, known.since_ms))
    for names, days, slow_ms in _FADING:
        half_ms = slow_ms or recent_ms
        left = 0.5 ** (span_ms / half_ms)
        for field in names:
            setattr(record, field, getattr(known, field) * left)
        # What flowed in meanwhile has faded meanwhile.
        setattr(record, days, getattr(record, days) + here * (1 - left) * half_ms / (math.log(2) * DAY_MS))
    left = 0.5 ** (span_ms / HALF_MS)
    record.starts = tuple(count * left for count in known.starts)
    return record


def _has_room(state: State, name: str) -> bool:
    """Whether a provider may be tracked: of too many those go first of which no worker is left."""
    if name in state.provided or (KIND, name) in state.ledger:
        return True
    known = {key: one for (kind, key), one in state.ledger.items() if kind == KIND}
    if len(known) + len(state.provided.keys() - known.keys()) < MOST_PROVIDERS:
        return True
    idle = [
        (one.since_ms, key)
        for key, one in known.items()
        if isinstance(one, ProviderRecord) and key not in state.provided
    ]
    if not idle:
        return False
    state.enter(KIND, min(idle)[1], None)
    return True


def _count_start(starts: Sequence[float], took_ms: int) -> tuple[float, ...]:
    counts = list(starts) or [0.0] * BINS
    counts[min(BINS - 1, took_ms.bit_length())] += 1
    return tuple(counts)


def start_ms(record: ProviderRecord, share: float) -> float | None:
    """Within how long so many of its attempts began after they were given out; None where none did.

    Counted in bins of twice the width each, and spread evenly within one.
    """
    total = sum(record.starts)
    if total < 0.01:
        return None
    wanted, seen = share * total, 0.0
    for place, count in enumerate(record.starts):
        if count and seen + count >= wanted:
            low, high = (1 << place) / 2, float(1 << place)
            return low + (high - low) * (wanted - seen) / count if place else 0.0
        seen += count
    return float(1 << BINS)


def loss_rate(record: ProviderRecord, spot: bool = False) -> float:
    """Losses per worker-day; one of which little is known is not taken for perfect, and least where it is `spot`."""
    return (record.losses + (SPOT_LOSSES if spot else 0.5)) / (record.days + 5)


def success_share(record: ProviderRecord) -> float:
    """The part of what ran there that the provider did not spoil, by the same caution."""
    good = record.succeeded
    return (good + 4.5) / (good + record.faults + 5)
