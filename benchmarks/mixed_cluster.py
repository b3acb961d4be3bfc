"""A very large cluster of several kinds of worker, with cards, labels and a policy; the core alone."""

from __future__ import annotations

from typing import Any

from benchmarks.core_cluster import CLOCK, CoreCluster, pack
from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.state.events import (
    AttemptAccepted,
    AttemptStarted,
    CreditSet,
    JobsSubmitted,
    NewJob,
    PolicyChanged,
    SessionOpened,
    WorkerRegistered,
)
from dray.core.model.capability import Capability
from dray.core.model.policies.check import check_policy
from dray.core.model.policies.policy import pack_policy
from dray.core.model.records.records import Job

# Model, cards, VRAM of each in GB.
GPU_KINDS = (("", 0, 0), ("A100", 8, 80), ("H100", 8, 80), ("V100", 4, 32))
SLOTS = 8


class MixedCluster(CoreCluster):
    """Workers take turns in being of each kind."""

    def __init__(self, workers: int, policy: dict[str, Any]) -> None:
        super().__init__(0, SLOTS)
        changed = PolicyChanged(pack_policy(check_policy(policy)), origin="bench")
        apply(self.state, changed, CLOCK)
        for number in range(workers):
            self._join(f"w{number:05d}", number + 1)

    def submit_as(self, job_id: str, **fields: Any) -> Job:
        """Queue one job under a name."""
        apply(self.state, JobsSubmitted((NewJob(job_id, "bench", pack(**fields)),)), CLOCK)
        return self.state.jobs[job_id]

    def start_all(self) -> None:
        for attempt in list(self.state.attempts.values()):
            index = attempt.index if self.state.jobs[attempt.job_id].numbered else -1
            said = (attempt.worker, attempt.job_id, index, attempt.uid)
            apply(self.state, AttemptAccepted(*said), CLOCK)
            apply(self.state, AttemptStarted(*said), CLOCK)

    def _join(self, name: str, session: int) -> None:
        model, cards, vram = GPU_KINDS[session % len(GPU_KINDS)]
        capability = Capability(
            gpu_backend="nvidia" if cards else "cpu",
            gpu_count=cards,
            gpu_type=model,
            vram_gb=cards * vram,
            cpu_count=64,
            memory_gb=256,
            hostname=name,
        )
        apply(self.state, SessionOpened(name, session, ""), CLOCK)
        registered = WorkerRegistered(
            name,
            session,
            capability,
            labels={"zone": f"z{session % 5}"},
            slots=self._slots(0),
            features=("gang", "shared_gpu"),
            base=False,
        )
        apply(self.state, registered, CLOCK)
        apply(self.state, CreditSet(name, self.slots, self._slots(0)), CLOCK)
        self.state.polls.clear()
