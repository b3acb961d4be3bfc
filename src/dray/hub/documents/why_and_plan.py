"""`POST /plan` and `GET /jobs/{id}/why` as work in steps: the core's answers, put into documents.

Nothing here decides anything, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dray.core.lifecycle.happenings.policy import CHOICE
from dray.core.lifecycle.state.events import Clock, NewJob
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.jobs import draft_job
from dray.core.lifecycle.tasks.uses import is_served
from dray.core.model.ids import is_fake
from dray.core.model.policies.policy import AUTO
from dray.core.model.records.ledger import ChoiceRecord, Victim
from dray.core.model.records.records import Job
from dray.core.model.specs.larger import tell_outgrown
from dray.core.model.specs.resources import asks_of_packed
from dray.core.model.specs.spec import JobSpec, pack_spec
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.choosing.automatic import placement_of
from dray.core.scheduling.explain.choices import ABOUT_JOBS, Choice, list_choices
from dray.core.scheduling.explain.dry_run import Rehearsal, rehearse
from dray.core.scheduling.explain.explain import explain, look_ahead
from dray.core.scheduling.explain.fixes import seek_change
from dray.core.scheduling.explain.reason import Reason
from dray.core.scheduling.explain.trial import Guest
from dray.core.scheduling.launches.coming import tell, who_comes
from dray.hub.documents.reasons import (
    Sees,
    blocker_document,
    change_document,
    holder_document,
    place_document,
    reason_document,
    start_document,
    veil,
)
from dray.hub.documents.records import Document, moment, waits_document

# No job has this id: ids begin with a letter or a digit.
GUEST = "?"
HOUR_S = 3600


def why_steps(
    state: State, find: Callable[[State], Job], sees: Sees, fix: bool, now_ms: int
) -> Iterator[Document]:
    """Why a job waits, and what it has waited for; with `fix` also the smallest change that would start it."""
    job = find(state)
    reason, unsaid = explain(state, job), Document()
    yield unsaid
    job = find(state)
    look_ahead(state, job, reason)
    if fix and not reason.fits and reason.known:
        for change in seek_change(state, job.id):
            reason.change = change
            yield unsaid
    yield _why_document(state, find(state), reason, sees, now_ms)


def _why_document(state: State, job: Job, reason: Reason, sees: Sees, now_ms: int) -> Document:
    document = reason_document(state, reason, sees)
    if job.state.final and job.error:
        document["summary"] += f" ({job.error})"
    return document | {
        "learned": tell_outgrown(job.outgrown_bytes, job.outgrown_by, job.id),
        "waits": waits_document(state.waits.read(job, now_ms)),
        "launches": [tell(one) for one in who_comes(state, job)] if job.waiting else [],
    }


def make_guest(state: State, spec: JobSpec, clock: Clock) -> Job:
    """The job that a spec would become."""
    new = NewJob(GUEST, spec.user_id, pack_spec(spec), after=tuple(spec.after))
    job = draft_job(state, new, clock)
    job.unserved = not is_served(state, job.user, job.uses)
    return job


def plan_steps(state: State, spec: JobSpec, clock: Clock, sees: Sees) -> Iterator[Document]:
    """What would become of a spec that was submitted now."""
    job = make_guest(state, spec, clock)
    found, unsaid = Rehearsal(job=job, tasks=job.total), Document()
    for _ in rehearse(state, found, asks_of_packed(job.spec)):
        yield unsaid
    assert found.reason is not None  # every rehearsal ends with one
    yield plan_document(state, spec, found, found.reason, sees)


def plan_document(state: State, spec: JobSpec, found: Rehearsal, reason: Reason, sees: Sees) -> Document:
    """The whole answer of `plan`."""
    lost_ms = sum(victim.lost_ms for victim in found.victims)
    return {
        "starts_now": len(found.placed) == found.asked,
        "tasks": found.tasks,
        "asked": found.asked,
        "learned": tell_outgrown(found.job.outgrown_bytes, found.job.outgrown_by),
        "placements": [
            {
                "task": place.task,
                "worker": place.worker,
                "fake": is_fake(place.worker),
                "variant": _variant(spec, place.variant),
                "devices": list(place.devices),
            }
            for place in found.placed
        ],
        "candidates": [
            {
                "worker": each.worker,
                "fake": is_fake(each.worker),
                "variant": _variant(spec, each.variant),
                "score": each.score,
                "terms": each.terms,
                "devices": list(each.devices),
            }
            for each in found.ranked
        ],
        "candidates_total": found.fitting,
        **choices_document(spec, found),
        "placement": placement_document(state),
        "rule": found.rule,
        "victims": [
            _victim(victim, spelled, sees)
            for victim, spelled in zip(found.victims, found.spelled, strict=True)
        ],
        "lost_s": lost_ms / 1000,
        "quotas": [use._asdict() for use in found.gates],
        "summary": reason.summary if found.placed == [] else _tell_placed(found),
        "ever": reason.ever,
        "blockers": [blocker_document(state, blocker, sees) for blocker in reason.blockers],
        "holders": [holder_document(veil(holder, sees)) for holder in reason.holders],
        "place": place_document(reason.place),
        "earliest": start_document(reason.start),
        "estimate": None,
        "fix": reason.fix,
        "change": change_document(reason.change),
    }


def placement_document(state: State) -> Document:
    """By which strategy tasks are placed; where the policy leaves that open, by which rule, why and since when."""
    strategy, automatic = placement_of(state).strategy, state.policy.placement.strategy == AUTO
    record = state.ledger.get(CHOICE) if automatic else None
    if not isinstance(record, ChoiceRecord):
        why = "nothing was placed yet that a choice could go by" if automatic else "the policy says so"
        return {"strategy": strategy, "automatic": automatic, "rule": 0, "why": why, "since": None}
    since = moment(record.at_ms)
    return {"strategy": strategy, "automatic": True, "rule": record.rule, "why": record.why, "since": since}


def check_placement(state: State) -> Document:
    """Which placement strategy holds, as something that the doctor tells: it is never wrong."""
    placed = placement_document(state)
    how = f"chosen by rule {placed['rule']}: {placed['why']}" if placed["automatic"] else placed["why"]
    return {"name": "placement", "ok": True, "detail": f"{placed['strategy']}, {how}"}


def choices_document(spec: JobSpec, found: Rehearsal) -> Document:
    """What it could choose between by money and time; nothing where neither has been thought of."""
    choices = found.choices
    if choices is None or not choices.is_about_money:
        return {"choices": [], "chosen": ""}
    return {"choices": [_choice(spec, one) for one in choices.found], "chosen": found.chosen}


def _choice(spec: JobSpec, one: Choice) -> Document:
    prospect = one.prospect
    return {
        "provider": prospect.of.provider,
        "gpu_type": prospect.of.kind,
        "variant": _variant(spec, one.variant),
        "workers_with_room": one.fitting,
        "workers": one.could,
        "price_per_hour": round(one.price, 6),
        "priced": prospect.priced,
        "hours_p50": round(prospect.run_s / HOUR_S, 4),
        "hours_p90": round(prospect.p90_s / HOUR_S, 4),
        "hours_from": prospect.source,
        "money": round(one.money, 6),
        "in_time": one.in_time,
        "ends_in_s": round(one.ends_s, 1),
        "success": round(prospect.success, 4),
        "latency_s": prospect.start_s,
        "health": one.health,
        "score": one.score,
    }


def rank_steps(state: State, spec: JobSpec, clock: Clock) -> Iterator[Document]:
    """What a spec could choose between, with nothing tried out."""
    job = make_guest(state, spec, clock)
    found = Rehearsal(job=job, tasks=job.total)
    with Guest(state, job, asks_of_packed(job.spec)) as tried:
        found.choices = list_choices(state, Rooms(state), tried)
    weights = found.choices.weights
    yield {
        "choices": [_choice(spec, one) for one in found.choices.found],
        "weights": {name: getattr(weights, name) for name in ABOUT_JOBS},
        "deadline_in_s": found.choices.deadline_s,
    }


def _tell_placed(found: Rehearsal) -> str:
    if len(found.placed) == found.asked == found.tasks:
        return "it would start now" if found.tasks == 1 else f"all {found.tasks:,} tasks would start now"
    if len(found.placed) == found.asked:
        return f"the first {found.asked:,} of {found.tasks:,} tasks were tried, and would all start now"
    return f"{len(found.placed):,} of {found.tasks:,} tasks would start now"


def _victim(victim: Victim, spelled: str, sees: Sees) -> Document:
    shown = sees(victim.user)
    return {
        "task_id": spelled if shown else "",
        "user": victim.user if shown else "",
        "worker": victim.worker,
        "priority": victim.priority,
        "ran_s": victim.ran_ms / 1000,
        "lost_s": victim.lost_ms / 1000,
        "grace_s": victim.grace_s,
        "moved_to": victim.to,
    }


def _variant(spec: JobSpec, number: int) -> str:
    return (spec.variants[number].name or str(number)) if spec.variants else ""
