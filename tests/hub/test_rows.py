"""Rows inside turns: memory first, then what was fetched before the turn, and never the store itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.recovery import release
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import JobState
from dray.errors import BrokenInvariant, DrayError, InternalFault
from dray.hub.engine.projection import build_projection
from dray.hub.engine.turns import MOST_ROUNDS, Answer, Conductor, Decision, Request, TurnFailed
from dray.hub.rows import FEW_ROWS, RowKey, Rows, RowsWanted, job_row
from dray.hub.store.base import Store
from dray.hub.store.memory import MemoryStore
from dray.hub.store.sqlite.store import SqliteStore


class Told:
    """Somebody who awaits an answer."""

    def __init__(self) -> None:
        self.result: Any = None
        self.refusal: BaseException | None = None
        self.was_told = False

    def done(self) -> bool:
        return self.was_told

    def set_result(self, result: Any, /) -> None:
        self.result, self.was_told = result, True

    def set_exception(self, exception: BaseException, /) -> None:
        self.refusal, self.was_told = exception, True


class Desk:
    """A hub's turns on a store that holds the row of one ended job, which memory has let go."""

    def __init__(self, store: Store) -> None:
        self.cluster, self.store = Cluster(), store
        store.begin_epoch()
        self.cluster.join("w1", credit=1)
        self.cluster.submit("old")
        self.uid = self.cluster.current("old")
        self.cluster.run(self.uid)
        self.cluster.end(self.uid)
        self.state = self.cluster.state
        store.project(build_projection(self.state, self.state.touched, 0, self.cluster.clock))
        release(self.state, ["old"], [("old", 0)], [self.uid])
        assert not self.state.jobs
        self.rows = Rows(self.state, store)
        self.conductor = Conductor(self.rows, 0)

    def turn(self, *requests: Request) -> None:
        """One turn, as an engine takes it."""
        taken = [*self.conductor.take_back(), *requests]
        self.rows.read(self.rows.missing(key for request in taken for key in request.wants))
        for step in self.conductor.turn(taken, (), self.cluster.clock):
            if isinstance(step, Answer):
                step.give()


