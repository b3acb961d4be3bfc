"""A supervisor and its agent speak to nobody of another account, wherever their folder stands open."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dray.agent.supervisor.records.home import Home

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="to be somebody else needs root")
NAME = "nobody"


@contextlib.contextmanager
def somebody_else(work: Callable[[int], None]) -> Iterator[int]:
    """A process of another account; gives where what it tells can be read."""
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(pwd.getpwnam(NAME).pw_gid)
            os.setuid(pwd.getpwnam(NAME).pw_uid)
            work(told)
        finally:
            os._exit(0)
    os.close(told)
    try:
        yield heard
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(heard)


@contextlib.contextmanager
def standing_open(folder: Path) -> Iterator[str]:
    """Let everybody in; gives a way there that no folder above it can bar. What is left is the look at who comes."""
    for one in (folder, *folder.glob("*.sock")):
        one.chmod(0o777)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def read_all(fd: int) -> bytes:
    return b"".join(iter(lambda: os.read(fd, 4096), b""))


async def test_a_supervisor_turns_away_who_is_of_another_account(rig: Any) -> None:
    await rig.open()
    rig.run(rig.task("t1", "sleep", "1000"))
    await rig.next("started")
    address = Home(str(rig.home)).read_address()
    assert address is not None
    path = Path(rig.home, str(address["socket"]))

    def intrude(told: int) -> None:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(f"{way}/{path.name}")
            os.write(told, b"connected, ")
            with contextlib.suppress(OSError):
                line.sendall(
                    b'{"op": "exec", "uid": "t1", "argv": ["sh", "-c", "kill -9 $PPID"]}\n{"op": "hello"}\n'
                    b'{"op": "cancel", "uid": "t1", "reason": "user", "grace_s": 0}\n'
                )
            with contextlib.suppress(ConnectionError):
                os.write(told, b"answered" if line.recv(4096) else b"turned away")

    with standing_open(path.parent) as way, somebody_else(intrude) as heard:
        assert read_all(heard) in (b"connected, turned away", b"connected, ")
    state = await rig.open()
    assert [item["phase"] for item in state["attempts"]] == ["running"]
    rig.cancel("t1", "user", 0)
    await rig.exits("t1")


async def test_an_agent_leaves_a_supervisor_of_another_account_alone(
    make_rig: Callable[[], Any],
) -> None:
    rig = make_rig()
    home = Path(rig.home)
    os.mkdir(home)

    def pose(told: int) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{way}/supervisor.sock")
            listener.listen()
            os.write(told, b"here\n")
            while True:
                line, _ = listener.accept()
                line.sendall(json.dumps({"ev": "ready", "pid": os.getpid()}).encode() + b"\n")
                os.write(told, line.recv(4096))

    with standing_open(home) as way, somebody_else(pose) as heard:
        assert os.read(heard, 16) == b"here\n"
        (home / "supervisor.json").write_text(json.dumps({"socket": "supervisor.sock"}))
        assert Home(str(home)).read_address() is not None
        await rig.open()
        assert os.stat(f"/proc/{rig.pid}").st_uid == os.geteuid()
        os.set_blocking(heard, False)
        with contextlib.suppress(BlockingIOError):
            assert os.read(heard, 4096) == b""
