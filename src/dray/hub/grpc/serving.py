"""A call from its bytes to the bytes of its answer, whichever way both travel: the walk that `hub.http.api` has too.

Who asks is known before anything of a request is read. Knows no sockets: a call that a gateway passed on comes in here
as well. The surprising rule: a request that would change something and has fields which this hub does not know is
refused, since what they ask for would not be done; one that only reads may have them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, Never, Protocol

import msgspec
from google.protobuf.message import DecodeError, Message

from dray.errors import DrayError, InvalidInput, NotFound
from dray.hub.access.caller import Caller
from dray.hub.access.request_budgets import Toll
from dray.hub.access.tokens import SCOPES
from dray.hub.answers.refusals import internal_error
from dray.hub.grpc.methods import METHODS, Kinds, Method, kinds_of
from dray.hub.grpc.spelling import to_message
from dray.hub.grpc.statuses import Refusal, refusal_of
from dray.hub.grpc.streams import STREAMS, StreamMethod, Surroundings
from dray.hub.grpc.workloads import WORKLOADS
from dray.hub.http.api import HttpApi
from dray.hub.http.replies import status_of
from dray.hub.operations.operation import Operation

# Where the caller gives no deadline, and the longest that one call may wait for something to happen.
UNARY_S, MOST_WAIT_S, SPARE_S = 30.0, 60.0, 0.1
log = logging.getLogger("dray.hub.grpc")


class Call(Protocol):
    """One call as it came: who asks, from where, and how long he waits (None: he does not say)."""

    @property
    def authorization(self) -> str | None: ...
    @property
    def address(self) -> str: ...
    def left_s(self) -> float | None: ...


class Refused(Exception):
    """A call ends with a status."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Known(NamedTuple):
    """A method with its types."""

    row: Method | StreamMethod
    kinds: Kinds


_ROWS: list[Method | StreamMethod] = [*METHODS, *WORKLOADS, *STREAMS]
KNOWN: dict[str, Known] = {row.name: Known(row, kinds_of(row.name)) for row in _ROWS}


