"""The people who keep services: they start some, scale, update and restart them, roll them back, and stop every one of
them in the end. In some worlds replicas are groups of several nodes.

Only in a share of the worlds, and by a generator of their own: the others stay as they were. Machines say now and then
how what they run is; now and then one says it of what another runs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from dray.core.lifecycle.holding.rollouts import spec_of
from dray.core.lifecycle.services.steps import survey
from dray.core.model.specs.spec import unpack_spec
from dray.errors import Conflict, NoSpace, NotFound
from dray.sim.faults.leasing.executor import ExecutorNode
from dray.sim.faults.nodes.foreign import ForeignNode
from dray.sim.faults.nodes.hub import HubNode
from dray.sim.faults.nodes.runs import Execution, Runs
from dray.sim.faults.nodes.worker import WorkerNode
from dray.sim.faults.people.clients import LASTING, PATIENCE_MS, Clients
from dray.sim.faults.people.uses import ServiceUsers
from dray.sim.faults.watches.checker import Checker
from dray.sim.faults.world.pending import Pending
from dray.sim.faults.world.world import World

# Which worlds is of no account: these leave those alone that are kept because they show rare bugs.
SERVICE_WORLDS, UPDATE_WORLDS, GROUP_WORLDS = (0.133, 0.284), (0.661, 0.808), (0.353, 0.490)
CHECK_EVERY_MS, STOP_EVERY_MS, LINGER_MS = 2500, 3000, 12_000
# In calm every update ends by then: one that finds no place was rolled back long before.
UPDATED_MS = 240_000
# What becomes of replicas by the last word of their command: those of a bad one are never well.
GOOD, BAD = "good", "bad"
Machine = WorkerNode | ForeignNode | ExecutorNode


class Keepers:
    """Draws the services of a world, and what is done to them."""

    def __init__(self, world: World, hub: HubNode, checker: Checker, clients: Clients, runs: Runs) -> None:
        self._world, self._hub, self._checker, self._clients, self._runs = world, hub, checker, clients, runs
        self._rng = random.Random(f"services of {world.seed}")  # a simulation's chance, no secret
        self.machines: Sequence[Machine] = ()
        chance = random.Random(f"services 19013 of {world.seed}").random()  # no secret either
        low, high = SERVICE_WORLDS
        self.unanswered = self._rng.choice([1, 1, 2]) if low < chance < high else 0
        again = random.Random(f"updates 37387 of {world.seed}").random()  # nor this
        self._updates = not self.unanswered and UPDATE_WORLDS[0] < again < UPDATE_WORLDS[1]
        if self._updates:
            self.unanswered = self._rng.choice([1, 2])
        groups = random.Random(f"groups 11295 of {world.seed}").random()  # nor this
        self._grouped = not self.unanswered and GROUP_WORLDS[0] < groups < GROUP_WORLDS[1]
        if self._grouped:
            self.unanswered, self._updates = self._rng.choice([1, 1, 2]), self._rng.random() < 0.6
        self._answered: set[str] = set()
        self._dressed: set[str] = set()
        self._calm_ms = -1
        if self.unanswered:
            for number in range(self.unanswered):
                when = self._rng.randint(0, world.size.span_ms // 3)
                world.at(when, self._submit, f"service-{number}", self._draw(number))
        self.users = ServiceUsers(world, hub, checker, clients, self.unanswered)
        if self.unanswered:
            world.at(CHECK_EVERY_MS, self._check)
            world.at(STOP_EVERY_MS, self._stop_all)

    def _draw(self, number: int) -> dict[str, Any]:
        rng = self._rng
        spec: dict[str, Any] = {
            "name": f"serve-{number}",
            "type": "service",
            "command": ["serve"],
            "replicas": rng.choice([1, 1, 2, 3]),
            "slot_pool": rng.choice(["service", "batch", "batch"]),
            "cpu_milli": rng.choice([0, 500, 1000]),
        }
        if rng.random() < 0.6:
            spec["health_check"] = {"readiness": "/"}
        if rng.random() < 0.2:
            spec["overlap"] = "fenced"
        if self._grouped:
            # Small and unlike each other: there are few machines, and two groups at once where one is replaced.
            spec |= {"node_count": rng.choice([2, 2, 2, 3]), "mixed_backends": rng.random() < 0.9}
            spec |= {"replicas": rng.choice([1, 1, 2]), "cpu_milli": rng.choice([0, 0, 250])}
            if "health_check" in spec and rng.random() < 0.6:
                spec["health_check"] = {"readiness": "true"}  # a command, which is run for every member
        if self._updates:
            # By its id it is known for one whose replicas go on until they are stopped.
            spec |= {"id": f"{LASTING}-{number}", "command": ["serve", GOOD], "update": self._draw_rules()}
            if self._grouped:
                spec["update"]["ready_timeout_s"] = 60
        return spec

    def _draw_rules(self) -> dict[str, Any]:
        rng = self._rng
        surge = rng.choice([0, 1, 1, 1, 2])
        return {
            "max_surge": surge,
            "max_unavailable": rng.choice([0, 0, 1]) if surge else 1,
            "ready_timeout_s": rng.choice([15, 30, 60]),
            "settle_s": rng.choice([0, 1, 3]),
            "drain_s": rng.choice([0, 1, 4]),
        }

    def _submit(self, key: str, spec: dict[str, Any]) -> None:
        if key in self._answered:
            return
        if key not in self._dressed:
            self._dressed.add(key)
            self.users.dress(spec)
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
            self._world.fail(f"the service under {key} was refused: {fault}")
        self._answered.add(key)
        self.unanswered -= 1
        (job_id,) = got[0]
        self._checker.account.acknowledged[job_id] = None
        self._world.counts["service"] += 1
        self.users.started(job_id)
        rng = self._rng
        if self._updates:
            for _ in range(rng.choice([1, 2, 3, 4])):
                self._world.at(rng.randint(5_000, 90_000), self._change, job_id)
        elif rng.random() < 0.5:
            self._clients.steer(job_id, spec)
        for _ in range(rng.choice([0, 1, 2, 3])):
            self._world.at(rng.randint(0, 90_000), self._scale, job_id, rng.randint(0, 3))

    def _scale(self, job_id: str, replicas: int) -> None:
        if self._hub.up and self._world.faulty:
            self._world.counts["service scaled"] += 1
            self._hub.now.scale(job_id, replicas, Pending(self._accept))

    def _change(self, job_id: str) -> None:
        """Update a service, roll it back or restart it, whatever is under way."""
        if not self._hub.up or not self._world.faulty:
            return
        rng, hub, heard = self._rng, self._hub.now, Pending(self._accept)
        what = rng.choice(
            ["update", "update", "update", "rollback", "rollback", "restart", "requeue", "cancel"]
        )
        self._world.counts[f"service: {what}"] += 1
        if what == "rollback":
            hub.rollback(job_id, rng.choice([None, None, 1, 2]), heard)
        elif what == "restart":
            hub.restart(job_id, heard)
        elif what == "requeue":
            hub.requeue(job_id, rng.choice([None, 0, 1]), heard)
        elif what == "cancel":
            hub.cancel(job_id, rng.choice([0, 1, 2]), heard)
        else:
            changes: dict[str, Any] = {"command": ["serve", str(rng.random()), rng.choice([GOOD, GOOD, BAD])]}
            if rng.random() < 0.4:
                changes["cpu_milli"] = rng.choice([0, 250, 500, 1000])
            if rng.random() < 0.3:
                changes["health_check"] = rng.choice([None, {"readiness": "/"}])
            if rng.random() < 0.2:
                changes["replicas"] = rng.randint(1, 3)
            hub.update(job_id, changes, heard)

    def _accept(self, got: Any, fault: BaseException | None) -> None:
        if fault is not None and not isinstance(fault, (Conflict, NoSpace, NotFound)):
            self._world.fail(f"a change of a service was answered with {fault!r}")

    def _stop_all(self) -> None:
        """A while after the faults have stopped nobody needs a service any more, nor one from a backup."""
        if not self._world.faulty and self._calm_ms < 0:
            self._calm_ms = self._world.now_ms
        calm_ms = self._world.now_ms - self._calm_ms if self._calm_ms >= 0 else 0
        if self._hub.up and calm_ms > LINGER_MS:
            for job_id in list(self._hub.state.services):
                if not self._hub.state.jobs[job_id].state.final and self._is_settled(job_id, calm_ms):
                    self._checker.cancel_asked[job_id] = None
                    self._hub.now.cancel(job_id, None, Pending(lambda did, fault: None))
            self.users.give_up()
        self._world.at(STOP_EVERY_MS, self._stop_all)

    def _is_settled(self, job_id: str, calm_ms: int) -> bool:
        """Whether nothing of a service is replaced any more; in calm that is so before long, but for want of room."""
        state = self._hub.state
        job = state.jobs[job_id]
        if job.aim < 0 or not self._updates:
            return True
        if calm_ms > UPDATED_MS:
            if not job.waiting:
                self._world.fail(f"the update of service {job_id} does not end: {job}, {survey(state, job)}")
            return True
        return False

    # --- checks -------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """What runs of services is looked at by its machine, and some of it by another that has no say."""
        for node in self.machines:
            for run in list(self._runs.going.get(node.machine_name, ())):
                if self._is_service(run):
                    self._say(node, run)
        self._world.at(CHECK_EVERY_MS, self._check)

    def _is_service(self, run: Execution) -> bool:
        return self._hub.up and run.job_id in self._hub.state.services

    def _is_good(self, run: Execution) -> bool:
        state = self._hub.state
        attempt = state.attempts.get(run.uid)
        if attempt is None:
            return True
        packed = spec_of(state, state.jobs[attempt.job_id], attempt.revision)
        return unpack_spec(packed).command[-1] != BAD

    def _say(self, node: Machine, run: Execution) -> None:
        draw = self._rng.random()
        if draw < 0.3:
            return
        healthy, own = draw > 0.5, draw < 0.95
        if self._updates:
            healthy = self._is_good(run) and (draw > 0.36 or not self._world.faulty)
        said: dict[str, Any] = {"task_id": run.task_id, "healthy": healthy, "message": "looked"}
        if run.names_attempt:
            said["attempt"] = run.uid
        speaker = node if own else self._rng.choice(self.machines)
        if isinstance(speaker, WorkerNode) and draw < 0.33 and self._world.faulty | (not self._updates):
            said["live"] = False
        if speaker.connection is None or (isinstance(speaker, WorkerNode) and not speaker.registered):
            return
        if healthy:
            # Without the name of an attempt a word is about the speaker's own of that task, whatever was looked at.
            self._checker.services.said_well[speaker.name, said.get("attempt", run.task_id)] = None
        self._world.counts["health said"] += 1
        speaker.connection.send_up({"type": "service_health", "payload": said})
