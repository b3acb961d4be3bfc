"""How fast jobs run on which cards: measured by what they say of their progress, put on record, believed with care."""

from __future__ import annotations

import math

import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.recovery import wake_up
from dray.core.lifecycle.state.events import Progressed
from dray.core.lifecycle.state.experience import SpeedSample, StepRates
from dray.core.lifecycle.state.service_events import SpeedsSeen
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.speeds import MOST_SAMPLES
from dray.core.model.records.ledger import SpeedRecord, pack_record, unpack_record


@pytest.fixture
def mixed(cluster: Cluster) -> Cluster:
    """Two machines with a card each, of two kinds."""
    cluster.join("fast", credit=100, gpus=1, gpu_type="A100")
    cluster.join("slow", credit=100, gpus=1, gpu_type="T4")
    return cluster


def start(cluster: Cluster, job: str) -> str:
    cluster.submit(job, gpu_count=1, name="train")
    uid = cluster.current(job)
    cluster.run(uid)
    return uid


def tell(cluster: Cluster, uid: str, step: int) -> None:
    cluster.turn(Progressed(cluster.attempt(uid).worker, uid, step))


def record(cluster: Cluster, kind: str, name: str = "train") -> SpeedRecord:
    found = cluster.state.ledger["speed", f"{kind} {name}"]
    assert isinstance(found, SpeedRecord)
    return found


def test_rates_are_learnt_while_attempts_run_and_when_they_end(mixed: Cluster) -> None:
    fast, slow = start(mixed, "one"), start(mixed, "two")
    kinds = {uid: mixed.attempt(uid).worker for uid in (fast, slow)}
    for step in range(3):
        for uid, worker in kinds.items():
            tell(mixed, uid, step * (3000 if worker == "fast" else 600))
        mixed.advance(300)
    assert record(mixed, "a100").samples == (10.0, 10.0)
    assert record(mixed, "t4").samples == (2.0, 2.0)
    assert mixed.state.experience.speeds.relative("train") == {"a100": 1.0, "t4": 0.2}
    assert mixed.state.experience.speeds.error_of("train", ("a100", "t4")) == 0.0
    # Of a task that says so a first time shortly before its end only that short while is known.
    mixed.end(fast)
    third = start(mixed, "three")
    tell(mixed, third, 0)
    mixed.advance(20)
    tell(mixed, third, 220)
    mixed.end(third)
    mixed.advance(1)
    assert record(mixed, "a100").samples == (10.0, 10.0, 11.0)
    assert 0 < record(mixed, "a100").error < 0.05


def test_one_sample_alone_is_no_record_and_lies_show_in_the_error(cluster: Cluster) -> None:
    speeds = cluster.state.experience.speeds
    cluster.turn(SpeedsSeen((SpeedSample("train", "a100", 10.0),)))
    assert speeds.error_of("train", ("a100",)) == math.inf
    cluster.turn(SpeedsSeen((SpeedSample("train", "a100", 10.0),)))
    assert speeds.error_of("train", ("a100",)) == 0.0
    cluster.turn(SpeedsSeen((SpeedSample("train", "a100", 10.0), SpeedSample("train", "a100", 9e11))))
    assert speeds.rate_of("train", "a100") == 10.0
    assert speeds.error_of("train", ("a100",)) > 0.2
    for _ in range(20):
        cluster.turn(SpeedsSeen((SpeedSample("train", "a100", 10.0),)))
    assert len(record(cluster, "a100").samples) == MOST_SAMPLES
    assert speeds.error_of("train", ("a100",)) < 0.01


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf, 1e300])
def test_what_is_no_rate_is_not_put_on_record(cluster: Cluster, rate: float) -> None:
    cluster.turn(SpeedsSeen((SpeedSample("train", "a100", rate), SpeedSample("", "a100", 1.0))))
    assert not [key for key in cluster.state.ledger if key[0] == "speed"]


def test_steps_that_go_backwards_jump_or_stand_still_say_nothing() -> None:
    rates = StepRates()
    assert rates.told("u", "n", 500, 0) == 0
    assert rates.told("u", "n", 100, 400_000) == 0  # begun anew
    assert rates.told("u", "n", 100, 800_000) == 0
    assert rates.told("u", "n", 900, 800_000) == 2.0
    assert rates.told("u", "n", 1 << 60, 1_300_000) == 0
    assert rates.told("u", "n", -5, 1_300_000) == 0
    assert rates.ended("u", 900, 9_000_000) == 0
    assert rates.ended("unknown", 900, 9_000_000) == 0


def test_arrays_that_tell_nothing_are_compared_task_by_task(mixed: Cluster) -> None:
    mixed.submit("many", gpu_count=1, name="eval", array={"last": 19})
    took = {"fast": 10, "slow": 40}
    for _ in range(12):
        for worker in took:
            for uid in mixed.held(worker):
                mixed.run(uid)
        mixed.advance(10)
        for worker, span_s in took.items():
            for uid in mixed.held(worker):
                if mixed.now_ms - mixed.attempt(uid).started_ms >= span_s * 1000:
                    mixed.end(uid, wall_s=float(span_s))
    relative = mixed.state.experience.speeds.relative("eval")
    assert relative["a100"] == 1.0
    assert relative["t4"] == pytest.approx(0.25)


def test_records_outlive_the_hub(mixed: Cluster) -> None:
    uid = start(mixed, "one")
    for step in range(3):
        tell(mixed, uid, step * 3000)
        mixed.advance(300)
    fresh = State()
    for (kind, key), found in mixed.state.ledger.items():
        fresh.ledger[kind, key] = unpack_record(kind, pack_record(found))
    wake_up(fresh, mixed.clock)
    (kind,) = mixed.state.experience.speeds.relative("train")
    assert fresh.experience.speeds.rate_of("train", kind) == 10.0
    assert fresh.experience.speeds.errors == mixed.state.experience.speeds.errors


def test_the_oldest_records_go_when_there_are_too_many(cluster: Cluster) -> None:
    for number in range(0, 2100, 100):
        samples = tuple(SpeedSample(f"n{one}", "a100", 1.0) for one in range(number, number + 100))
        cluster.turn(SpeedsSeen(samples))
    known = [key for key in cluster.state.ledger if key[0] == "speed"]
    assert len(known) == len(cluster.state.experience.speeds.rates) == 2000
    assert ("speed", "a100 n99") not in known
