"""A very large cluster made of the core alone: no store, no sockets, no clock but a number.

Every change goes through `apply`, every decision through `plan`, exactly as in a hub's turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.state.events import (
    AttemptAccepted,
    AttemptEnded,
    Clock,
    CreditSet,
    EpochStarted,
    Event,
    JobsSubmitted,
    NewJob,
    Outcome,
    SessionOpened,
    SlotsSeen,
    WorkerRegistered,
)
from dray.core.lifecycle.state.state import State
from dray.core.model.capability import Capability, Slots
from dray.core.model.specs.check import check_spec
from dray.core.model.specs.spec import pack_spec
from dray.core.scheduling.passes.turn import answer_polls, take_pass

CLOCK = Clock(1_000_000, 1_700_000_000_000)
MIB = 1 << 20
ONLY_TASK = -1


class CoreCluster:
    """A state and the steps that benchmarks take on it."""

    def __init__(self, workers: int, slots: int) -> None:
        self.state = State()
        self.slots = slots
        apply(self.state, EpochStarted(1), CLOCK)
        for number in range(workers):
            self._join(f"w{number:05d}", number + 1)
        self._jobs = 0

    def submit(self, specs: list[bytes], users: Sequence[str] = ()) -> None:
        """Queue one job per packed spec, in turns as large as a batch may be; `users`: whose each of them is."""
        for first in range(0, len(specs), 10_000):
            part = specs[first : first + 10_000]
            whose = users[first : first + 10_000] or ["bench"] * len(part)
            jobs = tuple(
                NewJob(f"j{self._jobs + place:07d}", user, spec)
                for place, (user, spec) in enumerate(zip(whose, part, strict=True))
            )
            self._jobs += len(part)
            apply(self.state, JobsSubmitted(jobs), CLOCK)

    def run_pass(self) -> int:
        """One pass as in a turn: plan, fold the plan in, settle. Gives the number of placements."""
        passed = take_pass(self.state, self.fold)
        answer_polls(self.state, self.fold)
        return len(passed.plan.placements) if passed is not None else 0

    def fold(self, event: Event) -> None:
        """Apply one event; what follows from it is of no interest here."""
        apply(self.state, event, CLOCK)

    def fill(self) -> int:
        """Passes until nothing more is placed."""
        placed = 0
        while count := self.run_pass():
            placed += count
        return placed

    def start_all(self) -> None:
        """Every worker accepts what it was given, so that a task can end; all jobs here have one task."""
        for attempt in list(self.state.attempts.values()):
            accepted = AttemptAccepted(attempt.worker, attempt.job_id, ONLY_TASK, attempt.uid)
            apply(self.state, accepted, CLOCK)

    def end_one(self, uid: str) -> int:
        """One task ends, its worker asks for the next, a pass places it."""
        attempt = self.state.attempts[uid]
        worker = attempt.worker
        outcome = Outcome(attempt.job_id, ONLY_TASK, uid, "succeeded", 0)
        apply(self.state, AttemptEnded(worker, outcome), CLOCK)
        apply(self.state, CreditSet(worker, 1, self._slots(self.slots - 1)), CLOCK)
        return self.run_pass()

    def beat(self, worker: str) -> None:
        """A heartbeat of a full worker."""
        apply(self.state, SlotsSeen(worker, self._slots(self.slots)), CLOCK)

    def free_one_slot(self, worker: str) -> None:
        """A worker offers room for one more task, though not for one of a larger ask."""
        apply(self.state, CreditSet(worker, 1, self._slots(0)), CLOCK)

    def _slots(self, in_use: int) -> Slots:
        return Slots(batch_total=self.slots, batch_in_use=in_use)

    def _join(self, name: str, session: int) -> None:
        capability = Capability(cpu_count=64, memory_gb=256, hostname=name)
        apply(self.state, SessionOpened(name, session, ""), CLOCK)
        registered = WorkerRegistered(
            name, session, capability, slots=self._slots(0), features=("list",), base=False
        )
        apply(self.state, registered, CLOCK)
        apply(self.state, CreditSet(name, self.slots, self._slots(0)), CLOCK)
        self.state.polls.clear()


def pack(**fields: Any) -> bytes:
    """A packed spec."""
    return pack_spec(check_spec({"command": ["true"], **fields}))


def shapes(count: int, **fields: Any) -> list[bytes]:
    """Specs that differ in what they ask for, all of them small."""
    return [pack(cpu_milli=100, memory_bytes=(place + 1) * MIB, **fields) for place in range(count)]
