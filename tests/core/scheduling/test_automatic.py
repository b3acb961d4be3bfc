"""`strategy: auto`: each rule of its table applies where it should, and no choice is changed in a hurry."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.happenings.policy import CHOICE
from dray.core.lifecycle.state.effects import Note
from dray.core.lifecycle.state.pass_events import SolverTold
from dray.core.model.records.ledger import ChoiceRecord
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.choosing.automatic import find_rule, placement_of
from dray.core.scheduling.choosing.signs import Signs, read_signs
from dray.core.scheduling.placement.placer import Foresighted, Greedy, make_placer

MINUTE_S = 60
ALIKE = Signs(kinds=1, cards=1, fine=0.0, known=0.0)


def choice(cluster: Cluster) -> ChoiceRecord:
    record = cluster.state.ledger[CHOICE]
    assert isinstance(record, ChoiceRecord)
    return record


@pytest.mark.parametrize(
    ("signs", "rule", "strategy", "word"),
    [
        (ALIKE, 1, "greedy", "one kind of worker"),
        (ALIKE._replace(new=True), 1, "greedy", "one kind of worker"),
        (ALIKE._replace(fine=0.3), 2, "foresight", "30% of card work shares cards"),
        (ALIKE._replace(fine=0.04, kinds=2), 0, "greedy", "no other rule"),
        (ALIKE._replace(kinds=2, new=True), 0, "greedy", "no other rule"),
        (ALIKE._replace(kinds=2, cards=2, new=True), 2, "foresight", "nobody knows yet"),
        (ALIKE._replace(kinds=3, cards=3, known=0.5), 3, "greedy", "3 kinds of card"),
        (ALIKE._replace(kinds=3, cards=3, known=0.49), 0, "greedy", "no other rule"),
        (ALIKE._replace(kinds=2, waiting=50, slack=1.4), 4, "min_cost", "placed together"),
        (ALIKE._replace(kinds=2, waiting=50, slack=1.5), 0, "greedy", "no other rule"),
        (ALIKE._replace(kinds=2, waiting=49), 0, "greedy", "no other rule"),
        (ALIKE._replace(kinds=3, cards=3, known=0.9, fine=1.0), 2, "foresight", "names models"),
    ],
)
def test_the_first_rule_that_applies_has_it(signs: Signs, rule: int, strategy: str, word: str) -> None:
    found, why = find_rule(signs)
    assert (found.number, found.strategy) == (rule, strategy)
    assert word in why


@pytest.fixture
def shared(cluster: Cluster) -> Cluster:
    """Two workers of eight cards each."""
    cluster.rule(placement={"strategy": "auto"})
    for name in ("w1", "w2"):
        cluster.join(name, credit=1 << 20, gpus=8, gpu_type="A100", cpus=64, batch=32)
    return cluster


def look(cluster: Cluster, job: str, **spec: Any) -> None:
    """Something is placed, so that strategies are weighed, and runs."""
    cluster.submit(job, max_runtime_s=1_000_000, **spec)
    for uid in list(cluster.state.live_of.get(job, ())):
        cluster.run(uid)


def join_other(cluster: Cluster) -> None:
    """One of another kind: they are no longer alike."""
    cluster.join("other", credit=1 << 20, gpus=1, gpu_type="T4")


def test_another_strategy_takes_over_after_ten_minutes_and_stays_for_an_hour(shared: Cluster) -> None:
    look(shared, "first", gpu_count=1)
    assert (choice(shared).rule, choice(shared).times) == (1, 0)
    assert isinstance(make_placer(shared.state, Rooms(shared.state)), Greedy)
    for number in range(7):
        look(shared, f"half-{number}", gpu_count=1, gpu_milli=500)
    signs = read_signs(shared.state)
    assert signs is not None
    assert signs.fine > 0.05
    shared.beating = {"w1": None, "w2": None}
    shared.advance(2 * MINUTE_S)
    look(shared, "soon")
    shared.advance(8 * MINUTE_S)
    look(shared, "not yet".replace(" ", "-"))
    assert choice(shared).rule == 1, "it has not applied for ten minutes"
    shared.advance(3 * MINUTE_S)
    said = shared.submit("now")
    shared.run(shared.current("now"))
    assert (choice(shared).rule, choice(shared).before, choice(shared).times) == (2, "greedy", 1)
    assert any(isinstance(each, Note) and each.type == "placement_chosen" for each in said)
    assert isinstance(make_placer(shared.state, Rooms(shared.state)), Foresighted)


def test_no_choice_is_changed_twice_within_an_hour(shared: Cluster) -> None:
    look(shared, "first", gpu_count=1)
    shared.beating = {"w1": None, "w2": None}
    join_other(shared)
    for number in range(3):
        shared.advance(6 * MINUTE_S)
        look(shared, f"look-{number}")
    assert (choice(shared).rule, choice(shared).times) == (0, 1)
    shared.leave("other")
    for number in range(4):
        shared.advance(19 * MINUTE_S)
        look(shared, f"later-{number}")
        assert choice(shared).rule == (0 if number < 3 else 1), "at most once an hour"


def test_a_condition_that_comes_and_goes_changes_nothing(shared: Cluster) -> None:
    look(shared, "first", gpu_count=1)
    shared.beating = {"w1": None, "w2": None}
    for number in range(12):
        join_other(shared)
        shared.advance(5 * MINUTE_S)
        look(shared, f"look-{number}")
        shared.leave("other")
        shared.advance(2 * MINUTE_S)
        look(shared, f"again-{number}")
    assert choice(shared).times == 0


def test_of_several_kinds_of_card_each_new_choice_begins_with_foresight(cluster: Cluster) -> None:
    """What is strewn over idle workers at first is there when they fill up."""
    cluster.rule(placement={"strategy": "auto"})
    cluster.join("k80", credit=100, gpus=8, gpu_type="K80", cpus=64, batch=32)
    cluster.join("a100", credit=100, gpus=8, gpu_type="A100", cpus=64, batch=32)
    cluster.submit("first", gpu_count=1)
    assert (choice(cluster).rule, choice(cluster).strategy) == (2, "foresight")
    signs = read_signs(cluster.state)
    assert signs is not None
    assert not signs.new, "once there is a choice it is changed by what is known alone"


def test_a_policy_that_names_its_strategy_ends_the_choice(shared: Cluster) -> None:
    look(shared, "first", gpu_count=1)
    assert choice(shared).strategy == placement_of(shared.state).strategy == "greedy"
    shared.rule(placement={"strategy": "spread"})
    assert CHOICE not in shared.state.ledger
    assert placement_of(shared.state).strategy == "spread"
    look(shared, "second", gpu_count=1)
    assert CHOICE not in shared.state.ledger


def test_speed_counts_where_it_is_known(cluster: Cluster) -> None:
    cluster.rule(placement={"strategy": "auto"})
    cluster.join("k80", credit=1 << 20, gpus=8, gpu_type="K80", labels={"host": "k80"}, cpus=64, batch=32)
    cluster.join("a100", credit=1 << 20, gpus=8, gpu_type="A100", labels={"host": "a100"}, cpus=64, batch=32)
    cluster.beating = {"k80": None, "a100": None}
    for host, wall_s in (("k80", 5000), ("a100", 1000)):
        cluster.submit(host, name="train", gpu_count=1, require=[f"host={host}"])
        cluster.run(cluster.current(host))
        cluster.end(cluster.current(host), wall_s=wall_s)
    assert choice(cluster).rule == 2
    cluster.submit("many", name="train", gpu_count=1, array={"last": 39})
    for number in range(12):
        cluster.advance(2 * MINUTE_S)
        cluster.submit(f"look-{number}")
    assert choice(cluster).rule == 3
    weights = placement_of(cluster.state).weights
    assert weights.performance > 0
    assert weights.leftover == cluster.state.policy.placement.weights.leftover


def test_many_who_care_where_they_go_are_placed_together_where_somebody_can(cluster: Cluster) -> None:
    cluster.rule(placement={"strategy": "auto"})
    cluster.join("w1", credit=1 << 20, cpus=64, batch=64, labels={"provider": "lab"})
    cluster.join("w2", credit=1 << 20, cpus=64, batch=64, labels={"provider": "hired"})
    cluster.submit("many", array={"last": 299}, cpu_milli=1000, prefer=["provider=lab"])
    alone = read_signs(cluster.state)
    cluster.turn(SolverTold(True))
    signs = read_signs(cluster.state)
    assert alone is not None
    assert signs is not None
    assert (alone.waiting, signs.waiting) == (0, 300 - 128)
    assert signs.slack == 0
    assert find_rule(signs)[0].strategy == "min_cost"
