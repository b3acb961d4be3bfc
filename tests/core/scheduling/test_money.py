"""What a job costs decides where it goes: money for its whole run, not for an hour; bad providers come last."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.core.harness import WALL_MS, Cluster

from dray.core.lifecycle.providers import records
from dray.core.lifecycle.state.events import Progressed
from dray.core.lifecycle.state.service_events import ProviderJudged
from dray.core.model.objectives import Objective, lay_over, pack_objective, read_objective
from dray.core.model.units import parse_objective
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.explain.choices import Choices, list_choices, tell_choice
from dray.errors import InvalidInput

PRICES = {"old": {"price_per_gpu_hour": {"K80": 1}}, "new": {"price_per_gpu_hour": {"A100": 3}}, "lab": {}}


@pytest.fixture
def market(cluster: Cluster) -> Cluster:
    """Two kinds of card: one costs a third an hour, and takes five times as long."""
    cluster.rule(providers=PRICES, placement={"weights": {"cost": 5}})
    cluster.join("k80", credit=1 << 20, gpus=8, gpu_type="K80", labels={"provider": "old", "host": "k80"})
    cluster.join("a100", credit=1 << 20, gpus=8, gpu_type="A100", labels={"provider": "new", "host": "a100"})
    return cluster


def train(cluster: Cluster, job: str, wall_s: float = 0, worker: str = "", **spec: Any) -> str:
    """Run a job named train where it goes, to its end where it is said how long that took; gives the worker."""
    given: dict[str, Any] = {"name": "train", "gpu_count": 1} | spec
    if worker:
        given["require"] = [f"host={worker}"]
    cluster.submit(job, **given)
    uid = cluster.current(job)
    if wall_s:
        cluster.run(uid)
        cluster.end(uid, wall_s=wall_s)
    return cluster.attempt(uid).worker


def choices(cluster: Cluster, job: str) -> Choices:
    return list_choices(cluster.state, Rooms(cluster.state), cluster.job(job))


def test_a_cheap_card_that_is_dearer_per_result_loses(market: Cluster) -> None:
    assert train(market, "first") == "k80", "nobody knows how long it takes: the price alone counts"
    train(market, "known-k80", 5000, "k80")
    train(market, "known-a100", 1000, "a100")
    assert train(market, "next") == "a100"
    assert train(market, "other", name="another") == "k80", "of other names nothing is known"
    market.submit("plan", name="train", gpu_count=1, hold=True)
    found = {one.prospect.of.provider: one for one in choices(market, "plan").found}
    assert found["new"].money / found["old"].money == pytest.approx(3 / 5, rel=0.05)
    assert found["new"].prospect.source == "measured"


def test_steps_a_second_tell_how_much_faster_another_card_is(market: Cluster) -> None:
    for job, worker, rate in (("slow", "k80", 1), ("fast", "a100", 5)):
        train(market, job, worker=worker)
        uid = market.current(job)
        market.run(uid)
        market.turn(Progressed(worker, uid, step=1000))
        market.now_ms += 20_000
        market.turn(*market.sign_of_life("k80"), *market.sign_of_life("a100"))
        market.turn(Progressed(worker, uid, step=1000 + 20 * rate))
        market.end(uid, "failed" if worker == "a100" else "succeeded", wall_s=100)
    market.submit("plan", name="train", gpu_count=1, hold=True)
    found = {one.prospect.of.provider: one.prospect for one in choices(market, "plan").found}
    assert found["old"].run_s == pytest.approx(100)
    assert found["new"].run_s == pytest.approx(20)
    assert found["new"].source == "by steps a second"


def test_a_job_its_queue_and_the_policy_say_what_counts(cluster: Cluster) -> None:
    queues = {"default": {}, "thrifty": {"objective": {"cost": 50}}}
    cluster.rule(providers=PRICES, queues=queues, placement={"weights": {"performance": 20}})
    cluster.join("k80", credit=1 << 20, gpus=8, gpu_type="K80", labels={"provider": "old", "host": "k80"})
    cluster.join("a100", credit=1 << 20, gpus=8, gpu_type="A100", labels={"provider": "new", "host": "a100"})
    train(cluster, "k", 2000, "k80")
    train(cluster, "a", 1000, "a100")
    assert train(cluster, "policy") == "a100"
    assert train(cluster, "queue", queue="thrifty") == "k80"
    assert train(cluster, "job", queue="thrifty", objective={"cost": 0}) == "a100"
    assert train(cluster, "own", objective={"cost": 100, "performance": 0}) == "k80"
    cluster.submit("edited", name="train", gpu_count=1, hold=True)
    cluster.edit("edited", objective={"cost": 100})
    cluster.hold("edited", False)
    assert cluster.attempt(cluster.current("edited")).worker == "k80"


def test_cheapest_in_time_pays_more_only_where_the_deadline_asks_for_it(market: Cluster) -> None:
    cheap = {"old": {"price_per_gpu_hour": {"K80": 0.5}}, "new": {"price_per_gpu_hour": {"A100": 3}}}
    market.rule(providers=cheap)
    for number in range(4):
        train(market, f"k{number}", 5000, "k80")
        train(market, f"a{number}", 1000, "a100")

    def place(job: str, left_s: float) -> tuple[str, str]:
        moment = (WALL_MS + market.now_ms) / 1000 + left_s
        where = train(market, job, deadline=_utc(moment), objective={"cheapest_in_time": True})
        found = choices(market, job)
        labels = market.state.workers[where].all_labels
        return where, tell_choice(found, (labels["provider"], where))

    assert place("relaxed", 50_000) == (
        "k80",
        "k80 of old: the least money of 2 on which it is likely to end before its deadline",
    )
    assert place("hurried", 7_000)[0] == "a100"
    assert place("late", 300) == (
        "a100",
        "a100 of new: nowhere is it likely to end before its deadline, and it is the fastest",
    )


def _utc(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%SZ}"


def test_what_is_free_goes_first_and_what_nobody_priced_does_not(market: Cluster) -> None:
    market.join("own", credit=4, gpus=1, gpu_type="A100", labels={"provider": "lab", "host": "own"})
    market.join("t4", credit=4, gpus=1, gpu_type="T4", labels={"provider": "new", "host": "t4"})
    assert train(market, "first") == "own"
    assert train(market, "second") == "k80"
    market.submit("plan", gpu_count=1, hold=True)
    t4 = next(one for one in choices(market, "plan").found if one.prospect.of.kind == "t4")
    assert (t4.prospect.priced, t4.price) == (False, 3)


def test_nothing_new_goes_to_a_bad_provider_while_it_fits_elsewhere(market: Cluster) -> None:
    market.turn(ProviderJudged("old", "bad", "test"))
    assert [train(market, f"job{number}") for number in range(8)] == ["a100"] * 8
    assert train(market, "ninth") == "k80", "nothing else has room"
    market.rule(providers=PRICES, placement={"strategy": "best_fit"})
    market.join("more", credit=8, gpus=1, gpu_type="A100", labels={"provider": "new", "host": "more"})
    assert train(market, "other-strategy") == "more"
    market.join("gang", credit=8, gpus=1, gpu_type="A100", labels={"provider": "new", "host": "gang"})
    market.submit("pair", gpu_count=1, node_count=2)
    where = {market.attempt(market.current("pair", rank)).worker for rank in range(2)}
    assert where == {"gang", "k80"}, "a gang takes as many of it as it must"
    market.turn(ProviderJudged("old", "ok"))
    assert train(market, "well") == "k80"
    listed = choices(market, "well").found
    assert {one.health for one in listed} == {"ok"}


def test_a_provider_that_loses_much_is_shunned_by_reliability(cluster: Cluster) -> None:
    cluster.rule(placement={"weights": {"reliability": 10}})
    cluster.join("spot", credit=8, labels={"provider": "spot", "host": "spot"})
    cluster.join("firm", credit=8, labels={"provider": "firm", "host": "firm"})
    for _ in range(2):
        cluster.now_ms += 1
        records.spoilt(cluster.state, "spot", started=True)
    cluster.submit("job", gpu_count=0, expected_runtime_s=36000)
    assert cluster.attempt(cluster.current("job")).worker == "firm"


def test_objectives_are_read_back_and_laid_over_each_other() -> None:
    said = Objective(cost=2.5, cheapest_in_time=True, egress_gb=3)
    assert read_objective(pack_objective(said)) == said
    assert pack_objective(Objective()) == pack_objective(None) == ""
    assert read_objective("cost=1 of_tomorrow=7") == Objective(cost=1)
    assert lay_over(Objective(cost=0), Objective(cost=9, latency=1)) == Objective(cost=0, latency=1)
    assert parse_objective("cost=3, reliability=1") == {"cost": 3, "reliability": 1}
    assert parse_objective("cheapest_in_time") == {"cheapest_in_time": True}
    for bad in ("cheap", "cost", "cost=nan", "cost=-1", "cost=1e400", "cost=x", "", "cheapest_in_time=1"):
        with pytest.raises(InvalidInput, match="is no objective"):
            parse_objective(bad)
