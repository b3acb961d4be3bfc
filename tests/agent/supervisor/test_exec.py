"""Processes beside tasks: they have what the task has, end with it or with their line, and never end it."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import signal
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dray.agent.supervisor.beside import MOST_EXECS
from dray.agent.supervisor.exec_line import ExecLine, ExecRefused, open_exec
from dray.agent.supervisor.processes.stdio import set_size

DEADLINE_S = 60.0


class Held:
    """The lines that a test has open."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        self.open: list[ExecLine] = []

    async def exec(self, uid: str, *argv: str, **more: Any) -> ExecLine:
        return await self.ask("exec", {"uid": uid, "argv": list(argv), **more})

    async def attach(self, uid: str) -> ExecLine:
        return await self.ask("attach", {"uid": uid})

    async def ask(self, op: str, request: dict[str, Any]) -> ExecLine:
        line = await asyncio.to_thread(open_exec, str(self.rig.home), request, DEADLINE_S, op)
        self.open.append(line)
        return line

    async def end(self, line: ExecLine) -> dict[str, Any]:
        """What the line says last."""

        def read() -> bytes:
            return b"".join(iter(lambda: line.sock.recv(4096), b""))

        told = await asyncio.to_thread(read)
        return dict(json.loads(told)) if told else {}

    def close(self) -> None:
        for line in self.open:
            line.sock.close()
            for fd in line.fds:
                os.close(fd)
        self.open.clear()


@pytest.fixture
async def held(rig: Any) -> AsyncIterator[Held]:
    held = Held(rig)
    try:
        yield held
    finally:
        held.close()


async def begin(rig: Any, uid: str = "t1", *argv: str, **fields: Any) -> int:
    """A task that runs; gives its pid."""
    rig.run(rig.task(uid, *(argv or ("sleep", "1000")), **fields))
    started = await rig.next("started")
    return int(started["items"][0]["pid"])


def read_all(fd: int) -> bytes:
    """To the end; a terminal ends with an error."""
    found = b""
    try:
        while data := os.read(fd, 65536):
            found += data
    except OSError:
        return found
    return found


def read_until(fd: int, text: bytes) -> bytes:
    found = b""
    while text not in found:
        data = os.read(fd, 65536)
        assert data, found
        found += data
    return found


async def test_it_has_the_environment_and_folder_of_the_task_and_three_pipes(
    rig: Any, held: Held, tmp_path: Any
) -> None:
    env = {"PATH": os.environ["PATH"], "OF_THE_TASK": "seven"}
    pid = await begin(rig, "t1", env=env, cwd=str(tmp_path))
    script = 'read word; echo "$word $OF_THE_TASK $MORE $(pwd)"; echo apart >&2; exit 5'
    line = await held.exec("t1", "sh", "-c", script, env={"MORE": "x"})
    os.write(line.fds[0], b"hello\n")
    assert read_all(line.fds[1]) == f"hello seven x {tmp_path}\n".encode()
    assert read_all(line.fds[2]) == b"apart\n"
    assert await held.end(line) == {"ev": "ended", "code": 5, "error": ""}
    # Neither its end nor its output are the task's.
    assert rig.is_alive(pid)
    assert rig.output("t1") == b""


async def test_its_terminal_has_a_size_that_changes_and_carries_signals(rig: Any, held: Held) -> None:
    await begin(rig)
    script = (
        "trap 'stty size' WINCH; trap 'echo caught; exit 3' INT; tty; stty size; while :; do sleep 0.05; done"
    )
    line = await held.exec("t1", "sh", "-c", script, tty=True, rows=31, columns=97)
    (terminal,) = line.fds
    said = await asyncio.to_thread(read_until, terminal, b"31 97")
    assert b"/dev/pts/" in said
    set_size(terminal, 40, 120)
    await asyncio.to_thread(read_until, terminal, b"40 120")
    os.write(terminal, b"\x03")
    await asyncio.to_thread(read_until, terminal, b"caught")
    assert (await held.end(line))["code"] == 3


async def test_a_signal_reaches_all_of_its_group(rig: Any, held: Held) -> None:
    await begin(rig)
    line = await held.exec("t1", "sh", "-c", "trap 'exit 9' USR1; echo on; while :; do sleep 0.05; done")
    await asyncio.to_thread(read_until, line.fds[1], b"on\n")
    line.sock.sendall(json.dumps({"op": "signal", "number": signal.SIGUSR1}).encode() + b"\n")
    assert (await held.end(line))["code"] == 9


