"""A hub on a full disk, and homes that no hub can start in: words and advice, never a traceback."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest
from tests import warm
from tests.hub.asking import ask, wait_until
from tests.hub.small_disk import fill_up, mounted, remount
from websockets import ConnectionClosed

from dray.cli.main import main
from dray.testing.builders import make_capability, make_slots
from dray.testing.hub_process import RunningHub


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "32m") as folder:
        yield folder


def refused(home: Path) -> str:
    """Start a hub that cannot start; gives what it said."""
    command = [sys.executable, "-m", "dray.cli.main", "hub", "--home", str(home), "--port", "0"]
    done = warm.run(command, 60)
    said = done.stderr.decode()
    assert done.returncode == 1
    assert "Traceback" not in said
    return said


def doctor(home: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Ask the doctor, with no hub there."""
    assert main(["doctor", "--home", str(home)]) == 1
    return capsys.readouterr().out


def test_a_hub_killed_on_a_full_disk_starts_again(disk: Path) -> None:
    hub = RunningHub(disk / "home", {"reserve_bytes": 4 << 20, "min_free_bytes": 1 << 20})
    hub.home.mkdir()
    hub.start()
    try:
        for job_id in ("runs", "waits"):
            assert ask(hub, "POST", "/jobs", {"id": job_id, "command": ["true"]})[0] == 201
        with hub.worker("w1") as worker:
            worker.register()
            worker.ready()
            task = worker.assigned()
            worker.accept(task)
            worker.recv("ack")
            worker.drop()
        # Twice: the second time the reserve is gone too, and there is no room for as much as a line.
        for _ in range(2):
            fill_up(disk / "stranger")
            hub.kill()
            fill_up(disk / "stranger")
            hub.start()
            assert ask(hub, "GET", "/jobs/runs")[1]["state"] == "running"
            status, answer = ask(hub, "POST", "/jobs", {"command": ["true"]})
            assert (status, answer["error"]["code"]) == (507, "no_space")
            # What makes the store grow is refused, what makes work less is not.
            status, answer = ask(hub, "PATCH", "/jobs/waits", {"labels": {"a": "b"}})
            assert (status, answer["error"]["code"]) == (507, "no_space")
            assert "nearly full" in answer["error"]["message"]
        assert ask(hub, "PATCH", "/jobs/waits", {"hold": True})[1]["held"] is True
        fill_up(disk / "stranger")
        assert ask(hub, "POST", "/jobs/waits/cancel")[1]["state"] == "killed"
        with hub.worker("w1") as worker:
            worker.register(active_tasks=[{"task_id": "runs", "attempt": task.attempt, "state": "running"}])
            worker.result(task)
            worker.recv("ack")
        hub.kill()
        fill_up(disk / "stranger")
        hub.start()
        assert ask(hub, "GET", "/jobs/runs")[1]["state"] == "succeeded"
        assert ask(hub, "GET", "/jobs/waits")[1]["state"] == "killed"
        (disk / "stranger").unlink()
        wait_until(lambda: ask(hub, "POST", "/jobs", {"command": ["true"]})[0] == 201)
    finally:
        hub.stop()


class RealHub(RunningHub):
    """Started from nothing: with a log as long as everybody's, which is what the disk is full of."""

    popen: ClassVar[type[subprocess.Popen[str]]] = subprocess.Popen


def overfill(hub: RunningHub, disk: Path) -> list[str]:
    """End tasks, which is never refused over room, until a commit finds none; gives those whose end was acked."""
    jobs = [f"j{number}" for number in range(200)]
    assert ask(hub, "POST", "/jobs:batch", [{"id": job_id, "command": ["true"]} for job_id in jobs])[0] == 201
    slots = make_slots(batch=len(jobs))
    ended: list[str] = []
    with hub.worker("w1", slots=slots, capability=make_capability(cpus=len(jobs)), msgpack=True) as worker:
        worker.register()
        worker.ready(len(jobs))
        tasks = [worker.assigned(30) for _ in jobs]
        fill_up(disk / "stranger")
        with contextlib.suppress(TimeoutError, ConnectionClosed):
            for task in tasks:
                worker.result(task, value=bytes(200_000))
                while worker.recv("ack", 5).payload.get("re") != "job_result":
                    pass
                ended.append(task.task_id)
    assert 0 < len(ended) < len(jobs), "the test has left no room at all, or room that it meant to take"
    fill_up(disk / "stranger")
    wait_until(lambda: waits(hub), 60)
    return ended


