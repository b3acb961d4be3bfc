"""The people: they submit, retry under the same key until they hear an answer, and cancel now and then."""

from __future__ import annotations

from typing import Any

from dray.core.model.spec_check import check_spec
from dray.sim.faults.checker import Checker
from dray.sim.faults.hub_node import HubNode
from dray.sim.faults.worker_node import Behaviour
from dray.sim.faults.world import World

PATIENCE_MS = 4000


class Pending:
    """A future for one answer."""

    def __init__(self, heard: Any) -> None:
        self._heard, self._done = heard, False

    def done(self) -> bool:
        return self._done

    def set_result(self, result: Any, /) -> None:
        self._done = True
        self._heard(result)

    def set_exception(self, exception: BaseException, /) -> None:
        self._done = True
        self._heard(None)


class Clients:
    """Draws the work of a world and hands it in."""

    def __init__(self, world: World, hub: HubNode, checker: Checker) -> None:
        self._world, self._hub, self._checker = world, hub, checker
        self.unanswered = world.size.jobs
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
        failing = rng.random() < 0.2
        return Behaviour(
            duration, "failed" if failing else "succeeded", 1 if failing else 0, rng.random() < 0.7
        )

    def _draw(self, number: int) -> dict[str, Any]:
        rng = self._world.rng
        spec: dict[str, Any] = {
            "id": f"job-{number}",
            "command": ["work"],
            "retries": rng.choice([0, 0, 1, 3]),
        }
        spec["job_tier"] = rng.choice(["data_processing", "evaluation"])
        if rng.random() < 0.4:
            spec["array"] = {
                "last": rng.randint(0, self._world.size.most_tasks - 1),
                "limit": rng.choice([0, 0, 1, 2]),
            }
        if rng.random() < 0.25:
            spec["at_most_once"] = True
        elif rng.random() < 0.25:
            spec["overlap"] = "fenced"
        if rng.random() < 0.2:
            spec["max_runtime_s"] = rng.choice([2, 60, 200])
        if rng.random() < 0.3:
            spec["cpu_milli"] = rng.choice([1000, 2000, 4000])
        if rng.random() < 0.15:
            spec["scheduling_timeout_s"] = rng.choice([5, 60, 300])
        if rng.random() < 0.1:
            spec["cpu_milli"], spec["scheduling_timeout_s"] = 64_000, 30
        return spec

    def _submit(self, key: str, spec: dict[str, Any]) -> None:
        if spec["id"] in self._checker.acknowledged:
            return
        if self._hub.up:
            self._hub.submit([spec], key, Pending(lambda ids: self._answered(spec, ids)))
        self._world.at(PATIENCE_MS, self._submit, key, spec)

    def _answered(self, spec: dict[str, Any], ids: Any) -> None:
        if ids is None:
            self._world.fail(f"submit of {spec['id']} under its own key was refused")
        if spec["id"] in self._checker.acknowledged:
            return
        self._checker.acknowledged[spec["id"]] = None
        self._checker.specs[spec["id"]] = check_spec(spec)
        self.unanswered -= 1
        rng = self._world.rng
        if self._world.faulty and rng.random() < 0.2:
            self._world.at(rng.randint(0, 60_000), self._cancel, spec["id"])

    def _cancel(self, job_id: str) -> None:
        if self._hub.up:
            self._world.counts["cancel"] += 1
            index = 0 if self._world.rng.random() < 0.3 else None
            self._hub.cancel(job_id, index, Pending(lambda answer: None))
