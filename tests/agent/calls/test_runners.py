"""Runners as processes: kept warm, reused, bound, recycled; environments; what is large."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from tests.agent.calls.call_hub import wait_for
from tests.agent.calls.foreign_hub import ForeignHub

import dray
from dray.functions.values import pack

if TYPE_CHECKING:
    from tests.agent.calls.call_hub import CallHub


def test_as_many_as_there_are_slots_wait_and_one_that_dies_is_replaced(hub: CallHub) -> None:
    hub.start_agent(3)
    wait_for(lambda: len(hub.runner_pids()) == 3, "three runners are ready")
    before = hub.runner_pids()
    os.kill(before[0], signal.SIGKILL)
    wait_for(lambda: len({*hub.runner_pids()} - {before[0]}) == 3, "three again")


def test_calls_of_one_user_reuse_a_runner_and_others_never_get_it(hub: CallHub) -> None:
    hub.start_agent(2)
    mine = {hub.call(os.getpid)[1] for _ in range(5)}
    assert len(mine) == 1
    theirs = {hub.call(os.getpid, user_id="another")[1] for _ in range(3)}
    assert not mine & theirs
    cards = set()
    for number in range(3):
        hub.assign(f"3-{number}", f"cards{number}", os.getpid, [()], devices=[1])
        cards.add(hub.end(f"cards{number}")[1])
    assert not cards & (mine | theirs)


def test_a_runner_that_comes_back_to_its_lane_is_not_told_of_it_anew(hub: CallHub) -> None:
    hub.start_agent(1)

    def bindings() -> list[int]:
        return [int.from_bytes(file.read_bytes()[:4], "little") for file in hub.folder.rglob("lane")]

    for number in range(3):
        hub.assign("1-1", "j", os.getpid, [()], first=number)
        hub.end("j", number)
    assert bindings() == [1]
    hub.assign("1-2", "other", os.getpid, [()])
    hub.end("other", 0)
    hub.assign("1-1", "j", os.getpid, [()], first=3)
    hub.end("j", 3)
    assert bindings() == [3], "after another lane it must be told again"


def test_a_worn_runner_is_replaced_without_losing_a_call(hub: CallHub) -> None:
    hub.start_agent(1)
    for start in range(0, 10_000, 500):
        hub.assign("1-1", "j", os.getpid, [()] * 500, first=start)
    wait_for(lambda: len(hub.ends) == 10_000, "all have ended", 60)
    (worn,) = {hub.end("j", index)[1] for index in range(10_000)}
    hub.assign("1-1", "j", os.getpid, [()] * 10, first=10_000)
    (fresh,) = {hub.end("j", 10_000 + index)[1] for index in range(10)}
    assert fresh != worn
    wait_for(lambda: worn not in hub.runner_pids(), "the worn one is gone")


def test_a_runner_that_has_grown_is_replaced(hub: CallHub) -> None:
    def grow() -> int:
        sys.modules["__main__"].kept = bytearray(b"x") * (600 << 20)  # type: ignore[attr-defined]  # made here
        time.sleep(0.3)
        return os.getpid()

    hub.start_agent(1)
    pid = hub.call(grow)[1]
    wait_for(lambda: pid not in hub.runner_pids(), "the one that has grown is gone")
    assert hub.call(lambda: 1)[:2] == ("succeeded", 1)


def test_an_environment_that_is_not_there_is_named(hub: CallHub) -> None:
    hub.start_agent(1)
    state, _, (exit_class, error) = hub.call(lambda: 1, env={"VIRTUAL_ENV": "/no/such/venv"})
    assert (state, exit_class) == ("failed", "environment")
    assert "/no/such/venv" in error
    assert hub.call(lambda: 1)[:2] == ("succeeded", 1)


def test_a_named_environment_is_used_though_it_has_nothing_of_dray(hub: CallHub) -> None:
    place = hub.folder / "h" / "worker" / "venvs" / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    hub.start_agent(1)
    state, found, detail = hub.call(lambda: sys.prefix, env={"VIRTUAL_ENV": "bare"})
    assert (state, found) == ("succeeded", str(place)), detail


def test_large_arguments_and_results_travel_as_blobs_and_are_fetched_once(hub: CallHub) -> None:
    def double(data: bytearray) -> bytes:
        data[0] = 1  # a copy of one's own
        return bytes(data) * 2

    hub.start_agent(1)
    big = bytearray(200_000)
    state, value, detail = hub.call(double, big)
    assert state == "succeeded", detail
    assert value == b"\1" + bytes(199_999) + b"\1" + bytes(199_999)
    assert hub.call(lambda data: data[0], big)[:2] == ("succeeded", 0)
    assert len([target for target in hub.gets if "/blobs/" in target]) == 1
    kept = list((hub.folder / "h" / "worker" / "blobs").glob("*/*"))
    assert {(path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) for path in kept} == {
        (0o640, 0o750)
    }


def test_a_result_that_the_hub_does_not_take_says_the_limit(hub: CallHub) -> None:
    hub.start_agent(1)
    hub.most_bytes = 100_000
    state, value, (exit_class, error) = hub.call(lambda: bytes(200_000))
    assert (state, value, exit_class) == ("failed", None, "too_large")
    assert "at most 100000 bytes" in error


def test_an_argument_that_cannot_be_had_is_named(hub: CallHub) -> None:
    hub.start_agent(1)
    hub.blobs["x"] = b""
    hub.assign("1-1", "j", len, [(bytes(100_000),)])
    hub.blobs.clear()
    state, _, (exit_class, error) = hub.end("j")
    if state == "failed":  # the agent may have been quicker
        assert exit_class == "environment"
        assert "there is no such value" in error


@pytest.mark.parametrize("size", [10, 300_000])
def test_values_of_other_tasks_are_fetched_through_the_agent(hub: CallHub, size: int) -> None:
    from dray.functions.values import Pledge

    class Later(Pledge):
        def pledge(self) -> str:
            return "other/3"

    hub.start_agent(1)
    hub.values["other/3"] = pack(bytes(size)).join()
    assert hub.call(len, Later())[:2] == ("succeeded", size)
    assert hub.call(lambda a, b: len(a) + b, Later(), 1)[:2] == ("succeeded", size + 1)
    assert len(hub.gets) == 1


def test_a_call_that_waits_gives_its_slot_up_and_takes_one_back(hub: CallHub) -> None:
    def wait() -> bool:
        import dray

        session = dray.session()
        session.yield_slot()
        session.yield_slot()
        session.resume_slot()
        return session.resume_slot(20)

    hub.start_agent(1)
    hub.refeeds = False
    hub.assign("1-1", "j", wait, [(), ()])
    (said,) = hub.wait_told("job_yield")
    assert said == {"task_id": "j", "attempt": "1-1"}
    (said,) = hub.wait_told("job_resume")
    assert said == {"task_id": "j", "attempt": "1-1"}
    assert ("j", 0) not in hub.ends
    assert hub.end("j", 1)[0] == "returned"
    hub.send("job_resume", {"task_id": "j", "attempt": "1-1"})
    assert hub.end("j", 0)[:2] == ("succeeded", True)


def test_a_call_that_prints_without_end_does_not_fill_the_disk(hub: CallHub) -> None:
    def chatter() -> int:
        ends_at = time.monotonic() + 2.5
        lines = 0
        while time.monotonic() < ends_at:
            os.write(1, b"x" * 65535 + b"\n")
            lines += 1
            time.sleep(0.005)
        return lines

    hub.start_agent(1, DRAY_WORKER_OUTPUT_BYTES="1000000")
    hub.gaps = True
    hub.assign("1-1", "j", chatter, [()])
    most = 0
    while ("j", 0) not in hub.ends:
        files = list((hub.folder / "h" / "worker" / "runners").glob("*/live/stdout.*"))
        most = max([most, *(file.stat().st_size for file in files if file.exists())])
        time.sleep(0.02)
    state, lines, _ = hub.end("j")
    assert state == "succeeded"
    assert lines * 65536 > 5_000_000
    assert most < 0.6 * lines * 65536


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start processes as somebody else")
def test_calls_may_run_as_another_user() -> None:
    hub = ForeignHub()
    try:
        hub.start()
        state, value, detail = hub.call(lambda data: (os.geteuid(), len(data)), bytes(100_000))
        assert state == "succeeded", detail
        assert value == (pwd.getpwnam("nobody").pw_uid, 100_000)
        # Whoever was told the name may read; nobody may look what names there are.
        (kept,) = (hub.shared / "blobs").glob("*/*")
        assert kept.parent.stat().st_mode & 0o777 == 0o711
        assert hub.call(lambda: bytes(100_000))[:2] == ("succeeded", bytes(100_000))
        found = hub.call(lambda: (os.getcwd(), os.environ["USER"], os.environ["HOME"]))[1]
        assert found == ("/", "nobody", pwd.getpwnam("nobody").pw_dir)
    finally:
        hub.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start processes as somebody else")
def test_a_package_that_the_tasks_user_cannot_read_is_named_at_the_start_and_in_the_calls(
    hub: CallHub,
) -> None:
    assert dray.__file__ is not None
    hidden = hub.folder / "lib"
    hidden.mkdir(mode=0o700)
    shutil.copytree(os.path.dirname(dray.__file__), hidden / "dray")
    hub.folder.chmod(0o711)
    hub.env["PYTHONPATH"] = str(hidden)
    hub.start_agent(1, DRAY_WORKER_TASK_USER="nobody", DRAY_WORKER_RUNNERS="0")
    assert "functions cannot be called here: user 'nobody', whom tasks run as, cannot read" in hub.log()
    state, _, (exit_class, error) = hub.call(lambda: 1, workdir="/")
    assert (state, exit_class) == ("failed", "environment")
    assert "user 'nobody', whom tasks run as, cannot read" in error
