"""A state that is kept warm beside the hub that leads: loaded once, then brought on by the turns that one commits.

Knows nothing of who leads, and decides nothing: it folds what is committed, by the very fold that recovery uses, and
lets go of what the leader's rows show. Nobody rings its timers, so they go after each fold; `wake_up` sets them anew.
A log that is not the one it has followed so far (it went back, or another history took its place) is loaded from the
rows again, and told of. Turns come from the store's tail; sooner, from a leader that tells of what it has committed
(`hear`), which goes on from where the tail was read last and never takes its place.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from dray.core.lifecycle.recovery import release, take_touched
from dray.core.lifecycle.state.state import State, Touched
from dray.core.lifecycle.state.timings import Rules
from dray.hub.engine.recovery import Fold, Recovered, Skipped, Unfoldable
from dray.hub.store.base import Followable, Followed, LogEntry, Position

_log = logging.getLogger("dray.hub")
BATCH = 500
Row = TypeVar("Row")


class Abandoned(Exception):
    """Nobody wants the state any more."""


class Follower:
    """One warm state. Used by one thread at a time; only `stop` and the numbers are for others."""

    def __init__(
        self,
        store: Followable,
        rules: Rules,
        loaded: Callable[[], None] = lambda: None,
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        self._store, self._rules, self._loaded, self._tell = store, rules, loaded, tell
        self._skipped = Skipped()
        self._fold: Fold | None = None
        # What each turn changed, until the leader has written its rows.
        self._unwritten: deque[tuple[int, Touched]] = deque()
        self._last_seq = self._applied_seq = 0
        self._stopped = threading.Event()
        # How often all was loaded, and how many turns came from the leader itself.
        self.loads = self.heard = 0
        # Held while the state moves, so that others may read it in between; how often something was let go, when the
        # store was last looked at, and which jobs have changed since the leader wrote their rows, by how many turns.
        self._lock = threading.Lock()
        self.released, self.looked_s = 0, float("-inf")
        self._fresh: Counter[str] = Counter()

    # --- for others to see ------------------------------------------------------------------------------------------

    @property
    def reached(self) -> Position | None:
        """The last turn that was folded, and its epoch; None while there is no state."""
        fold = self._fold
        return None if fold is None else Position(fold.epoch, fold.seq)

    @property
    def lag(self) -> int | None:
        """How many turns it was behind at its last look; None while there is no state."""
        fold = self._fold
        return None if fold is None else max(0, self._last_seq - fold.seq)

    @contextmanager
    def reading(self) -> Iterator[Fold | None]:
        """Look at the state, of one turn; None while there is none. From any thread, and not for long."""
        with self._lock:
            yield self._fold

    def is_written(self, job_id: str) -> bool:
        """Whether the rows show all that was folded of a job; asked while reading."""
        return job_id not in self._fresh

    def stop(self) -> None:
        """Give up soon: a load ends with `Abandoned`."""
        self._stopped.set()

    # --- folding ----------------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Load, or take the next turns; gives whether there are more."""
        if self._stopped.is_set():
            raise Abandoned
        fold = self._fold
        fresh = fold is None
        if fold is None:
            fold = self._load()
        began_s = time.monotonic()
        found = self._store.follow(fold.seq, BATCH)
        if fresh:
            fold.turn_at_ms = found.at_ms
        self._last_seq = found.last_seq
        if why := _tell_other(fold, found, self._applied_seq):
            _log.error("the store is not the one that this hub followed: %s; it loads anew", why)
            self._tell(why)
        if why or _is_cut(fold, found):
            self._fold = None
            return True
        with self._whole():
            for entry in found.entries:
                self.take(entry)
            self._release(fold, found)
        if self._fold is None:
            return True
        # Nothing that was committed before this is missing.
        self.looked_s = began_s if found.last_seq <= fold.seq else self.looked_s
        return found.last_seq > fold.seq

    def hear(self, entries: Iterable[LogEntry]) -> bool:
        """Fold turns that the leader tells of, as far as each is the next one; gives whether the store has more.

        For turns of one leader only, and after a look since it leads: of what went before they say nothing.
        """
        fold = self._fold
        if fold is None or self._stopped.is_set():
            return True
        with self._whole():
            for entry in entries:
                if entry.seq <= fold.seq:
                    continue
                self._last_seq = max(self._last_seq, entry.seq)
                if entry.seq > fold.seq + 1 or entry.epoch < fold.epoch:
                    return True
                self.take(entry)
                self.heard += 1
        return self._fold is None

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Fold all of something; where that fails the state may be half changed, and is made anew."""
        try:
            yield
        except Unfoldable as odd:
            self._skipped.note(odd)
            self._fold = None
        except BaseException:
            self._fold = None
            raise

    def take(self, entry: LogEntry) -> None:
        """Fold one committed turn, the one after the last."""
        fold = self._fold
        assert fold is not None, "loaded before"
        with self._lock:
            try:
                fold.take(entry)
            except BaseException:
                # Half folded: nobody reads that.
                self._fold = None
                raise
            touched = take_touched(fold.state)
            if len(touched):
                self._unwritten.append((entry.seq, touched))
                self._fresh.update(_jobs_of(fold.state, touched))
            _let_rest(fold.state)

    def finish(self) -> Recovered:
        """Take what is left, once nobody else can commit; the state is whoever's who asked."""
        while self.look():
            pass
        fold = self._fold
        assert fold is not None, "looked at just now"
        fold.state.touched = _join(touched for _, touched in self._unwritten)
        self._fold = None
        return fold.tell()

    def _load(self) -> Fold:
        self._unwritten.clear()
        self._fresh.clear()
        self.loads += 1
        snapshot = self._store.load()
        self._applied_seq = snapshot.applied_seq
        rows = snapshot._replace(
            jobs=self._while_wanted(snapshot.jobs),
            tasks=self._while_wanted(snapshot.tasks),
            attempts=self._while_wanted(snapshot.attempts),
        )
        self._fold = fold = Fold(rows, self._rules, self._skipped)
        self._loaded()
        return fold

    def _while_wanted(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            if self._stopped.is_set():
                raise Abandoned
            yield row

    def _release(self, fold: Fold, found: Followed) -> None:
        """Let go of what the leader's rows show. What was touched again since is kept: they do not show that yet."""
        self._applied_seq = found.applied_seq
        fold.now_ms, fold.clock_base = max(fold.now_ms, found.now_ms), found.clock_base
        written: list[Touched] = []
        while self._unwritten and self._unwritten[0][0] <= found.applied_seq:
            written.append(self._unwritten.popleft()[1])
        if not written:
            return
        again = _join(touched for _, touched in self._unwritten)
        with self._lock:
            self.released += 1
            self._fresh = Counter(
                job_id for _, touched in self._unwritten for job_id in _jobs_of(fold.state, touched)
            )
            for touched in written:
                release(
                    fold.state,
                    [key for key in touched.jobs if key not in again.jobs],
                    [key for key in touched.tasks if key not in again.tasks],
                    [key for key in touched.attempts if key not in again.attempts],
                )


def _jobs_of(state: State, touched: Touched) -> set[str]:
    """The jobs that a turn changed anything of."""
    attempts = (state.attempts.get(uid) for uid in touched.attempts)
    of_attempts = (attempt.job_id for attempt in attempts if attempt is not None)
    return {*touched.jobs, *(job_id for job_id, _ in touched.tasks), *of_attempts}


def _let_rest(state: State) -> None:
    """Drop what only a clock or a pass would take out: nobody rings here, and nobody looks."""
    for waiting in (state.timers, state.polls, state.watched, state.leads):
        waiting.clear()


def _tell_other(fold: Fold, found: Followed, applied_seq: int) -> str:
    """Why a store is not the one that was followed; empty where it is. `applied_seq`: how far its rows were."""
    if found.applied_seq < applied_seq:
        # What was let go since is in those rows no more, and would never be written again.
        return f"its rows are of turn {found.applied_seq}, and those of turn {applied_seq} were there"
    if found.last_seq < fold.seq:
        return f"its last turn is {found.last_seq}, and turn {fold.seq} was there"
    if found.epoch and fold.epoch and found.epoch != fold.epoch:
        return f"turn {fold.seq} is of epoch {found.epoch}, and was of epoch {fold.epoch}"
    if not found.epoch and fold.epoch and found.applied_seq < fold.seq:
        # The log lets nothing go that the rows do not show: one who lost it has gone on after its number.
        return f"turn {fold.seq} is not there any more"
    if found.at_ms and fold.turn_at_ms and found.at_ms != fold.turn_at_ms:
        return f"turn {fold.seq} is another one than was there, of the same epoch {fold.epoch}"
    epochs = [fold.epoch, *(entry.epoch for entry in found.entries)]
    if epochs != sorted(epochs):
        return f"turns after {fold.seq} are of earlier epochs than that"
    return ""


def _is_cut(fold: Fold, found: Followed) -> bool:
    """Whether turns that would come next are in the rows alone: whoever is away for long misses them."""
    if fold.epoch and not found.epoch:
        # Swept by now, or lost and passed by: whatever followed it may be another history.
        return True
    next_seq = found.entries[0].seq if found.entries else found.last_seq + 1
    return next_seq > fold.seq + 1 and found.applied_seq > fold.seq


def _join(parts: Iterable[Touched]) -> Touched:
    joined = Touched()
    for touched in parts:
        for name, keys in vars(joined).items():
            keys.update(getattr(touched, name))
    return joined
