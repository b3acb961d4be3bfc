"""Who may have a reservation: one of each queue, and while somebody holds far too much one of each other user."""

from __future__ import annotations

import pytest
from tests.core.harness import Cluster

from dray.core.model.policies.policy import FairShare, Queue
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.explain.holders import find_start
from dray.core.scheduling.turns.reservation_rights import find_pressing

FAIR = Queue(order="fair_share", protect_after_s=10)


def press(cluster: Cluster, *, order: str = "fair_share", quiet: tuple[str, ...] = ("ann", "bob")) -> None:
    """`loud` holds six of eight cores of each of three workers; the others want a whole worker each."""
    cluster.rule(queues={"default": Queue(order=order, protect_after_s=10)})
    for number in range(3):
        cluster.join(f"w{number}", credit=1000, cpus=8)
        cluster.submit(f"loud{number}", user="loud", cpu_milli=6000, max_runtime_s=100 * (number + 1))
        cluster.run(cluster.current(f"loud{number}"))
    for user in quiet:
        cluster.submit(f"{user}-big", user=user, cpu_milli=8000, max_runtime_s=60)


def promised(cluster: Cluster) -> dict[str, str]:
    return {slot: kept.job_id for slot, kept in cluster.state.reservations.items()}


def test_each_of_the_others_is_promised_a_start_of_his_own(cluster: Cluster) -> None:
    press(cluster)
    cluster.advance(10)
    assert promised(cluster) == {"default ann": "ann-big", "default bob": "bob-big"}
    rows = [spot[1] for kept in cluster.state.reservations.values() for spot in kept.spots]
    assert len(set(rows)) == 2


def test_a_user_has_one_at_a_time(cluster: Cluster) -> None:
    press(cluster)
    cluster.submit("ann-wide", user="ann", cpu_milli=7000, max_runtime_s=60)
    cluster.advance(30)
    assert promised(cluster) == {"default ann": "ann-big", "default bob": "bob-big"}


def test_who_presses_has_none_while_the_others_need_theirs(cluster: Cluster) -> None:
    press(cluster)
    cluster.submit("loud-big", user="loud", cpu_milli=8000, max_runtime_s=60)
    cluster.advance(60)
    assert "loud-big" not in promised(cluster).values()
    cluster.cancel("ann-big")
    cluster.cancel("bob-big")
    cluster.advance(31)
    assert promised(cluster) == {"default": "loud-big"}


@pytest.mark.parametrize("order", ["fifo", "priority"])
def test_other_orders_have_one_for_all(cluster: Cluster, order: str) -> None:
    press(cluster, order=order)
    cluster.advance(30)
    assert promised(cluster) == {"default": "ann-big"}


def test_of_two_users_nobody_presses(cluster: Cluster) -> None:
    press(cluster, quiet=("ann",))
    cluster.advance(10)
    assert find_pressing(cluster.state, "default") == set()
    assert promised(cluster) == {"default": "ann-big"}


def test_a_share_goes_by_weight(cluster: Cluster) -> None:
    press(cluster)
    cluster.rule(queues={"default": FAIR}, fair_share=FairShare(weights={"loud": 8}))
    cluster.advance(60)
    assert find_pressing(cluster.state, "default") == set()
    assert list(promised(cluster)) == ["default"]


def test_what_outlives_any_of_the_starts_stays_out(cluster: Cluster) -> None:
    press(cluster, quiet=("ann", "bob", "cid"))
    cluster.advance(10)
    assert len(promised(cluster)) == 3
    cluster.submit("long", user="loud", cpu_milli=1000, max_runtime_s=1000)
    cluster.submit("short", user="loud", cpu_milli=1000, max_runtime_s=80)
    assert not cluster.current("long")
    assert cluster.current("short")


def test_an_own_promise_is_told(cluster: Cluster) -> None:
    press(cluster)
    cluster.advance(10)
    state = cluster.state
    start = find_start(state, state.jobs["bob-big"], Rooms(state), ())
    assert start is not None
    assert start.reserved
    assert start.in_ms == 190_000


def test_a_promise_of_calmer_times_counts_as_the_users_own(cluster: Cluster) -> None:
    press(cluster, quiet=("ann",))
    cluster.advance(10)
    cluster.submit("ann-wide", user="ann", cpu_milli=7000, max_runtime_s=60)
    cluster.submit("bob-big", user="bob", cpu_milli=8000, max_runtime_s=60)
    cluster.advance(30)
    assert promised(cluster) == {"default": "ann-big", "default bob": "bob-big"}


def test_the_others_are_protected_sooner_while_somebody_presses(cluster: Cluster) -> None:
    cluster.rule(queues={"default": Queue(order="fair_share", protect_after_s=600)})
    for number in range(3):
        cluster.join(f"w{number}", credit=1000, cpus=8)
    for number, (user, cpu) in enumerate([*3 * [("loud", 6000)], ("ann", 1000), ("bob", 1000)]):
        cluster.submit(f"run{number}", user=user, cpu_milli=cpu, max_runtime_s=5000)
        cluster.run(cluster.current(f"run{number}"))
    cluster.submit("ann-big", user="ann", cpu_milli=8000, max_runtime_s=60)
    cluster.submit("loud-big", user="loud", cpu_milli=8000, max_runtime_s=60)
    cluster.advance(59)
    assert not promised(cluster)
    cluster.advance(1)
    assert promised(cluster) == {"default ann": "ann-big"}
    cluster.cancel("ann-big")
    cluster.advance(530)
    assert not promised(cluster)
    cluster.advance(31)
    assert promised(cluster) == {"default": "loud-big"}


def test_nobody_is_promised_twice_when_the_pressure_ends(cluster: Cluster) -> None:
    press(cluster)
    cluster.advance(10)
    cluster.cancel("bob-big")
    assert find_pressing(cluster.state, "default") == set()
    cluster.state.unprotected["ann-big"] = None  # as a look at its line leaves it while its slot is taken
    cluster.advance(1)
    assert promised(cluster) == {"default ann": "ann-big"}
