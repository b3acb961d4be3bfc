"""Waiting inside a call, by every way that Python knows: each gives the slot up, so that depth may exceed the slots."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dray

LIMIT_S = 60.0
# As many as the cluster has slots wait, and one more must run.
DEPTH = 4


def by_wait(depth: int) -> int:
    if depth == 0:
        return 0
    below = dray.connect().submit(by_wait, depth - 1)
    done, late = concurrent.futures.wait([below], LIMIT_S)
    assert not late
    return 1 + int(done.pop().result())


def by_wait_for_the_first(depth: int) -> int:
    if depth == 0:
        return 0
    # A future of another kind beside it must not keep the wait from being noticed.
    hub, other = dray.connect(), concurrent.futures.Future[int]()
    below = hub.submit(by_wait_for_the_first, depth - 1)
    done, _ = concurrent.futures.wait([below, other], LIMIT_S, concurrent.futures.FIRST_COMPLETED)
    return 1 + int(done.pop().result())


def by_as_completed(depth: int) -> int:
    if depth == 0:
        return 0
    hub = dray.connect()
    below = [hub.submit(abs, 0), hub.submit(by_as_completed, depth - 1)]
    return 1 + sum(int(future.result()) for future in concurrent.futures.as_completed(below, LIMIT_S))


def by_await(depth: int) -> int:
    async def ask() -> int:
        return 1 + int(await dray.connect().submit(by_await, depth - 1))

    return asyncio.run(asyncio.wait_for(ask(), LIMIT_S)) if depth else 0


def by_gathering_in_a_loop(depth: int) -> int:
    async def ask() -> int:
        hub = dray.connect()
        below = [hub.submit(by_gathering_in_a_loop, depth - 1), hub.submit(abs, 0)]
        return 1 + int(sum(await asyncio.gather(*below)))

    return asyncio.run(ask()) if depth else 0


def by_wrapping(depth: int) -> int:
    async def ask() -> int:
        below = asyncio.wrap_future(dray.connect().submit(by_wrapping, depth - 1))
        return 1 + int(await asyncio.wait_for(below, LIMIT_S))

    return asyncio.run(ask()) if depth else 0


def by_run_in_executor(depth: int) -> int:
    async def ask() -> int:
        with dray.Executor(hub=dray.connect()) as pool:
            return 1 + int(
                await asyncio.get_running_loop().run_in_executor(pool, by_run_in_executor, depth - 1)
            )

    return asyncio.run(ask()) if depth else 0


def by_shutdown(depth: int) -> int:
    if depth == 0:
        return 0
    with dray.Executor(hub=dray.connect()) as pool:
        below = pool.submit(by_shutdown, depth - 1)
    return 1 + below.result(0)


def by_capped_map(depth: int) -> int:
    if depth == 0:
        return 0
    return 1 + int(sum(dray.connect().map(by_capped_map, [depth - 1], limit=1, timeout=LIMIT_S)))


def by_capped_executor(depth: int) -> int:
    if depth == 0:
        return 0
    with dray.Executor(1, hub=dray.connect()) as pool:
        return 1 + int(pool.submit(by_capped_executor, depth - 1).result(LIMIT_S))


def by_joblib(depth: int) -> int:
    import joblib

    import dray.joblib  # noqa: F401 - registers the backend

    if depth == 0:
        return 0
    with joblib.parallel_config("dray", n_jobs=2):
        return 1 + int(joblib.Parallel()(joblib.delayed(by_joblib)(depth - 1) for _ in range(1))[0])


def by_async_hub(depth: int) -> int:
    async def ask() -> int:
        async with dray.AsyncHub(dray.connect().config) as hub:
            return 1 + int(await (await hub.submit(by_async_hub, depth - 1)))

    return asyncio.run(ask()) if depth else 0


def lose_patience(folder: str) -> list[str]:
    """Wait for something that takes longer, in each way that can be cut short; then go on until told otherwise."""
    late, told = dray.connect().submit(time.sleep, LIMIT_S), []

    async def ask() -> None:
        try:
            await asyncio.wait_for(late, 0.3)
        except TimeoutError:
            told.append("await")

    asyncio.run(ask())
    if concurrent.futures.wait([late], 0.3).not_done:
        told.append("wait")
    try:
        next(concurrent.futures.as_completed([late], 0.3))
    except TimeoutError:
        told.append("as_completed")
    late.cancel()
    Path(folder, "ready").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    return told


def test_a_wait_that_is_cut_short_takes_the_slot_back(
    hub: dray.Hub, tmp_path: Path, wait_until: Callable[..., object]
) -> None:
    future = hub.submit(lose_patience, str(tmp_path))
    wait_until((tmp_path / "ready").exists, LIMIT_S)
    # Of four slots one is its own again; what it waited for has gone.
    wait_until(lambda: hub.workers()[0]["active_jobs"] == 1)
    wait_until(lambda: hub.workers()[0]["free"]["batch_slots"] == 3)
    (tmp_path / "go").touch()
    assert future.result(LIMIT_S) == ["await", "wait", "as_completed"]


@pytest.mark.parametrize(
    "descend",
    [
        by_wait,
        by_wait_for_the_first,
        by_as_completed,
        by_await,
        by_gathering_in_a_loop,
        by_wrapping,
        by_run_in_executor,
        by_shutdown,
        by_capped_map,
        by_capped_executor,
        by_joblib,
        by_async_hub,
    ],
)
def test_recursion_deeper_than_the_slots_ends(hub: dray.Hub, descend: Callable[[int], Any]) -> None:
    future = hub.submit(descend, DEPTH)
    try:
        assert future.result(LIMIT_S) == DEPTH
    finally:
        future.cancel()


def test_calls_of_a_capped_map_that_wait_for_others_let_those_run(hub: dray.Hub) -> None:
    # Whoever waits still counts towards the cap of its own map, and what it waits for has a cap of its own.
    results = hub.map(by_capped_map, [DEPTH // 2] * 4, limit=1, timeout=LIMIT_S)
    assert list(results) == [DEPTH // 2] * 4
