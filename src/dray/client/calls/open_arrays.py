"""One open array as the client sees it: what was put in, what is sent, what is recorded, and who hears of results.

Bookkeeping alone: who may touch what is decided by the desk, which holds its lock while it does.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dray.client.calls.large_values import Upload
from dray.client.futures.futures import CallFuture

if TYPE_CHECKING:
    import asyncio

    from dray.client.calls.recipes import Recipe

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
Argument = bytes | Upload
Ending = tuple[str, Any, BaseException | None]


class Taker(Protocol):
    """Whoever hears of the results of one stream: positions are those in which calls were put in.

    `late` says that large results may be read when they are looked at.
    """

    late: bool

    def take(self, places: Sequence[int], endings: Sequence[Ending]) -> None: ...
    def wants(self, place: int) -> bool: ...
    def missing(self) -> int | None: ...
    def lacking(self, first: int, end: int) -> list[int]: ...
    def fail(self, places: Sequence[int] | None, fault: BaseException) -> None: ...


class Stream:
    """One job that calls are put into. `base` is the position of its first call among all that its taker knows."""

    def __init__(self, recipe: Recipe, taker: Taker, job: str, base: int, limit: int = 0) -> None:
        self.recipe, self.taker, self.job, self.base, self.limit = recipe, taker, job, base, limit
        self.name = recipe.name
        self.numbered = not recipe.alone
        self.pending: list[Argument] = []
        self.put = 0
        self.sent = 0
        self.recorded = 0
        self.used_at = time.monotonic()
        self.unanswered: dict[int, list[Argument]] = {}
        self.refused: list[tuple[int, list[Argument]]] = []
        # Those that reached the hub before what was put in ahead of them, and whether they close the array.
        self.early: list[tuple[int, bool]] = []
        self.refusal: BaseException | None = None
        self.dirty = False
        self.closing = False
        self.halted = False
        self.closed = False
        self.over = False
        self.gathering = False
        self.resent = False
        self.again = False
        self.fetching: set[int] = set()
        # Large arguments of calls that have not ended.
        self.uploads: dict[int, Upload] = {}
        self.successor: Stream | None = None
        self.answers: set[asyncio.Future[Any]] = set()

    def refuse(self, first: int) -> None:
        """Put aside a batch that the hub does not take, and with it those that were to follow."""
        for at in (first, *(at for at, _ in self.early)):
            self.refused.append((at, self.unanswered.pop(at, [])))
        self.early = []

    def spec(self) -> dict[str, Any]:
        """The spec of the job, for the message that makes it."""
        if not self.numbered:
            return self.recipe.spec
        array: dict[str, Any] = {"first": 0, "last": -1, "open": True}
        return {**self.recipe.spec, "array": {**array, "limit": self.limit} if self.limit else array}


class Takers:
    """The futures of one stream. A future may be kept for longer than the hub keeps its result: nothing is late."""

    late = False

    def __init__(self) -> None:
        self.futures: dict[int, CallFuture[Any]] = {}

    def take(self, places: Sequence[int], endings: Sequence[Ending]) -> None:
        pop = self.futures.pop
        for place, (state, value, fault) in zip(places, endings, strict=True):
            future = pop(place, None)
            if future is not None:
                future.settle(state, value, fault)

    def wants(self, place: int) -> bool:
        return place in self.futures

    def missing(self) -> int | None:
        # The first key is the oldest: places only grow, and what is taken is taken out.
        return next(iter(self.futures), None)

    def lacking(self, first: int, end: int) -> list[int]:
        return [place for place in self.futures if first <= place < end]

    def fail(self, places: Sequence[int] | None, fault: BaseException) -> None:
        for place in list(self.futures) if places is None else places:
            future = self.futures.pop(place, None)
            if future is not None:
                future.settle("failed", None, fault)


def draw_id() -> str:
    """An id for a job, as the hub would draw one."""
    number, letters = int.from_bytes(os.urandom(8)), []
    for _ in range(12):
        number, place = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[place])
    return "".join(letters)


def name_by(key: str) -> str:
    """The id of a job that is submitted under a key: the same one each time."""
    return "k-" + hashlib.sha256(key.encode()).hexdigest()[:24]
