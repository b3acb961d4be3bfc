"""The short way for whole binary frames: same frames, same order, however the bytes arrive."""

from __future__ import annotations

import asyncio
import gc
import struct
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dray.hub.http.server import HttpServer, bind
from dray.hub.workers.frames import EXTENSION

MASK = b"\x01\x02\x03\x04"
BINARY, TEXT, CLOSE, PING, PONG = 0x82, 0x81, 0x88, 0x89, 0x8A
LIMIT = 300_000


class Ear:
    """An application that notes what came, and by which way."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.busy = False
        self.socket: Any = None
        self.over, self.news = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        self.socket = scope["extensions"][EXTENSION]
        self.socket.take_frames(self._take)
        while (got := await receive())["type"] != "websocket.disconnect":
            self._note("long", got.get("bytes") or got.get("text"))
        self._note("end", got["code"])
        self.over.set()

    def _take(self, frame: bytes) -> bool:
        if self.busy:
            return False
        self._note("short", frame)
        return True

    async def wait_for(self, count: int) -> list[tuple[str, Any]]:
        async with asyncio.timeout(60):
            while len(self.heard) < count:
                self.news.clear()
                await self.news.wait()
        return self.heard

    def _note(self, way: str, what: Any) -> None:
        self.heard.append((way, what))
        self.news.set()


@pytest.fixture
async def ear() -> Ear:
    return Ear()


@pytest.fixture
async def peer(ear: Ear) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    bound = bind("127.0.0.1", 0)
    server = HttpServer(ear, bound, frame_bytes=LIMIT)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", bound.port)
    writer.write(
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    yield reader, writer
    writer.close()
    await server.stop(1.0)


def frame(body: bytes, head: int = BINARY) -> bytes:
    size = len(body)
    if size < 126:
        length = bytes((0x80 | size,))
    elif size < 1 << 16:
        length = struct.pack("!BH", 0x80 | 126, size)
    else:
        length = struct.pack("!BQ", 0x80 | 127, size)
    return bytes((head,)) + length + MASK + bytes(byte ^ MASK[place % 4] for place, byte in enumerate(body))


async def test_frames_of_every_size_arrive_whole(ear: Ear, peer: Any) -> None:
    bodies = [b"", b"a", b"b" * 125, b"c" * 126, b"d" * 65_535, b"e" * 65_536, b"f" * LIMIT]
    for body in bodies:
        peer[1].write(frame(body))
    assert await ear.wait_for(len(bodies)) == [("short", body) for body in bodies]


async def test_bytes_may_come_one_by_one_or_all_at_once(ear: Ear, peer: Any) -> None:
    bodies = [b"one", b"two" * 60, b"three"]
    whole = b"".join(map(frame, bodies))
    for place in range(len(whole)):
        peer[1].write(whole[place : place + 1])
        await peer[1].drain()
        await asyncio.sleep(0)
    peer[1].write(whole)
    assert await ear.wait_for(6) == [("short", body) for body in bodies * 2]


async def test_what_is_refused_keeps_its_place_before_what_follows(ear: Ear, peer: Any) -> None:
    ear.busy = True
    peer[1].write(frame(b"1") + frame(b"2"))
    await ear.wait_for(2)
    ear.busy = False
    peer[1].write(frame(b"3"))
    assert await ear.wait_for(3) == [("long", b"1"), ("long", b"2"), ("short", b"3")]


async def test_a_ping_between_frames_is_answered(ear: Ear, peer: Any) -> None:
    peer[1].write(frame(b"1") + frame(b"are you there", PING) + frame(b"2"))
    assert await peer[0].readexactly(15) == bytes((PONG, 13)) + b"are you there"
    assert await ear.wait_for(2) == [("short", b"1"), ("short", b"2")]


async def test_who_has_spoken_since_is_not_asked_whether_it_is_there(ear: Ear, peer: Any) -> None:
    peer[1].write(frame(b"a heartbeat"))
    await ear.wait_for(1)
    ear.socket.stop_keepalive()
    ear.socket.send_keepalive_ping()
    assert ear.socket.ping_timer is not None, "it is looked at again"
    assert ear.socket.pending_ping_payload is None
    ear.socket.stop_keepalive()
    ear.socket.send_keepalive_ping()
    asked = ear.socket.pending_ping_payload
    assert asked is not None
    assert await peer[0].readexactly(6) == bytes((PING, 4)) + asked


async def test_text_and_fragments_take_the_long_way(ear: Ear, peer: Any) -> None:
    peer[1].write(frame(b"1") + frame(b"words", TEXT) + frame(b"fr", 0x02) + frame(b"ag", 0x80))
    peer[1].write(frame(b"2"))
    assert await ear.wait_for(4) == [("short", b"1"), ("long", "words"), ("long", b"frag"), ("long", b"2")]


@pytest.mark.parametrize(
    ("bytes_sent", "code"),
    [
        (bytes((BINARY, 1)) + b"x", 1002),
        (frame(b"x", 0xC2), 1002),
        (bytes((BINARY, 0xFF)) + struct.pack("!Q", LIMIT + 1), 1009),
        (frame(struct.pack("!H", 1000), CLOSE), 1000),
    ],
    ids=("unmasked", "reserved bit", "too large", "close"),
)
async def test_what_breaks_the_rules_ends_the_connection(
    ear: Ear, peer: Any, bytes_sent: bytes, code: int
) -> None:
    peer[1].write(frame(b"1") + bytes_sent)
    head, size = await peer[0].readexactly(2)
    assert (head, struct.unpack("!H", (await peer[0].readexactly(size))[:2])) == (CLOSE, (code,))
    assert await ear.wait_for(2) == [("short", b"1"), ("end", code)]


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
async def test_a_written_frame_is_read_whole(ear: Ear, peer: Any, size: int) -> None:
    peer[1].write(frame(b"1"))
    await ear.wait_for(1)
    assert ear.socket.write_frame(b"w" * size)
    head = 2 if size < 126 else 4 if size < 1 << 16 else 10
    got = await peer[0].readexactly(head + size)
    assert (got[0], got[head:]) == (BINARY, b"w" * size)


async def test_nothing_is_written_past_a_peer_that_does_not_read(ear: Ear, peer: Any) -> None:
    peer[1].write(frame(b"1"))
    await ear.wait_for(1)
    peer[0]._transport.pause_reading()
    written = 0
    while ear.socket.write_frame(bytes(LIMIT)):
        written += 1
        assert written < 1000
    assert not ear.socket.write_frame(b"")


async def test_nothing_is_written_to_a_connection_that_is_gone(ear: Ear, peer: Any) -> None:
    peer[1].write(frame(struct.pack("!H", 1001), CLOSE))
    async with asyncio.timeout(60):
        await ear.over.wait()
    assert not ear.socket.write_frame(b"late")


async def test_a_connection_that_is_gone_leaves_no_memory_behind(ear: Ear, peer: Any) -> None:
    peer[1].write(frame(b"1"))
    await ear.wait_for(1)
    gone = asyncio.Event()
    kept = weakref.ref(ear.socket, lambda _: gone.set())
    ear.socket = None
    gc.disable()
    try:
        peer[1].write(frame(struct.pack("!H", 1000), CLOSE))
        async with asyncio.timeout(60):
            await gone.wait()
        assert kept() is None
    finally:
        gc.enable()
