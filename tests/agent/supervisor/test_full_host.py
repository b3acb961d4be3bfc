"""A host at its limits: a full disk and memory that has run out."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.agent.supervisor.processes.cgroup import Groups
from dray.agent.supervisor.processes.output import list_segments
from dray.agent.supervisor.records.home import Home


@pytest.fixture
def small_disk() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="dray-t-"))
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        directory.rmdir()
        pytest.skip("mounting a small disk needs root and the right to mount")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)
    directory.rmdir()


@pytest.fixture
async def small_rig(small_disk, make_rig):
    rig = make_rig(small_disk / "home")
    await rig.open()
    return rig


def fill_disk(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


async def test_full_disk_costs_output_but_not_the_task(small_rig):
    rig = small_rig
    result = await rig.result("a-1", "head", "-c", str(16 << 20), "/dev/zero")
    assert (result["state"], result["out"]["stdout"]) == ("succeeded", 16 << 20)
    segments = list_segments(str(rig.home / "attempts" / "a-1"), "stdout")
    assert 0 < sum(length for _, length in segments) < 4 << 20
    assert all(length for _, length in segments)


async def test_a_supervisor_killed_on_a_full_disk_is_followed_by_another(small_rig):
    rig = small_rig
    rig.run(rig.task("a-1", "sleep", "1000"))
    await rig.next("started")
    ballast = rig.home.parent / "ballast"
    fill_disk(ballast)
    await rig.kill_supervisor()
    (item,) = (await rig.open())["attempts"]
    assert (item["uid"], item["exit_class"]) == ("a-1", "lost")
    ballast.unlink()


async def test_full_disk_refuses_new_work_and_still_records_ends(small_rig, tmp_path):
    rig = small_rig
    os.mkfifo(tmp_path / "fifo")
    rig.run(rig.task("a-1", "sh", "-c", f"read x < {tmp_path}/fifo; exit 6"))
    await rig.next("started")
    ballast = rig.home.parent / "ballast"
    fill_disk(ballast)
    event = {}
    for n in range(200):  # records fit into the last page at first, then live on the reserve
        rig.run(rig.task(f"b-{n}", "true", meta={"note": "x" * 500}))
        event = await rig.next_of("refused", "exited")
        if event["ev"] == "refused":
            break
    assert event["ev"] == "refused"
    assert "no space left" in event["error"]
    (tmp_path / "fifo").write_text("go\n")
    assert (await rig.exit_of("a-1"))["exit_code"] == 6
    assert any(record["k"] == "exit" and record["uid"] == "a-1" for record in rig.records())
    ballast.unlink()
    await rig.wait_until((rig.home / "reserve").exists, "the reserve is back")
    assert (await rig.result("c-1", "true"))["state"] == "succeeded"


HOG = "import sys; data = []\nwhile True: data.append(bytearray(b'x' * (1 << 20)))"


@pytest.mark.usefixtures("memory_groups")
async def test_memory_over_the_limit_is_told_as_oom(rig):
    result = await rig.result("a-1", sys.executable, "-SIc", HOG, memory_bytes=48 << 20)
    assert (result["state"], result["signal"], result["exit_class"]) == ("failed", 9, "oom")
    assert str(48 << 20) in result["error"]
    wrapped = await rig.result(
        "a-2", "sh", "-c", f'{sys.executable} -SIc "$0"; exit $?', HOG, memory_bytes=48 << 20
    )
    assert (wrapped["exit_code"], wrapped["exit_class"]) == (137, "oom")
    group = next(record["group"] for record in rig.records() if record["k"] == "started")
    await rig.wait_until(lambda: not os.path.exists(group), "its group is removed")


@pytest.mark.usefixtures("memory_groups")
async def test_a_kill_that_is_not_for_memory_is_no_oom(rig):
    result = await rig.result("a-1", "sh", "-c", "kill -9 $$", memory_bytes=64 << 20)
    assert (result["signal"], result["exit_class"]) == (9, "signal")


@pytest.mark.usefixtures("memory_groups")
async def test_the_group_finds_what_left_the_session(rig):
    script = "setsid sh -c 'echo $$; exec sleep 1000' & trap '' TERM; sleep 0.1; echo ready; sleep 1000; sleep 1000"
    rig.run(rig.task("a-1", "sh", "-c", script, memory_bytes=64 << 20))
    await rig.await_output("a-1", b"ready")
    rig.cancel("a-1", "user", 0.05)
    assert (await rig.exit_of("a-1"))["state"] == "killed"
    group = next(record["group"] for record in rig.records() if record["k"] == "started")
    await rig.wait_until(lambda: not os.path.exists(group), "its group is removed")


def test_a_limit_is_no_reason_to_fail_where_there_are_no_groups(monkeypatch):
    monkeypatch.setattr("dray.agent.supervisor.processes.cgroup._find_own_group", lambda: (0, ""))
    groups = Groups("none")
    assert groups.create("a-1", 1 << 20) is None
    assert groups.why_not
    assert not groups.own_kills_rose()


def test_a_full_disk_keeps_a_supervisor_from_nothing_but_its_last_sign_of_life(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "h"))
    home.claim()
    home.note_alive(7)
    full = os.open("/dev/full", os.O_RDWR)
    home.lock_fd, lock = full, home.lock_fd
    home.note_alive(9)
    os.close(full)
    os.close(lock)
    again = Home(str(tmp_path / "h"))
    again.claim()
    assert again.alive_ticks == 7
    os.close(again.lock_fd)
