"""One worker's socket at a gateway: frames pass through, and what a new leader must know of it is noted on the way.

Of heartbeats that say nothing new the leader is told in digests. Surprising rule: an ack of a heartbeat is made here,
and only when the leader has acked the digest that it was in: a gateway never acks by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any, NamedTuple

from dray.core.model.capability import Slots
from dray.errors import InvalidInput
from dray.hub.access.entrance import Send
from dray.hub.gateways.frames import Frame, Held
from dray.hub.workers.session import OVERLOADED, Frames, Limits
from dray.wire.messages.codec import Codec, Envelope, message
from dray.wire.messages.worker import Heartbeat, JobLog, ReadyForWork, Register

# A heartbeat is passed on whole at least so often: by what a worker runs the leader sees what it missed.
WHOLE_S = 60.0


class Read(NamedTuple):
    """What a frame is to the gateway: a `beat` (its number) that says nothing new, or something that is passed on.
    `logs`: all of it is output, which the gateway may file by itself.
    """

    beat: int | None
    prints: bool
    logs: tuple[JobLog, ...] = ()


class Behind(NamedTuple):
    """A frame that is passed on once so much of what this worker printed before it is filed."""

    frame: Frame
    prints: bool
    printed: int


class Peer:
    """`closing`: it is on its way out, and what it says is dropped."""

    def __init__(
        self, no: int, token_id: str, codec: Codec, send: Send, frames: Frames | None, limits: Limits
    ) -> None:
        self.no, self.token_id, self.codec = no, token_id, codec
        self.prints = self.reading = False
        # How many pieces of output were taken here to be filed, how many are, and what waits behind them.
        self.printed = self.filed = 0
        self.behind: deque[Behind] = deque()
        self.closing: tuple[int, str] | None = None
        self._send, self._limits = send, limits
        self._direct = frames if codec.binary else None
        self._claim: Register | None = None
        self._held = Held(no, token_id, codec.binary)
        self._credit, self._slots = 0, Slots()
        self._said: Any = None
        self._whole_at = 0.0
        # What is being sent, and what waits behind it.
        self._sending: deque[Frame] = deque()
        self._outbox: deque[Frame] = deque()
        self._waiting_bytes = 0
        self._busy = False
        self._wake = asyncio.Event()

    # --- up -----------------------------------------------------------------------------------------------------------

    def read(self, frame: Frame) -> Read:
        """Look at a frame on its way; what is wrong with one the leader says."""
        if isinstance(frame, str) == self.codec.binary:
            return Read(None, prints=False)
        try:
            envelopes = self.codec.split(frame)
            if len(envelopes) == 1 and envelopes[0].type == "heartbeat":
                return self._read_beat(self.codec.open(envelopes[0]))
            for envelope in envelopes:
                if envelope.type == "register":
                    self._claim = self.codec.open(envelope)
                elif envelope.type == "ready_for_work":
                    asked: ReadyForWork = self.codec.open(envelope)
                    self._slots = asked.slots
                elif envelope.type == "heartbeat":
                    self._said = None
                elif envelope.type == "job_log":
                    self.prints = True
        except InvalidInput:
            return Read(None, prints=False)
        logs = [envelope for envelope in envelopes if envelope.type == "job_log"]
        if len(logs) < len(envelopes):
            return Read(None, prints=bool(logs))
        return Read(None, prints=True, logs=self._open_logs(logs))

    def _open_logs(self, envelopes: list[Envelope]) -> tuple[JobLog, ...]:
        """Output as it is said; none where the leader is to say what is wrong with it."""
        try:
            return tuple(self.codec.open(envelope) for envelope in envelopes)
        except InvalidInput:
            return ()

    def _read_beat(self, body: Heartbeat) -> Read:
        now, uses = asyncio.get_running_loop().time(), body.usage is not None and bool(body.usage.attempts)
        said = body.worker_id, body.slots, body.capability, body.active, body.devices
        self._slots = body.slots
        # One that knows no features tells answers apart by their order alone.
        known = bool(self._held.features) and body.worker_id == self._held.worker
        if known and not uses and said == self._said and now - self._whole_at < WHOLE_S:
            return Read(body.beat, prints=False)
        self._said, self._whole_at = said, now
        return Read(None, prints=False)

    # --- what a new leader is told ------------------------------------------------------------------------------------

    def registered(self, worker: str, incarnation: str, at_ms: int) -> None:
        """The leader has this socket's registration on record."""
        claim = self._claim
        if claim is None or claim.id != worker:
            return
        self._held = Held(
            self.no,
            self.token_id,
            self.codec.binary,
            worker,
            incarnation,
            at_ms,
            features=tuple(claim.features or ()),
            boot_id=claim.boot_id or "",
            accounts=tuple(claim.accounts or ()),
        )
        self._slots = claim.slots or self._slots
        self._claim, self._said = None, None

    @property
    def worker(self) -> str:
        """Whose registration is on record for this socket; empty before."""
        return self._held.worker

    def held(self) -> Held:
        """What there is to say of this socket now."""
        known = self._held
        said = known.worker, known.incarnation, known.registered_at_ms, self._credit, self._slots
        more = known.features, known.boot_id, known.accounts
        return Held(self.no, self.token_id, self.codec.binary, *said, *more)

    def forget_said(self) -> None:
        """The link broke: the next heartbeat is passed on whole."""
        self._said = None

    # --- down ---------------------------------------------------------------------------------------------------------

    def push(self, frame: Frame, credit: int) -> None:
        """Pass a frame of the leader on."""
        self._credit = credit
        self._write(frame)

    def ack(self, beat: int, epoch: int, turn: int, leader: str) -> None:
        """Answer a heartbeat that the leader has heard."""
        payload: dict[str, Any] = {"re": "heartbeat", "epoch": epoch, "turn": turn, "leader": leader}
        if beat:
            payload["beat"] = beat
        self._tell(payload)

    def ack_output(self, ends: dict[str, dict[str, int]]) -> None:
        """Say up to where output is filed."""
        self._tell({"re": "job_log", "log_offsets": ends})

    def _tell(self, payload: dict[str, Any]) -> None:
        frame = self.codec.encode([message("ack", payload)])
        self._write(frame if self.codec.binary else frame.decode())

    def _write(self, frame: Frame) -> None:
        if self.closing is not None:
            return
        if (
            self._direct is not None
            and not self._outbox
            and not self._busy
            and self._direct.write_frame(frame)
        ):
            return
        # However much a turn has for a worker: only what comes while that is sent counts against it.
        if self._busy and (
            len(self._outbox) >= self._limits.queue_messages or self._waiting_bytes > self._limits.queue_bytes
        ):
            self.close(OVERLOADED, "this peer does not read what it is sent")
            return
        self._outbox.append(frame)
        self._waiting_bytes += len(frame)
        self._wake.set()

    def close(self, code: int, reason: str, at_once: bool = False) -> None:
        """End it, after what is queued unless at once."""
        if at_once:
            self._sending.clear()
            self._outbox.clear()
        if self.closing is None:
            self.closing = (code, reason)
            self._wake.set()

    async def pump(self) -> None:
        """Send what could not be written at once; a socket that broke is the reader's to notice."""
        with contextlib.suppress(OSError, RuntimeError):
            while True:
                await self._wake.wait()
                self._wake.clear()
                self._busy = True
                while self._outbox:
                    self._sending, self._outbox, self._waiting_bytes = self._outbox, deque(), 0
                    while self._sending:
                        frame = self._sending.popleft()
                        body = {"bytes": frame} if isinstance(frame, bytes) else {"text": frame}
                        await self._send({"type": "websocket.send", **body})
                self._busy = False
                if self.closing is not None:
                    code, reason = self.closing
                    said = reason.encode()[:120].decode(errors="ignore")
                    await self._send({"type": "websocket.close", "code": code, "reason": said})
                    return
