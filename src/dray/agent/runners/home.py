"""Where runners live on disk: a folder each, the sockets by which they reach their agent, the interpreter they run in.

Knows paths and nothing of calls. A runner's folder is the agent's, three folders in it are the runner's own; whatever
lies in those may have been put there by the user's code, and is touched through `owned_files` only. Surprising rule:
where tasks run as other users the folders lie beside the tasks' sockets, outside of the home, which is closed to them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO, cast

import dray
from dray.agent.runners.notes import RunnerNotes
from dray.agent.supervisor.processes.output import SEGMENT, STREAMS, list_segments
from dray.agent.supervisor.records.owned_files import MOST_ENTRIES, Place, open_file
from dray.agent.tasks.accounts import Account
from dray.agent.tasks.environment import FALLBACK_PATH, KEPT
from dray.agent.tasks.session_home import SessionHome

FOLDERS = ("live", "ended", "values")
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(dray.__file__)), "runner", "__main__.py")
REMOVAL_S = 60.0
UNKNOWN = -2
logger = logging.getLogger("dray.agent.runners.runners")


class RunnerHome:
    """The runners' part of an agent's home. `session` tells where tasks may reach it, and makes their keys."""

    def __init__(self, home: Path, session: SessionHome, near: str) -> None:
        self._home, self._session = home, session
        self.accounts = session.accounts
        self.is_foreign = foreign = self.accounts.are_foreign
        # Where the hub of the same home keeps its blobs; other users may not look there.
        self.near = "" if foreign else near
        base = Path(session.folder) if foreign else home
        self.runners, self.blobs = base / "runners", base / "blobs"
        self._mode = 0o711 if foreign else 0o700
        self._owners: dict[str, int] = {}
        self.make_folders()

    def key(self, uid: str) -> str:
        """By which a runner proves which one it is."""
        return self._session.key(uid)

    def folder(self, uid: str) -> str:
        return f"{self.runners}/{uid}"

    def socket_path(self, account: Account) -> str:
        """Where the runners of an account find their agent."""
        name = f"runners-{account.uid}.sock" if account.is_foreign else "runners.sock"
        return f"{self._session.folder}/{name}"

    def has_sockets(self) -> bool:
        """Whether runners find their sockets where they are told to look."""
        return all(os.path.exists(self.socket_path(account)) for account in self.accounts.all)

    def make_folders(self) -> None:
        """Make what is not there, at first or any more."""
        for folder in (self.runners, self.blobs):
            folder.mkdir(mode=self._mode, exist_ok=True)

    def make_notes(self, uid: str, account: Account) -> RunnerNotes:
        """Make a runner's folder, and begin the notes about it."""
        folder = self.folder(uid)
        os.mkdir(folder, self._mode)
        for name in FOLDERS:
            os.mkdir(f"{folder}/{name}", 0o700)
            if account.is_foreign:
                os.chown(f"{folder}/{name}", account.uid, account.gid)
        self._owners[uid] = account.uid
        return RunnerNotes(folder, account.uid, fresh=True)

    def make_task(
        self, uid: str, account: Account, venv: str, memory_bytes: int, own: dict[str, str]
    ) -> dict[str, Any]:
        """Spell a runner's start as the supervisor's `run` entry."""
        folder = self.folder(uid)
        given = {
            "socket": self.socket_path(account),
            "uid": uid,
            "key": self.key(uid),
            "folder": folder,
            "blobs": [str(self.blobs), *([self.near] if self.near else [])],
        }
        environment = {name: own[name] for name in KEPT if name in own} | account.variables()
        environment.setdefault("PATH", FALLBACK_PATH)
        environment |= {"DRAY_RUNNER": json.dumps(given), "DRAY_CLOUDPICKLE": find_cloudpickle()}
        return {
            "uid": uid,
            "task_id": uid,
            "argv": [self.find_python(venv), "-P", PROGRAM, folder],
            "env": environment,
            "cwd": folder,
            "grace_s": 0.0,
            "memory_bytes": memory_bytes,
            "user": account.name or None,
            "meta": {"runner": True},
        }

    def find_python(self, venv: str) -> str:
        """The interpreter of an environment: a path, or the name of one under `venvs` in this home."""
        if not venv:
            return sys.executable
        folder = venv if os.path.isabs(venv) else f"{self._home}/venvs/{venv}"
        return f"{folder}/bin/python"

    # --- what lies in a runner's own folders --------------------------------------------------------------------------

    def live(self, uid: str) -> Place:
        """Where a runner's present call prints to."""
        return Place(f"{self.folder(uid)}/live", owner=self._owner(uid))

    def ended(self, uid: str, lane: str, index: int) -> Place:
        """Where what an ended call has printed lies."""
        return Place(f"{self.folder(uid)}/ended", f"{lane}.{index}", self._owner(uid))

    def open_value(self, uid: str, number: int) -> BinaryIO:
        """A large value that a runner has written; raises OSError where there is none of its own."""
        place = Place(f"{self.folder(uid)}/values", owner=self._owner(uid))
        folder = place.open()
        try:
            descriptor = open_file(str(number), folder, place.owner)
        finally:
            os.close(folder)
        # Named by its path for whoever moves or removes it, which touches no more than that name.
        path = f"{place.path}/{number}"
        return cast("BinaryIO", open(path, "rb", buffering=0, opener=lambda *_: descriptor))

    def _owner(self, uid: str) -> int:
        """Whose a runner's own folders are; of one that is not ours nothing counts."""
        return self._owners.get(uid, UNKNOWN)

    def has_printed(self, uid: str) -> bool:
        """Whether a runner's present call has printed anything."""
        return any(
            size for stream in STREAMS for _, size in list_segments(self.live(uid).path, stream, MOST_ENTRIES)
        )

    def cut_live(self, uid: str, cap_bytes: int) -> None:
        """Empty what has grown too large; the writer goes on at the start of the file, which is named by its offset.

        What was not shipped by then is a gap: output may be lost, a disk that is full costs everybody.
        """
        place = self.live(uid)
        try:
            folder = place.open()
        except OSError:
            return
        try:
            for stream in STREAMS:
                for start, size in list_segments(folder, stream, MOST_ENTRIES):
                    if size > cap_bytes:
                        _cut(folder, place.owner, stream, start, size)
        finally:
            os.close(folder)

    # --- removal ------------------------------------------------------------------------------------------------------

    def list_others(self, kept: Collection[str]) -> list[str]:
        """All runners but these of which there are folders: of earlier agents, and of nobody."""
        self.make_folders()
        return [name for name in os.listdir(self.runners) if name not in kept]

    def remove(self, uids: Collection[str]) -> None:
        """Forget runners' folders, whatever is left in them, in a thread of its own: that may take long."""
        for uid in uids:
            self._owners.pop(uid, None)
        if uids:
            folders = [self.folder(uid) for uid in uids]
            try:
                threading.Thread(
                    target=self._remove, args=(folders,), name="dray-removal", daemon=True
                ).start()
            except RuntimeError as fault:
                # No thread to be had either: the next agent finds them.
                logger.warning("folders of runners stay behind for now: %s", fault)

    def _remove(self, folders: list[str]) -> None:
        for folder in folders:
            if self.is_foreign:
                _remove_foreign(folder)
            else:
                with contextlib.suppress(RecursionError):
                    shutil.rmtree(folder, ignore_errors=True)


