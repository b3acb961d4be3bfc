"""Task output on disk: segment files addressed by absolute stream offset, bounded per stream.

`stdout.<start>` holds the bytes of the stream from offset <start> on, so a reader needs no index and a dropped range is
simply an offset that no file covers. Works in bytes, never in lines. A full disk costs output, never the task: what
cannot be written is counted and dropped while the pipe is still drained.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SEGMENT_BYTES = 8 << 20
STREAM_CAP_BYTES = 64 << 20
READ_BYTES = 1 << 16
READS_PER_TURN = 16
RETRY_AFTER_FULL_S = 0.5
STREAMS = ("stdout", "stderr")


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
        if not data:
            return True
        stream.write(data)
    return False


def list_segments(directory: str, stream: str) -> list[tuple[int, int]]:
    """(start, length) of every segment on disk, by offset."""
    return sorted(_scan_segments(directory, stream))


def _scan_segments(directory: str, stream: str) -> Iterator[tuple[int, int]]:
    prefix = stream + "."
    try:
        entries = os.scandir(directory)
    except FileNotFoundError:
        return
    with entries:
        for entry in entries:
            start = entry.name[len(prefix) :]
            if entry.name.startswith(prefix) and start.isdigit():
                try:
                    yield int(start), entry.stat().st_size
                except FileNotFoundError:
                    continue


def read_output(directory: str, stream: str, offset: int, max_bytes: int) -> tuple[bytes, int, int]:
    """(data, offset of data, end of what is on disk); an offset beyond the one asked for marks a gap."""
    segments = list_segments(directory, stream)
    total = segments[-1][0] + segments[-1][1] if segments else 0
    for start, length in segments:
        if start + length <= offset:
            continue
        begin = max(start, offset)
        try:
            with open(os.path.join(directory, f"{stream}.{start}"), "rb") as file:
                file.seek(begin - start)
                data = file.read(max_bytes)
        except FileNotFoundError:
            continue  # rotated away since it was listed: the next one answers, with a gap
        return data, begin, max(total, begin + len(data))
    return b"", max(offset, total), total
