"""How many reservations there may be, and for whom: one at a time in a queue, and under pressure one for each user.

A fair-share queue is under pressure while somebody in it holds more than twice his share: his work fills every gap as
it opens, and those who need several cards at once would wait for it one after another. Then each of the others may have
a reservation of his own, and who presses has none while any of them needs one. Knows nothing about room.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from dray.core.lifecycle.state.state import Reservation, State
from dray.core.model.records.records import Job

# Of two users nobody can hold more than twice his share; there one reservation serves the other user anyway.
TOO_MUCH = 2
# What somebody else's burst has filled is not to be waited for as long as what one's equals have.
HURRY = 10


def own_slot(job: Job) -> str:
    """The name of the reservation that a job's user has for himself: names of queues have no spaces."""
    return f"{job.queue} {job.user}"


def kept_for(state: State, job: Job) -> Reservation | None:
    """The reservation of a job, if it has one."""
    for slot in (job.queue, own_slot(job)):
        kept = state.reservations.get(slot)
        if kept is not None and kept.job_id == job.id:
            return kept
    return None


def find_pressing(state: State, queue: str) -> set[str]:
    """Who holds more than twice his share of all that is held, among those who hold or are due in a queue."""
    parties, weights = state.parties, state.policy.fair_share.weights
    held = {party.user: party.of_user.cost for party in parties.all if party.queue == queue and party.live}
    for job_id in chain(state.unprotected, (kept.job_id for kept in state.reservations.values())):
        job = state.jobs.get(job_id)
        if job is not None and job.queue == queue and job.user in parties.users:
            held.setdefault(job.user, parties.users[job.user].cost)
    each = sum(held.values()) / sum(weights.get(user, 1.0) for user in held) if held else 0.0
    return {user for user, cost in held.items() if cost > TOO_MUCH * each * weights.get(user, 1.0)}


class Slots:
    """Who may have which reservation, as one pass found it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._pressing: dict[str, set[str]] = {}
        self._due: dict[str, bool] = {}

    def of(self, job: Job) -> str:
        """The reservation that a job may have now; empty where it has one, may have none, or another has it."""
        if kept_for(self._state, job) is not None:
            # What it has from when somebody pressed, or from before, is not given a second time.
            return ""
        slot = self._wanted(job)
        return "" if slot in self._state.reservations else slot

    def patience_ms(self, job: Job) -> int:
        """How long a job waits before it is protected; 0 where that never happens."""
        after_ms = round(self._state.policy.queue(job.queue).protect_after_s * 1000)
        pressing = self._pressing_in(job.queue) if after_ms else set()
        return max(1, after_ms // HURRY) if pressing and job.user not in pressing else after_ms

    def _wanted(self, job: Job) -> str:
        pressing = self._pressing_in(job.queue)
        if not pressing:
            return job.queue
        if job.user in pressing:
            return "" if self._is_needed(job.queue, pressing) else job.queue
        common = self._state.reservations.get(job.queue)
        owner = self._state.jobs.get(common.job_id) if common else None
        # Who has the queue's reservation from calmer times needs no other.
        return job.queue if owner is not None and owner.user == job.user else own_slot(job)

    def _pressing_in(self, queue: str) -> set[str]:
        found = self._pressing.get(queue)
        if found is None:
            fair = self._state.policy.queue(queue).order == "fair_share"
            found = self._pressing[queue] = find_pressing(self._state, queue) if fair else set()
        return found

    def _is_needed(self, queue: str, pressing: set[str]) -> bool:
        """Whether any of the others has a reservation or is due for one."""
        state = self._state
        if queue not in self._due:
            self._due[queue] = self._others(state.unprotected, queue, pressing)
        kept = (kept.job_id for kept in state.reservations.values())
        return self._due[queue] or self._others(kept, queue, pressing)

    def _others(self, job_ids: Iterable[str], queue: str, pressing: set[str]) -> bool:
        jobs = (self._state.jobs.get(job_id) for job_id in job_ids)
        return any(job is not None and job.queue == queue and job.user not in pressing for job in jobs)
