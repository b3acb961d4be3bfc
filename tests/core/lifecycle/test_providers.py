"""How it goes at providers: what is counted, what it costs, and when one is taken for bad and for well again."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster, only

from dray.core.lifecycle.providers import health, records
from dray.core.lifecycle.providers.prices import MICRO, card_price
from dray.core.lifecycle.state.effects import Alarm, Note
from dray.core.lifecycle.state.events import AttemptsLost, PolicyChanged
from dray.core.lifecycle.state.timings import Rules
from dray.core.model.policies.policy import Policy, Provider, pack_policy
from dray.core.model.records.ledger import ProviderRecord

HOUR = 3600.0


def price(cluster: Cluster, **providers: Provider) -> None:
    cluster.turn(PolicyChanged(pack_policy(Policy(providers=providers))))


def record(cluster: Cluster, name: str = "cloud") -> ProviderRecord:
    return records.read(cluster.state, name, cluster.state.now_ms)


def run(
    cluster: Cluster, job: str, worker: str, wall_s: float = 1, state: str = "succeeded", **spec: Any
) -> str:
    cluster.submit(job, require=[f"host={worker}"], **spec)
    uid = cluster.current(job)
    cluster.run(uid)
    cluster.end(uid, state, wall_s=wall_s)
    return uid


def join(cluster: Cluster, worker: str, provider: str = "cloud", **more: Any) -> None:
    cluster.join(worker, credit=1 << 20, labels={"host": worker, "provider": provider}, **more)


def lose(cluster: Cluster, worker: str, job: str = "") -> None:
    """A worker is given up, with all that it runs."""
    if job:
        cluster.submit(job, require=[f"host={worker}"], losses=0)
        cluster.run(cluster.current(job))
    cluster.turn(AttemptsLost(worker, tuple(cluster.held(worker)), "test"))


def jump(cluster: Cluster, seconds: float) -> None:
    """Let a long time pass at once; whoever beats is heard before anybody looks."""
    cluster.now_ms += round(seconds * 1000)
    cluster.turn(*(event for worker in cluster.beating for event in cluster.sign_of_life(worker)))


def test_money_is_counted_at_the_price_that_held_when_the_work_was_given_out(cluster: Cluster) -> None:
    price(cluster, cloud=Provider(price_per_gpu_hour={"A100": 2.0}), lab=Provider())
    join(cluster, "w", gpus=4, gpu_type="NVIDIA A100-SXM4-80GB")
    join(cluster, "own", "lab", gpus=4, gpu_type="NVIDIA A100-SXM4-80GB")
    cluster.submit("job", gpu_count=2, require=["host=w"])
    uid = cluster.current("job")
    cluster.run(uid)
    price(cluster, cloud=Provider(price_per_gpu_hour={"A100": 99.0}))
    jump(cluster, HOUR / 2)
    cluster.end(uid, wall_s=HOUR / 2)
    assert cluster.attempt(uid).rate == 4 * MICRO
    assert cluster.job("job").money == 2 * MICRO
    run(cluster, "free", "own", HOUR, gpu_count=1)
    assert cluster.job("free").money == 0
    known = record(cluster)
    assert known.money == pytest.approx(2 * MICRO)
    assert known.succeeded == pytest.approx(1, abs=0.01)


def test_part_of_a_worker_pays_its_part_and_a_type_that_is_left_out_the_dearest(cluster: Cluster) -> None:
    price(cluster, cloud=Provider(price_per_hour=8), odd=Provider(price_per_gpu_hour={"A100": 1, "H100": 3}))
    join(cluster, "w", gpus=4, cpus=32)
    join(cluster, "t4", "odd", gpus=1, gpu_type="Tesla T4")
    assert cluster.attempt(run(cluster, "one", "w", gpu_count=1)).rate == 2 * MICRO
    assert cluster.attempt(run(cluster, "cores", "w", min_cpu_cores=8)).rate == 2 * MICRO
    assert cluster.attempt(run(cluster, "unnamed", "t4", gpu_count=1)).rate == 3 * MICRO
    named = Provider(price_per_gpu_hour={"A100": 1, "a100-80gb": 2})
    assert card_price(named, ("a100-80gb", "a100", "80gb")) == (2, True)
    assert card_price(Provider(price_per_hour=1), ("a100",)) == (0, True)


def test_a_lost_attempt_that_goes_on_is_paid_once(cluster: Cluster) -> None:
    price(cluster, cloud=Provider(price_per_hour=3600))
    join(cluster, "w", cpus=1)
    cluster.submit("job", min_cpu_cores=1, losses=5)
    uid = cluster.current("job")
    cluster.run(uid)
    jump(cluster, 100)
    lose(cluster, "w")
    paid = cluster.job("job").money
    assert paid > 0
    cluster.register("w", active=[cluster.active(uid)])
    assert cluster.attempt(uid).phase.live
    cluster.end(uid, wall_s=1000)
    assert cluster.job("job").money == 1000 * MICRO


def test_worker_days_losses_and_starts_are_measured_and_fade(cluster: Cluster) -> None:
    join(cluster, "a")
    join(cluster, "b")
    join(cluster, "mine", "")
    jump(cluster, 12 * HOUR)
    assert record(cluster).days == pytest.approx(1, rel=0.05)
    assert records.loss_rate(record(cluster)) == pytest.approx(0.5 / 6, rel=0.05)
    for number in range(4):
        cluster.submit(f"job{number}", require=["host=a"])
    for number in range(4):
        uid = cluster.current(f"job{number}")
        cluster.advance(0.1)
        cluster.run(uid)
    lose(cluster, "a")
    known = record(cluster)
    assert (round(known.losses, 2), round(known.faults, 2)) == (1, 1), "four tasks of one worker are one loss"
    cluster.turn()
    run(cluster, "fine", "b")
    begun = records.start_ms(record(cluster), 0.5)
    assert begun is not None
    assert 0 <= begun < 1000
    before = record(cluster).losses
    jump(cluster, 7 * 24 * HOUR)
    assert record(cluster).losses == pytest.approx(before / 2, rel=0.01)
    assert not any(kind == "provider" and key != "cloud" for kind, key in cluster.state.ledger)


def test_a_provider_becomes_bad_and_well_again_one_step_at_a_time(cluster: Cluster) -> None:
    for number in range(8):
        join(cluster, f"spot{number}")
    seen: list[str] = []
    told: list[str] = []
    alarms: list[str] = []
    for number in range(8):
        lose(cluster, f"spot{number}", f"job{number}")
        told += [
            note.data["health"] for note in only(cluster.effects, Note) if note.type == "provider_judged"
        ]
        alarms += [alarm.text for alarm in only(cluster.effects, Alarm)]
        seen.append(record(cluster).health)
    assert seen[0] == "ok", "one loss says little"
    assert seen[-1] == "bad"
    assert "degraded" in seen
    assert list(cluster.state.bad_providers) == ["cloud"]
    assert any("provider cloud is bad" in text for text in alarms)
    for _ in range(144):
        jump(cluster, HOUR / 12)
        told += [
            note.data["health"] for note in only(cluster.effects, Note) if note.type == "provider_judged"
        ]
    assert told == ["degraded", "bad", "degraded", "ok"], "no flapping on the way"
    assert not cluster.state.bad_providers


def test_at_the_line_it_stays_what_it_was() -> None:
    line = ProviderRecord(recent_ends=15, recent_faults=7.5, health="ok")
    for before, after in (("ok", "degraded"), ("degraded", "degraded"), ("bad", "bad")):
        line.health = before
        assert health.judge(line, Rules()).health == after, "0.4 makes nobody bad, and nobody who is bad well"
    line.recent_faults = 5
    line.health = "bad"
    assert health.judge(line, Rules()).health == "degraded"
    usual = ProviderRecord(recent_losses=3, recent_days=0.1, month_losses=4, month_days=300, recent_ends=200)
    assert health.judge(usual, Rules()).health == "degraded", "three of few, where its month had one"
    assert "lost 3 workers" in health.judge(usual, Rules()).why
    stormy = ProviderRecord(recent_losses=3, recent_days=6, month_losses=90, month_days=180, recent_ends=200)
    assert health.judge(stormy, Rules()).health == "ok", "that is what it is always like"


def test_labels_of_strangers_are_bounded_and_may_say_anything(cluster: Cluster) -> None:
    odd = "on prem: \u2603 / east?x=1"
    join(cluster, "odd", odd)
    run(cluster, "job", "odd")
    assert record(cluster, odd).succeeded == pytest.approx(1, abs=0.01)
    for number in range(records.MOST_PROVIDERS + 20):
        cluster.join(f"s{number}", labels={"provider": f"p{number}"})
    assert len(cluster.state.provided) <= records.MOST_PROVIDERS
    before = len(cluster.state.provided)
    cluster.join("again", labels={"provider": "one more"})
    assert len(cluster.state.provided) == before, (
        "all of them have workers: it is not tracked, and works all the same"
    )
    assert cluster.state.provider_of.get("again", "") == ""
    cluster.state.workers["odd"].left = True
    records.follow(cluster.state, "odd")
    assert cluster.state.providers_here[odd] == 0
