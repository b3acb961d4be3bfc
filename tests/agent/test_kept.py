"""Connections to services that are used again: for whom, after what, and until when."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from dray.agent.decide.attempts import Running
from dray.agent.tunnel import kept
from dray.agent.tunnel.ports import Ports
from dray.agent.tunnel.tunnels import Tunnels
from dray.wire.streams.frames import PortTarget, write_target
from dray.wire.streams.mux import Mux, Stream, Taker

WAIT_S = 60.0


class Ear(Taker):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.got, self.log = b"", ""

    def data(self, data: bytes) -> None:
        self.got += data

    def eof(self) -> None:
        self.log += " eof"

    def ended(self, reason: str) -> None:
        self.log += f" ended {reason}"


class Bench:
    """Hub and agent with nothing between them, and a service whose connections the test holds in its hands."""

    def __init__(self) -> None:
        self.peers: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.attempts = {
            uid: Running(uid=uid, task_id="web", pool="service", phase="running", ports=[self.port])
            for uid in ("1-1", "1-2")
        }
        self.ports = Ports(lambda: self.attempts)
        tunnels = Tunnels(lambda: None, {PortTarget: self.ports.open})
        self.hub = Mux(lambda head, rest: self.agent.take(head + rest), lambda: True, pytest.fail)
        self.agent = Mux(
            lambda head, rest: self.hub.take(head + rest), lambda: True, pytest.fail, tunnels._accept
        )

    def send(self, request: bytes, keep_for: str = "ada", attempt: str = "1-1") -> tuple[Stream, Ear]:
        """A request as the hub sends it: the stream and its first bytes at once."""
        ear = Ear()
        stream = self.hub.open(write_target(PortTarget(attempt, self.port, keep_for)), ear)
        stream.write(request)
        return stream, ear

    async def accept(self) -> socket.socket:
        peer, _ = await asyncio.get_running_loop().sock_accept(self.listener)
        peer.setblocking(False)
        self.peers.append(peer)
        return peer

    async def hear(self, peer: socket.socket) -> bytes:
        """What comes next; nothing at the end, however that is."""
        try:
            return await asyncio.get_running_loop().sock_recv(peer, 1 << 16)
        except ConnectionResetError:
            return b""

    async def exchange(self, keep_for: str = "ada", attempt: str = "1-1") -> socket.socket:
        """A request on a connection of its own, answered and kept: that connection, as the service has it."""
        stream, ear = self.send(b"ask", keep_for, attempt)
        peer = await self.accept()
        assert await self.hear(peer) == b"ask"
        peer.send(b"told")
        await until(lambda: ear.got == b"told")
        assert stream.keep()
        return peer

    def nobody_connects(self) -> bool:
        try:
            self.listener.accept()
        except BlockingIOError:
            return True
        return False


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - what is looked at tells nobody
            await asyncio.sleep(0.001)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    made.agent.close("the test is over")
    for sock in (made.listener, *made.peers):
        sock.close()
    await until(lambda: len(made.ports.kept) == 0)


async def test_a_connection_serves_whom_it_was_kept_for_and_nobody_else(bench: Bench) -> None:
    peer = await bench.exchange()
    assert len(bench.ports.kept) == 1
    _, other = bench.send(b"ben's", "ben")
    theirs = await bench.accept()
    assert await bench.hear(theirs) == b"ben's"
    bench.send(b"another attempt's", attempt="1-2")
    assert await bench.hear(await bench.accept()) == b"another attempt's"
    stream, ear = bench.send(b"again")
    assert stream.opened
    assert await bench.hear(peer) == b"again"
    assert bench.nobody_connects()
    peer.send(b"told")
    theirs.send(b"ben's own")
    await until(lambda: ear.got == b"told" and other.got == b"ben's own")
    bench.send(b"while that one is in use")
    assert await bench.hear(await bench.accept()) == b"while that one is in use"


@pytest.mark.parametrize("doing", ["closes", "aborts", "shuts down", "speaks"])
async def test_what_the_service_did_to_an_idle_connection_is_seen_before_anything_is_sent(
    bench: Bench, doing: str
) -> None:
    peer = await bench.exchange()
    if doing == "closes":
        peer.close()
    elif doing == "aborts":
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
    elif doing == "shuts down":
        peer.shutdown(socket.SHUT_WR)
    else:
        peer.send(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    # In the same step of the loop: nobody has told the agent but the system.
    _, ear = bench.send(b"again")
    fresh = await bench.accept()
    assert await bench.hear(fresh) == b"again"
    fresh.send(b"told")
    await until(lambda: ear.got == b"told")
    if doing in ("shuts down", "speaks"):
        assert await bench.hear(peer) == b"", "it got nothing more"


async def test_what_happens_to_an_idle_connection_ends_it(bench: Bench) -> None:
    spoke, closed = await bench.exchange(), await bench.exchange("ben")
    spoke.send(b"unasked")
    closed.close()
    await until(lambda: len(bench.ports.kept) == 0)


async def test_nothing_is_kept_of_which_the_hub_has_not_read_all(bench: Bench) -> None:
    stream, ear = bench.send(b"ask")
    peer = await bench.accept()
    peer.send(b"told and more")
    await until(lambda: bool(ear.got))
    # The hub has read less than the service has said.
    stream._read -= 1
    assert stream.keep()
    assert len(bench.ports.kept) == 0
    assert await bench.hear(peer) == b"ask"
    assert await bench.hear(peer) == b""


async def test_nothing_is_kept_after_an_end_of_either_side(bench: Bench) -> None:
    stream, ear = bench.send(b"ask")
    peer = await bench.accept()
    peer.send(b"told")
    peer.shutdown(socket.SHUT_WR)
    await until(lambda: "eof" in ear.log)
    assert not stream.keep()
    stream.finish()
    assert await bench.hear(peer) == b"ask"
    assert await bench.hear(peer) == b""
    stream, ear = bench.send(b"ask")
    peer = await bench.accept()
    stream.finish()
    assert not stream.keep()
    stream.reset("gone")
    assert len(bench.ports.kept) == 0


async def test_idle_ones_are_closed_after_a_while_and_with_their_attempt(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await bench.exchange()
    bench.attempts["1-1"].phase = "stopping"
    assert await bench.hear(peer) == b"", "long before its time"
    bench.attempts["1-1"].phase = "running"
    monkeypatch.setattr(kept, "IDLE_S", 0.1)
    peer = await bench.exchange()
    assert await bench.hear(peer) == b""
    assert len(bench.ports.kept) == 0
    _, ear = bench.send(b"ask")
    fresh = await bench.accept()
    assert await bench.hear(fresh) == b"ask"
    fresh.send(b"told")
    await until(lambda: ear.got == b"told")


async def test_no_more_are_kept_than_a_bound(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "IDLE_S", WAIT_S)
    monkeypatch.setattr(kept, "MOST_OF_PORT", 2)
    monkeypatch.setattr(kept, "MOST", 3)
    peers = [await bench.exchange(f"user {number}") for number in range(3)]
    assert len(bench.ports.kept) == 2
    assert await bench.hear(peers[2]) == b""
    peers += [await bench.exchange(f"user {number}", "1-2") for number in range(2)]
    assert len(bench.ports.kept) == 3


async def test_a_service_that_serves_one_at_a_time_is_not_kept_from_the_next(bench: Bench) -> None:
    peer = await bench.exchange()
    bench.send(b"ben's", "ben")
    waiting = await bench.accept()
    # The service would read its first connection for as long as that stands, and ben waits.
    assert await bench.hear(peer) == b"", "it is closed for his sake"
    waiting.send(b"told")
    again, ear = bench.send(b"ask")
    fresh = await bench.accept()
    fresh.send(b"told")
    await until(lambda: ear.got == b"told")
    assert again.keep()
    assert len(bench.ports.kept) == 0, "and none is kept there for a while"


async def test_a_connection_that_cannot_be_made_is_refused_with_nothing_sent(bench: Bench) -> None:
    await bench.exchange()
    (idle,) = next(iter(bench.ports.kept._idle.values()))
    bench.listener.close()
    idle.drop()
    stream, ear = bench.send(b"ask")
    await until(lambda: bool(ear.log))
    assert stream.refused
    assert not bench.ports.kept._waiting