@pytest.mark.usefixtures("memory_groups")
async def test_what_it_uses_counts_for_the_limit_of_the_task(rig: Any, held: Held) -> None:
    pid = await begin(rig, "t1", memory_bytes=48 << 20)
    hog = "data = []\nwhile True: data.append(bytearray(b'x' * (1 << 20)))"
    line = await held.exec("t1", sys.executable, "-SIc", hog)
    assert (await held.end(line))["code"] == 128 + signal.SIGKILL
    assert rig.is_alive(pid)


async def test_a_program_that_is_not_there_is_named(rig: Any, held: Held) -> None:
    await begin(rig)
    end = await held.end(await held.exec("t1", "no-such-program"))
    assert end["code"] == 127
    assert "'no-such-program' was not found on this worker" in end["error"]


@pytest.mark.parametrize("tty", [False, True])
async def test_who_closes_the_line_hangs_it_up_with_all_that_it_started(
    rig: Any, held: Held, tty: bool
) -> None:
    task = await begin(rig)
    script = "trap '' HUP; sleep 1000 & echo $! $$ .; wait"
    line = await held.exec("t1", "sh", "-c", script, tty=tty)
    said = await asyncio.to_thread(read_until, line.fds[0 if tty else 1], b".")
    pids = [int(word) for word in said.split()[:2]]
    assert all(rig.is_alive(pid) for pid in pids)
    held.close()
    await rig.wait_until(
        lambda: not any(rig.is_alive(pid) for pid in pids), "it is gone, though it ignored HUP"
    )
    assert rig.is_alive(task)


async def test_it_ends_with_the_task(rig: Any, held: Held) -> None:
    await begin(rig, "t1", "sh", "-c", "sleep 1000 & read line < /dev/null; wait")
    line = await held.exec(
        "t1", "sh", "-c", "trap '' HUP TERM; echo on; while :; do sleep 0.05; done", tty=True
    )
    await asyncio.to_thread(read_until, line.fds[0], b"on")
    rig.cancel("t1", "user", 0.0)
    assert (await rig.exit_of("t1"))["exit_class"] == "cancelled"
    assert not rig.is_alive(line.pid)
    assert (await held.end(line))["code"] == 128 + signal.SIGKILL


async def test_what_does_not_run_is_refused_in_words(rig: Any, held: Held) -> None:
    with pytest.raises(ExecRefused, match="does not run here any more"):
        await held.exec("t0", "true")
    await rig.result("t1", "true")
    with pytest.raises(ExecRefused, match="does not run here any more"):
        await held.exec("t1", "true")
    await begin(rig, "t2", "sh", "-c", "trap 'echo asked' TERM; while :; do sleep 0.05; done")
    with pytest.raises(ExecRefused, match="list of words"):
        await held.exec("t2", "a\0b")
    rig.cancel("t2", "user", 60.0)
    await rig.next("stopping")
    with pytest.raises(ExecRefused, match="is being stopped"):
        await held.exec("t2", "true")
    rig.cancel("t2", "user", 0.0)
    await rig.exit_of("t2")


async def test_the_death_of_the_supervisor_leaves_nothing_of_it(rig: Any, held: Held) -> None:
    await begin(rig)
    # Neither its mark nor its terminal tells whose it is: the journal does.
    line = await held.exec(
        "t1", "env", "-i", "sh", "-c", "trap '' HUP; echo on; while :; do sleep 0.05; done"
    )
    await asyncio.to_thread(read_until, line.fds[1], b"on")
    await rig.wait_until(
        lambda: any(r["k"] == "adopted" and r["pid"] == line.pid for r in rig.records()), "it is on record"
    )
    await rig.kill_supervisor()
    await rig.open()
    assert not rig.is_alive(line.pid)


async def test_there_is_a_bound_to_them(rig: Any, held: Held) -> None:
    await begin(rig)
    lines = await asyncio.gather(*(held.exec("t1", "cat") for _ in range(100)), return_exceptions=True)
    refused = [str(line) for line in lines if isinstance(line, ExecRefused)]
    assert len(refused) == 100 - MOST_EXECS
    assert all(f"{MOST_EXECS} others run beside tasks of this worker already" in text for text in refused)
    pids = [line.pid for line in held.open]
    held.close()
    await rig.wait_until(lambda: not any(rig.is_alive(pid) for pid in pids), "they are hung up")
    line = await held.exec("t1", "true")
    assert (await held.end(line))["code"] == 0