def waits(hub: RunningHub) -> bool:
    status, answer = ask(hub, "GET", "/jobs")
    return status == 503 and "the hub waits: " in answer["error"]["message"]


def test_a_hub_whose_commit_finds_no_room_waits_and_goes_on(disk: Path) -> None:
    hub = RealHub(disk / "home", {"reserve_bytes": 4096, "min_free_bytes": 1})
    hub.home.mkdir()
    hub.start()
    try:
        ended, process = overfill(hub, disk), hub._process
        (disk / "stranger").unlink()
        wait_until(
            lambda: ask(hub, "POST", "/jobs", {"id": "next", "command": ["true"]})[0] in (200, 201), 60
        )
        assert process is not None
        assert process.poll() is None, "the same process goes on"
        for _ in range(2):
            for job_id in ended:
                assert ask(hub, "GET", f"/jobs/{job_id}")[1]["state"] == "succeeded"
            assert ask(hub, "GET", "/jobs/next")[0] == 200
            hub.kill()
            hub.start()
    finally:
        hub.stop()


def test_a_hub_that_waits_for_room_can_be_stopped(disk: Path) -> None:
    hub = RealHub(disk / "home", {"reserve_bytes": 4096, "min_free_bytes": 1})
    hub.home.mkdir()
    hub.start()
    try:
        overfill(hub, disk)
        process = hub._process
        assert process is not None
        process.terminate()
        # 120 where its last words found no room on the disk either.
        assert process.wait(60) in (1, 120)
    finally:
        hub.stop()


def test_a_read_only_home_is_told(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = disk / "home"
    remount(disk, "ro")
    assert main(["up", "--detach", "--home", str(home)]) == 1
    assert "Read-only file system" in capsys.readouterr().err
    remount(disk, "rw")
    home.mkdir()
    remount(disk, "ro")
    assert main(["up", "--detach", "--home", str(home)]) == 1
    said = capsys.readouterr().err
    assert str(home) in said
    assert "for writing" in said
    said = refused(home)
    assert str(home) in said
    assert "writable" in said
    assert "cannot be written to" in doctor(home, capsys)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home that was in use, and whose hub was killed."""
    hub = RunningHub(tmp_path, {"reserve_bytes": 4096})
    hub.start()
    try:
        for number in range(150):
            assert ask(hub, "POST", "/jobs", {"id": f"j{number}", "command": ["x" * 4000]})[0] == 201
    finally:
        hub.stop()
    with closing(sqlite3.connect(tmp_path / "hub.sqlite")) as connection:
        connection.execute("UPDATE meta SET clean = 0")
        connection.commit()
    return tmp_path


def test_damage_is_told_with_advice_that_needs_no_hub(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = home / "hub.sqlite"
    with closing(sqlite3.connect(store)) as source, closing(sqlite3.connect(home / "backup")) as copy:
        source.backup(copy)
    content = bytearray(store.read_bytes())
    content[60 * 4096 : 90 * 4096] = b"\xa5" * (30 * 4096)
    store.write_bytes(content)
    said = refused(home)
    assert "is damaged" in said
    for name in ("hub.sqlite-wal", "hub.sqlite-shm", "hub.sqlite.witness"):
        assert name in said
        (home / name).unlink(missing_ok=True)
    assert store.read_bytes() == content, "left as it was"
    assert "is damaged" in doctor(home, capsys)
    # What the message says to do, done.
    (home / "backup").replace(store)
    hub = RunningHub(home, {})
    hub.start()
    try:
        assert ask(hub, "GET", "/jobs/j149")[0] == 200
        assert ask(hub, "GET", "/doctor")[1]["ok"]
    finally:
        hub.stop()


def test_a_store_of_a_newer_version_and_one_that_is_none(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(home / "hub.sqlite")) as connection:
        connection.execute("PRAGMA user_version = 99")
    assert "upgrade dray" in refused(home)
    assert "upgrade dray" in doctor(home, capsys)
    (home / "hub.sqlite").unlink()
    (home / "hub.sqlite").mkdir()
    assert "is not a file" in refused(home)
