"""Lanes are opened, fed and closed; calls end in frames, and those in trouble are queued again."""

from __future__ import annotations

from typing import TypeVar

import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.holding.lanes import finals, missing, outstanding
from dray.core.lifecycle.state.effects import Ack, Assign, CallsDone, Cancel, Effect, FeedCalls, Note
from dray.core.lifecycle.state.events import AttemptsLost, CallsEnded, CallsFed, CutDue, Feed, LanesClosed
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.state.timings import Rules
from dray.core.model.records.records import LANE, JobState, Phase
from dray.wire.messages.worker import LAST_TRY

E = TypeVar("E")


def only(effects: list[Effect], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.join("w1", credit=2, batch=2, cpus=2)
    return made


def test_each_slot_gets_a_lane_with_one_call_while_nobody_knows_how_long_they_take(cluster: Cluster) -> None:
    effects = cluster.map(count=10)
    first, second = cluster.lanes()
    assert (first.index, first.lane, cluster.calls(first.uid), cluster.calls(second.uid)) == (
        LANE,
        True,
        {0: 1},
        {1: 1},
    )
    assert [feed.indices for feed in only(effects, FeedCalls)] == [(0,), (1,)]
    assert (cluster.job().cursor, cluster.job().live, cluster.job().state) == (2, 2, JobState.PENDING)
    assert not cluster.state.tasks


def test_results_count_and_the_lane_is_fed_again_at_once(cluster: Cluster) -> None:
    cluster.map(count=4)
    lane = cluster.lanes()[0]
    effects = cluster.returns(lane.uid, [0], wall_us=200_000)
    assert cluster.calls(lane.uid) == {2: 1}
    assert [note.data for note in only(effects, Note) if note.type == "calls_ended"] == [{"succeeded": 1}]
    assert (lane.phase, lane.started, cluster.job().state) == (Phase.RUNNING, True, JobState.RUNNING)
    assert (cluster.job().succeeded, cluster.job().running) == (1, 1)
    assert not cluster.state.tasks


def test_short_calls_are_fed_ahead_and_long_ones_are_not(cluster: Cluster) -> None:
    cluster.map(count=1000)
    lane = cluster.lanes()[0]
    cluster.returns(lane.uid, [0], wall_us=1_000)
    assert len(cluster.calls(lane.uid)) == 6
    cluster.returns(lane.uid, list(cluster.calls(lane.uid)), wall_us=6 * 400_000)
    assert len(cluster.calls(lane.uid)) == 1


def test_the_last_calls_are_shared_between_the_lanes(cluster: Cluster) -> None:
    cluster.map(count=12)
    first, second = cluster.lanes()
    cluster.returns(first.uid, [0], wall_us=100)
    cluster.returns(second.uid, [1], wall_us=100)
    sizes = (len(cluster.calls(first.uid)), len(cluster.calls(second.uid)))
    assert sizes == (6, 3)


def test_a_job_ends_with_its_last_call_and_its_lanes_close(cluster: Cluster) -> None:
    cluster.map(count=3)
    while cluster.lanes():
        lane = cluster.lanes()[0]
        cluster.returns(lane.uid, cluster.calls(lane.uid))
    assert (cluster.job().state, cluster.job().succeeded) == (JobState.SUCCEEDED, 3)
    assert all(lane.phase is Phase.SUCCEEDED for lane in cluster.state.attempts.values())
    assert cluster.state.presence["w1"].credit == 2


def test_a_single_call_shares_its_id_with_its_job(cluster: Cluster) -> None:
    cluster.submit(command=[], function=b"f")
    (lane,) = cluster.lanes()
    assert (cluster.state.spell(lane), cluster.calls(lane.uid)) == ("job", {0: 1})
    cluster.returns(lane.uid, [0], "failed", c0=("raised", "ValueError: no"))
    assert (cluster.job().state, cluster.job().failed) == (JobState.FAILED, 1)


def test_results_that_are_not_outstanding_change_nothing(cluster: Cluster) -> None:
    cluster.map(count=10)
    lane = cluster.lanes()[0]
    assert outstanding(cluster.state, "w1", lane.uid, [0, 5, 0], [1, 1, 1]).places == [0]
    assert outstanding(cluster.state, "w1", lane.uid, [0], [2]).places == []
    assert not outstanding(cluster.state, "w2", lane.uid, [0], [1]).places
    assert not outstanding(cluster.state, "w1", "9-9", [0], [1]).places
    cluster.returns(lane.uid, [0])
    assert outstanding(cluster.state, "w1", lane.uid, [0], [1]).places == []


def test_a_failed_call_is_tried_again_within_its_retries(cluster: Cluster) -> None:
    cluster.map(count=2, retries=1)
    lane = cluster.lanes()[0]
    assert list(finals(cluster.state, lane.uid, (0,), "failed")) == []
    cluster.returns(lane.uid, [0], "failed", c0=("raised", "boom"))
    assert (cluster.task(index=0).failures, cluster.calls(lane.uid)) == (1, {0: 2})
    assert list(finals(cluster.state, lane.uid, (0,), "failed")) == [0]
    cluster.returns(lane.uid, [0], "failed", c0=("raised", "boom"))
    task = cluster.task(index=0)
    assert (task.state, task.exit_class, task.error, cluster.job().failed) == (
        JobState.FAILED,
        "raised",
        "boom",
        1,
    )


def test_a_returned_call_costs_nothing_and_a_lane_that_gives_back_gets_nothing_more(cluster: Cluster) -> None:
    cluster.map(count=40)
    first, second = cluster.lanes()
    cluster.returns(first.uid, [0], wall_us=1_000)
    held = list(cluster.calls(first.uid))
    cluster.returns(first.uid, held[1:], "returned")
    assert list(cluster.calls(first.uid)) == held[:1]
    assert cluster.task(index=held[1]).failures == cluster.task(index=held[1]).losses == 0
    cluster.returns(second.uid, list(cluster.calls(second.uid)), wall_us=4_000)
    assert set(held[1:]) & set(cluster.calls(second.uid)), "they go before the rest, into another lane"
    assert list(cluster.calls(first.uid)) == held[:1]
    cluster.returns(first.uid, held[:1], wall_us=90_000)
    assert len(cluster.calls(first.uid)) >= 1


def test_of_a_lost_lane_only_the_first_call_is_charged(cluster: Cluster) -> None:
    cluster.map(count=40)
    first = cluster.lanes()[0]
    cluster.returns(first.uid, [0], wall_us=1_000)
    held = list(cluster.calls(first.uid))
    cluster.turn(AttemptsLost("w1", (first.uid,), "silent"))
    assert cluster.attempt(first.uid).phase is Phase.LOST
    assert first.calls == {}
    assert [cluster.task(index=one).losses for one in held] == [1] + [0] * (len(held) - 1)
    assert cluster.job().requeued == len(held)
    # What it says afterwards is not heard.
    assert not outstanding(cluster.state, "w1", first.uid, held, [1] * len(held)).places


def test_a_lane_that_never_started_costs_nobody_anything(cluster: Cluster) -> None:
    cluster.map(count=2)
    first = cluster.lanes()[0]
    cluster.turn(AttemptsLost("w1", (first.uid,), "silent"))
    assert cluster.task(index=0).losses == 0
    assert cluster.task(index=0).queued


def test_a_call_lost_too_often_ends_so(cluster: Cluster) -> None:
    cluster.map(count=1, losses=1)
    effects: list[Effect] = []
    for number in (1, 2):
        (lane,) = cluster.lanes()
        effects = cluster.returns(lane.uid, [0], "lost")
        assert cluster.task(index=0).losses == number
    (done,) = only(effects, CallsDone)
    assert (done.indices, done.state, done.exit_class) == ((0,), "worker_failed", "lost")
    assert cluster.job().state is JobState.WORKER_FAILED


def test_what_may_start_once_only_is_not_fed_ahead_and_not_tried_again(cluster: Cluster) -> None:
    cluster.map(count=100, at_most_once=True)
    lane = cluster.lanes()[0]
    cluster.run(lane.uid)
    cluster.returns(lane.uid, [0], wall_us=10)
    assert len(cluster.calls(lane.uid)) == 1
    (running,) = cluster.calls(lane.uid)
    cluster.turn(AttemptsLost("w1", (lane.uid,), "silent"))
    assert cluster.task(index=running).state is JobState.WORKER_FAILED


def test_a_lane_that_is_not_accepted_is_revoked_and_its_calls_go_back() -> None:
    cluster = Cluster()
    cluster.join("w1", credit=1, batch=1)
    cluster.map(count=2)
    (lane,) = cluster.lanes()
    cluster.state.experience.calls["job"] = 100.0
    effects = cluster.advance(31)
    assert cluster.attempt(lane.uid).phase is Phase.REVOKED
    assert [cancel.reason for cancel in only(effects, Cancel)] == ["revoked"]
    assert Assign("w1", lane.uid) in effects
    assert cluster.task(index=0).attempts == 1
    assert cluster.task(index=0).losses == 0


def test_cancelling_a_job_ends_its_calls_at_once_and_holds_its_lanes_until_they_are_gone(
    cluster: Cluster,
) -> None:
    cluster.map(count=10)
    first, second = cluster.lanes()
    cluster.returns(first.uid, [0], wall_us=1_000)
    effects = cluster.cancel("job", grace_s=5)
    assert (cluster.job().state, cluster.job().killed, cluster.job().succeeded) == (JobState.KILLED, 9, 1)
    assert {(cancel.task_id, cancel.uid) for cancel in only(effects, Cancel)} == {
        ("job", first.uid),
        ("job", second.uid),
    }
    assert (first.phase, first.calls, cluster.held("w1")) == (Phase.STOPPING, {}, [first.uid, second.uid])
    told = sorted(index for done in only(effects, CallsDone) for index in done.indices)
    assert told == list(range(1, 7))
    assert [cluster.task(index=index).state for index in told] == [JobState.KILLED] * len(told)
    cluster.end(first.uid, "killed")
    cluster.end(second.uid, "killed")
    assert not cluster.held("w1")


def test_one_call_is_cancelled_and_its_lane_waits_for_it(cluster: Cluster) -> None:
    cluster.map(count=2)
    lane = cluster.lanes()[0]
    cluster.accept_all("w1")
    effects = cluster.cancel("job", 0, grace_s=0)
    (cancel,) = only(effects, Cancel)
    assert (cancel.task_id, cancel.uid, cancel.reason) == ("job/0", lane.uid, "user")
    assert (cluster.task(index=0).state, cluster.calls(lane.uid)) == (JobState.KILLED, {0: -1})
    effects = cluster.advance(31)
    assert [again.task_id for again in only(effects, Cancel)] == ["job/0"]
    sifted = outstanding(cluster.state, "w1", lane.uid, [0], [1])
    assert (list(sifted.places), sifted.gone) == ([], (0,))
    cluster.returns(lane.uid, [0], "succeeded")
    assert cluster.attempt(lane.uid).phase is Phase.SUCCEEDED
    assert (cluster.job().killed, cluster.job().succeeded) == (1, 0)


def test_the_late_end_of_an_earlier_try_does_not_free_a_cancelled_call(cluster: Cluster) -> None:
    cluster.map(count=1, retries=1)
    lane = cluster.lanes()[0]
    cluster.returns(lane.uid, [0], "failed")
    assert cluster.calls(lane.uid) == {0: 2}
    cluster.cancel("job", 0, grace_s=5)
    assert outstanding(cluster.state, "w1", lane.uid, [0], [1]).gone == ()
    assert outstanding(cluster.state, "w1", lane.uid, [0], [2]).gone == (0,)
    assert outstanding(cluster.state, "w1", lane.uid, [0], [LAST_TRY]).gone == (0,)


def test_a_waiting_call_is_cancelled_by_itself_and_passed_over(cluster: Cluster) -> None:
    cluster.map(count=8)
    effects = cluster.cancel("job", 4)
    assert [done.indices for done in only(effects, CallsDone)] == [(4,)]
    seen: list[int] = []
    while cluster.lanes():
        lane = cluster.lanes()[0]
        calls = list(cluster.calls(lane.uid))
        seen += calls
        cluster.returns(lane.uid, calls, wall_us=len(calls) * 100)
    assert sorted(seen) == [0, 1, 2, 3, 5, 6, 7]
    assert (cluster.job().succeeded, cluster.job().killed) == (7, 1)


def test_a_requeue_sends_the_calls_of_a_lane_back_uncharged(cluster: Cluster) -> None:
    cluster.map(count=2)
    lane = cluster.lanes()[0]
    cluster.run(lane.uid)
    cluster.ask_again("job", 0)
    assert cluster.attempt(lane.uid).phase is Phase.STOPPING
    cluster.returns(lane.uid, [0], "killed")
    assert cluster.task(index=0).attempts <= 2
    assert not cluster.task(index=0).state.final
    cluster.end(lane.uid, "killed")
    assert cluster.attempt(lane.uid).phase is Phase.KILLED
    assert cluster.task(index=0).losses == cluster.task(index=0).failures == 0


# --- registering again ------------------------------------------------------------------------------------------------


def test_after_a_reconnect_all_that_is_outstanding_is_sent_again(cluster: Cluster) -> None:
    cluster.map(count=2)
    first, second = cluster.lanes()
    cluster.run(first.uid)
    effects = cluster.register("w1", active=[cluster.active(first.uid)])
    assert {assign.uid for assign in only(effects, Assign)} == {first.uid, second.uid}
    (ack,) = [ack for ack in only(effects, Ack) if ack.re == "register"]
    assert ack.keep == (first.uid,)
    assert cluster.calls(first.uid) == {0: 1}
    assert cluster.calls(second.uid) == {1: 1}


def test_a_new_journal_loses_the_lanes(cluster: Cluster) -> None:
    cluster.map(count=2)
    first, second = cluster.lanes()
    cluster.run(first.uid)
    cluster.register("w1", journal_id="j2")
    assert {first.phase, second.phase} == {Phase.LOST}
    assert (cluster.task(index=0).losses, cluster.task(index=1).losses) == (1, 0)


def test_a_lane_that_was_given_up_is_stopped_when_its_worker_comes_back_with_it(cluster: Cluster) -> None:
    cluster.map(count=2)
    first = cluster.lanes()[0]
    cluster.run(first.uid)
    cluster.turn(AttemptsLost("w1", (first.uid,), "silent"))
    effects = cluster.register("w1", active=[cluster.active(first.uid)])
    assert first.uid in [cancel.uid for cancel in only(effects, Cancel)]


def test_a_silent_worker_may_come_back_with_its_lanes(cluster: Cluster) -> None:
    cluster.map(count=2)
    first = cluster.lanes()[0]
    cluster.run(first.uid)
    cluster.beating.clear()
    cluster.advance(60)
    assert cluster.attempt(first.uid).phase is Phase.UNKNOWN
    effects = cluster.register("w1")
    assert cluster.attempt(first.uid).phase is Phase.RUNNING
    assert Assign("w1", first.uid) in effects


def test_a_heartbeat_that_misses_a_lane_shows_a_lost_message(cluster: Cluster) -> None:
    cluster.map(count=2)
    first, second = cluster.lanes()
    cluster.run(first.uid)
    assert missing(cluster.state, "w1", [second.uid]) == []
    cluster.advance(3)
    assert missing(cluster.state, "w1", [second.uid]) == [first.uid]
    assert missing(cluster.state, "w1", [first.uid]) == []


def test_advice_that_no_longer_holds_is_dropped(cluster: Cluster) -> None:
    cluster.map(count=10)
    lane = cluster.lanes()[0]
    assert not cluster.fold(CallsFed((Feed(lane.uid, (5, 2)),)))
    assert not cluster.fold(CallsFed((Feed(lane.uid, (0, 1)),)))
    assert not cluster.fold(CallsFed((Feed(lane.uid, (2, 100)),)))
    assert not cluster.fold(CallsFed((Feed("9-9", (2, 1)),)))
    cluster.fold(LanesClosed((lane.uid,)))
    assert cluster.attempt(lane.uid).phase is Phase.ASSIGNED
    assert not cluster.fold(CutDue(lane.uid, 0))
    assert not cluster.fold(CallsEnded("w1", "9-9", (0,)))


# --- what is written is read back -------------------------------------------------------------------------------------


def test_the_facts_fold_to_the_same_state_again(cluster: Cluster) -> None:
    cluster.map(count=30, retries=1)
    for number in range(4):
        lane = cluster.lanes()[number % 2]
        calls = list(cluster.calls(lane.uid))
        cluster.returns(lane.uid, calls[:1], "failed" if number == 1 else "succeeded", wall_us=500)
        cluster.returns(lane.uid, calls[1:2], "returned")
    cluster.turn(AttemptsLost("w1", (cluster.lanes()[0].uid,), "silent"))
    again = State(Rules())
    for clock, fact in cluster.journal:
        apply(again, fact, clock)
    state = cluster.state
    assert (again.jobs, again.tasks, again.attempts) == (state.jobs, state.tasks, state.attempts)
