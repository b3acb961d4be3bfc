"""A start is on record before it happens: what runs without a recorded pid is found by its marks, stopped, and lost."""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dray.agent.supervisor.__main__ import detach
from dray.agent.supervisor.client import SupervisorClient
from dray.agent.supervisor.processes.identity import now_ticks, snapshot_processes
from dray.agent.supervisor.processes.marks import ROUNDING_TICKS, VARIABLE, find_marked, make_mark, make_token
from dray.agent.supervisor.records.home import Home, HomeLocked
from dray.agent.supervisor.records.journal import encode_record
from dray.agent.supervisor.records.ledger import Entry, Ledger
from dray.processes import look_up

SOURCE = str(Path(__file__).parents[3] / "src")
SPEC = {"k": "spec", "uid": "a-1", "task_id": "t", "meta": None}

# A supervisor that is killed for good at the place that is put in, with all that the journal and the kernel hold then.
DOOMED = """
import os, signal, sys
sys.path.insert(0, {source!r})
from dray.agent.supervisor.records import journal
from dray.agent.supervisor.attempts import lives as runner
from dray.agent.supervisor import __main__ as main, server
def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)
def die_with_the_spec(self, sync=False):
    if any(b'"spec"' in line for line in self._buffer):
        die()
    commit(self, sync)
commit = journal.Journal.commit
{place}
main.main(["--home", {home!r}])
"""
BEFORE_THE_INTENT_IS_SAFE = "journal.Journal.commit = die_with_the_spec"
BEFORE_THE_START = "runner.Runner.start_intended = lambda self: die() if self._intended else None"
BEFORE_THE_PID_IS_WRITTEN = "server.Server.process_started = die"


async def start_doomed(rig, place: str) -> asyncio.subprocess.Process:
    await rig.stop()
    program = DOOMED.format(source=SOURCE, home=str(rig.home), place=place)
    (rig.home / "supervisor.json").unlink()
    doomed = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    await rig.wait_until((rig.home / "supervisor.json").exists, "it serves")
    await rig.open()
    assert rig.pid == doomed.pid
    return doomed


async def run_doomed(rig, place: str, *argv: str, **fields) -> None:
    doomed = await start_doomed(rig, place)
    rig.run(rig.task("a-1", *argv, **fields))
    await rig.ends()
    assert await doomed.wait() == -9


async def test_killed_between_the_start_and_the_record_of_its_pid(rig, tmp_path):
    pids = tmp_path / "pids"
    script = f"sleep 1000 & echo $! >> {pids}; setsid sleep 1000 & echo $! >> {pids}; echo $$ >> {pids}; wait"
    await run_doomed(rig, BEFORE_THE_PID_IS_WRITTEN, "sh", "-c", script)
    await rig.wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 3, "it runs")
    found = [int(pid) for pid in pids.read_text().split()]
    assert all(map(rig.is_alive, found))
    assert [record["k"] for record in rig.records()][-2:] == ["spec", "starting"]
    item = (await rig.open())["attempts"][0]
    assert (item["phase"], item["state"], item["exit_class"]) == ("exited", "failed", "lost")
    assert not any(map(rig.is_alive, found))
    rig.run(rig.task("a-1", "touch", str(tmp_path / "again")))
    assert (await rig.exit_of("a-1"))["exit_class"] == "lost"
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("program", ["env -i sh -c '{}' sh", "sh -c 'exec > /dev/null 2>&1; {}'"])
async def test_one_of_the_two_marks_is_enough(rig, tmp_path, program):
    pid = tmp_path / "pid"
    words = program.format(f"echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 1000; true")
    await run_doomed(rig, BEFORE_THE_PID_IS_WRITTEN, "sh", "-c", words)
    await rig.wait_until(pid.exists, "it runs")
    assert rig.is_alive(int(pid.read_text()))
    assert (await rig.open())["attempts"][0]["exit_class"] == "lost"
    assert not rig.is_alive(int(pid.read_text()))


