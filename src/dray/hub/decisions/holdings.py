"""What users, queues, plugins and templates hold and have used, read off the state for those who ask.

Reads and never counts along: an answer costs one look at every job that runs, and nobody pays for it in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from dray.core.lifecycle.state.parties import HOUR_MS, GateKey, QuotaGate, quota_key
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.policy import EACH, PRINCIPALS, WHOLE_CLUSTER, Policy, Quota
from dray.core.model.records.records import Job
from dray.core.model.specs.resources import WHOLE

STEP_JOBS = 64


class Holding(NamedTuple):
    """Tasks that are placed and not yet gone, and the milli-GPUs they hold."""

    tasks: int = 0
    gpu_milli: int = 0

    def plus(self, other: Holding) -> Holding:
        return Holding(self.tasks + other.tasks, self.gpu_milli + other.gpu_milli)


Holdings = dict[str, dict[str, Holding]]


def find_holdings(state: State) -> Holdings:
    """What is held, by user, queue, plugin and template, and by name."""
    *_, found = holding_steps(state)
    return found


def holding_steps(state: State) -> Iterator[Holdings]:
    """The same in steps, between which jobs may come and go; what is said last holds."""
    found: Holdings = {kind: {} for kind in PRINCIPALS}
    jobs = list(state.live_of)
    for first in range(0, len(jobs), STEP_JOBS):
        yield found
        for job_id in jobs[first : first + STEP_JOBS]:
            job, uids = state.jobs.get(job_id), state.live_of.get(job_id)
            if job is None or not uids:
                continue
            holding = _holding_of(state, job, uids)
            for kind in PRINCIPALS:
                if name := principal_of(job, kind):
                    found[kind][name] = found[kind].get(name, Holding()).plus(holding)
    yield found


def principal_of(job: Job, kind: str) -> str:
    """Whom of a kind a job belongs to; empty where it has no such."""
    return WHOLE_CLUSTER if kind == "cluster" else str(getattr(job, kind))


def _holding_of(state: State, job: Job, uids: Iterable[str]) -> Holding:
    asks, listed = state.asks(job.shape), [uid for uid in uids if not state.attempts[uid].behind]
    if len(asks) == 1 and not job.service:
        # All its tasks hold the same: an array costs as much as a single job.
        return Holding(len(listed), len(listed) * asks[0].gpus * asks[0].gpu_milli)
    held = [state.ask(state.attempts[uid]) for uid in listed]
    return Holding(len(held), sum(ask.gpus * ask.gpu_milli for ask in held))


def whom(quota: Quota) -> tuple[str, str]:
    """Whom a quota is about: (user, queue, plugin or template; the name)."""
    return quota.whom


def quotas_in_force(policy: Policy, names: Mapping[str, Iterable[str]]) -> dict[tuple[str, str], Quota]:
    """The quota of each name; one for a name goes before the one for each. `names` are those known, by kind."""
    found: dict[tuple[str, str], Quota] = {}
    for quota in policy.quotas:
        kind, name = whom(quota)
        if name == EACH:
            found |= {(kind, known): quota for known in names[kind] if (kind, known) not in found}
    return found | {whom(quota): quota for quota in policy.quotas if whom(quota)[1] != EACH}


def used_gpu_hours(state: State, kind: str, name: str, quota: Quota, now_ms: int) -> float:
    """GPU-hours used in the present period, what is held now counted up to this moment."""
    key = quota_key(kind, name, whom(quota)[1])
    gate = state.parties.gates.get(str(key))
    if not isinstance(gate, QuotaGate):
        # Nobody's work passes it now; what was used before is in its meter.
        gate = QuotaGate(key, quota, state.ledger)
    return gate.used_ms(now_ms) / HOUR_MS / WHOLE


def known_names(state: State, held: Holdings) -> dict[str, set[str]]:
    """Everybody a quota for each may be about: who has work, or has used something."""
    names = {kind: set(found) for kind, found in held.items()}
    names["queue"] |= set(state.policy.queues)
    names["cluster"].add(WHOLE_CLUSTER)
    for party in state.parties.all:
        names["user"].add(party.user)
        names["queue"].add(party.queue)
    for kind, key in state.ledger:
        quota = GateKey.of_meter(key) if kind == "meter" else None
        if quota is not None and quota.kind in names:
            names[quota.kind].add(quota.name)
    return names


def find_oldest(state: State, queues: Iterable[str]) -> dict[str, Job]:
    """For each queue in which somebody waits the job that was submitted first, but for barred ones."""
    wanted = {queue for queue in queues if state.backlog.depth.get(queue)}
    found: dict[str, Job] = {}
    # Jobs stand in the order of their submits: the first of each queue is all that is looked for.
    for job in state.jobs.values() if wanted else ():
        if job.queue in wanted and job.waiting and not job.barred:
            found[job.queue] = job
            wanted.discard(job.queue)
            if not wanted:
                break
    return found
