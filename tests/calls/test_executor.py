"""`dray.Executor` keeps what `concurrent.futures` promises."""

from __future__ import annotations

import concurrent.futures
import functools
import gc
import itertools
import os
import time
import weakref
from pathlib import Path

import pytest

import dray
from dray.errors import InvalidInput

LIMIT_S = 60.0
_here: dict[str, str] = {}


def power(base: int, exponent: int = 2) -> int:
    return int(base**exponent)


def fail(text: str) -> None:
    raise KeyError(text)


def set_up(word: str) -> None:
    _here["word"] = word


def tell() -> str:
    return _here["word"]


def refuse() -> None:
    raise OSError("no licence")


def sit(path: str) -> str:
    while os.path.exists(path):
        time.sleep(0.01)
    return path


def overlap(folder: str, name: str) -> int:
    """How many of its kind run at this moment."""
    mine = os.path.join(folder, name)
    with open(mine, "x"):
        seen = len(os.listdir(folder))
        time.sleep(0.05)
    os.unlink(mine)
    return seen


@pytest.fixture
def pool(hub: dray.Hub) -> dray.Executor:
    return dray.Executor(hub=hub)


def test_calls_and_maps(pool: dray.Executor) -> None:
    with pool:
        assert isinstance(pool, concurrent.futures.Executor)
        assert pool.submit(power, 3).result(LIMIT_S) == 9
        assert pool.submit(power, 2, exponent=5).result(LIMIT_S) == 32
        assert list(pool.map(power, range(20), timeout=LIMIT_S)) == [n * n for n in range(20)]
        assert list(pool.map(power, [2, 3], [3, 2], chunksize=5, timeout=LIMIT_S)) == [8, 9]
        assert isinstance(pool.submit(fail, "x").exception(LIMIT_S), KeyError)
    with pytest.raises(RuntimeError, match="after shutdown"):
        _ = pool.submit(power, 1)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.map(power, [1])


def test_futures_as_arguments(hub: dray.Hub) -> None:
    with dray.Executor(2, hub=hub) as pool:
        first = pool.submit(power, 2)
        assert pool.submit(power, first).result(LIMIT_S) == 16
        bound: functools.partial[int] = functools.partial(power, first)  # type: ignore[arg-type]  # its result
        with pytest.raises(InvalidInput, match="as an argument of the call"):
            _ = pool.submit(bound)


def test_keywords_named_like_resources_go_to_the_function(pool: dray.Executor) -> None:
    with pool:
        assert pool.submit(lambda name, gpus: f"{name}{gpus}", name="a", gpus=3).result(LIMIT_S) == "a3"


def test_an_initializer_runs_before_the_first_call(hub: dray.Hub) -> None:
    with dray.Executor(hub=hub, initializer=set_up, initargs=("ready",)) as pool:
        assert {pool.submit(tell).result(LIMIT_S) for _ in range(5)} == {"ready"}


def test_an_initializer_that_fails_breaks_the_executor(hub: dray.Hub) -> None:
    with dray.Executor(hub=hub, initializer=refuse) as pool:
        with pytest.raises(concurrent.futures.BrokenExecutor, match="no licence"):
            pool.submit(tell).result(LIMIT_S)
        with pytest.raises(concurrent.futures.BrokenExecutor, match="no licence"):
            _ = pool.submit(tell)


def test_no_more_than_the_cap_run_at_once(hub: dray.Hub, tmp_path: Path) -> None:
    with dray.Executor(2, hub=hub) as pool:
        calls = [pool.submit(overlap, str(tmp_path), f"f{number}") for number in range(8)]
        assert max(call.result(LIMIT_S) for call in calls) <= 2


def test_shutdown_without_wait_lets_calls_go_on(hub: dray.Hub, tmp_path: Path) -> None:
    (tmp_path / "stay").touch()
    pool = dray.Executor(hub=hub)
    call = pool.submit(sit, str(tmp_path / "stay"))
    pool.shutdown(wait=False)
    (tmp_path / "stay").unlink()
    assert call.result(LIMIT_S) == str(tmp_path / "stay")


def test_shutdown_with_cancel_stops_what_has_not_begun(hub: dray.Hub, tmp_path: Path) -> None:
    (tmp_path / "stay").touch()
    pool = dray.Executor(1, hub=hub)
    running = pool.submit(sit, str(tmp_path / "stay"))
    deadline = time.monotonic() + LIMIT_S
    while not running.running():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    waiting = [pool.submit(power, number) for number in range(3)]
    pool.shutdown(wait=False, cancel_futures=True)
    assert all(call.cancelled() for call in waiting)
    (tmp_path / "stay").unlink()
    assert running.result(LIMIT_S)


def test_an_executor_that_is_dropped_is_collected(hub: dray.Hub) -> None:
    pool = dray.Executor(hub=hub)
    found = weakref.ref(pool)
    call = pool.submit(power, 4)
    assert call.result(LIMIT_S) == 16
    del pool
    gc.collect()
    assert found() is None


def test_collecting_waits_for_no_lock(hub: dray.Hub) -> None:
    """The collector may run in the middle of a submit, in the very thread that holds the client's lock."""
    pool = dray.Executor(hub=hub)
    assert pool.submit(power, 3).result(LIMIT_S) == 9
    endless = hub.map(power, itertools.count(), window=16, timeout=LIMIT_S)
    job = endless.job
    assert next(endless) == 0
    with hub._opened()[1].functions.desk._lock:
        del pool, endless
        gc.collect()
    assert hub.wait(job, LIMIT_S).state is dray.JobState.SUCCEEDED


def test_impossible_settings(hub: dray.Hub) -> None:
    with pytest.raises(ValueError, match="max_workers"):
        dray.Executor(0, hub=hub)
    with pytest.raises(TypeError, match="initializer"):
        dray.Executor(hub=hub, initializer="x")  # type: ignore[arg-type]  # the very mistake


def test_tasks_bring_their_keywords(hub: dray.Hub) -> None:
    @dray.task(cpus=2, memory="64m")
    def cube(x: int) -> int:
        """Times itself twice."""
        return x**3

    assert cube(2) == 8
    assert cube.__doc__ == "Times itself twice."
    assert hub.submit(cube, 3).result(LIMIT_S) == 27
    assert list(hub.map(cube, [1, 2], timeout=LIMIT_S)) == [1, 8]
    future = hub.submit(cube.options(cpus=1, name="cubes", key="cube-5"), 5)
    assert future.result(LIMIT_S) == 125
    spec = hub.status(future)["spec"]
    assert (spec["cpu_milli"], spec["memory_bytes"], spec["name"]) == (1000, 64 << 20, "cubes")
    with pytest.raises(TypeError, match="not a keyword"):
        dray.task(cpuz=1)


def test_a_task_finds_its_hub_by_itself(hub: dray.Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    @dray.task
    def twice(x: int) -> int:
        return 2 * x

    monkeypatch.setenv("DRAY_HOME", str(hub.config.home))
    monkeypatch.delenv("DRAY_HUB", raising=False)
    assert twice.submit(4).result(LIMIT_S) == 8
    assert list(twice.map([1, 2], timeout=LIMIT_S)) == [2, 4]
