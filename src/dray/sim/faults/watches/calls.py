"""What must hold of calls: one recorded result each, by a try that truly ran so, never changed, none forgotten."""

from __future__ import annotations

from collections.abc import Mapping

from dray.core.lifecycle.state.events import AttemptResumed, CallsEnded, CallsFed, Fact, LanesClosed
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job, JobState, Task
from dray.core.model.specs.spec import unpack_spec
from dray.hub.calls.results import CallRow, rows_of
from dray.hub.store.memory import MemoryStore
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.nodes.runner import value_of
from dray.sim.faults.nodes.runs import Runs
from dray.sim.faults.world.world import World


class CallWatch:
    """Follows the calls of one site through all its hubs. `held` is the checker's: jobs that nobody may start now."""

    def __init__(self, world: World, runs: Runs) -> None:
        self._world, self._runs = world, runs
        self._restored = False

    def logged(self, life: HubLife, facts: list[Fact], held: Mapping[str, None]) -> None:
        """What is given goes into lanes that may have it, places are given back when nothing is in them any more."""
        for fact in facts:
            if isinstance(fact, CallsFed):
                for feed in fact.feeds:
                    self._check_feed(life.state, feed.uid, held)
            elif isinstance(fact, LanesClosed):
                self._check_closed(fact)
            elif isinstance(fact, AttemptResumed):
                self._check_resumed(life.state, fact.uid)
            elif isinstance(fact, CallsEnded) and not fact.index and not fact.gone:
                self._world.fail(f"a frame of nothing was recorded: {fact}")

    def _check_feed(self, state: State, uid: str, held: Mapping[str, None]) -> None:
        lane = state.attempts.get(uid)
        if lane is None or lane.yielded:
            self._world.fail(f"calls were given into lane {uid}, which cannot run them: {lane}")
        elif lane.job_id in held:
            self._world.fail(f"calls were given into lane {uid} of job {lane.job_id}, which is held")

    def _check_closed(self, fact: LanesClosed) -> None:
        """A call that was cancelled may run on for its grace: until it is gone its lane's place is taken."""
        for going in self._runs.going.values():
            for run in going:
                if run.uid in fact.uids and not run.stranger:
                    self._world.fail(f"lane {run.uid} was closed, and {run} goes on")

    def _check_resumed(self, state: State, uid: str) -> None:
        attempt = state.attempts.get(uid)
        if attempt is None or attempt.yielded:
            return
        worker, slots = state.workers[attempt.worker], state.presence[attempt.worker].slots
        held = [state.attempts[other] for other in state.held[attempt.worker]]
        asks = [state.ask(other) for other in held if not other.yielded]
        pool = state.ask(attempt).pool
        taken, cpu = sum(1 for ask in asks if ask.pool == pool), sum(ask.cpu_milli for ask in asks)
        total = slots.batch_total if pool == "batch" else slots.service_total
        if taken > total > 0 or (state.ask(attempt).cpu_milli and cpu > worker.capability.cpu_count * 1000):
            self._world.fail(f"{uid} goes on where {taken} run in {total} slots with {cpu} millicores")

    def rewind(self) -> None:
        """A backup knows nothing of what ran after it, and has it run once more."""
        self._restored = True

    def end_of(self, state: State, store: MemoryStore, job: Job, index: int) -> JobState:
        """How a call stands by what is committed."""
        for chunk in store.find_results(job.id, index, index + 1):
            for row in rows_of(chunk, index, index + 1):
                return JobState(row.state)
        task = state.tasks.get((job.id, index)) or store.find_task(job.id, index)
        if task is not None:
            return task.state
        return job.rest if index >= job.cursor else JobState.PENDING

    def settle(self, store: MemoryStore, job: Job, least: int) -> None:
        """Every call of a job that has ended has one end, and the job counts them all."""
        if job.total < least:
            self._world.fail(f"job {job.id} has {job.total} calls, {least} were acknowledged")
        rows: dict[int, CallRow] = {}
        for chunk in store.find_results(job.id, 0, job.total):
            for row in rows_of(chunk, 0, job.total):
                if row.index in rows:
                    self._world.fail(
                        f"call {job.id}/{row.index} has two results: {rows[row.index]} and {row}"
                    )
                rows[row.index] = row
        counts: dict[str, int] = {}
        for index in range(job.total):
            state = self._end_of(store, job, index, rows.get(index))
            counts[state] = counts.get(state, 0) + 1
        for state in ("succeeded", "failed", "killed", "worker_failed", "unschedulable"):
            if counts.get(state, 0) != getattr(job, state):
                self._world.fail(
                    f"job {job.id} counts {getattr(job, state)} {state} calls, there are {counts}"
                )

    def _end_of(self, store: MemoryStore, job: Job, index: int, row: CallRow | None) -> str:
        name, task = f"call {job.id}/{index}", store.find_task(job.id, index)
        self._check_tries(store, job, index, task, row)
        if task is not None and not task.state.final:
            self._world.fail(f"{name} is {task.state} in a job that has ended: {task}")
        if row is None:
            if task is not None:
                return task.state.value
            if index >= job.cursor and job.rest.final:
                return job.rest.value
            self._world.fail(f"{name} ended and has no result")
            return ""
        if task is not None and task.state.value != row.state:
            self._world.fail(f"{name} has the result {row} and the record {task}")
        self._check_run(job, row)
        return row.state

    def _check_tries(
        self, store: MemoryStore, job: Job, index: int, task: Task | None, row: CallRow | None
    ) -> None:
        """Failures are charged for runs, and a call that may start once has one run at most of which its hub heard."""
        spec, task_id = unpack_spec(job.spec), f"{job.id}/{index}" if job.numbered else job.id
        runs = self._runs.of_task.get(task_id, [])
        if task is not None and task.failures > len(runs):
            self._world.fail(f"call {task_id} is charged {task.failures} failures for {len(runs)} runs")
        if row is not None and row.state == "failed" and row.no <= spec.rules.code:
            self._world.fail(f"call {task_id} failed for good at try {row.no}, with {spec.retries} retries")
        lanes = [(run, store.find_attempt(run.uid)) for run in runs if not run.stranger]
        starts = [run for run, lane in lanes if lane is not None and lane.started]
        if spec.at_most_once and len(starts) > 1 and not self._restored:
            self._world.fail(f"call {task_id} is at-most-once and was started more than once: {starts}")

    def _check_run(self, job: Job, row: CallRow) -> None:
        """A result is that of a run of this very try in this very lane, which ended so."""
        task_id = f"{job.id}/{row.index}" if job.numbered else job.id
        tries = [
            run
            for run in self._runs.of_task.get(task_id, ())
            if run.call == (row.index, row.no) and run.uid == row.lane
        ]
        if row.state == JobState.SUCCEEDED.value or row.exit_class == "raised":
            if all(run.outcome != row.state for run in tries):
                self._world.fail(f"call {task_id} has the result {row}, which none of its runs gave: {tries}")
            if row.value != value_of(job.id, row.index, row.no, row.state):
                self._world.fail(f"call {task_id} has the value {row.value!r} of another: {row}")
        elif row.state == "failed" and row.exit_class in ("crashed", "time_limit") and not tries:
            self._world.fail(f"call {task_id} is said to have {row.exit_class} and never ran")
