"""The people whose jobs use services: some that run, some that are shared, some that nobody ever starts.

In a share of the worlds with services, and by a generator of their own. Now and then a service is shared or no longer,
and a job told to do without. When the services have been stopped, whoever still waits for one gives up.
"""

from __future__ import annotations

import random
from typing import Any

from dray.errors import Conflict, InvalidSpec, NoSpace, NotFound
from dray.sim.faults.nodes.hub import HubNode
from dray.sim.faults.people.clients import PATIENCE_MS, Clients
from dray.sim.faults.people.policies import USERS
from dray.sim.faults.watches.checker import Checker
from dray.sim.faults.world.pending import Pending
from dray.sim.faults.world.world import World

USING_SHARE = 0.6


class ServiceUsers:
    """Draws the jobs of a world that use services. `services`: how many of those there are."""

    def __init__(self, world: World, hub: HubNode, checker: Checker, clients: Clients, services: int) -> None:
        self._world, self._hub, self._checker, self._clients = world, hub, checker, clients
        self._rng = random.Random(f"uses of {world.seed}")  # a simulation's chance, no secret
        self.unanswered, self._services = 0, services
        self._answered: set[str] = set()
        self._jobs: list[str] = []
        self.on = bool(services) and self._rng.random() < USING_SHARE
        if self.on:
            self.unanswered = self._rng.choice([2, 3, 4])
            for number in range(self.unanswered):
                when = self._rng.randint(0, world.size.span_ms * 2 // 3)
                world.at(when, self._submit, f"uses-{number}", self._draw(number))

    def dress(self, spec: dict[str, Any]) -> None:
        """Let some services be shared from the start."""
        if self.on and self._rng.random() < 0.5:
            spec["share"] = self._rng.choice([["*"], [USERS[0]], [*USERS[:2]]])

    def _draw(self, number: int) -> dict[str, Any]:
        rng = self._rng
        spec: dict[str, Any] = {
            "id": f"uses-{number}",
            "command": ["work"],
            "cpu_milli": rng.choice([0, 500]),
        }
        drawn = [self._draw_name() for _ in range(rng.choice([1, 1, 1, 2]))]
        # Two of one name, of whomever, would be one variable.
        spec["uses"] = list({name.partition("@")[0]: name for name in drawn}.values())
        if rng.random() < 0.4:
            spec["array"] = {"last": rng.randint(1, 3)}
        if rng.random() < 0.3:
            spec["retries"] = 2
        return spec

    def _draw_name(self) -> str:
        rng = self._rng
        name = f"serve-{rng.randint(0, self._services - 1) if rng.random() < 0.9 else 9}"
        return f"{name}@{rng.choice(USERS)}" if self._clients.site.ruled and rng.random() < 0.4 else name

    def _submit(self, key: str, spec: dict[str, Any]) -> None:
        if key in self._answered:
            return
        self._clients.site.dress(key, spec)
        if self._hub.up:
            self._hub.now.submit(
                [dict(spec)], key, Pending(lambda got, fault: self._heard(key, spec, got, fault))
            )
        self._world.at(PATIENCE_MS, self._submit, key, spec)

    def _heard(self, key: str, spec: dict[str, Any], got: Any, fault: BaseException | None) -> None:
        if key in self._answered or isinstance(fault, NoSpace):
            return
        if fault is not None:
            self._world.fail(f"the job under {key} was refused: {fault}")
        self._answered.add(key)
        self.unanswered -= 1
        (job_id,) = got[0]
        self._jobs.append(job_id)
        self._checker.account.acknowledged[job_id] = None
        self._world.counts["job that uses a service"] += 1
        if self._rng.random() < 0.2:
            self._world.at(self._rng.randint(0, 90_000), self._edit, job_id, {"uses": []})
        if self._rng.random() < 0.3:
            self._clients.steer(job_id, spec)

    def started(self, job_id: str) -> None:
        """A service is there: somebody may share it with others, or no longer."""
        for _ in range(self._rng.choice([0, 1, 2]) if self.on else 0):
            share = self._rng.choice([[], ["*"], [self._rng.choice(USERS)]])
            self._world.at(self._rng.randint(0, 90_000), self._edit, job_id, {"share": share})

    def _edit(self, job_id: str, changes: dict[str, Any]) -> None:
        if self._hub.up and self._world.faulty:
            self._world.counts["use changed"] += 1
            self._hub.now.edit(job_id, changes, Pending(self._accept))

    def _accept(self, got: Any, fault: BaseException | None) -> None:
        if fault is not None and not isinstance(fault, (Conflict, InvalidSpec, NoSpace, NotFound)):
            self._world.fail(f"a change of who uses what was answered with {fault!r}")

    def give_up(self) -> None:
        """No service is coming back: whoever waits for one is cancelled."""
        for job_id in self._jobs:
            job = self._hub.state.jobs.get(job_id)
            if job is not None and job.unserved and not job.state.final:
                self._checker.cancel_asked[job_id] = None
                self._hub.now.cancel(job_id, None, Pending(lambda did, fault: None))
