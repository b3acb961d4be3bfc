"""What users, queues and plugins hold and have used, read off the state for those who ask.

Reads and never counts along: an answer costs one look at every job that runs, and nobody pays for it in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dray.core.lifecycle.state import State
from dray.core.model.ledger import Meter
from dray.core.model.policy import EACH, PRINCIPALS, Policy, Quota
from dray.core.model.records import Job

HOUR_MS = 3_600_000


class Holding(NamedTuple):
    """Tasks that are placed and not yet gone, and the milli-GPUs they hold."""

    tasks: int = 0
    gpu_milli: int = 0

    def plus(self, other: Holding) -> Holding:
        return Holding(self.tasks + other.tasks, self.gpu_milli + other.gpu_milli)


Holdings = dict[str, dict[str, Holding]]


def find_holdings(state: State) -> Holdings:
    """What is held, by user, queue and plugin, and by name."""
    found: Holdings = {kind: {} for kind in PRINCIPALS}
    for job_id, uids in state.live_of.items():
        job = state.jobs[job_id]
        holding = _holding_of(state, job, uids)
        for kind in PRINCIPALS:
            name = getattr(job, kind)
            if name:
                found[kind][name] = found[kind].get(name, Holding()).plus(holding)
    return found


def _holding_of(state: State, job: Job, uids: Iterable[str]) -> Holding:
    asks, listed = state.asks(job.shape), list(uids)
    if len(asks) == 1:
        # All its tasks hold the same: an array costs as much as a single job.
        return Holding(len(listed), len(listed) * asks[0].gpus * asks[0].gpu_milli)
    held = [state.ask(state.attempts[uid]) for uid in listed]
    return Holding(len(held), sum(ask.gpus * ask.gpu_milli for ask in held))


def whom(quota: Quota) -> tuple[str, str]:
    """Whom a quota is about: (user, queue or plugin; the name)."""
    return next((kind, getattr(quota, kind)) for kind in PRINCIPALS if getattr(quota, kind))


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
    meter = state.ledger.get(("meter", f"{kind}:{name}"))
    if not isinstance(meter, Meter) or quota.gpu_hours is None:
        return 0.0
    per_ms = round(quota.gpu_hours.per_s * 1000)
    return meter.gpu_ms / HOUR_MS / 1000 if meter.period == now_ms // per_ms else 0.0