class GrpcApi:
    """One hub's answers over gRPC; what it shares with HTTP (gate, budgets, reports) is that of `api`."""

    def __init__(self, api: HttpApi, around: Surroundings) -> None:
        self._api, self._around = api, around

    def close(self) -> None:
        """Let nobody wait any longer: the hub is about to stop."""
        self._around.close()

    async def answer(self, name: str, raw: bytes, call: Call) -> bytes:
        """Answer a call that has one answer; raises `Refused`."""
        known = _find(name)
        assert isinstance(known.row, Method)
        request: Any = None
        try:
            caller = self._admit(known.row.operation, call)
            request = _read(known.kinds, raw)
            answer = await self._perform(known.row, known.kinds, request, caller, call.left_s())
        except TimeoutError:
            raise Refused(_late()) from None
        except DrayError as error:
            raise self._refuse(name, error, _about(known.row, request)) from None
        except Exception as error:
            log.exception("%s failed", name)
            raise self._fail(name, error) from None
        self._api.count(f"grpc.{name}", 200)
        return answer

    async def stream(self, name: str, requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        """Answer a call whose requests or answers come one after another; raises `Refused`."""
        known = _find(name)
        row = known.row
        assert isinstance(row, StreamMethod)
        try:
            caller = self._admit(row.operation, call)
            toll = Toll(self._api.budgets, caller, row.operation.weight, streams=True)
            await toll.enter()
            try:
                read = (_read(known.kinds, raw) async for raw in requests)
                async for document in row.serve(self._around, caller, read):
                    self._around.check_live(caller)
                    message = (
                        document
                        if isinstance(document, Message)
                        else to_message(known.kinds.response, document)
                    )
                    yield message.SerializeToString()
            finally:
                toll.leave(0)
        except DrayError as error:
            raise self._refuse(name, error, "") from None
        except Refused:
            raise
        except Exception as error:
            log.exception("%s failed", name)
            raise self._fail(name, error) from None
        self._api.count(f"grpc.{name}", 200)

    # --- the walk of one call -----------------------------------------------------------------------------------------

    def _admit(self, operation: Operation, call: Call) -> Caller:
        """Take a call through the gate: nothing of its request is read before."""
        given = call.authorization
        headers = {} if given is None else {b"authorization": given.encode("latin-1", "replace")}
        caller = self._api.gate.check_caller({"client": (call.address,)}, headers, operation.scopes or SCOPES)
        if operation.needs_ready:
            self._api.check_ready()
        return caller

    async def _perform(
        self, row: Method, kinds: Kinds, request: Any, caller: Caller, left_s: float | None
    ) -> bytes:
        ask, operation = row.read(request), row.operation
        wait_s = (
            min(getattr(ask, row.waits), MOST_WAIT_S, (left_s or MOST_WAIT_S) - SPARE_S) if row.waits else 0
        )
        waits, rests = wait_s > 0, wait_s > 0 and row.waits == "wait_s"
        toll = Toll(self._api.budgets, caller, operation.weight, bool(operation.streams), rests, waits)
        await toll.enter()
        raw: bytes = b""
        try:
            if waits:
                answer = await self._wait(row, ask, caller, wait_s)
            elif left_s is not None:
                # The server ends what takes longer than its caller waits.
                answer = await operation.handler(self._around.desk, caller, ask)
            else:
                async with asyncio.timeout(UNARY_S):
                    answer = await operation.handler(self._around.desk, caller, ask)
            if row.finish is not None:
                answer = await row.finish(answer)
            raw = to_message(kinds.response, row.write(answer, request)).SerializeToString()
            return raw
        finally:
            toll.leave(len(raw))

    async def _wait(self, row: Method, ask: Any, caller: Caller, wait_s: float) -> Any:
        """Wait for an answer that may take its time; a hub that stops meanwhile answers what it knows."""
        desk = self._around.desk
        ask = msgspec.structs.replace(ask, **{row.waits: wait_s})
        waiting = asyncio.ensure_future(row.operation.handler(desk, caller, ask))
        # One that is given up as the hub stops may have failed for the same reason.
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
        found = await self._api.streams.wait_for(_never, waiting, caller.token_id)
        if found is not None:
            return found
        return await row.operation.handler(desk, caller, msgspec.structs.replace(ask, **{row.waits: 0}))

    # --- refusals -----------------------------------------------------------------------------------------------------

    def _refuse(self, name: str, error: DrayError, about: str) -> Refused:
        self._api.count(f"grpc.{name}", status_of(error))
        return Refused(refusal_of(error, about))

    def _fail(self, name: str, error: Exception) -> Refused:
        # The log has the method and nothing of the request, which may hold what belongs in no log.
        return self._refuse(name, internal_error(self._api.report(f"grpc.{name}", error)), "")


def _find(name: str) -> Known:
    known = KNOWN.get(name)
    if known is None:
        raise Refused(refusal_of(NotFound(f"this version of dray has no method {name[:64]!r}")))
    return known


def _read(kinds: Kinds, raw: bytes) -> Any:
    """Read a request; fields that this hub does not know are an error where something is to be changed."""
    request = kinds.request()
    try:
        request.ParseFromString(raw)
    except DecodeError:
        raise InvalidInput(
            f"the request is no {kinds.request.DESCRIPTOR.full_name}: it cannot be read"
        ) from None
    if not kinds.reads:
        size = request.ByteSize()
        request.DiscardUnknownFields()
        if request.ByteSize() != size:
            raise InvalidInput(
                "the request has fields that this hub does not know, so that it cannot do what they ask for: the hub "
                "is older than the protos of its caller"
            )
    return request


def _about(row: Method, request: Any) -> str:
    """The resource that a request names."""
    field, kind = row.about
    named = getattr(request, field) if field and request is not None else ""
    return f"{kind}/{named}" if named else ""


def _late() -> Refusal:
    import grpc

    return Refusal(
        grpc.StatusCode.DEADLINE_EXCEEDED, "the hub had no answer in time: a change may have been made"
    )


async def _never() -> Never:
    """Whoever has gone has his call cancelled: nobody else says so."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError
