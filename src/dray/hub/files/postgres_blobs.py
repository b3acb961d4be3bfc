"""Blobs in the database: a body with a digest, and its parts.

Parts come in before anybody can see them, under a number of their own, and are bounded; then one statement gives the
body its digest, and lists it, where no other has it. What is removed loses its digest first and its parts after that,
so that what is half done looks like a draft, whose time runs out.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, cast

from dray.errors import Conflict
from dray.hub.files.base import Draft, Reading
from dray.hub.files.side import Side
from dray.hub.store.postgres.election import OWN
from dray.wire.local.blob_folder import check_digest

PART_BYTES = 1 << 19
# Of a large value so many parts go at once.
PARTS_AT_ONCE = 32
_BEGIN = """WITH begun AS (INSERT INTO dray.bodies (id, size, at_ms) VALUES ($1, 0, $4) ON CONFLICT DO NOTHING)
    INSERT INTO dray.body_parts (body, no, data) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"""
_ADD = """WITH draft AS (UPDATE dray.bodies SET at_ms = $4 WHERE id = $1 AND digest IS NULL RETURNING id),
    added AS (INSERT INTO dray.body_parts (body, no, data) SELECT id, $2, $3 FROM draft ON CONFLICT DO NOTHING)
    SELECT 1 FROM draft"""
_PLACE = f"""{OWN},
    other AS (UPDATE dray.bodies SET at_ms = $4 FROM own WHERE digest = $3 AND id <> $2 RETURNING id),
    placed AS (UPDATE dray.bodies SET digest = $3, size = $5, at_ms = $4 FROM own
        WHERE id = $2 AND NOT EXISTS (SELECT 1 FROM other) RETURNING id),
    listed AS (INSERT INTO dray.blobs (digest, size, at_ms) SELECT $3, $5, $4 FROM own
        WHERE EXISTS (SELECT 1 FROM other) OR EXISTS (SELECT 1 FROM placed)
        ON CONFLICT (digest) DO UPDATE SET at_ms = greatest(blobs.at_ms, excluded.at_ms))
    SELECT EXISTS (SELECT 1 FROM other), EXISTS (SELECT 1 FROM placed) FROM own"""
_RENEW = f"""{OWN}, renewed AS (UPDATE dray.bodies SET at_ms = greatest(at_ms, $3) FROM own WHERE digest = $2
        RETURNING size)
    SELECT (SELECT size FROM renewed) FROM own"""
_SIZE = "SELECT size, id FROM dray.bodies WHERE digest = $1"
_SIZES = "SELECT digest, size FROM dray.bodies WHERE digest >= $1 AND digest < $2"
_PART = "SELECT data FROM dray.body_parts WHERE body = $1 AND no = $2"
_STRIKE = f"""{OWN}, struck AS (UPDATE dray.bodies SET digest = NULL, at_ms = 0 FROM own
        WHERE digest = $2 AND at_ms < $3 RETURNING id)
    SELECT (SELECT id FROM struck), EXISTS (SELECT 1 FROM dray.bodies WHERE digest = $2) FROM own"""
_DRAFTS = "SELECT id FROM dray.bodies WHERE digest IS NULL AND at_ms < $1"
# None that has been given a digest meanwhile.
_DROP_PARTS = """WITH gone AS (DELETE FROM dray.body_parts WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM dray.body_parts WHERE body = $1 LIMIT $2))
        AND EXISTS (SELECT 1 FROM dray.bodies WHERE id = $1 AND digest IS NULL) RETURNING 1)
    SELECT count(*) FROM gone"""
_DROP_BODY = "DELETE FROM dray.bodies WHERE id = $1 AND digest IS NULL"


class PgDraft:
    """A blob on its way in."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self.id, self.size = secrets.token_hex(16), 0
        self._buffer, self._parts = bytearray(), 0
        self._over = False

    def write(self, piece: bytes) -> None:
        """Add a piece; whole parts travel at once."""
        self.size += len(piece)
        self._buffer += piece
        while len(self._buffer) >= PART_BYTES:
            part = bytes(self._buffer[:PART_BYTES])
            del self._buffer[:PART_BYTES]
            self._send(part)

    def finish(self) -> None:
        """Send what is left; a value of no bytes has a body all the same."""
        if self._buffer or not self._parts:
            part = bytes(self._buffer)
            self._buffer.clear()
            self._send(part)

    def _send(self, part: bytes) -> None:
        if self._over:
            raise ValueError("this upload was given up")
        values = (self.id, self._parts, part, _now_ms())
        rows = self._side.call(self._side.put("keep a value", _ADD if self._parts else _BEGIN, *values))
        if self._parts and not rows:
            raise Conflict("this upload took too long, and was removed: send it again")
        self._parts += 1

    def discard(self) -> None:
        """Leave nothing behind; nobody waits for it."""
        self._over = True
        self._side.start(drop_body(self._side, self.id))


