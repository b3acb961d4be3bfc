"""A hub that stands by: watches the leader's row, keeps a state warm with the product's own follower, and takes over.

The order of a take-over is the product's: the row first, then what is left of the log; nothing else is done before.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple, Protocol

from dray.core.lifecycle.state.timings import Rules
from dray.errors import StoreAway
from dray.hub.engine.follower import Follower
from dray.hub.engine.recovery import Recovered, recover
from dray.hub.store.base import Followed, Led, Lost, Position, Snapshot
from dray.hub.store.leading import (
    Seen,
    Timings,
    Vigil,
    find_lost,
    further,
    last_given_out,
    least_epoch,
)
from dray.sim.faults.leads.database import Link, SharedStore
from dray.sim.faults.leads.lead import Lead

LOOK_SHARE, LONG_LOAD = 0.35, 0.1


class Home(Protocol):
    """What a hub keeps on its own disk: what it last knew the store to hold; and who is told of what it sees."""

    known: Position | None

    @property
    def heard_epoch(self) -> int:
        """The latest epoch that those who are connected to it have heard of."""

    def saw(self, seen: Seen) -> None:
        """The row was looked at, and this hub stands by."""

    def keep_warm(self, follower: Follower) -> bool:
        """Whether a follower is kept at it from here on, and need not be asked to look."""

    def took(self) -> None:
        """It has taken the lead, and is about to load."""


class Reached:
    """The store for one who follows: where it can be asked."""

    def __init__(self, store: SharedStore, link: Link) -> None:
        self._store, self._link = store, link

    def load(self) -> Snapshot:
        """Read all rows."""
        self._check()
        return self._store.load()

    def follow(self, after_seq: int, limit: int = 1000) -> Followed:
        """Read the next turns."""
        self._check()
        return self._store.follow(after_seq, limit)

    def _check(self) -> None:
        if not self._link.sound:
            raise StoreAway("the database does not answer")


class Taken(NamedTuple):
    """A lead, and what it begins with. `heard_ms`: for how long every look had been answered before it was taken."""

    lead: Lead
    led: Led
    lost: Lost | None
    recovered: Recovered
    heard_ms: int


class Standby:
    """One hub that would like to lead, until it does or its process ends."""

    def __init__(
        self,
        link: Link,
        store: SharedStore,
        rules: Rules,
        timings: Timings,
        watch_anew: Callable[[], Vigil],
        home: Home,
        rng: random.Random,
        lead: Callable[[Standby, Taken], None],
        again: Callable[[], None],
    ) -> None:
        self._link, self._store, self._rules, self._timings = link, store, rules, timings
        self._watch_anew, self._home, self._rng, self._lead, self._again = watch_anew, home, rng, lead, again
        self._vigil = vigil = watch_anew()
        self._patience_s = vigil.patience_s
        self._process = link.process
        self.follower = Follower(Reached(store, link), rules, tell=self._tell_other)
        self._is_kept_warm = home.keep_warm(self.follower)
        self.told: list[str] = []
        self.over = False
        self._heard_ms, self._missed_ms = 0, link.process.world.now_ms
        # Where it last saw somebody lead.
        self.hint = -1
        self._process.run(self._poll)

    def _tell_other(self, why: str) -> None:
        self._process.world.counts["another history followed"] += 1
        self.told.append(why)

    def _poll(self) -> None:
        if self.over:
            return
        began_ms = self._process.world.now_ms
        self._link.ask(self._store.look, lambda seen: self._look(seen, began_ms), self._miss, writes=False)

    def _miss(self) -> None:
        self._missed_ms = self._process.world.now_ms
        self._vigil.miss()
        self._wait()

    def _wait(self) -> None:
        self._process.at(round(self._timings.poll_s * 1000), self._poll)

    def _look(self, seen: Seen, began_ms: int) -> None:
        if self.over:
            return
        self.hint = int(seen.url) if seen.holder else -1
        self._home.saw(seen)
        if seen.holder:
            # Whoever resigned has left it to others: one of them leads.
            self._patience_s = 0.0
        warm = self.follower.reached is not None
        # One that would have to load lets others take first what nobody leads.
        self._vigil.patience_s = max(self._patience_s, 0.0 if warm else 2 * self._timings.poll_s)
        led = self._vigil.note(seen, began_ms / 1000, self._process.world.now_ms / 1000)
        if led is not None:
            self._take(seen, led)
            return
        if seen.holder and not self._is_kept_warm and self._rng.random() < LOOK_SHARE and self._link.sound:
            self._follow()
        self._wait()

    def _follow(self) -> None:
        self.follower.look()
        if (reached := self.follower.reached) is not None:
            self._home.known = further(self._home.known, reached)

    # --- taking over ------------------------------------------------------------------------------------------------

    def _take(self, seen: Seen, led: Led) -> None:
        began_ms = self._process.world.now_ms
        at_least = max(least_epoch(self._home.known), self._home.heard_epoch + 1)
        self._heard_ms = began_ms - self._missed_ms

        def answered(epoch: int) -> None:
            if self.over:
                return
            if epoch:
                self._took(seen, led, epoch, began_ms)
            else:
                self._vigil = self._watch_anew()
                self._wait()

        def unanswered() -> None:
            # It may have been done all the same: nobody else signs with this name.
            self._link.ask(self._store.look, found, self._miss, writes=False)

        def found(now: Seen) -> None:
            answered(now.epoch if now.holder == self._store.holder else 0)

        self._link.ask(lambda: self._store.take(seen, at_least), answered, unanswered)

    def take_at_once(self) -> None:
        """Lead without waiting for anybody: the first hub of a site, or one that was put back by hand."""
        seen, now_ms = self._store.look(), self._process.world.now_ms
        led = Led("", "first", 0.0)
        epoch = self._store.take(seen, least_epoch(self._home.known))
        self._begin(self._make_lead(epoch, now_ms), led, Position(seen.epoch, self._store.position().seq))

    def _took(self, seen: Seen, led: Led, epoch: int, began_ms: int) -> None:
        self._home.took()
        lead = self._make_lead(epoch, began_ms)
        lead.lost = lambda failure: self._abandon()
        rng = self._rng
        delay_ms = rng.randint(300, 4000) if rng.random() < LONG_LOAD else rng.randint(0, 40)
        self._process.at(delay_ms, self._load, lead, led, Position(seen.epoch, 0))

    def _make_lead(self, epoch: int, began_ms: int) -> Lead:
        self._store.epoch = epoch
        return Lead(self._link, self._store, self._timings, began_ms)

    def _abandon(self) -> None:
        """Taken over before it began."""
        if not self.over:
            self.over = True
            self._again()

    def _load(self, lead: Lead, led: Led, found: Position) -> None:
        """Read what the one before has left; the lease is renewed meanwhile."""
        if self.over:
            return
        if not self._link.sound:
            self._process.at(200, self._load, lead, led, found)
            return
        self._begin(lead, led, found._replace(seq=self._store.position().seq))

    def _begin(self, lead: Lead, led: Led, found: Position) -> None:
        lost = find_lost(found, self._home.known)
        self._store.last_seq = last_given_out(found, lost)
        warm = self.follower.reached is not None
        if self.follower.heard:
            self._process.world.counts["turn heard from the leader"] += self.follower.heard
        recovered = self.follower.finish() if warm else recover(self._store, self._rules)
        self.over = True
        self._lead(self, Taken(lead, led, lost, recovered, self._heard_ms))
