"""One hub's lead of a database, from the take to the loss: beats, trust, and turns in doubt.

By the product's own rules (`hub.store.leading`); what the store in PostgreSQL does with connections and coroutines is
done here with simulated ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dray.errors import EpochLost
from dray.hub.store.base import Projection, Turn
from dray.hub.store.leading import Found, Settling, Timings, Trust, WentBack, check_found, settle
from dray.sim.faults.leads.database import Link, SharedStore

RETRY_MS, MOST_RETRY_MS = 100, 1000
_NOTHING = Found(None, 0, 0)


class Lead:
    """Held by one life of a hub."""

    def __init__(self, link: Link, store: SharedStore, timings: Timings, began_ms: int) -> None:
        self.link, self.store, self.epoch = link, store, store.epoch
        self.over = False
        self.lost: Callable[[EpochLost], None] = lambda failure: None
        self.hub_now: Callable[[], int] = lambda: 0
        self._database, self._process, self._timings = link.database, link.process, timings
        self._server = self._read_server = self._database.server
        self.stored_seq, self._applied_seq = store.file.last_seq, store.file.applied_seq
        self._trust = Trust(timings.trust_s)
        self._trust.renew(began_ms / 1000)
        self._waiters: list[Callable[[], None]] = []
        # Renewals and raises one after another: a raise between would make one look for an epoch that is gone.
        self._line: deque[Callable[[], None]] = deque()
        self._locked = False
        self._pause_ms = RETRY_MS
        self._process.at(round(timings.renew_s * 1000), self._beat)

    # --- the lease --------------------------------------------------------------------------------------------------

    @property
    def trusted(self) -> bool:
        """Whether nobody else can lead yet, by this hub's own clock."""
        return not self.over and self._trust.holds(self._process.world.now_ms / 1000)

    def when_trusted(self, go: Callable[[], None]) -> None:
        """Go on once it is so again; never, where another hub leads."""
        self._waiters.append(go)

    def _beat(self) -> None:
        if self.over:
            return
        renew_ms = round(self._timings.renew_s * 1000)

        def missed() -> None:
            self._process.at(self._next_pause(), self._beat)

        def beaten() -> None:
            self._pause_ms = RETRY_MS
            self._process.at(renew_ms, self._beat)

        self._renew(beaten, missed)

    def _next_pause(self) -> int:
        pause_ms, self._pause_ms = self._pause_ms, min(MOST_RETRY_MS, 2 * self._pause_ms)
        return pause_ms

    def _renew(self, done: Callable[[], None], missed: Callable[[], None]) -> None:
        def ask() -> None:
            began_ms, now_ms, epoch = self._process.world.now_ms, self.hub_now(), self.epoch

            def answered(still: bool) -> None:
                if self._answered(still):
                    self._trust.renew(began_ms / 1000)
                    self._go_on()
                    done()

            def unanswered() -> None:
                self._leave()
                missed()

            self.link.ask(lambda: self.store.renew(epoch, now_ms), answered, unanswered)

        self._enter(ask)

    def _answered(self, still: bool) -> bool:
        """Let the next of the line ask; whether this one leads by the row that was found."""
        self._leave()
        if not self.over and not still:
            self.lose("another hub has taken the store over")
        return still and not self.over

    def _go_on(self) -> None:
        if self.trusted:
            waiters, self._waiters = self._waiters, []
            for go in waiters:
                go()

    def _enter(self, work: Callable[[], None]) -> None:
        if self._locked:
            self._line.append(work)
        else:
            self._locked = True
            work()

    def _leave(self) -> None:
        self._locked = False
        if self._line:
            self._enter(self._line.popleft())

    def raise_epoch(self, wanted: int, done: Callable[[int], None]) -> None:
        """Pass an epoch that somebody has seen; asked until it is answered."""

        def ask() -> None:
            self.link.ask(lambda: self.store.pass_epoch(self.epoch, wanted), answered, unanswered)

        def answered(still: bool) -> None:
            if self._answered(still):
                self.epoch = self.store.epoch = wanted
                done(wanted)

        def unanswered() -> None:
            if not self.over:
                self._process.at(RETRY_MS, ask)

        self._enter(ask)

    def lose(self, why: str) -> None:
        """Another one leads."""
        if not self.over:
            self.over = True
            self.lost(EpochLost(f"{why} (this hub held epoch {self.epoch})"))

    def resign(self) -> None:
        """Let go, so that nobody has to wait for the lease; if that is not heard they wait."""
        self.over = True
        epoch = self.epoch
        self.link.ask(lambda: self.store.resign(epoch), lambda done: None, lambda: None)

    def reads_what_was_written(self) -> bool:
        """Whether rows that are read are of no older copy of the database; the lead is lost where they are."""
        server, file = self._database.server, self._database.file
        if self._read_server != server:
            try:
                check_found(
                    Found(None, file.last_seq, file.applied_seq),
                    Found(None, self.stored_seq, self._applied_seq),
                )
            except WentBack as gone:
                self.lose(str(gone))
            self._read_server = server
        return not self.over

    # --- what is written --------------------------------------------------------------------------------------------

    def commit(self, turn: Turn, durable: Callable[[], None], done: Callable[[], None]) -> None:
        """Make a turn durable; `durable` hears of it when it is, `done` when this hub knows."""
        if self._server != self._database.server:
            # Behind a new connection may be another server, or an older copy of this one.
            self._settle(turn, durable, done)
            return

        def answered(written: bool) -> None:
            if self.over:
                return
            if not written:
                self.lose("another hub has taken the store over")
                return
            self.stored_seq = turn.seq
            done()

        self.link.ask(lambda: self._write(turn, durable), answered, lambda: self._settle(turn, durable, done))

    def _write(self, turn: Turn, durable: Callable[[], None]) -> bool:
        written = self.store.try_commit(turn)
        if written:
            self._database.when_durable(durable)
        return written

    def _settle(self, turn: Turn, durable: Callable[[], None], done: Callable[[], None]) -> None:
        if self.over:
            return
        world, server = self._process.world, self._database.server
        world.counts["turn in doubt"] += 1
        steps = settle(self.epoch, Found(None, self.stored_seq, self._applied_seq))

        def again() -> None:
            self._process.at(self._next_pause(), self._settle, turn, durable, done)

        def advance(answer: Found | None) -> None:
            if self.over:
                return
            try:
                step = next(steps) if answer is None else steps.send(answer)
            except StopIteration:
                self._server, self.stored_seq, self._pause_ms = server, turn.seq, RETRY_MS
                done()
            except WentBack as gone:
                world.counts["store found to have gone back"] += 1
                self.lose(str(gone))
            else:
                take(step)

        def take(step: Settling) -> None:
            if step is Settling.RENEW:
                self._renew(lambda: advance(_NOTHING), again)
            elif step is Settling.LOOK:
                self.link.ask(lambda: self.store.look_for(turn.seq), advance, again, writes=False)
            else:
                self.link.ask(lambda: self._write(turn, durable), committed, again)

        def committed(written: bool) -> None:
            if written:
                advance(_NOTHING)
            else:
                self.lose("another hub has taken the store over")

        advance(None)

    def project(self, projection: Projection, done: Callable[[], None]) -> None:
        """Write rows, asked until it is answered."""
        if self.over:
            return
        written_seq = self._applied_seq

        def answered(written: bool) -> None:
            if self.over:
                return
            if written:
                self._applied_seq = projection.applied_seq
                done()
            else:
                self.lose("another hub has taken the store over, or it has gone back")

        self.link.ask(
            lambda: self.store.try_project(projection, written_seq),
            answered,
            lambda: self._process.at(MOST_RETRY_MS, self.project, projection, done),
        )
