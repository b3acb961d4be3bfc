"""What tasks printed, filed where the hub keeps its files: one tape per attempt, of frames, so that both streams keep
their order of arrival.

Tapes are bounded: past the cap only the count goes on. Workers may speak for their own attempts only.

Of one attempt several hubs may write, one after another: its worker may go from a gateway to another. Where a place
says that somebody else was there first, the tape is looked at again.

A thread writes them, so that the loop does not stand still while a disk takes megabytes; a worker is told what is in
its file. What it sends meanwhile is bounded: whoever reads its frames is to wait while `is_full`. Where every write is
a journey, what comes during one travels together with the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import NamedTuple

from dray.core.model.ids import split_task_id
from dray.core.model.records.records import Attempt
from dray.errors import DrayError, InvalidInput
from dray.hub.calls.reading import is_call
from dray.hub.disk_thread import DiskThread
from dray.hub.files.base import Addition, Found, Tape, Tapes
from dray.hub.files.frames import Frame, split_frames, write_data, write_gap
from dray.hub.store.base import Remote
from dray.wire.messages.worker import STREAMS, JobLog, JobResult

# As many are known at once: to forget one costs a look at its tape, which may be a journey.
OPEN_NEAR, OPEN_FAR = 256, 8192
ANNOUNCED = 4096
IDLE_END_S = 2.0
SMALL_BYTES = 16 << 10
# What may be taken and not be filed yet, of all workers together; and what is written at once of it.
WAITING_BYTES, BATCH_BYTES = 8 << 20, 1 << 20
# Hears up to where the streams of an attempt are filed, by its name; None where that failed.
Tell = Callable[[dict[str, dict[str, int]] | None], None]
logger = logging.getLogger("dray.hub.workers.outputs")


class Piece(NamedTuple):
    """What a worker sent of one stream."""

    stream: int
    offset: int
    data: bytes


class Recording:
    """One attempt's: up to where each stream was received and filed, and a bell for those who follow.

    `scan`, `lay` and `settle` come one after another, in the order of arrival. The loop looks at `ends` meanwhile: it
    is set anew once all up to there is on the tape.
    """

    def __init__(self, tape: Tape, cap_bytes: int) -> None:
        self.tape, self._cap = tape, cap_bytes
        self.ends, self._filed = (0, 0), (0, 0)
        self.size = 0
        # How often what is known of the tape turned out to be old, and which of these the last look knew of: one that
        # was under way when somebody else filed counts as none.
        self.news, self._looked = 1, 0
        self.expected: list[int] | None = None
        self.bell = asyncio.Event()

    def found(self, found: Found, news: int) -> None:
        """This is where an earlier hub stopped, by a look that began when so much was known."""
        self.ends = self._filed = found.ends
        self.size = found.size
        self._looked = news

    @property
    def scanned(self) -> bool:
        """Whether what is known of the tape is all that is on it."""
        return self._looked == self.news

    def doubt(self) -> None:
        """Somebody else has filed, or may have."""
        self.news += 1

    def begin(self) -> None:
        """Nobody has filed anything yet."""
        self._looked = self.news

    def lay(self, pieces: Sequence[Piece]) -> tuple[Addition, tuple[int, int]] | None:
        """What pieces come to behind what is filed, and up to where each stream is received then; None if to nothing.

        What was there before is skipped, what is missing is marked.
        """
        ends, filed, frames = list(self.ends), list(self._filed), bytearray()
        for stream, offset, data in pieces:
            end = ends[stream]
            if offset + len(data) <= end:
                continue
            if offset < end:
                data, offset = data[end - offset :], end
            over = self.size + len(frames) + len(data) > self._cap
            if offset > filed[stream]:
                frames += write_gap(stream, filed[stream], offset - filed[stream])
            if over:
                frames += write_gap(stream, offset, len(data), over=True)
            else:
                frames += write_data(stream, offset, data)
            ends[stream] = filed[stream] = offset + len(data)
        if not frames:
            return None
        return Addition(self.tape, self.size, bytes(frames), (filed[0], filed[1])), (ends[0], ends[1])

    def settle(self, addition: Addition, ends: tuple[int, int], is_filed: bool) -> None:
        """It is on the tape; or it is lost, and the gap is marked before the next piece that can be written."""
        if is_filed:
            self._filed = addition.ends
            self.size = addition.at + len(addition.frames)
        self.ends = ends

    def ring(self) -> None:
        self.bell.set()
        self.bell = asyncio.Event()

    @property
    def complete(self) -> bool | None:
        """Whether all that the worker announced has arrived; None while it has announced nothing."""
        if self.expected is None:
            return None
        return all(end >= total for end, total in zip(self.ends, self.expected, strict=True))


class _Waiting(NamedTuple):
    """A piece that is not filed yet, and who is told when it is."""

    recording: Recording
    piece: Piece
    name: str
    tell: Tell


class Outputs:
    """All recordings of one hub. `lead` is asked before a worker is told, where a place has no fence of its own."""

    def __init__(
        self,
        tapes: Tapes,
        cap_bytes: int,
        find: Callable[[str, str, int, str], Attempt | None],
        lead: Remote | None = None,
    ) -> None:
        self.tapes, self._cap, self._find, self._lead = tapes, cap_bytes, find, lead
        self._most_open = OPEN_NEAR if tapes.near else OPEN_FAR
        self._open: OrderedDict[str, Recording] = OrderedDict()
        self._owners: OrderedDict[tuple[str, str, str], Attempt] = OrderedDict()
        self._announced: OrderedDict[str, list[int]] = OrderedDict()
        self._thread = DiskThread("dray-output")
        # What travels with the next write, and how many are under way: the thread may be busy with other things.
        self._gathered: list[_Waiting] = []
        self._writing = 0
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._asking: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start the thread that writes."""
        self._thread.start()

    async def close(self) -> None:
        """File all that was taken; what comes later is neither filed nor acked, so that it is sent again."""
        while self._gathered:
            self._send_off()
        self.tapes.stop_waiting()
        await self._thread.close()
        for task in self._asking:
            task.cancel()

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
        self._waiting_bytes += len(piece.data)
        if self._waiting_bytes > WAITING_BYTES:
            self._room.clear()
        one = _Waiting(recording, piece, name_of(attempt), tell)
        if not self.tapes.near:
            self._gathered.append(one)
            if not self._writing:
                self._send_off()
            return
        # Nearly every first piece; a file that an earlier hub left may take long to read.
        if self._thread.idle and not recording.scanned and recording.tape.is_new():
            recording.begin()
        small = recording.scanned and len(piece.data) <= SMALL_BYTES
        self._put([one], small)

    def knows(self, worker: str, body: JobLog) -> bool:
        """Whether a piece would be filed: it is of an attempt of this worker."""
        try:
            self._owner(worker, body)
        except InvalidInput:
            return False
        return True

    def _send_off(self) -> None:
        """Write what was gathered: a batch at a time, those behind it when it is done."""
        size = count = 0
        while count < len(self._gathered) and size < BATCH_BYTES:
            size += len(self._gathered[count].piece.data)
            count += 1
        batch, self._gathered = self._gathered[:count], self._gathered[count:]
        if batch and self._thread.running:
            self._put(batch, small=False)

    def _put(self, batch: list[_Waiting], small: bool) -> None:
        self._writing += 1
        done = self._thread.do(self._file, batch, small)
        if done.done():
            self._filed(batch, done)
        else:
            done.add_done_callback(lambda done: self._filed(batch, done))

    def _file(self, batch: Sequence[_Waiting]) -> None:
        """On the thread: put pieces on their tapes."""
        pieces: dict[Recording, list[Piece]] = {}
        for one in batch:
            pieces.setdefault(one.recording, []).append(one.piece)
        self._scan(list(pieces))
        left = list(pieces)
        while laid := [(recording, made) for recording in left if (made := recording.lay(pieces[recording]))]:
            left = []
            written = self.tapes.write([addition for _, (addition, _) in laid])
            for (recording, (addition, ends)), is_filed in zip(laid, written, strict=True):
                if is_filed is None:
                    recording.doubt()
                    left.append(recording)
                else:
                    recording.settle(addition, ends, is_filed)
            self._scan(left)

    def _scan(self, recordings: Sequence[Recording]) -> None:
        new = [recording for recording in recordings if not recording.scanned]
        if new:
            known = [recording.news for recording in new]
            ends = self.tapes.find([recording.tape for recording in new])
            for recording, found, news in zip(new, ends, known, strict=True):
                recording.found(found, news)

    def _filed(self, batch: Sequence[_Waiting], done: asyncio.Future[None]) -> None:
        self._writing -= 1
        error = done.exception()
        if error is not None:
            said = error.message if isinstance(error, DrayError) else repr(error)
            logger.error("output was not filed to %s: %s", batch[0].recording.tape.shown, said)
        elif self._lead is not None and not _is_trusted(self._lead):
            # Another hub may read these tapes by now, and not what was written late.
            task = asyncio.get_running_loop().create_task(self._tell_later(batch, self._lead))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
            self._release(batch)
            self._send_off()
            return
        self._release(batch)
        _tell(batch, error is None)
        if self._gathered:
            self._send_off()

    def _release(self, batch: Sequence[_Waiting]) -> None:
        self._waiting_bytes -= sum(len(one.piece.data) for one in batch)
        if self._waiting_bytes <= WAITING_BYTES:
            self._room.set()

    async def _tell_later(self, batch: Sequence[_Waiting], lead: Remote) -> None:
        try:
            while not lead.is_trusted:
                await asyncio.wrap_future(lead.trust_soon())
        except DrayError as fault:
            logger.info("output is not acked: %s", fault.message)
            _tell(batch, is_filed=False)
        else:
            _tell(batch, is_filed=True)

    def look_again(self, names: Iterable[str] | None = None) -> None:
        """Another hub has filed output of these attempts, or may have filed any: what is known of tapes is old."""
        known = self._open.values() if names is None else map(self._open.get, names)
        for recording in list(known):
            if recording is not None:
                recording.doubt()
                recording.ring()

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
            recording = self._open[name] = Recording(self._tape(attempt), self._cap)
            recording.expected = self._announced.get(name)
            if len(self._open) > self._most_open:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(name)
        return recording

    def _tape(self, attempt: Attempt) -> Tape:
        # Of a call only its lane and its index are known for good.
        number = "call" if is_call(attempt) else attempt.no
        return self.tapes.tape(attempt.job_id, f"{attempt.index}.{number}.{attempt.uid}")

    async def drop(self, job_ids: list[str]) -> None:
        """Delete what forgotten jobs printed."""
        # Not on the thread that writes: a large array may have printed a hundred thousand files.
        await asyncio.to_thread(self.tapes.drop, job_ids)

    async def trim(self, most_bytes: int, live: frozenset[str]) -> None:
        """Delete the oldest output of finished jobs until the rest fits."""
        await asyncio.to_thread(self.tapes.trim, most_bytes, live)

    def _owner(self, worker: str, body: JobLog) -> Attempt:
        key = (worker, body.attempt or "", body.task_id)
        attempt = self._owners.get(key)
        if attempt is None or not body.attempt:
            job_id, index = split_task_id(body.task_id) or (body.task_id, -1)
            attempt = self._find(worker, job_id, index, body.attempt or "")
            if attempt is None:
                raise InvalidInput(f"job_log: this worker has no attempt of task {body.task_id}")
            self._owners[key] = attempt
            if len(self._owners) > self._most_open:
                self._owners.popitem(last=False)
        return attempt

    async def read(
        self, attempt: Attempt, streams: tuple[int, ...], follow: Callable[[], bool] | None
    ) -> AsyncIterator[bytes]:
        """Give an attempt's output; while `follow()` says that it runs, wait for more."""
        recording: Recording | None = None
        position, over = 0, [False, False]
        while True:
            known = self.recording(attempt)
            # Heard from before the look on, so that nothing that is filed meanwhile rings unheard.
            bell = known.bell
            if known is not recording or not self.tapes.near:
                # One that was forgotten meanwhile is not told of what comes; and a place that is slow is waited for.
                recording = await self._settled(attempt)
            running = follow is not None and follow()
            # Asked before the file is read: what is counted by now is in it. All that a result announced is here then,
            # and the attempt has ended, though the result may not be recorded yet.
            whole = follow is None or recording.complete
            while portion := await self._portion(recording, position):
                for frame, _ in split_frames(portion):
                    if frame.stream in streams and not (frame.over and over[frame.stream]):
                        yield frame.data or _mark(frame)
                    over[frame.stream] = frame.over
                position += len(portion)
            if whole:
                return
            is_quiet = await _idle(bell, None if running else IDLE_END_S)
            if is_quiet and (self.tapes.near or not self._waiting_bytes):
                return

    async def _settled(self, attempt: Attempt) -> Recording:
        """What was taken before this was asked is in the answer, also where it waits to be filed."""
        recording = self.recording(attempt)
        if self._thread.running and (self._gathered or not (recording.scanned and self._thread.idle)):
            while self._gathered:
                self._send_off()
            await self._thread.put(self._scan, [recording])
        return recording

    async def _portion(self, recording: Recording, position: int) -> bytes:
        if self.tapes.near:
            return recording.tape.read(position, recording.size)
        if position >= recording.size:
            return b""
        return await asyncio.to_thread(recording.tape.read, position, recording.size)


def _is_trusted(lead: Remote) -> bool:
    try:
        return lead.is_trusted
    except DrayError:
        return False


def _tell(batch: Sequence[_Waiting], is_filed: bool) -> None:
    for one in batch:
        one.recording.ring()
        ends = dict(zip(STREAMS, one.recording.ends, strict=True))
        one.tell({one.name: ends} if is_filed else None)


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


def _mark(frame: Frame) -> bytes:
    """Say what is missing.

    Once for all that is over the cap, without a count that still grows: who comes back must find the same bytes.
    """
    if frame.over:
        return b"\n[dray: this output is over its limit, what follows was dropped here]\n"
    return f"\n[dray: {frame.gap} bytes of output were dropped here]\n".encode()
