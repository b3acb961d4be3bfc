"""What tasks printed, as files under the hub's home: one per attempt, framed, so that both streams keep their
order of arrival.

A frame is (kind, stream offset, length) and data; a gap is a frame without data. Files are bounded: past the cap
only the count goes on. Workers may speak for their own attempts only.
"""

from __future__ import annotations

import asyncio
import shutil
import struct
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dray.core.model.ids import split_task_id
from dray.core.model.records import Attempt
from dray.errors import InvalidInput
from dray.wire.worker_messages import STREAMS, JobLog, JobResult

HEADER = struct.Struct("<BQI")
GAP = 8
OPEN_FILES = 256
CHUNK = 1 << 16
IDLE_END_S = 2.0


class Frame(NamedTuple):
    """One piece of output; `gap` counts bytes that are not there."""

    stream: int
    offset: int
    data: bytes
    gap: int


class Recording:
    """One attempt's file: where each stream stands, and a bell for those who follow."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ends = [0, 0]
        self.size = 0
        self.capped = False
        self.expected: list[int] | None = None
        self.bell = asyncio.Event()
        if path.exists():
            self._scan()

    def _scan(self) -> None:
        """Find where an earlier hub stopped; a torn last frame is cut off."""
        good = 0
        with self.path.open("rb") as file:
            for frame, end in read_frames(file):
                self.ends[frame.stream] = frame.offset + len(frame.data) + frame.gap
                good = end
        if good < self.path.stat().st_size:
            with self.path.open("r+b") as file:
                file.truncate(good)
        self.size = good

    def append(self, stream: int, offset: int, data: bytes, cap: int) -> None:
        """Add a piece: what was there before is skipped, what is missing is marked."""
        end = self.ends[stream]
        if offset + len(data) <= end:
            return
        if offset < end:
            data, offset = data[end - offset :], end
        pieces = b""
        if offset > end:
            pieces += HEADER.pack(GAP | stream, end, offset - end)
        if self.size + len(data) > cap:
            self.capped = True
            pieces += HEADER.pack(GAP | stream, offset, len(data))
        else:
            pieces += HEADER.pack(stream, offset, len(data)) + data
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(pieces)
        self.size += len(pieces)
        self.ends[stream] = offset + len(data)
        self.ring()

    def ring(self) -> None:
        self.bell.set()
        self.bell = asyncio.Event()

    @property
    def complete(self) -> bool | None:
        """Whether all that the worker announced has arrived; None while it has announced nothing."""
        if self.expected is None:
            return None
        return all(end >= total for end, total in zip(self.ends, self.expected, strict=True))


class Outputs:
    """All recordings under one folder."""

    def __init__(
        self, folder: Path, cap_bytes: int, find: Callable[[str, str, int, str], Attempt | None]
    ) -> None:
        self.folder, self._cap, self._find = folder, cap_bytes, find
        self._open: OrderedDict[str, Recording] = OrderedDict()
        self._owners: OrderedDict[tuple[str, str], Attempt] = OrderedDict()

    def take(self, worker: str, body: JobLog) -> dict[str, dict[str, int]]:
        """File a piece and say up to where each stream of that attempt has been received."""
        attempt = self._owner(worker, body)
        recording = self.recording(attempt)
        recording.append(STREAMS.index(body.stream), body.offset, body.data, self._cap)
        return {attempt.uid: dict(zip(STREAMS, recording.ends, strict=True))}

    def expect(self, result: JobResult) -> None:
        """Note how much a finished attempt printed, so that a follower knows when it has all."""
        usage = result.usage or {}
        recording = self._open.get(result.attempt or "")
        if recording is not None and "stdout_bytes" in usage:
            recording.expected = [int(usage.get(f"{stream}_bytes", 0)) for stream in STREAMS]

    def recording(self, attempt: Attempt) -> Recording:
        """Open (or make) the recording of an attempt."""
        recording = self._open.get(attempt.uid)
        if recording is None:
            recording = self._open[attempt.uid] = Recording(self.path(attempt))
            if len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(attempt.uid)
        return recording

    def path(self, attempt: Attempt) -> Path:
        return self.folder / attempt.job_id / f"{attempt.index}.{attempt.no}.{attempt.uid}"

    def drop(self, job_id: str) -> None:
        """Delete what a forgotten job printed."""
        shutil.rmtree(self.folder / job_id, ignore_errors=True)

    def _owner(self, worker: str, body: JobLog) -> Attempt:
        key = (worker, body.attempt or body.task_id)
        attempt = self._owners.get(key)
        if attempt is None or not body.attempt:
            job_id, index = split_task_id(body.task_id) or (body.task_id, -1)
            attempt = self._find(worker, job_id, index, body.attempt or "")
            if attempt is None:
                raise InvalidInput(f"job_log: this worker has no attempt of task {body.task_id}")
            self._owners[key] = attempt
            if len(self._owners) > OPEN_FILES:
                self._owners.popitem(last=False)
        return attempt

    async def read(
        self, attempt: Attempt, streams: tuple[int, ...], follow: Callable[[], bool] | None
    ) -> AsyncIterator[bytes]:
        """Give an attempt's output; while `follow()` says that it runs, wait for more."""
        recording, position = self.recording(attempt), 0
        while True:
            bell, running = recording.bell, follow is not None and follow()
            if recording.path.exists():
                with recording.path.open("rb") as file:
                    file.seek(position)
                    for frame, end in read_frames(file):
                        position = end
                        if frame.stream in streams:
                            yield frame.data or _mark(frame.gap)
            if follow is None or (not running and recording.complete):
                return
            if await _idle(bell, None if running else IDLE_END_S):
                return


async def _idle(bell: asyncio.Event, limit_s: float | None) -> bool:
    """Wait for the bell; True when an ended attempt stayed quiet. A running one is looked at every second."""
    try:
        await asyncio.wait_for(bell.wait(), 1.0 if limit_s is None else limit_s)
    except TimeoutError:
        return limit_s is not None
    return False


def read_frames(file: BinaryIO) -> _Frames:
    """Walk the whole frames of a file from where it stands."""
    return _Frames(file)


class _Frames:
    def __init__(self, file: BinaryIO) -> None:
        self._file, self._position = file, file.tell()

    def __iter__(self) -> _Frames:
        return self

    def __next__(self) -> tuple[Frame, int]:
        header = self._file.read(HEADER.size)
        if len(header) < HEADER.size:
            raise StopIteration
        kind, offset, length = HEADER.unpack(header)
        gap = kind & GAP
        data = b"" if gap else self._file.read(length)
        if not gap and len(data) < length:
            raise StopIteration
        self._position += HEADER.size + len(data)
        return Frame(kind & 1, offset, data, length if gap else 0), self._position


def _mark(gap: int) -> bytes:
    return f"\n[dray: {gap} bytes of output were dropped here]\n".encode()
