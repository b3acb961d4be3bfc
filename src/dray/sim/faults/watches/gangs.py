"""What is promised of gangs, judged by what was committed, what was sent and what truly ran.

Nobody runs user code before every member of its generation was accepted and the word to start was committed for all of
them, and no generation is told to start while an earlier one of its group may still run within the hub's reach. Of a
service each replica is a group.
"""

from __future__ import annotations

from dray.core.model.ids import split_task_id
from dray.core.model.records.records import Attempt, Job, JobState, Phase
from dray.core.model.specs.spec import unpack_spec
from dray.hub.store.base import Store
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.nodes.runs import Execution, Runs
from dray.sim.faults.world.world import World

_BAD_ENDS = (Phase.FAILED, Phase.LOST, Phase.KILLED, Phase.PREEMPTED)


class GangWatch:
    """Watches the gangs of one site through all its hubs. What was committed once stays known: a hub that is restored
    from a backup meets members that an earlier one let go.
    """

    def __init__(self, world: World, runs: Runs) -> None:
        self._world, self._runs = world, runs
        self._members: dict[tuple[str, int], dict[int, str]] = {}
        self._accepted: dict[str, None] = {}
        self._gone: dict[str, tuple[str, int]] = {}
        self._sizes: dict[str, int] = {}
        self.shared_names: dict[str, None] = {}
        runs.gangs = self

    def committed(self, life: HubLife, attempt: Attempt) -> None:
        """A member changed: one attempt per rank and generation, and `go` only for all."""
        place, members = (attempt.job_id, attempt.generation), self._known(attempt)
        self._sizes[attempt.job_id] = life.state.jobs[attempt.job_id].group_size
        if len({index // self._sizes[attempt.job_id] for index in (*members, attempt.index)}) > 1:
            self._world.fail(f"{place} has members of several groups: {members} and {attempt}")
        if members.setdefault(attempt.index, attempt.uid) != attempt.uid:
            self._world.fail(f"{place} has two members of rank {attempt.index}: {members} and {attempt.uid}")
        if attempt.accepted_at_ms:
            self._accepted[attempt.uid] = None
        if attempt.go and attempt.uid not in self._gone:
            self._gone[attempt.uid] = place
            self._check_go(life, attempt, members)

    def _known(self, attempt: Attempt) -> dict[int, str]:
        return self._members.setdefault((attempt.job_id, attempt.generation), {})

    def _check_go(self, life: HubLife, attempt: Attempt, members: dict[int, str]) -> None:
        job = life.state.jobs[attempt.job_id]
        proved = any(run.uid in members.values() for run in self._runs.all)
        missing = [
            rank
            for rank in job.group_of(attempt.index)
            if (current := life.state.tasks[job.id, rank].current)
            and current not in self._accepted
            # All of a turn's acceptances are committed at once; this one may not have been looked at yet.
            and not life.state.attempts[current].accepted_at_ms
        ]
        if missing and not proved:
            self._world.fail(f"gang {job.id} may start and ranks {missing} were never accepted")
        for earlier in range(1, attempt.generation):
            for index, uid in self._members.get((job.id, earlier), {}).items():
                if index not in job.group_of(attempt.index):
                    continue
                found = life.state.attempts.get(uid) or life.store.find_attempt(uid)
                if found is not None and found.job_id == job.id and found.phase.live:
                    self._world.fail(
                        f"{attempt.uid} may start, and {uid} of generation {earlier} is {found.phase}"
                    )

    def sent(self, uid: str) -> None:
        """The word to start leaves only after it was committed."""
        if uid not in self._gone:
            self._world.fail(f"{uid} was told to start, and that is not committed")

    def begin(self, run: Execution, others: list[tuple[Execution, Attempt | None]]) -> None:
        """User code of a member runs; `others` of its job do as well, and this is what the hub has of them."""
        if run.uid not in self._gone:
            self._world.fail(f"{run} runs, and its gang was never told to start")
        members = self._members.get((run.job_id, run.generation), {})
        if run.uid in members.values() and (
            left := [uid for uid in members.values() if uid not in self._gone]
        ):
            self._world.fail(f"{run} runs, and {left} of its generation were never told to start")
        for other, known in others:
            if self._group_of(other) != self._group_of(run):
                continue
            settled = known is not None and known.phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.KILLED)
            apart = other.generation != run.generation and other.worker not in self.shared_names
            if settled and apart and not other.stranger:
                self._world.fail(
                    f"generations mix: {run} begins while {other} still runs, recorded as {known}"
                )

    def _group_of(self, run: Execution) -> int:
        return max(0, (split_task_id(run.task_id) or ("", 0))[1]) // self._sizes.get(run.job_id, 1)

    def rewind(self) -> None:
        """The hub was restored from a backup: it may count the same generations once more."""
        self._members.clear()

    # --- the final account --------------------------------------------------------------------------------------------

    def settle(self, store: Store, job: Job) -> None:
        """All tasks of a group end alike, after as many attempts each; every generation was charged at most once."""
        for first in range(0, job.total, job.group_size):
            self._settle_group(store, job, first)

    def _settle_group(self, store: Store, job: Job, index: int) -> None:
        tasks = [store.find_task(job.id, each) for each in job.group_of(index)]
        there = [task for task in tasks if task is not None]
        if job.rest.final and (not job.service or not there):
            return
        if len({task.state for task in there}) != 1 or len(there) != job.group_size:
            self._world.fail(f"gang {job.id} ended as {[task and task.state for task in tasks]}")
        for name in ("attempts", "failures", "losses", "restarts"):
            if len({getattr(task, name) for task in there}) != 1:
                self._world.fail(f"gang {job.id} counts {name} apart: {there}")
        first = there[0]
        if job.service:
            return
        if first.attempts != job.generation:
            self._world.fail(f"gang {job.id} had {first.attempts} attempts in generation {job.generation}")
        self._settle_charges(store, job, first.failures, first.losses)

    def _settle_charges(self, store: Store, job: Job, failures: int, losses: int) -> None:
        spec = unpack_spec(job.spec)
        attempts = [a for index in range(job.total) for a in store.find_attempts(job.id, index)]
        could_fail = could_lose = must_fail = must_lose = 0
        for generation in range(1, job.generation + 1):
            members = [attempt for attempt in attempts if attempt.generation == generation]
            ends = {a.phase for a in members if a.phase in _BAD_ENDS and not a.cancel}
            cut_short = any(a.cancel == "user" for a in members) or (
                generation == job.generation and job.state is JobState.KILLED
            )
            started = any(attempt.started for attempt in members)
            # Whoever is stopped for another was asked before its generation broke: what then fails by itself is free.
            spared = any(attempt.cancel == "preempted" for attempt in members)
            could_fail += any(a.phase is Phase.FAILED and (a.cancel or not spared) for a in members)
            could_lose += any(attempt.phase is Phase.LOST for attempt in members)
            must_fail += ends == {Phase.FAILED} and not cut_short and not spared
            must_lose += ends == {Phase.LOST} and started and not cut_short
        if not must_fail <= failures <= could_fail or not must_lose <= losses <= could_lose:
            self._world.fail(
                f"gang {job.id} is charged {failures} failures of {must_fail}..{could_fail} and {losses} losses of "
                f"{must_lose}..{could_lose} ({spec.retries} retries, {spec.losses} losses): {attempts}"
            )
        if failures + losses > job.generation:
            self._world.fail(f"gang {job.id} is charged {failures + losses} times in {job.generation} tries")
