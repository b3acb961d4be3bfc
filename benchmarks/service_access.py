"""Reaching what runs on a worker through the hub: requests by the proxy, bytes by a forward; the same asked directly
beside.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

from benchmarks.cluster import Cluster, cpu_seconds, running_cluster, wait_until
from benchmarks.figures import Bar, Figure, quantile
from benchmarks.progress import tell
from dray.client.reach.discovery import Target
from dray.client.reach.forwarding import open_streams
from dray.client.reach.sockets import dial_hub
from dray.wire.streams.frames import FORWARD_PATH, SUBPROTOCOL_STREAMS, ServiceTarget, write_target
from dray.wire.streams.joints import Opening
from dray.wire.streams.mux import Stream, Taker

TASK = "asked"
PACE_S = 1 / 200
AT_ONCE = 16
WAIT_S = 60.0
MIB = 1 << 20
BODY = bytes(100)
# Answers as fast as Python can, on a connection that stays unless it is asked to close it, as services do; and sends as
# many bytes as are asked for.
SERVICE = """
import asyncio, os
OK, CLOSE, HELLO = b"HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\n", b"Connection: close\\r\\n", b"\\r\\nhello"
async def send(writer, left):
    piece = bytes(1 << 16)
    while left > 0:
        writer.write(piece)
        await writer.drain()
        left -= len(piece)
async def answer(reader, writer):
    closing = False
    while not closing and (head := await reader.readuntil(b"\\r\\n\\r\\n")):
        closing = b"connection: close" in head.lower() or head.startswith(b"BYTES ")
        if head.startswith(b"BYTES "):
            await send(writer, int(head.split()[1]))
        else:
            if head.startswith(b"POST "):
                await reader.readexactly(100)
            writer.write(OK + CLOSE + HELLO if closing else OK + HELLO)
    writer.close()
async def serve(reader, writer):
    try:
        await answer(reader, writer)
    except (asyncio.IncompleteReadError, OSError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(os.environ["DRAY_PORT"]))
    await server.serve_forever()
