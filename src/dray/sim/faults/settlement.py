"""The final account of a history: what was acknowledged, recorded and run must agree."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.invariants import problems
from dray.core.lifecycle.state.events import Clock, unpack_facts
from dray.core.lifecycle.state.state import State
from dray.core.model.records.ledger import unpack_record
from dray.core.model.records.records import Attempt, Job, JobState, Phase, Task
from dray.core.model.specs.spec import JobSpec, unpack_spec
from dray.hub.store.base import JobFilter
from dray.sim.faults.nodes.hub import HubNode
from dray.sim.faults.nodes.runs import BROKEN, OUTGROWN, Execution, Runs
from dray.sim.faults.people.results import Reader
from dray.sim.faults.watches.checker import Checker
from dray.sim.faults.watches.larger_cards import SHARED_NAME
from dray.sim.faults.watches.programs.workloads import states_of
from dray.sim.faults.world.world import World

LIMIT_SLACK_MS = 5000
_encode = msgspec.msgpack.Encoder().encode


class Settlement:
    """Compares the world's own account with the hub's rows, once, at the end."""

    def __init__(self, world: World, hub: HubNode, runs: Runs, checker: Checker, restored: bool) -> None:
        self._world, self._hub, self._runs, self._checker = world, hub, runs, checker
        self._restored = restored

    def settle(self, reader: Reader | None = None) -> None:
        """Check everything; `reader` has read the results of workloads, where people have any."""
        found = problems(self._hub.state)
        if found:
            self._world.fail("; ".join(found[:5]))
        self._hub.now.flush()
        account, store = self._checker.account, self._hub.store
        for job_id in account.acknowledged:
            job = store.find_job(job_id)
            if job is None:
                self._world.fail(f"job {job_id} was acknowledged and is gone")
            else:
                self._check_job(job)
        for uid in account.recorded:
            attempt = store.find_attempt(uid)
            if attempt is None or attempt.phase.live:
                self._world.fail(f"the result of {uid} was acknowledged as recorded and is not: {attempt}")
        self._checker.workloads.settle(self._hub.state, store)
        for job in store.list_jobs(JobFilter(limit=1 << 30)):
            if reader is not None and job.workload and not job.calls:
                reader.settle(job, states_of(job, store))
        self._check_names()
        self._check_limits()
        self._check_fold()

    def _check_names(self) -> None:
        """A job without an id of its own has a name that nobody else has: one key, one job."""
        by_name: dict[str, list[str]] = {}
        for job in self._hub.store.list_jobs(JobFilter(limit=1 << 30)):
            if not job.name.startswith(SHARED_NAME):
                by_name.setdefault(job.name or job.id, []).append(job.id)
        for name, ids in by_name.items():
            if len(ids) > 1:
                self._world.fail(f"one submit ({name}) made several jobs: {ids}")

    def _check_job(self, job: Job) -> None:
        if not job.state.final:
            self._world.fail(f"job {job.id} never ended: {job.state}, {job.waiting} waiting, {job.live} live")
        spec = unpack_spec(job.spec)
        least = spec.task_count + self._checker.account.grown.get(job.id, 0)
        if job.total < least:
            self._world.fail(f"job {job.id} has {job.total} tasks, {least} were acknowledged")
        if job.calls and self._checker.calls is not None:
            least = self._checker.account.calls.get(job.id, 0)
            self._checker.calls.settle(self._hub.store, job, least)
            return
        if job.gang:
            self._checker.gangs.settle(self._hub.store, job)
        if job.service:
            self._checker.services.settle(self._hub.now, job)
            return
        for index in range(job.total):
            runs = self._runs.of_task.get(f"{job.id}/{index}" if job.numbered else job.id, [])
            attempts = self._hub.store.find_attempts(job.id, index)
            starts = [attempt.uid for attempt in attempts if attempt.started]
            if spec.at_most_once and len(starts) > 1:
                self._world.fail(f"task {job.id}/{index} is at-most-once and was started as {starts}")
            if spec.overlap == "fenced":
                self._check_overlap(runs)
            task = self._hub.store.find_task(job.id, index)
            if task is not None:
                self._check_result(spec, task, runs)
                self._check_charges(spec, task, attempts, runs)

    def _check_result(self, spec: JobSpec, task: Task, runs: list[Execution]) -> None:
        name = f"task {task.job_id}/{task.index}"
        if task.state is JobState.SUCCEEDED:
            good = [run for run in runs if run.outcome == "succeeded" and self._is_of(run, task.last_uid)]
            if not good:
                self._world.fail(f"{name} succeeded by {task.last_uid}, which never did")
        last = self._hub.store.find_attempt(task.last_uid)
        asked_to_go = last is not None and last.phase is Phase.KILLED and last.cancel == "requeued"
        killed = task.state is JobState.KILLED and task.exit_class != "dependency"
        if asked_to_go and killed and task.job_id not in self._checker.cancel_asked:
            self._world.fail(f"{name} was to be queued again and ended {task.state}: {last}")
        # Where no card is larger, further tries would be in vain.
        in_vain = spec.rules.oom and last is not None and last.error == OUTGROWN
        if task.state is JobState.FAILED and task.failures != spec.rules.code + 1 and not in_vain:
            self._world.fail(f"{name} ended after {task.failures} failures with {spec.retries} retries")
        if task.failures > spec.rules.code + 1:
            self._world.fail(f"{name} failed {task.failures} times with {spec.retries} retries")
        if task.losses > spec.losses + 1:
            self._world.fail(f"{name} was lost {task.losses} times, {spec.losses} allowed")
        # A gang that may start once and was taken back after its start ends so without a loss.
        once = spec.node_count > 1 and spec.at_most_once
        if task.state is JobState.WORKER_FAILED and task.losses <= spec.losses and not once:
            self._world.fail(f"{name} gave up after {task.losses} of {spec.losses} losses")

    def _is_of(self, run: Execution, uid: str) -> bool:
        """Whether a run is this attempt's; a worker that names no attempt goes on with what it has."""
        if run.uid == uid:
            return True
        attempt = self._hub.store.find_attempt(uid)
        return not run.names_attempt and attempt is not None and attempt.worker == run.worker

    def _check_charges(
        self, spec: JobSpec, task: Task, attempts: list[Attempt], runs: list[Execution]
    ) -> None:
        """Failures and losses are charged for what happened, each once."""
        name = f"task {task.job_id}/{task.index}"
        task_id = f"{task.job_id}/{task.index}" if spec.numbered else task.job_id
        ran = {run.uid for run in runs} | self._runs.intended
        nameless = any(not run.names_attempt for run in runs)
        for attempt in attempts:
            # A base-only worker has no other word for what it could not take on; and since it names no attempt, its
            # word, said again to a new session, is taken for the attempt that the hub has given it by then.
            refused = attempt.phase is Phase.FAILED and (attempt.worker, task_id) in self._runs.refused
            if attempt.started and attempt.uid not in ran and not refused and not nameless:
                self._world.fail(f"{name}: attempt {attempt.uid} is recorded as started and never ran")
            if attempt.phase is Phase.SUCCEEDED and not attempt.started:
                self._world.fail(f"{name}: attempt {attempt.uid} succeeded and is not recorded as started")
        if len(attempts) != task.attempts:
            self._world.fail(f"{name} counts {task.attempts} attempts, there are {len(attempts)}")
        if spec.node_count > 1:
            return  # charged by generation, not by attempt
        failed = [a for a in attempts if a.phase is Phase.FAILED]
        limited = [a for a in attempts if a.phase is Phase.KILLED and a.cancel == "time_limit"]
        ruled = {OUTGROWN: bool(spec.rules.oom), BROKEN: bool(spec.rules.node)}
        charged = [a for a in failed if not a.cancel and not ruled.get(a.error)]
        most = len(failed) + len(limited) - task.outgrown
        if not len(charged) <= task.failures <= most:
            self._world.fail(f"{name} is charged {task.failures} failures for {failed} and {limited}")
        lost = [a for a in attempts if a.phase is Phase.LOST and a.started]
        lost += [a for a in failed if a.error == BROKEN and spec.rules.node]
        if not sum(1 for a in lost if not a.cancel) <= task.losses <= len(lost):
            self._world.fail(f"{name} is charged {task.losses} losses for {lost}")

    def _check_overlap(self, runs: list[Execution]) -> None:
        """A machine that shares its name with another speaks for it: no fence holds between the two."""
        known = [run for run in runs if not run.stranger and run.worker not in self._checker.shared_names]
        ordered = sorted(known, key=lambda run: run.began_ms)
        for earlier, later in pairwise(ordered):
            if earlier.ended_ms < 0 or later.began_ms < earlier.ended_ms:
                self._world.fail(f"fenced task {earlier.task_id} ran twice at once: {earlier} and {later}")

    def _check_limits(self) -> None:
        for run in self._runs.all:
            most_ms = run.limit_ms + run.grace_ms + LIMIT_SLACK_MS
            if run.limit_ms and run.ended_ms - run.began_ms > most_ms:
                self._world.fail(f"{run} ran beyond its limit")

    def _check_fold(self) -> None:
        """The log alone gives the rows, byte for byte."""
        store = self._hub.store
        fresh = State(self._hub.rules)
        for entry in store.tail(0, 1 << 30):
            for fact in unpack_facts(entry.facts):
                apply(fresh, fact, Clock(entry.now_ms, entry.at_ms))
        if self._checker.hubs is not None:
            self._checker.hubs.settle(fresh)
        for job_id, job in fresh.jobs.items():
            row = store.find_job(job_id)
            if row is None:
                self._world.fail(f"job {job_id} is in the log and has no row")
                return
            if _encode(msgspec.structs.replace(row, shape=-1, party=-1)) != _encode(
                msgspec.structs.replace(job, shape=-1, party=-1)
            ):
                self._world.fail(f"job {job_id}: the log folds to {job}, its row is {row}")
        for (job_id, index), task in fresh.tasks.items():
            task_row = store.find_task(job_id, index)
            if task_row is None or _encode(task_row) != _encode(task):
                self._world.fail(f"task {job_id}/{index}: the log folds to {task}, its row is {task_row}")
        ledger = {
            (kind, key): unpack_record(kind, packed) for kind, key, packed in store.load().ledger if packed
        }
        for name in ledger | fresh.ledger:
            if fresh.ledger.get(name) != ledger.get(name):
                folded, kept = fresh.ledger.get(name), ledger.get(name)
                self._world.fail(f"the {' '.join(name)}: the log folds to {folded}, its row is {kept}")
