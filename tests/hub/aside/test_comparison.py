"""Strategies compared: each by the same costs, on the same scene, and nothing is placed by it."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from tests.hub.asking import ask

from dray.core.scheduling.solving.costs import Group
from dray.core.scheduling.solving.exchanges import solve_in_turn
from dray.hub.aside.genetic import solve_by_genes
from dray.testing import make_capability, make_slots, running_hub
from dray.testing.worker_script import MODERN
from dray.wire.schemas.views import Comparison


@pytest.mark.parametrize("seed", range(4))
def test_a_genetic_search_is_no_worse_than_the_turn_it_begins_with(seed: int) -> None:
    rng = random.Random(seed)
    tasks, workers = rng.randint(2, 20), rng.randint(1, 8)
    room = np.array([rng.randint(0, 5) for _ in range(workers)], dtype=np.int64)
    costs = np.array([[rng.choice([-1, *range(0, 1000, 50)]) for _ in range(workers)] for _ in range(tasks)])
    group = Group([("job", number) for number in range(tasks)], np.arange(tasks), costs, room)
    in_turn, found = solve_in_turn(group), solve_by_genes(group)
    assert (np.bincount([row for row in found if row >= 0], minlength=workers) <= room).all()
    assert all(row < 0 or costs[number, row] >= 0 for number, row in enumerate(found))
    paid = [
        sum(int(costs[n, row]) if row >= 0 else 10**6 for n, row in enumerate(rows))
        for rows in (in_turn, found)
    ]
    assert paid[1] <= paid[0]
    assert found == solve_by_genes(group), "two questions have one answer"


def test_a_hub_compares_strategies_on_what_waits_and_places_nothing() -> None:
    with running_hub(estimate_every_s=0) as hub:
        offer = make_capability(gpus=4)
        with hub.worker("w1", capability=offer, slots=make_slots(0), features=MODERN) as worker:
            worker.register()
            spec = {"id": "many", "command": ["true"], "gpu_count": 1, "array": {"last": 2}}
            assert ask(hub, "POST", "/jobs", spec)[0] == 201
            status, answer = ask(hub, "GET", "/advice/placements?strategies=greedy,min_cost,genetic")
            assert status == 200, answer
            found = msgspec.convert(answer, Comparison)
            assert [one.strategy for one in found.outcomes] == ["greedy", "min_cost", "genetic"]
            assert found.tasks == 3
            assert not any(one.trouble for one in found.outcomes)
            assert ask(hub, "GET", "/jobs/many")[1]["state"] == "pending"
            assert ask(hub, "GET", "/advice/placements?strategies=best")[0] == 400
