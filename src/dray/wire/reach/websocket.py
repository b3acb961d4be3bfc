"""The dialling end of a WebSocket, as an asyncio protocol: frames are handed over in the very callback that read them.

Only what clients and workers need: binary messages, ping and pong, close, no extensions. A general library takes longer
to load than everything else that a client does to reach its hub, and wakes a task per message. Surprising rule: `send`
never waits; whoever writes much looks at `writable` first.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from dray.wire.reach.dialling import Line
from dray.wire.reach.read_memory import ReadMemory

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
CONTINUATION, BINARY, CLOSE, PING, PONG = 0, 2, 8, 9, 10
KEEPALIVE_S = 20.0
HEAD_BYTES = 64 << 10
REASON_BYTES = 120
# From so many bytes on a payload is worth a library.
BULK_BYTES = 16 << 10
ABNORMAL, PROTOCOL_ERROR, NORMAL, TOO_LARGE = 1006, 1002, 1000, 1009


class Address(NamedTuple):
    """Whom to greet, and with what."""

    host: str
    port: int
    path: str
    subprotocol: str
    token: str
    more: tuple[str, ...] = ()


def make_address(url: str, path: str, subprotocol: str, token: str, more: tuple[str, ...] = ()) -> Address:
    """Whom to greet at a hub's address, and where there."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Address(parts.hostname or "", port, parts.path.rstrip("/") + path, subprotocol, token, more)


