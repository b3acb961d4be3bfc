"""Files in the hub's own home: `output/` and `blobs/`, as programs of its machine find them, and `task_secret`."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from dray.hub.files.base import NOTHING, PORTION_BYTES, Addition, Draft, Found, Reading, Tape
from dray.hub.files.folder import FileDraft, check_name, measure, trim_jobs
from dray.hub.files.frames import read_whole
from dray.hub.store.space import free_bytes
from dray.wire.local.blob_folder import BlobFolder

logger = logging.getLogger("dray.hub.files")
Write = Callable[[Path, bytes], None]


class LocalTape:
    """One file of frames."""

    def __init__(self, path: Path) -> None:
        self.path, self.shown = path, str(path)

    def is_new(self) -> bool:
        """Nearly every first piece is for a file that is not there."""
        return not self.path.exists()

    def find(self) -> Found:
        """Find where an earlier hub stopped; a torn last frame is cut off."""
        if not self.path.exists():
            return NOTHING
        with self.path.open("rb") as file:
            found = measure(file)
        if found.size < self.path.stat().st_size:
            with self.path.open("r+b") as file:
                file.truncate(found.size)
        return found

    def write(self, at: int, frames: bytes) -> None:
        """Add frames."""
        with self._open() as file:
            if file.tell() > at:
                file.truncate(at)
            file.write(frames)

    def _open(self) -> BinaryIO:
        try:
            return self.path.open("ab")
        except FileNotFoundError:
            self.path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            return self.path.open("ab")

    def read(self, position: int, end: int) -> bytes:
        """Give whole frames; what the file has counts, whatever is known of it."""
        try:
            with self.path.open("rb") as file:
                file.seek(position)
                return read_whole(file, PORTION_BYTES)
        except FileNotFoundError:
            return b""


class LocalTapes:
    """The folder `output`: a folder for each job, in it a file for each attempt."""

    near = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tape(self, job_id: str, name: str) -> LocalTape:
        """The tape of an attempt."""
        return LocalTape(self.folder / check_name(job_id) / check_name(name))

    def find(self, tapes: Sequence[Tape]) -> list[Found]:
        """See how far files are."""
        return [cast("LocalTape", tape).find() for tape in tapes]

    def write(self, additions: Sequence[Addition]) -> list[bool]:
        """Write to files; a disk that is full costs the piece and nothing else."""
        return [_write(cast("LocalTape", one.tape), one) for one in additions]

    def drop(self, job_ids: Sequence[str]) -> None:
        """Remove the folders of these jobs."""
        for job_id in job_ids:
            shutil.rmtree(self.folder / check_name(job_id), ignore_errors=True)

    def trim(self, most_bytes: int, live: frozenset[str]) -> None:
        """Delete the oldest output of finished jobs until the rest fits."""
        trim_jobs(self.folder, most_bytes, live, self.drop)

    def stop_waiting(self) -> None:
        """A disk is not waited for."""


def _write(tape: LocalTape, addition: Addition) -> bool:
    try:
        tape.write(addition.at, addition.frames)
    except OSError as fault:
        logger.warning("output could not be written to %s: %s", tape.shown, fault.strerror)
        return False
    return True


class LocalBlobs:
    """The folder `blobs`; programs of this machine put files there themselves (`wire/local/blob_folder.py`)."""

    near = True

    def __init__(self, folder: Path) -> None:
        self.folder = BlobFolder(str(folder))

    def path(self, digest: str) -> Path:
        """Where a blob lies, or would lie."""
        return Path(self.folder.path(digest))

    def size_of(self, digest: str) -> int | None:
        """Give the size of a blob."""
        try:
            return self.path(digest).stat().st_size
        except OSError:
            return None

    def renew(self, digest: str) -> int | None:
        """Let a blob count as put there now."""
        return self.size_of(digest) if self.folder.renew(digest) else None

    def begin(self) -> FileDraft:
        """A new draft."""
        return FileDraft(self.folder.draft(), 0o600)

    def place(self, draft: Draft, digest: str) -> None:
        """Give it its name."""
        file = cast("FileDraft", draft)
        file.finish()
        self.folder.place(file.path, digest)

    def open(self, digest: str) -> Reading:
        """Read a blob."""
        return self.path(digest).open("rb")

    def remove(self, digest: str, before_s: float) -> bool:
        """Remove it unless it is young."""
        return self.folder.remove(digest, before_s)

    def remove_drafts(self, before_s: float) -> None:
        """Remove drafts that nobody writes to any more."""
        self.folder.remove_drafts(before_s)

    def sizes(self, first: int) -> dict[str, int]:
        """Give the blobs whose digest begins with this byte."""
        with contextlib.suppress(FileNotFoundError):
            folder = Path(self.folder.root) / f"{first:02x}"
            return {path.name: path.stat().st_size for path in folder.iterdir()}
        return {}


class LocalFiles:
    """The files of a home."""

    def __init__(self, home: Path, write: Write) -> None:
        self._home, self._write_private = home, write
        self.tapes, self.blobs = LocalTapes(home / "output"), LocalBlobs(home / "blobs")

    def keep_secret(self, name: str, drawn: bytes) -> bytes:
        """Give the secret in a file of the home, made where there is none that can be one."""
        path = self._home / name
        with contextlib.suppress(OSError):
            found = path.read_bytes()
            if len(found) == len(drawn):
                return found
        self._write_private(path, drawn)
        return drawn

    def free_bytes(self) -> int | None:
        """The room on the disk of the home."""
        return free_bytes(self._home)

    def describe(self) -> tuple[bool, str]:
        """In the home, whose disk is looked at anyway."""
        return True, f"in {self._home}"
