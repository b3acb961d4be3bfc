"""Environments on a worker: built once for each account by uv, kept by what they are made of, shared by its tasks.

Built where nobody looks and renamed into place, so that what is there is whole. Surprising rule: the build runs as the
account whose tasks will use it, with a cache of its own: what a package does while it is installed is that user's
doing, and never the agent's. What the resolver says against it is told in its own words.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from dray.agent.runners.home import remove_as
from dray.agent.tasks.accounts import Account
from dray.agent.tasks.aside import Aside
from dray.agent.tasks.environment import FALLBACK_PATH
from dray.agent.trees.faults import TreeFault
from dray.processes import look_up
from dray.snapshots.environments import MOST_BYTES, Environment, environment_digest, read_environment

BUILD_S = 1800.0
# Of one account.
MOST_KEPT = 32
NAME_CHARS = 32
# So many at a time; the others wait.
BUILDS = 4
MOST_TOLD = 6
GENTLY = ("nice", "-n", "15")
WORDS = 1500
# What leads to package indexes, and is the machine's to say.
_PASSED = ("UV_", "SSL_CERT", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
_BUILDING = "building-"
logger = logging.getLogger("dray.agent.trees")


def find_uv() -> str:
    """Where uv is on this machine; empty where it is not."""
    beside = os.path.join(os.path.dirname(sys.executable), "uv")
    return shutil.which("uv") or (beside if os.access(beside, os.X_OK) else "")


class Environments:
    """Those of one worker."""

    def __init__(self, base: str, aside: Aside, build_s: float = BUILD_S) -> None:
        self._base, self._aside, self._build_s = f"{base}/environments", aside, build_s
        self._builds = Aside(BUILDS, "dray-builds")
        self._building: dict[str, asyncio.Lock] = {}
        # Which attempts run in which of them.
        self.used: dict[str, str] = {}
        self._built: dict[str, str] = {}

    def close(self) -> None:
        self._builds.close()

    def open(self, mode: int) -> None:
        """Make the folder; clear away what was not finished."""
        os.makedirs(self._base, exist_ok=True)
        os.chmod(self._base, mode)
        for account in os.scandir(self._base):
            if account.name.startswith(_BUILDING):
                _end_build(account.name)
                os.unlink(account.path)
        for account in os.scandir(self._base):
            for entry in os.scandir(account.path):
                if entry.name.startswith("stage-"):
                    _remove(entry.path)

    def place(self, environment: str, account: Account) -> str:
        """Where an environment is, or will be."""
        return f"{self._folder(account)}/{environment_digest(environment)[:NAME_CHARS]}"

    def _folder(self, account: Account) -> str:
        return f"{self._base}/{account.uid if account.is_foreign else 'own'}"

    def list_built(self) -> list[str]:
        """The environments that are known to be here, those that were asked for last at the end."""
        return list(self._built.values())

    def _note(self, place: str, environment: str) -> None:
        self._built.pop(place, None)
        self._built[place] = environment
        if len(self._built) > MOST_TOLD:
            del self._built[next(iter(self._built))]

    async def have(
        self, environment: str, account: Account, fetch: Callable[[str], Any], gently: bool = False
    ) -> None:
        """See that an environment is there; raises TreeFault. `fetch` gives where the document of a digest lies.
        `gently`: nobody waits for it yet.
        """
        place, digest = self.place(environment, account), environment_digest(environment)
        if not digest:
            raise TreeFault(
                f"environment {environment[:80]!r} is none of this hub's (`--environment` makes one)"
            )
        async with self._building.setdefault(place, asyncio.Lock()):
            if await self._aside.do(os.path.isdir, place):
                await self._aside.do(_touch, place)
                self._note(place, environment)
                return
            uv = find_uv()
            if not uv:
                raise TreeFault("uv is not installed on this worker, which builds environments", ours=True)
            wanted = await self._aside.do(_read, await fetch(digest))
            await self._build(wanted, [*(GENTLY if gently else ()), uv], place, account)
            self._note(place, environment)
            await self._aside.do(self._let_old_go, self._folder(account))

    def _let_old_go(self, folder: str) -> None:
        """Of one account only those that were used last stay, and those that somebody runs in."""
        places = [entry for entry in os.scandir(folder) if len(entry.name) == NAME_CHARS]
        places.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns, reverse=True)
        for entry in places[MOST_KEPT:]:
            if entry.path not in self.used.values():
                self._built.pop(entry.path, None)
                gone = f"{folder}/stage-{secrets.token_hex(6)}"
                os.rename(entry.path, gone)
                _remove(gone)

    async def _build(self, wanted: Environment, uv: list[str], place: str, account: Account) -> None:
        folder = self._folder(account)
        stage = f"{folder}/stage-{secrets.token_hex(6)}"
        await self._aside.do(_prepare, folder, stage, wanted, account)
        try:
            async with asyncio.timeout(self._build_s):
                for command in _commands(uv, wanted, stage):
                    await self._run(command, stage, folder, account)
            await self._aside.do(os.rename, f"{stage}/venv", place)
        except TimeoutError:
            raise TreeFault(f"its environment was not built within {self._build_s:g} s: given up") from None
        finally:
            await asyncio.shield(self._aside.do(_remove, stage))

    async def _run(self, command: list[str], stage: str, folder: str, account: Account) -> None:
        own = {name: value for name, value in os.environ.items() if name.startswith(_PASSED)}
        environment = {
            "PATH": os.environ.get("PATH", FALLBACK_PATH),
            "HOME": os.environ.get("HOME", "/"),
            **own,
            **account.variables(),
            "UV_CACHE_DIR": f"{folder}/cache",
            "UV_PROJECT_ENVIRONMENT": f"{stage}/venv",
            "VIRTUAL_ENV": f"{stage}/venv",
            "UV_NO_PROGRESS": "1",
            "NO_COLOR": "1",
        }
        who: dict[str, Any] = {}
        if account.is_foreign:
            who = {"user": account.uid, "group": account.gid, "extra_groups": []}
        process = await self._builds.do(_begin, command, stage, environment, who)
        # By which the agent after this one ends what would hold it up; in a folder that is no account's.
        info = look_up(process.pid)
        note = f"{self._base}/{_BUILDING}{process.pid}-{info.start if info is not None else 0}"
        try:
            await self._aside.do(_write_note, note)
            said = await self._builds.do(_read_end, process)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            await asyncio.shield(self._aside.do(_drop_note, note))
        if process.returncode:
            words = said.decode(errors="replace").strip()
            raise TreeFault(f"its environment cannot be built: {_name(command)} says:\n{words}")


def _name(command: list[str]) -> str:
    """The program itself, and not what runs it gently."""
    return os.path.basename(command[len(GENTLY)] if command[: len(GENTLY)] == [*GENTLY] else command[0])


def _begin(
    command: list[str], stage: str, environment: dict[str, str], who: dict[str, Any]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        cwd=stage,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        **who,
    )


def _read_end(process: subprocess.Popen[bytes]) -> bytes:
    """What it said last, once it has ended; a flood is let pass."""
    assert process.stderr is not None
    said = b""
    with process:
        while piece := process.stderr.read1(1 << 16):  # type: ignore[attr-defined]  # a BufferedReader
            said = (said + piece)[-WORDS:]
    return said


def _write_note(path: str) -> None:
    with open(path, "x", encoding="ascii"):
        pass


def _drop_note(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _end_build(name: str) -> None:
    """End a build that an earlier agent has left, unless its number is another's by now."""
    pid, _, start = name.removeprefix(_BUILDING).partition("-")
    info = look_up(int(pid))
    if info is not None and str(info.start) == start:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(pid), signal.SIGKILL)


