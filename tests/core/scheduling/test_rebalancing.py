"""What would be better off elsewhere: who may be moved, how long he still runs, which places strategies propose."""

from __future__ import annotations

from typing import Any

from tests.core.harness import Cluster

from dray.core.model.policies.policy import Provider
from dray.core.scheduling.rebalancing.proposals import COST, MONEY
from dray.core.scheduling.rebalancing.scene import Scene
from dray.core.scheduling.rebalancing.strategies import STRATEGIES

PRICED = {"cloud": Provider(price_per_gpu_hour={"A100": 2.0}), "lab": Provider()}


def join(cluster: Cluster, worker: str, provider: str, **more: Any) -> None:
    given = {"gpus": 1, "gpu_type": "A100", **more}
    cluster.join(worker, credit=100, labels={"host": worker, "provider": provider}, **given)


def run(cluster: Cluster, job: str, *, gpus: int = 1, **spec: Any) -> str:
    cluster.submit(job, gpu_count=gpus, **spec)
    uid = cluster.current(job)
    cluster.run(uid)
    return uid


def test_what_pays_is_proposed_for_idle_room_that_costs_less(cluster: Cluster) -> None:
    cluster.rule(providers=PRICED)
    join(cluster, "hired", "cloud")
    first = run(cluster, "train", expected_runtime_s=7200)
    run(cluster, "never", expected_runtime_s=7200, at_most_once=True, gpus=0)
    join(cluster, "own", "lab")
    cluster.advance(600)
    scene, strategy = Scene(cluster.state), STRATEGIES[COST]
    (found,) = found_all = tuple(strategy.propose(scene))
    ((uid, worker, devices, variant),) = [
        (move.uid, move.worker, move.devices, move.variant) for move in found.moves
    ]
    assert (uid, worker, devices, variant) == (first, "own", (0,), 0)
    # Two an hour for the hour and fifty minutes that are left; nothing is paid while it starts at home.
    assert (found.unit, found.gain, found.cost) == (MONEY, 3_666_666, 0)
    assert strategy.level(scene, found_all) == 1.0


def test_nobody_is_moved_of_whom_nothing_may_start_again(cluster: Cluster) -> None:
    join(cluster, "w", "lab", gpus=4)
    once = run(cluster, "once", at_most_once=True)
    held = run(cluster, "held")
    plain = run(cluster, "plain")
    cluster.hold("held")
    scene = Scene(cluster.state)
    assert [attempt.uid for attempt in scene.movers] == [plain]
    assert "once" in scene.why_not(cluster.attempt(once))
    assert "held" in scene.why_not(cluster.attempt(held))


def test_two_may_exchange_their_places_where_each_fits(cluster: Cluster) -> None:
    join(cluster, "w1", "lab")
    one = run(cluster, "one")
    join(cluster, "w2", "lab", gpus=2)
    other = run(cluster, "other")
    scene = Scene(cluster.state)
    found = scene.find_exchange(cluster.attempt(one), cluster.attempt(other))
    assert found is not None
    assert [(move.uid, move.worker) for move in found] == [(one, "w2"), (other, "w1")]