class HandshakeRefused(Exception):
    """The peer answered with something else than an upgrade."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status, self.body = status, body


class WebSocket(asyncio.BufferedProtocol):
    """One connection. `closed` gives the code and reason of its end; `on_message` gets each binary message.

    With `keepalive_s` 0 its owner looks for silence. A frame above `most_bytes` ends it; 0 is no limit.
    """

    def __init__(self, address: Address, keepalive_s: float = KEEPALIVE_S, most_bytes: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self._address, self._keepalive_s, self._most_bytes = address, keepalive_s, most_bytes
        self._key = base64.b64encode(os.urandom(16))
        self._read = ReadMemory()
        self._parts: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._heard = True
        self._keepalive: asyncio.TimerHandle | None = None
        self._close_sent = False
        self._end: tuple[int, str] | None = None
        self.closed: asyncio.Future[tuple[int, str]] = self._loop.create_future()
        self.writable = True
        self._early: list[bytes] = []
        self._on_message: Callable[[bytes], None] = self._early.append
        self.on_writable: Callable[[], None] = lambda: None

    @property
    def on_message(self) -> Callable[[bytes], None]:
        """Who gets each message. A peer may have spoken together with its answer to the handshake: that comes first."""
        return self._on_message

    @on_message.setter
    def on_message(self, take: Callable[[bytes], None]) -> None:
        self._on_message, early, self._early = take, self._early, []
        for message in early:
            take(message)

    async def open(self) -> None:
        """Wait for the upgrade; raises `HandshakeRefused` or `OSError`."""
        await self._opened

    def send(self, message: bytes) -> None:
        """Write one binary message."""
        self._write(BINARY, message)

    def send_parts(self, head: bytes, rest: bytes | memoryview) -> None:
        """Write one binary message of two parts; a large second one is copied once, masked."""
        self.send_several(((head, rest),))

    def send_several(self, messages: Sequence[tuple[bytes, bytes | memoryview]]) -> None:
        """Write binary messages of two parts each, at once."""
        if self._transport is None or self._transport.is_closing() or self._close_sent:
            return
        parts: list[bytes] = []
        for head, rest in messages:
            key = os.urandom(4)
            start = _head(BINARY, len(head) + len(rest)) + key
            if len(rest) < BULK_BYTES:
                parts.append(start + mask(head + rest, key))
            else:
                turn = len(head) % 4
                parts += start + mask(head, key), mask(rest, key[turn:] + key[:turn])
        self._transport.write(parts[0]) if len(parts) == 1 else self._transport.writelines(parts)

    def widen(self, most_bytes: int) -> None:
        """Let so much wait here before `writable` is false."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(most_bytes)

    async def close(self, code: int = NORMAL, reason: str = "", wait_s: float = 2.0) -> None:
        """Say goodbye and wait for the peer's, not for ever."""
        if self._transport is None or self.closed.done():
            return
        if self._opened.done() and not self._close_sent:
            self._close_sent = True
            self._write(CLOSE, code.to_bytes(2, "big") + reason.encode()[:REASON_BYTES])
            await asyncio.wait([self.closed], timeout=wait_s)
        if not self.closed.done():
            self._transport.abort()
            await asyncio.wait([self.closed], timeout=wait_s)

    def abort(self) -> None:
        """End it without a goodbye."""
        if self._transport is not None:
            self._transport.abort()

    # --- the transport's calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        lines = [
            f"GET {self._address.path} HTTP/1.1",
            f"Host: {host}:{self._address.port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {self._key.decode()}",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Protocol: {self._address.subprotocol}",
            f"Authorization: Bearer {self._address.token}",
            *self._address.more,
        ]
        self._transport.write("\r\n".join([*lines, "", ""]).encode())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._read.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = True
        self._read.end += nbytes
        if self._opened.done() or self._read_handshake():
            self._read_frames()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._keepalive is not None:
            self._keepalive.cancel()
        if not self._opened.done():
            self._opened.set_exception(exc or ConnectionError("the connection was closed at once"))
        if not self.closed.done():
            self.closed.set_result(self._end or (ABNORMAL, str(exc or "")))

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.on_writable()

    # --- the handshake ------------------------------------------------------------------------------------------------

    def _read_handshake(self) -> bool:
        data = self._read.copy(self._read.begin, self._read.end)
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > HEAD_BYTES:
                self._refuse(0, b"")
            return False
        head = data[:end].split(b"\r\n")
        pairs = (line.partition(b":") for line in head[1:])
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        words = head[0].split(None, 2)
        status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        if status != 101:
            size = int(headers.get(b"content-length", b"0") or 0)
            body = data[end + 4 :]
            if len(body) >= min(size, HEAD_BYTES):
                self._refuse(status, body)
            return False
        wanted = base64.b64encode(hashlib.sha1(self._key + GUID, usedforsecurity=False).digest())
        if headers.get(b"sec-websocket-accept") != wanted:
            self._refuse(status, b"")
            return False
        self._read.begin += end + 4
        self._opened.set_result(None)
        if self._keepalive_s:
            self._keepalive = self._loop.call_later(self._keepalive_s, self._look_for_life)
        return True

    def _refuse(self, status: int, body: bytes) -> None:
        if not self._opened.done():
            self._opened.set_exception(HandshakeRefused(status, body))
        if self._transport is not None:
            self._transport.abort()

    # --- frames -------------------------------------------------------------------------------------------------------

    def _read_frames(self) -> None:
        read = self._read
        while len(read) >= 2:
            data, at = read.data, read.begin
            first, size, start = data[at], data[at + 1] & 0x7F, at + 2
            if size >= 126:
                wide = 2 if size == 126 else 8
                if read.end < start + wide:
                    break
                size = int.from_bytes(data[start : start + wide], "big")
                start += wide
                if 0 < self._most_bytes < size:
                    self._break(TOO_LARGE, f"a frame of {size} bytes is over the limit of {self._most_bytes}")
                    return
            if read.end < start + size:
                read.want(start + size - at)
                break
            payload = read.copy(start, start + size)
            read.begin = start + size
            self._take(first & 0x0F, bool(first & 0x80), payload)

    def _take(self, opcode: int, final: bool, payload: bytes) -> None:
        if opcode == BINARY and final:
            self._on_message(payload)
        elif opcode in (BINARY, CONTINUATION):
            self._parts.append(payload)
            if final:
                whole, self._parts = b"".join(self._parts), []
                self._on_message(whole)
        elif opcode == PING:
            self._write(PONG, payload)
        elif opcode == CLOSE:
            self._take_close(payload)
        elif opcode != PONG:
            self._break(PROTOCOL_ERROR, f"a frame of the unexpected kind {opcode}")

    def _break(self, code: int, reason: str) -> None:
        self._end = (code, reason)
        self.abort()

    def _take_close(self, payload: bytes) -> None:
        code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 1005
        self._end = (code, payload[2:].decode(errors="replace"))
        if not self._close_sent:
            self._close_sent = True
            self._write(CLOSE, payload[:2])
        if self._transport is not None:
            self._transport.close()

    def _write(self, opcode: int, payload: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        key = os.urandom(4)
        self._transport.write(_head(opcode, len(payload)) + key + mask(payload, key))

    def _look_for_life(self) -> None:
        if not self._heard:
            self._break(ABNORMAL, "the hub has gone silent")
            return
        self._heard = False
        self._write(PING, b"")
        self._keepalive = self._loop.call_later(self._keepalive_s, self._look_for_life)


def _head(opcode: int, size: int) -> bytes:
    if size < 126:
        return bytes((0x80 | opcode, 0x80 | size))
    if size < 1 << 16:
        return bytes((0x80 | opcode, 0xFE)) + size.to_bytes(2, "big")
    return bytes((0x80 | opcode, 0xFF)) + size.to_bytes(8, "big")


def mask(payload: bytes | memoryview, key: bytes) -> bytes:
    """Mask a client's payload: one addition of long numbers is the fastest that plain Python can do."""
    size = len(payload)
    if not size:
        return b""
    if size >= BULK_BYTES and (quick := _find_mask()) is not None:
        return quick(payload, key)
    pad = key * (size // 4 + 1)
    return (int.from_bytes(payload, "little") ^ int.from_bytes(pad[:size], "little")).to_bytes(size, "little")


@cache
def _find_mask() -> Callable[[bytes | memoryview, bytes], bytes] | None:
    """A compiled one, where it is installed; loaded when there is much to mask, since few ever have."""
    try:
        from websockets.speedups import apply_mask
    except ImportError:
        return None
    return apply_mask


async def dial(
    address: Address, line: Line, limit_s: float, keepalive_s: float = KEEPALIVE_S, most_bytes: int = 0
) -> WebSocket:
    """Open the WebSocket over a line that stands; raises `HandshakeRefused`, `OSError` or `TimeoutError`."""
    loop = asyncio.get_running_loop()
    make = partial(WebSocket, address, keepalive_s, most_bytes)
    line.sock.setblocking(False)
    async with asyncio.timeout(limit_s):
        try:
            if line.local:
                _, socket = await loop.create_unix_connection(make, sock=line.sock)
            else:
                name = address.host if line.context is not None else None
                _, socket = await loop.create_connection(
                    make, sock=line.sock, ssl=line.context, server_hostname=name
                )
        except BaseException:
            line.sock.close()
            raise
        if type(loop).__module__.startswith("uvloop"):
            # The number is that loop's from here on. Where the peer was gone at once it does not tell this object,
            # which, collected later, would close whatever has the number by then.
            line.sock.detach()
        try:
            await socket.open()
        except BaseException:
            await socket.close()
            raise
        return socket