async def test_killed_in_a_later_stage(rig, tmp_path):
    """The prolog's pid is on record, that of the command is not."""
    place = (
        "started = server.Server.process_started\n"
        "server.Server.process_started = "
        "lambda self, attempt, *args: die() if attempt.stage == 'command' else started(self, attempt, *args)"
    )
    pid = tmp_path / "pid"
    argv = ["sh", "-c", f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1000"]
    await run_doomed(rig, place, *argv, prolog=["true"])
    await rig.wait_until(pid.exists, "it runs")
    assert (await rig.open())["attempts"][0]["exit_class"] == "lost"
    assert not rig.is_alive(int(pid.read_text()))


async def test_killed_between_the_intent_and_the_start(rig, tmp_path):
    await run_doomed(rig, BEFORE_THE_START, "touch", str(tmp_path / "ran"))
    assert rig.records()[-1]["k"] == "starting"
    assert (await rig.open())["attempts"][0]["exit_class"] == "lost"
    assert not (tmp_path / "ran").exists()


async def test_killed_before_the_intent_is_safe(rig, tmp_path):
    await run_doomed(rig, BEFORE_THE_INTENT_IS_SAFE, "touch", str(tmp_path / "ran"))
    assert not any(event["ev"] == "accepted" for event in rig.seen)
    assert (await rig.open())["attempts"] == []
    assert not (tmp_path / "ran").exists()


async def start_bystander(variable: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        "sleep", "1000", start_new_session=True, env={**os.environ, VARIABLE: variable}
    )


@pytest.mark.parametrize(
    "change", [{"token": "another"}, {"uid": "a-2"}, {"boot": "another boot"}, {"ticks": 1 << 60}]
)
async def test_nobody_else_is_stopped(rig, change):
    """Another supervisor's attempt of the same name, another attempt, another boot, a process older than the start."""
    token = make_token()
    bystander = await start_bystander(make_mark(token, "a-1"))
    record = {
        "k": "starting",
        "uid": "a-1",
        "boot": rig.state["boot_id"],
        "ticks": now_ticks() - 100,
        "token": token,
        "pipes": [1, 2],
    }
    spec = {**SPEC, "uid": change.get("uid", "a-1")}
    await rig.kill_supervisor()
    with (rig.home / "journal").open("ab") as journal:
        journal.write(encode_record(spec) + encode_record({**record, **change}))
    item = (await rig.open())["attempts"][0]
    assert item["exit_class"] == "lost"
    assert ("restarted" in item["error"]) == ("boot" in change)
    assert rig.is_alive(bystander.pid)
    # The very same record without the change does mean it.
    await rig.kill_supervisor()
    with (rig.home / "journal").open("ab") as journal:
        journal.write(encode_record({**SPEC, "uid": "a-1"}) + encode_record(record))
    await rig.open()
    assert await bystander.wait() == -9


async def test_an_intent_behind_damage_still_stops_its_process(rig):
    token, ticks = make_token(), now_ticks()
    bystander = await start_bystander(make_mark(token, "a-1"))
    record = {"k": "starting", "uid": "a-1", "boot": rig.state["boot_id"], "ticks": ticks, "token": token}
    await rig.kill_supervisor()
    with (rig.home / "journal").open("ab") as journal:
        journal.write(b"0000 broken\n" + encode_record({**record, "pipes": []}))
    await rig.open()
    assert await bystander.wait() == -9


async def test_nothing_is_started_at_once_while_a_lease_is_kept(rig):
    rig.run(rig.task("fenced", "sleep", "1000", lease_s=1000.0))
    await rig.next("started")
    await rig.result("a-1", "true")
    rig.cancel("fenced", "user", 5)
    await rig.exit_of("fenced")
    await rig.result("a-2", "true")
    assert [record["uid"] for record in rig.records() if record["k"] == "starting"] == ["a-2"]
    assert [record["uid"] for record in rig.records() if record["k"] == "started"] == ["fenced", "a-1", "a-2"]


async def test_the_recorded_start_time_is_the_kernels(rig):
    uids = [f"a-{n}" for n in range(30)]
    for uid in uids:
        rig.run(rig.task(uid, "sleep", "1000"))
    await rig.wait_until(lambda: len(rig.records()) == 1 + 3 * len(uids), "all are on record")
    started = [record for record in rig.records() if record["k"] == "started"]
    infos = [look_up(record["pid"]) for record in started]
    assert [record["start"] for record in started] == [info.start for info in infos if info is not None]


async def test_an_end_is_synced_though_nothing_follows(rig, tmp_path):
    log = tmp_path / "synced"
    place = (
        "sync = journal.sync_file\n"
        "def note(fd):\n"
        "    sync(fd)\n"
        f"    print(os.fstat(fd).st_size, file=open({str(log)!r}, 'a'))\n"
        "journal.sync_file = note"
    )
    doomed = await start_doomed(rig, place)
    assert (await rig.result("a-1", "sh", "-c", "exit 3"))["exit_code"] == 3
    path = rig.home / "journal"
    data = path.read_bytes()
    assert rig.records()[-1]["k"] == "exit"
    await rig.wait_until(lambda: int(log.read_text().split()[-1]) >= len(data), "the end is synced")
    starts = [record for record in rig.records() if record["k"] == "starting"]
    before_the_start = data.index(b'"starting"')
    assert len(starts) == 1
    assert any(before_the_start < int(size) < len(data) for size in log.read_text().split())
    await rig.stop()
    assert await doomed.wait() == 0


async def test_a_limit_on_open_files_is_the_workers_not_the_supervisors(tmp_path, make_rig):
    """The supervisor raises its own; what it starts must not see that."""
    limited = tmp_path / "python"
    limited.write_text(f'#!/bin/sh\nulimit -S -n 200\nexec {sys.executable} "$@"\n')
    limited.chmod(0o700)
    rig = make_rig()
    client = await SupervisorClient.open(rig.home, python=str(limited))
    await client.close()
    await rig.open()
    for uid, fields in (("a-1", {}), ("a-2", {"lease_s": 1000.0})):
        assert (await rig.result(uid, "sh", "-c", "ulimit -S -n", **fields))["state"] == "succeeded"
        assert rig.output(uid) == b"200\n"
    assert [record["uid"] for record in rig.records() if record["k"] == "starting"] == ["a-1"]


def test_an_open_intent_outlives_a_compaction():
    ledger, again = Ledger(), Ledger()
    starting = {"k": "starting", "uid": "a-1", "boot": "b", "ticks": 1, "token": "t", "pipes": [1, 2]}
    for record in (SPEC, starting):
        ledger.fold(record)
    assert ledger.phase_of("a-1") == "accepted"
    again.fold(ledger.entries["a-1"].record())
    assert again.entries["a-1"].starting == starting
    again.fold(
        {"k": "started", "uid": "a-1", "pid": 1, "start": 1, "boot": "b", "at": 1.0, "stage": "command"}
    )
    entry: Entry = again.entries["a-1"]
    assert entry.starting is None
    assert again.phase_of("a-1") == "running"


def test_who_carries_no_mark_is_not_found():
    ticks = now_ticks()
    process = subprocess.Popen(["sleep", "1000"], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        inode = os.fstat(process.stdout.fileno()).st_ino
        record = {"uid": "a-1", "ticks": ticks, "token": "t", "pipes": []}
        assert find_marked([record]) == {}
        found = find_marked([{**record, "pipes": [inode]}])
        assert [info.pid for info in found["a-1"]] == [process.pid]
    finally:
        process.kill()
        process.communicate()


OLD_SESSION = "read go; sleep 1000 >/dev/null 2>&1 & echo $!; sleep 1000 & echo $!; wait"


def test_a_session_that_is_older_than_the_start_is_left_alone(wait_until):
    """Of two that begin after the start in a session from before it, the one without a mark is none of its own."""
    with subprocess.Popen(
        ["sh", "-c", OLD_SESSION],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as leader:
        try:
            assert leader.stdin is not None
            assert leader.stdout is not None
            begun = snapshot_processes()[leader.pid].start
            wait_until(lambda: now_ticks() > begun + 2 * ROUNDING_TICKS)
            ticks = now_ticks()
            leader.stdin.write("go\n")
            leader.stdin.flush()
            unmarked, marked = (int(leader.stdout.readline()) for _ in range(2))
            wait_until(lambda: os.readlink(f"/proc/{unmarked}/fd/1") == "/dev/null")
            record = {"uid": "a-1", "token": "t", "pipes": [os.fstat(leader.stdout.fileno()).st_ino]}
            assert find_marked([{**record, "ticks": ticks + 1000}]) == {}
            found = find_marked([{**record, "ticks": ticks}])
            assert [info.pid for info in found["a-1"]] == [marked]
        finally:
            os.killpg(leader.pid, signal.SIGKILL)


HELD_UP = """
import os, sys
sys.path.insert(0, {source!r})
from dray.agent.supervisor.records.home import Home
home = Home({home!r})
home.claim()
hold = [(os.POSIX_SPAWN_OPEN, 0, {fifo!r}, os.O_RDONLY, 0)]
os.posix_spawn("/bin/sleep", ["sleep", "1000"], {{{variable!r}: "mark"}}, file_actions=hold, setsid=True)
"""


async def test_a_child_before_its_exec_keeps_the_home_locked(tmp_path, make_rig):
    """Why no child can be overlooked for lack of marks: until it has them nobody else gets to look."""
    rig, fifo = make_rig(), tmp_path / "fifo"
    os.mkfifo(fifo)
    program = HELD_UP.format(source=SOURCE, home=str(rig.home), fifo=str(fifo), variable=VARIABLE)
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program)

    def children() -> list[int]:
        return [info.pid for info in snapshot_processes().values() if info.parent == parent.pid]

    await rig.wait_until(children, "the child exists and waits for the other end of its input")
    child = children()[0]
    parent.kill()
    await parent.wait()
    assert rig.is_alive(child)
    with pytest.raises(HomeLocked):
        Home(str(rig.home)).claim()
    with fifo.open("w"):
        await rig.wait_until(
            lambda: f"{VARIABLE}=mark".encode() in Path(f"/proc/{child}/environ").read_bytes(),
            "it has its mark",
        )
        home = Home(str(rig.home))
        home.claim()
        os.close(home.lock_fd)
    os.kill(child, signal.SIGKILL)


def test_where_no_process_is_to_be_had_one_line_says_so(tmp_path, monkeypatch, capfd):
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    assert detach(argparse.Namespace(home=str(tmp_path))) == 1
    told = f"the supervisor of {tmp_path} cannot start: [Errno {errno.EAGAIN}] Resource temporarily unavailable\n"
    assert capfd.readouterr().err == told
