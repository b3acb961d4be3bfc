"""The direction of each scorer, and what the core learns in passing for them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.state.events import PolicyChanged
from dray.core.lifecycle.state.experience import Experience
from dray.core.model.policies.policy import PlacementPolicy, Policy, Provider, Weights, pack_policy
from dray.core.model.specs.resources import Ask
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.placement.fragmentation import fragmentation
from dray.core.scheduling.placement.placer import make_placer
from dray.core.scheduling.placement.scorers import SCORERS, Sight, Wish

ONLY = dict.fromkeys(Weights.__struct_fields__, 0)


def scores(cluster: Cluster, name: str, ask: Ask, job: str = "") -> dict[str, float]:
    """What one scorer says of each worker."""
    state = cluster.state
    wish = Wish(state, ask, state.jobs.get(job))
    scorer = fragmentation if name == "fragmentation" else SCORERS[name]
    found = scorer(Sight(Rooms(state)), wish)
    assert found is not None
    assert all(0 <= value <= 1 for value in found.tolist())
    return {worker: float(found[row]) for worker, row in state.columns.row_of.items()}


def set_policy(cluster: Cluster, providers: dict[str, Provider] | None = None, **weights: float) -> None:
    placement = PlacementPolicy(weights=Weights(**(ONLY | weights)))
    cluster.turn(PolicyChanged(pack_policy(Policy(placement=placement, providers=providers or {}))))


def run(cluster: Cluster, job: str, said: str = "succeeded", wall_s: float = 1, **spec: Any) -> str:
    """Run a job to its end; gives the worker it ran on."""
    cluster.submit(job, **spec)
    uid = cluster.current(job)
    worker = cluster.attempt(uid).worker
    cluster.run(uid)
    cluster.end(uid, said, wall_s=wall_s)
    return worker


def test_less_left_over_is_better(cluster: Cluster) -> None:
    cluster.join("large", cpus=32)
    cluster.join("small", cpus=4)
    found = scores(cluster, "leftover", Ask(cpu_milli=2000))
    assert found["small"] > found["large"]


def test_work_without_gpus_leaves_gpu_workers_alone(cluster: Cluster) -> None:
    cluster.join("gpu", gpus=1)
    cluster.join("cpu")
    assert scores(cluster, "gpu_avoidance", Ask()) == {"cpu": 1, "gpu": 0}


def test_where_it_ran_before_it_is_warm(cluster: Cluster) -> None:
    cluster.join("a", credit=1)
    cluster.join("b")
    assert run(cluster, "first", name="train") == "a"
    cluster.poll("b", 1)
    cluster.submit("again", name="train", require=["nowhere"])
    assert scores(cluster, "warmth", Ask(), "again") == {"a": 1, "b": 0}
    cluster.submit("other", name="else", require=["nowhere"])
    assert (
        SCORERS["warmth"](Sight(Rooms(cluster.state)), Wish(cluster.state, Ask(), cluster.job("other")))
        is None
    )


def test_a_warm_worker_wins_among_equals(cluster: Cluster) -> None:
    cluster.join("a")
    cluster.join("b", credit=1)
    assert run(cluster, "first", name="train") == "b"
    cluster.poll("a", 1)
    cluster.poll("b", 1)
    cluster.submit("again", name="train")
    assert cluster.attempt(cluster.current("again")).worker == "b"


def test_failures_and_losses_count_against_a_worker_and_fade(cluster: Cluster) -> None:
    cluster.join("a", credit=1)
    cluster.join("b")
    assert run(cluster, "bad", "failed") == "a"
    before = scores(cluster, "reliability", Ask())
    assert before["a"] < before["b"] == 1
    cluster.advance(3600)
    cluster.poll("b", 1)
    assert run(cluster, "good") == "b"
    after = scores(cluster, "reliability", Ask())
    assert before["a"] < after["a"] < 1


def test_a_loss_weighs_more_than_a_failure(cluster: Cluster) -> None:
    cluster.join("a", credit=1)
    cluster.join("b")
    run(cluster, "bad", "failed")
    cluster.poll("b", 1)
    cluster.submit("lost", losses=0, require=[])
    uid = cluster.current("lost")
    cluster.run(uid)
    cluster.end(uid, "failed", exit_class="lost")
    found = scores(cluster, "reliability", Ask())
    assert found["b"] < found["a"] < 1


def test_the_cheaper_provider_wins(cluster: Cluster) -> None:
    set_policy(cluster, {"cloud": Provider(price_per_hour=3), "spot": Provider(price_per_hour=1)}, cost=1)
    cluster.join("a", credit=1, labels={"provider": "cloud"})
    cluster.join("b", credit=1, labels={"provider": "spot"})
    cluster.join("c", credit=1)
    found = scores(cluster, "cost", Ask(cpu_milli=1000))
    assert (found["c"], found["b"], round(found["a"], 3)) == (1, 0.5, 0.167), (
        "free, the cheapest, three times that"
    )
    jobs = ("one", "two", "three")
    for job in jobs:
        cluster.submit(job)
    assert [cluster.attempt(cluster.current(job)).worker for job in jobs] == ["c", "b", "a"]


def test_the_kind_of_card_that_was_faster_for_this_job_wins(cluster: Cluster) -> None:
    set_policy(cluster, performance=1)
    cluster.join("a", credit=1, gpus=1, gpu_type="K80")
    assert run(cluster, "slow", name="train", gpu_count=1, wall_s=100) == "a"
    cluster.join("b", credit=1, gpus=1, gpu_type="H100")
    assert run(cluster, "fast", name="train", gpu_count=1, wall_s=10) == "b"
    cluster.join("c", gpus=1, gpu_type="T4")
    cluster.submit("next", name="train", gpu_count=1)
    found = scores(cluster, "performance", Ask(gpus=1), "next")
    assert found["b"] == 1 > found["c"] == 0.5 > found["a"]
    cluster.poll("a", 1)
    assert cluster.current("next")


def test_preferred_labels_count_by_their_share(cluster: Cluster) -> None:
    cluster.join("none")
    cluster.join("half", labels={"zone": "a"})
    cluster.join("both", credit=1, labels={"zone": "a", "disk": "ssd"})
    found = scores(cluster, "prefer", Ask(prefer=("zone=a", "disk=ssd")))
    assert found == {"none": 0, "half": 0.5, "both": 1}


def test_placements_that_break_up_whole_cards_score_lower(cluster: Cluster) -> None:
    cluster.state.experience.pin_typical({(Ask(gpus=1),): 1})
    cluster.join("whole", credit=9, gpus=1)
    cluster.join("used", credit=9, gpus=1)
    row = cluster.state.columns.row_of["used"]
    cluster.state.columns.hold("used", Ask(gpus=1, gpu_milli=500), (0,), 1)
    found = scores(cluster, "fragmentation", Ask(gpus=1, gpu_milli=400))
    cluster.state.columns.hold("used", Ask(gpus=1, gpu_milli=500), (0,), -1)
    assert found["used"] > found["whole"]
    assert cluster.state.columns.get("best_milli", row) == 1000


def test_the_terms_of_a_candidate_are_told(cluster: Cluster) -> None:
    cluster.join("a", credit=1, labels={"zone": "a"})
    state = cluster.state
    shape = state.shapes.take((Ask(cpu_milli=4000, prefer=("zone=a",)),))
    placer = make_placer(state, Rooms(state))
    [candidate] = placer.ranking(shape)
    assert placer.terms(shape, candidate) == {"leftover": pytest.approx(0.5, abs=0.01), "prefer": 1}


def test_what_is_usually_asked_for_covers_most_of_it() -> None:
    known = Experience()
    common, rare = (Ask(gpus=1),), (Ask(gpus=8),)
    known.learn_placed(common, 990)
    known.learn_placed(rare, 10)
    assert known.typical() == ((common, 990),)
    version = known.typical_version
    known.learn_placed(common, 1)
    assert known.typical() == ((common, 990),)
    known.learn_placed(rare, 5000)
    assert known.typical() == ((rare, 5010), (common, 991))
    assert known.typical_version > version


def test_what_is_learnt_stays_bounded() -> None:
    known = Experience()
    for number in range(1000):
        known.learn_placed((Ask(cpu_milli=number),), 500)
    assert len(known.shapes) <= 400
    assert sum(known.shapes.values()) <= 101_000


def test_a_kind_of_card_that_others_need_more_is_left_to_them(cluster: Cluster) -> None:
    """All wait for whichever card comes free: who gains little by the fast one is worth less there than elsewhere."""
    set_policy(cluster, performance=1)
    cluster.join("fast", gpus=1, gpu_type="A100", credit=1)
    cluster.join("slow", gpus=1, gpu_type="T4", credit=1)
    for name, slow in (("little", 9), ("much", 1)):
        cluster.state.experience.speeds.learn(name, "a100", 10.0, 8, 0.0)
        cluster.state.experience.speeds.learn(name, "t4", slow, 8, 0.0)
    alone = {}
    for name in ("little", "much"):
        cluster.hold("little") if name == "much" else None
        cluster.submit(name, name=name, gpu_count=1, hold=True)
        alone[name] = scores(cluster, "performance", Ask(gpus=1), name)
    assert alone["little"]["fast"] == alone["much"]["fast"] == 1.0
    for number in range(6):
        cluster.submit(f"more-{number}", name=("little", "much")[number % 2], gpu_count=2)
    contended = {name: scores(cluster, "performance", Ask(gpus=1), name) for name in alone}
    assert contended["little"]["fast"] < contended["little"]["slow"]
    assert contended["much"]["fast"] > contended["much"]["slow"]
    assert all(0 <= value <= 1 for one in contended.values() for value in one.values())