@pytest.fixture(params=["memory", "sqlite"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    store: Store = MemoryStore() if request.param == "memory" else SqliteStore.open(tmp_path / "hub.sqlite")
    yield Desk(store)
    store.close(clean=True)


def answering(look: Callable[[State], Any]) -> Callable[[State, Clock], Decision]:
    return lambda state, clock: Decision(answer=look)


# --- the guard --------------------------------------------------------------------------------------------------------

READS: list[Callable[[Store], Any]] = [
    lambda store: store.find_job("old"),
    lambda store: store.find_task("old", 0),
    lambda store: store.find_tasks("old", -1, 10),
    lambda store: store.find_attempt("1-1"),
    lambda store: store.find_attempts("old"),
    lambda store: store.newest_attempt("w1", "old", 0),
    lambda store: store.find_key("ada", "k"),
    lambda store: store.find_args("old", 0),
    lambda store: store.find_results("old", 0, 1),
    lambda store: store.results_from("old", 0, 1),
    lambda store: store.find_blobs(["d"]),
    lambda store: store.is_referred("d"),
    lambda store: store.tail(0),
    lambda store: store.audit(1),
]


@pytest.mark.parametrize("read", READS)
def test_a_decision_that_reads_the_store_breaks_its_turn(desk: Desk, read: Callable[[Store], Any]) -> None:
    def decide(state: State, clock: Clock) -> Decision:
        read(desk.store)
        return Decision()

    with pytest.raises(TurnFailed) as failed:
        desk.turn(Request(decide, Told()))
    assert isinstance(failed.value.cause, BrokenInvariant)
    assert "before the turn" in str(failed.value.cause)
    # Outside it the store is open again.
    read(desk.store)


def test_an_answer_that_reads_the_store_is_refused(desk: Desk) -> None:
    told = Told()
    desk.turn(Request(answering(lambda state: desk.store.find_job("old")), told))
    assert isinstance(told.refusal, BrokenInvariant)


def test_other_threads_read_while_a_turn_is_decided(desk: Desk) -> None:
    found: list[Any] = []

    def look(state: State) -> None:
        thread = threading.Thread(target=lambda: found.append(desk.store.find_job("old")))
        thread.start()
        thread.join()

    desk.turn(Request(answering(look), Told()))
    assert found[0].id == "old"


# --- what a turn is given instead -------------------------------------------------------------------------------------


def test_what_is_declared_is_there_in_the_first_turn(desk: Desk) -> None:
    told = Told()
    desk.turn(Request(answering(lambda state: desk.rows.job("old")), told, wants=(job_row("old"),)))
    assert told.result.state is JobState.SUCCEEDED
    assert not desk.conductor.put_back


def test_a_decision_that_misses_rows_is_asked_again_with_them(desk: Desk) -> None:
    told, asked = Told(), list[str]()

    def decide(state: State, clock: Clock) -> Decision:
        job = desk.rows.job("old")
        assert job is not None
        asked.append(job.id)
        task = desk.rows.task(job.id, 0)
        assert task is not None
        attempt = desk.rows.attempt(task.last_uid)
        return Decision(answer=lambda after: (job.id, attempt.uid if attempt is not None else ""))

    desk.turn(Request(decide, told))
    assert (told.was_told, asked) == (False, [])
    desk.turn()
    assert (told.was_told, asked) == (False, ["old"])
    desk.turn()
    desk.turn()
    assert told.result == ("old", desk.uid)
    assert not desk.conductor.put_back


def test_what_was_decided_stands_while_its_answer_waits_for_rows(desk: Desk) -> None:
    told, decided = Told(), list[int]()

    def decide(state: State, clock: Clock) -> Decision:
        decided.append(1)
        return Decision(answer=lambda after: desk.rows.job("old"))

    desk.turn(Request(decide, told))
    desk.turn()
    assert (told.result.id, decided) == ("old", [1])


def test_nothing_that_was_fetched_outlives_its_turn(desk: Desk) -> None:
    first, second = Told(), Told()
    look = answering(lambda state: desk.rows.job("old"))
    desk.turn(Request(look, first, wants=(job_row("old"),)))
    desk.turn(Request(look, second))
    assert (first.was_told, second.was_told) == (True, False)


def test_memory_comes_before_a_row(desk: Desk) -> None:
    row = desk.store.find_job("old")
    assert row is not None
    desk.state.jobs["old"] = msgspec.structs.replace(row, name="as it is now")
    told = Told()
    desk.turn(Request(answering(lambda state: desk.rows.job("old")), told, wants=(job_row("old"),)))
    assert told.result.name == "as it is now"
    del desk.state.jobs["old"]


def test_what_there_is_no_row_of_is_not_asked_for_twice(desk: Desk) -> None:
    told = Told()
    desk.turn(Request(answering(lambda state: desk.rows.job("nobody")), told))
    desk.turn()
    assert (told.was_told, told.result) == (True, None)


def test_what_is_put_back_waits_until_it_is_taken_however_few_are_taken_at_a_time(desk: Desk) -> None:
    look = answering(lambda state: desk.rows.job("old"))
    for _ in range(3):
        list(desk.conductor.turn([Request(look, Told())], (), desk.cluster.clock))
    assert [len(desk.conductor.take_back(most)) for most in (0, 1, None)] == [0, 1, 2]
    assert not desk.conductor.put_back


def test_who_asks_later_is_decided_later_whoever_misses_rows(desk: Desk) -> None:
    decided = list[str]()

    def ask(name: str, *needed: str) -> Request:
        def decide(state: State, clock: Clock) -> Decision:
            for job_id in needed:
                desk.rows.job(job_id)
            decided.append(name)
            return Decision()

        return Request(decide, Told())

    desk.turn(ask("one"), ask("two", "old", "nobody"), ask("three"), ask("four", "old"), ask("five"))
    assert decided == ["one"]
    while desk.conductor.put_back:
        desk.turn(ask(f"behind {len(decided)}"))
    assert [name for name in decided if not name.startswith("behind")] == [
        "one",
        "two",
        "three",
        "four",
        "five",
    ]
    assert decided[-1].startswith("behind")


def test_each_item_says_what_it_misses(desk: Desk) -> None:
    told = Told()
    names = ["old", "nobody", "else"]
    desk.turn(Request(answering(lambda state: desk.rows.each(desk.rows.job, names)), told))
    (back,) = desk.conductor.put_back
    assert back.wants == tuple(map(job_row, names))
    desk.turn()
    assert [job and job.id for job in told.result] == ["old", None, None]


def test_a_request_that_never_has_enough_is_refused(desk: Desk) -> None:
    told, count = Told(), iter(range(1000))
    desk.turn(Request(answering(lambda state: desk.rows.job(f"n{next(count)}")), told))
    for _ in range(MOST_ROUNDS):
        assert not told.was_told
        desk.turn()
    assert isinstance(told.refusal, InternalFault)
    assert not desk.conductor.put_back


def test_a_decision_may_not_miss_rows_once_its_first_event_is_folded_in(desk: Desk) -> None:
    def events() -> Iterator[Any]:
        desk.rows.job("old")
        yield from ()

    with pytest.raises(TurnFailed) as failed:
        desk.turn(Request(lambda state, clock: Decision(events()), None))
    assert isinstance(failed.value.cause, BrokenInvariant)


def test_a_refusal_goes_its_way_and_a_miss_is_none(desk: Desk) -> None:
    """Whoever handles errors must not take a missing row for one."""

    def look(state: State) -> str:
        try:
            desk.rows.job("old")
        except Exception:  # noqa: BLE001 - this is what is tested
            return "swallowed"
        return "found"

    told = Told()
    desk.turn(Request(answering(look), told))
    desk.turn()
    assert told.result == "found"
    assert not issubclass(RowsWanted, DrayError)


def test_many_rows_are_read_on_a_thread_and_few_are_not(desk: Desk) -> None:
    threads: list[int] = []
    read = desk.rows.read

    def noted(keys: Any) -> None:
        threads.append(threading.get_ident())
        read(keys)

    desk.rows.read = noted  # type: ignore[method-assign]  # the reader is the test's own
    asyncio.run(desk.rows.fetch([job_row("old")]))
    asyncio.run(desk.rows.fetch([job_row(f"j{place}") for place in range(FEW_ROWS + 1)]))
    asyncio.run(desk.rows.fetch([RowKey("find_results", ("old", 0, 10_000))]))
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [True, False, False]
