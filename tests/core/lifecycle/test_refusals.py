"""A worker that does not start what it is given costs nobody anything, and gets less and less to refuse."""

from __future__ import annotations

from itertools import pairwise

from tests.core.harness import Cluster, assigned

from dray.core.lifecycle.state.effects import Alarm
from dray.core.lifecycle.state.events import CreditSet
from dray.core.model.capability import Slots

FULL = "no space left on the worker"


def refuse(cluster: Cluster, uid: str) -> None:
    cluster.end(uid, "failed", exit_class="lost_unstarted", error=FULL)


def test_what_one_worker_refuses_goes_to_the_other_and_is_free(cluster: Cluster) -> None:
    cluster.join("bad", credit=1 << 20)
    cluster.submit("job", retries=0, losses=0)
    cluster.join("good", credit=1 << 20)
    refuse(cluster, cluster.current("job"))
    attempt, task = cluster.attempt(cluster.current("job")), cluster.task("job")
    assert attempt.worker == "good"
    assert (task.failures, task.losses, task.attempts) == (0, 0, 2)


def test_one_worker_alone_is_tried_ever_more_rarely(cluster: Cluster) -> None:
    cluster.join("bad", credit=1 << 20)
    cluster.submit("job", losses=0)
    tried = [cluster.now_ms]
    refuse(cluster, cluster.current("job"))
    for _ in range(600):
        cluster.turn(*cluster.sign_of_life("bad"))
        if assigned(cluster.advance(1)):
            tried.append(cluster.now_ms)
            refuse(cluster, cluster.current("job"))
    gaps = [(later - earlier) // 1000 for earlier, later in pairwise(tried)]
    assert gaps[:7] == [1, 2, 4, 8, 16, 32, 60]
    assert len(tried) <= 20, f"tried {len(tried)} times in ten minutes"
    assert (cluster.task().failures, cluster.task().losses) == (0, 0)


def test_all_that_comes_back_at_once_is_one_refusal(cluster: Cluster) -> None:
    cluster.join("bad", credit=1 << 20)
    cluster.submit("array", array={"first": 0, "last": 3})
    for uid in cluster.held("bad"):
        refuse(cluster, uid)
    assert cluster.state.presence["bad"].refusals == 1
    assert len(assigned(cluster.advance(1))) == 4, "a second later it is tried again"


def test_a_start_makes_up_for_what_was_refused(cluster: Cluster) -> None:
    cluster.join("w1", credit=1 << 20)
    cluster.submit("job", losses=0)
    for seconds in (1, 2, 4):
        refuse(cluster, cluster.current("job"))
        cluster.advance(seconds)
    cluster.run(cluster.current("job"))
    assert cluster.state.presence["w1"].refusals == 0
    cluster.submit("next")
    refuse(cluster, cluster.current("next"))
    assert assigned(cluster.advance(1)), "it begins again with the shortest pause"


def test_why_names_a_worker_that_is_paused_and_one_that_is_not_ready(cluster: Cluster) -> None:
    cluster.join("bad", credit=1 << 20)
    cluster.submit("job")
    refuse(cluster, cluster.current("job"))
    assert f"not ready: did not start what it was given the last time ({FULL})" in cluster.summary("job")
    effects = cluster.turn(CreditSet("bad", 0, Slots(4, 0, 1, 0), FULL))
    assert [effect.text for effect in effects if isinstance(effect, Alarm)] == [
        f"worker bad is not ready: {FULL}"
    ]
    assert cluster.summary("job") == f"cannot start now: not ready: {FULL} (1 worker)"
    cluster.advance(60)
    assert not cluster.current("job"), "its own word holds for as long as it says so"
    assert assigned(cluster.turn(CreditSet("bad", 1, Slots(4, 0, 1, 0)))), "and no longer"


def test_a_worker_that_is_not_ready_feeds_no_lane(cluster: Cluster) -> None:
    cluster.join("w1", credit=1 << 20)
    cluster.map("job", count=50)
    lane = cluster.lanes("job")[0]
    cluster.turn(CreditSet("w1", 0, Slots(4, 0, 1, 0), FULL))
    before = sum(len(cluster.calls(one.uid)) for one in cluster.lanes("job"))
    cluster.returns(lane.uid, list(cluster.calls(lane.uid))[:1])
    assert sum(len(cluster.calls(one.uid)) for one in cluster.lanes("job")) == before - 1
    cluster.turn(CreditSet("w1", 1 << 20, Slots(4, 0, 1, 0)))
    assert sum(len(cluster.calls(one.uid)) for one in cluster.lanes("job")) >= before
