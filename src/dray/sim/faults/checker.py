"""What must hold in every world, judged by what truly ran and what was answered, not by what the hub believes."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.events import Clock, unpack_facts
from dray.core.lifecycle.invariants import job_problems, problems
from dray.core.lifecycle.state import State
from dray.core.model.records import Job, JobState
from dray.core.model.spec import JobSpec, unpack_spec
from dray.core.scheduling.pass_ import plan, settle_plan
from dray.sim.faults.hub_node import HubNode
from dray.sim.faults.worker_node import Execution
from dray.sim.faults.world import World

FULL_EVERY = 50
_encode = msgspec.msgpack.Encoder().encode


class Checker:
    """Watches one hub through all its lives."""

    def __init__(self, world: World, hub: HubNode, executions: list[Execution]) -> None:
        self._world, self._hub, self._executions = world, hub, executions
        self._results: dict[tuple[str, int], str] = {}
        self._turns = 0
        self.acknowledged: dict[str, None] = {}
        self.specs: dict[str, JobSpec] = {}
        hub.after_commit = self.committed
        hub.after_turn = self.turn_over

    def committed(self) -> None:
        """A result that was recorded once stays as it is, whoever dies in between."""
        state = self._hub.state
        for key in state.touched.tasks:
            task = state.tasks.get(key)
            if task is not None and task.state.final:
                result = f"{task.state} {task.exit_class} {task.last_uid}"
                if self._results.setdefault(key, result) != result:
                    self._world.fail(f"task {key} was {self._results[key]!r} and is now {result!r}")

    def turn_over(self) -> None:
        """Touched jobs after every turn, everything from time to time."""
        state = self._hub.state
        self._turns += 1
        found = [problem for job_id in state.touched.jobs for problem in job_problems(state, job_id)]
        if not found and self._turns % FULL_EVERY == 0:
            found = problems(state)
            self._check_wake_ups(state)
        if found:
            self._world.fail("; ".join(found[:5]))

    def _check_wake_ups(self, state: State) -> None:
        """Fitting work and free credit never coexist after a pass."""
        if self._hub.conductor.cut:
            return
        for shape in list(state.backlog.parked):
            state.backlog.wake(shape)
        decided = plan(state)
        settle_plan(state, decided)
        if decided.placements:
            first = decided.placements[0]
            self._world.fail(
                f"lost wake-up: {first.job_id}/{first.index} fits {first.worker} and was left waiting"
            )

    # --- the end ----------------------------------------------------------------------------------------------------

    def all_ended(self) -> bool:
        """Whether every acknowledged job has reached its end."""
        jobs = self._hub.state.jobs
        return all(job.state.final for job in jobs.values())

    def final(self) -> None:
        """The whole account: what was acknowledged, recorded and run."""
        state = self._hub.state
        found = problems(state)
        if found:
            self._world.fail("; ".join(found[:5]))
        self._hub.flush()
        for job_id in self.acknowledged:
            job = self._hub.store.find_job(job_id)
            if job is None:
                self._world.fail(f"job {job_id} was acknowledged and is gone")
            else:
                self._check_job(job)
        self._check_fold()

    def _check_job(self, job: Job) -> None:
        if not job.state.final:
            self._world.fail(f"job {job.id} never ended: {job.state}, {job.waiting} waiting, {job.live} live")
        spec = unpack_spec(job.spec)
        for index in range(job.total):
            runs = [run for run in self._executions if run.task_id == self._name(job, index)]
            starts = [
                attempt.uid for attempt in self._hub.store.find_attempts(job.id, index) if attempt.started
            ]
            if spec.at_most_once and len(starts) > 1:
                self._world.fail(f"task {job.id}/{index} is at-most-once and was started as {starts}")
            if spec.overlap == "fenced":
                self._check_overlap(runs)
            task = self._hub.store.find_task(job.id, index)
            if task is None:
                continue
            if task.state is JobState.SUCCEEDED:
                good = [run for run in runs if run.uid == task.last_uid and run.outcome == "succeeded"]
                if not good:
                    self._world.fail(f"task {job.id}/{index} succeeded by {task.last_uid}, which never did")
            if task.failures > spec.retries + 1:
                self._world.fail(
                    f"task {job.id}/{index} failed {task.failures} times with {spec.retries} retries"
                )
            if task.losses > spec.losses + 1:
                self._world.fail(f"task {job.id}/{index} was lost {task.losses} times, {spec.losses} allowed")
            if task.state is JobState.WORKER_FAILED and task.losses <= spec.losses:
                self._world.fail(f"task {job.id}/{index} gave up after {task.losses} of {spec.losses} losses")

    def _check_overlap(self, runs: list[Execution]) -> None:
        ordered = sorted(runs, key=lambda run: run.began_ms)
        for earlier, later in pairwise(ordered):
            if earlier.ended_ms < 0 or later.began_ms < earlier.ended_ms:
                self._world.fail(f"fenced task {earlier.task_id} ran twice at once: {earlier} and {later}")

    @staticmethod
    def _name(job: Job, index: int) -> str:
        return f"{job.id}/{index}" if job.numbered else job.id

    def _check_fold(self) -> None:
        """The log alone gives the rows, byte for byte."""
        fresh = State(self._hub.rules)
        for entry in self._hub.store.tail(0, 1 << 30):
            for fact in unpack_facts(entry.facts):
                apply(fresh, fact, Clock(entry.now_ms, entry.at_ms))
        for job_id, job in fresh.jobs.items():
            row = self._hub.store.find_job(job_id)
            if row is None:
                self._world.fail(f"job {job_id} is in the log and has no row")
                return
            if _encode(msgspec.structs.replace(row, shape=-1)) != _encode(
                msgspec.structs.replace(job, shape=-1)
            ):
                self._world.fail(f"job {job_id}: the log folds to {job}, its row is {row}")
        for (job_id, index), task in fresh.tasks.items():
            task_row = self._hub.store.find_task(job_id, index)
            if task_row is None or _encode(task_row) != _encode(task):
                self._world.fail(f"task {job_id}/{index}: the log folds to {task}, its row is {task_row}")
