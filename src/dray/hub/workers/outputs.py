"""What tasks printed, as files under the hub's home: one per attempt, framed, so that both streams keep their
order of arrival.

A frame is (kind, stream offset, length) and data; a gap is a frame without data. Files are bounded: past the cap
only the count goes on. Workers may speak for their own attempts only.

A thread writes them, so that the loop does not stand still while a disk takes megabytes; a worker is told what is in
its file. What it sends meanwhile is bounded: whoever reads its frames is to wait while `is_full`.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import struct
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dray.core.model.ids import split_task_id
from dray.core.model.records.records import Attempt
from dray.errors import InvalidInput
from dray.hub.calls.reading import is_call
from dray.hub.disk_thread import DiskThread
from dray.wire.messages.worker import STREAMS, JobLog, JobResult

HEADER = struct.Struct("<BQI")
GAP, OVER = 8, 16
GAP_MOST = (1 << 32) - 1  # a longer gap is told short: the piece behind it names its own offset
OPEN_FILES = 256
ANNOUNCED = 4096
CHUNK = 1 << 16
IDLE_END_S = 2.0
SMALL_BYTES = 16 << 10
# What may be taken and not be filed yet, of all workers together.
WAITING_BYTES = 8 << 20
# Hears up to where the streams of an attempt are filed, by its name; None where that failed.
Tell = Callable[[dict[str, dict[str, int]] | None], None]
logger = logging.getLogger("dray.hub.workers.outputs")


class Frame(NamedTuple):
    """One piece of output; `gap` counts bytes that are not there, `over` says that the cap is why."""

    stream: int
    offset: int
    data: bytes
    gap: int
    over: bool


class Piece(NamedTuple):
    """What a worker sent of one stream."""

    stream: int
    offset: int
    data: bytes


class Recording:
    """One attempt's file: up to where each stream was received and filed, and a bell for those who follow.

    `scan` and `append` come one after another, in the order of arrival. The loop looks at `ends` meanwhile: it is set
    anew once all up to there is in the file.
    """

    def __init__(self, path: Path, cap_bytes: int) -> None:
        self.path, self._cap = path, cap_bytes
        self.ends, self._filed = (0, 0), [0, 0]
        self.size = 0
        self.scanned = False
        self.expected: list[int] | None = None
        self.bell = asyncio.Event()

    def scan(self, _: None = None) -> None:
        """Find where an earlier hub stopped, if that is not known yet; a torn last frame is cut off."""
        if not self.scanned and self.path.exists():
            ends, good = [0, 0], 0
            with self.path.open("rb") as file:
                for frame, end in Frames(file):
                    ends[frame.stream] = frame.offset + len(frame.data) + frame.gap
                    good = end
            if good < self.path.stat().st_size:
                with self.path.open("r+b") as file:
                    file.truncate(good)
            self._filed, self.ends, self.size = ends, (ends[0], ends[1]), good
        self.scanned = True

    def append(self, piece: Piece) -> None:
        """Add a piece: what was there before is skipped, what is missing is marked.

        A disk that is full costs the piece and nothing else: the worker is told that it arrived, and the gap is marked
        before the next piece that can be written.
        """
        self.scan()
        stream, offset, data = piece
        ends = list(self.ends)
        end = ends[stream]
        if offset + len(data) <= end:
            return
        if offset < end:
            data, offset = data[end - offset :], end
        pieces, filed = b"", self._filed[stream]
        if offset > filed:
            pieces += HEADER.pack(GAP | stream, filed, min(offset - filed, GAP_MOST))
        if self.size + len(data) > self._cap:
            pieces += HEADER.pack(GAP | OVER | stream, offset, len(data))
        else:
            pieces += HEADER.pack(stream, offset, len(data)) + data
        ends[stream] = offset + len(data)
        if self._write(pieces):
            self._filed[stream] = ends[stream]
        self.ends = ends[0], ends[1]

    def _write(self, pieces: bytes) -> bool:
        try:
            with self._open() as file:
                if file.tell() > self.size:
                    file.truncate(self.size)
                file.write(pieces)
        except OSError as fault:
            logger.warning("output could not be written to %s: %s", self.path, fault.strerror)
            return False
        self.size += len(pieces)
        return True

    def _open(self) -> BinaryIO:
        try:
            return self.path.open("ab")
        except FileNotFoundError:
            self.path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            return self.path.open("ab")

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
        self._owners: OrderedDict[tuple[str, str, str], Attempt] = OrderedDict()
        self._announced: OrderedDict[str, list[int]] = OrderedDict()
        self._thread = DiskThread("dray-output")
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    def start(self) -> None:
        """Start the thread that writes."""
        self._thread.start()

    async def close(self) -> None:
        """File all that was taken; what comes later is neither filed nor acked, so that it is sent again."""
        await self._thread.close()

    @property
    def is_full(self) -> bool:
        """Whether whoever reads frames of a worker that prints is to wait."""
        return not self._room.is_set()

    async def has_room(self) -> None:
        """Wait while the disk is behind."""
        await self._room.wait()

    def take(self, worker: str, body: JobLog, tell: Tell) -> None:
        """File a piece; `tell` hears then up to where each stream of that attempt has been received."""
        attempt = self._owner(worker, body)
        if not self._thread.running:
            return
        recording = self.recording(attempt)
        piece = Piece(STREAMS.index(body.stream), body.offset, body.data)
        if self._thread.idle and not recording.scanned:
            # Nearly every first piece; a file that an earlier hub left may take long to read.
            recording.scanned = not recording.path.exists()
        small = recording.scanned and len(piece.data) <= SMALL_BYTES
        self._waiting_bytes += len(piece.data)
        if self._waiting_bytes > WAITING_BYTES:
            self._room.clear()
        done = self._thread.do(recording.append, piece, small)

        def filed(done: asyncio.Future[None]) -> None:
            self._waiting_bytes -= len(piece.data)
            if self._waiting_bytes <= WAITING_BYTES:
                self._room.set()
            recording.ring()
            if done.exception() is not None:
                logger.error("output was not filed to %s: %r", recording.path, done.exception())
                tell(None)
            else:
                tell({name_of(attempt): dict(zip(STREAMS, recording.ends, strict=True))})

        if done.done():
            filed(done)
        else:
            done.add_done_callback(filed)

    def expect(self, result: JobResult) -> None:
        """Note how much a finished attempt printed, so that a follower knows when it has all."""
        usage, uid = result.usage, result.attempt or ""
        if usage is None or usage.stdout_bytes is None:
            return
        self._announced[uid] = [int(usage.stdout_bytes), int(usage.stderr_bytes or 0)]
        if len(self._announced) > ANNOUNCED:
            self._announced.popitem(last=False)
        recording = self._open.get(uid)
        if recording is not None:
            recording.expected = self._announced[uid]
            recording.ring()

    def recording(self, attempt: Attempt) -> Recording:
        """Open (or make) the recording of an attempt."""
        name = name_of(attempt)
        recording = self._open.get(name)
        if recording is None:
            recording = self._open[name] = Recording(self.path(attempt), self._cap)
            recording.expected = self._announced.get(name)
            if len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(name)
        return recording

    def path(self, attempt: Attempt) -> Path:
        # Of a call only its lane and its index are known for good.
        number = "call" if is_call(attempt) else attempt.no
        return self.folder / attempt.job_id / f"{attempt.index}.{number}.{attempt.uid}"

    async def drop(self, job_ids: list[str]) -> None:
        """Delete what forgotten jobs printed."""

        def remove() -> None:
            for job_id in job_ids:
                shutil.rmtree(self.folder / job_id, ignore_errors=True)

        # Not on the thread that writes: a large array may have printed a hundred thousand files.
        await asyncio.to_thread(remove)

    def _owner(self, worker: str, body: JobLog) -> Attempt:
        key = (worker, body.attempt or "", body.task_id)
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
        if self._thread.running and not (recording.scanned and self._thread.idle):
            # What was taken before this was asked is in the answer, also where it waits to be filed.
            await self._thread.put(recording.scan, None)
        over = [False, False]
        while True:
            bell, running = recording.bell, follow is not None and follow()
            # Asked before the file is read: what is counted by now is in it. All that a result announced is here then,
            # and the attempt has ended, though the result may not be recorded yet.
            whole = follow is None or recording.complete
            if recording.path.exists():
                with recording.path.open("rb") as file:
                    for frame, end in Frames(file, position):
                        position = end
                        if frame.stream in streams and not (frame.over and over[frame.stream]):
                            yield frame.data or _mark(frame)
                        over[frame.stream] = frame.over
            if whole:
                return
            if await _idle(bell, None if running else IDLE_END_S):
                return


def name_of(attempt: Attempt) -> str:
    """How an attempt's output is acked: by its uid, that of a call by its lane's uid and its index."""
    return f"{attempt.uid}.{attempt.index}" if is_call(attempt) else attempt.uid


async def _idle(bell: asyncio.Event, limit_s: float | None) -> bool:
    """Wait for the bell; True when an ended attempt stayed quiet. A running one is looked at every second."""
    try:
        await asyncio.wait_for(bell.wait(), 1.0 if limit_s is None else limit_s)
    except TimeoutError:
        return limit_s is not None
    return False


class Frames:
    """Walks the whole frames of a file, each with where it ends."""

    def __init__(self, file: BinaryIO, position: int = 0) -> None:
        self._file, self._position = file, position
        if position:
            file.seek(position)

    def __iter__(self) -> Frames:
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
        frame = Frame(kind & 1, offset, data, length if gap else 0, bool(kind & OVER))
        return frame, self._position


def _mark(frame: Frame) -> bytes:
    """Say what is missing.

    Once for all that is over the cap, without a count that still grows: who comes back must find the same bytes.
    """
    if frame.over:
        return b"\n[dray: this output is over its limit, what follows was dropped here]\n"
    return f"\n[dray: {frame.gap} bytes of output were dropped here]\n".encode()
