"""One check of a service, made: a path by HTTP, a connection, or a command beside the task.

Each ends within its timeout, whatever the other side does, and gives a fault in words, or none. Nothing that comes back
is kept but a status line. Redirects are answers, and not followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from typing import NamedTuple, cast

from dray.agent.supervisor.processes.identity import find_members, kill_exactly, snapshot_processes
from dray.agent.tasks.accounts import Account
from dray.core.model.specs.spec import HealthProbe

MAX_HEAD, MAX_BODY = 16 << 10, 64 << 10
LOCAL = ("127.0.0.1", "::1")


class Beside(NamedTuple):
    """What a command needs to run as the task does."""

    environment: Mapping[str, str]
    folder: str
    account: Account
    pid: int


async def ask_port(check: HealthProbe, port: int, elsewhere: str = "") -> str:
    """Connect, and ask for a path where one is named. The fault in words; empty where it is well."""
    if not port:
        return "it has no port to be asked on"
    loop = asyncio.get_running_loop()
    fault = ""
    for host in (*LOCAL, elsewhere) if elsewhere not in LOCAL else LOCAL:
        if not host:
            continue
        talk = _Talk(loop, check.http, f"{host}:{port}")
        timer = loop.call_later(check.timeout_s, talk.give_up, check.timeout_s)
        try:
            async with asyncio.timeout(check.timeout_s):
                await loop.create_connection(lambda talk=talk: talk, host, port)  # type: ignore[misc] # bound at once
            return await talk.done
        except TimeoutError:
            return f"no connection on port {port} within {check.timeout_s:g} s"
        except OSError as error:
            # Who listens at one address of the machine may not at the others.
            fault = fault or f"nobody listens on port {port}: {error.strerror or error}"
        finally:
            timer.cancel()
            talk.close()
    return fault


class _Talk(asyncio.Protocol):
    """A request and as much of its answer as is of interest."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: str, host: str) -> None:
        self.done: asyncio.Future[str] = loop.create_future()
        self._path, self._host = path, host
        self._transport: asyncio.Transport | None = None
        self._head = bytearray()
        self._status = 0
        self._left = -1
        self._read = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: those of uvloop are of no class that asyncio knows.
        self._transport = line = cast(asyncio.Transport, transport)
        if not self._path:
            self._finish("")
            return
        # HTTP/1.0: whoever answers closes, and sends no chunks.
        request = f"GET {self._path} HTTP/1.0\r\nHost: {self._host}\r\nUser-Agent: dray\r\nConnection: close\r\n\r\n"
        line.write(request.encode("ascii"))

    def data_received(self, data: bytes) -> None:
        if self.done.done():
            return
        if not self._status:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                if len(self._head) > MAX_HEAD:
                    self._finish(f"{self._path} is answered with a head of more than {MAX_HEAD} bytes")
                return
            data = bytes(self._head[end + 4 :])
            if not self._read_head(bytes(self._head[:end])):
                return
        self._read += len(data)
        if self._read > MAX_BODY:
            self._finish(f"{self._path} is answered with more than {MAX_BODY} bytes: name a smaller page")
        elif 0 <= self._left <= self._read:
            self._finish("")

    def _read_head(self, head: bytes) -> bool:
        line, *fields = head.split(b"\r\n")
        words = line.split(None, 2)
        if (
            len(words) < 2
            or not words[0].startswith(b"HTTP/")
            or not words[1].isdigit()
            or len(words[1]) != 3
        ):
            self._finish(f"{self._path} is not answered as HTTP has it")
            return False
        self._status = int(words[1])
        if not 200 <= self._status < 400:
            self._finish(f"{self._path} is answered with {self._status}")
            return False
        for field in fields:
            name, _, value = field.partition(b":")
            if name.strip().lower() == b"content-length" and value.strip().isdigit():
                self._left = int(value.strip()[:12])
        return True

    def eof_received(self) -> None:
        self._finish("" if self._status else f"{self._path} is answered with nothing")

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish("" if self._status else f"{self._path} is answered with nothing")

    def give_up(self, timeout_s: float) -> None:
        self._finish(f"{self._path or 'it'} is not answered within {timeout_s:g} s")

    def _finish(self, fault: str) -> None:
        if not self.done.done():
            self.done.set_result(fault)
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None


async def run_command(check: HealthProbe, beside: Beside) -> str:
    """Run a command as the task runs. Nothing of it is left when its time is over."""
    who = beside.account
    as_whom = {"user": who.uid, "group": who.gid, "extra_groups": []} if who.is_foreign else {}
    try:
        process = await asyncio.create_subprocess_exec(
            *check.command,
            env=dict(beside.environment),
            cwd=beside.folder,
            stdin=asyncio.subprocess.DEVNULL,
            # Nobody reads it: what a check prints must neither hold it up nor fill anything.
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            **as_whom,  # type: ignore[arg-type] # one dict of what the call names apart
        )
    except (OSError, ValueError) as error:
        return f"{check.command[0]} could not be run: {error}"
    _join_group(process.pid, beside.pid)
    try:
        async with asyncio.timeout(check.timeout_s):
            code = await process.wait()
    except TimeoutError:
        return f"{check.command[0]} did not end within {check.timeout_s:g} s"
    finally:
        await _end(process)
    return f"{check.command[0]} exited with {code}" if code else ""


async def _end(process: asyncio.subprocess.Process) -> None:
    """Its session and whatever left it, as far as it is still known by its parents."""
    if process.returncode is None:
        left = find_members(process.pid, snapshot_processes())
        kill_exactly(left)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _join_group(pid: int, task: int) -> None:
    """Let what a check uses count as the task's, where that has a group of its own."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{task}/cgroup", encoding="ascii") as file:
            path = file.readline().strip().partition("::")[2]
        with open(f"/proc/{os.getpid()}/cgroup", encoding="ascii") as file:
            own = file.readline().strip().partition("::")[2]
        if path and path != own:
            with open(f"/sys/fs/cgroup{path}/cgroup.procs", "w", encoding="ascii") as procs:
                procs.write(str(pid))
