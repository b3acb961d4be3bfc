"""A copied home never drives another's supervisor, a moved one keeps its own, and one agent at a time drives it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dray.agent.supervisor.client import SupervisorClient, SupervisorError
from dray.agent.supervisor.records.home import Home


def copy_folder(how: str, source: Path, target: Path) -> None:
    subprocess.run(["cp", how, source, target], check=True)


@pytest.mark.parametrize("knows_address", [True, False])
async def test_a_copy_neither_drives_nor_ends_what_the_original_runs(short_tmp, make_rig, knows_address):
    rig = make_rig()
    await rig.open()
    await rig.result("a-0", "sh", "-c", "exit 4")
    rig.run(rig.task("a-1", "sleep", "1000"))
    pid = (await rig.next("started"))["items"][0]["pid"]
    copy_folder("-a", rig.home, short_tmp / "copy")
    copy = make_rig(short_tmp / "copy")
    if not knows_address:
        (copy.home / "supervisor.json").unlink()
    state = await copy.open()
    assert state["pid"] != rig.pid
    assert state["journal_id"] != rig.state["journal_id"]
    # What ended did so, whoever tells it; what runs is the original's to tell.
    assert [(item["uid"], item["exit_code"]) for item in state["attempts"]] == [("a-0", 4)]
    assert rig.is_alive(pid)
    assert (await rig.result("a-2", "true"))["state"] == "succeeded"
    # The next supervisor of the copy finds its own journal, written here.
    await copy.kill_supervisor()
    assert (await copy.open())["journal_id"] == state["journal_id"]
    assert rig.is_alive(pid)


async def test_a_copy_by_hard_links_is_told_what_it_is(short_tmp, make_rig):
    rig = make_rig()
    await rig.open()
    copy_folder("-al", rig.home, short_tmp / "copy")
    with pytest.raises(SupervisorError, match="was copied by hard links"):
        await SupervisorClient.open(short_tmp / "copy", timeout_s=0.2)
    assert (await rig.result("a-1", "true"))["state"] == "succeeded"


async def test_a_moved_home_keeps_its_supervisor(tmp_path, make_rig):
    old = make_rig(tmp_path / "old")
    await old.open()
    os.mkfifo(tmp_path / "fifo")
    old.run(old.task("a-1", "sh", "-c", "read x < fifo; echo later", cwd=str(tmp_path)))
    await old.next("started")
    await old.close()
    # Longer, too, than the path of a socket may be.
    moved = make_rig((tmp_path / "old").rename(tmp_path / ("x" * 120)))
    state = await moved.open()
    assert state["pid"] == old.pid
    assert [item["phase"] for item in state["attempts"]] == ["running"]
    (tmp_path / "fifo").write_text("\n")
    assert (await moved.exit_of("a-1"))["state"] == "succeeded"
    assert moved.output("a-1") == b"later\n"
    # Whatever comes to lie in the old place is another home.
    fresh = make_rig(tmp_path / "old")
    assert (await fresh.open())["attempts"] == []
    assert fresh.pid != old.pid


OTHER = """
import asyncio, sys
from dray.agent.supervisor.client import SupervisorClient, SupervisorError
try:
    asyncio.run(SupervisorClient.open(sys.argv[1]))
except SupervisorError as fault:
    print(fault)
"""


async def test_a_second_agent_is_refused_while_the_first_lives(make_rig):
    rig = make_rig()
    await rig.open()

    def ask() -> str:
        return subprocess.run(
            [sys.executable, "-c", OTHER, rig.home], capture_output=True, text=True, check=True
        ).stdout

    assert "another agent (process" in ask()
    assert (await rig.result("a-1", "true"))["state"] == "succeeded"
    await rig.close()
    assert ask() == ""


async def test_a_supervisor_leaves_with_its_home(tmp_path, make_rig):
    rig = make_rig(tmp_path / "h")
    rig.options = ["--idle-exit-s", "1"]  # which an agent that is there keeps from happening
    await rig.open()
    shutil.rmtree(rig.home)
    await rig.wait_until(lambda: not rig.is_alive(rig.pid), "it left")
    rig.options = []
    await rig.open()


async def test_a_dismissed_supervisor_leaves_when_the_last_attempt_has_ended(make_rig):
    rig = make_rig()
    await rig.open()
    rig.run(rig.task("a-1", "sleep", "1000"))
    await rig.next("started")
    rig.send({"op": "leave"})
    await rig.open()
    assert (await rig.result("a-2", "true"))["state"] == "succeeded"
    rig.send({"op": "leave"})
    rig.cancel("a-1", "user", 0.0)
    await rig.ends()
    await rig.wait_until(lambda: not rig.is_alive(rig.pid), "it left")
    assert len((await rig.open())["attempts"]) == 2


async def test_a_goodbye_is_heard_of_an_agent_that_did_not_wait_for_an_answer(make_rig):
    rig = make_rig()
    state = await rig.open()
    rig.run(rig.task("a-1", "sleep", "1000"))
    await rig.next("started")
    os.kill(state["pid"], signal.SIGSTOP)
    try:
        rig.cancel("a-1", "user", 0.0)
        rig.send({"op": "ping"})
        rig.send({"op": "leave"})
        await rig.close()
    finally:
        os.kill(state["pid"], signal.SIGCONT)
    await rig.wait_until(lambda: not rig.is_alive(state["pid"]), "it left")


def test_what_a_copy_says_of_its_original_is_forgotten(tmp_path):
    home = Home(str(tmp_path / "h"))
    home.claim()
    home.publish({"socket": "supervisor.sock", "home": home.inode})
    (tmp_path / "h" / "session.path").write_text("/tmp/dray-x/s.sock")
    assert not Home(str(tmp_path / "h")).forget_copied()
    shutil.copytree(tmp_path / "h", tmp_path / "copy")
    assert Home(str(tmp_path / "copy")).forget_copied()
    assert not (tmp_path / "copy" / "session.path").exists()
    assert (tmp_path / "h" / "session.path").exists()
