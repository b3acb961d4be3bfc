"""`map`: one array job, its results as they come. No future per call; what is in flight is bounded.

The first calls leave before `map` returns, so that the work begins whether or not anybody looks at the results. Of a
longer input the rest goes as results are taken. Surprising rule: dropping the iterator stops nothing, since the job is
recorded and its results stay readable; an exception that reaches the caller does stop the rest. Items that hold
futures need their results first, which is said of a whole array: a run of items that need the same goes in one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar

from dray.client.calls.desk import CallDesk
from dray.client.calls.large_values import LateResult
from dray.client.calls.open_arrays import Ending, Stream
from dray.client.calls.progress import Progress
from dray.client.calls.recipes import Recipe, needing
from dray.client.display.html import draw_map
from dray.client.display.live import Picture, Shown
from dray.client.futures.bell import Bell
from dray.client.futures.futures import PackedResult, run_later
from dray.client.futures.pausing import pausing
from dray.errors import InvalidInput
from dray.functions.values import Packed, pack_call

T = TypeVar("T")
WINDOW = 50_000
BURST = 512


class Inbox:
    """Results of one map that have come and were not taken yet, by position. `order` tells in which order they came."""

    late = True

    def __init__(self, ordered: bool) -> None:
        self.ready = Bell()
        self.came: dict[int, Ending] = {}
        self.order: deque[int] | None = None if ordered else deque()
        self.waiting_for = 0
        self.put = 0
        self.heard = 0
        # Why calls were not taken, where some were not.
        self.refusal: BaseException | None = None
        self._seen_below = 0
        self._seen: set[int] = set()

    def take(self, places: Sequence[int], endings: Sequence[Ending]) -> None:
        with self.ready:
            for place, ending in zip(places, endings, strict=True):
                if self._is_new(place):
                    self.came[place] = ending
                    if self.order is not None:
                        self.order.append(place)
            if self.order or self.waiting_for in self.came:
                self.ready.notify_all()

    def _is_new(self, place: int) -> bool:
        """Whether a result is heard for the first time: after a break some come twice."""
        if place < self._seen_below or place in self._seen:
            return False
        self.heard += 1
        if place != self._seen_below:
            self._seen.add(place)
            return True
        self._seen_below += 1
        while self._seen_below in self._seen:
            self._seen.remove(self._seen_below)
            self._seen_below += 1
        return True

    def wants(self, place: int) -> bool:
        return place >= self._seen_below and place not in self._seen

    def missing(self) -> int | None:
        with self.ready:
            return self._seen_below if self.heard < self.put else None

    def lacking(self, first: int, end: int) -> list[int]:
        with self.ready:
            return [place for place in range(max(first, self._seen_below), end) if place not in self._seen]

    def fail(self, places: Sequence[int] | None, fault: BaseException) -> None:
        self.refusal = fault
        lacking = self.lacking(0, self.put) if places is None else places
        self.take(lacking, [("failed", None, fault)] * len(lacking))


class MapResults(Iterator[T], Shown, Generic[T]):
    """The results of a map. `job` is the id of its job, `place` that of the item whose result was given last."""

    def __init__(
        self,
        desk: CallDesk,
        recipe: Recipe,
        items: Iterable[tuple[Any, ...]],
        ordered: bool = True,
        return_exceptions: bool = False,
        timeout: float | None = None,
        limit: int = 0,
        progress: Progress | None = None,
        window: int = WINDOW,
    ) -> None:
        self._desk, self._recipe, self._limit, self._window = desk, recipe, limit, max(1, window)
        self._name = recipe.name
        self._items: Iterator[tuple[Any, ...]] | None = iter(items)
        self._return_exceptions = return_exceptions
        self._ends_at = None if timeout is None else time.monotonic() + timeout
        self._timeout = timeout
        self._began = time.monotonic()
        self._inbox = Inbox(ordered)
        self._taken = 0
        self.place = -1
        self.lease: object = None
        self._progress = progress
        if progress is not None:
            # Also at the end of the program: the cursor comes back.
            weakref.finalize(self, progress.close)
        self._stream: Stream | None = None
        self._closer: weakref.finalize[Any, Any] | None = None
        self._needed: tuple[str, ...] = ()
        self.jobs: list[str] = []
        try:
            self._feed()
        except BaseException:
            self.cancel()
            raise

    @property
    def job(self) -> str:
        """The id of its job; of the latest one where it has several (`jobs`)."""
        return self.jobs[-1]

    def __iter__(self) -> Iterator[T]:  # noqa: PYI034 - the reason stands below
        # A generator: an interrupt between two results comes out inside it, where it is heard, and not outside of all
        # that is written here.
        try:
            while True:
                try:
                    value = self._give_next()
                except StopIteration:
                    return
                yield value
        except (Exception, GeneratorExit):
            raise
        except BaseException as stop:
            self._interrupted(stop)
            raise

    def __repr__(self) -> str:
        more = "" if self._items is None else " and more"
        return f"<Map {self._name}(): {self._inbox.heard} of {self._inbox.put}{more} ended, job {self.job}>"

    def _picture(self) -> Picture:
        inbox, more = self._inbox, self._items is not None
        lives = more or inbox.heard < inbox.put
        why = self._desk.ask_job_why(self.job) if lives and not inbox.heard else None
        spent_s = time.monotonic() - self._began
        return Picture(draw_map(self._name, self.job, inbox.heard, inbox.put, more, spent_s, why), lives)

    def __next__(self) -> T:
        try:
            return self._give_next()
        except Exception:
            raise
        except BaseException as stop:
            self._interrupted(stop)
            raise

    def _interrupted(self, stop: BaseException) -> None:
        """An interrupt, wherever in here it came: also while a value was opened."""
        if self._items is not None or self._taken < self._inbox.put:
            self._stop(stop, f"{self._name}() was stopped here")
        self._close_bar()

    def _give_next(self) -> T:
        if self._progress is not None:
            self._progress.wake()
        try:
            _, value, fault = self._next_ending()
        except (StopIteration, TimeoutError):
            self._close_bar()
            raise
        except Exception as stop:
            self._stop(stop, f"{self._name}() was stopped here")
            raise
        finally:
            if self._progress is not None:
                self._progress.rest()
        if fault is not None:
            if self._return_exceptions:
                return fault  # type: ignore[return-value]  # asked for
            self._stop(fault, f"item {self.place} of the map of {self._name}()")
            try:
                raise fault
            finally:
                fault = None
        if type(value) is PackedResult or type(value) is LateResult:
            return value.open()  # type: ignore[no-any-return]  # what the function gave
        return value  # type: ignore[no-any-return]  # the same

    def _stop(self, fault: BaseException, where: str) -> None:
        """End the iteration for an exception, which tells what became of the rest."""
        rest = self._inbox.heard < self._inbox.put or self._items is not None
        fault.add_note(f"{where}, job {self.job}{'; the rest was cancelled' if rest else ''}")
        self.close()

    def await_recorded(self) -> None:
        """Wait until the hub has recorded all calls that were put in; raises where it did not."""
        self._desk.await_all_recorded(self._inbox)
        if self._inbox.refusal is not None:
            raise self._inbox.refusal

    def cancel(self) -> None:
        """Stop what has not ended; results that are here can still be taken."""
        self._items = None
        self._desk.cancel_all(self._inbox)

    def close(self) -> None:
        """Stop what has not ended, and end the iteration."""
        if self._inbox.heard < self._inbox.put or self._items is not None:
            self.cancel()
        self._end()

    def _end(self) -> None:
        self._items = None
        self._taken = self._inbox.put
        self._close_bar()

    def _close_bar(self) -> None:
        if self._progress is not None:
            self._progress.close(self._inbox.heard)

    # --- out ----------------------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Put calls in until the window is full or the input has ended."""
        inbox = self._inbox
        while self._items is not None and inbox.put - self._taken < self._window:
            burst = min(BURST, self._window - (inbox.put - self._taken)) if inbox.put else 16
            packed = self._pack(burst)
            if len(packed) < burst:
                self._items = None
            # Those that need the same results are put in together; most need none.
            groups = [(refs, list(group)) for refs, group in itertools.groupby(packed, _refs_of)]
            for refs, group in groups[:-1]:
                self._put(refs, group)
            self._put(*(groups[-1] if groups else (self._needed, [])), last=self._items is None)

    def _put(self, refs: tuple[str, ...], packed: list[Packed], last: bool = False) -> None:
        stream = self._stream
        if stream is None or refs != self._needed:
            stream = self._begin(refs)
        with self._inbox.ready:
            self._inbox.put += len(packed)
        if last and self._closer is not None:
            self._closer.detach()
        self._stream = self._desk.extend(stream, packed, close=last)
        if self._stream.job != self.jobs[-1]:
            self.jobs.append(self._stream.job)

    def _begin(self, refs: tuple[str, ...]) -> Stream:
        """Begin an array for calls that need these results: what calls wait for is a matter of their array."""
        desk, before = self._desk, self._stream
        if before is not None and self._limit:
            self.cancel()
            raise InvalidInput(
                f"limit={self._limit} is a cap of one array, and items that need different futures go in arrays of "
                "their own: leave limit out, or take the results first (dray.gather) and map over those"
            )
        if before is not None and self._closer is not None and self._closer.detach():
            desk.close_stream(before)
        recipe = needing(self._recipe, refs) if refs else self._recipe
        self._needed = refs
        stream = self._stream = desk.begin(recipe, self._inbox, self._limit, self._inbox.put)
        self.jobs.append(stream.job)
        # An input that nobody ever finishes must not leave its job open.
        self._closer = weakref.finalize(self, run_later, functools.partial(_close, desk, stream))
        self._closer.atexit = False
        return stream

    def _pack(self, count: int) -> list[Packed]:
        assert self._items is not None  # asked for by the caller
        name = self._name
        return [pack_call(name, item, {}) for item in itertools.islice(self._items, count)]

    # --- back ---------------------------------------------------------------------------------------------------------

    def _next_ending(self) -> Ending:
        inbox = self._inbox
        if self._items is not None and inbox.put - self._taken <= max(
            self._window - BURST, self._window // 2
        ):
            self._feed()
        if self._taken >= inbox.put:
            raise StopIteration
        ending = self._look()
        if ending is None:
            ending = self._wait()
        self._taken += 1
        if self._progress is not None:
            self._progress.update(inbox.heard)
        return ending

    def _look(self) -> Ending | None:
        inbox = self._inbox
        place = self._taken
        if inbox.order is not None:
            if not inbox.order:
                return None
            place = inbox.order.popleft()
        found = inbox.came.pop(place, None)
        if found is not None:
            self.place = place
        return found

    def _wait(self) -> Ending:
        inbox = self._inbox
        left = None if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())
        with pausing(left) as spells:
            for spell_s in spells:
                inbox.waiting_for = self._taken
                found = self._wait_for(spell_s)
                if found is not None:
                    return found
        raise TimeoutError(
            f"not all results of {self._name}() came within {self._timeout:g} s; the job goes on"
        )

    def _wait_for(self, spell_s: float | None) -> Ending | None:
        ends_at = None if spell_s is None else time.monotonic() + spell_s
        left = spell_s
        while (found := self._inbox.ready.wait_for(self._look, _step(left, self._progress))) is None:
            left = None if ends_at is None else ends_at - time.monotonic()
            if left is not None and left <= 0:
                return None
            if self._progress is not None:
                self._progress.update(self._inbox.heard)
        return found


def _step(left: float | None, progress: Progress | None) -> float | None:
    """A bar moves also while the first result lets itself be waited for."""
    if progress is None:
        return left
    return 0.2 if left is None else min(0.2, left)


def _refs_of(packed: Packed) -> tuple[str, ...]:
    return packed.refs


def _close(desk: CallDesk, stream: Stream) -> None:
    with contextlib.suppress(RuntimeError):  # the client has ended before
        desk.close_stream(stream)


def zip_items(iterables: Sequence[Iterable[Any]]) -> Iterator[tuple[Any, ...]]:
    """The arguments of each call, as the built-in `map` pairs them."""
    return zip(*iterables, strict=False)


def size_of(iterables: Sequence[Iterable[Any]]) -> int | None:
    """How many calls there will be, where all inputs can tell."""
    sizes = [len(one) for one in iterables if isinstance(one, Sized)]
    return min(sizes, default=None) if len(sizes) == len(iterables) else None
