"""What functions may do to themselves and to their process, and what is told of it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.agent.calls.call_hub import wait_for

from dray.functions.envelope import seal
from dray.functions.failures import RemoteError

if TYPE_CHECKING:
    from tests.agent.calls.call_hub import CallHub


def test_a_lambda_a_closure_and_keyword_defaults(shared: CallHub) -> None:
    factor = 3

    def scaled(value: int, by: int = factor) -> int:
        return value * by * factor

    assert shared.call(lambda x: x + 1, 1)[:2] == ("succeeded", 2)
    assert shared.call(scaled, 2)[:2] == ("succeeded", 18)


def test_an_exception_comes_with_its_remote_traceback(shared: CallHub) -> None:
    def divide(x: int) -> float:
        return 1 / x

    state, fault, (exit_class, error) = shared.call(divide, 0)
    assert (state, exit_class) == ("failed", "raised")
    assert isinstance(fault, ZeroDivisionError)
    assert "ZeroDivisionError: division by zero" in error
    text = str(fault.__cause__)
    assert "in divide" in text
    assert "program.py" not in text


def test_sys_exit_ends_the_call_and_not_the_runner(shared: CallHub) -> None:
    before = shared.call(os.getpid)[1]
    state, fault, (exit_class, _) = shared.call(sys.exit, 3)
    assert (state, exit_class) == ("failed", "raised")
    assert isinstance(fault, RemoteError)
    assert fault.message == "SystemExit: 3"
    assert before in {shared.call(os.getpid)[1] for _ in range(4)}


def test_os_exit_is_told_with_its_code(shared: CallHub) -> None:
    state, value, (exit_class, error) = shared.call(os._exit, 7)
    assert (state, value, exit_class) == ("failed", None, "crashed")
    assert "exit code 7" in error
    assert shared.call(lambda: "next")[:2] == ("succeeded", "next")


def test_a_segmentation_fault_is_told_with_its_signal(shared: CallHub) -> None:
    state, _, (exit_class, error) = shared.call(ctypes.string_at, 0)
    assert (state, exit_class) == ("failed", "crashed")
    assert "signal 11" in error
    assert shared.call(lambda: "next")[:2] == ("succeeded", "next")


def test_endless_recursion_is_an_exception(shared: CallHub) -> None:
    def dig(depth: int) -> int:
        return dig(depth + 1) + 1

    state, fault, (exit_class, _) = shared.call(dig, 0)
    assert (state, exit_class) == ("failed", "raised")
    assert isinstance(fault, RecursionError)


def test_endless_recursion_beyond_the_stack_crashes_its_process_only(shared: CallHub) -> None:
    def dig() -> Any:
        sys.setrecursionlimit(10**9)

        class Deep:
            def __repr__(self) -> str:
                return repr(self)

        return repr(Deep())

    state, _, (exit_class, _) = shared.call(dig)
    assert (state, exit_class) == ("failed", "crashed")
    assert shared.call(lambda: "next")[:2] == ("succeeded", "next")


def test_memory_that_cannot_be_had_is_an_exception(shared: CallHub) -> None:
    state, fault, (exit_class, _) = shared.call(lambda: bytearray(1 << 60))
    assert (state, exit_class) == ("failed", "raised")
    assert isinstance(fault, MemoryError)


def test_a_result_that_cannot_be_pickled_names_its_type(shared: CallHub) -> None:
    state, value, (exit_class, error) = shared.call(threading.Lock)
    assert (state, value, exit_class) == ("failed", None, "unpicklable")
    assert "lock" in error


def test_an_exception_that_cannot_be_pickled_is_told_in_words(shared: CallHub) -> None:
    def fail() -> None:
        class Odd(Exception):
            def __init__(self, one: int, two: Any) -> None:
                super().__init__("lost words")
                self.held = two

        raise Odd(1, threading.Lock())

    state, fault, (exit_class, error) = shared.call(fail)
    assert (state, exit_class) == ("failed", "raised")
    assert "lost words" in str(fault)
    assert "lost words" in error


def test_a_child_that_comes_back_from_the_function_is_no_second_runner(shared: CallHub) -> None:
    def fork() -> str:
        return "child" if os.fork() == 0 else "parent"

    assert shared.call(fork)[:2] == ("succeeded", "parent")
    assert shared.call(lambda: "next")[:2] == ("succeeded", "next")


def test_daemons_that_a_call_leaves_behind_do_not_delay_it_and_go_with_their_runner(shared: CallHub) -> None:
    def leave() -> int:
        return subprocess.Popen(["sleep", "1000"]).pid

    began = time.monotonic()
    state, pid, _ = shared.call(leave)
    assert state == "succeeded"
    assert time.monotonic() - began < 100
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "what the call left behind is gone")
    assert shared.call(lambda: "next")[:2] == ("succeeded", "next")


def test_ctrl_c_reaches_the_function_only(shared: CallHub) -> None:
    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    state, fault, (exit_class, _) = shared.call(interrupt)
    assert (state, exit_class) == ("failed", "raised")
    assert isinstance(fault, RemoteError)
    assert fault.message == "KeyboardInterrupt"
    for pid in shared.runner_pids():
        os.kill(pid, signal.SIGINT)
    assert shared.call(lambda: "next")[:2] == ("succeeded", "next")


def test_calls_run_in_the_main_thread(shared: CallHub) -> None:
    assert shared.call(lambda: threading.current_thread() is threading.main_thread())[1] is True


def test_another_python_is_refused_before_anything_runs(shared: CallHub) -> None:
    sealed = seal(os.getpid).function.replace(b'"python":"3.11"', b'"python":"3.99"')
    state, value, (exit_class, error) = shared.call(sealed)
    assert (state, value, exit_class) == ("failed", None, "environment")
    assert "3.99" in error
    assert "3.11" in error


def test_other_packages_are_refused_before_anything_runs(shared: CallHub) -> None:
    sealed = seal(os.getpid).function
    packages = b'"packages":{"msgspec":"0.1.0"}'
    changed = sealed.replace(b'"packages":{}', packages)
    length = int.from_bytes(changed[4:8], "little") + len(packages) - len(b'"packages":{}')
    changed = changed[:4] + length.to_bytes(4, "little") + changed[8:]
    state, _, (exit_class, error) = shared.call(changed)
    assert (state, exit_class) == ("failed", "environment")
    assert "msgspec" in error
    assert "0.1.0" in error


def test_a_module_that_the_worker_lacks_is_named(shared: CallHub) -> None:
    sealed = seal(os.getpid).function.replace(b"posix", b"gonex")
    state, _, (exit_class, error) = shared.call(sealed)
    assert (state, exit_class) == ("failed", "environment")
    assert "gonex" in error


def test_a_working_directory_that_is_missing_is_named(shared: CallHub) -> None:
    state, _, (exit_class, error) = shared.call(os.getcwd, workdir="/no/such/place")
    assert (state, exit_class) == ("failed", "environment")
    assert "/no/such/place" in error


def test_bytes_that_are_no_function_are_refused(shared: CallHub) -> None:
    state, _, (exit_class, error) = shared.call(b"nonsense")
    assert (state, exit_class) == ("failed", "environment")
    assert "no packed function" in error


def test_what_each_call_prints_is_kept_apart(shared: CallHub) -> None:
    def talk(word: str) -> None:
        print("out", word)  # noqa: T201 - what it is for
        print("err", word, file=sys.stderr)  # noqa: T201 - what it is for
        os.system(f"echo from a child {word}")

    shared.assign("8-1", "talk", talk, [("one",), ("two",), ("three",)])
    for index, word in enumerate(("one", "two", "three")):
        assert shared.end("talk", index)[0] == "succeeded"
        wait_for(lambda i=index: f"talk/{i} stdout" in shared.output, "its output has arrived")  # type: ignore[misc]  # a default of a lambda
        assert shared.output[f"talk/{index} stdout"] == f"out {word}\nfrom a child {word}\n".encode()
        wait_for(lambda i=index: f"talk/{i} stderr" in shared.output, "its errors have arrived")  # type: ignore[misc]  # a default of a lambda
        assert shared.output[f"talk/{index} stderr"] == f"err {word}\n".encode()


def test_a_call_that_closes_its_output_does_not_silence_the_next(shared: CallHub) -> None:
    def close() -> None:
        sys.stdout.close()
        os.close(2)

    def talk() -> int:
        print("heard")  # noqa: T201 - what it is for
        return os.getpid()

    assert shared.call(close)[0] == "succeeded"
    assert shared.call(talk)[0] == "succeeded"
    wait_for(lambda: shared.output.get(f"{shared.last_job}/0 stdout") == b"heard\n", "the next one is heard")


def test_a_call_finds_its_job_around_it(shared: CallHub) -> None:
    names = ("DRAY_JOB_ID", "DRAY_TASK_ID", "DRAY_TOKEN", "DRAY_IN_CALL", "MINE", "DRAY_RUNNER")
    state, found, _ = shared.call(lambda: {name: os.environ.get(name) for name in names}, env={"MINE": "yes"})
    job = shared.last_job
    assert state == "succeeded"
    assert found == {
        "DRAY_JOB_ID": job,
        "DRAY_TASK_ID": f"{job}/0",
        "DRAY_TOKEN": "task-token",
        "DRAY_IN_CALL": "1",
        "MINE": "yes",
        "DRAY_RUNNER": None,
    }
    assert shared.call(lambda: os.environ.get("MINE"))[1] is None


def test_a_session_works_inside_a_call(shared: CallHub) -> None:
    def report() -> str:
        import dray

        session = dray.session()
        session.progress(step=5, note="half")
        return session.task_id

    state, task_id, _ = shared.call(report)
    assert (state, task_id) == ("succeeded", f"{shared.last_job}/0")
    payload = shared.wait_told("job_progress")[-1]
    assert (payload["task_id"], payload["step"], payload["note"]) == (shared.last_job, 5, "half")


@pytest.mark.parametrize("devices", [[], [0, 2]])
def test_a_call_sees_the_cards_it_was_given(shared: CallHub, devices: list[int]) -> None:
    job, lane = f"cards{len(devices)}", f"7-{len(devices)}"
    shared.assign(lane, job, lambda: os.environ["CUDA_VISIBLE_DEVICES"], [()], devices=devices)
    assert shared.end(job)[:2] == ("succeeded", ",".join(map(str, devices)))


def test_what_a_call_prints_is_seen_while_it_runs(shared: CallHub, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")

    def talk() -> None:
        print("begun")  # noqa: T201 - what it is for
        while not os.path.exists(gate):
            time.sleep(0.01)
        print("done")  # noqa: T201 - what it is for

    shared.assign("8-2", "live", talk, [()])
    wait_for(lambda: shared.output.get("live/0 stdout") == b"begun\n", "its first words are here")
    (tmp_path / "gate").touch()
    wait_for(lambda: shared.output.get("live/0 stdout") == b"begun\ndone\n", "the rest as well")
    assert shared.end("live")[0] == "succeeded"
