"""The people who call functions: open arrays filled in portions, each sent again until it is answered; single calls.

Only in a share of the worlds, and by a generator of their own: the others stay as they were. What was answered goes
into the checker's account: each of those calls must end once, with one recorded result.
"""

from __future__ import annotations

import random
from typing import Any

from dray.errors import Closed, Conflict, DrayError, NoSpace, NotFound
from dray.sim.faults.nodes.hub import HubNode
from dray.sim.faults.nodes.runner import argument_of
from dray.sim.faults.nodes.runs import CallBehaviour, Runs
from dray.sim.faults.nodes.worker import WorkerNode
from dray.sim.faults.people.clients import Clients
from dray.sim.faults.people.workloads import CALLING
from dray.sim.faults.watches.calls import CallWatch
from dray.sim.faults.watches.checker import Checker
from dray.sim.faults.world.pending import Pending
from dray.sim.faults.world.world import World
from dray.wire.messages.client import Calls, pack_row

SHARE, DOUBTING = 0.5, 0.1
PATIENCE_MS = 3000
DOUBT_MS = 100


class Caller:
    """One job of calls, as its client knows it: `known` of `wanted` calls were handed in and answered."""

    def __init__(self, job: str, spec: dict[str, Any], wanted: int) -> None:
        self.job, self.spec, self.wanted = job, spec, wanted
        self.known = 0
        self.over = False

    @property
    def single(self) -> bool:
        """Whether it is one call by itself."""
        return "array" not in self.spec


