"""The store in a PostgreSQL database: the same promises as that of a file, asked of a server.

Connections live on a loop of their own. A turn is one statement; a statement that is not answered is never believed
either way: the lease is renewed first, which says that whatever came before is settled, then the turn is looked for,
and if it is not there the same bytes are committed again. So a server that restarts, or a network that stutters, holds
the hub up and does not end it. Whoever finds another epoch in the leader's row steps down.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from dray.errors import BrokenInvariant, EpochLost, NoSpace, StoreError
from dray.hub.loop_thread import LoopThread
from dray.hub.store.base import (
    HOLDS,
    BlobRow,
    HubsSeen,
    Led,
    LiveRows,
    Lost,
    Position,
    Projection,
    ReadGuard,
    Remote,
    Retention,
    Snapshot,
    TokenRow,
    Turn,
)
from dray.hub.store.columns import ODD_VALUES, mend_rows
from dray.hub.store.leading import (
    Found,
    Seen,
    Settling,
    Timings,
    WentBack,
    find_lost,
    further,
    last_given_out,
    least_epoch,
    settle,
)
from dray.hub.store.postgres.address import Address
from dray.hub.store.postgres.connection import Connection, Target, check_server, open_connection
from dray.hub.store.postgres.election import KEEP_SECRET, OWN, RETRY_S, Candidate, Told, Watched
from dray.hub.store.postgres.errors import PASSING, Unanswered, translate
from dray.hub.store.postgres.loading import Loader
from dray.hub.store.postgres.projections import PROJECT, spell_projection
from dray.hub.store.postgres.queries import Reader, WaitedReads
from dray.hub.store.postgres.retention import DROP_HOLDS, SWEEP_BLOBS, Sweeper, Swept
from dray.hub.store.postgres.schema import migrate
from dray.hub.store.postgres.turns import spell_turn
from dray.hub.store.records import Records
from dray.hub.store.space import free_bytes
from dray.hub.store.witness import Witness, read_witness, witness_place

Answer = TypeVar("Answer")
_log = logging.getLogger("dray.hub.store")
_encode = msgspec.msgpack.Encoder().encode
LEASE_S = 3.0
MEASURE_S = 30.0
MOST_PAUSE_S = 1.0
STOP_S = 5.0
_IN_DOUBT = """SELECT (SELECT epoch FROM dray.log WHERE seq = $1),
    greatest(applied_seq, (SELECT max(seq) FROM dray.log)), applied_seq FROM dray.meta WHERE id = 1"""
_SAVE_CLOCK = f"""{OWN} UPDATE dray.meta SET now_ms = greatest(now_ms, $2), at_ms = $3, clock_base = $4
    FROM own WHERE id = 1 RETURNING 1"""
_SAVE_TOKEN = f"""{OWN} INSERT INTO dray.tokens (id, record) SELECT $2, $3 FROM own
    ON CONFLICT (id) DO UPDATE SET record = excluded.record RETURNING 1"""
_SAVE_SAMPLE = f"""{OWN} INSERT INTO dray.samples (id, at_ms, record) SELECT $2, $2, $3 FROM own
    ON CONFLICT (id) DO UPDATE SET record = excluded.record RETURNING 1"""
_SAVE_BLOBS = f"""{OWN}, saved AS (INSERT INTO dray.blobs (digest, size, at_ms)
    SELECT x.* FROM own, unnest($2::text[], $3::bigint[], $4::bigint[]) AS x
    ON CONFLICT (digest) DO UPDATE SET at_ms = greatest(blobs.at_ms, excluded.at_ms)) SELECT 1 FROM own"""


class Beside(Protocol):
    """What has connections beside those of the store."""

    async def close(self) -> None: ...


Attached = TypeVar("Attached", bound=Beside)


class PgStore(WaitedReads):
    """A database that is open. Nothing is written before `begin_epoch` has made this hub its leader."""

    def __init__(self, target: Target, holder: str, home: Path, loop: LoopThread) -> None:
        self.epoch, self.guard = 0, ReadGuard()
        self.sweep_pending = False
        self.lost: Lost | None = None
        self.set_aside: list[str] = []
        self.remote: Remote | None = self
        self.watched = Watched()
        self._target, self._home, self._loop = target, home, loop
        self._turns, self._rows = Connection(target), Connection(target)
        self._reader = Reader(target, self.set_aside, self._answered_for, self._lose_to)
        self._candidate = Candidate(target, holder)
        self.store_id = ""
        self._beside: list[Beside] = []
        self._witness: Witness | None = None
        self._loader: Loader | None = None
        self._known: Position | None = None
        # The latest epoch that those who are connected to this hub have heard of: the store may have lost it.
        self.heard_epoch: Callable[[], int] = lambda: 0
        # The newest turn that was given out, and the newest that is in the database: after a loss they differ.
        self._last_seq = self._stored_seq = self._applied_seq = 0
        self._followed_seq = self._size_bytes = 0
        # What others hear of this hub beside how far it is.
        self.fingerprint: Callable[[], str] = lambda: ""
        self.count_workers: Callable[[], int] = lambda: 0
        self.id = holder.partition(".")[0]
        self._away_since = 0.0
        self._give_up_at = 0.0
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def open(cls, address: Address, home: Path, *, lease_s: float = LEASE_S, name: str = "") -> PgStore:
        """Connect to a database; an empty one is filled with tables. `name` begins what this hub signs with."""
        holder = f"{name or 'hub'}.{_host_name()}.{os.getpid()}.{secrets.token_hex(4)}"
        target = Target(address, f"dray:{holder}", Timings(lease_s))
        loop = LoopThread("dray-postgres")
        try:
            store = loop.call(_make(cls, target, holder, home, loop))
        except BaseException:
            loop.close()
            raise
        return store

    async def _prepare(self) -> None:
        """Refuse what cannot be used, and see how far the database is."""
        await check_server(self._target)
        self.store_id = await self._migrate(if_empty=True)
        place = witness_place(self._home, self.store_id)
        self._known, self._witness = read_witness(place), Witness(place)
        self._applied_seq, self._stored_seq = await self._reader.positions()
        self._last_seq = self._stored_seq
        self._size_bytes = await self._reader.size()

    async def _migrate(self, *, if_empty: bool) -> str:
        connection = await open_connection(self._target)
        try:
            await migrate(connection, self._target.address, if_empty=if_empty)
            return str(await connection.fetchval("SELECT store_id FROM dray.meta"))
        except StoreError:
            raise
        except Exception as error:
            raise translate(error, self._target.address, "prepare the store") from error
        finally:
            await connection.close(timeout=1)

    # --- leading ----------------------------------------------------------------------------------------------------

    def lead_soon(
        self, url: str, at_once_from: str = "", patience_s: float = 0.0
    ) -> concurrent.futures.Future[None]:
        """Stand by until nobody leads any more, then lead. `watched` says who leads meanwhile. What nobody leads is
        left to others for `patience_s`.
        """
        self._candidate.url, self._candidate.patience_s = url, patience_s
        return self._loop.submit(self._lead(at_once_from))

    def set_warm(self, warm: bool) -> None:
        """One that would have to load lets others take first what nobody leads."""
        self._candidate.patience_s = 0.0 if warm else 2 * self._target.timings.poll_s

    async def _lead(self, at_once_from: str) -> None:
        self._work(self._candidate.keep_announcing(self.id, self._tell))
        while True:
            seen = await self._candidate.wait(self.watched, at_once_from)
            try:
                if await self._take(seen):
                    return
            except PASSING as fault:
                self.watched.tell_away(fault)

    def _tell(self) -> Told:
        seq = self._last_seq if self.epoch else self._followed_seq
        return Told(seq, self.fingerprint(), self.count_workers())

    @property
    def holder(self) -> str:
        """What this very process signs with."""
        return self._candidate.holder

    def keep_secret(self, name: str, drawn: bytes) -> bytes:
        """Give a secret of all hubs; only one that leads may bring it."""
        self._write("keep a secret", KEEP_SECRET, name, drawn)
        return self._loop.call(self._insist(lambda: self._candidate.read_secret(name)))

    def read_secret_soon(self, name: str) -> concurrent.futures.Future[bytes]:
        """A secret of all hubs, for one that stands by; empty where there is none yet."""
        return self._loop.submit(self._candidate.read_secret(name))

    def begin_epoch(self) -> int:
        """Lead: from here on every other hub's writes fail. Takes the lead from whoever has it, unless `lead_soon` was
        there before.
        """
        if not self.epoch:
            self._loop.call(self._seize())
        return self.epoch

    async def _seize(self) -> None:
        while not await self._take(await self._candidate.look()):
            pass

    async def _take(self, seen: Seen) -> bool:
        known = self._known
        at_least = max(least_epoch(known), self.heard_epoch() + 1)
        if not await self._candidate.take(seen, at_least):
            return False
        await self._migrate(if_empty=False)
        self._applied_seq, self._stored_seq = await self._reader.positions()
        found = Position(seen.epoch, self._stored_seq)
        self.lost = find_lost(found, known)
        self._last_seq = last_given_out(found, self.lost)
        self.epoch = self._candidate.epoch
        self._note()
        self._work(self._candidate.beat(), self._measure())
        return True

    def _work(self, *works: Coroutine[Any, Any, None]) -> None:
        """Do something beside all else, until the store is closed."""
        for work in works:
            task = asyncio.ensure_future(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @property
    def hubs(self) -> HubsSeen | None:
        """Who was there a moment ago."""
        return self._candidate.hubs

    def list_hubs_soon(self) -> concurrent.futures.Future[HubsSeen]:
        """Who leads and who stands by, now."""
        return self._loop.submit(self._candidate.list_hubs())

    @property
    def led(self) -> Led | None:
        """How this hub came to lead."""
        return self._candidate.led if self.epoch else None

    async def _measure(self) -> None:
        while True:
            await asyncio.sleep(MEASURE_S)
            try:
                self._size_bytes = await self._reader.size()
            except StoreError as fault:
                _log.info("%s", fault.message)

    def raise_epoch(self, at_least: int) -> int:
        """Pass an epoch that somebody has seen; only the leader may."""
        wanted = max(self.epoch + 1, at_least)
        self._loop.call(self._candidate.raise_epoch(wanted))
        self.epoch = wanted
        self._note()
        return wanted

    def note_seen(self, seen: Position) -> None:
        """One that stands by has seen a turn: should it be gone when this hub leads, the store has lost it."""
        self._followed_seq = seen.seq
        known = further(self._known, seen)
        if not self.epoch and known is not self._known:
            self._known = known
            if self._witness is not None:
                self._witness.note(*seen)

    def _note(self) -> None:
        if self._witness is not None:
            self._witness.note(self.epoch, self._last_seq)

    def position(self) -> Position:
        """Give epoch and newest turn, that of a witness where the database has lost some."""
        return Position(self.epoch, self._last_seq)

    def verify(self) -> None:
        """Raise where another hub leads; whether one may by now is asked by `trust_soon`."""
        if self._candidate.lost is not None:
            raise self._candidate.lost

    @property
    def is_trusted(self) -> bool:
        """Whether nobody else can lead yet."""
        return self._candidate.is_trusted

    def trust_soon(self) -> concurrent.futures.Future[None]:
        """Wait until nobody else can."""
        return self._loop.submit(self._insist(self._trusted))

    async def _trusted(self) -> None:
        try:
            async with asyncio.timeout(self._target.timings.renew_s):
                await self._candidate.trusted()
        except TimeoutError:
            raise Unanswered(f"the lease in {self._target.address} could not be renewed in time") from None

    def describe(self) -> tuple[bool, str]:
        """Whether the lease could be renewed lately, and who leads where: for people."""
        sound = self._candidate.lost is None and self._candidate.is_trusted
        lease = "the lease is renewed" if sound else "the lease could not be renewed: is the database there?"
        return sound, f"{self._target.address}, no pooler between: {self._candidate.holder} leads; {lease}"

    def attach(self, make: Callable[[Target, LoopThread, Candidate], Attached]) -> Attached:
        """Make something that has connections of its own, under this lead; it is closed with the store."""
        made = make(self._target, self._loop, self._candidate)
        self._beside.append(made)
        return made

    def hurry(self) -> None:
        """The hub is to end: a server that is away is waited for only a little longer."""
        self._give_up_at = time.monotonic() + STOP_S

    # --- writes -----------------------------------------------------------------------------------------------------

    async def _insist(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask until there is an answer, another hub leads, or this one is to end."""
        pause_s = RETRY_S
        while True:
            try:
                answer = await work()
            except PASSING as fault:
                self.verify()
                if self._closing or 0 < self._give_up_at < time.monotonic():
                    raise
                self._tell_away(fault)
                await asyncio.sleep(pause_s)
                pause_s = min(MOST_PAUSE_S, 2 * pause_s)
            else:
                self._tell_back()
                return answer

    def _tell_away(self, fault: Unanswered | NoSpace) -> None:
        if not self._away_since:
            self._away_since = time.monotonic()
            _log.warning("%s; the hub waits for it, and answers nobody until then", fault.message)

    def _tell_back(self) -> None:
        if self._away_since:
            _log.warning("the database answers again, after %.1f s", time.monotonic() - self._away_since)
            self._away_since = 0.0

    async def _own(self, connection: Connection, asked: str, query: str, *values: Any) -> list[Any]:
        """Write something that begins with a share of the leader's row; no row came back where that was not ours."""
        self._check_leads()

        async def ask() -> list[Any]:
            if not connection.is_open:
                # Behind a new connection may be a server on which another hub has this very epoch.
                await self._candidate.renew()
            return await connection.ask(asked, query, self.epoch, *values)

        rows = await self._insist(ask)
        if not rows:
            raise self._candidate.lose()
        return rows

    def _check_leads(self) -> None:
        self.verify()
        if not self.epoch:
            raise EpochLost(f"another hub may lead in {self._target.address}: this one has not begun")

    def commit(self, turn: Turn) -> None:
        """Make one turn durable, with the keys, audit records and chunks that belong to it."""
        self.commit_soon(turn).result()

    def commit_soon(self, turn: Turn) -> concurrent.futures.Future[None]:
        """The same, without waiting for it."""
        return self._loop.submit(self._commit(turn))

    async def _commit(self, turn: Turn) -> None:
        self._check_leads()
        if turn.seq <= self._last_seq:
            raise BrokenInvariant(
                f"turn {turn.seq} comes after turn {self._last_seq}: turns are committed in order"
            )
        query, values = spell_turn(turn, self.epoch)
        try:
            if not self._turns.is_open:
                # Behind a new connection may be another server, or an older copy of this one.
                await self._settle(turn, query, values)
            elif not await self._turns.ask("commit a turn", query, *values):
                raise self._candidate.lose()
        except PASSING as fault:
            self._tell_away(fault)
            await self._insist(lambda: self._settle(turn, query, values))
        self._last_seq = self._stored_seq = turn.seq
        self._note()

    async def _settle(self, turn: Turn, query: str, values: list[Any]) -> None:
        """Find out what became of a turn, step by step, and commit the very same again where nothing did."""
        steps = settle(self.epoch, self._answered_for())
        try:
            step = next(steps)
            while True:
                step = steps.send(await self._take_step(step, turn.seq, query, values))
        except StopIteration:
            return
        except WentBack as gone:
            raise self._lose_to(gone) from gone

    def _answered_for(self) -> Found:
        """How far log and rows are that this hub, as the leader, was answered for."""
        return Found(None, self._stored_seq, self._applied_seq) if self.epoch else Found(None, 0, 0)

    def _lose_to(self, gone: WentBack) -> EpochLost:
        # Whoever leads next says what is lost: this very hub, at once, since nobody has taken the row from it.
        return self._candidate.lose(f"{self._target.address}: {gone}")

    async def _take_step(self, step: Settling, seq: int, query: str, values: list[Any]) -> Found:
        if step is Settling.RENEW:
            await self._candidate.renew()
        elif step is Settling.LOOK:
            (found,) = await self._turns.ask("look for a turn", _IN_DOUBT, seq)
            return Found(*found)
        elif not await self._turns.ask("commit a turn", query, *values):
            raise self._candidate.lose()
        return Found(None, 0, 0)

    def project(self, projection: Projection) -> None:
        """Write rows as they stand after a turn, with that turn's number, in one statement."""
        self.project_soon(projection).result()

    def project_soon(self, projection: Projection) -> concurrent.futures.Future[None]:
        """The same, without waiting for it."""
        return self._loop.submit(self._project(projection))

    async def _project(self, projection: Projection) -> None:
        seq = projection.applied_seq
        if seq > self._last_seq:
            raise BrokenInvariant(
                f"projection ahead of the log: rows of turn {seq}, last turn {self._last_seq}"
            )
        if seq < self._applied_seq:
            raise BrokenInvariant(
                f"projection behind the rows: rows of turn {seq} after those of {self._applied_seq}"
            )
        try:
            await self._own(
                self._rows, "write rows", PROJECT, *spell_projection(projection, self._applied_seq)
            )
        except ODD_VALUES:
            # One value that no row can hold must not keep all the others from theirs, now and at every start.
            mended = mend_rows(projection, self.set_aside)
            await self._own(self._rows, "write rows", PROJECT, *spell_projection(mended, self._applied_seq))
        self._applied_seq = seq

    def save_clock(self, now_ms: int, at_ms: int, clock_base: bytes) -> None:
        """Keep the hub's time, so that it goes on from there after a restart; beats carry it on."""
        self._candidate.set_time(now_ms)
        self._write("save the clock", _SAVE_CLOCK, now_ms, at_ms, clock_base)

    def save_token(self, token: TokenRow) -> None:
        """Add a token, or change the one of that id."""
        self._write("save a token", _SAVE_TOKEN, token.id, _encode(token))

    def save_sample(self, at_ms: int, record: bytes) -> None:
        """Keep how the cluster stood at a moment."""
        self._write("save a sample", _SAVE_SAMPLE, at_ms, record)

    def save_blobs(self, rows: Mapping[str, BlobRow]) -> None:
        """List blobs whose files are there, or note that they are wanted."""
        columns = list(rows), [row.size for row in rows.values()], [row.at_ms for row in rows.values()]
        self._write("list blobs", _SAVE_BLOBS, *columns)

    def _write(self, asked: str, query: str, *values: Any) -> list[Any]:
        return self._loop.call(self._own(self._rows, asked, query, *values))

    def sweep_blobs(self, before_ms: int, limit: int) -> list[str]:
        """Strike at most `limit` blobs off that no job refers to; their files are the caller's to remove."""
        ((gone, led),) = self._write("remove blobs", SWEEP_BLOBS, before_ms, limit)
        if not led:
            raise self._candidate.lose()
        return list(gone)

    def drop_holds(self, digests: Sequence[str]) -> None:
        """Forget what these blobs held: they are gone."""
        ((led,),) = self._write("forget snapshots", DROP_HOLDS, [HOLDS + digest for digest in digests])
        if not led:
            raise self._candidate.lose()

    def sweep(self, retention: Retention) -> list[str]:
        """Remove one bounded portion of what may go; gives the jobs that are gone. `sweep_pending`: call again."""
        swept = self._loop.call(self._sweep(retention))
        self.sweep_pending = swept.more
        return swept.job_ids

    async def _sweep(self, retention: Retention) -> Swept:
        self._check_leads()

        async def ask(asked: str, query: str, *values: Any) -> list[Any]:
            return await self._insist(lambda: self._rows.ask(asked, query, *values, timeout_s=60.0))

        return await Sweeper(ask, self.epoch, self._candidate.lose).step(retention, self._applied_seq)

    def close(self, clean: bool) -> None:
        """Let go of the lead and of the database."""
        if self._closing:
            return
        self._closing = True
        if self._loader is not None:
            self._loader.close()
        self._loop.call(self._close())
        self._loop.close()
        if self._witness is not None:
            self._witness.sync()
            self._witness.close()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self.epoch:
            await self._candidate.resign()
        await self._candidate.leave(self.id)
        for part in (*self._beside, self._candidate, self._turns, self._rows, self._reader):
            await part.close()

    # --- reads ------------------------------------------------------------------------------------------------------

    def find_soon(self, keys: Sequence[tuple[str, tuple[Any, ...]]]) -> concurrent.futures.Future[list[Any]]:
        """Answer many questions at once, without waiting for it: the name of a read, and what it is asked with."""
        return self._loop.submit(self._insist(lambda: self._reader.find_many(keys)))

    def load(self) -> Snapshot:
        """Give the rows of live work, streamed; read them to the end before the first projection."""
        self.guard.check()
        if self._loader is not None:
            self._loader.close()
        self._loader = Loader(self._loop, self._target, Records(self.set_aside))
        return self._loader.load()

    def live_rows(self) -> LiveRows:
        """Give the rows of live work, for one who reads beside the hub."""
        found = Loader(self._loop, self._target, Records(self.set_aside)).load()
        return LiveRows(found.applied_seq, _read_out(found))

    # --- room -------------------------------------------------------------------------------------------------------

    def size_bytes(self) -> int:
        """Give the size of the tables in the database, as it was measured last."""
        return self._size_bytes

    def free_bytes(self) -> int:
        """Give the space left on the disk of the home; that of the server nobody can see from here."""
        return free_bytes(self._home)

    def low_space(self, min_free_bytes: int) -> bool:
        """Tell whether new work should be refused."""
        return self.free_bytes() < min_free_bytes


def _read_out(found: Snapshot) -> Iterator[Any]:
    try:
        yield from itertools.chain(found.jobs, found.attempts, found.workers)
    finally:
        found.close()


async def _make(kind: type[PgStore], target: Target, holder: str, home: Path, loop: LoopThread) -> PgStore:
    """Made on its loop: connections and locks belong to it."""
    store = kind(target, holder, home, loop)
    await store._prepare()
    return store


def _host_name() -> str:
    return "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in socket.gethostname())[:16]
