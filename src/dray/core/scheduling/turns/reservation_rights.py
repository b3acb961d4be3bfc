"""How many reservations there may be, and for whom: one at a time in a queue, and under pressure one for each user.

A fair-share queue is under pressure while somebody in it holds more than twice his share: his work fills every gap as
it opens, and those who need several cards at once would wait for it one after another. Then each of the others may have
a reservation of his own, and who presses has none while any of them needs one. Knows nothing about room.
"""

from __future__ import annotations

from dray.core.lifecycle.state.pass_events import LineWatch
from dray.core.lifecycle.state.state import Reservation, State
from dray.core.model.records.records import Job
from dray.core.scheduling.turns.unprotected import unprotected_of

# Of two users nobody can hold more than twice his share; there one reservation serves the other user anyway.
TOO_MUCH = 2
# What somebody else's burst has filled is not to be waited for as long as what one's equals have.
HURRY = 10


def own_slot(job: Job) -> str:
    """The name of the reservation that a job's user has for himself: names of queues have no spaces."""
    return f"{job.queue} {job.user}"


class Draft:
    """Reservations in the making: those of a state, and what one pass makes of them. The state is left alone.

    `answered` are no longer due for one, `due` are from now on, `watches` those that were added for later, `left` rows
    that are no longer kept.
    """

    def __init__(self, state: State) -> None:
        self.reservations = dict(state.reservations)
        self.made: dict[str, Reservation] = {}
        self.answered: dict[str, None] = {}
        self.due: dict[str, None] = {}
        self.watches: dict[str, LineWatch] = {}
        self.left: dict[int, None] = {}

    def keep(self, slot: str, kept: Reservation) -> None:
        """Make or move a reservation."""
        self.reservations[slot] = self.made[slot] = kept

    def answer(self, job_id: str) -> None:
        """A job is no longer due for one."""
        self.answered[job_id] = None

    def note_due(self, job_id: str) -> None:
        """A job is due for one."""
        self.due[job_id] = None


def kept_for(kept_by: State | Draft, job: Job) -> Reservation | None:
    """The reservation of a job, if it has one."""
    for slot in (job.queue, own_slot(job)):
        kept = kept_by.reservations.get(slot)
        if kept is not None and kept.job_id == job.id:
            return kept
    return None


def find_pressing(state: State, queue: str, draft: Draft | None = None) -> set[str]:
    """Who holds more than twice his share of all that is held, among those who hold or are due in a queue."""
    known, parties, weights = draft or state, state.parties, state.policy.fair_share.weights
    unprotected = unprotected_of(state)
    if draft is None:
        unprotected.look(state)
    holding, due = parties.queues.get(queue), unprotected.users_of(queue)
    held = {user: parties.users[user].cost for user in (holding.users if holding else ())}
    for kept in known.reservations.values():
        job = state.jobs.get(kept.job_id)
        if job is not None and job.queue == queue and job.user in parties.users:
            held.setdefault(job.user, parties.users[job.user].cost)
    for other in parties.queues.values():
        held |= {user: parties.users[user].cost for user in other.users if user in due}
    # Of whoever is due and holds nothing anywhere only the weight counts: thousands may be.
    idle = len(due) - sum(user in due for user in held)
    whole = idle + sum(weights.get(user, 1.0) for user in held)
    whole += sum(weight - 1.0 for user, weight in weights.items() if user in due and user not in held)
    each = sum(held.values()) / whole if held else 0.0
    return {user for user, cost in held.items() if cost > TOO_MUCH * each * weights.get(user, 1.0)}


class Slots:
    """Who may have which reservation, as one pass found it."""

    def __init__(self, state: State, draft: Draft) -> None:
        self._state, self._draft = state, draft
        self._pressing: dict[str, set[str]] = {}

    def of(self, job: Job) -> str:
        """The reservation that a job may have now; empty where it has one, may have none, or another has it."""
        if kept_for(self._draft, job) is not None:
            # What it has from when somebody pressed, or from before, is not given a second time.
            return ""
        slot = self._wanted(job)
        return "" if slot in self._draft.reservations else slot

    def is_full(self, queue: str) -> bool:
        """Whether nobody in a queue may have a reservation besides the one there is: thousands may be due for it."""
        return queue in self._draft.reservations and not self._pressing_in(queue)

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
        common = self._draft.reservations.get(job.queue)
        owner = self._state.jobs.get(common.job_id) if common else None
        # Who has the queue's reservation from calmer times needs no other.
        return job.queue if owner is not None and owner.user == job.user else own_slot(job)

    def _pressing_in(self, queue: str) -> set[str]:
        found = self._pressing.get(queue)
        if found is None:
            fair = self._state.policy.queue(queue).order == "fair_share"
            found = self._pressing[queue] = find_pressing(self._state, queue, self._draft) if fair else set()
        return found

    def _is_needed(self, queue: str, pressing: set[str]) -> bool:
        """Whether any of the others has a reservation or is due for one."""
        if any(user not in pressing for user in unprotected_of(self._state).users_of(queue)):
            return True
        owners = (self._state.jobs.get(kept.job_id) for kept in self._draft.reservations.values())
        return any(job is not None and job.queue == queue and job.user not in pressing for job in owners)
