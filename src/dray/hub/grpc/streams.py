"""Methods whose answers go on: watches, the feed, output, and submits one after another.

What comes between two messages leaves as one. Each stream is held under its caller's token and ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

from dray.core.model.ids import is_id
from dray.errors import DrayError, InvalidInput, NotReady, SessionEnded, Unauthenticated
from dray.hub.access.caller import Caller
from dray.hub.access.tokens import Tokens
from dray.hub.answers.service import Document, LogRequest
from dray.hub.documents.public_feed import FeedEvent
from dray.hub.grpc.asking import (
    read_after,
    read_choice,
    read_id,
    read_key,
    read_spec,
    read_task,
    read_whole,
    wrong,
)
from dray.hub.grpc.gathering import Gathering
from dray.hub.grpc.spelling import to_message
from dray.hub.grpc.statuses import status_of
from dray.hub.operations import asks
from dray.hub.operations.operation import Desk, Operation
from dray.hub.operations.table import OPERATIONS
from dray.hub.operations.workloads import ListResults
from dray.hub.workers.sessions import Sessions
from dray.v1 import resources_pb2, scheduler_pb2
from dray.wire.messages import client as wire

MAX_WATCHED = 1000
MAX_TYPES = 64
KEPT_EVENTS = 4096
IN_FLIGHT = 64
MOST_RESULTS, RESULTS_WAIT_S = 1000, 60.0
STREAMS_OF_LOGS = ("stdout", "stderr", "both")


class Surroundings:
    """What streams work with, and which are open."""

    def __init__(self, desk: Desk, tokens: Tokens, sessions: Sessions) -> None:
        self.desk, self._tokens, self.sessions = desk, tokens, sessions
        self._open: set[Gathering[Any]] = set()
        # Events as messages, by their ids: all who follow the feed are told the same ones.
        self._events: dict[str, Any] = {}

    def close(self) -> None:
        """End all of them: the hub is about to stop."""
        for gathering in list(self._open):
            gathering.fail(NotReady("the hub is stopping: ask again in a second"))

    def spell(self, event: FeedEvent) -> Any:
        """An event as a message, made once for all readers."""
        made = self._events.get(event.id)
        if made is None:
            if len(self._events) >= KEPT_EVENTS:
                self._events.clear()
            made = self._events[event.id] = to_message(resources_pb2.Event, _spell_event(event))
        return made

    def check_live(self, caller: Caller) -> None:
        """Refuse to go on for a token that has ended."""
        self._tokens.check_live(caller.token_id)

    @contextlib.contextmanager
    def kept(self, caller: Caller, gathering: Gathering[Any]) -> Iterator[None]:
        """Keep a stream open for as long as its token is good and the hub goes on."""

        def end(why: str) -> None:
            gathering.fail(Unauthenticated(f"{why}: the stream was ended"), at_once=True)

        self._open.add(gathering)
        try:
            with self._tokens.hold(caller.token_id, end):
                yield
        finally:
            self._open.discard(gathering)


Serve = Callable[[Surroundings, Caller, AsyncIterator[Any]], AsyncIterator[Any]]


class StreamMethod(NamedTuple):
    """One row. `serve` gives documents of the response, or whole messages."""

    name: str
    operation: Operation
    serve: Serve
    takes_many: bool = False


async def _first(requests: AsyncIterator[Any]) -> Any:
    async for request in requests:
        return request
    raise InvalidInput("the call ended before its request came")


@contextlib.asynccontextmanager
async def _filling(gathering: Gathering[Any], source: AsyncIterator[Any]) -> AsyncIterator[None]:
    """Have a source run beside whoever reads what it gives."""
    filling = asyncio.ensure_future(gathering.fill(source))
    try:
        yield
    finally:
        filling.cancel()
        await asyncio.wait([filling])


# --- watches ----------------------------------------------------------------------------------------------------------


class _Watcher:
    """Takes the rows of one watch; a newer row of a job is told beside the older one."""

    def __init__(self, caller: Caller, gathering: Gathering[Document]) -> None:
        self.caller, self.order = caller, asyncio.Lock()
        self._gathering = gathering
        self.left: set[str] = set()

    @property
    def listener(self) -> Any:
        raise NotImplementedError("a watch has no calls")

    def tell(self, job_id: str, row: Document, last: bool) -> None:
        self._gathering.push(row)
        if last:
            self.left.discard(job_id)
            if not self.left:
                self._gathering.end()


async def _watch_jobs(
    around: Surroundings, caller: Caller, requests: AsyncIterator[Any]
) -> AsyncIterator[Any]:
    ids = list(dict.fromkeys((await _first(requests)).jobs))
    if not ids or len(ids) > MAX_WATCHED:
        raise wrong("jobs", f"must be 1 to {MAX_WATCHED} ids, got {len(ids)}")
    if strange := next((job for job in ids if not is_id(job)), None):
        raise wrong("jobs", f"{strange[:64]!r} is no id of a job")
    gathering: Gathering[Document] = Gathering()
    watcher = _Watcher(caller, gathering)
    watcher.left = set(ids)
    watch, unwatch = OPERATIONS["watch_jobs"].handler, OPERATIONS["unwatch_jobs"].handler
    with around.kept(caller, gathering):
        try:
            seen = await watch(around.desk, watcher, wire.Watch(ids))
            shown = [_spell_row(row) for row in seen["jobs"]]
            turns = {row["id"]: row["turn"] for row in seen["jobs"]}
            ended = {row["id"] for row in seen["jobs"] if "document" in row}
            yield {"jobs": shown, "missing": seen["missing"]}
            watcher.left -= {*ended, *seen["missing"]}
            if not watcher.left:
                return
            async for rows in gathering.lists():
                # What the very turn of the first answer pushed is in that answer.
                yield {"jobs": [_spell_row(row) for row in rows if row["turn"] > turns.get(row["id"], -1)]}
        finally:
            await unwatch(around.desk, watcher, wire.Unwatch(ids))


def _spell_row(row: Document) -> Document:
    value = row.get("value")
    return {**row, "value": value if isinstance(value, bytes) else None}


async def _watch_events(
    around: Surroundings, caller: Caller, requests: AsyncIterator[Any]
) -> AsyncIterator[Any]:

    request = await _first(requests)
    after, types = read_after(request), frozenset(request.types)
    if len(types) > MAX_TYPES:
        raise wrong("types", f"holds {len(types)} types, the limit is {MAX_TYPES}")
    operation = OPERATIONS["stream_events"]
    feed = await operation.handler(around.desk, caller, asks.FollowEvents(after))
    gathering: Gathering[FeedEvent] = Gathering()
    with around.kept(caller, gathering):
        async with _filling(gathering, feed):
            async for events in gathering.lists():
                told = (around.spell(event) for event in events if not types or event.type in types)
                yield scheduler_pb2.WatchEventsResponse(events=told)


def _spell_event(event: FeedEvent) -> Document:
    data = dict(event.data)
    named = {name: data.pop(name, None) for name in ("at", "job_id", "task_id", "worker")}
    data.pop("type", None)
    return {"id": event.id, "type": event.type, **named, "data": data}


async def _read_logs(
    around: Surroundings, caller: Caller, requests: AsyncIterator[Any]
) -> AsyncIterator[Any]:
    request = await _first(requests)
    job_id, task = read_task(request)
    ask = LogRequest(
        job_id,
        task,
        read_whole(request, "attempt", 10**9) if request.HasField("attempt") else None,
        read_choice(request, "stream", STREAMS_OF_LOGS, "both"),
        request.follow,
        read_whole(request, "tail", 10**7) if request.HasField("tail") else None,
        read_whole(request, "skip", 2**53),
    )
    pieces = await OPERATIONS["read_logs"].handler(around.desk, caller, ask)
    gathering: Gathering[bytes] = Gathering(len)
    with around.kept(caller, gathering):
        async with _filling(gathering, pieces):
            async for some in gathering.lists():
                yield {"data": b"".join(some)}


async def _stream_results(
    around: Surroundings, caller: Caller, requests: AsyncIterator[Any]
) -> AsyncIterator[Any]:
    """What has ended of a workload, as it comes: pages of it, each from where the last one ended."""
    request = await _first(requests)
    name, position = read_id(request, "workload"), read_after(request)
    handler = OPERATIONS["list_results"].handler

    async def pages() -> AsyncIterator[Document]:
        after, done = position, False
        while not done:
            page = await handler(around.desk, caller, ListResults(name, after, MOST_RESULTS, RESULTS_WAIT_S))
            after, done = page["next"], page["done"]
            if page["results"] or done:
                yield page

    gathering: Gathering[Document] = Gathering()
    with around.kept(caller, gathering):
        async with _filling(gathering, pages()):
            async for found in gathering.lists():
                position = found[-1]["next"] if found else position
                results = [line for page in found for line in page["results"]]
                yield {"results": results, "next": position, "done": bool(found) and found[-1]["done"]}


# --- submits ----------------------------------------------------------------------------------------------------------


class _Submitter:
    """Stands for one stream of submits: what it sends goes in by its order."""

    def __init__(self, caller: Caller) -> None:
        self.caller, self.order = caller, asyncio.Lock()

    @property
    def listener(self) -> Any:
        raise NotImplementedError("a stream of submits has no calls")

    def tell(self, job_id: str, row: Document, last: bool) -> None:
        raise NotImplementedError("nobody watches by it")


async def _submit_stream(
    around: Surroundings, caller: Caller, requests: AsyncIterator[Any]
) -> AsyncIterator[Any]:
    gathering: Gathering[Document] = Gathering()
    session, room, going = _Submitter(caller), asyncio.Semaphore(IN_FLIGHT), set[asyncio.Future[None]]()
    handler = OPERATIONS["submit_columns"].handler

    async def submit(request: Any) -> None:
        try:
            if not request.jobs:
                raise wrong("jobs", "is empty: give at least one job")
            ask = asks.SubmitJobs([read_spec(job) for job in request.jobs], read_key(request))
            done = await handler(around.desk, session, ask)
            gathering.push({"number": request.number, "ids": done["ids"], "created": done["created"]})
        except DrayError as error:
            gathering.push({"number": request.number, "status": status_of(error).SerializeToString()})
        except Exception as error:  # noqa: BLE001 - ends the stream, whose task reports it
            gathering.fail(error)
        finally:
            room.release()

    async def read() -> None:
        try:
            async for request in requests:
                await room.acquire()
                one = asyncio.ensure_future(submit(request))
                going.add(one)
                one.add_done_callback(going.discard)
            while going:
                await asyncio.wait(going)
            gathering.end()
        except Exception as error:  # noqa: BLE001 - as above
            gathering.fail(error)

    reading = asyncio.ensure_future(read())
    try:
        with around.kept(caller, gathering):
            async for answers in gathering.lists():
                for answer in answers:
                    yield answer
    finally:
        for one in (reading, *going):
            one.cancel()
        await asyncio.wait([reading, *going])


# --- workers ----------------------------------------------------------------------------------------------------------

GOODBYE, BROKEN = 1000, 1006


async def _worker_session(
    around: Surroundings, caller: Caller, requests: AsyncIterator[Any]
) -> AsyncIterator[Any]:
    """The worker protocol itself, frame by frame; whoever ends his side says goodbye."""
    gathering: Gathering[bytes] = Gathering(len)
    sessions, code = around.sessions, BROKEN

    async def send(message: Any) -> None:
        if message["type"] == "websocket.send":
            await gathering.put(message["bytes"])
        else:
            gathering.fail(SessionEnded(f"the session was closed: {message['reason'] or message['code']}"))

    session = sessions.begin_sent(caller, send)

    async def read() -> None:
        nonlocal code
        try:
            async for request in requests:
                if session.closing is None and not sessions.take(session, request.envelope):
                    await sessions.take_slowly(session, request.envelope)
            code = GOODBYE
            gathering.end()
        except Exception as fault:  # noqa: BLE001 - raised again in the task that answers
            gathering.fail(fault)

    going = [asyncio.ensure_future(session.pump()), asyncio.ensure_future(read())]
    try:
        with around.kept(caller, gathering):
            async for frames in gathering.lists():
                for frame in frames:
                    yield {"envelope": frame}
    finally:
        for one in going:
            one.cancel()
        await asyncio.wait(going)
        sessions.leave([(session, code)])


STREAMS: tuple[StreamMethod, ...] = (
    StreamMethod("SubmitStream", OPERATIONS["submit_columns"], _submit_stream, takes_many=True),
    StreamMethod("WatchJobs", OPERATIONS["watch_jobs"], _watch_jobs),
    StreamMethod("WatchEvents", OPERATIONS["stream_events"], _watch_events),
    StreamMethod("StreamResults", OPERATIONS["list_results"], _stream_results),
    StreamMethod("ReadLogs", OPERATIONS["read_logs"], _read_logs),
    StreamMethod("WorkerSession", OPERATIONS["register_worker"], _worker_session, takes_many=True),
)
