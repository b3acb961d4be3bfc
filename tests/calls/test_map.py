"""Maps through a real cluster: order, bounds, failures, and what is left when somebody dies in the middle."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests import warm

import dray
from dray.client.faces.private_hub import PrivateHub
from dray.errors import InvalidInput

LIMIT_S = 60.0


def square(x: int) -> int:
    return x * x


def divide(a: float, b: float) -> float:
    return a / b


def drowse(x: float) -> float:
    time.sleep(x)
    return x


def test_results_come_in_order(hub: dray.Hub) -> None:
    results = hub.map(square, range(3000), timeout=LIMIT_S)
    assert list(results) == [number * number for number in range(3000)]
    assert hub.wait(results.job, LIMIT_S).state is dray.JobState.SUCCEEDED
    assert hub.job(results.job).result(LIMIT_S) == [number * number for number in range(3000)]


def test_results_come_as_they_are_ready(hub: dray.Hub) -> None:
    assert list(hub.map(drowse, [0.6, 0.0], ordered=False, timeout=LIMIT_S)) == [0.0, 0.6]
    assert sorted(hub.map(square, range(500), ordered=False, timeout=LIMIT_S)) == sorted(
        number * number for number in range(500)
    )


def test_several_inputs_are_paired(hub: dray.Hub) -> None:
    assert list(hub.map(divide, [8.0, 9.0], [2.0, 3.0, 4.0], timeout=LIMIT_S)) == [4.0, 3.0]
    assert list(hub.map(square, [], timeout=LIMIT_S)) == []
    assert list(hub.map(square, [3], timeout=LIMIT_S)) == [9]


def test_an_endless_input_is_read_as_results_are_taken(hub: dray.Hub) -> None:
    read = []

    def numbers() -> Iterator[int]:
        for number in itertools.count():
            read.append(number)
            yield number

    results = hub.map(square, numbers(), window=600, timeout=LIMIT_S)
    assert list(itertools.islice(results, 2000)) == [number * number for number in range(2000)]
    assert len(read) <= 2000 + 600
    results.close()
    assert hub.wait(results.job, LIMIT_S).state.final


def test_an_exception_reaches_the_caller_and_stops_the_rest(hub: dray.Hub) -> None:
    results = hub.map(divide, [1.0, 1.0], [1.0, 0.0], timeout=LIMIT_S)
    assert next(results) == 1.0
    with pytest.raises(ZeroDivisionError) as caught:
        next(results)
    assert caught.value.__notes__ == [f"item 1 of the map of divide(), job {results.job}"]
    with pytest.raises(StopIteration):
        next(results)
    given = list(hub.map(divide, [1.0, 1.0], [0.0, 1.0], timeout=LIMIT_S, return_exceptions=True))
    assert isinstance(given[0], ZeroDivisionError)
    assert given[1] == 1.0


def interrupt() -> None:
    raise KeyboardInterrupt


class Interrupting:
    """Opening it is the moment at which somebody presses Ctrl-C."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return interrupt, ()


def test_an_interrupt_while_a_result_is_opened_stops_the_rest(hub: dray.Hub) -> None:
    results = hub.map(lambda n: time.sleep(600) if n else Interrupting(), range(50))
    with pytest.raises(KeyboardInterrupt) as caught:
        next(results)
    assert "the rest was cancelled" in caught.value.__notes__[0]
    assert hub.wait(results.job, LIMIT_S).state is dray.JobState.KILLED
    assert list(results) == []


def test_an_input_that_breaks_stops_what_was_sent_of_it(hub: dray.Hub) -> None:
    def naps() -> Iterator[float]:
        yield from itertools.repeat(0.0, 10)
        yield from itertools.repeat(30.0, 10)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        hub.map(drowse, naps(), name="broken-at-once")
    results = hub.map(drowse, naps(), name="broken-later", window=20, timeout=LIMIT_S)
    assert "of 20 and more ended" in repr(results)
    assert [next(results) for _ in range(10)] == [0.0] * 10
    with pytest.raises(RuntimeError, match="no more") as caught:
        next(results)
    assert caught.value.__notes__ == [f"drowse() was stopped here, job {results.job}; the rest was cancelled"]
    for job in (results.job, *(job.id for job in hub.jobs(name="broken-at-once"))):
        assert hub.wait(job, LIMIT_S).state is dray.JobState.KILLED


def test_a_map_has_its_time(hub: dray.Hub) -> None:
    with pytest.raises(TimeoutError, match="the job goes on"):
        list(hub.map(drowse, [30.0], timeout=0.2))


def test_keywords_of_a_map(hub: dray.Hub) -> None:
    assert list(hub.map(square, range(4), cpus=2, limit=1, name="squares", timeout=LIMIT_S)) == [0, 1, 4, 9]
    with pytest.raises(TypeError, match="not a keyword of map"):
        hub.map(square, [1], cpuss=2)
    with pytest.raises(InvalidInput, match="use submit"):
        hub.map(square, [1], key="once")


