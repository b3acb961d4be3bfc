"""What would be better off elsewhere: who may be moved, how long he still runs, which places strategies propose."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.holding.moves import move_receipts
from dray.core.lifecycle.state.service_events import MovesDecided
from dray.core.lifecycle.state.state import Swing
from dray.core.model.policies.policy import Provider
from dray.core.model.policies.rebalancing import RebalancePolicy
from dray.core.model.records.ledger import Receipt
from dray.core.scheduling.rebalancing.proposals import COST, MONEY
from dray.core.scheduling.rebalancing.scene import Scene
from dray.core.scheduling.rebalancing.strategies import STRATEGIES
from dray.core.scheduling.rebalancing.watching import follow, slope_of
from dray.core.scheduling.rebalancing.worth import JUDGED, find_demotion, is_quiet, look_ahead

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


# --- whether it pays --------------------------------------------------------------------------------------------------


def hired(cluster: Cluster, count: int = 1, expected_runtime_s: float = 7200, **rules: Any) -> list[str]:
    """Work that pays, and as much room at home that came later; gives the uids."""
    cluster.rule(
        providers=PRICED,
        rebalance=RebalancePolicy(**{"mode": "on", "min_run_s": 60, "in_flight": 1, **rules}),
    )
    join(cluster, "hired", "cloud", gpus=count)
    uids = [run(cluster, f"train{n}", expected_runtime_s=expected_runtime_s) for n in range(count)]
    join(cluster, "own", "lab", gpus=count)
    return uids


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, ""),
        ({"expected_runtime_s": 0}, "nobody knows how long"),
        ({"expected_runtime_s": 800}, "not worth a restart"),
        ({"min_run_s": 3600}, "has run for less than 3600 s"),
        ({"quiet_hours": ("00:00-23:59",)}, "quiet hours"),
        ({"moves": 0}, "0 moves in 3600 s"),
        ({"per_user": 0}, "0 moves of ann's work"),
    ],
)
def test_a_move_that_does_not_pay_is_refused_with_the_reason(
    cluster: Cluster, given: dict[str, Any], reason: str
) -> None:
    hired(cluster, **given)
    cluster.rule(
        providers=PRICED,
        rebalance=RebalancePolicy(
            **{
                "mode": "advise",
                "min_run_s": 60,
                **{k: v for k, v in given.items() if k != "expected_runtime_s"},
            }
        ),
    )
    cluster.advance(600)
    (judged,) = look_ahead(cluster.state).judged
    assert reason in judged.refused
    assert bool(judged.refused) == bool(reason)


def test_work_that_is_mostly_unsaved_stays(cluster: Cluster) -> None:
    cluster.rule(providers={"cloud": Provider(price_per_hour=2), "lab": Provider(price_per_hour=1.9)})
    join(cluster, "hired", "cloud")
    run(cluster, "train", expected_runtime_s=7200)
    join(cluster, "own", "lab")
    cluster.advance(3000)
    (judged,) = look_ahead(cluster.state).judged
    assert "less than twice what it costs" in judged.refused


def test_it_moves_by_itself_only_where_there_is_much_to_gain_on_three_looks(cluster: Cluster) -> None:
    uids = hired(cluster)
    cluster.advance(119)
    assert cluster.attempt(uids[0]).cancel == ""
    cluster.advance(180)
    assert cluster.attempt(uids[0]).cancel == "preempted"
    (receipt,) = move_receipts(cluster.state)
    assert (receipt.cause, receipt.by, receipt.unit) == ("cost", "", "money")


@pytest.mark.parametrize("mode", ["off", "advise"])
def test_nothing_moves_and_nothing_is_looked_at_unless_the_policy_says_on(
    cluster: Cluster, mode: str
) -> None:
    uids = hired(cluster, mode=mode)
    cluster.advance(1200)
    assert cluster.attempt(uids[0]).cancel == ""
    assert cluster.state.outlook.look_ms == 0


def test_what_swings_is_not_followed(cluster: Cluster) -> None:
    swing = Swing()
    for minute in range(40):
        swing = follow(swing, minute * 60_000, 0.5 if minute % 2 else 0.0, 0.1, 0.05)
        assert swing.streak < 3
    steady = Swing()
    for minute in range(3):
        steady = follow(steady, minute * 60_000, 0.5, 0.1, 0.05)
    assert steady.streak == 3
    # What shrinks so fast that nothing is left of it in half an hour is left alone.
    falling = Swing()
    for minute in range(10):
        falling = follow(falling, minute * 60_000, 0.5 - minute * 0.03, 0.1, 0.05)
    assert falling.streak == 0
    assert slope_of([(0, 1.0), (10, 1.0), (20, 9.0), (30, 1.0)]) == 0


def test_a_task_is_moved_once_within_the_window(cluster: Cluster) -> None:
    uids = hired(cluster)
    cluster.advance(300)
    cluster.end(uids[0], "preempted")
    cluster.run(cluster.current("train0"))
    cluster.advance(60)
    (receipt,) = move_receipts(cluster.state)
    assert receipt.status == "done"
    # The prices swing: now it would be cheaper where it was.
    cluster.rule(
        providers={"cloud": Provider(), "lab": Provider(price_per_gpu_hour={"A100": 9.0})},
        rebalance=RebalancePolicy(mode="on", min_run_s=60, in_flight=1),
    )
    cluster.state.attempts[cluster.current("train0")].rate = 9_000_000
    cluster.advance(1800)
    (judged,) = look_ahead(cluster.state).judged
    assert "was moved within" in judged.refused
    assert len(move_receipts(cluster.state)) == 1


def test_no_more_are_on_the_move_than_a_share_of_what_works(cluster: Cluster) -> None:
    hired(cluster, count=8, in_flight=0.5, per_user=20)
    cluster.advance(300)
    moved = [uid for uid, one in cluster.state.attempts.items() if one.cancel == "preempted"]
    # Both places of a move count: half of eight cards are two moves.
    assert len(moved) == 2


def test_a_strategy_that_wins_too_little_only_advises(cluster: Cluster) -> None:
    hired(cluster)
    for number in range(JUDGED):
        receipt = Receipt(
            f"p{number + 1}", 1, "job", 0, "ann", "default", 0, "cost", (), (), status="done", cause="cost",
            gain=100, won=40 if number else 0, unit="money", settled=True,
        )  # fmt: skip
        cluster.state.ledger["receipt", receipt.id] = receipt
    assert "won 39% of what was foretold" in find_demotion(cluster.state, "cost")
    assert find_demotion(cluster.state, "performance") == ""
    cluster.advance(600)
    (judged,) = look_ahead(cluster.state).judged
    assert "only advises" in judged.refused


def test_a_plan_is_named_by_what_it_would_move(cluster: Cluster) -> None:
    uids = hired(cluster, mode="advise")
    cluster.advance(600)
    first = look_ahead(cluster.state)
    assert first.etag == look_ahead(cluster.state).etag
    cluster.turn(*(MovesDecided(one.moves, one.cause) for one in first.chosen))
    assert look_ahead(cluster.state).etag != first.etag
    assert cluster.attempt(uids[0]).cancel == "preempted"


@pytest.mark.parametrize(
    ("span", "hour", "quiet"),
    [
        ("22:00-06:00", 23, True),
        ("22:00-06:00", 5, True),
        ("22:00-06:00", 12, False),
        ("09:00-17:30", 17, True),
    ],
)
def test_quiet_hours_may_go_over_midnight(span: str, hour: int, quiet: bool) -> None:
    assert is_quiet(RebalancePolicy(quiet_hours=(span,)), hour * 3_600_000) is quiet
