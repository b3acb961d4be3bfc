"""Files in the database of the store: output as rows of whole frames, each at its byte of its tape, and secrets.

One statement files a whole batch. Its key is where the frames begin, so that a statement that is sent again changes
nothing; and it takes a share of the leader's row, so that one of a hub that was taken over writes nothing. A gateway
takes no share: writers in turn would keep the leader from renewing. It needs none: a tape only ever grows at its end,
which one row can take, and whoever finds it taken looks again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

from dray.hub.files.base import PORTION_BYTES, Addition, Found, Tape
from dray.hub.files.folder import check_name
from dray.hub.files.postgres_blobs import PgBlobs
from dray.hub.files.side import LONG_S, OpenSide, Side
from dray.hub.store.postgres.election import KEEP_SECRET, OWN, SECRET

_FIND = """SELECT coalesce(last.start + last.size, 0), coalesce(last.out_end, 0), coalesce(last.err_end, 0)
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS asked (job_id, name, place)
    LEFT JOIN LATERAL (SELECT start, octet_length(data) AS size, out_end, err_end FROM dray.output
        WHERE output.job_id = asked.job_id AND output.name = asked.name ORDER BY start DESC LIMIT 1) AS last ON true
    ORDER BY asked.place"""
# Which of them are there: now, or since the same statement was sent before.
_FILE = """, asked AS (SELECT x.* FROM own,
        unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[]) WITH ORDINALITY
            AS x (job_id, name, start, out_end, err_end, data, place)),
    filed AS (INSERT INTO dray.output (job_id, name, start, out_end, err_end, data, at_ms)
        SELECT job_id, name, start, out_end, err_end, data, $8 FROM asked
        ON CONFLICT DO NOTHING RETURNING job_id, name, start)
    SELECT filed.start IS NOT NULL OR coalesce(there.data = asked.data, false) FROM asked
        LEFT JOIN filed USING (job_id, name, start)
        LEFT JOIN dray.output AS there USING (job_id, name, start) ORDER BY asked.place"""
# In the place of the leader's row.
_ANYBODY = "WITH own AS (SELECT 1 WHERE $1::bigint IS NOT NULL)"
# From the row that a position is in.
_READ = """SELECT start, data FROM dray.output WHERE job_id = $1 AND name = $2 AND start < $4 AND start >=
        coalesce((SELECT max(start) FROM dray.output WHERE job_id = $1 AND name = $2 AND start <= $3), 0)
    ORDER BY start"""
_DROP = f"""{OWN}, gone AS (DELETE FROM dray.output WHERE EXISTS (SELECT 1 FROM own) AND ctid = ANY (ARRAY(
        SELECT ctid FROM dray.output WHERE job_id = ANY($2::text[]) LIMIT $3)) RETURNING 1)
    SELECT count(*) FROM gone HAVING EXISTS (SELECT 1 FROM own)"""
_TABLE_SIZE = "SELECT pg_total_relation_size('dray.output')"
_JOB_SIZES = """SELECT job_id, sum(octet_length(data))::bigint, max(at_ms) FROM dray.output GROUP BY job_id
    ORDER BY 3, 1"""
_FILES_SIZE = """SELECT pg_total_relation_size('dray.output') + pg_total_relation_size('dray.body_parts')
    + pg_total_relation_size('dray.bodies')"""
ROWS = 1000
# After a look at the size of every job that found nothing to remove.
REST_S = 600.0


class PgTape:
    """One attempt's rows."""

    def __init__(self, side: Side, job_id: str, name: str) -> None:
        self._side, self.job_id, self.name = side, job_id, name
        self.shown = f"{side.shown} ({job_id}/{name})"

    def is_new(self) -> bool:
        """Nobody knows without a question."""
        return False

    def read(self, position: int, end: int) -> bytes:
        """Give whole frames: those of about a portion's rows."""
        return self._side.call(self._read(position, end))

    async def _read(self, position: int, end: int) -> bytes:
        until = min(end, position + PORTION_BYTES)
        rows = await self._side.read("read output", _READ, self.job_id, self.name, position, until)
        if not rows or rows[0][0] + len(rows[0][1]) <= position:
            return b""
        return b"".join(row[1] for row in rows)[position - rows[0][0] :]


class PgTapes:
    """All output in one database."""

    near = False

    def __init__(self, side: Side) -> None:
        self._side = side
        self._file = (_ANYBODY if isinstance(side, OpenSide) else OWN) + _FILE
        self._rested_until = 0.0

    def tape(self, job_id: str, name: str) -> PgTape:
        """The tape of an attempt."""
        return PgTape(self._side, check_name(job_id), check_name(name))

    def find(self, tapes: Sequence[Tape]) -> list[Found]:
        """See how far tapes are, all in one question."""
        given = [cast("PgTape", tape) for tape in tapes]
        asked = [tape.job_id for tape in given], [tape.name for tape in given]
        rows = self._side.call(self._side.find("find output", _FIND, *asked))
        return [Found((row[1], row[2]), row[0]) for row in rows]

    def write(self, additions: Sequence[Addition]) -> list[bool | None]:
        """File all of it, in one statement; waits for a database that is away or full."""
        tapes = [cast("PgTape", one.tape) for one in additions]
        rows = [
            (tape.job_id, tape.name, one.at, *one.ends, one.frames)
            for tape, one in zip(tapes, additions, strict=True)
        ]
        columns = [list(column) for column in zip(*rows, strict=True)]
        there = self._side.call(self._side.own("file output", self._file, *columns, _now_ms()))
        return [row[0] or None for row in there]

    def drop(self, job_ids: Sequence[str]) -> None:
        """Remove what these jobs printed, a portion at a time: commits go between."""
        names = [check_name(job_id) for job_id in job_ids]
        while True:
            own = self._side.own("remove output", _DROP, names, ROWS, timeout_s=LONG_S)
            if self._side.call(own)[0][0] < ROWS:
                return

    def trim(self, most_bytes: int, live: frozenset[str]) -> None:
        """Remove the oldest output of finished jobs until the rest fits; what tables take is looked at first."""
        asked = self._side.read("measure output", _TABLE_SIZE)
        if time.monotonic() < self._rested_until or self._side.call(asked)[0][0] <= most_bytes:
            return
        sizes = self._side.call(self._side.read("measure output", _JOB_SIZES))
        total = sum(row[1] for row in sizes)
        if total <= most_bytes:
            # Room that was freed stays with the table for a while: it need not be counted every minute.
            self._rested_until = time.monotonic() + REST_S
        for job_id, size, _ in sizes:
            if total <= most_bytes:
                return
            if job_id not in live:
                self.drop([job_id])
                total -= size

    def stop_waiting(self) -> None:
        """What the database does not take now is sent to the next hub."""
        self._side.stop_waiting()


class PgFiles:
    """The files of a hub, all in its database."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self.tapes, self.blobs = PgTapes(side), PgBlobs(side)

    def keep_secret(self, name: str, drawn: bytes) -> bytes:
        """Give the secret of all hubs of this database."""
        self._side.call(self._side.own("keep a secret", KEEP_SECRET, name, drawn))
        found = self._side.call(self._side.read("read a secret", SECRET, name))
        return bytes(found[0][0])

    def free_bytes(self) -> int | None:
        """Nobody sees the disk of a server."""
        return None

    def describe(self) -> tuple[bool, str]:
        """Where it is, and what it waits for."""
        fault = self._side.fault
        return not fault, f"in {self._side.shown}" + (f"; {fault}" if fault else "")


def _now_ms() -> int:
    return round(time.time() * 1000)
