"""Functions that submit functions: the slot is given up while they wait, so that depth is not bounded by slots."""

from __future__ import annotations

import gc
import threading
import time

import dray

LIMIT_S = 90.0


def fibonacci(n: int) -> int:
    if n < 2:
        return n
    hub = dray.connect()
    children = [hub.submit(fibonacci, n - 1), hub.submit(fibonacci, n - 2)]
    return int(children[0].result(60) + children[1].result(60))


def descend(depth: int) -> int:
    if depth == 0:
        return 0
    return 1 + int(dray.connect().submit(descend, depth - 1).result(60))


def map_inside(n: int) -> int:
    return sum(dray.connect().map(abs, range(-n, 0), timeout=60))


def test_recursion_deeper_than_the_slots_ends(hub: dray.Hub) -> None:
    assert hub.submit(descend, 8).result(LIMIT_S) == 8


def test_a_tree_of_calls(hub: dray.Hub) -> None:
    assert hub.submit(fibonacci, 5).result(LIMIT_S) == 5


def test_a_map_inside_a_call(hub: dray.Hub) -> None:
    assert hub.submit(map_inside, 10).result(LIMIT_S) == 55


def divide_inside() -> object:
    return dray.connect().submit(divmod, 7, 2).result(60)


def test_what_calls_have_opened_ends_soon_after_them(hub: dray.Hub) -> None:
    assert hub.submit(divide_inside).result(LIMIT_S) == (3, 1)
    deadline = time.monotonic() + LIMIT_S / 3  # well before the hub would close it by itself
    while hub.jobs(name="divmod")[0].state is not dray.JobState.SUCCEEDED:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def count_connections(n: int) -> int:
    """Ask for the hub again and again, as calls do; give how many threads that left behind."""
    for number in range(n):
        assert dray.connect().submit(abs, -number).result(60) == number
    return sum(thread.name == "dray-client" for thread in threading.enumerate())


def test_calls_of_one_job_share_a_connection(hub: dray.Hub) -> None:
    assert hub.submit(count_connections, 5).result(LIMIT_S) == 1


def test_a_connection_that_nobody_holds_is_ended(hub: dray.Hub) -> None:
    def clients() -> int:
        return sum(thread.name == "dray-client" for thread in threading.enumerate())

    before = clients()
    future = dray.connect(home=hub.config.home).submit(abs, -7)
    gc.collect()
    assert clients() == before + 1
    assert future.result(LIMIT_S) == 7
    del future
    deadline = time.monotonic() + LIMIT_S
    while clients() > before:
        assert time.monotonic() < deadline
        gc.collect()
        time.sleep(0.02)
