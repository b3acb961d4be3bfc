"""Operations that carry values: blobs up and down, in pieces, and the value of one task.

Nothing here opens a value. What comes in pieces is written in a thread, so that neither a large blob nor a slow disk
holds up the hub.
"""

from __future__ import annotations

import asyncio
from functools import partial

from dray.errors import Conflict, NoSpace, TooLarge
from dray.hub.access.caller import Caller
from dray.hub.answers.service import Document
from dray.hub.calls.blobs import Blobs
from dray.hub.operations import asks
from dray.hub.operations.operation import ANY, SUBMIT, Desk, Operation, Values
from dray.wire.schemas import jobs as shapes


def values_of(desk: Desk) -> Values:
    """Where values are, in every hub that serves any."""
    assert desk.values is not None
    return desk.values


async def put_blob(desk: Desk, caller: Caller, ask: asks.PutBlob) -> Document:
    blobs, access = values_of(desk).blobs, values_of(desk).access
    await access.make_room(caller, ask.size)
    upload = blobs.begin(ask.size)
    try:
        async for pieces, last in ask.pieces:
            # The end of it is written, sealed and put into place in one go: most blobs are no longer than that.
            if last:
                await blobs.keep(upload, pieces, ask.digest)
            else:
                await asyncio.to_thread(upload.write, pieces)
    except BaseException:
        # The write that was under way may still be: its file is closed under it, and gone.
        upload.discard()
        raise
    access.uploaded(caller, ask.digest, upload.size)
    return {"digest": ask.digest, "size": upload.size}


async def get_blob(desk: Desk, caller: Caller, ask: asks.GetBlob) -> asks.StoredFile:
    blobs, access = values_of(desk).blobs, values_of(desk).access
    access.check(caller, ask.digest)
    return await _stored(blobs, ask.digest, renewed=ask.soon and caller.may("submit"))


async def read_value(desk: Desk, caller: Caller, ask: asks.ReadValue) -> asks.LeftValue:
    blobs, calls = values_of(desk).blobs, values_of(desk).calls
    value = await calls.value(caller, ask.id, ask.task)
    if isinstance(value.packed, bytes):
        return asks.LeftValue(value.state, value.packed)
    return asks.LeftValue(value.state, await _stored(blobs, value.packed[0]))


async def check_snapshot(desk: Desk, caller: Caller, ask: asks.Named) -> Document:
    return await values_of(desk).snapshots.check(caller, ask.id)


async def _stored(blobs: Blobs, digest: str, renewed: bool = False) -> asks.StoredFile:
    size = await blobs.look_up(digest, renewed)
    return asks.StoredFile(partial(blobs.files.open, digest), size)


VALUES = (
    Operation("put_blob", "Upload a large value under its digest", ("submit", "worker"), asks.PutBlob,
              shapes.BlobDocument, put_blob, repeat="same", streams="in", errors=(Conflict, TooLarge, NoSpace)),
    Operation("get_blob", "Download a large value", ANY, asks.GetBlob, bytes, get_blob, streams="out"),
    Operation("check_snapshot", "Tell which chunks of a snapshot the hub lacks", SUBMIT, asks.Named,
              shapes.SnapshotCheck, check_snapshot, weight=5, repeat="same", errors=(Conflict, TooLarge)),
    Operation("read_value", "Read the packed value that a call left", ANY, asks.ReadValue, bytes, read_value,
              streams="out", errors=(Conflict,)),
)  # fmt: skip
