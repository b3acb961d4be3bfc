"""The agent's side: reach the supervisor of a home, starting it when there is none, and talk to it.

This and `exec_line` are for the agent's process. Closing it leaves the supervisor running: that is what it is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from dray.agent.supervisor.records.home import LOCKED_CODE, Home, peer_of, read_inode
from dray.descriptors import limits_as_found
from dray.processes import HAS_PROC

PACKAGE_ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
# The agent's own environment may hold its token, and any task of the same user can read the supervisor's.
KEPT_ENV = "PATH HOME LANG LC_ALL TZ TMPDIR XDG_RUNTIME_DIR LD_LIBRARY_PATH DYLD_LIBRARY_PATH".split()
RETRY_S = 0.03
READ_BYTES = 1 << 18
READY_S = 5.0

_dump = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class SupervisorError(Exception):
    """The supervisor could not be reached or started."""


class SupervisorClient:
    """Use `open`. Connecting is no proof of life: a socket answers as long as a forked child still holds it, so the
    supervisor's own first word is waited for."""

    def __init__(self, home: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.home = home
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(
        cls,
        home: str | os.PathLike[str],
        python: str = sys.executable,
        options: Sequence[str] = (),
        timeout_s: float = 20.0,
    ) -> SupervisorClient:
        """Connect to the running supervisor or start one, detached. Say hello next: it answers with the state."""
        directory = Home(os.fspath(home)).directory
        deadline = time.monotonic() + timeout_s
        while True:
            streams = await _connect(directory)
            if streams is not None:
                return cls(directory, *streams)
            code, text = await _start(directory, python, options)
            killed = code not in (0, LOCKED_CODE) and not text
            if code not in (0, LOCKED_CODE) and not killed:
                raise SupervisorError(text)
            if time.monotonic() > deadline:
                if Home(directory).is_linked:
                    raise SupervisorError(
                        f"{directory} was copied by hard links, and the supervisor of the other home holds the lock "
                        "of both: make a real copy (cp -a), or use another --home"
                    )
                what = (
                    f"ended with code {code} at its start" if killed else "holds its lock but does not answer"
                )
                raise SupervisorError(f"the supervisor of {directory} {what}: see supervisor.log there")
            if code != 0:
                # Somebody else is starting it at this moment, it is on its way out, or it was killed before it could
                # say a word: none of that will last.
                await asyncio.sleep(RETRY_S)

    def send(self, *messages: dict[str, Any]) -> None:
        """Queue messages, in one piece; raises ConnectionError when the supervisor is gone."""
        if self._writer.is_closing():
            raise ConnectionError(f"the connection to the supervisor of {self.home} is closed")
        self._writer.write("".join([_dump(message) + "\n" for message in messages]).encode())

    async def drain(self) -> None:
        await self._writer.drain()

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Every event as it comes; ends when the connection does, whoever ended it."""
        parts: list[bytes] = []
        while True:
            try:
                data = await self._reader.read(READ_BYTES)
            except ConnectionError:
                data = b""
            if not data:
                self._writer.close()
                return
            *lines, rest = data.split(b"\n")
            for line in lines:
                whole = b"".join([*parts, line])
                parts.clear()
                yield json.loads(whole)
            if rest:
                parts.append(rest)

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return


async def _connect(directory: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    """Speak to the supervisor of this very folder; None where there is none, whatever a copied file says."""
    try:
        with find_socket(directory) as (path, inode):
            reader, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return None
    peer = peer_of(writer.get_extra_info("socket"))
    try:
        async with asyncio.timeout(READY_S):
            ready = await reader.readline() if peer is None or peer[1] in (os.geteuid(), 0) else b""
    except (TimeoutError, ConnectionError):
        ready = b""
    word = json.loads(ready) if ready.endswith(b"\n") else {}
    if word.get("ev") == "ready" and word.get("home", inode) == inode:
        return reader, writer
    writer.close()
    if word.get("ev") == "taken":
        raise SupervisorError(
            f"another agent (process {word.get('pid')}) drives the supervisor of {directory}: "
            "stop that agent, or use another --home"
        )
    return None


@contextlib.contextmanager
def find_socket(directory: str) -> Iterator[tuple[str, list[int]]]:
    """Where the supervisor of this very folder listens, and which folder that is; raises OSError where none does."""
    address = Home(directory).read_address()
    if address is None or "socket" not in address:
        raise FileNotFoundError(f"no supervisor has left its address in {directory}")
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        inode = read_inode(folder)
        if address.get("home", inode) != inode:
            raise FileNotFoundError(f"the address in {directory} is that of another home")
        # By the folder and not by its path, which may be too long for a socket.
        place = f"/proc/self/fd/{folder}" if HAS_PROC else directory
        yield os.path.join(place, str(address["socket"])), inode
    finally:
        os.close(folder)


async def _start(directory: str, python: str, options: Sequence[str]) -> tuple[int, str]:
    """Run the starter, which returns once the supervisor serves. Without site-packages: it needs none of them."""
    with limits_as_found():
        process = await asyncio.create_subprocess_exec(
            *(python, "-S", "-P", "-m", "dray.agent.supervisor", "--home", directory, "--detach", *options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={
                **{name: os.environ[name] for name in KEPT_ENV if name in os.environ},
                "PYTHONPATH": PACKAGE_ROOT,
            },
            start_new_session=True,
        )
    _, errors = await process.communicate()
    return process.returncode or 0, errors.decode(errors="replace").strip()
