"""Many streams over one socket, without touching one: frames in by `take`, frames out by `write`. Both ends use it.

Each direction of a stream has a window: no end has more than that of a stream in its memory, and one whose reader is
slow holds up no other. One end opens, the other accepts. Surprising rule: a peer that breaks a rule is cut off whole,
since nobody can tell what it meant by the rest; only frames of streams that have ended are passed over, because they
may have crossed their end on the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dray.errors import Overloaded
from dray.wire.streams import frames
from dray.wire.streams.frames import AMOUNT, HEAD, PIECE_BYTES, TOTAL, WINDOW_BYTES, Bytes

MAX_STREAMS = 1024
MAX_HELD = 8192
# What has been read is told the peer in amounts of this size: it never stands still for want of them.
CREDIT_BYTES = WINDOW_BYTES // 2
LAST_STREAM = (1 << 32) - 1


class Breach(Exception):
    """The peer does not keep to the rules of streams."""


class Taker:
    """Who is behind one end of a stream. Each call comes from within the socket's own; nothing here waits."""

    def opened(self, told: bytes) -> None:
        """The other end stands."""

    def data(self, data: bytes) -> None:
        """Bytes of the other end; what has been dealt with is to be given back by `Stream.credit`."""

    def view(self, view: memoryview) -> None:
        """The same as they came in their frame: whoever only hands them on spares a copy."""
        self.data(bytes(view))

    def eof(self) -> None:
        """The other end sends no more; it may read on."""

    def told(self, kind: int, payload: bytes) -> None:
        """The other end says something beside the bytes."""

    def room(self) -> None:
        """A stream that was full takes more."""

    def ended(self, reason: str) -> None:
        """It is over, called once: `reason` is empty after both ends have said all."""

    def kept(self, whole: bool) -> None:
        """It is over, instead of `ended`: what is behind it may serve again, where the peer has `whole` what this end
        sent and nothing is left to send.
        """
        self.ended("the other end is done with it")