def _commands(uv: list[str], wanted: Environment, stage: str) -> list[list[str]]:
    venv = [*uv, "venv", "--relocatable", "--quiet", f"{stage}/venv"]
    if wanted.python:
        venv += ["--python", wanted.python]
    if wanted.kind == "lock":
        # The project itself comes with the snapshot, if at all.
        install = [*uv, "sync", "--frozen", "--no-install-project", "--quiet", "--no-dev"]
    elif wanted.kind:
        name = "requirements.txt" if wanted.kind == "requirements" else "pyproject.toml"
        install = [*uv, "pip", "install", "--quiet", "-r", name]
    else:
        return [venv]
    return [venv, install]


def _prepare(folder: str, stage: str, wanted: Environment, account: Account) -> None:
    """Make the folder of a build. Those above stay the agent's, and what is in this one is written before it becomes
    the account's: a name that the account could put there is never gone through.
    """
    foreign = account.is_foreign
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
        os.mkdir(f"{folder}/cache", 0o700)
        if foreign:
            os.chown(f"{folder}/cache", account.uid, account.gid)
            os.chown(folder, -1, account.gid)
            os.chmod(folder, 0o710)  # noqa: S103 - its own group passes through, and lists nothing
    os.mkdir(stage, 0o700)
    for name, text in wanted.files.items():
        with open(f"{stage}/{name}", "x", encoding="utf-8") as file:
            file.write(text)
        if foreign:
            os.chown(f"{stage}/{name}", account.uid, account.gid)
    if foreign:
        os.chown(stage, account.uid, account.gid)


def _read(path: str) -> Environment:
    with open(path, "rb") as file:
        return read_environment(file.read(MOST_BYTES + 1))


def _touch(place: str) -> None:
    with contextlib.suppress(OSError):
        os.utime(place, follow_symlinks=False)


def _remove(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if found.st_uid != os.geteuid():
        with contextlib.suppress(OSError):
            remove_as(found.st_uid, found.st_gid, path)
    else:
        shutil.rmtree(path, ignore_errors=True)
