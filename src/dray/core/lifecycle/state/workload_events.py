"""What can happen to workloads: facts, stored by the rules of those in `events`."""

from __future__ import annotations

import msgspec

from dray.core.model.records.workload import Terms

START, PAUSE, SEAL, CANCEL, ARCHIVE = "start", "pause", "seal", "cancel", "archive"


class WorkloadMade(msgspec.Struct, frozen=True, array_like=True, tag=60):
    """There is a workload; `start`: its tasks may start at once."""

    id: str
    user: str
    terms: Terms
    start: bool = False


class WorkloadChanged(msgspec.Struct, frozen=True, array_like=True, tag=61):
    """Other terms hold for a workload, and for what is submitted to it from now on."""

    id: str
    terms: Terms
    user: str = ""


class WorkloadSwitched(msgspec.Struct, frozen=True, array_like=True, tag=62):
    """A workload was started, paused, sealed, cancelled or archived. `stop`: what runs is stopped as well, with so much
    time to end as `grace_s` says, below 0 that of its tier.
    """

    id: str
    verb: str
    user: str = ""
    stop: bool = False
    grace_s: float = -1


class WorkloadDropped(msgspec.Struct, frozen=True, array_like=True, tag=63):
    """An archived workload is forgotten."""

    id: str
    user: str = ""


class WorkloadSpent(msgspec.Struct, frozen=True, array_like=True, tag=64):
    """The purse of a workload is empty."""

    id: str


class WorkloadRetried(msgspec.Struct, frozen=True, array_like=True, tag=65):
    """Failed tasks of these jobs were submitted again: so many of each count as failures no longer."""

    id: str
    tasks: dict[str, int]
    user: str = ""


WorkloadFact = (
    WorkloadMade | WorkloadChanged | WorkloadSwitched | WorkloadDropped | WorkloadSpent | WorkloadRetried
)