async def test_a_flood_that_nobody_reads_holds_up_nobody_else(rig: Any, held: Held) -> None:
    await begin(rig)
    flood = await held.exec("t1", "sh", "-c", "yes")
    assert (await rig.result("t2", "true"))["exit_code"] == 0
    line = await held.exec("t1", "echo", "hello")
    assert read_all(line.fds[1]) == b"hello\n"
    assert rig.is_alive(flood.pid)


async def test_a_task_cannot_ask_for_one(rig: Any, held: Held) -> None:
    """Not even in the account of the agent: the supervisor has a driver, and this is another process."""
    victim = await begin(rig, "victim")
    script = (
        "import sys; from dray.agent.supervisor.exec_line import ExecRefused, open_exec\n"
        "try: open_exec(sys.argv[1], {'uid': 'victim', 'argv': ['true']}, 30.0)\n"
        "except ExecRefused as fault: print(fault)"
    )
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    rig.run(rig.task("thief", sys.executable, "-c", script, str(rig.home), env=env))
    await rig.exit_of("thief")
    assert rig.output("thief") == b"another agent drives the supervisor of this worker\n"
    assert rig.is_alive(victim)


@pytest.mark.skipif(os.geteuid() != 0, reason="to run tasks as somebody else needs root")
async def test_it_runs_as_the_user_of_the_task_and_nobody_else(rig: Any, held: Held) -> None:
    other = pwd.getpwnam("nobody")
    await begin(rig, "t1", user="nobody", cwd="/")
    line = await held.exec("t1", "sh", "-c", "id -u; id -g; echo me > $(tty)", tty=True, user="root")
    said = await asyncio.to_thread(read_all, line.fds[0])
    assert said.split() == [str(other.pw_uid).encode(), str(other.pw_gid).encode(), b"me"]


async def test_a_task_in_a_terminal_goes_on_when_nobody_is_at_it(rig: Any, held: Held) -> None:
    script = "trap 'echo hup' HUP; tty; while read line; do echo \"got $line\"; done; exit 4"
    pid = await begin(rig, "t1", "sh", "-c", script, terminal=True)
    await rig.await_output("t1", b"/dev/pts/")
    line = await held.attach("t1")
    assert line.pid == pid
    os.write(line.fds[0], b"one\n")
    await rig.await_output("t1", b"got one")
    assert b'{"ev":"grown"}' in await asyncio.to_thread(line.sock.recv, 4096)
    held.close()
    # Another one comes, and finds it where it was; an agent that comes anew does not matter either.
    await rig.open()
    line = await held.attach("t1")
    os.write(line.fds[0], b"two\n")
    await rig.await_output("t1", b"got two")
    os.write(line.fds[0], b"\x04")
    assert (await rig.exit_of("t1"))["exit_code"] == 4
    assert b"hup" not in rig.output("t1")
    told = await asyncio.to_thread(lambda: b"".join(iter(lambda: line.sock.recv(4096), b"")))
    assert told.endswith(b'{"ev":"ended","code":0,"error":""}\n')


async def test_ctrl_c_at_the_terminal_of_a_task_is_a_signal_to_it(rig: Any, held: Held) -> None:
    # Without a shell: what one does about an interrupt while it starts a program is its own affair.
    await begin(rig, "t1", "cat", terminal=True)
    line = await held.attach("t1")
    os.write(line.fds[0], b"word\n")
    await rig.await_output("t1", b"word\r\nword")
    os.write(line.fds[0], b"\x03")
    assert (await rig.exit_of("t1"))["signal"] == signal.SIGINT
    await begin(rig, "t2")
    with pytest.raises(ExecRefused, match="it has no terminal"):
        await held.attach("t2")


async def test_the_agent_is_not_replaced_by_a_line_of_its_own(rig: Any, held: Held) -> None:
    await begin(rig)
    line = await held.exec("t1", "cat")
    assert (await rig.result("t2", "true"))["exit_code"] == 0
    with socket.socket(socket.AF_UNIX) as idle:
        idle.connect(str(rig.home / "supervisor.sock"))
        assert (await rig.result("t3", "true"))["exit_code"] == 0
    assert rig.is_alive(line.pid)
