"""Files in a folder that all hubs of a site mount, so that they outlive each of them.

Every path that is written to has the epoch of the hub in it: one that was taken over and wakes up, or whose file server
carries out late what it was told long ago, touches nothing that counts. Output of an attempt is a chain of segments,
`output/JOB/EPOCH/ATTEMPT`. Each begins by saying how many bytes of which earlier one count: what came to that one later
counts for nothing, and its worker was not told that it had arrived. Nothing is locked, since locks of a file server are
no better than the network; nothing that is told to anybody is only in the memory of this machine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from dray.errors import StoreError
from dray.hub.files.base import NOTHING, PORTION_BYTES, Addition, Found, Tape
from dray.hub.files.folder import check_name, measure, trim_jobs
from dray.hub.files.frames import read_whole
from dray.hub.files.shared_blobs import SharedBlobs, make_folder, sync_folder
from dray.hub.store.space import free_bytes

logger = logging.getLogger("dray.hub.files")
SITE_FILE = "site"
# The mark, which earlier segment counts and for how many bytes, where this one begins, and up to where streams are.
_HEAD = struct.Struct("<8sQQQQQ")
_MARK = b"drayseg1"
ROOM_S = 5.0


class _Segment(NamedTuple):
    """A part of a tape: bytes `start` to `end` of it are in this file, behind its head."""

    path: Path
    start: int
    end: int


class SharedTape:
    """One attempt's segments, as this hub knows them since it looked."""

    def __init__(self, job: Path, name: str, epoch: int) -> None:
        self._job, self._name, self._epoch = job, name, epoch
        self.path = job / str(epoch) / name
        self.shown = str(self.path)
        self._earlier: list[_Segment] = []
        self._before = (0, NOTHING)
        self._begun = False

    def is_new(self) -> bool:
        """Nobody knows without a look."""
        return False

    def find(self) -> Found:
        """Follow the chain from its newest segment; a torn end of one's own is cut off."""
        self._earlier, self._before, self._begun = [], (0, NOTHING), False
        for epoch in _epochs(self._job, self._epoch):
            head = _read_head(self._job / str(epoch) / self._name)
            if head is None:
                continue
            before, ends, found = head
            if epoch == self._epoch:
                self._begun, self._before = True, (before[0], Found(ends, before[1]))
                self._cut(found.size - before[1])
                self._earlier = self._chain(*before[:2], before[2])
            else:
                self._before = (epoch, found)
                self._earlier = self._chain(epoch, found.size, found.size - before[1])
            return found
        return NOTHING

    def _chain(self, epoch: int, end: int, length: int) -> list[_Segment]:
        """The segments up to byte `end` of the tape, of which the last has `length` bytes that count; oldest first."""
        chain: list[_Segment] = []
        while epoch:
            path = self._job / str(epoch) / self._name
            chain.append(_Segment(path, end - length, end))
            head = _read_head(path, measured=False)
            if head is None:
                logger.error("%s is not what later output of it says: what came before is not shown", path)
                break
            epoch, end, length = head[0]
        return chain[::-1]

    def _cut(self, length: int) -> None:
        if self.path.stat().st_size > _HEAD.size + length:
            with self.path.open("r+b") as file:
                file.truncate(_HEAD.size + length)

    def write(self, at: int, frames: bytes) -> None:
        """Add frames to one's own segment; they are on the disk when this is over."""
        epoch, before = self._before
        place = _HEAD.size + at - before.size
        if not self._begun:
            length = before.size - (self._earlier[-1].start if self._earlier else 0)
            frames = _HEAD.pack(_MARK, epoch, before.size, length, *before.ends) + frames
            place = 0
        handle = self._open()
        try:
            if os.fstat(handle).st_size > place:
                os.ftruncate(handle, place)
            left = memoryview(frames)
            while left:
                written = os.pwrite(handle, left, place)
                left, place = left[written:], place + written
            os.fsync(handle)
        finally:
            os.close(handle)
        if not self._begun:
            sync_folder(self.path.parent)
        self._begun = True

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(self.path, flags, 0o640)
        except FileNotFoundError:
            make_folder(self.path.parent)
            return os.open(self.path, flags, 0o640)

    def read(self, position: int, end: int) -> bytes:
        """Give whole frames, from whichever segment has them."""
        own = _Segment(self.path, self._before[1].size, end)
        for segment in (*self._earlier, own):
            if segment.start <= position < min(segment.end, end):
                break
        else:
            return b""
        most = min(PORTION_BYTES, min(segment.end, end) - position)
        try:
            with segment.path.open("rb") as file:
                file.seek(_HEAD.size + position - segment.start)
                return read_whole(file, most)
        except FileNotFoundError:
            return b""


def _epochs(job: Path, most: int) -> list[int]:
    """The epochs in which a job printed, newest first; none that is later than one's own."""
    try:
        names = os.listdir(job)
    except FileNotFoundError:
        return []
    return sorted((int(name) for name in names if name.isdecimal() and int(name) <= most), reverse=True)


