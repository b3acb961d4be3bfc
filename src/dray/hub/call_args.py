"""Arguments of calls that wait, as they are given out: chunks in memory while there is room, else read back.

Owns one bounded set of decoded chunks; what they mean is nobody's business here. A chunk whose calls have
all been given out is let go at once: only one that comes back makes it be read again.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from dray.core.lifecycle.effects import Note
from dray.hub.store.base import ArgsChunk, Store
from dray.wire.worker_messages import PackedValue

MOST_BYTES = 32 << 20
# What a small argument takes beside its bytes: the object and its place in a list.
_EACH_BYTES = 48
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes | tuple[str, int]]).decode


class ArgsMemory:
    """Chunks of arguments by job and first index."""

    def __init__(self, store: Store, most_bytes: int = MOST_BYTES) -> None:
        self._store, self._most = store, most_bytes
        self._chunks: OrderedDict[tuple[str, int], Sequence[PackedValue]] = OrderedDict()
        self._left: dict[tuple[str, int], int] = {}
        self._firsts: dict[str, list[int]] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def add(self, job_id: str, first: int, args: Sequence[PackedValue]) -> None:
        """Keep a new chunk if there is room: those that came before it are wanted before it."""
        if self._size + size_of(args) <= self._most:
            self._put(job_id, first, args)

    def give_out(self, job_id: str, indices: Sequence[int]) -> list[PackedValue | None]:
        """Give the arguments of calls that are being sent to a worker; None where there are none."""
        given: list[PackedValue | None] = []
        first = 0
        args: Sequence[PackedValue] = ()
        for index in indices:
            if not first <= index < first + len(args):
                first, args = self._find(job_id, index)
            place = index - first
            given.append(args[place] if args else None)
            self._count_out(job_id, first)
        return given

    def hear(self, note: Note) -> None:
        """Let go of a job that has ended."""
        if note.type == "job_ended":
            for first in list(self._firsts.get(note.job_id, ())):
                self._drop(note.job_id, first)

    def _count_out(self, job_id: str, first: int) -> None:
        left = self._left.get((job_id, first), 0) - 1
        if left > 0:
            self._left[job_id, first] = left
        else:
            self._drop(job_id, first)

    def _find(self, job_id: str, index: int) -> tuple[int, Sequence[PackedValue]]:
        firsts = self._firsts.get(job_id, [])
        place = bisect_right(firsts, index) - 1
        if place >= 0:
            key = (job_id, firsts[place])
            args = self._chunks[key]
            if index < key[1] + len(args):
                self._chunks.move_to_end(key)
                return key[1], args
        chunk = self._store.find_args(job_id, index)
        if chunk is None:
            return index, ()
        read = _decode(chunk.blob)
        self._put(job_id, chunk.first, read)
        while self._size > self._most and len(self._chunks) > 1:
            self._drop(*next(iter(self._chunks)))
        return chunk.first, read

    def _put(self, job_id: str, first: int, args: Sequence[PackedValue]) -> None:
        self._drop(job_id, first)
        self._chunks[job_id, first] = args
        self._left[job_id, first] = len(args)
        insort(self._firsts.setdefault(job_id, []), first)
        self._size += size_of(args)

    def _drop(self, job_id: str, first: int) -> None:
        args = self._chunks.pop((job_id, first), None)
        if args is None:
            return
        del self._left[job_id, first]
        self._size -= size_of(args)
        firsts = self._firsts[job_id]
        firsts.remove(first)
        if not firsts:
            del self._firsts[job_id]


def size_of(args: Sequence[PackedValue]) -> int:
    """About how much memory arguments take."""
    return sum(len(one) if type(one) is bytes else 128 for one in args) + _EACH_BYTES * len(args)


def pack_args(job_id: str, first: int, args: Sequence[PackedValue]) -> ArgsChunk:
    """Make the chunk that is stored."""
    return ArgsChunk(job_id, first, len(args), _encode(args))
