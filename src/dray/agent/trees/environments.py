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
from dray.agent.trees.containers import LABEL as CONTAINERS
from dray.agent.trees.containers import Containers, fetch_commands, find_tool
from dray.agent.trees.faults import BuildFault, TreeFault
from dray.core.model.specs.asks import CONTAINER, image_of
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
_PASSED = (
    *("UV_", "CONDA_", "MAMBA_", "CONTAINERS_", "DOCKER_", "APPTAINER_", "SINGULARITY_", "XDG_RUNTIME_DIR"),
    *("SSL_CERT", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
)
_BUILDING = "building-"
# Beside what is built where it will be, until that is whole.
_PART = ".part"
_CONDA = ("micromamba", "mamba", "conda")
logger = logging.getLogger("dray.agent.trees")


def find_uv() -> str:
    """Where uv is on this machine; empty where it is not."""
    beside = os.path.join(os.path.dirname(sys.executable), "uv")
    return shutil.which("uv") or (beside if os.access(beside, os.X_OK) else "")


def find_conda() -> str:
    """Where a program is that makes conda environments; empty where none is."""
    return next((found for name in _CONDA if (found := shutil.which(name))), "")


def list_builders() -> dict[str, str]:
    """What environments this machine can make, as the labels by which it says so."""
    conda, tool = find_conda(), find_tool()
    found = {"environments": "uv"} if find_uv() else {}
    found |= {"conda": os.path.basename(conda)} if conda else {}
    return found | ({CONTAINERS: tool.kind} if tool is not None else {})


class Environments:
    """Those of one worker."""

    def __init__(self, base: str, aside: Aside, build_s: float = BUILD_S) -> None:
        self._base, self._aside, self._build_s = f"{base}/environments", aside, build_s
        self._builds = Aside(BUILDS, "dray-builds")
        self._building: dict[str, asyncio.Lock] = {}
        # Which attempts run in which of them.
        self.used: dict[str, str] = {}
        self._built: dict[str, str] = {}
        self.containers = Containers(f"{base}/containers")

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
                elif entry.name.endswith(_PART):
                    _drop_part(entry.path.removesuffix(_PART))

    def place(self, environment: str, account: Account) -> str:
        """Where an environment is, or will be; empty for an image, which is wherever its tool keeps it."""
        if environment.startswith(CONTAINER):
            return ""
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
        if environment.startswith(CONTAINER):
            await self._have_image(environment, account, gently)
            return
        place, digest = self.place(environment, account), environment_digest(environment)
        if not digest:
            raise TreeFault(
                f"environment {environment[:80]!r} is none of this hub's (`--environment` makes one)"
            )
        async with self._building.setdefault(place, asyncio.Lock()):
            if await self._aside.do(_is_whole, place):
                await self._aside.do(_touch, place)
                self._note(place, environment)
                return
            wanted = await self._aside.do(_read, await fetch(digest))
            builder = find_conda() if wanted.kind == "conda" else find_uv()
            if not builder:
                what = "conda, mamba or micromamba" if wanted.kind == "conda" else "uv"
                raise TreeFault(
                    f"{what} is not installed on this worker, which builds environments", ours=True
                )
            await self._build(wanted, [*(GENTLY if gently else ()), builder], place, account)
            self._note(place, environment)
            await self._aside.do(self._let_old_go, self._folder(account))

    async def _have_image(self, environment: str, account: Account, gently: bool) -> None:
        """See that an image is here, by asking its tool."""
        image, tool = image_of(environment), self.containers.tool
        if not image:
            raise TreeFault(f"{environment[:80]!r} names no image that a container can be made of")
        if tool is None:
            raise TreeFault("neither podman, docker nor apptainer is on this worker", ours=True)
        folder, words = self._folder(account), ""
        async with self._building.setdefault(f"{folder} {environment}", asyncio.Lock()):
            await self._aside.do(_make_folder, folder, account)
            for command in fetch_commands(tool, image):
                try:
                    async with asyncio.timeout(self._build_s):
                        await self._run([*(GENTLY if gently else ()), *command], "/", folder, account)
                except TimeoutError:
                    raise TreeFault(
                        f"image {image} did not come within {self._build_s:g} s: given up"
                    ) from None
                except BuildFault as fault:
                    words = str(fault)
                else:
                    self._note(environment, environment)
                    return
        raise TreeFault(f"container image {image} cannot be had: {words}")

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
            if wanted.kind == "conda":
                await self._aside.do(_begin_in_place, place, account)
            async with asyncio.timeout(self._build_s):
                for command in _commands(uv, wanted, stage, place):
                    await self._run(command, stage, folder, account)
            if wanted.kind == "conda":
                await self._aside.do(_drop_note, f"{place}{_PART}")
            else:
                await self._aside.do(os.rename, f"{stage}/venv", place)
        except BuildFault as fault:
            raise TreeFault(f"its environment cannot be built: {fault}") from None
        except TimeoutError:
            raise TreeFault(f"its environment was not built within {self._build_s:g} s: given up") from None
        finally:
            await asyncio.shield(self._aside.do(_remove, stage))
            if wanted.kind == "conda":
                await asyncio.shield(self._aside.do(_drop_part, place))

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
            raise BuildFault(f"{_name(command)} says:\n{words}")


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


def _commands(uv: list[str], wanted: Environment, stage: str, place: str) -> list[list[str]]:
    if wanted.kind == "conda":
        # Where it will be: what conda makes cannot be moved.
        make = ["create"] if os.path.basename(uv[-1]) == "micromamba" else ["env", "create"]
        yes = ["--yes"] if make == ["create"] else []
        return [[*uv, *make, *yes, "--quiet", "--prefix", place, "--file", f"{stage}/environment.yml"]]
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
    _make_folder(folder, account)
    os.mkdir(stage, 0o700)
    for name, text in wanted.files.items():
        with open(f"{stage}/{name}", "x", encoding="utf-8") as file:
            file.write(text)
        if foreign:
            os.chown(f"{stage}/{name}", account.uid, account.gid)
    if foreign:
        os.chown(stage, account.uid, account.gid)


def _make_folder(folder: str, account: Account) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
        os.mkdir(f"{folder}/cache", 0o700)
        if account.is_foreign:
            os.chown(f"{folder}/cache", account.uid, account.gid)
            os.chown(folder, -1, account.gid)
            os.chmod(folder, 0o710)  # noqa: S103 - its own group passes through, and lists nothing


def _is_whole(place: str) -> bool:
    """Whether an environment is there; what is built in its place has a note beside it until it is whole."""
    return os.path.isdir(place) and not os.path.exists(f"{place}{_PART}")


def _begin_in_place(place: str, account: Account) -> None:
    _write_note(f"{place}{_PART}")
    os.mkdir(place, 0o700)
    if account.is_foreign:
        os.chown(place, account.uid, account.gid)


def _drop_part(place: str) -> None:
    """What was begun in its place and is not whole goes."""
    if os.path.exists(f"{place}{_PART}"):
        _remove(place)
        _drop_note(f"{place}{_PART}")


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
