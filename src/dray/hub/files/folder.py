"""What folders of files have in common, be they a hub's own or shared."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from dray.errors import BrokenInvariant
from dray.hub.files.base import NOTHING, Found
from dray.hub.files.frames import Frames

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")


def check_name(name: str) -> str:
    """The same name; raises where it could lead out of its folder. Names are made by the hub, of ids it has checked."""
    if _NAME.fullmatch(name) is None:
        raise BrokenInvariant(f"{name[:100]!r} cannot be the name of a file of output")
    return name


def measure(file: BinaryIO, found: Found = NOTHING, position: int = 0) -> Found:
    """Walk the frames of a file, behind what is known; gives up to where they are whole."""
    ends, good = list(found.ends), position
    for frame, end in Frames(file, position):
        ends[frame.stream] = frame.end
        good = end
    return Found((ends[0], ends[1]), good)


def trim_jobs(
    folder: Path, most_bytes: int, live: frozenset[str], drop: Callable[[Sequence[str]], None]
) -> None:
    """Drop the oldest of the jobs that are folders here, but for live ones, until the rest fits."""
    if not folder.exists():
        return
    sizes = []
    for job in folder.iterdir():
        stats = list(_stats(job)) if _NAME.fullmatch(job.name) else []
        if stats:
            newest, size = max(stat.st_mtime for stat in stats), sum(stat.st_size for stat in stats)
            sizes.append((newest, size, job.name))
    total = sum(size for _, size, _ in sizes)
    for _, size, job_id in sorted(sizes):
        if total <= most_bytes:
            return
        if job_id not in live:
            drop([job_id])
            total -= size


def _stats(job: Path) -> Iterator[os.stat_result]:
    for path, _, names in os.walk(job):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield os.stat(os.path.join(path, name))


class FileDraft:
    """A blob on its way in, as a file."""

    def __init__(self, path: str, mode: int) -> None:
        self.path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        # Closed when it is finished, or discarded.
        self._file = os.fdopen(os.open(path, flags, mode), "wb")

    def write(self, piece: bytes) -> None:
        """Add a piece."""
        self._file.write(piece)

    def finish(self) -> None:
        """All of it is there."""
        self._file.close()

    def discard(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        Path(self.path).unlink(missing_ok=True)
