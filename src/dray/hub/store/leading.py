"""The rules of leading a store that several hubs share, as values: who may take it, how long a lead can be trusted,
what to do about a turn in doubt, and what a store has lost. No clock and no connection here: whoever asks has them.

The store in PostgreSQL goes by these, and so do the hubs of the fault simulation.
"""

from __future__ import annotations

import enum
from collections.abc import Generator
from typing import NamedTuple

from dray.hub.store.base import Led, Lost, Position


class Timings(NamedTuple):
    """How long is waited for what, in seconds: all in proportion to the lease."""

    lease_s: float

    @property
    def renew_s(self) -> float:
        return self.lease_s / 3

    @property
    def poll_s(self) -> float:
        return self.lease_s / 12

    @property
    def trust_s(self) -> float:
        """From the start of a renewal that was answered; over before anybody else's patience is."""
        return self.lease_s * 5 / 6

    @property
    def answer_s(self) -> float:
        return self.lease_s * 2 / 3

    @property
    def blocked_s(self) -> float:
        return self.lease_s / 3


class Seen(NamedTuple):
    """The row of the leader, as it was found."""

    epoch: int
    beat: int
    holder: str
    url: str
    now_ms: int

    @property
    def mark(self) -> tuple[int, int]:
        """What changes with every beat."""
        return self.epoch, self.beat


class Vigil:
    """When one that stands by may take the row: by its own clock, and only while its looks succeed.

    `at_once_from` names the start of holders that are known to be gone. What nobody leads is left to others for
    `patience_s`.
    """

    def __init__(self, lease_s: float, at_once_from: str = "", patience_s: float = 0.0) -> None:
        self._lease_s, self._at_once_from = lease_s, at_once_from
        self.patience_s = patience_s
        self._last: tuple[int, int] | None = None
        self._since = 0.0
        self._free_since: float | None = None

    def note(self, seen: Seen, began_s: float, answered_s: float) -> Led | None:
        """Take in a look; how this hub comes to lead, where it may take the row as it was seen.

        The row was found at some moment between: a silence begins when a look is answered and ends when one begins.
        Where the database is slow the leader may have renewed while the first look was under way, and trust in that.
        """
        if seen.holder:
            self._free_since = None
        else:
            if self._free_since is None:
                self._free_since = began_s
            free_s = began_s - self._free_since
            if free_s >= self.patience_s:
                return Led("", "resigned" if seen.epoch else "first", free_s)
        if self._at_once_from and seen.holder.startswith(self._at_once_from):
            return Led(seen.holder, "restarted", 0.0)
        if self._last != seen.mark:
            self._last, self._since = seen.mark, answered_s
        elif seen.holder and began_s - self._since >= self._lease_s:
            return Led(seen.holder, "silent", began_s - self._since)
        return None

    def miss(self) -> None:
        """A look was not answered: that says nothing about the leader, and what was waited for so far is void."""
        self._last = None


class Trust:
    """Until when nobody else can lead."""

    def __init__(self, trust_s: float) -> None:
        self._trust_s, self._until_s = trust_s, float("-inf")

    def renew(self, began_s: float) -> None:
        """A renewal that began then was answered: whoever watches has seen no beat before it began."""
        self._until_s = began_s + self._trust_s

    def holds(self, now_s: float) -> bool:
        """Whether what needs no commit may leave now."""
        return now_s < self._until_s


class Settling(enum.Enum):
    """What is asked about a turn in doubt."""

    RENEW = "renew"
    LOOK = "look"
    COMMIT = "commit"


class WentBack(Exception):
    """The store ends before a turn, or shows rows of one before, that it has answered for."""

    def __init__(self, what: str, found_seq: int, known_seq: int) -> None:
        super().__init__(f"its {what} went back to turn {found_seq}, from {known_seq}")


class Found(NamedTuple):
    """What there is when a turn is looked for: its epoch, None where it is not there; how far log and rows are."""

    epoch: int | None
    last_seq: int
    applied_seq: int


def settle(epoch: int, known: Found) -> Generator[Settling, Found, None]:
    """Find out what became of a turn that was not answered, and have the very same committed again where nothing did.

    The renewal comes first. It waits for whatever still holds a share of the row, so the outcome stands when it is
    answered; and a row alone proves nothing where the server waits for standbys of its own: only an answer does.
    `LOOK` is answered with what was found; `known` is what was answered before. Rows alone may have been lost, too: who
    believes them written would never write them again.
    """
    yield Settling.RENEW
    found = yield Settling.LOOK
    check_found(found, known)
    if found.epoch == epoch:
        return
    yield Settling.COMMIT


def check_found(found: Found, known: Found) -> None:
    """Behind a new connection may be another server, or an older copy of the last one: what was answered must be there.
    Also of reads: what a hub let go of, because rows show it, is in older ones as if it had never been.
    """
    if found.applied_seq < known.applied_seq:
        raise WentBack("rows", found.applied_seq, known.applied_seq)
    if found.last_seq < known.last_seq:
        raise WentBack("log", found.last_seq, known.last_seq)


def least_epoch(known: Position | None) -> int:
    """The epoch to take at least: what this hub has seen before may be among what a store has lost."""
    return known.epoch + 1 if known is not None else 1


def find_lost(found: Position, known: Position | None) -> Lost | None:
    """What a store that was taken has lost of what this hub knows to have been there."""
    if known is not None and (found.epoch < known.epoch or found.seq < known.seq):
        return Lost(found, known)
    return None


def last_given_out(found: Position, lost: Lost | None) -> int:
    """After which turn to go on. Numbers that were given out once are not given out again: whoever reads on from one
    would miss the new.
    """
    return found.seq if lost is None else max(found.seq, lost.known.seq)


def further(known: Position | None, seen: Position) -> Position | None:
    """What one that stands by knows after it has seen a turn."""
    before = known or Position(0, 0)
    return seen if seen.seq > before.seq and seen.epoch >= before.epoch else known
