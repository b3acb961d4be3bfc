"""Whether workers are taken out when they are at fault, and only then: counted anew from what each turn has committed.

Stricter than the product about when one must be: of work that fails elsewhere too, or where anything else ended there
meanwhile, nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from dray.core.lifecycle.state.experience import work_of
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Phase
from dray.core.model.records.worker import Worker
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.nodes.runs import BROKEN
from dray.sim.faults.world.world import World

SLACK_MS = 5000

# Whose, and what of theirs.
Work = tuple[str, Hashable]


class QuarantineWatch:
    """What must happen is asked of one hub at a time: most of what it has counted goes with its memory."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._state: State | None = None
        self._since_ms = 0
        self._over: dict[str, Phase] = {}
        # By worker and job: when it last failed there, in hub time, which stands still while nobody leads; and those
        # that named the machine, with whose work they were.
        self._failed: dict[str, dict[str, int]] = {}
        self._named: dict[str, dict[str, tuple[int, Work]]] = {}
        # By work and worker: whether the last end there was a success, and when.
        self._went: dict[tuple[Work, str], tuple[bool, int]] = {}
        self._faults: dict[str, int] = {}
        self._out_ms = 0  # when a worker was last seen out

    def committed(self, life: HubLife, touched: Sequence[Attempt], fresh: Sequence[Attempt]) -> None:
        """Look at all that ended and was placed in a turn."""
        state = life.state
        if state is not self._state:
            self._state, self._since_ms = state, self._world.now_ms
            # Failures stay counted: a hub that starts again has those in mind that are in the tail of its log.
            for known in (self._named, self._went):
                known.clear()
            self._faults = {worker.id: worker.faults for worker in state.workers.values()}
        for gone in self._failed.keys() - state.workers.keys():
            # Removed by a person: whoever comes under that name begins anew.
            del self._failed[gone]
            self._named.pop(gone, None)
        for attempt in fresh:
            worker = state.workers[attempt.worker]
            if worker.on_trial and worker.trial != attempt.uid:
                self._world.fail(f"{worker.id} is on trial by {worker.trial} and got {attempt.uid} too")
        fresh_faults = set()
        for attempt in touched:
            if attempt.phase.live:
                # Adopted after it was given up, or known to a hub that was put back: it may end once more.
                self._over.pop(attempt.uid, None)
            elif not attempt.lane and self._over.get(attempt.uid) is not attempt.phase:
                self._over[attempt.uid] = attempt.phase
                if self._take_in(state, attempt):
                    fresh_faults.add(attempt.worker)
        if any(worker.draining and worker.faults for worker in state.workers.values()):
            self._out_ms = self._world.now_ms
        for worker in state.workers.values():
            self._judge(state, worker, worker.id in fresh_faults)

    def _take_in(self, state: State, attempt: Attempt) -> bool:
        """Count an end; gives whether it is that of one more job that names the machine."""
        worker, now_ms = attempt.worker, self._world.now_ms
        job = state.jobs[attempt.job_id]
        work = job.user, work_of(job)
        before_ms = self._failed.get(worker, {}).get(attempt.job_id)
        if attempt.phase is Phase.FAILED:
            self._failed.setdefault(worker, {})[attempt.job_id] = state.now_ms
        if attempt.phase in (Phase.SUCCEEDED, Phase.FAILED):
            self._went[work, worker] = attempt.phase is Phase.SUCCEEDED, now_ms
        if attempt.phase is Phase.FAILED and attempt.error == BROKEN and not attempt.cancel:
            named = self._named.setdefault(worker, {})
            new = attempt.job_id not in named
            at_once_ms = state.rules.at_once_ms + SLACK_MS
            if new and before_ms is not None and state.now_ms - before_ms <= at_once_ms:
                return (
                    False  # the failure just before, which named nothing, may be the one that is remembered
                )
            named[attempt.job_id] = now_ms, work
            return new
        self._named.pop(worker, None)
        return False

    def _judge(self, state: State, worker: Worker, fresh: bool) -> None:
        now_ms, window_ms = self._world.now_ms, state.rules.quarantine_window_ms
        before, self._faults[worker.id] = self._faults.get(worker.id, 0), worker.faults
        if worker.faults == 1 and not before:
            self._world.counts["worker quarantined"] += 1
            failed = self._failed.get(worker.id, {}).values()
            jobs = sum(1 for at_ms in failed if state.now_ms - at_ms <= window_ms + SLACK_MS)
            if jobs < state.rules.quarantine_failures:
                self._world.fail(f"{worker.id} is quarantined, and {jobs} jobs failed there within a minute")
        if worker.draining or worker.faults:
            self._named.pop(worker.id, None)
            return
        if not fresh or now_ms - self._since_ms <= window_ms + SLACK_MS:
            # Judged when something fails; and what was just put back may know of failures that nobody saw here.
            return
        # Of several failures of one job in a row the first may be the one that is remembered.
        surely_ms = window_ms - state.rules.at_once_ms - SLACK_MS
        recent = {
            job_id: work[0]
            for job_id, (at_ms, work) in self._named.get(worker.id, {}).items()
            if now_ms - at_ms <= surely_ms and self._fails_here_alone(worker.id, work)
        }
        first_ms = state.now_ms - window_ms
        goes_on = any(state.attempts[uid].started_ms >= first_ms for uid in state.held.get(worker.id, ()))
        # By the word of one user alone no second worker is taken out.
        believed = len(set(recent.values())) > 1 or now_ms - self._out_ms > SLACK_MS
        if len(recent) >= state.rules.quarantine_failures and not goes_on and believed:
            self._world.fail(f"{worker.id} still gets work: {sorted(recent)} failed there, which is broken")

    def _fails_here_alone(self, worker_id: str, work: Work) -> bool:
        """Whether some work of a user goes well on at least as many others as it fails on."""
        there = [went for (what, where), went in self._went.items() if what == work and where != worker_id]
        ill = [at_ms for well, at_ms in there if not well and self._world.now_ms - at_ms <= 65_000]
        well = [at_ms for well, at_ms in there if well and self._world.now_ms - at_ms <= 600_000]
        return len(ill) <= len(well)
