"""Which store a hub has, opened; where it is on a server, waited for until this hub leads there.

A store in the home is its hub's as soon as the home is. On a server another hub may lead: this one stands by, answers
everybody with who does, keeps a state warm by what that one commits, and takes over when it has resigned or its lease
has run out. Whatever goes wrong with the warm state costs its warmth: then the store is loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from dray.config import HubConfig
from dray.core.lifecycle.state.timings import Rules
from dray.errors import StoreAway, StoreError
from dray.hub.assembly import Ground
from dray.hub.engine.follower import Abandoned, Follower
from dray.hub.engine.garbage import leave_out_what_is_there
from dray.hub.engine.recovery import Recovered, recover
from dray.hub.gateways.hub_tokens import SECRET_NAME
from dray.hub.gateways.links import Leader
from dray.hub.store.base import Store
from dray.hub.store.sqlite.opening import Check
from dray.hub.store.sqlite.store import SqliteStore
from dray.presence import ensure_id

if TYPE_CHECKING:
    from dray.hub.store.postgres.store import PgStore

LOOK_S = 0.2
FOLLOW_S = 0.25
STORE_FILE = "hub.sqlite"
logger = logging.getLogger("dray.hub")


class ToldToEnd(Exception):
    """A hub that stood by was told to end."""


class Opened(NamedTuple):
    """A store that is this hub's, and the state that was kept warm while it was another's."""

    store: Store
    follower: Follower | None = None

    def recover(self, rules: Rules) -> Recovered:
        """The state after the last committed turn; to be asked once the epoch has begun."""
        if self.follower is not None:
            began = time.monotonic()
            try:
                recovered = self.follower.finish()
            except StoreError:
                raise
            except Exception:
                logger.exception("the state that was kept warm cannot be used: the store is loaded")
            else:
                spent_ms = (time.monotonic() - began) * 1000
                logger.info("took over with a warm state, at turn %d after %.0f ms", recovered.seq, spent_ms)
                return recovered
        return recover(self.store, rules)


async def open_store(
    config: HubConfig, rules: Rules, ground: Ground, url: str, told: asyncio.Event, again: bool
) -> Opened:
    """Open the store of a hub, to be written to by it alone; `again` where this process has had it before."""
    if not config.store:
        # A file that this very process has written to until now need not be read through.
        check: Check = "never" if again else "unclean"
        path = config.home / STORE_FILE
        return Opened(SqliteStore.open(path, reserve_bytes=config.reserve_bytes, check=check))
    home_id = ensure_id(config.home)
    store = await asyncio.to_thread(open_postgres, config, home_id, again)
    follower = Follower(store, rules, lambda: leave_out_what_is_there(again=again), ground.tell_went_back)
    following, role = Following(store, follower), ground.role
    store.fingerprint, store.count_workers = ground.tell_fingerprint, ground.count_workers
    patience_s = config.store_lease_s if role.resigned else 0.0
    # The lock of the home says that no other process is this hub, and this one has no other store: what this hub held
    # before, nobody holds now.
    leading = asyncio.wrap_future(store.lead_soon(url, f"{home_id}.", patience_s))
    role.id = store.id
    try:
        await _stand_by(store, following, ground, told, leading)
        await following.end()
    except BaseException:
        following.abandon()
        await asyncio.to_thread(store.close, clean=False)
        await following.end()
        raise
    return Opened(store, follower if following.is_warm else None)


def open_postgres(config: HubConfig, name: str = "", again: bool = False) -> PgStore:
    """Connect to the database of a hub; its driver is an extra. A refusal is told, or, `again`, may pass."""
    try:
        from dray.hub.store.postgres.address import Address
        from dray.hub.store.postgres.errors import Refused
        from dray.hub.store.postgres.store import PgStore
    except ImportError as missing:
        raise StoreError(
            f"a store in PostgreSQL needs {missing.name}, which is not installed here: pip install 'dray[postgres]'"
        ) from missing
    try:
        return PgStore.open(Address(config.store), config.home, lease_s=config.store_lease_s, name=name)
    except Refused as fault:
        if again:
            raise StoreAway(fault.message) from fault
        raise


async def _stand_by(
    store: PgStore, following: Following, ground: Ground, told: asyncio.Event, leading: asyncio.Future[None]
) -> None:
    ending: asyncio.Future[Any] = asyncio.ensure_future(told.wait())
    try:
        while not leading.done():
            await asyncio.wait({leading, ending}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                raise ToldToEnd
            if (seen := store.watched).words:
                ground.role.stand_by(seen.leader, seen.epoch, following.follower)
                await _link(store, ground)
                ground.front.withdraw(seen.words, seen.leader)
                following.begin()
                ground.note_address()
        await leading
        if ground.links is not None:
            ground.links.drop()
    finally:
        ending.cancel()
        leading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ending


async def _link(store: PgStore, ground: Ground) -> None:
    """Carry what workers say to the one that leads, as soon as it is known how to reach it and be known to it."""
    seen, hubs = store.watched, store.hubs
    if ground.links is None or not seen.leader or ground.links.is_linked_to(seen.holder):
        return
    try:
        if hubs is None or hubs.find(seen.holder) is None:
            hubs = await asyncio.wrap_future(store.list_hubs_soon())
        secret = await asyncio.wrap_future(store.read_secret_soon(SECRET_NAME))
    except StoreError:
        # Who watches the lease tells of it as well; tables of an older dray have no place for it.
        return
    leader = hubs.find(seen.holder)
    if secret and leader is not None:
        ground.links.follow(Leader(seen.leader, seen.holder, leader.fingerprint, secret))


class Following:
    """Keeps a follower at it beside the hub's loop, on threads: a load takes long, and somebody may ask who leads."""

    def __init__(self, store: PgStore, follower: Follower) -> None:
        self._store, self.follower = store, follower
        self._task: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    @property
    def is_warm(self) -> bool:
        """Whether there is a state to go on with."""
        return self.follower.reached is not None

    def begin(self) -> None:
        """Another hub leads: follow it, from the first time that this is said."""
        if self._task is None:
            self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        while not self._over.is_set():
            try:
                more = await asyncio.to_thread(self.follower.look)
            except Abandoned:
                return
            except asyncio.CancelledError:
                # What was under way on connections that are being closed ends so as well.
                if self._over.is_set():
                    return
                raise
            except StoreError as fault:
                # Who watches the lease tells of it as well.
                logger.info("cannot follow the leader: %s", fault.message)
                more = False
            except Exception:
                if self._over.is_set():
                    return
                logger.exception(
                    "this hub cannot follow the leader: it will load the store when it takes over"
                )
                return
            if (reached := self.follower.reached) is not None:
                self._store.note_seen(reached)
            self._store.set_warm(reached is not None)
            if not more:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), FOLLOW_S)

    async def end(self) -> None:
        """Let the look that is under way come to its end, and make no further one: this hub leads."""
        self._over.set()
        if self._task is not None:
            await self._task

    def abandon(self) -> None:
        """This hub will not lead: what is under way is given up."""
        self._over.set()
        self.follower.stop()
