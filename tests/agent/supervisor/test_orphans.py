"""What forks twice, leaves its session and empties its environment ends with its task all the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Forks twice with a session of its own in between; `clear`: with nothing left in its environment or of its output.
DAEMON = """
import os, sys
where, clear = sys.argv[1], sys.argv[2] == "clear"
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        null = os.open("/dev/null", os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        script = f"echo $$ > {where}.new; mv {where}.new {where}; trap '' TERM; while :; do sleep 1000; done"
        os.execve("/bin/sh", ["sh", "-c", script], {"PATH": os.environ["PATH"]} if clear else os.environ)
    os._exit(0)
os.wait()
while not os.path.exists(where):
    pass
print("ready", flush=True)
if sys.argv[3] == "stay":
    while True:
        import time; time.sleep(1000)
"""
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process inherit orphans")


def daemon(rig, uid: str, where: Path, clear: str, then: str):
    return rig.task(uid, sys.executable, "-S", "-c", DAEMON, str(where), clear, then)


@LINUX
@pytest.mark.parametrize("rig", ["at once", "behind a barrier"], indirect=True)
@pytest.mark.parametrize("clear", ["keep", "clear"])
async def test_what_forked_twice_ends_with_its_task(rig, tmp_path, clear):
    rig.run(daemon(rig, "a-1", tmp_path / "pid", clear, "end"))
    ended = await rig.exit_of("a-1")
    assert ended["state"] == "succeeded", ended
    pid = int((tmp_path / "pid").read_text())
    if clear == "clear" and any(item["uid"] == "keeper" for item in (await rig.open())["attempts"]):
        # It may be of the other one that runs as well: it ends with the last of them.
        rig.cancel("keeper", "user", 0.0)
    await rig.wait_until(lambda: not rig.is_alive(pid), "what it left is gone")


@LINUX
@pytest.mark.parametrize("clear", ["keep", "clear"])
async def test_what_forked_twice_ends_with_a_cancelled_task(rig, tmp_path, clear):
    rig.run(daemon(rig, "a-1", tmp_path / "pid", clear, "stay"))
    await rig.await_output("a-1", b"ready")
    pid = int((tmp_path / "pid").read_text())
    rig.cancel("a-1", "user", 0.3)
    assert (await rig.exit_of("a-1"))["state"] == "killed"
    assert not rig.is_alive(pid), "it is gone when the end is told"


@LINUX
@pytest.mark.parametrize("clear", ["keep", "clear"])
async def test_what_forked_twice_does_not_outlive_a_supervisor_that_died(rig, tmp_path, clear):
    rig.run(daemon(rig, "a-1", tmp_path / "pid", clear, "stay"))
    await rig.await_output("a-1", b"ready")
    pid = int((tmp_path / "pid").read_text())

    def on_record() -> bool:
        return any(record["k"] == "adopted" and record["pid"] == pid for record in rig.records())

    await rig.wait_until(on_record, "it is on record")
    await rig.kill_supervisor()
    await rig.open()
    await rig.wait_until(lambda: not rig.is_alive(pid), "what it left is gone")


@LINUX
async def test_what_dies_as_an_orphan_is_buried(rig):
    rig.run(rig.task("a-1", "sh", "-c", "(sleep 0.05 &) ; (sleep 0.05 &) ; echo ready; sleep 1000"))
    await rig.await_output("a-1", b"ready")

    def zombies() -> list[str]:
        children = Path(f"/proc/{rig.pid}/task/{rig.pid}/children").read_text().split()
        return [pid for pid in children if not rig.is_alive(int(pid))]

    await rig.wait_until(lambda: not zombies(), "no dead process is kept")
    rig.cancel("a-1", "user", 0.0)
    await rig.exit_of("a-1")
