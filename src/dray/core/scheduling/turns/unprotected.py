"""Who is due for a reservation, in the order of turns, kept from pass to pass: thousands may be while they wait.

One roster for each queue, of the lines that somebody due waits in. Whether those may start at all is asked of whom
something was heard since the last pass (`Backlog.doubts`): whoever may not is no longer due, as of that very pass.
Knows nothing about room, or how many reservations there may be. A cache, as all rosters are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dray.core.lifecycle.state.lines import BucketKey, CrowdKey, Doubt, Entry
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.core.scheduling.capacity.memory import memory_of
from dray.core.scheduling.turns.ranks import next_entry, rank_of
from dray.core.scheduling.turns.rosters import Roster, Standings


class Unprotected(Standings):
    """Those of a state."""

    def _start(self, state: State | None) -> None:
        super()._start(state)
        self.rosters: dict[str, Roster] = {}
        self._line_of: dict[str, BucketKey] = {}
        self._of_line: dict[BucketKey, dict[str, None]] = {}
        self._of_crowd: dict[CrowdKey, dict[BucketKey, None]] = {}
        self._users: dict[str, dict[str, int]] = {}

    def look(self, state: State) -> list[str]:
        """Bring all of it up to date; gives those who are due for nothing any more, since they may not start now."""
        doubts = state.backlog.doubts
        known = doubts is not None and self._is_of(state)
        vain = self._consider(state, state.backlog.doubts or {}) if known else []
        if not known or len(self._line_of) + len(vain) != len(state.unprotected):
            self._start(state)
            vain = self._consider(state, state.unprotected)
        self._catch_up(state)
        for roster in self.rosters.values():
            self._look_again(state, roster)
        return vain

    def users_of(self, queue: str) -> Mapping[str, int]:
        """Who is due in a queue, and with how many jobs."""
        return self._users.get(queue, {})

    def walk(self, state: State, line: BucketKey) -> Iterator[tuple[Job, Entry]]:
        """Those of a line who are due, in the order of their turns."""
        jobs = [state.jobs[job_id] for job_id in self._of_line.get(line, ())]
        waiting = [(job, next_entry(state, job)) for job in jobs]
        return iter(sorted(waiting, key=lambda one: rank_of(state, line, *one)))

    def place(self, state: State, line: BucketKey) -> None:
        self._take_out(line)
        for job, entry in self.walk(state, line):
            roster = self.rosters.get(job.queue)
            if roster is None:
                fair = state.policy.queue(job.queue).order == "fair_share"
                roster = self.rosters[job.queue] = Roster(job.queue, line.shape, fair, None)
            self._stand(state, line, roster, job, entry)
            return

    def _consider(self, state: State, doubts: Iterable[Doubt]) -> list[str]:
        """Ask those again of whom something was heard; gives who is due for nothing."""
        vain: dict[str, None] = {}
        lines: dict[BucketKey, None] = {}
        for job_id in dict.fromkeys(job_id for doubt in doubts for job_id in self._concerned(state, doubt)):
            if (before := self._leave(state, job_id)) is not None:
                lines[before] = None
            if job_id not in state.unprotected:
                continue
            job = state.jobs.get(job_id)
            if job is None or not may_start(state, job):
                vain[job_id] = None
            else:
                lines[self._enter(state, job)] = None
        for line in lines:
            self.place(state, line)
        return list(vain)

    def _concerned(self, state: State, doubt: Doubt) -> list[str]:
        if isinstance(doubt, str):
            return [doubt]
        if isinstance(doubt, BucketKey):
            return list(self._of_line.get(doubt, ()))
        crowd = state.backlog.of_shape.get(doubt.shape, {}).get(doubt)
        # Its gate may have opened again: nobody has come to be held back.
        if crowd is None or not crowd.gate:
            return []
        return [job_id for line in self._of_crowd.get(doubt, ()) for job_id in self._of_line[line]]

    def _enter(self, state: State, job: Job) -> BucketKey:
        line = state.line_of(job)
        self._line_of[job.id] = line
        self._of_line.setdefault(line, {})[job.id] = None
        self._of_crowd.setdefault(state.parties.crowd_of(line), {})[line] = None
        users = self._users.setdefault(state.parties.all[line.party].queue, {})
        users[job.user] = users.get(job.user, 0) + 1
        return line

    def _leave(self, state: State, job_id: str) -> BucketKey | None:
        line = self._line_of.pop(job_id, None)
        if line is None:
            return None
        party = state.parties.all[line.party]
        users = self._users[party.queue]
        users[party.user] -= 1
        if not users[party.user]:
            del users[party.user]
        jobs = self._of_line[line]
        del jobs[job_id]
        if not jobs:
            del self._of_line[line]
            crowd = state.parties.crowd_of(line)
            del self._of_crowd[crowd][line]
            if not self._of_crowd[crowd]:
                del self._of_crowd[crowd]
        return line


def unprotected_of(state: State) -> Unprotected:
    """Those of a state, as they are kept."""
    measures = memory_of(state).measures
    found = measures.get(Unprotected)
    if not isinstance(found, Unprotected):
        found = measures[Unprotected] = Unprotected()
    return found


def may_start(state: State, job: Job) -> bool:
    """Whether only room keeps a job from starting: nothing is kept idle for what a rule holds back anyway."""
    capped = job.limit and job.live >= job.limit
    return job.waiting > 0 and not (job.barred or capped or state.backlog.is_gated(state.line_of(job)))