class PgReading:
    """A blob that is read part by part."""

    def __init__(self, side: Side, body: str) -> None:
        self._side, self._body = side, body
        self._rest, self._next = memoryview(b""), 0

    def read(self, most_bytes: int, /) -> bytes:
        """Give the next bytes, at most so many; none at the end."""
        if not self._rest and most_bytes > 0:
            rows = self._side.call(self._side.read("read a value", _PART, self._body, self._next))
            self._next += 1
            self._rest = memoryview(rows[0][0] if rows else b"")
        piece, self._rest = self._rest[:most_bytes], self._rest[most_bytes:]
        return bytes(piece)

    def close(self) -> None:
        """There is nothing to let go."""


class PgBlobs:
    """All blobs in one database."""

    near = False

    def __init__(self, side: Side) -> None:
        self._side = side

    def _ask(self, query: str, *values: Any) -> list[Any]:
        return self._side.call(self._side.read("find a value", query, *values))

    def size_of(self, digest: str) -> int | None:
        """Give the size of a blob."""
        rows = self._ask(_SIZE, check_digest(digest))
        return rows[0][0] if rows else None

    def renew(self, digest: str) -> int | None:
        """Let it count as put there now."""
        own = self._side.own("renew a value", _RENEW, check_digest(digest), _now_ms())
        size: int | None = self._side.call(own)[0][0]
        return size

    def begin(self) -> PgDraft:
        """A new draft."""
        return PgDraft(self._side)

    def place(self, draft: Draft, digest: str) -> None:
        """Give it its digest, unless another has it: that is the same bytes."""
        body = cast("PgDraft", draft)
        body.finish()
        values = (body.id, check_digest(digest), _now_ms(), body.size)
        other, placed = self._side.call(self._side.own("keep a value", _PLACE, *values))[0]
        if other:
            body.discard()
        elif not placed:
            raise Conflict("this upload took too long, and was removed: send it again")

    def open(self, digest: str) -> Reading:
        """Read a blob."""
        rows = self._ask(_SIZE, check_digest(digest))
        if not rows:
            raise FileNotFoundError(digest)
        return PgReading(self._side, rows[0][1])

    def remove(self, digest: str, before_s: float) -> bool:
        """Remove it unless it is young."""
        own = self._side.own("remove a value", _STRIKE, check_digest(digest), round(before_s * 1000))
        body, was_there = self._side.call(own)[0]
        if body is None:
            return not was_there
        self._side.call(drop_body(self._side, body))
        return True

    def remove_drafts(self, before_s: float) -> None:
        """Remove what was never finished, and what was not removed to its end."""
        for (body,) in self._ask(_DRAFTS, round(before_s * 1000)):
            self._side.call(drop_body(self._side, body))

    def sizes(self, first: int) -> dict[str, int]:
        """Give the blobs whose digest begins with this byte."""
        end = f"{first + 1:02x}" if first < 255 else "g"
        return dict(self._ask(_SIZES, f"{first:02x}", end))


async def drop_body(side: Side, body: str) -> None:
    """Remove a body that has no digest, its parts first."""
    while True:
        rows = await side.put("remove a value", _DROP_PARTS, body, PARTS_AT_ONCE)
        if rows[0][0] < PARTS_AT_ONCE:
            break
    await side.put("remove a value", _DROP_BODY, body)


def _now_ms() -> int:
    return round(time.time() * 1000)