class Stream:
    """One end of one stream. `opened`: both ends stand. `refused`: the other one never began."""

    __slots__ = (
        "_allowed",
        "_eof_came",
        "_eof_sent",
        "_exit",
        "_finishing",
        "_hurries",
        "_mux",
        "_owed",
        "_queue",
        "_queued",
        "_read",
        "_window",
        "_written",
        "ended",
        "number",
        "opened",
        "refused",
        "taker",
    )

    def __init__(self, mux: Mux, number: int, taker: Taker) -> None:
        self._mux, self.number, self.taker = mux, number, taker
        self._window = self._allowed = WINDOW_BYTES
        self._owed = self._queued = self._read = self._written = 0
        self._queue: deque[Bytes] = deque()
        self._finishing = self._eof_sent = self._eof_came = False
        self._exit: bytes | None = None
        self._hurries = True
        self.opened = self.refused = self.ended = False

    # --- what its owner does ------------------------------------------------------------------------------------------

    def accept(self, told: bytes = b"", hurries: bool = True) -> None:
        """This end stands: of one that the peer opened. Where nobody waits for that word it need not hurry."""
        if not self.ended and not self.opened:
            self.opened = True
            self._mux._say(self.number, frames.OPENED, told, hurries)

    def refuse(self, reason: str) -> None:
        """This end does not begin: of one that the peer opened. What it has sent meanwhile went nowhere."""
        if not self.ended:
            self._mux._say(self.number, frames.REFUSED, _cut(reason))
            self._drop()

    def write(self, data: Bytes) -> None:
        """Send bytes now or when there is room. Whoever has much looks at `is_full` first."""
        if self.ended or self._finishing or not data:
            return
        mux = self._mux
        self._written += len(data)
        if not self._queue and len(data) <= self._window and len(data) <= PIECE_BYTES and mux._free():
            self._window -= len(data)
            mux._write(HEAD.pack(self.number, frames.DATA), data)
            return
        self._queue.append(data)
        self._queued += len(data)
        mux._press(self)

    @property
    def is_full(self) -> bool:
        """Whether enough waits here: `Taker.room` is called when it does no more."""
        return self._queued >= PIECE_BYTES

    @property
    def waiting_bytes(self) -> int:
        """How much waits here until the other end, or the socket, has room."""
        return self._queued

    def credit(self, amount: int) -> None:
        """So much of what came is dealt with: the other end may send as much again."""
        self._owed += amount
        if self._owed >= CREDIT_BYTES and not self.ended and not self._eof_came:
            self._allowed += self._owed
            self._mux._say(self.number, frames.WINDOW, AMOUNT.pack(self._owed))
            self._owed = 0

    def tell(self, kind: int, payload: bytes) -> None:
        """Say something beside the bytes, ahead of those that wait."""
        if not self.ended:
            self._mux._say(self.number, kind, payload)

    def finish(self, exit_payload: bytes | None = None, hurries: bool = True) -> None:
        """Send no more after what waits; `exit_payload` is told last."""
        if not self.ended and not self._finishing:
            self._finishing, self._exit, self._hurries = True, exit_payload, hurries
            self._mux._press(self)

    def keep(self) -> bool:
        """End it now, both ways, so that what is behind the other end may serve again; its taker hears nothing more.
        False where it cannot be: something is still to be sent, or an end was said.
        """
        if self.ended or self._queue or self._finishing or self._eof_came or not self.opened:
            return False
        self._mux._say(self.number, frames.KEEP, TOTAL.pack(self._read), hurries=False)
        self._drop()
        return True

    def reset(self, reason: str) -> None:
        """End it now, both ways; its taker hears nothing more."""
        if not self.ended:
            self._mux._say(self.number, frames.RESET, _cut(reason))
            self._drop()

    # --- what the multiplexer does ------------------------------------------------------------------------------------

    def _drop(self) -> None:
        self.ended = True
        self._queue.clear()
        self._queued = 0
        self._mux._forget(self)

    def _end(self, reason: str) -> None:
        if not self.ended:
            self._drop()
            self.taker.ended(reason)

    def _wants(self) -> bool:
        """Whether a frame of it could leave."""
        return bool(self._queue and self._window) or (
            self._finishing and not self._queue and not self._eof_sent
        )

    def _send_some(self) -> None:
        """Send one frame, or its end."""
        if self._queue:
            was_full = self.is_full
            piece = self._queue.popleft()
            size = min(len(piece), self._window, PIECE_BYTES)
            if size < len(piece):
                view = memoryview(piece)
                self._queue.appendleft(view[size:])
                piece = view[:size]
            self._window -= size
            self._queued -= size
            self._mux._write(HEAD.pack(self.number, frames.DATA), piece)
            if was_full and not self.is_full and not self._finishing:
                self.taker.room()
            return
        if self._exit is not None:
            self._mux._write(HEAD.pack(self.number, frames.EXIT), self._exit)
        write = self._mux._write if self._hurries else self._mux._lay_by
        write(HEAD.pack(self.number, frames.EOF), b"")
        self._eof_sent = True
        if self._eof_came:
            self._end("")

    def _take_data(self, frame: bytes) -> None:
        size = len(frame) - HEAD.size
        if self._eof_came or not size or not self._may_speak:
            raise Breach("bytes where none may come")
        self._allowed -= size
        if self._allowed < 0:
            raise Breach("more than the window lets through")
        self._read += size
        self.taker.view(memoryview(frame)[HEAD.size :])

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == frames.WINDOW:
            self._widen(payload)
        elif kind == frames.EOF:
            if self._eof_came or not self._may_speak:
                raise Breach("an end where none may come")
            self._eof_came = True
            self.taker.eof()
            if self._eof_sent:
                self._end("")
        elif kind == frames.RESET:
            self._end(_words(payload) or "the other end broke it off")
        elif kind == frames.KEEP:
            self._kept(payload)
        elif kind in frames.ASIDE:
            if not self._may_speak:
                raise Breach("words before the answer to the opening")
            self.taker.told(kind, payload)
        else:
            self._answered(kind, payload)

    @property
    def _may_speak(self) -> bool:
        """Whether the peer may send: one that has been asked for a stream answers that first."""
        return self.opened or self._mux.accepts

    def _widen(self, payload: bytes) -> None:
        if len(payload) != AMOUNT.size:
            raise Breach("a window without a size")
        self._window += AMOUNT.unpack(payload)[0]
        if self._window > WINDOW_BYTES:
            raise Breach("a window wider than it was")
        if self._wants():
            self._mux._press(self)

    def _kept(self, payload: bytes) -> None:
        if not self._mux.accepts or self._eof_came or len(payload) != TOTAL.size:
            raise Breach("a stream is kept where none may be")
        has_all = TOTAL.unpack(payload)[0] == self._written
        whole = has_all and self.opened and not self._queue and not self._finishing
        self._drop()
        self.taker.kept(whole)

    def _answered(self, kind: int, payload: bytes) -> None:
        if self.opened or self._mux.accepts or kind not in (frames.OPENED, frames.REFUSED):
            raise Breach(f"a frame of kind {kind} where none may come")
        if kind == frames.OPENED:
            self.opened = True
            self.taker.opened(payload)
        else:
            self.refused = True
            self._end(_words(payload) or "refused")


