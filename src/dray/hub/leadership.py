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
from dray.hub.files.opening import open_far_tapes
from dray.hub.gateways.filing import GatewayFiling
from dray.hub.gateways.frames import TurnTold
from dray.hub.gateways.hub_tokens import SECRET_NAME
from dray.hub.gateways.links import Leader
from dray.hub.store.base import LogEntry, Store
from dray.hub.store.sqlite.opening import Check
from dray.hub.store.sqlite.store import SqliteStore
from dray.presence import ensure_id

if TYPE_CHECKING:
    from dray.hub.store.postgres.store import PgStore

LOOK_S = 0.2
# How often the log is looked at: while the leader itself tells of its turns that is for what got lost on the way.
FOLLOW_S, TOLD_FOLLOW_S = 0.25, 1.0
MOST_TOLD_BYTES = 16 << 20
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
    if ground.links is not None:
        gateway = ground.links.gateway
        gateway.follows, store.heard_epoch = following, lambda: gateway.max_epoch
    if ground.relay is not None:
        ground.relay.fold.source = following
    store.fingerprint, store.count_workers = ground.tell_fingerprint, ground.count_workers
    patience_s = config.store_lease_s if role.resigned else 0.0
    # The lock of the home says that no other process is this hub, and this one has no other store: what this hub held
    # before, nobody holds now.
    leading = asyncio.wrap_future(store.lead_soon(url, f"{home_id}.", patience_s))
    role.id = store.id
    filing = _make_filing(config, store, follower, ground)
    try:
        await _stand_by(store, following, ground, told, leading)
        await _end_filing(filing, ground)
        await following.end()
    except BaseException:
        await _end_filing(filing, ground)
        following.abandon()
        await asyncio.to_thread(store.close, clean=False)
        await following.end()
        raise
    finally:
        if ground.links is not None:
            ground.links.gateway.follows = None
        if ground.relay is not None:
            ground.relay.fold.source = None
    return Opened(store, follower if following.is_warm else None)


def _make_filing(
    config: HubConfig, store: PgStore, follower: Follower, ground: Ground
) -> GatewayFiling | None:
    """What files output of workers that are connected here, while another hub leads."""
    if ground.links is None or (tapes := open_far_tapes(config, store)) is None:
        return None
    filing = GatewayFiling(tapes, config.log_bytes_per_attempt, follower)
    filing.start()
    ground.links.gateway.filing = filing
    return filing


async def _end_filing(filing: GatewayFiling | None, ground: Ground) -> None:
    """What comes from now on goes to whoever leads; what was taken is filed, or its worker sends it again."""
    if ground.links is not None:
        ground.links.gateway.filing = None
    if filing is not None:
        await filing.close()


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
    """Keeps a follower at it beside the hub's loop, on threads: a load takes long, and somebody may ask who leads.

    Turns that the leader tells of are folded at once, from the first look on that was made since its link stands: only
    the store knows whether what was folded before is still what happened. A gap is looked up, and so is too much.
    """

    def __init__(self, store: PgStore, follower: Follower) -> None:
        self._store, self.follower = store, follower
        self._task: asyncio.Task[None] | None = None
        self._over, self._wake = False, asyncio.Event()
        self._told: list[LogEntry] = []
        self._told_bytes = 0
        # Whether the leader has told of turns since its link stands; whether to look at the store before they count.
        self._is_told, self._looks = False, True
        self._looked_s = 0.0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def is_warm(self) -> bool:
        """Whether there is a state to go on with."""
        return self.follower.reached is not None

    def begin(self) -> None:
        """Another hub leads: follow it, from the first time that this is said."""
        if self._task is None:
            self._task = asyncio.create_task(self._follow())

    @property
    def store(self) -> PgStore:
        """Where the rows are."""
        return self._store

    async def reach(self, seq: int, within_s: float) -> bool:
        """Wait until a turn is folded; False where that takes longer."""
        if (reached := self.follower.reached) is not None and reached.seq >= seq:
            return True
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append((seq, waiting))
        try:
            async with asyncio.timeout(within_s):
                await waiting
        except TimeoutError:
            return False
        finally:
            self._waiting = [pair for pair in self._waiting if pair[1] is not waiting]
        return True

    def _tell_reached(self, seq: int) -> None:
        for wanted, waiting in self._waiting:
            if wanted <= seq and not waiting.done():
                waiting.set_result(None)

    # --- what the leader tells ----------------------------------------------------------------------------------------

    def relinked(self) -> None:
        """The link is another one, or gone: what was told before is in the store, or was never so."""
        self._drop_told()
        self._is_told = False
        self._wake.set()

    def take(self, turn: TurnTold) -> None:
        """Take note of a turn that is committed."""
        self._is_told = True
        if turn.facts is None:
            self._drop_told()
        else:
            entry = LogEntry(turn.seq, turn.now_ms, turn.at_ms, turn.facts, b"", turn.epoch)
            self._told.append(entry)
            self._told_bytes += len(turn.facts)
            if self._told_bytes > MOST_TOLD_BYTES:
                self._drop_told()
        self._wake.set()

    def _drop_told(self) -> None:
        self._told, self._told_bytes, self._looks = [], 0, True

    # --- the walk -----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while not self._over:
            try:
                more = await self._go_on()
            except Abandoned:
                return
            except asyncio.CancelledError:
                # What was under way on connections that are being closed ends so as well.
                if self._over:
                    return
                raise
            except StoreError as fault:
                # Who watches the lease tells of it as well.
                logger.info("cannot follow the leader: %s", fault.message)
                await self._pause(FOLLOW_S)
                continue
            except Exception:
                if self._over:
                    return
                logger.exception(
                    "this hub cannot follow the leader: it will load the store when it takes over"
                )
                return
            if (reached := self.follower.reached) is not None:
                self._store.note_seen(reached)
                self._tell_reached(reached.seq)
            self._store.set_warm(reached is not None)
            self._looks = self._looks or more
            if not more:
                await self._rest()

    async def _go_on(self) -> bool:
        """Fold what was told, or look at the store; gives whether to look at once."""
        now_s = asyncio.get_running_loop().time()
        if self._told and not self._looks and now_s < self._looked_s + TOLD_FOLLOW_S:
            told, self._told, self._told_bytes = self._told, [], 0
            return await asyncio.to_thread(self.follower.hear, told)
        # A link that is new while this look is under way wants another one.
        looks, self._looks, self._looked_s = self._looks, False, now_s
        try:
            return await asyncio.to_thread(self.follower.look)
        except BaseException:
            self._looks = self._looks or looks
            raise

    async def _rest(self) -> None:
        """Wait until a turn is told of, or it is time to look."""
        if not (self._told or self._looks):
            await self._pause(TOLD_FOLLOW_S if self._is_told else FOLLOW_S)

    async def _pause(self, most_s: float) -> None:
        self._wake.clear()
        if not self._over:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(most_s):
                    await self._wake.wait()

    async def end(self) -> None:
        """Let the look that is under way come to its end, and make no further one: this hub leads."""
        self._over = True
        self._wake.set()
        if self._task is not None:
            await self._task

    def abandon(self) -> None:
        """This hub will not lead: what is under way is given up."""
        self._over = True
        self._wake.set()
        self.follower.stop()