def _read_head(
    path: Path, measured: bool = True
) -> tuple[tuple[int, int, int], tuple[int, int], Found] | None:
    """What a segment says of the one before it, where its streams began, how far they are; None where it is none."""
    try:
        with path.open("rb") as file:
            raw = file.read(_HEAD.size)
            if len(raw) < _HEAD.size:
                return None
            mark, epoch, start, length, *ends = _HEAD.unpack(raw)
            if mark != _MARK:
                return None
            began = (ends[0], ends[1])
            found = measure(file, Found(began, 0), _HEAD.size) if measured else Found(began, _HEAD.size)
    except FileNotFoundError:
        return None
    return (epoch, start, length), began, Found(found.ends, start + found.size - _HEAD.size)


class SharedTapes:
    """The folder `output`."""

    near = False

    def __init__(self, folder: Path, epoch: Callable[[], int]) -> None:
        self.folder, self._epoch = folder, epoch
        self.fault = ""

    def tape(self, job_id: str, name: str) -> SharedTape:
        """The tape of an attempt, to be written to under the present epoch."""
        return SharedTape(self.folder / check_name(job_id), check_name(name), self._epoch())

    def find(self, tapes: Sequence[Tape]) -> list[Found]:
        """See how far tapes are."""
        return [cast("SharedTape", tape).find() for tape in tapes]

    def write(self, additions: Sequence[Addition]) -> list[bool]:
        """Write to files; a folder that takes no more costs the piece and nothing else."""
        return [self._write(cast("SharedTape", one.tape), one) for one in additions]

    def _write(self, tape: SharedTape, addition: Addition) -> bool:
        try:
            tape.write(addition.at, addition.frames)
        except OSError as fault:
            self.fault = f"output could not be written: {fault.strerror}"
            logger.warning("output could not be written to %s: %s", tape.shown, fault.strerror)
            return False
        self.fault = ""
        return True

    def drop(self, job_ids: Sequence[str]) -> None:
        """Remove what these jobs printed; not what a later hub has of one whose name was used anew."""
        for job_id in job_ids:
            job = self.folder / check_name(job_id)
            for epoch in _epochs(job, self._epoch()):
                shutil.rmtree(job / str(epoch), ignore_errors=True)
            with contextlib.suppress(OSError):
                job.rmdir()

    def trim(self, most_bytes: int, live: frozenset[str]) -> None:
        """Delete the oldest output of finished jobs until the rest fits."""
        trim_jobs(self.folder, most_bytes, live, self.drop)

    def stop_waiting(self) -> None:
        """A folder is not waited for."""


class SharedFiles:
    """A folder that several hubs mount. `site` names their store: no other's hubs may use it."""

    def __init__(self, folder: Path, site: str, epoch: Callable[[], int]) -> None:
        self._folder = folder
        try:
            make_folder(folder)
            self._claim(site)
        except OSError as fault:
            raise StoreError(
                f"the folder of files {folder} cannot be used: {fault.strerror}: mount it on this machine, and let the "
                "user of the hub write to it"
            ) from fault
        self.tapes, self.blobs = SharedTapes(folder / "output", epoch), SharedBlobs(folder / "blobs", epoch)
        self._room = (time.monotonic(), free_bytes(folder))
        self._looking = threading.Lock()

    def _claim(self, site: str) -> None:
        held = self._keep(self._folder / SITE_FILE, f"{site}\n".encode()).decode(errors="replace").strip()
        if held != site:
            raise StoreError(
                f"{self._folder} holds files of another store ({held[:64]}): name another folder; if that store has "
                f"become this one, remove {self._folder / SITE_FILE}"
            )

    def _keep(self, path: Path, content: bytes) -> bytes:
        """Write a private file that is not there yet; gives what is in it, whoever was first."""
        make_folder(path.parent)
        with contextlib.suppress(FileNotFoundError):
            return path.read_bytes()
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
            sync_folder(path.parent)
        finally:
            draft.unlink()
        return path.read_bytes()

    def keep_secret(self, name: str, drawn: bytes) -> bytes:
        """Give the secret in a file, made by whoever comes first; one that can be none is replaced."""
        path = self._folder / "secrets" / check_name(name)
        found = self._keep(path, drawn)
        if len(found) != len(drawn):
            path.unlink(missing_ok=True)
            found = self._keep(path, drawn)
        return found

    def free_bytes(self) -> int | None:
        """The room as it was lately: a file server that hangs holds nobody up."""
        looked_at, free = self._room
        if time.monotonic() - looked_at > ROOM_S and self._looking.acquire(blocking=False):
            threading.Thread(target=self._look, name="dray-files-room", daemon=True).start()
        return free

    def _look(self) -> None:
        try:
            self._room = (time.monotonic(), free_bytes(self._folder))
        except OSError as fault:
            self.tapes.fault = f"it cannot be looked at: {fault.strerror}"
        finally:
            self._looking.release()

    def describe(self) -> tuple[bool, str]:
        """Where it is, and what went wrong last."""
        fault = self.tapes.fault
        return not fault, f"in {self._folder}, shared" + (f"; {fault}" if fault else "")