def test_large_arguments_and_results(hub: dray.Hub) -> None:
    arrays = [np.full(100_000, number, dtype=np.float64) for number in range(12)]
    for number, result in enumerate(hub.map(np.negative, arrays, timeout=LIMIT_S)):
        assert result.shape == (100_000,)
        assert result[0] == -number


KILLED = """
import dray, os, signal, sys
hub = dray.connect(home=sys.argv[1])
results = hub.map(lambda x: x + 1, range(2000), timeout=60)
print(results.job, flush=True)
for place, value in enumerate(results):
    if place == 10:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_client_killed_in_the_middle_leaves_results_that_can_be_read(
    cluster: PrivateHub, hub: dray.Hub
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, str(cluster.home)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == -signal.SIGKILL
    job = hub.job(ran.stdout.strip())
    deadline = time.monotonic() + LIMIT_S
    while True:
        # The array stays open until the hub notices that nobody adds to it: what was recorded runs all the same.
        rows = hub.recorded(job)
        ended = int(hub.status(job)["tasks"]["total"])
        if rows and len(rows) == ended:
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert all(row.state == "succeeded" for row in rows)
    assert hub.job(f"{job.id}/7").result(LIMIT_S) == 8


def test_a_hub_killed_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    from dray.testing import running_hub

    with running_hub(tmp_path / "h") as running:
        agent = warm.Popen[bytes](
            [sys.executable, "-P", "-m", "dray.cli.main", "worker", "start", "--home", str(running.home)],
            env={**os.environ, "DRAY_WORKER_RECONNECT_MIN_S": "0.05", "DRAY_WORKER_RECONNECT_MAX_S": "0.2"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with running.connect() as hub:
                results = hub.map(square, range(20_000), timeout=LIMIT_S)
                taken = [next(results) for _ in range(500)]
                running.kill()
                running.start()
                taken += list(results)
            assert taken == [number * number for number in range(20_000)]
        finally:
            agent.terminate()
            agent.wait()


def add(a: int, b: int) -> int:
    return a + b


def late(x: float) -> float:
    time.sleep(0.3)
    return x


def test_items_that_are_futures_stand_for_their_results(hub: dray.Hub) -> None:
    futures = [hub.submit(late, number) for number in (1, 2, 3)]
    results = hub.map(add, [*futures, 10, 20], [futures[0], 5, 5, 5, futures[1]], timeout=LIMIT_S)
    assert list(results) == [2, 7, 8, 15, 22]
    assert len(results.jobs) == 5


def test_what_all_items_need_is_waited_for_once(hub: dray.Hub) -> None:
    large = hub.submit(np.ones, 300_000)
    results = hub.map(np.dot, itertools.repeat(large), range(40), timeout=LIMIT_S)
    assert [result.sum() for result in results] == [300_000 * number for number in range(40)]
    assert len(results.jobs) == 1


def test_a_future_inside_the_function_itself_is_waited_for(hub: dray.Hub) -> None:
    first = hub.submit(late, 4)
    bound: functools.partial[int] = functools.partial(add, b=first)  # type: ignore[arg-type]  # stands for its result
    assert hub.submit(bound, 1).result(LIMIT_S) == 5
    second = hub.submit(late, 6)
    assert list(hub.map(lambda x: x + second, range(3), timeout=LIMIT_S)) == [6, 7, 8]


def test_a_future_that_fails_fails_the_items_that_need_it(hub: dray.Hub) -> None:
    def fail() -> int:
        time.sleep(0.2)
        raise ValueError("broken")

    for known in (False, True):
        broken = hub.submit(fail)
        if known:
            broken.exception(LIMIT_S)
        given = list(hub.map(square, [2, broken, 3], timeout=LIMIT_S, return_exceptions=True))
        assert (given[0], given[2]) == (4, 9)
        assert isinstance(given[1], dray.CallFailed)
        assert given[1].exit_class == "dependency"


def test_a_cap_and_items_that_need_different_futures_are_refused(hub: dray.Hub) -> None:
    futures = [hub.submit(square, number) for number in (1, 2)]
    with pytest.raises(InvalidInput, match="leave limit out"):
        hub.map(square, futures, limit=2)
    assert list(hub.map(add, itertools.repeat(futures[1]), [1, 2], limit=2, timeout=LIMIT_S)) == [5, 6]


def test_what_is_cancelled_does_not_go_on_in_another_array(hub: dray.Hub) -> None:
    items, name = itertools.repeat(0.01, 49_000), "cancelled-early"
    results = hub.map(drowse, items, name=name, progress=False, return_exceptions=True)
    results.cancel()
    given = list(results)
    assert len(given) == 49_000
    assert isinstance(given[-1], dray.CallFailed)
    assert hub.wait(results.job, LIMIT_S).state is dray.JobState.KILLED
    assert [job.id for job in hub.jobs(name=name)] == [results.job]
