"""What tasks say of themselves: progress is kept in memory, saves decide how much of the time limit is left."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster, only

from dray.core.lifecycle.holding.receipts import lost_ms
from dray.core.lifecycle.state.effects import Assign, Note
from dray.core.lifecycle.state.events import AttemptSaved, AttemptsLost, Progressed
from dray.core.lifecycle.state.timings import Rules
from dray.core.model.records.records import JobState, Phase
from dray.core.model.records.worker import Progress

LIMIT_MS = 600_000


@pytest.fixture
def uid(cluster: Cluster) -> str:
    """The first attempt of a job with a limit of ten minutes, running on w1."""
    cluster.join("w1", credit=1)
    cluster.submit(max_runtime_s=600, retries=2, losses=5)
    cluster.run(cluster.current())
    return cluster.current()


def save(cluster: Cluster, uid: str, step: int, age_ms: int = 0, worker: str = "w1") -> list[Any]:
    return cluster.turn(AttemptSaved(worker, "job", -1, uid, step, age_ms))


def lose(cluster: Cluster, uid: str) -> None:
    cluster.turn(AttemptsLost("w1", (uid,), "silent for 120 s"))


def run_again(cluster: Cluster) -> str:
    cluster.register("w1")
    cluster.poll("w1", 1)
    cluster.run(cluster.current())
    return cluster.current()


def test_a_save_covers_the_run_time_up_to_it(cluster: Cluster, uid: str) -> None:
    cluster.advance(100)
    effects = save(cluster, uid, 5)
    attempt = cluster.attempt(uid)
    assert (attempt.saved_step, attempt.saved_ms) == (5, 100_000)
    (note,) = [note for note in only(effects, Note) if note.type == "task_saved"]
    assert (note.task_id, note.data["step"]) == ("job", 5)
    cluster.advance(30)
    assert lost_ms(cluster.state, attempt) == 30_000


def test_a_save_that_took_its_time_on_the_way_counts_from_when_it_was_made(
    cluster: Cluster, uid: str
) -> None:
    cluster.advance(100)
    save(cluster, uid, 5, age_ms=40_000)
    assert cluster.attempt(uid).saved_ms == 60_000


def test_run_time_is_never_negative_and_never_shrinks(cluster: Cluster, uid: str) -> None:
    cluster.advance(100)
    save(cluster, uid, 1, age_ms=1 << 40)
    assert cluster.attempt(uid).saved_ms == 1, "0 would mean that nothing was saved"
    save(cluster, uid, 2)
    save(cluster, uid, 3, age_ms=50_000)
    assert (cluster.attempt(uid).saved_step, cluster.attempt(uid).saved_ms) == (3, 100_000)


@pytest.mark.parametrize("step", [5, 4, 0])
def test_an_older_save_changes_nothing(cluster: Cluster, uid: str, step: int) -> None:
    cluster.advance(10)
    save(cluster, uid, 5)
    cluster.advance(10)
    assert save(cluster, uid, step) == []
    assert (cluster.attempt(uid).saved_step, cluster.attempt(uid).saved_ms) == (5, 10_000)


def test_a_first_save_may_be_of_step_0(cluster: Cluster, uid: str) -> None:
    cluster.advance(10)
    save(cluster, uid, 0)
    assert cluster.attempt(uid).saved_ms == 10_000


def test_nobody_speaks_for_anothers_attempt(cluster: Cluster, uid: str) -> None:
    cluster.join("w2")
    cluster.advance(10)
    save(cluster, uid, 5, worker="w2")
    cluster.turn(Progressed("w2", uid, step=3))
    assert cluster.attempt(uid).saved_ms == 0
    assert cluster.state.progress == {}


def test_what_has_not_started_or_has_ended_saves_nothing(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit(retries=1)
    uid = cluster.current()
    cluster.advance(5)
    save(cluster, uid, 5)
    assert cluster.attempt(uid).saved_ms == 0
    assert lost_ms(cluster.state, cluster.attempt(uid)) == 0
    cluster.run(uid)
    cluster.end(uid, "failed")
    save(cluster, uid, 5)
    assert cluster.attempt(uid).saved_ms == 0


# --- the budget -------------------------------------------------------------------------------------------------------


def test_after_a_loss_the_limit_is_less_by_what_was_saved(cluster: Cluster, uid: str) -> None:
    assert cluster.attempt(uid).limit_ms == LIMIT_MS
    cluster.advance(100)
    save(cluster, uid, 5)
    cluster.advance(50)
    lose(cluster, uid)
    second = run_again(cluster)
    assert cluster.attempt(second).limit_ms == LIMIT_MS - 100_000
    assert cluster.attempt(second).saved_ms == 0
    cluster.advance(30)
    save(cluster, second, 6)
    lose(cluster, second)
    assert cluster.attempt(run_again(cluster)).limit_ms == LIMIT_MS - 130_000


def test_after_a_preemption_too(cluster: Cluster, uid: str) -> None:
    cluster.advance(100)
    save(cluster, uid, 5)
    cluster.end(uid, "preempted")
    assert cluster.task().preemptions == 1
    assert cluster.attempt(run_again(cluster)).limit_ms == LIMIT_MS - 100_000


def test_what_was_not_saved_costs_nothing(cluster: Cluster, uid: str) -> None:
    cluster.advance(100)
    lose(cluster, uid)
    assert cluster.attempt(run_again(cluster)).limit_ms == LIMIT_MS


def test_a_retry_after_a_failure_gets_the_full_limit(cluster: Cluster, uid: str) -> None:
    cluster.advance(100)
    save(cluster, uid, 5)
    lose(cluster, uid)
    second = run_again(cluster)
    cluster.advance(100)
    save(cluster, second, 6)
    cluster.end(second, "failed")
    assert cluster.task().used_ms == 0
    assert cluster.attempt(run_again(cluster)).limit_ms == LIMIT_MS


def test_an_attempt_that_comes_back_is_not_counted_twice(cluster: Cluster, uid: str) -> None:
    cluster.advance(100)
    save(cluster, uid, 5)
    cluster.break_socket("w1")
    lose(cluster, uid)
    assert cluster.task().used_ms == 100_000
    cluster.register("w1", active=[cluster.active(uid)])
    assert (cluster.current(), cluster.task().used_ms) == (uid, 0)
    cluster.advance(20)
    save(cluster, uid, 6)
    lose(cluster, uid)
    assert cluster.attempt(run_again(cluster)).limit_ms == LIMIT_MS - cluster.attempt(uid).saved_ms


def test_a_limit_that_is_used_up_leaves_a_moment_and_no_less(cluster: Cluster, uid: str) -> None:
    cluster.advance(610)
    save(cluster, uid, 5)
    lose(cluster, uid)
    assert cluster.attempt(run_again(cluster)).limit_ms == 1000


@pytest.mark.parametrize(("said", "left_ms"), [("preempted", LIMIT_MS - 100_000), ("failed", LIMIT_MS)])
def test_a_gang_keeps_the_same_books(cluster: Cluster, said: str, left_ms: int) -> None:
    for name in ("w1", "w2"):
        cluster.join(name, credit=4)
    cluster.submit(node_count=2, max_runtime_s=600, retries=1)
    first, second = (cluster.current("job", index) for index in (0, 1))
    for uid in (first, second):
        cluster.accept(uid)
    for uid in (first, second):
        cluster.start(uid)
    cluster.advance(100)
    cluster.turn(AttemptSaved(cluster.attempt(first).worker, "job", 0, first, 1))
    cluster.end(second, said)
    cluster.end(first, "killed")
    again = [cluster.attempt(cluster.current("job", index)) for index in (0, 1)]
    assert [attempt.no for attempt in again] == [2, 2]
    assert [attempt.limit_ms for attempt in again] == [left_ms, LIMIT_MS], "only the first had saved"


def test_no_limit_stays_no_limit(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, service=1)
    cluster.submit(type="service")
    uid = cluster.current()
    cluster.run(uid)
    cluster.advance(10)
    save(cluster, uid, 1)
    lose(cluster, uid)
    assert cluster.attempt(run_again(cluster)).limit_ms == 0


# --- progress ---------------------------------------------------------------------------------------------------------


def test_progress_keeps_what_is_not_said_again(cluster: Cluster, uid: str) -> None:
    cluster.turn(Progressed("w1", uid, step=3, fraction=0.25, note="epoch 1"))
    cluster.turn(Progressed("w1", uid, fraction=0.5))
    at_ms = cluster.clock.at_ms
    assert cluster.state.progress[uid] == Progress(step=3, fraction=0.5, note="epoch 1", at_ms=at_ms)


def test_progress_is_no_fact_and_ends_with_its_attempt(cluster: Cluster, uid: str) -> None:
    facts = len(cluster.journal)
    cluster.turn(Progressed("w1", uid, step=3))
    assert len(cluster.journal) == facts
    cluster.end(uid)
    assert cluster.job().state is JobState.SUCCEEDED
    assert cluster.state.progress == {}
    cluster.turn(Progressed("w1", uid, step=4))
    assert cluster.state.progress == {}


def test_a_flood_is_left_unread_for_a_while() -> None:
    cluster = Cluster(Rules(progress_per_s=3))
    cluster.join("w1", credit=1)
    cluster.submit()
    uid = cluster.current()
    cluster.run(uid)
    for step in range(10):
        cluster.turn(Progressed("w1", uid, step=step))
    assert cluster.state.progress[uid].step == 2
    assert cluster.state.presence["w1"].flooding
    cluster.advance(1)
    cluster.turn(Progressed("w1", uid, step=11))
    assert cluster.state.progress[uid].step == 11


def test_a_stopping_attempt_may_still_save(cluster: Cluster, uid: str) -> None:
    cluster.advance(10)
    cluster.cancel("job")
    assert cluster.attempt(uid).phase is Phase.STOPPING
    cluster.advance(5)
    save(cluster, uid, 1)
    assert cluster.attempt(uid).saved_ms == 15_000
    assert only(cluster.end(uid, "killed"), Assign) == []
