"""What can be reached on a worker through its tunnel: a port leased to the attempt that is named, and no other."""

from __future__ import annotations

import asyncio
import socket

import pytest

from dray.agent.decide.attempts import Running
from dray.agent.tunnel.ports import Ports
from dray.agent.tunnel.tunnels import Tunnels
from dray.wire.streams.frames import PortTarget, ServiceTarget, Target, write_target
from dray.wire.streams.joints import Opening
from dray.wire.streams.mux import Mux


class Tunnel:
    """Hub and agent with nothing between them."""

    def __init__(self, *attempts: Running) -> None:
        ports = Ports(lambda: {attempt.uid: attempt for attempt in attempts})
        tunnels = Tunnels(lambda: None, {PortTarget: ports.open})
        self.hub = Mux(lambda head, rest: self._carry(self.agent, head + rest), lambda: True, pytest.fail)
        self.agent = Mux(
            lambda head, rest: self._carry(self.hub, head + rest), lambda: True, pytest.fail, tunnels._accept
        )

    def _carry(self, to: Mux, frame: bytes) -> None:
        asyncio.get_running_loop().call_soon(to.take, frame)

    async def ask(self, target: Target) -> str:
        """Open a stream; why it does not stand."""
        opening = Opening()
        stream = self.hub.open(write_target(target), opening)
        fault = await opening.answer
        stream.reset("seen")
        return fault


async def test_only_a_leased_port_of_exactly_that_running_attempt_is_opened() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    runs = Running(uid="1-1", task_id="web", pool="service", phase="running", ports=[port])
    other = Running(uid="1-2", task_id="other", pool="service", phase="running", ports=[port - 1])
    starts = Running(uid="1-3", task_id="early", pool="service", phase="accepted", ports=[port])
    async with asyncio.timeout(60), server:
        tunnel = Tunnel(runs, other, starts)
        assert await tunnel.ask(PortTarget("1-1", port)) == ""
        assert "was not given to other" in await tunnel.ask(PortTarget("1-2", port))
        assert "does not run on this worker" in await tunnel.ask(PortTarget("1-3", port))
        assert "does not run on this worker" in await tunnel.ask(PortTarget("1-9", port))
        assert "opens nothing of that kind" in await tunnel.ask(ServiceTarget("web"))
        strange = Opening()
        tunnel.hub.open(b'{"type": "of a later version"}', strange)
        assert "nothing that can be opened here" in await strange.answer
        other.ports.append(free_port())
        assert "nothing listens on port" in await tunnel.ask(PortTarget("1-2", other.ports[-1]))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
