"""One turn in one statement: the log, and what belongs to the turn, under a share of the leader's row.

Knows how a turn becomes values; whether it took effect is the store's to find out.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dray.hub.store.base import ArgsChunk, BlobRef, ResultsChunk, Turn
from dray.hub.store.columns import clean
from dray.hub.store.postgres.election import OWN

_encode = msgspec.msgpack.Encoder().encode
_LOG = """INSERT INTO dray.log (epoch, seq, now_ms, at_ms, facts, notes)
    SELECT $1, $2, $3, $4, $5, $6 FROM own RETURNING seq"""
BARE = f"{OWN} {_LOG}"
"""A turn with nothing beside the log."""

# A key that is used anew draws a new number, and so goes to the back, where retention expects the young ones.
WHOLE = f"""{OWN},
    k AS (INSERT INTO dray.keys (usr, key, at_ms, job_ids)
        SELECT x.* FROM own, unnest($7::text[], $8::text[], $9::bigint[], $10::bytea[]) AS x
        ON CONFLICT (usr, key) DO UPDATE
            SET id = excluded.id, at_ms = excluded.at_ms, job_ids = excluded.job_ids),
    a AS (INSERT INTO dray.audit (at_ms, usr, token_id, action, target, detail)
        SELECT x.* FROM own, unnest($11::bigint[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[])
            AS x),
    r AS (INSERT INTO dray.call_results (job_id, lo, hi, worker, lane, blob, seq, at_ms)
        SELECT x.*, $2, $4 FROM own, unnest($17::text[], $18::bigint[], $19::bigint[], $20::text[], $21::text[],
            $22::bytea[]) AS x),
    g AS (INSERT INTO dray.call_args (job_id, first, calls, blob)
        SELECT x.* FROM own, unnest($23::text[], $24::bigint[], $25::bigint[], $26::bytea[]) AS x
        ON CONFLICT (job_id, first) DO UPDATE SET calls = excluded.calls, blob = excluded.blob),
    b AS (INSERT INTO dray.blob_refs (digest, job_id)
        SELECT x.* FROM own, unnest($27::text[], $28::text[]) AS x ON CONFLICT DO NOTHING)
    {_LOG}"""
"""A turn with keys, audit records or chunks."""


def spell_turn(turn: Turn, epoch: int) -> tuple[str, list[Any]]:
    """Give the statement of a turn and its values."""
    values: list[Any] = [epoch, turn.seq, turn.now_ms, turn.at_ms, turn.facts, turn.notes]
    if not (turn.keys or turn.audit or turn.chunks):
        return BARE, values
    # One statement may not change a row twice: the last word on a key, or on a chunk, is the one that counts.
    keys = {(clean(row.user), clean(row.key)): row for row in turn.keys}
    values += _columns(4, [(*names, row.at_ms, _encode(row.job_ids)) for names, row in keys.items()])
    values += _columns(6, [(row.at_ms, *map(clean, row[1:])) for row in turn.audit])
    results = [chunk for chunk in turn.chunks if type(chunk) is ResultsChunk]
    values += _columns(
        6,
        [(one.job_id, one.lo, one.hi, clean(one.worker), clean(one.lane), one.blob) for one in results],
    )
    args = {(one.job_id, one.first): one for one in turn.chunks if type(one) is ArgsChunk}
    values += _columns(4, list(args.values()))
    values += _columns(2, [one for one in turn.chunks if type(one) is BlobRef])
    return WHOLE, values


def _columns(width: int, rows: list[Any]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
