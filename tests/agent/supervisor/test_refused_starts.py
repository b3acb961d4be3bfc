"""What this worker cannot start is told apart from what cannot be started anywhere; what is late never starts."""

from __future__ import annotations

import os
import pwd
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.mark.parametrize("rig", ["at once", "behind a barrier"], indirect=True)
async def test_what_a_stopped_supervisor_finds_too_late_never_starts(rig, tmp_path):
    os.kill(rig.pid, signal.SIGSTOP)
    start_by = time.monotonic() + 0.2
    rig.run(rig.task("late", "touch", str(tmp_path / "late"), start_by=start_by))
    rig.run(rig.task("timely", "touch", str(tmp_path / "timely"), start_by=time.monotonic() + 1000))
    await rig.client.drain()
    await rig.wait_until(lambda: time.monotonic() > start_by, "its time is over")
    os.kill(rig.pid, signal.SIGCONT)
    refused = await rig.next("refused")
    assert (refused["uid"], refused["host"]) == ("late", True)
    assert (await rig.exit_of("timely"))["state"] == "succeeded"
    assert not (tmp_path / "late").exists()
    assert not [record for record in rig.records() if record.get("uid") == "late"]


async def test_what_was_refused_once_is_refused_again(rig, tmp_path):
    """A dead agent had asked too late, the next one asks anew: it hears, and passes on, the first one's refusal."""
    rig.run(rig.task("twice", "touch", str(tmp_path / "twice"), start_by=time.monotonic() - 1))
    rig.run(rig.task("twice", "touch", str(tmp_path / "twice"), start_by=time.monotonic() + 1000))
    for _ in range(2):
        refused = await rig.next("refused")
        assert (refused["uid"], refused["host"]) == ("twice", True)
    assert (await rig.result("other", "true"))["state"] == "succeeded"
    assert not (tmp_path / "twice").exists()


async def test_a_ping_is_answered_with_why_nothing_could_be_started(rig):
    rig.send({"op": "ping"})
    assert await rig.next("pong") == {"ev": "pong", "refusal": ""}


async def test_the_workers_own_folder_is_not_the_tasks_to_answer_for(rig, tmp_path):
    gone = str(tmp_path / "gone")
    own = await rig.result("own", "true", cwd=gone, own_cwd=True)
    assert (own["exit_class"], own["host"]) == ("lost_unstarted", True)
    named = await rig.result("named", "true", cwd=gone)
    assert (named["exit_class"], named.get("host")) == ("workdir", None)
    missing = await rig.result("missing", "no-such-program")
    assert (missing["exit_class"], missing["exit_code"]) == ("not_found", 127)


async def test_a_user_with_no_process_left_is_the_workers_trouble(rig):
    if os.geteuid() != 0:
        pytest.skip("running a task as another user needs root")
    user = next((name for name in ("nobody", "daemon") if _exists(name)), "")
    if not user:
        pytest.skip("there is no other user here")
    # Started is told of what is about to become the user's: only once its program speaks is it counted as his.
    rig.run(rig.task("first", "sh", "-c", "echo up; exec sleep 1000", user=user))
    await rig.await_output("first", b"up")
    before = resource.prlimit(rig.pid, resource.RLIMIT_NPROC)
    resource.prlimit(rig.pid, resource.RLIMIT_NPROC, (0, before[1]))
    refused = await rig.result("a-1", "true", user=user)
    assert (refused["exit_class"], refused.get("host")) == ("lost_unstarted", True), refused
    resource.prlimit(rig.pid, resource.RLIMIT_NPROC, before)
    assert (await rig.result("a-2", "true", user=user))["state"] == "succeeded"


@pytest.fixture
def no_pids(rig) -> Iterator[Path]:
    """A group that holds the supervisor and lets it have no child."""
    group = Path(f"/sys/fs/cgroup/pids/dray-t-{rig.pid}")
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(rig.pid))
    except OSError as fault:
        pytest.skip(f"no group that bounds the number of processes can be made here: {fault}")
    (group / "pids.max").write_text("1")
    yield group
    (group / "pids.max").write_text("max")
    (group.parent / "cgroup.procs").write_text(str(rig.pid))
    group.rmdir()


@pytest.mark.parametrize("rig", ["at once", "behind a barrier"], indirect=True)
async def test_no_further_process_is_the_workers_trouble(rig, no_pids):
    refused = await rig.result("a-1", "true")
    assert (refused["exit_class"], refused.get("host")) == ("lost_unstarted", True), refused
    (no_pids / "pids.max").write_text("max")
    assert (await rig.result("a-2", "true"))["state"] == "succeeded"


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


async def test_a_port_is_never_given_to_two_that_run(rig):
    """Its agent had given the first one back, and the word of its start came late."""
    rig.run(rig.task("first", "sleep", "600", meta={"ports": [20_001]}))
    await rig.next("started")
    rig.run(rig.task("second", "true", meta={"ports": [20_002, 20_001]}))
    refused = await rig.next("refused")
    assert (refused["uid"], refused["host"], refused["elsewhere"]) == ("second", False, True)
    assert "port 20001 is still held" in refused["error"]
    rig.send({"op": "cancel", "uid": "first", "grace_s": 0})
    await rig.exit_of("first")
    assert (await rig.result("third", "true", meta={"ports": [20_001]}))["state"] == "succeeded"
