"""Receipts as they go on: what is said at each step, and what was lost in the end, closed or not."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.core.harness import Cluster, only

from dray.core.lifecycle.holding.receipts import receipts, receipts_about
from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import AttemptSaved
from dray.core.model.records.ledger import Receipt


def said(effects: Iterable[Effect], kind: str) -> Note:
    (note,) = [note for note in only(effects, Note) if note.type == kind]
    return note


def receipt(cluster: Cluster, number: int = 1) -> Receipt:
    record = cluster.state.ledger["receipt", f"p{number}"]
    assert isinstance(record, Receipt)
    return record


@pytest.fixture
def effects(cluster: Cluster) -> list[Effect]:
    """What leaves the hub when bob's job, a hundred seconds old, is stopped for ann's."""
    cluster.govern(queues={"default": {"order": "priority"}})
    cluster.join("w1", credit=4, batch=1)
    cluster.submit("low", "bob", priority=1)
    cluster.run(cluster.current("low"))
    cluster.advance(100)
    return cluster.submit("high", "ann", priority=5)


def test_each_side_hears_of_the_other_by_name_alone(cluster: Cluster, effects: list[Effect]) -> None:
    decided = said(effects, "preemption_decided")
    assert (decided.job_id, dict(decided.data)) == (
        "high",
        {"receipt": "p1", "rule": "priority", "workers": ["w1"], "victims": 1, "moved": 0, "lost_s": 100.0},
    )
    told = said(effects, "task_preempting")
    assert (told.job_id, told.worker, told.data["by"]) == ("low", "w1", "ann")
    assert (told.data["receipt"], told.data["grace_s"]) == ("p1", 30)


def test_the_start_of_the_preemptor_is_told(cluster: Cluster, effects: list[Effect]) -> None:
    cluster.advance(10)
    after = cluster.end(cluster.current("low"), "preempted")
    assert said(after, "preemption_served").data["receipt"] == "p1"
    found = receipt(cluster)
    assert (found.status, found.served_at_ms - found.at_ms) == ("served", 10_000)
    assert not cluster.state.receipts


def test_what_ran_and_was_lost_is_settled_when_the_victim_is_gone(
    cluster: Cluster, effects: list[Effect]
) -> None:
    uid = cluster.current("low")
    assert (receipt(cluster).victims[0].ran_ms, receipt(cluster).victims[0].lost_ms) == (100_000, 100_000)
    cluster.advance(10)
    cluster.turn(AttemptSaved("w1", "low", -1, uid, 7))
    cluster.advance(2)
    cluster.end(uid, "preempted")
    (victim,) = receipt(cluster).victims
    assert (victim.ran_ms, victim.lost_ms) == (112_000, 2_000)


def test_work_that_finished_within_its_grace_lost_nothing(cluster: Cluster, effects: list[Effect]) -> None:
    cluster.end(cluster.current("low"))
    assert receipt(cluster).victims[0].lost_ms == 0
    assert receipt(cluster).gone == (receipt(cluster).victims[0].uid,)


def test_a_receipt_that_was_rolled_back_still_hears_of_its_victims(
    cluster: Cluster, effects: list[Effect]
) -> None:
    uid = cluster.current("low")
    assert said(cluster.cancel("high"), "preemption_rolled_back").job_id == "high"
    cluster.advance(5)
    cluster.end(uid, "preempted")
    found = receipt(cluster)
    assert (found.status, found.gone, found.victims[0].ran_ms) == ("rolled_back", (uid,), 105_000)
    # Nobody else wanted the room: the victim has it again.
    assert cluster.current("low") not in ("", uid)


def test_a_job_finds_its_receipts_on_both_sides(cluster: Cluster, effects: list[Effect]) -> None:
    cluster.submit("other", "bob", priority=1)
    assert [found.id for found in receipts_about(cluster.state, "high")] == ["p1"]
    assert [found.id for found in receipts_about(cluster.state, "low")] == ["p1"]
    assert receipts_about(cluster.state, "other") == []


def test_one_that_led_nowhere_lapses_and_another_is_tried(cluster: Cluster) -> None:
    """The first victim ignores all signals; there is somebody below on another machine."""
    cluster.govern(queues={"default": {"order": "priority"}})
    for worker, job in (("w1", "low"), ("w2", "else")):
        cluster.join(worker, credit=4, batch=1)
        cluster.submit(job, "bob", priority=1)
        cluster.run(cluster.current(job))
    cluster.advance(100)
    cluster.submit("high", "ann", priority=5)
    after = cluster.advance(100)
    assert said(after, "preemption_lapsed").data["receipt"] == "p1"
    assert [found.status for found in receipts(cluster.state)] == ["open", "lapsed"]
    stopped = [found.victims[0].job_id for found in receipts(cluster.state)]
    assert sorted(stopped) == ["else", "low"]


def test_the_newest_comes_first_however_many_there_are(cluster: Cluster) -> None:
    for number in range(1, 12):
        found = Receipt(f"p{number}", 0, "j", 0, "ann", "default", 1, "priority", (), ())
        cluster.state.enter("receipt", found.id, found)
    assert [found.id for found in receipts(cluster.state)][:3] == ["p11", "p10", "p9"]


def test_a_gang_is_counted_whole_and_once(cluster: Cluster) -> None:
    cluster.govern(queues={"default": {"order": "priority"}})
    for worker in ("w1", "w2"):
        cluster.join(worker, credit=4, batch=1)
    cluster.submit("gang", "bob", priority=1, node_count=2)
    for index in (0, 1):
        cluster.accept(cluster.current("gang", index))
    for index in (0, 1):
        cluster.start(cluster.current("gang", index))
    cluster.advance(100)
    effects = cluster.submit("high", "ann", priority=5, node_count=2)
    assert [victim.members for victim in receipt(cluster).victims] == [2, 0]
    assert said(effects, "preemption_decided").data["victims"] == 2
    assert said(effects, "preemption_decided").data["lost_s"] == 200
    cluster.advance(10)
    for index in (0, 1):
        cluster.end(cluster.current("gang", index), "preempted")
    assert sum(victim.lost_ms for victim in receipt(cluster).victims) == 220_000
    assert cluster.task("gang", 0).ahead