def _cut(folder: int, owner: int, stream: str, start: int, size: int) -> None:
    before, after = f"{stream}.{start}", f"{stream}.{start + size}"
    if SEGMENT.fullmatch(after) is None:
        return
    with contextlib.suppress(OSError):
        descriptor = open_file(before, folder, owner, os.O_WRONLY)
        try:
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)
        os.rename(before, after, src_dir_fd=folder, dst_dir_fd=folder)


def _remove_foreign(folder: str) -> None:
    """What is the runner's own goes by a program of that user, which can do no harm that he could not do without us."""
    with contextlib.suppress(OSError):
        for name in FOLDERS:
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(f"{folder}/{name}")
                remove_as(found.st_uid, found.st_gid, f"{folder}/{name}")
        for name in ("lane", "now"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{folder}/{name}")
        os.rmdir(folder)


def remove_as(uid: int, gid: int, folder: str) -> None:
    """Remove a folder of an account, and all in it, by a program of that account."""
    try:
        subprocess.run(
            ["rm", "-rf", "--", folder],
            check=False,
            user=uid,
            group=gid,
            extra_groups=[],
            env={"PATH": FALLBACK_PATH},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=REMOVAL_S,
        )
    except (OSError, subprocess.SubprocessError) as fault:
        logger.warning("what a runner left in %s cannot be removed: %s", folder, fault)
    # It has emptied it; to remove the folder itself takes whoever owns the one above.
    os.rmdir(folder)


def find_cloudpickle() -> str:
    """Where this environment's cloudpickle lies, for environments that have none. Only looked for, never loaded."""
    spec = importlib.util.find_spec("cloudpickle")
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else ""
