"""Arguments of calls that wait, as they are given out: chunks in memory while there is room, else read back.

Owns one bounded set of decoded chunks; what they mean is nobody's business here. A chunk whose calls have
all been given out is let go at once: only one that comes back makes it be read again.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from dray.core.lifecycle.state.effects import Note
from dray.hub.store.base import ArgsChunk, Store
from dray.wire.messages.worker import PackedValue

MOST_BYTES = 32 << 20
# What an argument takes beside its bytes: the object and its place in a list. A reference is reckoned as short.
_EACH_BYTES = 96
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes | tuple[str, int]]).decode


def size_of(args: Sequence[PackedValue]) -> int:
    """About how much memory arguments take."""
    return sum(map(len, args)) + _EACH_BYTES * len(args)


class _Chunk:
    """Arguments from one index on: how many have not been given out, and about how much memory they take."""

    __slots__ = ("args", "first", "left", "size")

    def __init__(self, first: int, args: Sequence[PackedValue]) -> None:
        self.first, self.args = first, args
        self.left, self.size = len(args), size_of(args)


_NOTHING = _Chunk(0, ())


class ArgsMemory:
    """Chunks of arguments by job and first index."""

    def __init__(self, store: Store, most_bytes: int = MOST_BYTES) -> None:
        self._store, self._most = store, most_bytes
        self._chunks: OrderedDict[tuple[str, int], _Chunk] = OrderedDict()
        self._firsts: dict[str, list[int]] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def add(self, job_id: str, first: int, args: Sequence[PackedValue]) -> None:
        """Keep a new chunk if there is room: those that came before it are wanted before it."""
        chunk = _Chunk(first, args)
        if self.size + chunk.size <= self._most:
            self._put(job_id, chunk)

    def give_out(self, job_id: str, indices: Sequence[int]) -> list[PackedValue | None]:
        """Give the arguments of calls that are being sent to a worker; None where there are none."""
        given: list[PackedValue | None] = []
        chunk = _NOTHING
        for index in indices:
            place = index - chunk.first
            if not 0 <= place < len(chunk.args):
                self._use_up(job_id, chunk)
                chunk = self._find(job_id, index)
                place = index - chunk.first
            given.append(chunk.args[place] if chunk.args else None)
            chunk.left -= 1
        self._use_up(job_id, chunk)
        return given

    def hear(self, note: Note) -> None:
        """Let go of a job that has ended."""
        if note.type == "job_ended":
            for first in list(self._firsts.get(note.job_id, ())):
                self._drop(note.job_id, first)

    def _use_up(self, job_id: str, chunk: _Chunk) -> None:
        if chunk.args and chunk.left <= 0:
            self._drop(job_id, chunk.first)

    def _find(self, job_id: str, index: int) -> _Chunk:
        firsts = self._firsts.get(job_id, [])
        place = bisect_right(firsts, index) - 1
        if place >= 0:
            key = (job_id, firsts[place])
            chunk = self._chunks[key]
            if index < chunk.first + len(chunk.args):
                self._chunks.move_to_end(key)
                return chunk
        stored = self._store.find_args(job_id, index)
        if stored is None:
            return _Chunk(index, ())
        chunk = _Chunk(stored.first, _decode(stored.blob))
        self._put(job_id, chunk)
        while self.size > self._most and len(self._chunks) > 1:
            self._drop(*next(iter(self._chunks)))
        return chunk

    def _put(self, job_id: str, chunk: _Chunk) -> None:
        self._drop(job_id, chunk.first)
        self._chunks[job_id, chunk.first] = chunk
        insort(self._firsts.setdefault(job_id, []), chunk.first)
        self.size += chunk.size

    def _drop(self, job_id: str, first: int) -> None:
        chunk = self._chunks.pop((job_id, first), None)
        if chunk is None:
            return
        self.size -= chunk.size
        firsts = self._firsts[job_id]
        firsts.remove(first)
        if not firsts:
            del self._firsts[job_id]


def pack_args(job_id: str, first: int, args: Sequence[PackedValue]) -> ArgsChunk:
    """Make the chunk that is stored."""
    return ArgsChunk(job_id, first, len(args), _encode(args))
