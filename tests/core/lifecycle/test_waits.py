"""The ledger of a job's waiting: so much time for each first reason, charged when that changes."""

from __future__ import annotations

import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.counts import waits
from dray.core.lifecycle.counts.waits import STALE_MS, stale_charges
from dray.core.lifecycle.recovery import load, wake_up
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.waiting.times import NONE, Times
from dray.core.model.policies.policy import Cap, Pacing, Quota
from dray.core.model.records.waits import NOTHING, QUOTA, REASONS, ROOM, add, put


def ledger(cluster: Cluster, job_id: str = "job") -> dict[str, float]:
    """What a job has waited for, in seconds."""
    job = cluster.state.jobs[job_id]
    spent = cluster.state.waits.read(job, cluster.now_ms)
    return {reason: ms / 1000 for reason, ms in zip(REASONS, spent, strict=False) if ms}


def start(cluster: Cluster, job_id: str = "job") -> str:
    uid = cluster.current(job_id)
    cluster.run(uid)
    return uid


def test_time_without_room_is_charged_and_stays_with_the_job(cluster: Cluster) -> None:
    cluster.submit(gpu_count=1)
    cluster.advance(90)
    assert ledger(cluster) == {"room": 90}
    cluster.join("w1", credit=2, gpus=1)
    uid = start(cluster)
    assert not cluster.state.waits.of
    assert cluster.job().waits[ROOM] == 90_000
    cluster.advance(30)
    cluster.end(uid)
    assert ledger(cluster) == {"room": 90}


def test_a_gate_goes_before_room_and_each_line_counts_its_own(cluster: Cluster) -> None:
    cluster.rule(quotas=(Quota(user="ann", gpus=1),))
    cluster.join("w1", credit=9, gpus=2)
    cluster.submit("first", gpu_count=1)
    held = start(cluster, "first")
    cluster.submit("second", gpu_count=1)
    cluster.advance(60)
    cluster.submit("other", user="bob", gpu_count=1)
    taken = start(cluster, "other")
    cluster.submit("late", user="bob", gpu_count=1)
    cluster.advance(40)
    assert ledger(cluster, "second") == {"quota": 100}
    assert ledger(cluster, "late") == {"room": 40}
    cluster.rule(quotas=())
    cluster.advance(20)
    assert ledger(cluster, "second") == {"quota": 100, "room": 20}
    cluster.end(held)
    assert cluster.job("second").waits[QUOTA] == 100_000
    cluster.advance(5)
    cluster.end(taken)
    start(cluster, "late")
    assert ledger(cluster, "late") == {"room": 65}


def test_what_is_a_jobs_own_goes_before_its_line(cluster: Cluster) -> None:
    cluster.submit("before", gpu_count=1)
    cluster.submit(gpu_count=1, after=["ok:before"])
    cluster.advance(10)
    cluster.hold()
    cluster.advance(20)
    assert ledger(cluster) == {"after": 10, "held": 20}
    cluster.hold(on=False)
    cluster.edit(after=[])
    cluster.advance(30)
    assert ledger(cluster) == {"after": 10, "held": 20, "room": 30}
    cluster.cancel("job")
    assert not cluster.state.waits.due
    assert {REASONS[place] for place, ms in enumerate(cluster.job().waits) if ms} == {"after", "held", "room"}


def test_caps_of_labels_and_of_a_job_are_told_apart(cluster: Cluster) -> None:
    cluster.rule(pacing=Pacing(running=(Cap(label="kind=sweep", most=1),)))
    cluster.join("w1", credit=20, gpus=8)
    cluster.submit("a", gpu_count=1, labels={"kind": "sweep"})
    cluster.submit("b", gpu_count=1, labels={"kind": "sweep"})
    cluster.submit("wide", gpu_count=1, array={"last": 3, "limit": 2})
    cluster.advance(25)
    assert ledger(cluster, "b") == {"cap": 25}
    assert ledger(cluster, "wide") == {"limit": 25}


def test_waiting_again_after_a_requeue_is_added(cluster: Cluster) -> None:
    cluster.submit(gpu_count=1)
    cluster.advance(10)
    cluster.join("w1", credit=1, gpus=1)
    uid = start(cluster)
    cluster.advance(7)
    cluster.ask_again()
    cluster.end(uid, "killed")
    cluster.advance(5)
    assert sum(ledger(cluster).values()) == 15


def test_work_that_starts_at_once_costs_no_record(cluster: Cluster) -> None:
    cluster.join("w1", credit=5, gpus=2)
    cluster.submit(gpu_count=1)
    start(cluster)
    assert cluster.job().waits == ()
    assert not cluster.state.waits.of
    assert not [fact for _, fact in cluster.journal if type(fact).__name__ == "WaitsCharged"]


def test_what_waits_long_is_charged_now_and_then_the_oldest_first_and_bounded(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        cluster.submit(f"j{number}", gpu_count=1)
    cluster.advance(STALE_MS / 1000 - 1)
    assert not list(stale_charges(cluster.state, cluster.clock))
    cluster.advance(1)
    monkeypatch.setattr(waits, "MOST_CHARGED", 5)
    for some in (range(5), range(5, 8)):
        (charge,) = stale_charges(cluster.state, cluster.clock)
        assert [job_id for job_id, _ in charge.charges] == [f"j{number}" for number in some]
        cluster.fold(charge)
    assert cluster.job("j0").waits[ROOM] == STALE_MS
    assert not list(stale_charges(cluster.state, cluster.clock))
    cluster.advance(3)
    assert ledger(cluster, "j0") == {"room": STALE_MS / 1000 + 3}


def test_a_hub_that_was_killed_charges_what_it_cannot_know_to_its_restart(cluster: Cluster) -> None:
    cluster.submit(gpu_count=1)
    cluster.advance(STALE_MS / 1000)
    for charge in stale_charges(cluster.state, cluster.clock):
        cluster.fold(charge)
    cluster.advance(20)
    fresh = State()
    load(fresh, cluster.state.counters, ([cluster.job()], [], [], []))
    wake_up(fresh, Clock(cluster.now_ms + 5_000, cluster.now_ms + 5_000))
    spent = fresh.waits.read(fresh.jobs["job"], cluster.now_ms + 5_000)
    assert {REASONS[place]: ms for place, ms in enumerate(spent) if ms} == {
        "room": STALE_MS,
        "restart": 25_000,
    }


def test_however_many_wait_a_reason_that_changes_is_written_down_once() -> None:
    shape = Times()
    crowd = Times(shape, 0)
    lines = [Times(crowd, 0) for _ in range(3)]
    shape.turn(ROOM, 10)
    lines[1].turn(QUOTA, 20)
    crowd.turn(QUOTA, 30)
    crowd.turn(NONE, 50)
    shape.turn(NONE, 70)
    lines[1].turn(NONE, 80)
    want = put(put(NOTHING, ROOM, 20 + 20), QUOTA, 20)
    assert lines[0].read(100) == lines[2].read(100) == want
    assert lines[1].read(100) == put(put(NOTHING, ROOM, 10), QUOTA, 60)
    late = Times(crowd, 100)
    assert late.read(200) is NOTHING


@pytest.mark.parametrize(("first", "second"), [((), (1, 2)), ((3,), (1, 2)), ((3, 4, 5), ())])
def test_ledgers_of_older_versions_are_shorter(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    assert sum(add(first, second)) == sum(first) + sum(second)
