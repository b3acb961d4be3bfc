"""One simulated worker: the real protocol over a WebSocket cut down to what it takes.

Speaks msgpack with the features of dray's own agent, accepts what it is given, holds it for ever (or, where it `works`,
ends it at once and asks for more) and beats. Written on
a bare asyncio protocol because ten thousand of them share a process with nobody: a client library's own cost would
drown the hub's. Frames carry an empty mask, which the standard allows.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any, cast

import msgspec

from dray.wire.messages.worker import SUBPROTOCOL_MSGPACK

FEATURES = ("list", "job_started", "resend")
BINARY, CLOSE, PING, PONG = 0x2, 0x8, 0x9, 0xA
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Worker:
    """What a worker knows of itself beyond one connection."""

    def __init__(self, name: str, slots: int) -> None:
        self.name, self.slots = name, slots
        self.held: dict[str, str] = {}
        self.seen: set[str] = set()
        self.works = False
        self.socket: WorkerSocket | None = None
        self.registered = False
        self.beat_sent_s = 0.0
        self.capability = {"gpu_backend": "cpu", "cpu_count": 16, "memory_gb": 64, "hostname": name}

    def registration(self) -> dict[str, Any]:
        active = [{"task_id": task, "state": "running", "attempt": uid} for uid, task in self.held.items()]
        return {
            "id": self.name,
            "capabilities": self.capability,
            "active_tasks": active,
            "slots": self.slot_counts(),
            "features": FEATURES,
            "incarnation": self.name,
            "journal_id": self.name,
        }

    def slot_counts(self) -> dict[str, int]:
        return {
            "batch_total": self.slots,
            "batch_in_use": len(self.held),
            "service_total": 0,
            "service_in_use": 0,
        }

    def heartbeat(self) -> dict[str, Any]:
        return {"worker_id": self.name, "slots": self.slot_counts(), "capability": self.capability}

    def readiness(self) -> dict[str, Any]:
        free = self.slots - len(self.held)
        return {"worker_id": self.name, "slots": self.slot_counts(), "reason": "polling", "credits": free}


class Listener:
    """Who hears what happens to the workers of one process."""

    def acked(self, worker: Worker, payload: dict[str, Any]) -> None: ...
    def assigned(self, worker: Worker, task: str, uid: str) -> None: ...
    def cancelled(self, worker: Worker, payload: dict[str, Any]) -> None: ...
    def lost(self, worker: Worker, was_registered: bool) -> None: ...


class WorkerSocket(asyncio.Protocol):
    """One connection of one worker, from the upgrade to its end."""

    def __init__(self, worker: Worker, listener: Listener, host: str, token: str) -> None:
        self._worker, self._listener = worker, listener
        self._request = (
            f"GET /ws HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: ZHJheS1iZW5jaG1hcmtzIQ==\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Protocol: {SUBPROTOCOL_MSGPACK}\r\nAuthorization: Bearer {token}\r\n\r\n"
        ).encode()
        self._buffer = b""
        self._upgraded = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # a stream, though of the loop's own class
        self._transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        worker = self._worker
        if worker.socket is self:
            was_registered, worker.socket, worker.registered = worker.registered, None, False
            self._listener.lost(worker, was_registered)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._upgraded and not self._upgrade():
            return
        while (frame := self._next_frame()) is not None:
            opcode, body = frame
            if opcode == BINARY:
                decoded = _decode(body)
                for message in decoded if isinstance(decoded, list) else [decoded]:
                    self._take(message["type"], message.get("payload") or {})
            elif opcode == PING:
                self._send_frame(PONG, body)
            elif opcode == CLOSE:
                self.close()

    def send(self, *messages: tuple[str, dict[str, Any]]) -> None:
        """Send messages in one frame."""
        envelopes = [{"type": kind, "payload": payload} for kind, payload in messages]
        self._send_frame(BINARY, _encode(envelopes if len(envelopes) > 1 else envelopes[0]))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _upgrade(self) -> bool:
        head, mark, rest = self._buffer.partition(b"\r\n\r\n")
        if not mark:
            return False
        if b" 101 " not in head.split(b"\r\n", 1)[0]:
            self.close()  # not ready yet: dialled again like any broken connection
            return False
        self._upgraded, self._buffer = True, rest
        self.send(("register", self._worker.registration()))
        return True

    def _next_frame(self) -> tuple[int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        size, start = buffer[1] & 0x7F, 2
        if size == 126:
            start = 4
        elif size == 127:
            start = 10
        if len(buffer) < start:
            return None
        if start > 2:
            size = int.from_bytes(buffer[2:start])
        if len(buffer) < start + size:
            return None
        self._buffer = buffer[start + size :]
        return buffer[0] & 0x0F, buffer[start : start + size]

    def _send_frame(self, opcode: int, body: bytes) -> None:
        size = len(body)
        if size < 126:
            head = bytes((0x80 | opcode, 0x80 | size))
        elif size < 1 << 16:
            head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, size)
        if self._transport is not None:
            self._transport.write(head + b"\0\0\0\0" + body)

    def _take(self, kind: str, payload: dict[str, Any]) -> None:
        worker = self._worker
        if kind == "ack":
            self._listener.acked(worker, payload)
        elif kind == "job_assign":
            task, uid = payload["spec"]["id"], payload["attempt"]["uid"]
            named = {"task_id": task, "attempt": uid}
            words = [("job_accepted", named), ("job_started", {**named, "pid": 1})]
            if worker.works:
                words.append(("job_result", {**named, "state": "succeeded", "exit_code": 0}))
                words.append(("ready_for_work", worker.readiness()))
            self.send(*words)
            self._listener.assigned(worker, task, uid)
        elif kind == "job_cancel":
            self._listener.cancelled(worker, payload)
