"""What every store promises, asked of each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dray.core.model.capability import Capability
from dray.core.model.ids import attempt_number
from dray.core.model.records.records import JobState, Phase
from dray.core.model.records.worker import Worker
from dray.errors import BrokenInvariant, EpochLost
from dray.hub.store.base import (
    AuditRecord,
    JobFilter,
    KeyRow,
    PastQuery,
    Retention,
    Store,
    TokenRow,
    UseQuery,
    UseRow,
)

Open = Callable[[], Store]
KEEP_ALL = Retention(0, 10**9, 0, 0, 0)


@pytest.fixture
def store(open_store: Open, make: Any) -> Store:
    store = open_store()
    store.begin_epoch()
    store.commit(make.turn(1))
    return store


def ids(store: Store, **wanted: Any) -> list[str]:
    return [job.id for job in store.list_jobs(JobFilter(**wanted))]


def test_epochs_grow_over_openings_and_obey_the_floor(open_store: Open) -> None:
    assert open_store().begin_epoch() == 1
    second = open_store()
    assert second.begin_epoch() == second.epoch == 2
    assert second.raise_epoch(9) == second.epoch == 9
    assert second.raise_epoch(3) == 10
    assert open_store().begin_epoch() == 11


def test_a_hub_that_was_taken_over_can_write_nothing(open_store: Open, store: Store, make: Any) -> None:
    other = open_store()
    other.begin_epoch()
    writes: list[Callable[[], object]] = [
        lambda: store.commit(make.turn(2)),
        lambda: store.raise_epoch(store.epoch + 5),
        lambda: store.commit(make.turn(2, keys=[KeyRow("ana", "k", 1, ("j1",))])),
        lambda: store.project(make.projection(1, jobs=[make.row(1)])),
        lambda: store.save_clock(1, 1, b""),
        lambda: store.save_token(TokenRow(id="t", hash=b"h", user="ana", scopes=(), created_at_ms=1)),
        lambda: store.save_sample(1, b""),
        lambda: store.sweep(KEEP_ALL),
    ]
    for write in writes:
        with pytest.raises(EpochLost, match="another hub"):
            write()
    assert (other.tail(1), other.find_key("ana", "k"), other.find_job("j1"), other.tokens()) == (
        [],
        None,
        None,
        [],
    )
    other.commit(make.turn(2, facts=b"of the new hub"))
    assert [entry.facts for entry in other.tail(1)] == [b"of the new hub"]


def test_nothing_is_written_before_an_epoch_began(open_store: Open, store: Store, make: Any) -> None:
    with pytest.raises(EpochLost):
        open_store().commit(make.turn(2))


def test_turns_come_back_in_order_with_keys_and_audit(open_store: Open, store: Store, make: Any) -> None:
    audit = [
        AuditRecord(5, "ana", "t1", "submit", "j1", ""),
        AuditRecord(6, "bo", "t2", "cancel", "j1", "why"),
    ]
    key = KeyRow("ana", "k1", 5, ("j1", "j2"))
    store.commit(make.turn(2, notes=b"notes", keys=[key], audit=audit))
    store.commit(make.turn(3))
    again = open_store()
    assert [(entry.seq, entry.facts) for entry in again.tail(0)] == [(n, b"facts %d" % n) for n in (1, 2, 3)]
    assert [entry.seq for entry in again.tail(1, limit=1)] == [2]
    assert again.tail(1)[0].notes == b"notes"
    assert again.find_key("ana", "k1") == key
    assert again.find_key("bo", "k1") is None
    assert again.audit(10) == audit[::-1]
    assert again.audit(10, before_ms=6) == audit[:1]
    assert again.audit(1) == audit[1:]


@pytest.mark.parametrize("seq", [0, 1])
def test_a_turn_out_of_order_is_refused(store: Store, make: Any, seq: int) -> None:
    with pytest.raises(BrokenInvariant, match="in order"):
        store.commit(make.turn(seq))


def test_a_projection_must_lie_between_the_rows_and_the_log(store: Store, make: Any) -> None:
    with pytest.raises(BrokenInvariant, match="ahead of the log"):
        store.project(make.projection(2, jobs=[make.row(1)]))
    assert store.find_job("j1") is None
    store.commit(make.turn(2))
    store.project(make.projection(2))
    with pytest.raises(BrokenInvariant, match="behind the rows"):
        store.project(make.projection(1, jobs=[make.row(1)]))


def test_an_attempt_without_a_proper_uid_writes_nothing_at_all(store: Store, make: Any) -> None:
    with pytest.raises(BrokenInvariant, match="uid"):
        store.project(make.projection(1, jobs=[make.row(1)], attempts=[make.attempt("nonsense", "j1")]))
    assert store.find_job("j1") is None
    assert store.load().applied_seq == 0


def test_load_gives_live_work_only(open_store: Open, store: Store, make: Any) -> None:
    worker = Worker(id="w1", capability=Capability(gpu_count=2), labels={"rack": "a"}, quarantined=("1-9",))
    running = make.row(1, state=JobState.RUNNING, total=3, live=1)
    waiting, done = make.row(3), make.row(2, state=JobState.SUCCEEDED, ended_at_ms=5)
    tasks = [make.task("j1", 1, state=JobState.SUCCEEDED), make.task("j1", 0, current="1-2"), make.task("j2")]
    live = make.attempt("1-2", "j1", 0, phase=Phase.RUNNING, devices=(0, 1), exit_code=None)
    attempts = [make.attempt("1-1", "j2", phase=Phase.SUCCEEDED, exit_code=0), live]
    rows = {"jobs": [waiting, running, done], "tasks": tasks, "attempts": attempts}
    store.project(make.projection(1, workers=[worker, Worker(id="w2")], **rows))
    store.project(make.projection(1, gone_workers=["w2"]))
    store.save_clock(77, 88, b"boot")
    found = open_store().load()
    assert (found.applied_seq, found.now_ms, found.at_ms) == (1, 77, 88)
    assert (found.clock_base, found.counters) == (b"boot", b"counters")
    assert list(found.jobs) == [running.job, waiting.job]
    assert list(found.tasks) == [tasks[1], tasks[0]]
    assert list(found.attempts) == [live.attempt]
    assert list(found.workers) == [worker]


def test_hub_time_never_goes_back(store: Store, make: Any) -> None:
    store.save_clock(500, 1, b"")
    store.project(make.projection(1))
    # The beat of a leader carries it on.
    assert 500 <= store.load().now_ms < 60_000


def test_rows_are_replaced_and_do_not_follow_the_live_object(store: Store, make: Any) -> None:
    row = make.row(1)
    store.project(make.projection(1, jobs=[row], attempts=[make.attempt("1-1", "j1")]))
    row.job.state = JobState.FAILED
    found = store.find_job("j1")
    assert found is not None
    assert found.state is JobState.PENDING
    ended = make.attempt("1-1", "j1", phase=Phase.FAILED, exit_code=3, exit_class="exit", wall_s=1.5)
    store.project(make.projection(1, jobs=[row], attempts=[ended]))
    assert store.find_job("j1") == row.job
    assert store.find_attempt("1-1") == ended.attempt
    assert not list(store.load().jobs)
    assert not list(store.load().attempts)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 169, 300])
def test_every_row_of_a_projection_arrives_whatever_their_number(store: Store, make: Any, count: int) -> None:
    jobs = [make.row(seq) for seq in range(1, count + 1)]
    tasks = [make.task("j1", index) for index in range(count)]
    attempts = [make.attempt(f"1-{n}", "j1", n) for n in range(count)]
    store.project(make.projection(1, jobs=jobs, tasks=tasks, attempts=attempts))
    assert list(store.load().jobs) == [row.job for row in jobs]
    assert store.find_tasks("j1", -2, 1000) == tasks
    assert store.find_attempts("j1") == [row.attempt for row in attempts]


def test_lists_filter_and_page(store: Store, make: Any) -> None:
    states = [JobState.SUCCEEDED, JobState.FAILED, JobState.RUNNING, JobState.PENDING, JobState.KILLED]
    rows = [
        make.row(1, {"team": "vision"}, state=states[0]),
        make.row(2, {"team": "vision", 'odd"key': "x'y"}, state=states[1], user="bo"),
        make.row(3, {"team": "speech"}, state=states[2], queue="fast"),
        make.row(4, state=states[3], name="eval", workload="sweep"),
        make.row(5, state=states[4], user="bo", name="eval"),
    ]
    store.project(make.projection(1, jobs=rows))
    assert ids(store) == ["j5", "j4", "j3", "j2", "j1"]
    assert ids(store, limit=2) == ["j5", "j4"]
    assert ids(store, limit=2, before_seq=4) == ["j3", "j2"]
    assert ids(store, user="bo") == ["j5", "j2"]
    assert ids(store, user="bo", states=("failed", "running")) == ["j2"]
    assert ids(store, states=("failed", "pending", "killed")) == ["j5", "j4", "j2"]
    for user in ("", "ana", "bo", "nobody"):
        for ended in (("failed",), ("failed", "killed"), ("succeeded", "failed", "killed")):
            there = len(ids(store, user=user, states=ended))
            assert [store.count_ended(user, ended, most) for most in (1, 9)] == [min(1, there), there]
    assert ids(store, states=("failed", "pending", "killed"), limit=1, before_seq=5) == ["j4"]
    assert ids(store, queue="fast") == ["j3"]
    assert ids(store, name="eval", user="ana") == ["j4"]
    assert (
        ids(store, workload="sweep")
        == ids(store, workload="sweep", user="ana", states=("pending",))
        == ["j4"]
    )
    assert ids(store, workload="other") == ids(store, workload="sweep", before_seq=4) == []
    assert ids(store, labels=(("team", "vision"),)) == ["j2", "j1"]
    assert ids(store, labels=(("team", "vision"), ('odd"key', "x'y"))) == ["j2"]
    assert ids(store, labels=(("team", "vision"),), user="ana") == ["j1"]
    assert ids(store, user="' OR 1=1 --") == []


def test_tasks_filter_and_page(store: Store, make: Any) -> None:
    odd = {3: JobState.FAILED, 5: JobState.KILLED, 7: JobState.FAILED, 8: JobState.RUNNING}
    tasks = [make.task("j1", index, state=odd.get(index, JobState.SUCCEEDED)) for index in range(10)]
    store.project(make.projection(1, tasks=[*tasks, make.task("j10", 0), make.task("j2")]))
    assert store.find_tasks("j1", -2, 100) == tasks
    assert store.find_tasks("j1", 4, 2) == tasks[5:7]
    assert [task.index for task in store.find_tasks("j1", -2, 100, ("failed", "killed"))] == [3, 5, 7]
    assert [task.index for task in store.find_tasks("j1", 3, 2, ("running", "failed"))] == [7, 8]
    assert store.find_task("j1", 5) == tasks[5]
    assert store.find_task("j1", 99) is None
    assert store.find_task("j2", -1) is not None


def test_attempts_are_found_by_task_uid_and_worker(store: Store, make: Any) -> None:
    rows = [
        make.attempt("1-1", "j1", 0, worker="w1"),
        make.attempt("1-2", "j1", 1, worker="w1"),
        make.attempt("1-3", "j1", 0, worker="w2", no=2),
        make.attempt("2-1", "j1", 0, worker="w1", no=3),
    ]
    store.project(make.projection(1, attempts=rows[::-1]))
    uids = [attempt.uid for attempt in store.find_attempts("j1")]
    assert uids == ["1-1", "1-3", "2-1", "1-2"]
    assert [attempt.uid for attempt in store.find_attempts("j1", 0, limit=2)] == ["1-1", "1-3"]
    assert store.find_attempt("1-3") == rows[2].attempt
    assert store.find_attempt("1-9") is store.find_attempt("no uid") is None
    newest = store.newest_attempt("w1", "j1", 0)
    assert newest == rows[3].attempt
    assert store.newest_attempt("w2", "j1", 1) is None


def test_recent_runs_are_those_that_came_to_their_own_end(store: Store, make: Any) -> None:
    def run(uid: str, phase: Phase, **fields: Any) -> Any:
        return make.attempt(uid, "j1", int(uid[2:]), phase=phase, started=True, limit_ms=9000, **fields)

    rows = [
        run("1-1", Phase.SUCCEEDED, wall_s=2.5),
        run("1-2", Phase.LOST, wall_s=1.0),
        run("1-3", Phase.FAILED, started_at_ms=1000, ended_at_ms=1750),
        run("1-4", Phase.RUNNING),
        run("1-5", Phase.SUCCEEDED, wall_s=4.0),
    ]
    unnamed = run("1-6", Phase.SUCCEEDED, wall_s=9.0)._replace(name="")
    store.project(make.projection(1, attempts=[*(row._replace(name="train") for row in rows), unnamed]))
    assert store.recent_runs(100) == [("train", 2500, 9000), ("train", 750, 9000), ("train", 4000, 9000)]
    assert store.recent_runs(2) == [("train", 4000, 9000)]


def test_usage_is_summed_up_by_whose_it_was_within_a_window(store: Store, make: Any) -> None:
    def ran(
        number: int, began_ms: int, ended_ms: int, user: str = "ana", index: int = 0, **fields: Any
    ) -> Any:
        phase = Phase.SUCCEEDED if ended_ms else Phase.RUNNING
        times = {"started_at_ms": began_ms, "ended_at_ms": ended_ms, "limit_ms": 10_000}
        row = make.attempt(f"1-{number}", f"j{number}", index, phase=phase, started=True, **(times | fields))
        return row._replace(
            user=user, shape="cpu_milli=2000 gpus=1", queue="q", plugin=f"p{number % 2}", template="t"
        )

    used: dict[str, Any] = {"cpu_s": 4.0, "gpu_s": 1.0, "gpu_seen_s": 2.0}
    rows = [
        ran(1, 1_000, 3_000, rate=7_200_000, **used),  # half of it before the window
        ran(2, 3_000, 9_000, wall_s=2.0, **used),  # heard of late: it ran for two seconds
        ran(3, 500, 1_500, **used),  # over before it
        ran(4, 5_000, 0, user="bob"),  # still runs
        ran(5, 5_000, 6_000, user="bob", index=-1),
        make.attempt("1-6", "j6", 0, phase=Phase.REVOKED, ended_at_ms=5_000),  # never ran
    ]
    store.project(make.projection(1, attempts=rows))
    shape = "cpu_milli=2000 gpus=1"
    found = {(row.key, row.number): row for row in store.sum_uses(UseQuery("user", "", 2_000, 8_000))}
    assert found.keys() == {("ana", 0), ("bob", 0), ("bob", attempt_number("1-4"))}
    assert found["ana", 0] == UseRow(
        "ana", shape, 2, 9_000 + 10_000, 1_000 + 2_000, 6.0, 1.5, 3.0, 0, 1, 2_000
    )
    running = found["bob", attempt_number("1-4")]
    assert (running.asked_ms, running.held_ms, running.part) == (10_000, 3_000, 1)
    # A lane is asked for no longer than it is held.
    assert (found["bob", 0].asked_ms, found["bob", 0].held_ms) == (1_000, 1_000)
    assert {row.key for row in store.sum_uses(UseQuery("job", "ana", 2_000, 8_000))} == {"j1", "j2"}
    by_queue = store.sum_uses(UseQuery("queue", "", 2_000, 8_000))
    assert [(row.key, row.attempts) for row in by_queue if not row.number] == [("q", 3)]
    assert {row.key for row in store.sum_uses(UseQuery("plugin", "", 2_000, 8_000))} == {"p0", "p1"}
    assert {row.key for row in store.sum_uses(UseQuery("template", "", 2_000, 8_000))} == {"t"}
    assert {row.key for row in store.sum_uses(UseQuery("name", "", 2_000, 8_000))} == {"train"}


def test_what_was_is_found_by_when_it_was(store: Store, make: Any) -> None:
    ended = {"state": JobState.FAILED, "submitted_at_ms": 10}
    jobs = [
        make.row(1, ended_at_ms=300, **ended),
        make.row(2, ended_at_ms=200, user="bo", name="sweep", **ended),
        make.row(3, ended_at_ms=200, **ended | {"state": JobState.SUCCEEDED, "submitted_at_ms": 90}),
        make.row(4, state=JobState.RUNNING, submitted_at_ms=95),
    ]
    attempts = [
        make.attempt(
            "1-1", "j1", 0, phase=Phase.FAILED, exit_class="code", assigned_at_ms=10, ended_at_ms=300
        ),
        make.attempt("1-2", "j2", 0, phase=Phase.LOST, worker="w2", assigned_at_ms=10, ended_at_ms=200),
        make.attempt("1-3", "j3", 0, phase=Phase.SUCCEEDED, assigned_at_ms=100, ended_at_ms=200),
        make.attempt("1-4", "j4", 0, phase=Phase.RUNNING, assigned_at_ms=100),
    ]
    attempts[1] = attempts[1]._replace(user="bo", queue="q")
    store.project(make.projection(1, jobs=jobs, attempts=attempts))
    assert ids(store, sort="ended") == ["j1", "j3", "j2"]
    assert ids(store, sort="ended", before_ended_ms=200, before_seq=3) == ["j2"]
    assert ids(store, sort="ended", states=("failed",), limit=1) == ["j1"]
    assert ids(store, ended_after_ms=200, ended_before_ms=300) == ["j3", "j2"]
    assert ids(store, submitted_after_ms=90) == ["j4", "j3"]
    assert ids(store, submitted_before_ms=90, user="bo") == ["j2"]
    assert ids(store, worker="w2") == ids(store, q="wee") == ids(store, user="bo", q="j") == ["j2"]
    assert ids(store, exit_class="code") == ["j1"]
    assert ids(store, q="%") == ids(store, worker="w2", exit_class="code") == []
    assert store.count_jobs("", 200, 9) == {"failed": 2, "succeeded": 1}
    assert store.count_jobs("bo", 0, 9) == {"failed": 1}
    assert store.group_jobs(("state",), JobFilter(user="bo")) == [(("failed",), 1)]
    assert store.group_jobs((), JobFilter(states=("failed",))) == [((), 2)]
    assert store.group_jobs(("user", "state"), JobFilter(states=("failed",), limit=1))[0][1] == 1
    assert store.group_jobs(("queue",), JobFilter(name="none")) == []
    assert store.count_jobs("", 201, 9) == store.count_jobs("", 0, 1) == {"failed": 1}

    def past(since_ms: int, until_ms: int, **asked: Any) -> list[str]:
        return [row.attempt.uid for row in store.past_attempts(PastQuery(since_ms, until_ms, **asked))]

    assert past(0, 999) == ["1-1", "1-2"]
    assert past(0, 999, limit=1) == past(250, 999) == past(0, 999, user="ana") == ["1-1"]
    assert past(0, 10) == past(301, 999) == past(0, 999, worker="w9") == []
    assert past(0, 999, worker="w1") == ["1-1", "1-3"]
    assert past(0, 50, worker="w1") == past(0, 999, job_id="j1") == ["1-1"]
    (row,) = store.past_attempts(PastQuery(0, 999, job_id="j2"))
    assert (row.user, row.queue, row.name, row.attempt.phase) == ("bo", "q", "train", Phase.LOST)

    for at_ms in (60_000, 120_000, 180_000):
        store.save_sample(at_ms, b"%d" % at_ms)
    store.save_sample(120_000, b"again")
    assert store.samples(60_000, 180_000, 9) == [(60_000, b"60000"), (120_000, b"again")]
    assert store.samples(0, 1 << 60, 1) == [(60_000, b"60000")]
    store.sweep(KEEP_ALL._replace(samples_before_ms=120_000))
    assert [at_ms for at_ms, _ in store.samples(0, 1 << 60, 9)] == [120_000, 180_000]


def test_tokens_are_saved_and_changed(open_store: Open, store: Store) -> None:
    token = TokenRow(id="t1", hash=b"\x00hash", user="ana", scopes=("submit", "read"), created_at_ms=1)
    revoked = TokenRow(
        id="t1", hash=b"\x00hash", user="ana", scopes=("submit",), created_at_ms=1, revoked=True
    )
    store.save_token(token)
    assert open_store().tokens() == [token]
    store.save_token(revoked)
    assert store.tokens() == [revoked]


def test_sweep_takes_old_finished_jobs_with_their_children(store: Store, make: Any) -> None:
    old = [make.row(seq, state=JobState.SUCCEEDED, ended_at_ms=seq) for seq in range(1, 6)]
    live = make.row(6, state=JobState.RUNNING, ended_at_ms=0)
    names = [row.job.id for row in (*old, live)]
    tasks = [make.task(name, index) for name in names for index in range(3)]
    attempts = [make.attempt(f"1-{n}", task.job_id, task.index) for n, task in enumerate(tasks, 1)]
    store.project(make.projection(1, jobs=[*old, live], tasks=tasks, attempts=attempts))
    assert store.sweep(KEEP_ALL) == []
    assert not store.sweep_pending
    keep = KEEP_ALL._replace(finished_before_ms=4, batch=2)
    assert store.sweep(keep) == ["j1", "j2"]
    assert store.sweep_pending
    assert store.sweep(keep) == ["j3"]
    assert not store.sweep_pending
    assert store.sweep(KEEP_ALL._replace(finished_max=1)) == ["j4"]
    assert ids(store) == ["j6", "j5"]
    assert store.find_tasks("j1", -2, 10) == store.find_attempts("j4") == []
    assert len(store.find_tasks("j6", -2, 10)) == len(store.find_attempts("j6")) == 3
    assert store.sweep(Retention(10**15, 0, 10**15, 10**15, 10**15)) == ["j5"]
    assert ids(store) == ["j6"]


def test_sweep_cuts_the_front_of_log_keys_and_audit(open_store: Open, store: Store, make: Any) -> None:
    for seq in range(2, 8):
        audit = [AuditRecord(seq, "ana", "t", "submit", f"j{seq}", "")]
        store.commit(make.turn(seq, keys=[KeyRow("ana", f"k{seq}", seq, ())], audit=audit))
    store.project(make.projection(5))
    assert store.sweep(Retention(0, 10**9, 4, 5, 6, batch=2)) == []
    assert store.sweep_pending
    while store.sweep_pending:
        store.sweep(Retention(0, 10**9, 4, 5, 6, batch=2))
    assert [entry.seq for entry in store.tail(0)] == [4, 5, 6, 7]
    assert [store.find_key("ana", f"k{n}") is None for n in range(2, 8)] == [True] * 3 + [False] * 3
    assert [record.at_ms for record in store.audit(10)] == [7, 6]
    store.sweep(Retention(0, 10**9, 10**9, 0, 0))
    assert [entry.seq for entry in store.tail(0)] == [6, 7], "turns that the rows lack stay"


def test_turns_go_on_after_the_whole_log_was_swept(open_store: Open, store: Store, make: Any) -> None:
    store.commit(make.turn(2))
    store.project(make.projection(2))
    store.sweep(Retention(0, 10**9, 10**9, 0, 0))
    again = open_store()
    again.begin_epoch()
    assert again.tail(0) == []
    with pytest.raises(BrokenInvariant):
        again.commit(make.turn(2))
    again.commit(make.turn(3))
    again.project(make.projection(3))


def test_a_key_that_is_used_anew_counts_as_young(store: Store, make: Any) -> None:
    store.commit(make.turn(2, keys=[KeyRow("ana", "k", 1, ("j1",)), KeyRow("ana", "l", 2, ())]))
    store.commit(make.turn(3, keys=[KeyRow("ana", "k", 9, ("j2",))]))
    store.sweep(Retention(0, 10**9, 0, 5, 0))
    assert store.find_key("ana", "k") == KeyRow("ana", "k", 9, ("j2",))
    assert store.find_key("ana", "l") is None


def test_size_and_space_can_be_asked(store: Store) -> None:
    assert store.size_bytes() > 0
    assert store.low_space(0) is False
