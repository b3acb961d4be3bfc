"""Task output on disk: segment files addressed by absolute stream offset, bounded per stream.

`stdout.<start>` holds the bytes of the stream from offset <start> on, so a reader needs no index and a dropped range is
simply an offset that no file covers. Works in bytes, never in lines. A full disk costs output, never the task: what
cannot be written is counted and dropped while the pipe is still drained.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
import time
from typing import TYPE_CHECKING

from dray.agent.supervisor.records.owned_files import ANYBODY, MOST_ENTRIES, Place, open_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SEGMENT_BYTES = 8 << 20
STREAM_CAP_BYTES = 64 << 20
READ_BYTES = 1 << 16
READS_PER_TURN = 16
RETRY_AFTER_FULL_S = 0.5
STREAMS = ("stdout", "stderr")
SEGMENT = re.compile(r"(stdout|stderr)\.(0|[1-9][0-9]{0,14})")
# No stream is ever as long.
MOST_BYTES = 10**15


class OutputLimits:
    __slots__ = ("cap_bytes", "segment_bytes")

    def __init__(self, cap_bytes: int = STREAM_CAP_BYTES, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.segment_bytes = segment_bytes
        self.cap_bytes = max(cap_bytes, 2 * segment_bytes)


class OutputStream:
    """One stream of one attempt, over all of its stages. Files appear with the first byte."""

    __slots__ = (
        "_directory",
        "_fd",
        "_kept",
        "_limits",
        "_retry_at",
        "_segment_end",
        "_stream",
        "grown",
        "total_bytes",
    )

    def __init__(self, directory: str, stream: str, limits: OutputLimits) -> None:
        self._directory = directory
        self._stream = stream
        self._limits = limits
        self._fd = -1
        self._kept: list[int] = []
        self._segment_end = 0
        self._retry_at = 0.0
        self.total_bytes = 0
        # Who wants to hear that there is more.
        self.grown: Callable[[], None] | None = None

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self._retry_at and time.monotonic() < self._retry_at:
                self.total_bytes += len(view)
                return
            try:
                if self._fd < 0:
                    self._open_segment()
                written = os.write(self._fd, view[: self._segment_end - self.total_bytes])
            except OSError:
                self._give_up_segment()
                continue
            self._retry_at = 0.0
            self.total_bytes += written
            view = view[written:]
            if self.total_bytes >= self._segment_end:
                self.close()

    def _open_segment(self) -> None:
        os.makedirs(self._directory, 0o700, exist_ok=True)
        if not self.total_bytes:
            for start, _ in list_segments(self._directory, self._stream):
                os.unlink(self._path(start))  # of a namesake whose records are lost: never mixed with ours
        self._fd = os.open(self._path(self.total_bytes), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        size = self._limits.segment_bytes
        self._segment_end = (self.total_bytes // size + 1) * size
        self._kept.append(self.total_bytes)
        most = self._limits.cap_bytes // size
        while len(self._kept) > most:
            os.unlink(self._path(self._kept.pop(1)))

    def _give_up_segment(self) -> None:
        """The disk takes no more: leave a gap, and never a trail of empty files."""
        self._retry_at = time.monotonic() + RETRY_AFTER_FULL_S
        self.close()
        if self._kept and self._kept[-1] == self.total_bytes:
            try:
                os.unlink(self._path(self._kept.pop()))
            except OSError:
                return

    def _path(self, start: int) -> str:
        return os.path.join(self._directory, f"{self._stream}.{start}")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def pump_pipe(fd: int, stream: OutputStream) -> bool:
    """Move what is there now, within one turn's share; True once the writers are gone."""
    for _ in range(READS_PER_TURN):
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            return True  # a terminal that nobody holds any more
        if not data:
            return True
        stream.write(data)
        if stream.grown is not None:
            stream.grown()
    return False


def list_segments(folder: str | int, stream: str, most: int | None = None) -> list[tuple[int, int]]:
    """(start, length) of the segments in a folder, by offset; empty where it is not there. `most`: look at no more."""
    try:
        with os.scandir(folder) as entries:
            return sorted(_scan_segments(itertools.islice(entries, most), stream))
    except OSError:
        return []


def _scan_segments(entries: Iterable[os.DirEntry[str]], stream: str) -> Iterator[tuple[int, int]]:
    for entry in entries:
        named = SEGMENT.fullmatch(entry.name)
        if named is None or named[1] != stream:
            continue
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode):
            yield int(named[2]), found.st_size


def read_output(
    place: Place, stream: str, offset: int, max_bytes: int, segment_bytes: int = MOST_BYTES
) -> tuple[bytes, int, int]:
    """(data, offset of data, end of what is on disk); an offset beyond the one asked for marks a gap.

    Of a segment that is longer than `segment_bytes` the rest does not count.
    """
    try:
        folder = place.open()
    except OSError:
        return b"", offset, 0
    try:
        most = None if place.owner == ANYBODY else MOST_ENTRIES
        found = list_segments(folder, stream, most)
        segments = [(start, min(size, segment_bytes)) for start, size in found]
        total = sum(segments[-1]) if segments else 0
        for start, length in segments:
            if start + length <= offset:
                continue
            begin = max(start, offset)
            data = _read_segment(folder, f"{stream}.{start}", place.owner, begin - start, max_bytes)
            if data:
                data = data[: start + length - begin]
                return data, begin, max(total, begin + len(data))
        return b"", max(offset, total), total
    finally:
        os.close(folder)


def _read_segment(folder: int, name: str, owner: int, at: int, max_bytes: int) -> bytes:
    """Empty where it has been rotated away since it was listed: the next one answers, with a gap. Or does not count."""
    try:
        descriptor = open_file(name, folder, owner)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, max_bytes, at)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