class Mux:
    """All streams of one socket. `write` takes a frame in two parts, `has_room` says whether it should; whoever owns
    the socket calls `flush` when it has room again. `cut` is to end the socket, because of what the peer did; `close`
    is called when it has ended. `accept`: called with each stream that the peer opens; None where only this end opens.
    `lay_by` takes a frame that may wait for the next one, for a moment.
    """

    def __init__(
        self,
        write: Callable[[bytes, Bytes], None],
        has_room: Callable[[], bool],
        cut: Callable[[str], None],
        accept: Callable[[Stream, bytes], None] | None = None,
        lay_by: Callable[[bytes, Bytes], None] | None = None,
    ) -> None:
        self._write, self._has_room, self._cut, self._accept = write, has_room, cut, accept
        self._lay_by = lay_by or write
        self._streams: dict[int, Stream] = {}
        self._pressing: dict[Stream, None] = {}
        self._held: deque[tuple[bytes, bytes]] = deque()
        self._last = 0
        self._flushing = self._broken = False
        self.closed = ""

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def opened(self) -> int:
        """How many streams there have been."""
        return self._last

    @property
    def accepts(self) -> bool:
        """Whether the peer is the one that opens."""
        return self._accept is not None

    def open(self, target: bytes, taker: Taker, more: bool = False) -> Stream:
        """Ask for a stream; its taker hears whether it stands. Bytes may be sent at once; `more`: they will be."""
        if self.closed:
            raise Overloaded(f"the connection has ended: {self.closed}", 1.0)
        if len(self._streams) >= MAX_STREAMS or self._last >= LAST_STREAM:
            raise Overloaded(f"{len(self._streams)} streams are open there, the limit", 1.0)
        self._last += 1
        stream = self._streams[self._last] = Stream(self, self._last, taker)
        self._say(self._last, frames.OPEN, target, hurries=not more)
        return stream

    def take(self, frame: bytes) -> None:
        """Take one frame of the peer."""
        if self.closed or self._broken:
            return
        try:
            self._take(frame)
        except Breach as fault:
            self._break(f"{fault}: these are no streams as this end knows them")

    def _break(self, reason: str) -> None:
        if not self._broken:
            self._broken = True
            self._cut(reason)

    def _take(self, frame: bytes) -> None:
        if not HEAD.size <= len(frame) <= HEAD.size + PIECE_BYTES:
            raise Breach(f"a frame of {len(frame)} bytes")
        number, kind = HEAD.unpack_from(frame)
        stream = self._streams.get(number)
        if stream is not None and kind == frames.DATA:
            stream._take_data(frame)
        elif stream is not None and kind != frames.OPEN:
            stream._take(kind, frame[HEAD.size :])
        elif kind == frames.OPEN and self._accept is not None and number > self._last:
            self._last = number
            self._welcome(number, frame[HEAD.size :], self._accept)
        elif kind == frames.OPEN or kind > frames.KEEP or not 0 < number <= self._last:
            raise Breach(f"a frame of kind {kind} for stream {number}, which is none")

    def flush(self) -> None:
        """Send what waits, a piece of each stream in turn, while there is room."""
        if self._flushing:
            return
        self._flushing = True
        try:
            while self._held and self._has_room():
                self._write(*self._held.popleft())
            while self._pressing and self._has_room():
                stream = next(iter(self._pressing))
                del self._pressing[stream]
                stream._send_some()
                if not stream.ended and stream._wants():
                    self._pressing[stream] = None
        finally:
            self._flushing = False

    def close(self, reason: str) -> None:
        """The socket is gone: every stream ends."""
        if self.closed:
            return
        self.closed = reason or "the connection has ended"
        self._held.clear()
        for stream in list(self._streams.values()):
            stream._end(self.closed)
        self._pressing.clear()

    # --- for streams --------------------------------------------------------------------------------------------------

    def _welcome(self, number: int, target: bytes, accept: Callable[[Stream, bytes], None]) -> None:
        stream = self._streams[number] = Stream(self, number, Taker())
        if len(self._streams) > MAX_STREAMS:
            stream.refuse(f"{MAX_STREAMS} streams are open here, the limit")
        else:
            accept(stream, target)

    def _free(self) -> bool:
        """Whether bytes may pass those of others."""
        return not self._held and not self._pressing and self._has_room()

    def _say(self, number: int, kind: int, payload: bytes, hurries: bool = True) -> None:
        """Send a frame that no window counts, in its order."""
        if self.closed:
            return
        head = HEAD.pack(number, kind)
        if not self._held and self._has_room():
            (self._write if hurries else self._lay_by)(head, payload)
        elif len(self._held) < MAX_HELD:
            self._held.append((head, payload))
        else:
            self._break("this peer does not read what it is told")

    def _press(self, stream: Stream) -> None:
        if stream._wants():
            self._pressing[stream] = None
            self.flush()

    def _forget(self, stream: Stream) -> None:
        self._pressing.pop(stream, None)
        self._streams.pop(stream.number, None)


def _cut(reason: str) -> bytes:
    return reason.encode()[: frames.REASON_BYTES]


def _words(payload: bytes) -> str:
    return payload[: frames.REASON_BYTES].decode(errors="replace")
