"""Short tasks of an array are given out behind those that run: they take their places over, and hold nothing before."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import AGENT, Cluster, assigned, cancels

from dray.core.lifecycle.recovery import load, wake_up
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.policy import PreemptionPolicy, Queue
from dray.core.model.records.records import Attempt, JobState, Phase

QUICK_S = 0.005
FEATURES = (*AGENT, "behind", "lease")


def begin(cluster: Cluster, slots: int = 1, tasks: int = 40, **spec: Any) -> None:
    """An array on a worker that knows how long its tasks take: as many as there are slots have ended."""
    cluster.join("w1", credit=1000, batch=slots, features=FEATURES)
    cluster.submit(array={"last": tasks - 1}, **spec)
    for uid in cluster.held("w1"):
        cluster.end(uid, wall_s=QUICK_S)


def row(cluster: Cluster, uid: str) -> list[str]:
    """An attempt and those behind it, in order."""
    found = [uid]
    while uid := cluster.state.followers.get(uid, ""):
        found.append(uid)
    return found


def live(cluster: Cluster) -> list[Attempt]:
    return [attempt for attempt in cluster.state.attempts.values() if attempt.phase.live]


def test_some_ms_of_work_stand_behind_each_place_and_hold_nothing(cluster: Cluster) -> None:
    begin(cluster, slots=2)
    held = cluster.held("w1")
    assert len(held) == cluster.job().live == 2
    assert [len(row(cluster, uid)) - 1 for uid in held] == [5, 5], "25 ms of work of 5 ms each"
    assert len(live(cluster)) == 12


def test_whoever_is_next_takes_the_place_over_and_the_row_is_filled_up(cluster: Cluster) -> None:
    begin(cluster)
    (lead,) = cluster.held("w1")
    standing = row(cluster, lead)
    sent = assigned(cluster.end(lead, wall_s=QUICK_S))
    assert cluster.held("w1") == [standing[1]]
    assert row(cluster, standing[1]) == [*standing[1:], *sent]
    assert len(sent) == 1, "one went, one came: no pass was needed"


@pytest.mark.parametrize("first", ["lost", "lost_unstarted"])
def test_a_row_that_comes_back_gets_nobody_more_behind_it(cluster: Cluster, first: str) -> None:
    """Whoever is sent after one that its worker no longer has comes back at once, and so would the next, for ever."""
    begin(cluster)
    standing = row(cluster, cluster.held("w1")[0])
    cluster.end(standing[0], "failed", exit_class=first)
    for uid in standing[1:-1]:
        assert row(cluster, uid) == standing[standing.index(uid) :]
        cluster.end(uid, "failed", exit_class="lost_unstarted")
    cluster.end(standing[-1], "failed", exit_class="lost_unstarted")
    cluster.advance(5)
    (lead,) = cluster.held("w1")
    assert lead not in standing, "the place ran empty, and a pass gave it out anew"


def test_all_of_them_run_in_the_end_one_after_the_other(cluster: Cluster) -> None:
    begin(cluster, tasks=30)
    while not cluster.job().state.final:
        assert len(cluster.held("w1")) == 1
        cluster.end(cluster.held("w1")[0], wall_s=QUICK_S)
    assert (cluster.job().state, cluster.job().succeeded) == (JobState.SUCCEEDED, 30)
    assert not cluster.state.followers
    assert not cluster.state.taken_over


def test_an_end_that_comes_before_that_of_the_one_ahead_frees_nothing(cluster: Cluster) -> None:
    begin(cluster)
    (lead,) = cluster.held("w1")
    first, second, *rest = row(cluster, lead)[1:]
    cluster.end(first, wall_s=QUICK_S)
    assert cluster.held("w1") == [lead]
    assert row(cluster, lead)[:2] == [lead, second]
    cluster.end(lead, wall_s=QUICK_S)
    assert cluster.held("w1") == [second]
    assert cluster.job().succeeded == 3
    assert rest


@pytest.mark.parametrize("slow_s", [0.026, 60.0])
def test_nobody_stands_behind_what_takes_long(cluster: Cluster, slow_s: float) -> None:
    cluster.join("w1", credit=1000, batch=1, features=FEATURES)
    cluster.submit(array={"last": 9})
    cluster.end(cluster.held("w1")[0], wall_s=slow_s)
    assert len(live(cluster)) == 1


@pytest.mark.parametrize("spec", [{"at_most_once": True}, {"overlap": "fenced"}])
def test_what_must_not_run_twice_waits_at_the_hub(cluster: Cluster, spec: dict[str, Any]) -> None:
    begin(cluster, **spec)
    assert len(live(cluster)) == 1


def test_a_worker_that_does_not_know_of_it_has_no_more_than_it_runs(cluster: Cluster) -> None:
    cluster.join("w1", credit=1000, batch=1)
    cluster.submit(array={"last": 9})
    cluster.end(cluster.held("w1")[0], wall_s=QUICK_S)
    assert len(live(cluster)) == 1


def test_where_starts_are_paced_each_waits_for_its_own(cluster: Cluster) -> None:
    cluster.govern(pacing={"starts": [{"user": "*", "per_minute": 60, "burst": 20}]})
    begin(cluster)
    assert len(live(cluster)) == 1


def test_a_place_that_others_wait_for_goes_round_for_a_while_only(cluster: Cluster) -> None:
    begin(cluster)
    cluster.submit("other", user="bob", priority=5)
    for _ in range(40):
        if cluster.current("other"):
            break
        cluster.advance(0.02)
        cluster.end(cluster.held("w1")[0], wall_s=QUICK_S)
    assert cluster.held("w1") == [cluster.current("other")]
    assert not cluster.state.followers


def test_what_is_given_back_waits_in_its_old_place_and_its_worker_is_not_paused(cluster: Cluster) -> None:
    begin(cluster)
    (lead,) = cluster.held("w1")
    for uid in row(cluster, lead)[1:]:
        cluster.end(uid, "failed", exit_class="lost_unstarted")
    assert cluster.job().requeued == 5
    assert not cluster.state.presence["w1"].paused
    assert (cluster.task(index=2).losses, cluster.task(index=2).failures) == (0, 0)
    cluster.join("w2", credit=1000, batch=1, features=FEATURES)
    assert cluster.task(index=2).current in cluster.held("w2")


def test_a_cancelled_one_leaves_no_gap(cluster: Cluster) -> None:
    begin(cluster)
    (lead,) = cluster.held("w1")
    first, second = row(cluster, lead)[1:3]
    assert cancels(cluster.cancel("job", cluster.attempt(first).index)) == [(first, "user")]
    cluster.end(first, "killed")
    assert row(cluster, lead)[:2] == [lead, second]


def test_the_whole_row_goes_when_its_place_is_taken_from_it(cluster: Cluster) -> None:
    bands = Queue(order="priority", ageing_s=0, protect_after_s=0)
    cluster.rule(queues={"default": bands}, preemption=PreemptionPolicy(min_run_s=0))
    begin(cluster, priority=1)
    (lead,) = cluster.held("w1")
    standing = row(cluster, lead)[1:]
    cluster.run(lead)
    asked = cancels(cluster.submit("urgent", priority=9))
    assert asked == [*((uid, "revoked") for uid in standing), (lead, "preempted")]
    cluster.end(lead, "preempted")
    assert cluster.held("w1") == [standing[0]], "it may have begun: its worker has not said what became of it"
    for uid in standing:
        cluster.end(uid, "killed")
    assert cluster.held("w1") == [cluster.current("urgent")]
    assert cluster.job().requeued == 1 + len(standing), "none of it was anybody's failure"


def test_a_worker_that_is_lost_loses_none_of_them_for_good(cluster: Cluster) -> None:
    begin(cluster)
    (lead,) = cluster.held("w1")
    standing = row(cluster, lead)[1:]
    cluster.run(lead)
    cluster.beating.clear()
    cluster.advance(125)
    assert not cluster.held("w1")
    assert not live(cluster)
    assert cluster.attempt(lead).phase is Phase.LOST
    assert {cluster.attempt(uid).phase for uid in standing} == {Phase.REVOKED}
    assert cluster.job().requeued == 1 + len(standing)


def test_a_worker_that_comes_back_is_sent_what_it_does_not_speak_of(cluster: Cluster) -> None:
    begin(cluster)
    (lead,) = cluster.held("w1")
    standing = row(cluster, lead)[1:]
    cluster.run(lead)
    assert sorted(assigned(cluster.register("w1", active=[cluster.active(lead)]))) == sorted(standing)
    assert row(cluster, lead) == [lead, *standing]


def test_a_lost_one_whose_place_went_on_does_not_come_back_beyond_the_cap_of_its_array(
    cluster: Cluster,
) -> None:
    cluster.join("w1", credit=1000, batch=2, features=FEATURES)
    cluster.submit(array={"last": 9, "limit": 1})
    cluster.end(cluster.held("w1")[0], wall_s=QUICK_S)
    (lead,) = cluster.held("w1")
    follower = row(cluster, lead)[1]
    cluster.run(lead)
    cluster.register("w1")
    assert (cluster.attempt(lead).phase, cluster.held("w1")) == (Phase.LOST, [follower])
    asked = cancels(cluster.register("w1", active=[cluster.active(lead)]))
    assert (lead, "superseded") in asked
    assert cluster.job().live == 1


def test_a_hub_that_comes_back_knows_who_stands_behind_whom(cluster: Cluster) -> None:
    begin(cluster)
    state, again = cluster.state, State()
    rows = (state.jobs.values(), state.tasks.values(), state.attempts.values(), state.workers.values())
    load(again, state.counters, rows)
    wake_up(again, cluster.clock)
    assert again.followers == state.followers
    assert again.held == state.held


def test_what_they_used_is_counted_from_when_they_had_the_place(cluster: Cluster) -> None:
    begin(cluster)
    (lead,) = cluster.held("w1")
    follower = row(cluster, lead)[1]
    cluster.advance(0.2)
    cluster.end(lead, wall_s=QUICK_S)
    assert cluster.attempt(follower).assigned_ms == cluster.now_ms
    assert cluster.attempt(follower).fed_ms == cluster.now_ms - 200
