"""Results of calls: how a worker's frame becomes facts and a stored chunk, and how a chunk is read back.

A frame is stored as it came; it is written anew only where something had to be left out: calls that are not (or no
longer) this lane's to end, and ends that are no result, such as a failure with tries left. Values are never opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from dray.core.lifecycle.holding.lanes import Outstanding, finals, find_lane, outstanding
from dray.core.lifecycle.state.effects import Effect, Refuse
from dray.core.lifecycle.state.events import CallsEnded, Event
from dray.core.lifecycle.state.state import State
from dray.hub.store.base import BlobRef, Chunk, ResultsChunk
from dray.wire.messages.worker import CallsResult, PackedValue

MAX_ERROR = 4096
_encode = msgspec.msgpack.Encoder().encode


class Columns(msgspec.Struct):
    """What is read of a stored chunk."""

    index: list[int]
    no: list[int]
    state: list[str] | str
    value: list[bytes | tuple[str, int] | None]
    wall_us: list[int]
    details: dict[str, tuple[str, str]] = {}


class Recorded(NamedTuple):
    """Results that are kept with their turn; after its commit they are told to whoever wants to hear of them."""

    chunk: ResultsChunk
    columns: CallsResult


class AckCalls(NamedTuple):
    """A frame of results was taken in: its worker may forget it."""

    worker: str
    seq: int


class CallRow(msgspec.Struct, frozen=True, gc=False):
    """The recorded result of one call."""

    index: int
    no: int
    state: str
    value: PackedValue | None
    wall_us: int
    exit_class: str
    error: str
    worker: str
    lane: str
    at_ms: int


_decode = msgspec.msgpack.Decoder(Columns).decode


def record(
    state: State, worker: str, body: CallsResult, raw: bytes = b""
) -> Iterator[Event | Effect | Chunk | Recorded | AckCalls]:
    """Yield what follows from one frame of results. `raw` is the frame's own msgpack, where that is at hand."""
    lane = find_lane(state, worker, body.lane)
    if lane is not None and lane.job_id != body.job:
        # Acked all the same: sent again it would be no better.
        yield Refuse(worker, f"calls_result: lane {body.lane} is one of job {lane.job_id}, not of {body.job}")
    else:
        found = outstanding(state, worker, body.lane, body.index, body.no)
        if found.places or found.gone:
            yield from _end(state, worker, body, found, raw)
    yield AckCalls(worker, body.seq)


def _end(
    state: State, worker: str, frame: CallsResult, found: Outstanding, raw: bytes
) -> Iterator[Event | Chunk | Recorded]:
    body = _pick(_shorten(frame), found.places)
    kept = _pick(body, finals(state, body.lane, body.index, body.state)) if body.index else body
    words = body.state if isinstance(body.state, str) else tuple(body.state)
    details = {int(index): told for index, told in body.details.items()}
    yield CallsEnded(worker, body.lane, tuple(body.index), words, sum(body.wall_us), details, found.gone)
    if not kept.index:
        return
    blob = raw if raw and kept is frame else _encode(kept)
    yield Recorded(ResultsChunk(body.job, min(kept.index), max(kept.index), worker, body.lane, blob), kept)
    for digest in digests_of(kept.value):
        yield BlobRef(digest, body.job)


def _pick(body: CallsResult, places: Sequence[int]) -> CallsResult:
    """A frame cut down to some of its calls; itself where that is all of them."""
    if len(places) == len(body.index):
        return body
    index = [body.index[place] for place in places]
    words = body.state
    return CallsResult(
        seq=body.seq,
        lane=body.lane,
        job=body.job,
        index=index,
        no=[body.no[place] for place in places],
        state=words if isinstance(words, str) else [words[place] for place in places],
        value=[body.value[place] for place in places],
        wall_us=[body.wall_us[place] for place in places],
        details={name: body.details[name] for name in map(str, index) if name in body.details},
    )


def _shorten(body: CallsResult) -> CallsResult:
    """Long errors are cut, as those of ordinary tasks are."""
    if all(len(error) <= MAX_ERROR for _, error in body.details.values()):
        return body
    short = {name: (kind[:MAX_ERROR], error[:MAX_ERROR]) for name, (kind, error) in body.details.items()}
    return msgspec.structs.replace(body, details=short)


def digests_of(values: Sequence[PackedValue | None]) -> dict[str, None]:
    """The blobs that values or arguments stand for."""
    return {value[0]: None for value in values if type(value) is tuple}


def rows_of(chunk: ResultsChunk, first: int, end: int) -> Iterator[CallRow]:
    """Give the results that a stored chunk holds of the calls `first` to `end - 1`."""
    columns = _decode(chunk.blob)
    words, details = columns.state, columns.details
    for place, index in enumerate(columns.index):
        if first <= index < end:
            kind, error = details.get(str(index), ("", ""))
            said = words if isinstance(words, str) else words[place]
            yield CallRow(
                index=index,
                no=columns.no[place],
                state=said,
                value=columns.value[place],
                wall_us=columns.wall_us[place],
                exit_class=kind or ("ok" if said == "succeeded" else "cancelled" if said == "killed" else ""),
                error=error,
                worker=chunk.worker,
                lane=chunk.lane,
                at_ms=chunk.at_ms,
            )


def pushed_columns(columns: CallsResult | Columns, job_id: str) -> dict[str, Any]:
    """What clients are told of a chunk: no more than they need, since every one of them is sent it."""
    told: dict[str, Any] = {
        "job": job_id,
        "index": columns.index,
        "state": columns.state,
        "value": columns.value,
    }
    if columns.details:
        told["details"] = columns.details
    return told


def read_columns(chunk: ResultsChunk) -> Columns:
    """Open a stored chunk."""
    return _decode(chunk.blob)
