"""The people: they submit, retry under the same key until they hear an answer, grow arrays, and cancel now and then."""

from __future__ import annotations

import random
from typing import Any

from dray.core.lifecycle.state.timings import Rules
from dray.errors import NoSpace
from dray.sim.faults.nodes.hub import HubNode
from dray.sim.faults.nodes.runs import NEED, Behaviour, has_ports, has_sizes
from dray.sim.faults.people.policies import Site
from dray.sim.faults.people.steering import Steering
from dray.sim.faults.people.workloads import Organisers
from dray.sim.faults.watches.checker import Checker
from dray.sim.faults.watches.larger_cards import SHARED_NAME
from dray.sim.faults.world.pending import Pending
from dray.sim.faults.world.world import World

PATIENCE_MS = 4000
DOOMED, LASTING = "doomed", "lasting"
GANG_WORLDS, GANG_SHARE = 0.5, 0.5
SIZED_SHARE = 0.6
PORT_SHARE = 0.5


class Clients:
    """Draws the work of a world and hands it in."""

    def __init__(self, world: World, hub: HubNode, checker: Checker) -> None:
        self._world, self._hub, self._checker = world, hub, checker
        self._steering = Steering(world, hub, checker)
        self.site = Site(world, hub)
        self.organisers = Organisers(world, hub, checker)
        self.unanswered = world.size.jobs
        self._answered_keys: set[str] = set()
        self.still_open: dict[str, None] = {}
        self._arrays: dict[str, None] = {}
        # Drawn apart, so that a world without gangs is what it always was.
        self._array_draw = random.Random(f"arrays of {world.seed}")
        self._gang_draw = random.Random(f"gangs of {world.seed}")
        self._memory_draw = random.Random(f"memory of {world.seed}")
        self._port_draw = random.Random(f"ports of {world.seed}")
        self._has_gangs = self._gang_draw.random() < GANG_WORLDS
        for number in range(world.size.jobs):
            world.at(
                world.rng.randint(0, world.size.span_ms * 2 // 3),
                self._submit,
                f"key-{number}",
                self._draw(number),
            )

    def behave(self, task_id: str) -> Behaviour:
        """Draw how one run of a task goes; once the faults have stopped every run ends soon."""
        rng = self._world.rng
        long_ones = 0.2 if self._world.faulty else 0.0
        duration = rng.randint(20_000, 400_000) if rng.random() < long_ones else rng.randint(1, 8000)
        failing = rng.random() < 0.2 or task_id.startswith(DOOMED)
        duration = self.site.stretch(duration)
        if task_id.startswith(LASTING) and duration % 8:
            duration = 10**9
        if self._has_long_arrays and duration <= 8000:
            duration = 1 + duration // 8
        return Behaviour(
            duration, "failed" if failing else "succeeded", 1 if failing else 0, rng.random() < 0.7
        )

    @property
    def _has_long_arrays(self) -> bool:
        """Where tasks may stand behind others there are arrays of many short ones."""
        return self._hub.rules.ahead_ms != Rules().ahead_ms

    def _draw(self, number: int) -> dict[str, Any]:
        rng = self._world.rng
        doomed = rng.random() < 0.1
        spec: dict[str, Any] = {
            "id": f"{DOOMED if doomed else 'job'}-{number}",
            "command": ["work"],
            "retries": rng.choice([0, 0, 1, 3]),
            "job_tier": rng.choice(["data_processing", "evaluation"]),
        }
        if rng.random() < 0.3:
            spec["losses"] = rng.choice([0, 1, 2])
        if rng.random() < 0.15:
            spec["type"], spec["restart"] = "service", "never"
        elif rng.random() < 0.4:
            limit = rng.choice([0, 0, 1, 2])
            last = rng.randint(0, self._world.size.most_tasks - 1)
            spec["array"] = {"last": last, "limit": limit, "open": rng.random() < 0.25}
        if rng.random() < 0.25:
            spec["at_most_once"] = True
            spec.pop("losses", None)
            spec["retries"] = 0
        elif rng.random() < 0.25:
            spec["overlap"] = "fenced"
        self._draw_needs(spec)
        if self._has_long_arrays and "array" in spec:
            spec["array"]["last"] += self._array_draw.randint(0, 20)
        if self._has_gangs and "array" not in spec and self._gang_draw.random() < GANG_SHARE:
            self._draw_gang(spec)
        if has_ports(self._world.seed) and self._port_draw.random() < PORT_SHARE:
            self._draw_ports(spec)
        if rng.random() < 0.3:
            # Without an id of its own only the key keeps a retry from making a second job.
            spec["name"] = spec.pop("id")
        if (
            has_sizes(self._world.seed)
            and "node_count" not in spec
            and self._memory_draw.random() < SIZED_SHARE
        ):
            self._draw_memory(spec)
        return spec

    def _draw_ports(self, spec: dict[str, Any]) -> None:
        """Work that listens: on one port of its worker's, on several, or on one that is the same everywhere."""
        spec["ports"] = self._port_draw.choice(
            [["http"], ["http", "grpc"], ["http=8080"], ["a", "b=8080", "c"]]
        )
        spec.setdefault("scheduling_timeout_s", 400)

    def _draw_memory(self, spec: dict[str, Any]) -> None:
        """Work that may be too large for the cards it gets, with rules for that; some of it has a name with others."""
        draw = self._memory_draw
        spec["gpu_count"], spec["scheduling_timeout_s"] = 1, 400
        spec["env"] = {NEED: str(draw.choice([0, 20, 20, 40, 100]))}
        spec["retries"] = {"code": spec["retries"], "oom": draw.choice(["", "bigger", "bigger"])}
        spec["retries"]["node"] = draw.choice(["", "elsewhere"])
        if "id" in spec and draw.random() < 0.5:
            spec["name"] = f"{SHARED_NAME}{draw.choice([1, 2])}"

    def _draw_gang(self, spec: dict[str, Any]) -> None:
        """A world may have too few machines of one backend: then it ends as unschedulable."""
        draw = self._gang_draw
        spec["node_count"], spec["mixed_backends"] = draw.choice([2, 2, 2, 3]), draw.random() < 0.7
        spec.setdefault("scheduling_timeout_s", 400)

    def _draw_needs(self, spec: dict[str, Any]) -> None:
        rng = self._world.rng
        if rng.random() < 0.2:
            spec["max_runtime_s"] = rng.choice([2, 60, 200])
        if rng.random() < 0.3:
            spec["cpu_milli"] = rng.choice([1000, 2000, 4000])
        if rng.random() < 0.15:
            spec["scheduling_timeout_s"] = rng.choice([5, 60, 300])
        if rng.random() < 0.1:
            spec["cpu_milli"], spec["scheduling_timeout_s"] = 64_000, 30
        if rng.random() < 0.2:
            # A world may have no such cards: then it ends as unschedulable.
            spec["gpu_count"], spec["scheduling_timeout_s"] = rng.choice([1, 1, 2]), 400
            if spec["gpu_count"] == 1 and rng.random() < 0.4:
                spec["gpu_milli"] = rng.choice([300, 500])
        if spec.get("type") == "service":
            # A world may have no slot for services either.
            spec["scheduling_timeout_s"] = spec.get("scheduling_timeout_s", 400)

    # --- submits ----------------------------------------------------------------------------------------------------

    def _submit(self, key: str, spec: dict[str, Any]) -> None:
        if key in self._answered_keys:
            return
        self._steering.dress(key, spec)
        self.site.dress(key, spec)
        self.organisers.dress(key, spec)
        if self._hub.up:
            asked = dict(spec)
            self._hub.now.submit(
                [asked], key, Pending(lambda got, fault: self._answered(key, spec, asked, got, fault))
            )
        self._world.at(PATIENCE_MS, self._submit, key, spec)

    def _answered(
        self, key: str, spec: dict[str, Any], asked: dict[str, Any], got: Any, fault: BaseException | None
    ) -> None:
        """`asked`: the spec as it was then. Asked twice before the first answer, both answers are about that."""
        if isinstance(fault, NoSpace):
            self._world.counts["submit refused for space"] += 1
            return
        if self.organisers.excused(spec, asked.get("workload", ""), fault):
            return
        if fault is not None and self._steering.excused(asked, fault):
            spec.pop("after", None)
            return
        if fault is not None:
            self._world.fail(f"the submit under {key} was refused: {fault}")
        ids, created, no_room = got
        if created and no_room:
            self._world.fail(f"job {ids} was taken on with the disk full")
        if key in self._answered_keys:
            return
        self._answered_keys.add(key)
        (job_id,) = ids
        self._checker.account.acknowledged[job_id] = None
        self.unanswered -= 1
        self._steering.acknowledged(job_id, spec)
        rng = self._world.rng
        if self._world.faulty and rng.random() < 0.2:
            self._world.at(rng.randint(0, 60_000), self._cancel, job_id)
        if spec.get("array", {}).get("open"):
            self.still_open[job_id] = self._arrays[job_id] = None
            self._world.at(rng.randint(0, 30_000), self._extend, job_id, rng.randint(1, 3))

    def steer(self, job_id: str, spec: dict[str, Any]) -> None:
        """Let people do to a job of calls what they do to others."""
        self._steering.acknowledged(job_id, spec)
        rng = random.Random(f"steer {self._world.seed} {job_id}")  # a simulation's chance, no secret
        for share in (0.2, 0.2):
            if self._world.faulty and rng.random() < share:
                self._world.at(rng.randint(0, 60_000), self._cancel, job_id)

    def _cancel(self, job_id: str) -> None:
        if self._hub.up:
            self._world.counts["cancel"] += 1
            self._checker.cancel_asked[job_id] = None
            index = 0 if self._world.rng.random() < 0.3 else None

            def heard(did: Any, fault: BaseException | None) -> None:
                if did and index is None:
                    self._checker.account.cancelled[job_id] = None

            self._hub.now.cancel(job_id, index, Pending(heard))

    def rewind(self) -> None:
        """The hub was restored from a backup: arrays that it still has may be open there once more. It may have one
        whose submit was answered only later; of one that it has not it will say so.
        """
        self._steering.rewind()
        self.organisers.rewind()
        for job_id in self._arrays:
            if job_id not in self.still_open:
                self.still_open[job_id] = None
                self._world.at(1000, self._extend, job_id, 0)

    # --- open arrays ------------------------------------------------------------------------------------------------

    def close_strays(self) -> None:
        """Nobody else ever closes the array of a submit that waited in a hub while another one, whose turns are lost,
        answered it: who asked knows it by the id that is gone.
        """
        for job in self._hub.state.jobs.values():
            if job.open and not (job.calls or job.service) and job.id not in self._arrays:
                self.still_open[job.id] = None
                self._extend(job.id, 0)

    def _extend(self, job_id: str, left: int) -> None:
        """Grow an array a few times, then close it; both until an answer says that it happened."""
        if job_id not in self.still_open:
            return
        close, count = left == 0, 0 if left == 0 else self._world.rng.randint(1, 2)

        def heard(did: Any, fault: BaseException | None) -> None:
            if fault is not None or close:
                self.still_open.pop(job_id, None)
            elif did:
                grown = self._checker.account.grown
                grown[job_id] = grown.get(job_id, 0) + count

        if self._hub.up:
            self._world.counts["array closed" if close else "array extended"] += 1
            self._hub.now.extend(job_id, count, close, Pending(heard))
        self._world.at(self._world.rng.randint(1000, 20_000), self._extend, job_id, max(0, left - 1))
