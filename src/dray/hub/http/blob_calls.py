"""The HTTP calls that carry values: blobs up and down, streamed, and the value of one task.

Nothing here opens a value. A body is read piece by piece and written in a thread, so that neither a large blob nor a
slow disk holds up the hub.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dray.errors import InvalidInput, Problem
from dray.hub.http.replies import Answer, FileBody, Text
from dray.hub.http.routes import API, Param, Request, Route
from dray.wire.schemas import jobs as shapes

PUT_SCOPES = ("submit", "worker")
GET_SCOPES = ("read", "submit", "worker")
PIECE_BYTES = 4 << 20
BINARY = "application/octet-stream"
_DIGEST = re.compile(r"[0-9a-f]{64}")
Receive = Callable[[], Awaitable[Mapping[str, Any]]]


async def put_blob(desk: Any, request: Request) -> Answer:
    digest = _digest(request)
    length = request.headers.get(b"content-length", b"")
    expected = int(length) if length.isdigit() else 0
    await desk.access.make_room(request.caller, expected)
    upload = desk.blobs.begin(expected)
    try:
        async for pieces, last in _pieces(request.receive):
            # The end of it is written, sealed and put into place in one go: most blobs are no longer than that.
            if last:
                await desk.blobs.keep(upload, pieces, digest)
            else:
                await asyncio.to_thread(upload.write, pieces)
    except BaseException:
        # The write that was under way may still be: its file is closed under it, and gone.
        upload.discard()
        raise
    desk.access.uploaded(request.caller, digest, upload.size)
    return Answer({"digest": digest, "size": upload.size}, 201)


async def get_blob(desk: Any, request: Request) -> FileBody:
    digest = _digest(request)
    desk.access.check(request.caller, digest)
    if request.scope["method"] == "HEAD" and request.caller.may("submit"):
        # Who asks whether it is there is about to refer to it.
        desk.blobs.renew(digest)
    size = desk.blobs.find(digest)
    return FileBody(desk.blobs.path(digest), size)


async def read_value(desk: Any, request: Request) -> Text | FileBody:
    value = await desk.calls.value(request.caller, request.path["id"], request.query["task"])
    headers = ((b"x-dray-state", value.state.encode()),)
    if isinstance(value.packed, bytes):
        return Text(value.packed, BINARY, headers=headers)
    digest, _ = value.packed
    return FileBody(desk.blobs.path(digest), desk.blobs.find(digest), headers)


async def _pieces(receive: Receive) -> Any:
    """Read a body; what arrives in small parts is handed on in larger ones."""
    held: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidInput("the connection ended inside the body: nothing was kept")
        if piece := message.get("body", b""):
            held.append(piece)
            size += len(piece)
        more = message.get("more_body", False)
        if size >= PIECE_BYTES or not more:
            yield held, not more
            held, size = [], 0


def _digest(request: Request) -> str:
    digest = request.path["digest"]
    if _DIGEST.fullmatch(digest) is None:
        what = "must be the SHA-256 of the bytes: 64 digits 0-9 and a-f"
        raise InvalidInput(f"digest {what}", [Problem("digest", what)])
    return digest


_TASK = Param("task", "index of the task; its only one by default", kind="whole", low=0, high=10**9)
VALUE_ROUTES = (
    Route("PUT", f"{API}/blobs/{{digest}}", "put_blob", "Upload a large value under its digest", put_blob, PUT_SCOPES,
          answers={201: shapes.BlobDocument}, raw_body=True, errors=(409, 413, 507),
          stays=True),
    Route("GET", f"{API}/blobs/{{digest}}", "get_blob", "Download a large value", get_blob, GET_SCOPES,
          answers={200: bytes}, media=BINARY, stays=True),
    Route("GET", f"{API}/jobs/{{id}}/value", "read_value", "Read the packed value that a call left", read_value,
          GET_SCOPES, params=(_TASK,), answers={200: bytes}, media=BINARY, errors=(409,),
          stays=True),
)  # fmt: skip
