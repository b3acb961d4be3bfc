"""What must hold of calls: one recorded result each, by a try that truly ran so, never changed, none forgotten."""

from __future__ import annotations

from dray.core.lifecycle.events import CallsEnded, CallsFed, Fact
from dray.core.model.records import Job, JobState
from dray.hub.call_results import CallRow, rows_of
from dray.hub.store.memory import MemoryStore
from dray.sim.faults.hub_life import HubLife
from dray.sim.faults.runner_node import value_of
from dray.sim.faults.runs import Runs
from dray.sim.faults.world import World


class CallWatch:
    """Follows the calls of one site through all its hubs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.held: dict[str, None] = {}

    def logged(self, life: HubLife, facts: list[Fact]) -> None:
        """What is given into a lane that is there goes into it; nothing is given against a hold or a cancel."""
        for fact in facts:
            if isinstance(fact, CallsFed):
                for feed in fact.feeds:
                    lane = life.state.attempts.get(feed.uid)
                    if lane is None:
                        self._world.fail(f"calls were given into lane {feed.uid}, which is not there")
            elif isinstance(fact, CallsEnded) and not fact.index and not fact.gone:
                self._world.fail(f"a frame of nothing was recorded: {fact}")

    def rewind(self) -> None:
        """Nothing is remembered here that a backup could not know."""

    def settle(self, store: MemoryStore, job: Job, least: int, runs: Runs) -> None:
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
            state = self._end_of(store, job, index, rows.get(index), runs)
            counts[state] = counts.get(state, 0) + 1
        for state in ("succeeded", "failed", "killed", "worker_failed", "unschedulable"):
            if counts.get(state, 0) != getattr(job, state):
                self._world.fail(
                    f"job {job.id} counts {getattr(job, state)} {state} calls, there are {counts}"
                )

    def _end_of(self, store: MemoryStore, job: Job, index: int, row: CallRow | None, runs: Runs) -> str:
        name, task = f"call {job.id}/{index}", store.find_task(job.id, index)
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
        self._check_run(job, row, runs)
        return row.state

    def _check_run(self, job: Job, row: CallRow, runs: Runs) -> None:
        """A result is that of a run of this very try in this very lane, which ended so."""
        task_id = f"{job.id}/{row.index}" if job.numbered else job.id
        tries = [
            run
            for run in runs.of_task.get(task_id, ())
            if run.call == (row.index, row.no) and run.uid == row.lane
        ]
        if row.state == JobState.SUCCEEDED.value or row.exit_class == "raised":
            if all(run.outcome != row.state for run in tries):
                self._world.fail(f"call {task_id} has the result {row}, which none of its runs gave: {tries}")
            if row.value != value_of(job.id, row.index, row.no, row.state):
                self._world.fail(f"call {task_id} has the value {row.value!r} of another: {row}")
        elif row.state == "failed" and row.exit_class in ("crashed", "time_limit") and not tries:
            self._world.fail(f"call {task_id} is said to have {row.exit_class} and never ran")
