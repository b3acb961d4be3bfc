"""Checks made for real: whatever the other side does, each ends in its time and says in words what was wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dray.agent.supervisor.processes.marks import VARIABLE
from dray.agent.tasks.accounts import OWN
from dray.agent.tasks.checking import read_beside
from dray.agent.tasks.listeners import find_taken, find_thief
from dray.agent.tasks.probes import MAX_BODY, ask_port, run_command
from dray.core.model.specs.spec import HealthProbe
from dray.processes import look_up

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LISTEN = "import socket, sys, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[int]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def answer(text: str, more: bytes = b"") -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        assert request.startswith(b"GET /ready?x=1 HTTP/1.0\r\n")
        writer.write(text.replace("\n", "\r\n").encode() + more)
        await writer.drain()

    return handler


@pytest.mark.parametrize(
    ("handler", "fault"),
    [
        (answer("HTTP/1.1 200 OK\n\nfine"), ""),
        (answer("HTTP/1.1 204 No Content\n\n"), ""),
        (answer("HTTP/1.1 302 Found\nLocation: http://127.0.0.1:1/\n\n"), ""),
        (answer("HTTP/1.1 503 Busy\n\n"), "/ready?x=1 is answered with 503"),
        (answer("HTTP/1.1 404 Not Found\n\n"), "/ready?x=1 is answered with 404"),
        (answer("SSH-2.0-OpenSSH\n\n"), "/ready?x=1 is not answered as HTTP has it"),
        (answer(""), "/ready?x=1 is answered with nothing"),
        (answer("HTTP/1.1 200 OK\n\n", b"x" * (MAX_BODY + 1)), "more than 65536 bytes"),
        (answer("HTTP/1.1 200 OK\n" + "A: b\n" * 5000), "a head of more than 16384 bytes"),
    ],
)
async def test_what_is_answered_by_http(handler: Handler, fault: str) -> None:
    async with serving(handler) as port:
        found = await ask_port(HealthProbe(http="/ready?x=1", timeout_s=60.0), port)
    assert fault in found
    assert bool(found) == bool(fault)


async def test_a_server_that_keeps_the_line_open_is_read_as_far_as_it_said() -> None:
    over = asyncio.Event()

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await over.wait()

    async with serving(keep) as port:
        assert await ask_port(HealthProbe(http="/", timeout_s=60.0), port) == ""
        over.set()


async def test_who_hangs_or_drips_has_failed_when_the_time_is_over() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not reader.at_eof():
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.02)

    refused = 0
    for handler in (hang, drip):
        async with serving(handler) as port:
            assert "is not answered within 0.3 s" in await ask_port(
                HealthProbe(http="/", timeout_s=0.3), port
            )
            assert await ask_port(HealthProbe(tcp=True, timeout_s=60.0), port) == ""
            refused = port
    assert "nobody listens on port" in await ask_port(HealthProbe(tcp=True, timeout_s=60.0), refused)


async def test_a_command_runs_as_the_task_does_and_leaves_nothing(tmp_path: Path) -> None:
    task = await asyncio.create_subprocess_exec(
        "sleep", "600", env={"PATH": os.environ["PATH"], "MARK": "here"}, cwd=tmp_path
    )
    try:
        # The kernel shows no environment for a moment in the middle of an exec.
        while not (beside := read_beside(task.pid)).environment:  # noqa: ASYNC110 - nobody tells when it is over
            await asyncio.sleep(0)
        assert (beside.environment["MARK"], beside.folder, beside.account) == ("here", str(tmp_path), OWN)
        good = HealthProbe(
            command=["sh", "-c", 'test "$MARK" = here && test "$PWD" = "$0"', str(tmp_path)], timeout_s=60.0
        )
        assert await run_command(good, beside) == ""
        bad = HealthProbe(command=["sh", "-c", "echo no such row; exit 3"], timeout_s=60.0)
        assert await run_command(bad, beside) == "sh exited with 3"
        assert "could not be run" in await run_command(HealthProbe(command=["no-such-program"]), beside)
        flood = HealthProbe(command=["sh", "-c", "yes"], timeout_s=0.3)
        assert await run_command(flood, beside) == "sh did not end within 0.3 s"
        left = tmp_path / "left"
        hung = f"sleep 600 & echo $! > {left}.new; mv {left}.new {left}; wait"
        assert "did not end" in await run_command(
            HealthProbe(command=["sh", "-c", hung], timeout_s=3.0), beside
        )
        child, deadline = int(left.read_text()), time.monotonic() + 60
        while (info := look_up(child)) is not None and info.alive:
            assert time.monotonic() < deadline, "what a check had started is still there"
            await asyncio.sleep(0.02)
    finally:
        task.kill()
        await task.wait()


def test_a_port_that_somebody_else_listens_on_is_told_from_the_tasks_own() -> None:
    fork = "import os\nif os.fork(): time.sleep(600)\nos.setsid()\nif os.fork(): os._exit(0)"
    env = {**os.environ, VARIABLE: "token.1-7"}
    leaders: list[subprocess.Popen[bytes]] = []
    try:
        for code in (LISTEN, f"{fork}\n{LISTEN}"):
            program = [sys.executable, "-c", f"import time\n{code}\ntime.sleep(600)"]
            leader = subprocess.Popen(program, env=env, stdout=subprocess.PIPE, start_new_session=True)
            leaders.append(leader)
            assert leader.stdout is not None
            port = int(leader.stdout.readline())
            assert find_thief(port, leader.pid, "1-7") == ""
            assert find_taken([port]) == port
        with socket.create_server(("127.0.0.1", 0)) as stranger:
            stolen = stranger.getsockname()[1]
            assert find_thief(stolen, leaders[0].pid, "1-7").startswith(f"process {os.getpid()} (")
        assert find_taken([stolen]) == 0
    finally:
        for pid in [int(name) for name in os.listdir("/proc") if name.isdigit() and _is_marked(name)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for leader in leaders:
            leader.wait()
            assert leader.stdout is not None
            leader.stdout.close()


def _is_marked(pid: str) -> bool:
    try:
        return f"{VARIABLE}=token.1-7".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
