"""The client's end of a WebSocket, against a server of another make."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import socket
from collections.abc import Callable
from typing import Self

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from websockets import Subprotocol
from websockets.asyncio.server import ServerConnection, serve
from websockets.frames import Opcode

from dray.wire.reach.dialling import Line, Way, open_line
from dray.wire.reach.read_memory import ReadMemory
from dray.wire.reach.websocket import BULK_BYTES, GUID, Address, HandshakeRefused, WebSocket, dial, mask

PROTOCOL = Subprotocol("echo")
LIMIT_S = 60.0


async def talk(peer: ServerConnection) -> None:
    """Gives every message back; the word `parts` in three fragments after a ping, `bye` with a close."""
    async for message in peer:
        if message == b"parts":
            waiter = await peer.ping(b"there?")
            await peer.send(iter([b"one ", b"two ", b"three"]))
            await waiter
            await peer.send(b"ponged")
        elif message == b"bye":
            await peer.close(4321, "enough")
        elif message == b"text":
            await peer.send("no bytes")
        else:
            await peer.send(message)


async def reach(address: Address) -> WebSocket:
    line = await asyncio.to_thread(
        open_line, Way(f"http://{address.host}:{address.port}"), LIMIT_S, lambda: None
    )
    return await dial(address, line, LIMIT_S)


class Served:
    """A server for the length of a test, and messages of one socket to it."""

    def __init__(self) -> None:
        self.got: asyncio.Queue[bytes] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        self._server = await serve(talk, "127.0.0.1", 0, subprotocols=[PROTOCOL], max_size=None)
        self.port = next(iter(self._server.sockets)).getsockname()[1]
        self.socket = await reach(self.address())
        self.socket.on_message = self.got.put_nowait
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.socket.close()
        self._server.close()
        await self._server.wait_closed()

    def address(self) -> Address:
        return Address("127.0.0.1", self.port, "/", PROTOCOL, "token")


@pytest.mark.parametrize("size", [0, 1, 3, 125, 126, 65535, 65536, 3_000_001])
async def test_messages_of_any_size_come_back(size: int) -> None:
    async with asyncio.timeout(LIMIT_S), Served() as served:
        message = bytes(range(256)) * (size // 256) + bytes(size % 256)
        served.socket.send(message)
        assert await served.got.get() == message


async def test_fragments_pings_and_the_close_of_the_peer() -> None:
    async with asyncio.timeout(LIMIT_S), Served() as served:
        served.socket.send(b"parts")
        assert await served.got.get() == b"one two three"
        assert await served.got.get() == b"ponged"
        served.socket.send(b"bye")
        assert await served.socket.closed == (4321, "enough")


async def test_text_ends_the_connection() -> None:
    async with asyncio.timeout(LIMIT_S), Served() as served:
        served.socket.send(b"text")
        code, reason = await served.socket.closed
        assert code == 1002
        assert str(int(Opcode.TEXT)) in reason


async def test_a_peer_that_is_no_websocket() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 4\r\n\r\nbody")
        await _hang_up(writer)
        left.set()

    left = asyncio.Event()
    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1], "/", PROTOCOL, "token")
    with pytest.raises(HandshakeRefused) as caught:
        await reach(address)
    assert (caught.value.status, caught.value.body) == (401, b"body")
    server.close()
    await asyncio.wait_for(left.wait(), LIMIT_S)
    with pytest.raises(OSError, match=r"refused|failed"):
        await reach(address)


async def test_a_close_of_our_own_is_heard() -> None:
    async with asyncio.timeout(LIMIT_S), Served() as served:
        await served.socket.close()
        assert (await served.socket.closed)[0] == 1000
        served.socket.send(b"too late")


def test_masking_twice_changes_nothing() -> None:
    for size in (*range(20), BULK_BYTES - 1, BULK_BYTES, BULK_BYTES + 3):
        data = bytes(number % 251 for number in range(size))
        assert mask(mask(data, b"\x01\x02\x03\xff"), b"\x01\x02\x03\xff") == data
    assert mask(b"abc", b"\0\0\0\0") == b"abc"


async def test_the_peer_hears_why_we_leave() -> None:
    heard: asyncio.Future[tuple[int | None, str | None]] = asyncio.get_running_loop().create_future()

    async def listen(peer: ServerConnection) -> None:
        await peer.wait_closed()
        heard.set_result((peer.close_code, peer.close_reason))

    async with (
        asyncio.timeout(LIMIT_S),
        serve(listen, "127.0.0.1", 0, subprotocols=[PROTOCOL]) as server,
    ):
        port = next(iter(server.sockets)).getsockname()[1]
        socket = await reach(Address("127.0.0.1", port, "/", PROTOCOL, "token"))
        await socket.close(4400, "not registered")
        assert await heard == (4400, "not registered")


async def test_a_frame_above_the_limit_ends_the_connection_before_it_is_read() -> None:
    async with asyncio.timeout(LIMIT_S), Served() as served:
        line = await asyncio.to_thread(
            open_line, Way(f"http://127.0.0.1:{served.port}"), LIMIT_S, lambda: None
        )
        socket = await dial(served.address(), line, LIMIT_S, most_bytes=1000)
        got: asyncio.Queue[bytes] = asyncio.Queue()
        socket.on_message = got.put_nowait
        socket.send(bytes(1000))
        assert await got.get() == bytes(1000)
        socket.send(bytes(1001))
        code, reason = await socket.closed
        assert code == 1009
        assert "1001 bytes" in reason
        assert got.empty()


@pytest.mark.parametrize("make_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_peer_that_is_gone_at_once_leaves_no_number_behind_that_is_closed_again_later(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    number, line = ours.fileno(), Line(ours, True, -1)
    with asyncio.Runner(loop_factory=make_loop) as runner, pytest.raises(OSError, match=r".*"):
        runner.run(dial(Address("127.0.0.1", 1, "/", str(PROTOCOL), "token"), line, LIMIT_S))
    assert ours.fileno() == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


async def test_what_a_peer_says_together_with_its_answer_to_the_handshake_is_heard() -> None:
    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        key = next(
            line[18:].strip() for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key")
        )
        accept = base64.b64encode(hashlib.sha1(key + GUID, usedforsecurity=False).digest())
        answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        protocol = b"Sec-WebSocket-Protocol: %b\r\n" % PROTOCOL.encode()
        writer.write(answer + b"Sec-WebSocket-Accept: %b\r\n" % accept + protocol + b"\r\n\x82\x05hello")
        await reader.read()
        await _hang_up(writer)
        left.set()

    left = asyncio.Event()
    async with asyncio.timeout(LIMIT_S):
        server = await asyncio.start_server(hasty, "127.0.0.1", 0)
        socket = await reach(Address("127.0.0.1", server.sockets[0].getsockname()[1], "/", PROTOCOL, "token"))
        got: list[bytes] = []
        socket.on_message = got.append
        assert got == [b"hello"]
        socket.abort()
        server.close()
        await left.wait()


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    """Close the far end whole: a loop that ends before leaves its socket open."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@pytest.mark.parametrize("head", [b"", b"h", b"five!", b"1234567"])
@pytest.mark.parametrize("size", [0, 5, BULK_BYTES - 1, BULK_BYTES, BULK_BYTES + 3, 1_000_003])
async def test_a_message_of_two_parts_is_one(head: bytes, size: int) -> None:
    async with asyncio.timeout(LIMIT_S), Served() as served:
        rest = os.urandom(size)
        served.socket.send_parts(head, memoryview(rest))
        assert await served.got.get() == head + rest


@given(st.lists(st.tuples(st.integers(0, 300_000), st.integers(1, 200_000)), max_size=30))
def test_read_memory_gives_back_what_was_read(steps: list[tuple[int, int]]) -> None:
    """Read and take as it comes, also while somebody still holds the memory of the last read."""
    memory, source, read, taken = ReadMemory(), bytes(range(251)) * 20_000, 0, 0
    held: list[memoryview] = []
    for most, take in steps:
        room = memory.room()
        held.append(room)
        assert len(room) > 0
        count = min(most, len(room), len(source) - read)
        room[:count] = source[read : read + count]
        memory.end += count
        read += count
        memory.want(take)
        count = min(take, len(memory))
        assert memory.copy(memory.begin, memory.begin + count) == source[taken : taken + count]
        memory.begin += count
        taken += count
    assert len(memory) == read - taken
