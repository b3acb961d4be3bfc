"""Short tasks of an array are given to a worker before there is room: behind those that run, each to take over a place.

So a worker begins the next one without asking, and ends and assignments come in groups. How many stand behind one
depends on how long the job's tasks take: some ms of work. The surprising rule: a place that has gone from one to the
next for a while gets nobody more while others wait. It runs empty, and the pass decides whose turn it is. What has not
begun after a while its worker gives back.
"""

from __future__ import annotations

from collections.abc import Iterator

from dray.core.lifecycle.state.events import Event, Placement, PlanDecided
from dray.core.lifecycle.state.parties import PaceGate
from dray.core.lifecycle.state.pass_events import LeadsSeen
from dray.core.lifecycle.state.state import State
from dray.core.model.ids import attempt_uid
from dray.core.model.records.records import Attempt, Job, Phase
from dray.core.model.records.worker import usable_credit
from dray.core.model.specs.spec import unpack_spec
from dray.core.scheduling.passes.lane_feeding import Supply, is_spent, others_wait

MOST_BEHIND = 32
FEATURE = "behind"
_LEADING = (Phase.ASSIGNED, Phase.ACCEPTED, Phase.RUNNING)


def line_up(state: State) -> Iterator[Event]:
    """Top up what stands behind attempts that were just placed, or have just taken a place over."""
    if not state.leads:
        return
    leads = [lead for uid in state.leads if (lead := state.attempts.get(uid)) is not None]
    yield LeadsSeen(tuple(state.leads))
    placements: list[Placement] = []
    by_job: dict[str, list[Attempt]] = {}
    for lead in leads:
        by_job.setdefault(lead.job_id, []).append(lead)
    number, given = state.counters.next_attempt, dict[str, int]()
    for job_id, own in by_job.items():
        job = state.jobs[job_id]
        most = depth(state, job)
        if not most or not may_queue(state, job):
            continue
        supply = Supply(state, job)
        for lead in own:
            tail, length = _tail(state, lead)
            # Towards the end each place gets its part, and what is left over goes to whichever is free first.
            count = min(most - length, supply.left // max(1, job.live))
            if count <= 0 or not _may_lead(state, job, lead, count + given.get(lead.worker, 0)):
                continue
            since_ms = state.taken_over.get(lead.uid, lead.assigned_ms)
            if state.now_ms - since_ms >= state.rules.behind_ms and others_wait(state, job):
                continue
            given[lead.worker] = given.get(lead.worker, 0) + count
            for index in _indices(supply.take(count)):
                uid = attempt_uid(state.counters.epoch, number, state.uid_key)
                number += 1
                placements.append(
                    Placement(job_id, index, uid, lead.worker, lead.devices, lead.variant, behind=tail)
                )
                tail = uid
    if placements:
        yield PlanDecided(tuple(placements))


def depth(state: State, job: Job) -> int:
    """How many tasks of a job may stand behind one: some ms of work, none while it is not known how long they take."""
    mean_us = state.experience.tasks.get(job.id)
    if mean_us is None:
        return 0
    return min(MOST_BEHIND, int(state.rules.ahead_ms * 1000 // max(1.0, mean_us)))


def may_queue(state: State, job: Job) -> bool:
    """Whether tasks of a job may be given out ahead of their place: not where starts are counted out, or room is kept.

    Nor those that may run once only, or never twice at the same time: of them a worker has no more than it runs. Nor
    those with ports, which they would hold while they wait.
    """
    gates = state.parties.all[job.party].gates
    if job.barred or any(isinstance(gate, PaceGate) for gate in gates) or is_spent(state, job):
        return False
    if state.reservations or job.outgrown_bytes or job.blamed:
        # What runs of it may stand where nothing more of it should.
        return False
    spec = unpack_spec(job.spec)
    return not spec.at_most_once and spec.overlap != "fenced" and not spec.ports


def _may_lead(state: State, job: Job, lead: Attempt, count: int) -> bool:
    """Whether a place may have more behind it: it goes on, and its worker takes work."""
    if lead.behind or lead.cancel or lead.yielded or lead.phase not in _LEADING or lead.shape != job.shape:
        return False
    worker, columns = state.workers[lead.worker], state.columns
    if usable_credit(worker, state.presence[lead.worker]) < count or FEATURE not in worker.features:
        return False
    if state.bad_providers and state.provider_of.get(lead.worker, "") in state.bad_providers:
        return False
    return bool(columns.get("open", columns.row_of[lead.worker]))


def _tail(state: State, lead: Attempt) -> tuple[str, int]:
    """The last one behind an attempt, and how many there are."""
    tail, length = lead.uid, 0
    while follower := state.followers.get(tail):
        tail, length = follower, length + 1
    return tail, length


def _indices(ranges: list[int]) -> Iterator[int]:
    for place in range(0, len(ranges), 2):
        yield from range(ranges[place], ranges[place] + ranges[place + 1])