asyncio.run(main())
"""


def measure(quick: bool) -> dict[str, Figure]:
    count, busy, size = (60, 200, 16 * MIB) if quick else (1000, 6000, 512 * MIB)
    with running_cluster(2) as cluster:
        port = _start(cluster)
        hub, agent = cluster.hub_pid, cluster.agent_pids[0]
        through, direct = asyncio.run(_paced(cluster, port, count))
        own, plainly = asyncio.run(_paced(cluster, port, count, BODY))
        added = through - direct
        before = cpu_seconds(hub), cpu_seconds(agent)
        rate = asyncio.run(_busy(cluster, busy))
        hub_s, agent_s = cpu_seconds(hub) - before[0], cpu_seconds(agent) - before[1]
        # By ticks of a hundredth: in a short run there may be none.
        hub_s, agent_s = max(hub_s, 0.01), max(agent_s, 0.01)
        carried, plain = asyncio.run(_bulk(cluster, port, size))
        cluster.request("POST", f"/jobs/{TASK}/cancel", {"grace_s": 0})
        wait_until(lambda: cluster.request("GET", f"/jobs/{TASK}")["state"] == "killed", WAIT_S, "its end")
    tell(
        f"added {added:.2f} ms; {busy / hub_s:.0f} requests a hub core-second; {carried:.0f} of {plain:.0f} MiB/s"
    )
    return {
        "added_p50": Figure(
            f"a request by the proxy at 200 a second ({count}), above the same asked directly, p50",
            "ms",
            added,
            bars=[Bar(at_most=1.5)],
            note=f"{through:.2f} ms by the proxy, {direct:.2f} ms directly",
        ),
        "added_own_p50": Figure(
            f"the same with a body of {len(BODY)} bytes, on a connection to the service of its own",
            "ms",
            own - plainly,
            note=f"{own:.2f} ms by the proxy, {plainly:.2f} ms directly, without a body",
        ),
        "per_core": Figure(
            f"requests by the proxy for one core of the hub ({busy}, {AT_ONCE} at once)",
            "requests/s",
            busy / hub_s,
            bars=[Bar(at_least=1500)],
            note=f"{rate:.0f}/s in all, with everything on this machine; {busy / agent_s:.0f} for a core of the agent",
        ),
        "throughput": Figure(
            f"{size // MIB} MiB by one stream: service, agent, hub, client",
            "MiB/s",
            carried,
            floors={"plain TCP by asyncio": plain},
            bars=[Bar(at_least=0.3, of="plain TCP by asyncio")],
        ),
    }


def _start(cluster: Cluster) -> int:
    spec = {"id": TASK, "command": [sys.executable, "-c", SERVICE], "ports": ["http"]}
    cluster.request("POST", "/jobs", spec)

    def there() -> int:
        attempts = cluster.request("GET", f"/jobs/{TASK}")["attempts"]
        return int((attempts[-1]["ports"] or {}).get("http", 0)) if attempts else 0

    wait_until(there, WAIT_S, "its port")
    port = there()
    wait_until(lambda: asyncio.run(_listens(port)), WAIT_S, "that it listens")
    return port


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def _ask(port: int, head: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    answer = await reader.read()
    writer.close()
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(answer[:200].decode())


def _head(cluster: Cluster, body: bytes = b"") -> tuple[int, bytes]:
    method, more = ("POST", [f"Content-Length: {len(body)}"]) if body else ("GET", [])
    lines = (f"{method} /proxy/{TASK}/ HTTP/1.1", "Host: localhost", f"Authorization: Bearer {cluster.token}")
    head = "\r\n".join([*lines, *more, "Connection: close", "", ""]).encode()
    return int(cluster.url.rpartition(":")[2]), head + body


async def _paced(cluster: Cluster, port: int, count: int, body: bytes = b"") -> tuple[float, float]:
    """By the proxy and directly, in turn and on a new connection each: the middle one of either."""
    hub_port, head = _head(cluster, body)
    ways: list[tuple[list[float], Callable[[], Awaitable[None]]]] = [
        ([], lambda: _ask(hub_port, head)),
        ([], lambda: _ask(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")),
    ]
    loop = asyncio.get_running_loop()
    for number in range(count + 20):
        due = loop.time() + PACE_S
        for spans, ask in ways:
            began = time.perf_counter()
            await ask()
            if number >= 20:
                spans.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(max(0.0, due - loop.time()))
    through, direct = (quantile(spans, 0.5) for spans, _ in ways)
    return through, direct


async def _busy(cluster: Cluster, count: int) -> float:
    hub_port, head = _head(cluster)
    left = iter(range(count))

    async def go_on() -> None:
        for _ in left:
            await _ask(hub_port, head)

    began = time.perf_counter()
    await asyncio.gather(*(go_on() for _ in range(AT_ONCE)))
    return count / (time.perf_counter() - began)


class _Counter(Taker):
    """Takes bytes as fast as they come, until there are no more."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self.size = stream, 0
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def data(self, data: bytes) -> None:
        self.size += len(data)
        self._stream.credit(len(data))

    def eof(self) -> None:
        self._stream.finish()
        if not self.over.done():
            self.over.set_result("")

    def ended(self, reason: str) -> None:
        if not self.over.done():
            self.over.set_result(reason)


async def _bulk(cluster: Cluster, port: int, size: int) -> tuple[float, float]:
    """MiB/s by a forward's stream, and by a connection of this machine."""
    ask = b"BYTES %d\r\n\r\n" % size
    hub = await dial_hub(Target(cluster.url, cluster.token, "", None), FORWARD_PATH, SUBPROTOCOL_STREAMS)
    try:
        opening = Opening()
        stream = open_streams(hub).open(write_target(ServiceTarget(TASK)), opening)
        if fault := await opening.answer:
            raise RuntimeError(fault)
        counter = _Counter(stream)
        opening.hand_over(stream, counter)
        began = time.perf_counter()
        stream.write(ask)
        if (fault := await counter.over) or counter.size != size:
            raise RuntimeError(f"{counter.size} bytes came: {fault}")
        carried = size / MIB / (time.perf_counter() - began)
    finally:
        await hub.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.perf_counter()
    writer.write(ask)
    left = size
    while left and (data := await reader.read(1 << 16)):
        left -= len(data)
    plain = size / MIB / (time.perf_counter() - began)
    writer.close()
    return carried, plain
