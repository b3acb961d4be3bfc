"""One function at a time through a real hub, agent and runner: what comes back, what is refused, what can be asked."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dray
from dray.errors import InvalidInput, InvalidSpec, TooLarge
from dray.functions.failures import RemoteTraceback
from dray.functions.values import Unpicklable

LIMIT_S = 60.0


def double(x: int, plus: int = 0) -> int:
    return 2 * x + plus


def fail(number: int) -> None:
    sys.stdout.write(f"before {number}\n")
    if number == 2:
        os.close(2)
    raise ValueError(f"not {number}")


def complain(text: str) -> None:
    raise ValueError(text)


def speak(text: str) -> str:
    sys.stdout.write(f"{text}\n")
    return os.environ["DRAY_TASK_ID"]


def sit(path: str) -> None:
    """Runs until the file is gone."""
    while os.path.exists(path):
        time.sleep(0.01)


def total(values: Any, *more: float) -> float:
    return float(np.sum(values)) + sum(more)


def test_a_call_gives_its_result(hub: dray.Hub) -> None:
    future = hub.submit(double, 21)
    assert isinstance(future, concurrent.futures.Future)
    assert future.result(LIMIT_S) == 42
    assert future.done()
    assert future.state is dray.JobState.SUCCEEDED
    assert future.exception() is None
    assert hub.job(future.id).result(LIMIT_S) == 42


def test_calls_of_one_function_share_one_job(hub: dray.Hub) -> None:
    futures = [hub.submit(double, number) for number in range(50)]
    assert [future.result(LIMIT_S) for future in futures] == [2 * number for number in range(50)]
    assert len({future.id.partition("/")[0] for future in futures}) == 1


def test_keywords_of_the_function_and_of_submit_are_told_apart(hub: dray.Hub) -> None:
    assert hub.submit(double, 1, plus=5, cpus=0.5, memory="64m").result(LIMIT_S) == 7
    assert hub.submit(double, 1, resources={"cpu": 1, "memory": "64m"}).result(LIMIT_S) == 2
    with pytest.raises(TypeError, match=r"'cpuss' is neither .* did you mean 'cpus'"):
        _ = hub.submit(double, 1, cpuss=2)
    with pytest.raises(InvalidInput, match="'name' is a keyword of submit and a parameter"):
        _ = hub.submit(lambda name: name, name="x")
    with pytest.raises(InvalidSpec, match="priority"):
        _ = hub.submit(double, 1, priority="high")
    with pytest.raises(InvalidInput, match="no arguments of its own"):
        _ = hub.submit(["true"], 1)  # type: ignore[call-overload]  # the very mistake


def test_lambdas_closures_partials_methods_and_builtins(hub: dray.Hub) -> None:
    offset = 10

    def shift(x: int) -> int:
        return x + offset

    assert hub.submit(lambda x: x * 3, 2).result(LIMIT_S) == 6
    assert hub.submit(shift, 1).result(LIMIT_S) == 11
    offset = 20
    assert hub.submit(shift, 1).result(LIMIT_S) == 21
    assert hub.submit(functools.partial(double, plus=1), 2).result(LIMIT_S) == 5
    assert hub.submit("a-b".split, "-").result(LIMIT_S) == ["a", "b"]
    assert hub.submit(sum, [1, 2, 3]).result(LIMIT_S) == 6


def test_exceptions_come_back_with_their_traceback(hub: dray.Hub) -> None:
    future = hub.submit(complain, "not today")
    with pytest.raises(ValueError, match="not today") as caught:
        future.result(LIMIT_S)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "in complain" in str(caught.value.__cause__)
    assert future.state is dray.JobState.FAILED
    with pytest.raises(ValueError, match="not today"):
        hub.job(future.id).result(LIMIT_S)


def test_what_cannot_be_pickled_is_named_at_submit(hub: dray.Hub) -> None:
    guard = threading.Lock()
    with pytest.raises(Unpicklable, match=r"argument 2 of double\(\) is a lock"):
        _ = hub.submit(double, 1, guard)
    with pytest.raises(Unpicklable, match=r"'guard', a lock"):
        _ = hub.submit(lambda: guard)


def test_an_argument_beyond_the_limit_is_refused_with_the_limit(hub: dray.Hub) -> None:
    with pytest.raises(TooLarge, match=str(4 << 30)):
        _ = hub.submit(total, np.zeros(10 << 30, dtype=np.uint8))


@pytest.mark.parametrize("size", [1_000, 200_000, 3_000_000])
def test_arrays_of_any_size_go_both_ways(hub: dray.Hub, size: int) -> None:
    array = np.arange(size, dtype=np.float64)

    def add_one(values: np.ndarray) -> np.ndarray:
        values += 1  # in place: what arrives may be written to
        return values

    result = hub.submit(add_one, array).result(LIMIT_S)
    assert np.array_equal(result, array + 1)
    result[0] = 7.0


def test_output_of_each_call_is_kept_apart(hub: dray.Hub) -> None:
    futures = [hub.submit(speak, f"call {number}") for number in range(3)]
    for number, future in enumerate(futures):
        assert future.result(LIMIT_S) == future.id
        deadline = time.monotonic() + LIMIT_S
        while b"".join(future.logs()) != f"call {number}\n".encode():
            assert time.monotonic() < deadline, b"".join(future.logs())
            time.sleep(0.02)


def test_the_traceback_of_a_call_is_in_its_output(hub: dray.Hub, wait_until: Callable[..., object]) -> None:
    """Where that of a program would be, of each item of a map; one that closed its own stderr fails as ever."""
    failed = hub.map(fail, range(3), return_exceptions=True)
    assert [str(fault) for fault in failed] == ["not 0", "not 1", "not 2"]
    for number in range(2):
        task = f"{failed.job}/{number}"
        wait_until(lambda task=task: b"Traceback" in b"".join(hub.logs(task)), what=f"the output of {task}")
        output = b"".join(hub.logs(task)).decode()
        assert f"before {number}\n" in output
        assert 'raise ValueError(f"not {number}")' in output
        assert output.rstrip().endswith(f"ValueError: not {number}")
        assert "dray/runner" not in output


def test_an_impossible_call_ends_as_unschedulable(hub: dray.Hub) -> None:
    future = hub.submit(double, 1, resources={"cpu": 100}, scheduling_timeout_seconds=0.3)
    status = hub.wait(future, LIMIT_S)
    assert status.state == dray.JobState.UNSCHEDULABLE
    assert status["state"] == status.state
    assert future.state is dray.JobState.UNSCHEDULABLE
    with pytest.raises(dray.CallFailed) as caught:
        future.result()
    assert caught.value.state == "unschedulable"


def test_a_waiting_call_says_why_and_can_be_cancelled(hub: dray.Hub) -> None:
    future = hub.submit(double, 1, cpus=100)
    assert future.state is dray.JobState.PENDING
    assert future.why()["state"] == "pending"
    with pytest.raises(TimeoutError, match="it goes on"):
        future.result(timeout=0.05)
    assert future.cancel() is True
    assert future.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(LIMIT_S)


def test_a_running_call_is_stopped(hub: dray.Hub, tmp_path: Path) -> None:
    (tmp_path / "stay").touch()
    future = hub.submit(sit, str(tmp_path / "stay"))
    deadline = time.monotonic() + LIMIT_S
    while future.state is not dray.JobState.RUNNING:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert future.running()
    assert future.cancel() is True
    assert hub.submit(double, 4).result(LIMIT_S) == 8
    assert future.cancel() is True
    assert future.state.value == "killed"


def test_a_future_as_argument_passes_its_value_on(hub: dray.Hub) -> None:
    first = hub.submit(double, 4)
    second = hub.submit(double, first, plus=1)
    third = hub.submit(total, [first.result(LIMIT_S)], first, second)
    assert second.result(LIMIT_S) == 17
    assert third.result(LIMIT_S) == 8 + 8 + 17


def test_a_large_value_is_passed_on_without_the_client(hub: dray.Hub) -> None:
    made = hub.submit(np.ones, 500_000)
    assert hub.submit(total, made).result(LIMIT_S) == 500_000


def test_a_failed_dependency_ends_what_needs_it(hub: dray.Hub) -> None:
    future = hub.submit(double, hub.submit(complain, "broken"))
    with pytest.raises(dray.CallFailed) as caught:
        future.result(LIMIT_S)
    assert caught.value.exit_class == "dependency"


def pledge() -> object:
    return dray.connect().submit(abs, -1)


def test_what_makes_no_sense_is_told(hub: dray.Hub) -> None:
    with pytest.raises(dray.CallFailed, match=r"returned a CallFuture that refers to .*result\(\)") as caught:
        hub.submit(pledge).result(LIMIT_S)
    assert caught.value.exit_class == "unpicklable"
    # An exit of the function is not one of the program that asks for its result.
    with pytest.raises(dray.CallFailed, match="SystemExit: 3"):
        hub.submit(sys.exit, 3).result(LIMIT_S)
    with pytest.raises(TypeError, match="something to go over"):
        hub.map(abs)
    with pytest.raises(TypeError, match=r"got a list: write gather\(\*futures\)"):
        dray.gather([hub.submit(abs, -1)])  # type: ignore[arg-type]  # the mistake
    waiting = hub.submit(time.sleep, 30)
    assert waiting.cancel()
    with pytest.raises(concurrent.futures.CancelledError, match=r"sleep\(\) .* was cancelled"):
        waiting.result(LIMIT_S)


def test_futures_work_with_the_standard_tools(hub: dray.Hub) -> None:
    futures = [hub.submit(double, number) for number in range(8)]
    done, _ = concurrent.futures.wait(futures, LIMIT_S)
    assert len(done) == 8
    assert sorted(future.result() for future in concurrent.futures.as_completed(futures, LIMIT_S)) == [
        2 * number for number in range(8)
    ]
    assert sorted(future.result() for future in dray.as_completed(futures, LIMIT_S)) == [
        2 * number for number in range(8)
    ]
    assert dray.gather(*futures, timeout=LIMIT_S) == [2 * number for number in range(8)]
    failed = dray.gather(hub.submit(complain, "x"), futures[0], timeout=LIMIT_S, return_exceptions=True)
    assert isinstance(failed[0], ValueError)
    assert failed[1] == 0


def test_callbacks_may_ask_for_more(hub: dray.Hub) -> None:
    heard: list[int] = []
    told = threading.Event()

    def go_on(future: Any) -> None:
        heard.append(hub.submit(double, future.result()).result(LIMIT_S))
        told.set()

    hub.submit(double, 5).add_done_callback(go_on)
    assert told.wait(LIMIT_S)
    assert heard == [20]


async def test_futures_are_awaited(hub: dray.Hub) -> None:
    async with asyncio.timeout(LIMIT_S):
        assert await hub.submit(double, 3) == 6
        assert await asyncio.gather(*(hub.submit(double, number) for number in range(5))) == [0, 2, 4, 6, 8]
        with pytest.raises(ValueError, match="gone"):
            await hub.submit(complain, "gone")


async def test_an_event_loop_is_not_kept_waiting(hub: dray.Hub) -> None:
    async with asyncio.timeout(LIMIT_S), dray.AsyncHub(hub.config) as client:
        for asked in (hub, client):
            given = asked.submit(time.sleep, LIMIT_S)
            future = given if isinstance(given, dray.Future) else await given
            task_id = await asyncio.to_thread(getattr, future, "id")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(future), 0.1)
            # It was stopped, as asyncio stops what it no longer waits for.
            assert (await client.wait(task_id)).state is dray.JobState.KILLED
        running = await client.submit(time.sleep, LIMIT_S)
        with pytest.raises(RuntimeError, match="ask the AsyncHub"):
            running.why()
        assert running.cancel()


async def test_the_async_client_takes_functions_too(hub: dray.Hub) -> None:
    async with asyncio.timeout(LIMIT_S), dray.AsyncHub(hub.config) as client:
        assert await (await client.submit(double, 3, plus=1, cpus=1)) == 7
        futures = [await client.submit(double, number) for number in range(10)]
        assert [await future for future in futures] == [2 * number for number in range(10)]


def test_a_key_submits_once(hub: dray.Hub) -> None:
    first = hub.submit(double, 8, key="only-once")
    assert first.result(LIMIT_S) == 16
    again = hub.submit(double, 8, key="only-once")
    assert again.result(LIMIT_S) == 16
    assert again.id == first.id


def test_many_threads_share_one_client(hub: dray.Hub) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda number: hub.submit(double, number).result(LIMIT_S), range(200)))
    assert results == [2 * number for number in range(200)]


def test_a_command_is_a_future_as_well(hub: dray.Hub) -> None:
    job = hub.submit(["sh", "-c", "echo there"])
    assert concurrent.futures.wait([job], LIMIT_S).done == {job}
    assert job.result(LIMIT_S).exit_code == 0
    failed = hub.submit(["sh", "-c", "exit 3"])
    with pytest.raises(dray.CallFailed):
        failed.result(LIMIT_S)
    assert isinstance(failed.exception(LIMIT_S), dray.CallFailed)


def test_what_to_do_about_a_function_that_failed_is_something_that_can_be_done(hub: dray.Hub) -> None:
    future = hub.submit(divmod, 1, 0)
    with pytest.raises(ZeroDivisionError):
        future.result(LIMIT_S)
    verdict = hub.status(future.id).verdict
    assert verdict is not None
    assert verdict["step"].endswith("then: call it again"), verdict
