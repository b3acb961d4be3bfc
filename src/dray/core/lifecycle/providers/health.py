"""Whether it goes well at a provider: ok, degraded or bad, by what went wrong there within the last hours.

Two signs: the share of what ended there that the provider spoilt, and losses against its own month. It becomes worse
at once and better one step at a time, and only well below where it became worse: at the line it would flap, and work
with it. Nothing new goes to a bad one while it fits elsewhere, so what speaks against it fades by itself within hours.
"""

from __future__ import annotations

from typing import NamedTuple

from dray.core.lifecycle.providers.records import KIND, read, watch
from dray.core.lifecycle.state.effects import Alarm, Effect, Note
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.service_events import ProviderJudged
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.state.timings import Rules
from dray.core.model.records.ledger import ProviderRecord

OK, DEGRADED, BAD = "ok", "degraded", "bad"
HEALTHS = (OK, DEGRADED, BAD)
# So many losses within the last hours, and so many times what its own month tells, are a bad time.
_LEAST_LOSSES = 2.5
_TIMES = 8.0


class Finding(NamedTuple):
    """What a provider's record comes to, and why."""

    health: str
    why: str


def fault_share(record: ProviderRecord) -> float:
    """The part of what ended there lately that the provider spoilt; of little it is taken for a tenth."""
    return (record.recent_faults + 0.5) / (record.recent_ends + 5)


def judge(record: ProviderRecord, rules: Rules) -> Finding:
    """How a provider is doing by its record; where nothing new is known it stays as it is."""
    share, before = fault_share(record), HEALTHS.index(record.health)
    enough = record.recent_faults >= rules.provider_faults - 0.5
    unusual = _loses_unusually(record)
    worse = OK
    if enough and share >= rules.provider_bad[0]:
        worse = BAD
    elif unusual or (enough and share >= rules.provider_degraded[0]):
        worse = DEGRADED
    if HEALTHS.index(worse) > before:
        return Finding(worse, _tell(record, unusual and share < rules.provider_degraded[0]))
    lines = {BAD: rules.provider_bad, DEGRADED: rules.provider_degraded}
    if before and not unusual and share < lines[record.health][1]:
        better = HEALTHS[before - 1]
        return Finding(better, "" if better == OK else record.why)
    return Finding(record.health, record.why)


def _loses_unusually(record: ProviderRecord) -> bool:
    usual = (record.month_losses - record.recent_losses + 0.5) / (record.month_days - record.recent_days + 5)
    return record.recent_losses >= max(_LEAST_LOSSES, _TIMES * usual * record.recent_days)


def _tell(record: ProviderRecord, by_losses: bool) -> str:
    if by_losses:
        return f"lost {record.recent_losses:.0f} workers lately, far more than in its last month"
    ends = f"{record.recent_ends:.0f} attempts that ended there lately"
    return f"{record.recent_faults:.0f} of {ends} failed by its fault"


def judged(state: State, event: ProviderJudged, clock: Clock) -> list[Effect]:
    """A provider is doing better or worse from here on."""
    record = read(state, event.name, clock.now_ms)
    record.health, record.why, record.health_at_ms = event.health, event.why, clock.at_ms
    state.enter(KIND, event.name, record)
    follow_health(state, event.name)
    data = {"provider": event.name, "health": event.health} | ({"why": event.why} if event.why else {})
    told: list[Effect] = [Note("provider_judged", data=data)]
    if event.health == BAD:
        told.append(
            Alarm(f"provider {event.name} is bad, it gets no new work that fits elsewhere: {event.why}")
        )
    return told


def follow_health(state: State, name: str) -> None:
    """Keep the list of bad ones, and look again at whoever is not well."""
    record = state.ledger.get((KIND, name))
    health = record.health if isinstance(record, ProviderRecord) else OK
    if health == BAD:
        state.bad_providers[name] = None
    else:
        state.bad_providers.pop(name, None)
    if health != OK:
        watch(state, name, state.now_ms + state.rules.provider_look_ms)


def look(state: State, name: str, now_ms: int) -> list[ProviderJudged]:
    """What is to be said of a provider now, if anything."""
    due_ms = state.provider_looks.get(name)
    if due_ms is None or due_ms > now_ms:
        # An earlier look has stood for this one.
        return []
    del state.provider_looks[name]
    record = read(state, name, now_ms)
    found = judge(record, state.rules)
    if found.health != record.health:
        return [ProviderJudged(name, found.health, found.why)]
    if record.health != OK:
        watch(state, name, now_ms + state.rules.provider_look_ms)
    return []


def recall(state: State) -> None:
    """Take up after a load who was bad."""
    state.bad_providers.clear()
    state.provider_looks.clear()
    for kind, name in list(state.ledger):
        if kind == KIND:
            follow_health(state, name)
