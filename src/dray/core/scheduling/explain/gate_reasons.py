"""The gates of a job in words: quotas, paces, caps, and a soft budget that puts its work behind everybody else's.

Asks the gates themselves, as a pass does, and reads what they hold; changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from dray.core.lifecycle.state.parties import (
    HOUR_MS,
    AmountGate,
    CapGate,
    Gate,
    PaceGate,
    PurseGate,
    QuotaGate,
    SkewGate,
    SwitchGate,
    WidthGate,
)
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.core.model.records.workload import MICRO
from dray.core.model.units import format_bytes
from dray.core.scheduling.explain.reason import Blocker, span
from dray.core.scheduling.turns.gates import Gates, most_gpus, most_of


def gate_blockers(state: State, job: Job, gates: Gates) -> list[Blocker]:
    """Every gate that lets no task of a job through now, and every soft budget it is over."""
    if job.party < 0 or not state.parties.all[job.party].gates:
        return []
    return [
        blocker for gate in state.parties.all[job.party].gates for blocker in _ask(state, job, gates, gate)
    ]


def _ask(state: State, job: Job, gates: Gates, gate: Gate) -> Iterator[Blocker]:
    apart = isinstance(gate, SkewGate) and state.backlog.gated.get(state.line_of(job)) == gate.key
    if apart or gates.room_at(gate, job) <= 0:
        yield _WORDS[type(gate)](state, job, gate)
    if isinstance(gate, QuotaGate) and gate.is_late(state.now_ms):
        used, soft = _hours(gate.used_ms(state.now_ms)), _hours(gate.soft_ms)
        text = (
            f"{whose(gate)} is over its soft budget ({used} of {soft} GPU-hours): it goes behind all others"
        )
        yield Blocker("soft_budget", f"{soft} GPU-hours", f"{used} used", message=text)


def _word_quota(state: State, job: Job, gate: Gate) -> Blocker:
    assert isinstance(gate, QuotaGate)
    used_ms = gate.used_ms(state.now_ms)
    if gate.hard_ms and used_ms >= gate.hard_ms:
        in_ms = max(0, gate.opens_ms(state.now_ms) - state.now_ms)
        need, have = f"fewer than {_hours(gate.hard_ms)} GPU-hours", f"{_hours(used_ms)} used"
        text = (
            f"{whose(gate)} has used {_hours(used_ms)} of {_hours(gate.hard_ms)} GPU-hours: "
            f"the next period begins in {span(in_ms)}"
        )
        return Blocker("quota", need, have, message=text, in_ms=in_ms)
    milli = most_gpus(state, job.shape) * job.group_size
    held, limit = _cards(gate.gpu_milli), _cards(gate.limit_milli)
    ever = milli > gate.limit_milli
    text = f"{whose(gate)} holds {held} of {limit} GPUs, and it asks for {_cards(milli)}"
    return Blocker("quota", f"{_cards(milli)} GPUs", f"{held} of {limit} held", ever=ever, message=text)


def _word_amount(state: State, job: Job, gate: Gate) -> Blocker:
    assert isinstance(gate, AmountGate)
    asked = most_of(gate, state, job.shape) * job.group_size
    held, limit, wants = (_amount(gate, each) for each in (gate.gpu_milli, gate.limit, asked))
    text = f"{whose(gate)} holds {held} of {limit} {gate.unit}, and it asks for {wants}"
    return Blocker("quota", wants, f"{held} of {limit} held", ever=asked > gate.limit, message=text)


def _amount(gate: AmountGate, value: int) -> str:
    if gate.unit == "memory":
        return format_bytes(value)
    return f"{value / 1000:g}" if gate.unit == "cores" else str(value)


def _word_pace(state: State, job: Job, gate: Gate) -> Blocker:
    assert isinstance(gate, PaceGate)
    in_ms = max(0, gate.opens_ms(state.now_ms) - state.now_ms)
    rate = f"{gate.rule.per_minute:g} starts a minute"
    text = f"{whose(gate)} may have {rate}: the next token comes in {span(max(in_ms, 1000))}"
    return Blocker("pace", "a token", rate, message=text, in_ms=in_ms)


def _word_cap(state: State, job: Job, gate: Gate) -> Blocker:
    assert isinstance(gate, CapGate)
    text = f"{gate.live} tasks labelled {gate.rule.label} run already, the cap is {gate.rule.most}"
    return Blocker("cap", f"fewer than {gate.rule.most}", str(gate.live), message=text)


def _word_switch(state: State, job: Job, gate: Gate) -> Blocker:
    assert isinstance(gate, SwitchGate)
    record = gate.rule.record
    who = f" by {record.switched_by}" if record.switched_by else ""
    if record.is_cancelled:
        return Blocker(
            "workload", "a workload that goes on", "cancelled", ever=True, message=f"{whose(gate)} is over"
        )
    if not record.is_started:
        text = f"{whose(gate)} was not started yet: dray workload start {record.id}"
        return Blocker("workload", "started", "a draft", message=text)
    text = f"{whose(gate)} is paused{who}: dray workload start {record.id}"
    return Blocker("workload", "started", "paused", message=text)


def _word_width(state: State, job: Job, gate: Gate) -> Blocker:
    assert isinstance(gate, WidthGate)
    width, name = gate.rule.record.terms.width, gate.rule.record.id
    if job.group_size > width:
        text = f"{whose(gate)} runs at most {width} tasks at once, its gang has {job.group_size}"
        need = f"a width of {job.group_size}"
        return Blocker(
            "workload", need, str(width), ever=True, message=f"{text}: dray workload scale {name} N"
        )
    text = f"{whose(gate)} runs {gate.live} tasks, its width is {width}: dray workload scale {name} N"
    return Blocker("workload", f"fewer than {width}", str(gate.live), message=text)


def _word_purse(state: State, job: Job, gate: Gate) -> Blocker:
    assert isinstance(gate, PurseGate)
    tally, now_ms = gate.rule, state.now_ms
    budget, said = tally.record.terms.budget, []
    if budget.gpu_hours:
        said.append(f"{_hours(tally.used_ms(now_ms))} of {budget.gpu_hours:g} GPU-hours")
    if budget.money:
        said.append(f"{tally.paid(now_ms) / MICRO:.4g} of {budget.money:g} in money")
    have = " and ".join(said)
    text = f"the budget of {whose(gate)} is spent ({have}): dray workload set {tally.record.id} --budget"
    return Blocker("workload", "a budget that is not spent", have, message=text)


def _word_skew(state: State, job: Job, gate: Gate) -> Blocker:
    assert isinstance(gate, SkewGate)
    lies = gate.rule.record.terms.distribution
    where = f"value of {lies.by}" if lies.by else "worker"
    text = (
        f"{whose(gate)} is to lie in the mode {lies.mode}, off by at most {lies.max_skew}: there is room only where "
        f"one more would be too many for its {where}: dray workload spread {gate.rule.record.id} "
        f"{lies.mode} --max-skew N"
    )
    return Blocker("distribution", f"{lies.mode} within {lies.max_skew}", "too many there", message=text)


_WORDS = {
    SkewGate: _word_skew,
    QuotaGate: _word_quota,
    AmountGate: _word_amount,
    PaceGate: _word_pace,
    CapGate: _word_cap,
    SwitchGate: _word_switch,
    WidthGate: _word_width,
    PurseGate: _word_purse,
}


def whose(gate: Gate) -> str:
    """Whom a gate is about."""
    if gate.whom.kind == "cluster":
        return "the whole cluster"
    return f"{gate.whom.kind} {gate.whom.name}"


def _hours(milli_ms: int) -> str:
    return f"{milli_ms / (HOUR_MS * 1000):.4g}"


def _cards(milli: int) -> str:
    return f"{milli / 1000:g}"