class Callers:
    """Draws the calls of a world and hands them in."""

    def __init__(self, world: World, hub: HubNode, checker: Checker, clients: Clients, runs: Runs) -> None:
        self._world, self._hub, self._checker, self._clients = world, hub, checker, clients
        self._rng = random.Random(f"calls {world.seed}")  # a simulation's chance, no secret
        self.on = self._rng.random() < SHARE
        self._callers: list[Caller] = []
        self.watch = CallWatch(world, runs)
        checker.calls = self.watch
        if not self.on:
            return
        # Drawn apart: the other worlds stay as they were.
        self._doubts = random.Random(f"doubts {world.seed}")  # chance, no secret
        self._doubting = self._doubts.random() < DOUBTING
        if self._doubting:
            world.at(DOUBT_MS, self._doubt)
        for number in range(self._rng.randint(1, max(1, world.size.jobs // 5))):
            caller = self._draw(number)
            self._callers.append(caller)
            world.at(self._rng.randint(0, world.size.span_ms // 2), self._send, caller)

    def trouble(self, workers: list[WorkerNode]) -> None:
        """Draw when runners die; where people doubt much comes twice, too."""
        if self.on:
            for node in workers if self._doubting else ():
                node.weather.doubled = True
            for _ in range(self._rng.randint(0, 8)):
                when, draw = self._rng.randint(0, self._world.size.span_ms), self._rng.getrandbits(20)
                self._world.at(when, self._kill_runner, workers[draw % len(workers)], draw >> 4)

    def _kill_runner(self, node: WorkerNode, draw: int) -> None:
        if self._world.faulty and node.up:
            self._world.counts["runner killed"] += 1
            node.kill_runner(draw)

    def _doubt(self) -> None:
        """Somebody cancels a call that is tried again: what its first try said may be under way still, or twice."""
        if not self._world.faulty:
            return
        state = self._hub.state
        again = [
            (lane.job_id, index)
            for lane in state.attempts.values()
            for index, number in (lane.calls or {}).items()
            if number > 1 and state.jobs[lane.job_id].numbered
        ]
        if again and self._hub.up and self._doubts.random() < 0.3:
            job_id, index = self._doubts.choice(again)
            self._world.counts["cancel"] += 1
            self._checker.cancel_asked[job_id] = None
            self._hub.now.cancel(job_id, index, Pending(lambda did, fault: None))
        self._world.at(DOUBT_MS, self._doubt)

    @property
    def unanswered(self) -> int:
        """How many jobs are not handed in whole."""
        return sum(1 for caller in self._callers if not caller.over)

    def behave(self, task_id: str) -> CallBehaviour:
        """Draw how one run of a call goes; once the faults have stopped every run ends soon."""
        rng, faulty = self._rng, self._world.faulty
        kind = rng.random()
        duration = rng.randint(0, 3) if kind < 0.5 else rng.randint(5, 300) if kind < 0.85 else 2000
        if faulty and kind > 0.97:
            duration = rng.randint(20_000, 200_000)
        failing = rng.random() < 0.15
        return CallBehaviour(duration, "failed" if failing else "succeeded", rng.random() < 0.06)

    def _draw(self, number: int) -> Caller:
        rng = self._rng
        spec: dict[str, Any] = {"function": b"work", "retries": rng.choice([0, 0, 0, 1, 3])}
        single = rng.random() < 0.2
        if not single:
            spec["array"] = {"first": 0, "last": -1, "open": True, "limit": rng.choice([0, 0, 1, 2])}
        if rng.random() < 0.2:
            spec["at_most_once"], spec["retries"] = True, 0
        elif rng.random() < 0.4:
            spec["losses"] = rng.choice([0, 1, 2])
        if rng.random() < 0.4:
            spec["cpu_milli"] = rng.choice([1000, 2000])
        if rng.random() < 0.15:
            # A world may have no card: then it ends as unschedulable.
            spec["gpu_count"], spec["scheduling_timeout_s"] = 1, 400
        if rng.random() < 0.2:
            spec["max_runtime_s"] = rng.choice([2, 60])
        return Caller(f"calls-{number}", spec, 1 if single else rng.choice([3, 20, 60, 150]))

    # --- what they send -----------------------------------------------------------------------------------------------

    def _send(self, caller: Caller) -> None:
        """Send the next portion, or that there is none; again and again until it is answered."""
        if caller.over:
            return
        self._clients.organisers.dress(caller.job, caller.spec, CALLING)
        if self._hub.up:
            rng, first = self._rng, caller.known
            if rng.random() < 0.1:
                # Sent before, and not heard of: the hub knows it by its place.
                first = max(0, first - rng.randint(1, 5))
            count = min(caller.wanted - first, rng.choice([1, 1, 8, 40]))
            args = [argument_of(caller.job, index) for index in range(first, first + count)]
            body = Calls(
                job=caller.job,
                first=first,
                args=list(args),
                spec=pack_row(dict(caller.spec) if not caller.known or rng.random() < 0.3 else None),
                close=not caller.single and first + count >= caller.wanted and rng.random() < 0.6,
            )
            if caller.single:
                body.first, body.args = 0, [argument_of(caller.job, 0)]
            name = caller.spec.get("workload", "")
            done = Pending(lambda got, fault: self._answered(caller, body, name, got, fault))
            self._hub.now.add_calls(body, done)
        self._world.at(PATIENCE_MS, self._send, caller)

    def _answered(
        self, caller: Caller, body: Calls, name: str, got: Any, fault: BaseException | None
    ) -> None:
        if isinstance(fault, NoSpace):
            self._world.counts["calls refused for space"] += 1
            return
        if self._clients.organisers.excused(caller.spec, name, fault):
            return
        if isinstance(fault, Closed | Conflict | NotFound):
            # It was cancelled, left alone for too long, or the hub was put back to before it.
            self._world.counts["calls refused"] += 1
            caller.over = isinstance(fault, Closed) or caller.over
            if not caller.over:
                caller.known = self._checker.account.calls.get(caller.job, 0)
            return
        if isinstance(fault, DrayError):
            self._world.fail(f"calls for {caller.job} were refused: {fault!r}")
        account, end = self._checker.account, body.first + len(body.args)
        if got < end:
            self._world.fail(f"job {caller.job} has {got} calls, {end} were sent and answered")
        first_time = caller.job not in account.acknowledged
        account.acknowledged[caller.job] = None
        account.calls[caller.job] = max(end, account.calls.get(caller.job, 0))
        caller.known = max(caller.known, end)
        if caller.single or body.close:
            caller.over = True
        if first_time:
            self._clients.steer(caller.job, caller.spec)
        if self._world.faulty and self._rng.random() < 0.3:
            self._world.at(self._rng.randint(0, 2000), self._cut, caller, self._rng.getrandbits(20))

    def _cut(self, caller: Caller, draw: int) -> None:
        """Somebody no longer wants one call: often one that runs, or waits next to it."""
        job = self._hub.state.jobs.get(caller.job) if self._hub.up else None
        if job is None or not job.total:
            return
        self._world.counts["call cancelled"] += 1
        near = [index for lane in self._lanes_of(caller.job) for index in lane]
        index = near[draw % len(near)] if near and draw % 4 else draw % job.total
        self._checker.cancel_asked[caller.job] = None
        self._hub.now.cancel(caller.job, index if job.numbered else None, Pending(lambda did, fault: None))

    def _lanes_of(self, job_id: str) -> list[list[int]]:
        state = self._hub.state
        return [list(state.attempts[uid].calls or ()) for uid in state.live_of.get(job_id, ())]

    def rewind(self) -> None:
        """The hub was restored from a backup: whatever it does not have is sent again."""
        account = self._checker.account
        self.watch.rewind()
        for caller in self._callers:
            caller.known = account.calls.get(caller.job, 0)
            if caller.over and self.on:
                caller.over = False
                self._world.at(1000, self._send, caller)
