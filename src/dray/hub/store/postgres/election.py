"""Who leads: one row, a beat, and a share of the row inside every write.

No clock of the database is read. A hub that stands by takes the row once it has not changed for the lease by its own
clock, and only while its looks succeed: an outage of the database makes nobody take over. Whoever is wrong about who
leads is stopped by the row itself: a write holds a share of it (`FOR SHARE`; a mere `WHERE epoch =` lets commits slip
by a take-over) and finds its own epoch there, or writes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import dray
from dray.errors import EpochLost, NoSpace, StoreError
from dray.hub.store.base import HubSeen, HubsSeen, Led
from dray.hub.store.leading import Seen, Trust, Vigil
from dray.hub.store.postgres.connection import Connection, Target
from dray.hub.store.postgres.errors import PASSING, Unanswered

_log = logging.getLogger("dray.hub.store")
OWN = "WITH own AS (SELECT 1 FROM dray.leader WHERE id = 1 AND epoch = $1 FOR SHARE)"
"""What every write begins with: its first value is the epoch."""

_WATCH = "SELECT epoch, beat, holder, url, now_ms FROM dray.leader WHERE id = 1"
_TAKE = """UPDATE dray.leader SET epoch = greatest(epoch + 1, $1), beat = 0, holder = $2, url = $3
    WHERE id = 1 AND epoch = $4 AND beat = $5 RETURNING epoch"""
# A failover may lose a take, and the next hub count to the same epoch: by its holder each knows its own. Nothing is
# written on a new connection before a renewal there.
_RENEW = """UPDATE dray.leader SET beat = beat + 1, now_ms = greatest(now_ms, $2)
    WHERE id = 1 AND epoch = $1 AND holder = $3 RETURNING beat"""
_RESIGN = """UPDATE dray.leader SET holder = '', beat = beat + 1
    WHERE id = 1 AND epoch = $1 AND holder = $2 RETURNING epoch"""
# One's own only; asked again after no answer, it finds what it has done.
_RAISE = (
    "UPDATE dray.leader SET epoch = $2 WHERE id = 1 AND epoch IN ($1, $2) AND holder = $3 RETURNING epoch"
)
# The clock of the database tells people how old a word is; who may lead never depends on it.
_ANNOUNCE = """WITH gone AS (DELETE FROM dray.hubs WHERE id <> $1 AND seen_at < clock_timestamp() - $6 * interval '1 s')
    INSERT INTO dray.hubs (id, holder, url, seq, version, seen_at, fingerprint, workers)
        VALUES ($1, $2, $3, $4, $5, clock_timestamp(), $7, $8)
    ON CONFLICT (id) DO UPDATE SET holder = excluded.holder, url = excluded.url, seq = excluded.seq,
        version = excluded.version, seen_at = excluded.seen_at, fingerprint = excluded.fingerprint,
        workers = excluded.workers"""
_LEAVE = "DELETE FROM dray.hubs WHERE id = $1 AND holder = $2"
_HUBS = """SELECT id, holder, url, seq, version,
        greatest(0, extract(epoch FROM clock_timestamp() - seen_at))::float8 AS age_s, fingerprint, workers
    FROM dray.hubs WHERE seen_at > clock_timestamp() - $1 * interval '1 s' ORDER BY id"""
_LEADS = """SELECT epoch, holder, url, greatest(applied_seq, (SELECT max(seq) FROM dray.log)),
        current_setting('synchronous_standby_names'), extract(epoch FROM clock_timestamp())::float8
    FROM dray.leader, dray.meta WHERE leader.id = 1 AND meta.id = 1"""
# One that can be none is replaced.
KEEP_SECRET = f"""{OWN}, kept AS (INSERT INTO dray.secrets (name, secret) SELECT $2, $3 FROM own
        ON CONFLICT (name) DO UPDATE SET secret = excluded.secret
            WHERE octet_length(secrets.secret) <> octet_length(excluded.secret))
    SELECT 1 FROM own"""
SECRET = "SELECT secret FROM dray.secrets WHERE name = $1"
STALE_LEASES, LEAST_STALE_S = 4, 10.0
_TERMINATE = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE usename = current_user AND application_name = $1 AND pid <> pg_backend_pid()"""
RETRY_S, MOST_RETRY_S = 0.1, 1.0


