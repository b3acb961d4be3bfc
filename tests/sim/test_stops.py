"""A request to stop that gets lost is repeated, and the simulation notices where it is not."""

from __future__ import annotations

from typing import Any

import pytest

from dray.core.lifecycle.rules import Rules
from dray.sim.faults.checker import Checker
from dray.sim.faults.hub_node import HubNode
from dray.sim.faults.mutant_table import MUTANTS
from dray.sim.faults.mutants import applied
from dray.sim.faults.pending import Pending
from dray.sim.faults.runs import Behaviour, Runs
from dray.sim.faults.worker_node import WorkerNode
from dray.sim.faults.world import SMALL, Failure, World

LONG_MS = 10_000_000


def let_pass(world: World, until_ms: int) -> None:
    while world.now_ms < until_ms and world.step():
        pass


def ignore(got: Any, fault: BaseException | None) -> None:
    """Nobody waits for this answer."""


def lose_a_stop() -> tuple[World, Runs]:
    """A job runs on the only worker; its cancel falls into a short one-way loss that breaks no socket."""
    world = World(1, SMALL)
    hub = HubNode(world, Rules())
    runs = Runs(world, hub)
    checker = Checker(world, hub, runs)
    hub.start()
    worker = WorkerNode(world, hub, "w0", runs, lambda task_id: Behaviour(LONG_MS, "succeeded", 0, True))
    checker.machines = [worker]
    worker.start()
    hub.now.submit([{"id": "long", "command": ["work"]}], "key", Pending(ignore))
    let_pass(world, 15_000)
    assert [run.ended_ms for run in runs.all] == [-1]
    worker.weather.down_lost = True
    hub.now.cancel("long", None, Pending(ignore))
    let_pass(world, world.now_ms + 5000)
    worker.weather.down_lost = False
    return world, runs


def test_a_lost_request_to_stop_is_repeated():
    world, runs = lose_a_stop()
    assert runs.all[0].ended_ms == -1
    let_pass(world, 300_000)
    assert runs.all[0].outcome == "killed"


def test_a_request_that_is_not_repeated_is_noticed():
    (mutant,) = [one for one in MUTANTS if one.name == "stop-asked-once"]
    with applied(mutant):
        world, _ = lose_a_stop()
        with pytest.raises(Failure, match="was not asked again"):
            let_pass(world, 300_000)
