"""Who is moved aside for whom, where to, and what keeps its room meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.holding.moves import recall
from dray.core.lifecycle.holding.receipts import receipts
from dray.core.model.policies.policy import (
    Limits,
    Pace,
    Pacing,
    PlacementPolicy,
    PreemptionPolicy,
    Queue,
    Quota,
)
from dray.core.model.records.ledger import Receipt
from dray.core.scheduling.explain.explain import explain

FIFO = Queue(protect_after_s=0)
SRSF = Queue(order="srsf", protect_after_s=0)
HALF, WHOLE = 4000, 8000


def govern(cluster: Cluster, queue: Queue = FIFO, moves: int = 10, **more: Any) -> None:
    """Every worker gets as much as the others: what is idle is scattered."""
    given = {"strategy": "none", "min_run_s": 0, "moves": moves, **more.pop("preemption", {})}
    cluster.rule(
        queues={"default": queue, "other": queue},
        preemption=PreemptionPolicy(**given),
        placement=PlacementPolicy(strategy="spread"),
        **more,
    )


def fill(cluster: Cluster, *names: str, **spec: Any) -> list[str]:
    """A worker of eight cores for each name, half of it held by a task of that name; gives their uids."""
    for number in range(len(names)):
        cluster.join(f"w{number + 1}", credit=100, cpus=8)
    uids = []
    for name in names:
        cluster.submit(name, **{"cpu_milli": HALF, **spec})
        cluster.run(cluster.current(name))
        uids.append(cluster.current(name))
    return uids


def only(cluster: Cluster) -> Receipt:
    (found,) = receipts(cluster.state)
    return found


def stopping(cluster: Cluster) -> list[str]:
    return sorted(a.job_id for a in cluster.state.attempts.values() if a.cancel == "preempted")


def test_a_task_moves_to_where_it_has_room_and_both_run(cluster: Cluster) -> None:
    govern(cluster)
    first, _ = fill(cluster, "a", "b")
    cluster.advance(7)
    cluster.submit("wide", cpu_milli=WHOLE)
    receipt = only(cluster)
    assert (receipt.rule, receipt.workers) == ("moves", ("w1",))
    (victim,) = receipt.victims
    assert (victim.uid, victim.worker, victim.to, victim.lost_ms) == (first, "w1", "w2", 7000)
    cluster.end(first, "preempted")
    assert cluster.attempt(cluster.current("wide")).worker == "w1"
    assert cluster.attempt(cluster.current("a")).worker == "w2"
    assert only(cluster).status == "served"
    assert not cluster.state.moves
    task = cluster.task("a")
    assert (task.failures, task.losses, task.preemptions) == (0, 0, 1)


def test_nobody_is_moved_unless_told(cluster: Cluster) -> None:
    govern(cluster, moves=0)
    fill(cluster, "a", "b")
    cluster.submit("wide", cpu_milli=WHOLE)
    assert stopping(cluster) == []


def test_nobody_is_moved_who_has_no_room_elsewhere(cluster: Cluster) -> None:
    govern(cluster)
    fill(cluster, "a", "b", "c", cpu_milli=5000)
    # What is idle would do for it three times over, and no part of it for any of those who run.
    cluster.submit("wide", cpu_milli=6000)
    assert stopping(cluster) == []


def test_the_room_it_moves_to_is_kept(cluster: Cluster) -> None:
    govern(cluster)
    first, _ = fill(cluster, "a", "b")
    cluster.submit("wide", cpu_milli=WHOLE)
    cluster.submit("small", cpu_milli=1000)
    assert not cluster.current("small")
    cluster.end(first, "preempted")
    assert cluster.attempt(cluster.current("a")).worker == "w2"
    assert not cluster.current("small")


def test_it_starts_again_though_whom_it_made_room_for_has_gone(cluster: Cluster) -> None:
    govern(cluster)
    first, _ = fill(cluster, "a", "b")
    cluster.submit("wide", cpu_milli=WHOLE)
    cluster.cancel("wide")
    assert only(cluster).status == "rolled_back"
    cluster.submit("small", cpu_milli=HALF)
    assert cluster.attempt(cluster.current("small")).worker == "w1"
    cluster.end(first, "preempted")
    assert cluster.attempt(cluster.current("a")).worker == "w2"


def test_what_ends_within_its_grace_leaves_the_room_to_others(cluster: Cluster) -> None:
    govern(cluster)
    first, _ = fill(cluster, "a", "b")
    cluster.submit("wide", cpu_milli=WHOLE)
    cluster.submit("small", cpu_milli=1000)
    cluster.end(first)
    assert cluster.current("wide")
    assert cluster.attempt(cluster.current("small")).worker == "w2"


def test_a_worker_that_goes_takes_the_move_with_it(cluster: Cluster) -> None:
    govern(cluster)
    first, _ = fill(cluster, "a", "b")
    cluster.submit("wide", cpu_milli=WHOLE)
    cluster.leave("w2")
    assert not cluster.state.moves
    cluster.end(first, "preempted")
    assert cluster.attempt(cluster.current("wide")).worker == "w1"
    assert cluster.task("a").queued


def test_the_budget_holds_within_its_window(cluster: Cluster) -> None:
    govern(cluster, moves=1, preemption={"limits": Limits(window_s=60)})
    uids = fill(cluster, "a", "b", "c")
    cluster.submit("wide", cpu_milli=WHOLE)
    assert stopping(cluster) == ["a"]
    cluster.end(uids[0], "preempted")
    cluster.end(cluster.current("wide"))
    cluster.submit("again", cpu_milli=HALF)
    cluster.run(cluster.current("again"))
    cluster.submit("wider", cpu_milli=WHOLE)
    cluster.advance(50)
    assert stopping(cluster) == ["a"]
    cluster.advance(30)
    assert len(stopping(cluster)) == 2


def test_more_than_the_budget_at_once_is_too_much(cluster: Cluster) -> None:
    govern(cluster, moves=1)
    for name in ("w1", "w2"):
        cluster.join(name, credit=100, cpus=8)
    for name in ("a", "b", "c", "d"):
        cluster.submit(name, cpu_milli=2000)
        cluster.run(cluster.current(name))
    cluster.submit("wide", cpu_milli=WHOLE)
    assert stopping(cluster) == []
    govern(cluster, moves=2)
    assert len(stopping(cluster)) == 2


def test_the_same_task_is_not_moved_again_within_the_window(cluster: Cluster) -> None:
    govern(cluster, preemption={"limits": Limits(window_s=1000)})
    first, second = fill(cluster, "a", "b")
    cluster.submit("wide", cpu_milli=WHOLE)
    cluster.end(first, "preempted")
    cluster.run(cluster.current("wide"))
    cluster.run(cluster.current("a"))
    cluster.end(second)
    cluster.end(cluster.current("wide"))
    # a runs on w2, which is half idle; w1 is idle, and half of it goes to another.
    cluster.submit("c", cpu_milli=HALF)
    cluster.run(cluster.current("c"))
    cluster.submit("wider", cpu_milli=WHOLE)
    assert stopping(cluster) == ["a", "c"]


@pytest.mark.parametrize(
    "spec",
    [{"at_most_once": True}, {"priority": 7}, {"queue": "other"}],
    ids=["may start once", "of higher priority", "of another queue"],
)
def test_who_is_left_alone(cluster: Cluster, spec: dict[str, Any]) -> None:
    govern(cluster)
    fill(cluster, "a", "b", **spec)
    cluster.submit("wide", cpu_milli=WHOLE)
    assert stopping(cluster) == []


def test_what_has_run_too_short_is_moved_later(cluster: Cluster) -> None:
    govern(cluster, preemption={"min_run_s": 20})
    fill(cluster, "a", "b")
    cluster.submit("wide", cpu_milli=WHOLE)
    cluster.advance(15)
    assert stopping(cluster) == []
    cluster.advance(10)
    assert len(stopping(cluster)) == 1


def test_a_gang_is_not_split(cluster: Cluster) -> None:
    govern(cluster)
    for name in ("w1", "w2", "w3"):
        cluster.join(name, credit=100, cpus=8)
    cluster.submit("gang", node_count=3, cpu_milli=HALF)
    for index in range(3):
        cluster.accept(cluster.current("gang", index))
    for index in range(3):
        cluster.start(cluster.current("gang", index))
    cluster.submit("wide", cpu_milli=WHOLE)
    assert stopping(cluster) == []


def test_a_gang_gets_its_workers_by_moves(cluster: Cluster) -> None:
    govern(cluster)
    uids = fill(cluster, "a", "b", "c", "d")
    cluster.submit("gang", node_count=2, cpu_milli=WHOLE)
    receipt = only(cluster)
    assert receipt.workers == ("w1", "w2")
    assert sorted(victim.to for victim in receipt.victims) == ["w3", "w4"]
    for uid in uids[:2]:
        cluster.end(uid, "preempted")
    assert {cluster.attempt(cluster.current("gang", index)).worker for index in (0, 1)} == {"w1", "w2"}
    assert {cluster.attempt(cluster.current(name)).worker for name in ("a", "b")} == {"w3", "w4"}


def test_by_service_short_work_makes_room_for_long_work(cluster: Cluster) -> None:
    govern(cluster, SRSF, preemption={"strategy": "priority"})
    first, _ = fill(cluster, "a", "b", expected_runtime_s=100)
    cluster.submit("wide", cpu_milli=WHOLE, expected_runtime_s=10_000)
    assert only(cluster).rule == "moves"
    cluster.end(first, "preempted")
    assert cluster.current("wide")
    assert cluster.attempt(cluster.current("a")).worker == "w2"


def test_who_can_be_moved_is_not_stopped(cluster: Cluster) -> None:
    govern(cluster, SRSF, preemption={"strategy": "priority"})
    fill(cluster, "long", "b", expected_runtime_s=10_000)
    cluster.submit("wide", cpu_milli=WHOLE, expected_runtime_s=100)
    (victim,) = only(cluster).victims
    assert victim.to == "w2"


def test_some_are_stopped_and_others_moved(cluster: Cluster) -> None:
    govern(cluster, SRSF, preemption={"strategy": "priority"})
    cluster.join("w1", credit=100, cpus=8)
    cluster.submit("short", cpu_milli=2000, expected_runtime_s=10)
    cluster.run(cluster.current("short"))
    cluster.submit("long", cpu_milli=6000, expected_runtime_s=10_000)
    cluster.run(cluster.current("long"))
    cluster.join("w2", credit=100, cpus=3)
    cluster.submit("wide", cpu_milli=WHOLE, expected_runtime_s=100)
    receipt = only(cluster)
    assert {victim.job_id: victim.to for victim in receipt.victims} == {"short": "w2", "long": ""}
    assert receipt.rule == "srsf"
    for victim in receipt.victims:
        cluster.end(victim.uid, "preempted")
    assert cluster.current("wide")
    assert cluster.current("short")
    assert not cluster.current("long")


def test_a_card_is_cleared_on_the_same_worker(cluster: Cluster) -> None:
    govern(cluster)
    cluster.join("w1", credit=100, gpus=2)
    for name in ("a", "b"):
        cluster.submit(name, gpu_count=1, gpu_milli=600)
        cluster.run(cluster.current(name))
    cluster.end(cluster.current("b"))
    cluster.submit("c", gpu_count=1, gpu_milli=300)
    cluster.run(cluster.current("c"))
    cluster.submit("d", gpu_count=1, gpu_milli=500)
    cluster.run(cluster.current("d"))
    # One card has 600 and 300, the other 500: nothing can go anywhere.
    cluster.submit("whole", gpu_count=1)
    assert stopping(cluster) == []
    uid = cluster.current("c")
    cluster.end(cluster.current("a"))
    cluster.advance(6)  # it has looked in vain, and looks again a while after something has changed
    assert stopping(cluster) == ["c"]
    cluster.end(uid, "preempted")
    whole, moved = cluster.attempt(cluster.current("whole")), cluster.attempt(cluster.current("c"))
    assert whole.devices != moved.devices == cluster.attempt(cluster.current("d")).devices


def exchanged(cluster: Cluster) -> None:
    """A card lies idle where cores are short; elsewhere cores do, and a task with as many cards needs few of them."""
    govern(cluster)
    cluster.join("w1", credit=100, cpus=8, gpus=2, labels={"zone": "a"})
    cluster.submit("heavy", gpu_count=1, cpu_milli=6000)
    cluster.run(cluster.current("heavy"))
    cluster.join("w2", credit=100, cpus=8, gpus=1)
    cluster.submit("light", gpu_count=1, cpu_milli=1000)
    cluster.run(cluster.current("light"))
    cluster.submit("last", gpu_count=1, cpu_milli=5000, require=["zone=a"])


def test_two_exchange_their_places(cluster: Cluster) -> None:
    exchanged(cluster)
    receipt = only(cluster)
    assert {victim.job_id: victim.to for victim in receipt.victims} == {"heavy": "w2", "light": "w1"}
    for victim in receipt.victims:
        cluster.end(victim.uid, "preempted")
    assert cluster.attempt(cluster.current("heavy")).worker == "w2"
    assert cluster.attempt(cluster.current("light")).worker == "w1"
    assert cluster.attempt(cluster.current("last")).worker == "w1"


def test_places_that_are_exchanged_are_kept_until_both_have_gone(cluster: Cluster) -> None:
    exchanged(cluster)
    heavy, light = cluster.current("heavy"), cluster.current("light")
    cluster.submit("thief", cpu_milli=3000)
    cluster.end(heavy, "preempted")
    assert not cluster.current("heavy")
    assert not cluster.current("thief")
    cluster.end(light, "preempted")
    assert {cluster.attempt(cluster.current(name)).worker for name in ("light", "last")} == {"w1"}
    assert cluster.attempt(cluster.current("heavy")).worker == "w2"
    assert not cluster.current("thief")


def test_a_pace_that_would_hold_it_up_keeps_it_where_it_is(cluster: Cluster) -> None:
    paces = Pacing(starts=(Pace(queue="default", per_minute=1, burst=1),))
    govern(cluster)
    fill(cluster, "a", "b")
    govern(cluster, pacing=paces)
    cluster.submit("wide", cpu_milli=WHOLE)
    cluster.advance(90)
    assert stopping(cluster) == []


def test_a_full_quota_does_not_hold_it_up(cluster: Cluster) -> None:
    quotas = (Quota(user="ann", gpus=1),)
    govern(cluster, quotas=quotas)
    for name in ("w1", "w2"):
        cluster.join(name, credit=100, gpus=1)
    cluster.submit("a", gpu_count=1, gpu_milli=400)
    cluster.submit("b", user="bob", gpu_count=1, gpu_milli=400)
    cluster.submit("c", gpu_count=1, gpu_milli=200)
    for name in ("a", "b", "c"):
        cluster.run(cluster.current(name))
    cluster.submit("whole", user="bob", gpu_count=1)
    receipt = only(cluster)
    for victim in receipt.victims:
        cluster.end(victim.uid, "preempted")
    assert cluster.current("whole")
    assert all(cluster.current(victim.job_id) for victim in receipt.victims)


def test_whoever_is_moved_does_not_look_for_victims(cluster: Cluster) -> None:
    bands = Queue(order="priority", ageing_s=0, protect_after_s=0)
    govern(cluster, bands, preemption={"strategy": "priority"})
    first, _ = fill(cluster, "a", "b", priority=5)
    cluster.submit("wide", cpu_milli=WHOLE, priority=5)
    assert stopping(cluster) == ["a"]
    cluster.end(first, "preempted")
    assert len(receipts(cluster.state)) == 1


def test_a_move_is_found_again_after_a_restart(cluster: Cluster) -> None:
    govern(cluster)
    fill(cluster, "a", "b")
    cluster.submit("wide", cpu_milli=WHOLE)
    before = dict(cluster.state.moves)
    cluster.state.moves.clear()
    recall(cluster.state)
    assert cluster.state.moves == before != {}


def test_why_says_where_it_is_moved_and_for_what(cluster: Cluster) -> None:
    govern(cluster)
    fill(cluster, "a", "b")
    cluster.submit("wide", cpu_milli=WHOLE)
    reason = explain(cluster.state, cluster.job("a"))
    assert reason.summary == "a is moved to w2 to make room for other work, preemption p1"
    assert [(blocker.kind, blocker.who) for blocker in reason.blockers] == [("moved", "wide")]
    assert "(1 moved to where there is room)" in explain(cluster.state, cluster.job("wide")).summary
