"""The real pass rehearsed for a job that nobody has submitted: where, how good, at whose cost, and when otherwise.

Works step by step, each on the state as it then stands; nothing is written and nothing stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from dray.core.lifecycle.happenings.preemptions import victims_of
from dray.core.lifecycle.state.parties import (
    HOUR_MS,
    AmountGate,
    CapGate,
    Gate,
    PaceGate,
    PurseGate,
    QuotaGate,
    WidthGate,
)
from dray.core.lifecycle.state.state import State
from dray.core.model.records.ledger import Victim
from dray.core.model.records.records import Job
from dray.core.model.specs.resources import Asks
from dray.core.scheduling.explain.choices import Choices, list_choices, place_of, tell_choice
from dray.core.scheduling.explain.explain import explain, look_ahead
from dray.core.scheduling.explain.fixes import seek_change_for
from dray.core.scheduling.explain.gate_reasons import whose
from dray.core.scheduling.explain.reason import Reason
from dray.core.scheduling.explain.trial import Guest, try_out
from dray.core.scheduling.passes.overlay import look_through
from dray.core.scheduling.turns.gates import most_gpus, most_of

MOST_PLACED = 100
MOST_RANKED = 10


class Placed(NamedTuple):
    """Where one task would go."""

    task: int
    worker: str
    variant: int
    devices: tuple[int, ...]


class Ranked(NamedTuple):
    """A worker that it could go to: its score in the strategy's own integers, and what each scorer says of it."""

    worker: str
    variant: int
    score: int
    devices: tuple[int, ...]
    terms: dict[str, float]


class GateUse(NamedTuple):
    """What a rule allows, how much of it is used, and how much would be."""

    kind: str
    whose: str
    unit: str
    limit: float
    used: float
    after: float


class Rehearsal(msgspec.Struct, kw_only=True):
    """What would happen. `asked` is how many tasks were tried: the first of a large array stand for all."""

    job: Job
    tasks: int
    asked: int = 0
    placed: list[Placed] = []
    ranked: list[Ranked] = []
    fitting: int = 0
    rule: str = ""
    victims: list[Victim] = []
    spelled: list[str] = []
    gates: list[GateUse] = []
    reason: Reason | None = None
    choices: Choices | None = None
    chosen: str = ""


def rehearse(state: State, found: Rehearsal, asks: Asks) -> Iterator[None]:
    """Try a job out and note what is found; stops between its steps so that others may be let in."""
    job = found.job
    with Guest(state, job, asks) as tried:
        _rank(state, tried, found)
    yield
    with Guest(state, job, asks) as tried:
        _place(state, tried, found)
    yield
    with Guest(state, job, asks) as tried:
        found.reason = explain(state, tried)
    yield
    if len(found.placed) < found.asked:
        with Guest(state, job, asks) as tried:
            look_ahead(state, tried, found.reason)
        yield
    if not found.placed:
        for change in seek_change_for(state, lambda: job, asks):
            found.reason.change = change
            yield


def _rank(state: State, job: Job, found: Rehearsal) -> None:
    overlay = look_through(state)
    overlay.look_for(job)
    names = state.columns.worker_of
    found.choices = list_choices(state, overlay.rooms, job)
    found.fitting = max(int(overlay.rooms.mask(ask).sum()) for ask in state.asks(job.shape))
    found.ranked = [
        Ranked(
            names[each.row],
            each.variant,
            each.score,
            each.devices,
            overlay.placer.terms(job.shape, each, job.id),
        )
        for each in overlay.placer.ranking(job.shape, job.id, MOST_RANKED)
    ]


def _place(state: State, job: Job, found: Rehearsal) -> None:
    overlay, names = look_through(state), state.columns.worker_of
    found.asked = job.total if job.gang and not job.service else min(job.total, MOST_PLACED)
    barred = job.barred
    outcome = try_out(overlay, job, found.asked) if not barred else None
    placed = 0
    if outcome is not None:
        found.placed = [
            Placed(index, names[spot.row], spot.variant, spot.devices)
            for index, spot in enumerate(outcome.spots)
        ]
        placed = len(outcome.spots)
        if placed and found.choices is not None:
            found.chosen = tell_choice(found.choices, place_of(state, found.placed[0].worker))
        if outcome.preemption is not None:
            attempts = [state.attempts[uid] for uid in outcome.preemption.victims]
            found.rule = outcome.preemption.rule
            found.victims = list(victims_of(state, attempts, outcome.preemption.moves))
            found.spelled = [state.spell(attempt) for attempt in attempts]
    gates = state.parties.all[job.party].gates
    found.gates = [use for gate in gates for use in _use(state, job, gate, placed)]


def _use(state: State, job: Job, gate: Gate, placed: int) -> Iterator[GateUse]:
    kind, name, now_ms = gate.whom.rule, whose(gate), state.now_ms
    if isinstance(gate, QuotaGate):
        if gate.rule.gpus >= 0:
            held, more = gate.gpu_milli / 1000, placed * most_gpus(state, job.shape) / 1000
            yield GateUse(kind, name, "GPUs", gate.rule.gpus, held, held + more)
        if gate.hard_ms or gate.soft_ms:
            used = gate.used_ms(now_ms) / (HOUR_MS * 1000)
            more = placed * most_gpus(state, job.shape) * job.limit_ms / (HOUR_MS * 1000)
            yield GateUse(
                kind, name, "GPU-hours", (gate.hard_ms or gate.soft_ms) / (HOUR_MS * 1000), used, used + more
            )
    elif isinstance(gate, AmountGate):
        scale = {"cores": 1000, "memory": 1 << 30}.get(gate.unit, 1)
        unit = "GiB of memory" if gate.unit == "memory" else gate.unit
        held, more = gate.gpu_milli / scale, placed * most_of(gate, state, job.shape) / scale
        yield GateUse("quota", name, unit, gate.limit / scale, held, held + more)
    elif isinstance(gate, PaceGate):
        left = gate.room(0, 0, 0, now_ms)
        used = gate.rule.burst - left
        yield GateUse(kind, name, "starts", gate.rule.burst, used, used + placed)
    elif isinstance(gate, CapGate):
        yield GateUse(kind, name, "tasks", gate.rule.most, gate.live, gate.live + placed)
    elif isinstance(gate, WidthGate) and (width := gate.rule.record.terms.width):
        yield GateUse("width", name, "tasks", width, gate.live, gate.live + placed)
    elif isinstance(gate, PurseGate) and (hours := gate.rule.record.terms.budget.gpu_hours):
        used = gate.rule.used_ms(now_ms) / (HOUR_MS * 1000)
        more = placed * most_gpus(state, job.shape) * job.limit_ms / (HOUR_MS * 1000)
        yield GateUse("budget", name, "GPU-hours", hours, used, used + more)
