"""Chunks of calls and the list of blobs in each store: kept with their turn, found by call, gone with their job."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dray.core.model.records.records import JobState
from dray.errors import BrokenInvariant, EpochLost
from dray.hub.store.base import HOLDS, ArgsChunk, BlobRef, BlobRow, ResultsChunk, Retention, Store
from dray.hub.store.sqlite import chunks
from dray.hub.store.sqlite.store import SqliteStore

Open = Callable[[], Store]


@pytest.fixture
def store(open_store: Open) -> Store:
    store = open_store()
    store.begin_epoch()
    return store


def results(lo: int, hi: int, blob: bytes, job_id: str = "j1") -> ResultsChunk:
    return ResultsChunk(job_id, lo, hi, "w1", "1-1", blob)


def test_arguments_are_found_by_call(open_store: Open, store: Store, make: Any) -> None:
    kept = [ArgsChunk("j1", 0, 3, b"a"), ArgsChunk("j1", 3, 2, b"b"), ArgsChunk("j2", 0, 1, b"c")]
    store.commit(make.turn(1, chunks=kept))
    for other in (store, open_store()):
        found = [other.find_args("j1", index) for index in range(6)]
        assert found == [kept[0]] * 3 + [kept[1]] * 2 + [None]
        assert other.find_args("j2", 0) == kept[2]
        assert other.find_args("j3", 0) is None


def test_results_are_found_by_range_and_by_turn(open_store: Open, store: Store, make: Any) -> None:
    store.commit(make.turn(1, at_ms=70, chunks=[results(0, 9, b"1"), results(5, 40, b"2")]))
    store.commit(make.turn(2, at_ms=80, chunks=[results(10, 12, b"3"), results(0, 0, b"x", "j2")]))
    other = open_store()
    assert [chunk.blob for chunk in other.find_results("j1", 0, 5)] == [b"1"]
    assert [chunk.blob for chunk in other.find_results("j1", 9, 10)] == [b"1", b"2"]
    assert [chunk.blob for chunk in other.find_results("j1", 12, 99)] == [b"2", b"3"]
    assert other.find_results("j1", 41, 99) == []
    assert [chunk.blob for chunk in other.results_from("j1", 1, 2)] == [b"1", b"2"]
    assert other.results_from("j1", 2, 9) == [results(10, 12, b"3")._replace(seq=2, at_ms=80)]
    assert other.results_from("j1", 3, 9) == []


def test_chunks_go_or_stay_with_their_turn(open_store: Open, store: Store, make: Any) -> None:
    store.commit(make.turn(1))
    with pytest.raises(BrokenInvariant):
        store.commit(make.turn(1, chunks=[ArgsChunk("j1", 0, 1, b"a")]))
    open_store().begin_epoch()
    with pytest.raises(EpochLost):
        store.commit(make.turn(2, chunks=[results(0, 0, b"r"), ArgsChunk("j1", 0, 1, b"a")]))
    other = open_store()
    assert other.find_args("j1", 0) is None
    assert other.find_results("j1", 0, 1) == []
    writes: list[Callable[[], object]] = [
        lambda: store.save_blobs({"d": BlobRow(1, 1)}),
        lambda: store.sweep_blobs(1, 1),
    ]
    for write in writes:
        with pytest.raises(EpochLost):
            write()


def test_a_job_that_goes_takes_its_calls_along_and_an_ended_one_its_arguments(
    store: Store, make: Any
) -> None:
    kept: list[Any] = []
    for job_id in ("j1", "j2", "j3"):
        kept += [ArgsChunk(job_id, 0, 1, b"a"), results(0, 0, b"r", job_id), BlobRef("ab" * 32, job_id)]
    store.commit(make.turn(1, chunks=kept))
    store.save_blobs({"ab" * 32: BlobRow(5, 10)})
    old = make.row(1, state=JobState.SUCCEEDED, ended_at_ms=10)
    young = make.row(2, state=JobState.SUCCEEDED, ended_at_ms=50)
    store.project(make.projection(1, jobs=[old, young, make.row(3, state=JobState.RUNNING)]))
    keep = Retention(
        finished_before_ms=20, finished_max=10**9, log_before_ms=0, keys_before_ms=0, audit_before_ms=0
    )
    assert store.sweep(keep) == ["j1"]
    assert [bool(store.find_results(job_id, 0, 1)) for job_id in ("j1", "j2", "j3")] == [False, True, True]
    assert [bool(store.find_args(job_id, 0)) for job_id in ("j1", "j2", "j3")] == [False, False, True]
    assert store.sweep_blobs(99, 9) == []
    assert sorted(store.sweep(keep._replace(finished_before_ms=99))) == ["j2"]
    assert store.sweep_blobs(99, 9) == []
    store.project(make.projection(1, jobs=[make.row(3, state=JobState.FAILED, ended_at_ms=5)]))
    assert store.sweep(keep) == ["j3"]
    assert store.sweep_blobs(10, 9) == []
    assert store.sweep_blobs(11, 9) == ["ab" * 32]


def test_a_large_job_goes_in_portions(open_sqlite: Callable[..., SqliteStore], make: Any) -> None:
    store = open_sqlite()
    store.begin_epoch()
    many = [results(place, place, b"r") for place in range(500)] + [
        ArgsChunk("j1", place, 1, b"a") for place in range(7)
    ]
    store.commit(make.turn(1, chunks=[*many, *(BlobRef(f"{place:064x}", "j1") for place in range(9))]))
    store.project(make.projection(1, jobs=[make.row(1, state=JobState.SUCCEEDED, ended_at_ms=1)]))
    keep = Retention(5, 10**9, 0, 0, 0, batch=2)
    rounds = 0
    while not (gone := store.sweep(keep)):
        rounds += 1
        assert store.sweep_pending
        assert rounds < 10
    assert gone == ["j1"]
    assert rounds >= 2
    with sqlite3.connect(store.path) as connection:
        for table in ("call_args", "call_results", "blob_refs"):
            query = f"SELECT count(*) FROM {table}"  # noqa: S608 - one of the names above
            assert connection.execute(query).fetchone() == (0,)


def test_blobs_are_listed_and_a_wanted_one_stays_young(open_store: Open, store: Store) -> None:
    digests = [f"{place:064x}" for place in range(1200)]
    store.save_blobs({digest: BlobRow(place, 10) for place, digest in enumerate(digests)})
    store.save_blobs({digests[7]: BlobRow(7, 30)})
    store.save_blobs({digests[7]: BlobRow(7, 20)})
    found = open_store().find_blobs([*digests, "f" * 64])
    assert len(found) == 1200
    assert found[digests[7]] == BlobRow(7, 30)
    assert len(store.sweep_blobs(11, 1000)) == 1000
    assert len(store.sweep_blobs(11, 1000)) == 199
    assert list(store.find_blobs(digests)) == [digests[7]]


def test_reads_of_calls_use_their_indexes(open_sqlite: Callable[..., SqliteStore], tmp_path: Path) -> None:
    """A job of a million calls has thousands of chunks: none may be found by walking over all of them."""
    store = open_sqlite()
    with sqlite3.connect(store.path) as connection:
        for query, values in (
            (chunks.FIND_ARGS, ("j", 1)),
            (chunks.FIND_RESULTS, ("j", 1, 2)),
            (chunks.RESULTS_FROM, ("j", 1, 2)),
        ):
            steps = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]
            assert any("SEARCH" in step for step in steps), steps
            assert not any("SCAN" in step for step in steps), steps


def test_what_a_blob_holds_counts_for_whoever_uses_it_and_goes_behind_it(store: Store, make: Any) -> None:
    tree, piece = "ab" * 32, "cd" * 32
    store.commit(make.turn(1, chunks=[BlobRef(tree, "j1"), BlobRef(piece, HOLDS + tree)]))
    store.save_blobs({tree: BlobRow(5, 10), piece: BlobRow(70, 10)})
    row = make.row(1, state=JobState.SUCCEEDED, ended_at_ms=10)
    store.project(make.projection(1, jobs=[row]))
    user = row.job.user
    assert store.count_user_blobs(user, [piece]) == (75, [piece])
    assert store.fresh_refs(piece) == [HOLDS + tree]
    assert (store.job_refers(piece, [HOLDS + tree]), store.job_refers(piece, ["j1"])) == (True, False)
    keep = Retention(
        finished_before_ms=20, finished_max=10**9, log_before_ms=0, keys_before_ms=0, audit_before_ms=0
    )
    assert store.sweep_blobs(99, 9) == []
    assert store.sweep(keep) == ["j1"]
    assert store.sweep_blobs(99, 9) == [tree], "what it held stays until it is known to be gone"
    assert store.sweep_blobs(99, 9) == []
    store.drop_holds([tree])
    assert store.sweep_blobs(99, 9) == [piece]