class Told(NamedTuple):
    """What a hub says of itself: how far it has come, by what it is known, how many workers are connected to it."""

    seq: int
    fingerprint: str
    workers: int


class Candidate:
    """One hub that leads, or would like to."""

    def __init__(self, target: Target, holder: str) -> None:
        self.holder, self._target, self._timings = holder, target, target.timings
        self.epoch, self.url = 0, ""
        self.lost: EpochLost | None = None
        self._trust = Trust(self._timings.trust_s)
        self._trusted = asyncio.Event()
        self._beats = Connection(target)
        self._helper = Connection(target._replace(name=target.name + "+"))
        # A raise between two renewals would make the second look for an epoch that is gone.
        self._lock = asyncio.Lock()
        self._hub_now = (0, 0.0)
        # How long a store that nobody leads is left to others: for one that has just resigned, or would have to load.
        self.patience_s = 0.0
        self.led: Led | None = None
        self.hubs: HubsSeen | None = None

    # --- while another one leads ------------------------------------------------------------------------------------

    async def look(self) -> Seen:
        """Read the row."""
        rows = await self._helper.ask("see who leads", _WATCH)
        return Seen(*rows[0])

    async def wait(self, told: Watched, at_once_from: str = "") -> Seen:
        """Wait until nobody leads any more; gives the row as it stands. `at_once_from` names the start of holders that
        are known to be gone.
        """
        vigil = Vigil(self._timings.lease_s, at_once_from)
        while True:
            began = time.monotonic()
            try:
                seen = await self.look()
            except PASSING as fault:
                told.tell_away(fault)
                vigil.miss()
            else:
                vigil.patience_s = self.patience_s
                if (led := vigil.note(seen, began, time.monotonic())) is not None:
                    self.led = led
                    return seen
                if seen.holder:
                    told.tell(seen)
            await asyncio.sleep(self._timings.poll_s)

    async def take(self, seen: Seen, at_least: int) -> bool:
        """Take the row as it was seen; False where somebody was quicker, or it lives after all.

        A commit of the last leader that hangs holds the row: its connections are ended.
        """
        asking = asyncio.ensure_future(self._take(seen, at_least))
        try:
            done, _ = await asyncio.wait({asking}, timeout=self._timings.blocked_s)
            if not done:
                _log.warning(
                    "the last leader (%s) holds on to the store: its connections are ended", seen.holder
                )
                with contextlib.suppress(Unanswered):
                    await self._helper.ask("end connections", _TERMINATE, f"dray:{seen.holder}")
            return await asking
        finally:
            asking.cancel()

    async def _take(self, seen: Seen, at_least: int) -> bool:
        began = time.monotonic()
        values = (max(at_least, 1), self.holder, self.url, seen.epoch, seen.beat)
        try:
            rows = await self._beats.ask("take the store over", _TAKE, *values)
        except Unanswered:
            # It may have been done all the same: nobody else signs with this name.
            now = await self.look()
            if now.holder != self.holder:
                raise
            rows = [{"epoch": now.epoch}]
        if not rows:
            return False
        self.epoch = int(rows[0]["epoch"])
        self.lost = None
        self._renewed(began)
        return True

    # --- while this one leads ---------------------------------------------------------------------------------------

    def set_time(self, now_ms: int) -> None:
        """What hub time is now: beats carry it, so that the next leader goes on from there."""
        self._hub_now = (now_ms, time.monotonic())

    async def beat(self) -> None:
        """Renew for as long as this one leads."""
        while self.lost is None:
            await asyncio.sleep(self._timings.renew_s)
            pause_s = RETRY_S
            while True:
                try:
                    await self.renew()
                    break
                except EpochLost:
                    return
                except PASSING:
                    await asyncio.sleep(pause_s)
                    pause_s = min(self._timings.renew_s, 2 * pause_s)

    async def renew(self) -> None:
        """Renew once. Answered, it also says that whatever was committed before under this epoch is durable."""
        async with self._lock:
            began = time.monotonic()
            now_ms, at = self._hub_now
            hub_now_ms = now_ms + round((began - at) * 1000) if now_ms else 0
            if self.lost is not None:
                raise self.lost
            if not await self._beats.ask("renew the lease", _RENEW, self.epoch, hub_now_ms, self.holder):
                raise self.lose()
            self._renewed(began)

    async def settled(self) -> None:
        """Wait while a renewal is under way: a row that many share one after another might never be free for it."""
        if self._lock.locked():
            async with self._lock:
                pass

    async def raise_epoch(self, wanted: int) -> None:
        """Pass an epoch that somebody has seen; asked until it is answered."""
        async with self._lock:
            rows: list[Any] | None = None
            while rows is None:
                try:
                    rows = await self._beats.ask("raise the epoch", _RAISE, self.epoch, wanted, self.holder)
                except PASSING:
                    await asyncio.sleep(RETRY_S)
            if not rows:
                raise self.lose()
            self.epoch = wanted

    async def resign(self) -> None:
        """Let go, so that nobody has to wait for the lease."""
        if self.epoch and self.lost is None:
            with contextlib.suppress(*PASSING):
                await self._beats.ask("resign", _RESIGN, self.epoch, self.holder)

    def lose(self, why: str = "") -> EpochLost:
        """Note that another one leads, or why this one must not go on."""
        self.lost = EpochLost(
            why or f"another hub has taken {self._target.address} over (this one held epoch {self.epoch})"
        )
        self._trusted.set()
        return self.lost

    def _renewed(self, began: float) -> None:
        self._trust.renew(began)
        self._trusted.set()

    @property
    def is_trusted(self) -> bool:
        """Whether nobody else can lead yet: asked before anything leaves that needs no commit. From any thread."""
        if self.lost is not None:
            raise self.lost
        return self._trust.holds(time.monotonic())

    async def trusted(self) -> None:
        """Wait until it is so again."""
        while not self.is_trusted:
            self._trusted.clear()
            await self._trusted.wait()

    # --- for people -------------------------------------------------------------------------------------------------

    @property
    def stale_s(self) -> float:
        """After how long a hub that says nothing is not listed any more."""
        return max(LEAST_STALE_S, STALE_LEASES * self._timings.lease_s)

    async def read_secret(self, name: str) -> bytes:
        """A secret of all hubs; empty where there is none yet."""
        rows = await self._helper.ask("read a secret", SECRET, name)
        return bytes(rows[0][0]) if rows else b""

    async def keep_announcing(self, hub_id: str, told: Callable[[], Told]) -> None:
        """Say that this hub is there and how far it has come, and see who else is; who is long gone is struck off.

        The tables of an older dray have no place for it.
        """
        while True:
            with contextlib.suppress(StoreError, NoSpace):
                seq, *more = told()
                values = (hub_id, self.holder, self.url, seq, dray.__version__, self.stale_s, *more)
                await self._helper.ask("announce this hub", _ANNOUNCE, *values)
                self.hubs = await self.list_hubs()
            await asyncio.sleep(self._timings.renew_s)

    async def leave(self, hub_id: str) -> None:
        """Say goodbye, if anybody was greeted."""
        if self.hubs is None:
            return
        with contextlib.suppress(StoreError, NoSpace):
            await self._helper.ask("announce this hub", _LEAVE, hub_id, self.holder)

    async def list_hubs(self) -> HubsSeen:
        """Who is there."""
        rows = await self._helper.ask("list hubs", _HUBS, self.stale_s)
        ((epoch, holder, url, last_seq, standbys, at_s),) = await self._helper.ask("list hubs", _LEADS)
        hubs = [HubSeen(*row) for row in rows]
        return HubsSeen(epoch, holder, url, last_seq, standbys, at_s - time.time(), hubs)

    async def close(self) -> None:
        """Let the connections go."""
        await self._beats.close()
        await self._helper.close()


class Watched:
    """What one that stands by sees, for people: who leads, or that the database does not answer. Told once each."""

    def __init__(self) -> None:
        self.words = self.leader = self.holder = ""
        self.epoch = 0

    def tell(self, seen: Seen) -> None:
        """Another hub leads."""
        place = f" at {seen.url}" if seen.url else ""
        self.leader, self.holder, self.epoch = seen.url, seen.holder, seen.epoch
        self._say(f"{seen.holder} leads{place} (epoch {seen.epoch}): this hub stands by")

    def tell_away(self, fault: Unanswered | NoSpace) -> None:
        """Nobody can tell."""
        self.leader = ""
        self._say(f"this hub stands by: {fault.message}")

    def _say(self, words: str) -> None:
        if words != self.words:
            self.words = words
            if words:
                _log.warning("%s", words)
