"""Questions of the loop are answered by an index, and retention stays within its bounds."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dray.core.model.records.records import JobState
from dray.hub.store.base import JobFilter, Retention
from dray.hub.store.sqlite.retention import CHILDREN_PER_JOB
from dray.hub.store.sqlite.store import SqliteStore

Open = Callable[..., SqliteStore]

QUESTIONS: dict[str, tuple[Callable[[SqliteStore], object], str]] = {
    "a job": (lambda store: store.find_job("j1"), "sqlite_autoindex_jobs_1"),
    "newest jobs": (lambda store: store.list_jobs(JobFilter()), "INTEGER PRIMARY KEY"),
    "my jobs": (
        lambda store: store.list_jobs(JobFilter(user="ana")),
        "jobs_by_user (user=? AND state=? AND rowid<?)",
    ),
    "pending": (lambda store: store.list_jobs(JobFilter(states=("pending",))), "jobs_live"),
    "running": (
        lambda store: store.list_jobs(JobFilter(states=("running",))),
        "jobs_running (seq<?)",
    ),
    "failed": (
        lambda store: store.list_jobs(JobFilter(states=("failed",))),
        "jobs_final (state=? AND rowid<?)",
    ),
    "all that failed": (
        lambda store: store.count_ended("", ("failed",), 9),
        "COVERING INDEX jobs_final (state=?)",
    ),
    "all of mine": (
        lambda store: store.count_ended("ana", ("failed",), 9),
        "COVERING INDEX jobs_by_user (user=? AND state=?)",
    ),
    "failed tasks": (
        lambda store: store.find_tasks("j1", -1, 10, ("failed",)),
        "tasks_odd (job_id=? AND state=? AND idx>?)",
    ),
    "tasks": (lambda store: store.find_tasks("j1", -1, 10), "PRIMARY KEY (job_id=? AND idx>?)"),
    "attempts of a job": (lambda store: store.find_attempts("j1"), "attempts_by_task (job_id=?)"),
    "newest attempt": (
        lambda store: store.newest_attempt("w", "j1", 0),
        "attempts_by_task (job_id=? AND idx=?)",
    ),
    "an attempt": (lambda store: store.find_attempt("1-1"), "INTEGER PRIMARY KEY (rowid=?)"),
    "a key": (lambda store: store.find_key("ana", "k"), "sqlite_autoindex_keys_1 (user=? AND key=?)"),
}


@pytest.mark.parametrize("question", list(QUESTIONS))
def test_a_question_is_answered_by_an_index_and_without_sorting(
    open_sqlite: Open, tmp_path: Path, question: str
) -> None:
    ask, index = QUESTIONS[question]
    store = open_sqlite()
    asked: list[str] = []
    for reader in (store._reader, store._lister):
        reader._connection.set_trace_callback(asked.append)
    ask(store)
    assert asked
    with closing(sqlite3.connect(tmp_path / "hub.db")) as connection:
        for query in asked:
            plan = "; ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}"))
            assert "TEMP B-TREE" not in plan
            assert index in plan or (
                question == "newest jobs" and plan.startswith("SEARCH jobs USING INTEGER")
            )


def test_reads_see_what_was_projected_at_once(open_sqlite: Open, make: Any) -> None:
    store = open_sqlite()
    store.begin_epoch()
    for seq in range(1, 20):
        store.commit(make.turn(seq))
        store.project(make.projection(seq, jobs=[make.row(seq)]))
        assert store.find_job(f"j{seq}") is not None
        assert store.list_jobs(JobFilter(limit=1))[0].seq == seq


def test_a_large_array_is_removed_in_bounded_steps(open_sqlite: Open, make: Any) -> None:
    store = open_sqlite()
    store.begin_epoch()
    store.commit(make.turn(1))
    bound = 2 * CHILDREN_PER_JOB
    tasks = [make.task("j1", index) for index in range(3 * bound)]
    attempts = [make.attempt(f"1-{n + 1}", "j1", n) for n in range(3 * bound)]
    jobs = [make.row(seq, state=JobState.SUCCEEDED, ended_at_ms=seq) for seq in (1, 2)]
    store.project(make.projection(1, jobs=jobs, tasks=tasks, attempts=attempts))
    retention = Retention(10**9, 10**9, 0, 0, 0, batch=2)
    gone: list[str] = []
    steps = 0
    left = 6 * bound
    while not gone:
        gone = store.sweep(retention)
        steps += 1
        now = len(store.find_tasks("j1", -1, 1000)) + len(store.find_attempts("j1"))
        assert left - now <= bound
        left = now
        assert gone or store.sweep_pending
    assert (gone, left, store.sweep_pending) == (["j1", "j2"], 0, False)
    assert steps == 7
