"""Both ends of a hub that calls go through, for tests: a raw client socket and a worker that answers as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection, connect

from dray.testing import AsyncMockWorker, RunningHub, make_slots
from dray.wire.messages import client as wire

DEADLINE_S = 60.0
FEATURES = ("list", "job_started", "job_log", "resend", "calls", "yield")
ARRAY = {"first": 0, "last": -1, "open": True}
SPEC = {"function": b"DF1 opaque", "array": ARRAY}
_ids = itertools.count()


def new_job(name: str = "calls") -> str:
    return f"{name}-{next(_ids)}"


class Client:
    """A socket of the channel that sends what it is told and keeps what it passes over."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.number = 0
        self.heard: list[wire.Reply] = []

    async def send(self, kind: str, payload: Any = None) -> int:
        self.number += 1
        await self.connection.send(wire.write_message(kind, self.number, payload))
        return self.number

    async def recv(self, number: int | str | None = None, kind: str = "") -> wire.Reply:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for place, reply in enumerate(self.heard):
                    if (kind and reply.type == kind) or (not kind and reply.id == number):
                        return self.heard.pop(place)
                frame = await self.connection.recv()
                assert isinstance(frame, bytes)
                self.heard += wire.read_replies(frame)

    async def ask(self, kind: str, payload: Any = None) -> wire.Reply:
        return await self.recv(await self.send(kind, payload))

    async def add(self, job: str, args: Sequence[Any], first: int = 0, **more: Any) -> Any:
        """Add calls; the spec goes along with the first ones."""
        spec = {"spec": SPEC} if not first else {}
        reply = await self.ask("calls", {"job": job, "first": first, "args": list(args), **spec, **more})
        assert reply.type == wire.ANSWER, reply.error
        return reply.payload

    async def refused(self, kind: str, payload: Any) -> Any:
        reply = await self.ask(kind, payload)
        assert reply.type == wire.ERROR, reply.payload
        return reply.error

    async def results(self, job: str, count: int) -> dict[int, tuple[str, Any]]:
        """Pushed results of a job until there are `count` of them."""
        found: dict[int, tuple[str, Any]] = {}
        while len(found) < count:
            pushed = (await self.recv(kind=wire.RESULTS)).payload
            assert pushed["job"] == job
            found |= rows(pushed)
        return found

    async def collect(self, job: str, first: int = 0, limit: int = 1000) -> Any:
        reply = await self.ask("collect", {"job": job, "first": first, "limit": limit})
        assert reply.type == wire.ANSWER, reply.error
        return reply.payload


def rows(pushed: dict[str, Any]) -> dict[int, tuple[str, Any]]:
    """Columns as rows: state and value by index."""
    states = pushed["state"]
    if isinstance(states, str):
        states = [states] * len(pushed["index"])
    return dict(zip(pushed["index"], zip(states, pushed["value"], strict=True), strict=True))


@contextlib.asynccontextmanager
async def client_of(hub: RunningHub, token: str = "") -> AsyncIterator[Client]:
    async with connect(
        "ws" + hub.url.removeprefix("http") + wire.CLIENT_PATH,
        additional_headers={"Authorization": f"Bearer {token or hub.token}"},
        subprotocols=[websockets.Subprotocol(wire.SUBPROTOCOL_CLIENT)],
        compression=None,
        max_size=None,
        proxy=None,
        # Whoever leaves with pushed results unread does not read the answer to its goodbye either.
        close_timeout=0.2,
    ) as connection:
        yield Client(connection)


class Lanes:
    """A worker with lanes: takes calls as they come, and ends them as it is told."""

    def __init__(self, worker: AsyncMockWorker) -> None:
        self.worker = worker
        self.calls: dict[str, dict[int, tuple[int, Any]]] = {}
        self.jobs: dict[str, str] = {}
        self.specs: dict[str, Any] = {}
        self.messages: list[dict[str, Any]] = []
        self.seq = 0

    async def take(self, count: int = 1) -> None:
        """Wait until `count` calls are here that have not been ended."""
        while sum(map(len, self.calls.values())) < count:
            self._note((await self.worker.recv("calls_assign", DEADLINE_S)).payload)

    def _note(self, payload: dict[str, Any]) -> None:
        self.messages.append(payload)
        lane = payload["lane"]
        self.jobs[lane] = payload["job"]
        if payload.get("spec"):
            self.specs[lane] = payload["spec"]
        held = self.calls.setdefault(lane, {})
        for index, no, args in zip(payload["index"], payload["no"], payload["args"], strict=True):
            held[index] = (no, args)

    def frame(
        self, lane: str, indices: Sequence[int] = (), state: Any = "succeeded", **more: Any
    ) -> dict[str, Any]:
        """The result of calls of a lane, all of them by default; their value is their argument, turned round."""
        self.seq += 1
        held = self.calls[lane]
        chosen = list(indices or held)
        taken = [held.pop(index) for index in chosen]
        return {
            "seq": self.seq,
            "lane": lane,
            "job": self.jobs[lane],
            "index": chosen,
            "no": [no for no, _ in taken],
            "state": state,
            "value": [args[::-1] if isinstance(args, bytes) else args for _, args in taken],
            "wall_us": [100] * len(chosen),
            **more,
        }

    async def end(self, count: int = 0, **more: Any) -> None:
        """End what is here, lane by lane; with a count wait until so many calls are here first."""
        await self.take(count or 1)
        for lane in [lane for lane, held in self.calls.items() if held]:
            await self.worker.send("calls_result", self.frame(lane, **more))

    async def serve(self, count: int) -> int:
        """Take and end calls until `count` of them have ended."""
        ended = 0
        while ended < count:
            await self.take()
            here = sum(map(len, self.calls.values()))
            await self.end(here)
            ended += here
        return ended

    async def acked(self, seq: int) -> None:
        """Wait for the ack of a frame."""
        while seq not in (await self.worker.recv("calls_ack", DEADLINE_S)).payload["seq"]:
            pass


@contextlib.asynccontextmanager
async def lanes_of(
    hub: RunningHub, name: str = "w", slots: int = 2, token: str = "", **fields: Any
) -> AsyncIterator[Lanes]:
    worker = AsyncMockWorker(
        hub.url, token or hub.token, name, slots=make_slots(slots), features=FEATURES, msgpack=True
    )
    async with worker:
        await worker.register(**fields)
        await worker.ready(credits=slots)
        yield Lanes(worker)
