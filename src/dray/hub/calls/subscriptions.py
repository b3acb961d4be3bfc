"""Who wants to hear of which job's calls, and what they are told: results as they are recorded, and the job's end.

Speaks only of what is committed. A chunk of results is encoded once, however many listen. A listener that does not keep
up is told nothing more until it has room again, and then what it missed is read back from the store, in order: no
queue grows for it, and its socket stays open. The end of a job comes after all of its results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from dray.core.lifecycle.state.effects import CallsDone, Note
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.hub.calls.results import Recorded, pushed_columns, read_columns
from dray.hub.store.base import Store
from dray.wire.messages.client import ENDED, RESULTS, write_message

CATCH_UP = 16


class Listener(Protocol):
    """One client socket."""

    def has_room(self) -> bool: ...
    def push_calls(self, message: bytes) -> None: ...
    def lag(self, behind: bool) -> None: ...


class Place(NamedTuple):
    """Where a listener stands in a job's results: those of turn `seq`, less the first `skip`, come next."""

    seq: int
    skip: int


class Subscription:
    """One listener's interest in one job. `behind` is None while it hears everything at once.

    `held` is what it must hear after the results it has missed, `over` that nothing follows that.
    """

    __slots__ = ("behind", "held", "over")

    def __init__(self) -> None:
        self.behind: Place | None = None
        self.held: list[bytes] = []
        self.over = False


class CallFeed:
    """All subscriptions of one hub."""

    def __init__(
        self, state: State, store: Store, count: Callable[[str, int], None] = lambda state, calls: None
    ) -> None:
        self._state, self._store, self._count = state, store, count
        self._listeners: dict[str, dict[Listener, Subscription]] = {}
        self._jobs: dict[Listener, dict[str, None]] = {}
        self._ending: dict[str, bytes] = {}
        self._published = 0

    def __len__(self) -> int:
        return len(self._listeners)

    def add(self, job: Job, listener: Listener) -> None:
        """Tell `listener` of this job's calls from now on, where any of them is still to end."""
        if not job.state.final:
            self._listeners.setdefault(job.id, {}).setdefault(listener, Subscription())
            self._jobs.setdefault(listener, {})[job.id] = None

    def leave(self, listener: Listener) -> None:
        """Tell `listener` nothing more."""
        for job_id in list(self._jobs.get(listener, ())):
            self._drop(job_id, listener)

    def _drop(self, job_id: str, listener: Listener) -> None:
        jobs, listeners = self._jobs.get(listener, {}), self._listeners.get(job_id, {})
        jobs.pop(job_id, None)
        listeners.pop(listener, None)
        if not jobs:
            self._jobs.pop(listener, None)
        if not listeners:
            self._listeners.pop(job_id, None)

    def hear(self, note: Note) -> None:
        """Keep a job's end in mind until what its last turn brought has been told."""
        if note.type == "job_ended" and note.job_id in self._listeners:
            job = self._state.jobs[note.job_id]
            told = {"job": job.id, "state": job.state.value, "error": job.error, "exit_class": job.rest_class}
            self._ending[job.id] = write_message(ENDED, None, told)

    def publish(self, seq: int, ended: Sequence[Recorded | CallsDone]) -> None:
        """Tell what one committed turn brought."""
        self._published = seq
        counts: dict[str, int] = {}
        for one in ended:
            recorded = isinstance(one, Recorded)
            job_id = one.chunk.job_id if isinstance(one, Recorded) else one.job_id
            place = counts.get(job_id, 0)
            if recorded:
                counts[job_id] = place + 1
            self._count_ends(one)
            if (listeners := self._listeners.get(job_id)) is not None:
                self._tell(listeners, _spell(one), Place(seq, place) if recorded else None)
        for job_id, message in self._ending.items():
            self._end(job_id, message)
        self._ending.clear()

    def _count_ends(self, one: Recorded | CallsDone) -> None:
        if isinstance(one, CallsDone):
            self._count(one.state, len(one.indices))
        elif isinstance(one.columns.state, str):
            self._count(one.columns.state, len(one.columns.index))
        else:
            for state, calls in Counter(one.columns.state).items():
                self._count(state, calls)

    def _tell(self, listeners: dict[Listener, Subscription], message: bytes, place: Place | None) -> None:
        for listener, subscription in listeners.items():
            if subscription.behind is not None:
                if place is None:
                    subscription.held.append(message)
            elif place is not None and not listener.has_room():
                subscription.behind = place
                listener.lag(True)
            else:
                listener.push_calls(message)

    def _end(self, job_id: str, message: bytes) -> None:
        for listener, subscription in list(self._listeners.get(job_id, {}).items()):
            if subscription.behind is None:
                listener.push_calls(message)
                self._drop(job_id, listener)
            else:
                subscription.held.append(message)
                subscription.over = True

    def catch_up(self, listener: Listener) -> None:
        """Go on with what a listener has missed, as far as it has room now."""
        still = False
        for job_id in list(self._jobs.get(listener, ())):
            subscription = self._listeners[job_id][listener]
            if subscription.behind is None:
                continue
            subscription.behind = self._read_on(job_id, subscription.behind, listener)
            if subscription.behind is not None:
                still = True
                break
            for message in subscription.held:
                listener.push_calls(message)
            subscription.held = []
            if subscription.over:
                self._drop(job_id, listener)
        listener.lag(still)

    def _read_on(self, job_id: str, place: Place, listener: Listener) -> Place | None:
        while True:
            if not listener.has_room():
                return place
            rows = self._store.results_from(job_id, place.seq, place.skip + CATCH_UP)[place.skip :]
            # What a later turn has committed is told when that turn's effects are carried out.
            rows = [row for row in rows if row.seq <= self._published]
            if not rows:
                return None
            for row in rows:
                if not listener.has_room():
                    return place
                listener.push_calls(write_message(RESULTS, None, pushed_columns(read_columns(row), job_id)))
                place = Place(row.seq, place.skip + 1 if row.seq == place.seq else 1)


def _spell(one: Recorded | CallsDone) -> bytes:
    if isinstance(one, Recorded):
        return write_message(RESULTS, None, pushed_columns(one.columns, one.chunk.job_id))
    told: dict[str, Any] = {
        "job": one.job_id,
        "index": one.indices,
        "state": one.state,
        "value": [None] * len(one.indices),
        "details": {str(index): (one.exit_class, one.error) for index in one.indices},
    }
    return write_message(RESULTS, None, told)
