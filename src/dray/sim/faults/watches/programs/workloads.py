"""Whether workloads are what they say: counted anew from what a hub commits.

Judges starts, as the watch of policies does: what ran before a workload was narrowed, paused or out of money goes on.
"""

from __future__ import annotations

from typing import Any

from dray.core.lifecycle.state.events import CallsFed, Fact, PlanDecided
from dray.core.lifecycle.state.parties import gpus_of
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.state.workload_events import (
    CANCEL,
    PAUSE,
    START,
    WorkloadChanged,
    WorkloadDropped,
    WorkloadMade,
    WorkloadSpent,
    WorkloadSwitched,
)
from dray.core.model.records.records import Attempt, Job, JobState
from dray.core.model.records.workload import SPREAD, STOP, Terms, WorkloadRecord, WorkloadState
from dray.core.model.specs.spec import unpack_spec
from dray.hub.store.base import JobFilter
from dray.hub.store.memory import MemoryStore
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.world.shares import has_workloads
from dray.sim.faults.world.world import World

HOUR_MS = 3_600_000
# A purse is looked at when it should be empty, and a 64th of that later at most.
LATE_MS = 15_000


class Book:
    """One workload by the facts alone: how it is switched, on what terms, and what its attempts have used up."""

    def __init__(self, terms: Terms, is_on: bool) -> None:
        self.terms, self.is_on = terms, is_on
        # By attempt: what it holds of cards, since when.
        self.held: dict[str, tuple[int, int]] = {}
        self.used_ms = 0
        self.empty_since_ms = -1

    def used(self, now_ms: int) -> int:
        """Milli-GPU milliseconds."""
        return self.used_ms + sum(milli * (now_ms - since) for milli, since in self.held.values())

    def spent_hours(self, now_ms: int) -> bool:
        """Whether its hours are used up."""
        hours = self.terms.budget.gpu_hours
        return bool(hours) and self.used(now_ms) >= hours * HOUR_MS * 1000


class WorkloadWatch:
    """Watches the workloads of one site through all its hubs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._on = has_workloads(world.seed)
        self._books: dict[str, Book] = {}
        self._behind = True
        # Whose turn was committed last: of another one's no facts were heard.
        self._life = 0
        self._to_stop: dict[str, None] = {}
        self._changed: dict[str, None] = {}
        self.cancelled: dict[str, None] = {}

    def rewind(self) -> None:
        """The hub was restored from a backup: what it knows is read off its state."""
        self._behind = True

    # --- what is committed ------------------------------------------------------------------------------------------

    def logged(self, life: HubLife, facts: list[Fact]) -> None:
        """Follow the switches, and judge what starts by how they stand."""
        if not self._on:
            return
        state, self._life = life.state, life.number
        if self._behind:
            self._read(state)
            return
        self._to_stop.clear()
        self._changed.clear()
        for fact in facts:
            self._follow(state, fact)
            if isinstance(fact, PlanDecided):
                for placement in fact.placements:
                    self._check_switch(state, placement.job_id, f"attempt {placement.uid} was made")
            elif isinstance(fact, CallsFed):
                for feed in fact.feeds:
                    job_id = state.attempts[feed.uid].job_id if feed.uid in state.attempts else ""
                    self._check_switch(state, job_id, f"lane {feed.uid} was given calls")
        for name in self._to_stop:
            self._check_stopped(state, name)

    def _read(self, state: State) -> None:
        """Take over what a state says, once: a world's first, and that of an older store."""
        self._behind = False
        self._books = {}
        for name, tally in state.workloads.items():
            book = self._books[name] = Book(tally.record.terms, not tally.record.is_off)
            book.used_ms = tally.record.used_ms
            for job_id in tally.jobs:
                for uid in state.live_of.get(job_id, ()):
                    self._count(state, state.attempts[uid])

    def _follow(self, state: State, fact: Any) -> None:
        if isinstance(fact, WorkloadMade):
            self._books.setdefault(fact.id, Book(fact.terms, fact.start))
            return
        book = self._books.get(getattr(fact, "id", ""))
        if book is None:
            return
        if isinstance(fact, WorkloadChanged):
            book.terms, self._changed[fact.id] = fact.terms, None
        elif isinstance(fact, WorkloadSwitched):
            book.is_on = {START: True, PAUSE: False, CANCEL: False}.get(fact.verb, book.is_on)
            if fact.verb == CANCEL:
                self.cancelled.update(dict.fromkeys(state.workloads[fact.id].jobs))
            if fact.verb == CANCEL or (fact.verb == PAUSE and fact.stop):
                self._to_stop[fact.id] = None
        elif isinstance(fact, WorkloadDropped):
            del self._books[fact.id]
        elif isinstance(fact, WorkloadSpent):
            self._world.counts[f"purse empty: {book.terms.budget.when_spent}"] += 1
            if book.terms.budget.when_spent == STOP:
                self._to_stop[fact.id] = None

    def _check_switch(self, state: State, job_id: str, what: str) -> None:
        job = state.jobs.get(job_id)
        book = self._books.get(job.workload) if job is not None else None
        if job is None or book is None:
            return
        self._world.counts["started of a workload"] += 1
        if not book.is_on:
            self._world.fail(f"{what} for job {job_id} of workload {job.workload}, which is off")
        # Who is sent again in this very turn has used nothing until now.
        for uid in [uid for uid in book.held if uid in state.attempts]:
            if not state.attempts[uid].accepted_at_ms:
                self._count(state, state.attempts[uid])
        if book.terms.budget.bounds and book.spent_hours(state.now_ms):
            self._world.fail(
                f"{what} for job {job_id} of workload {job.workload}, which has used "
                f"{book.used(state.now_ms)}: {book.terms.budget}"
            )

    def _check_stopped(self, state: State, name: str) -> None:
        """What runs is asked to stop in the very turn, but what may start only once."""
        for job_id in state.workloads[name].jobs if name in state.workloads else ():
            job = state.jobs[job_id]
            if job.calls or job.service or unpack_spec(job.spec).at_most_once:
                continue
            for uid in state.live_of.get(job_id, ()):
                attempt = state.attempts[uid]
                if not attempt.cancel and attempt.phase.live:
                    self._world.fail(f"workload {name} was to stop, and nobody asks {attempt} to")

    def committed(self, life: HubLife, touched: list[Attempt], fresh: list[Attempt]) -> None:
        """Count what is held and what has ended; nothing starts beyond the width, or where too many are."""
        if not self._on:
            return
        state = life.state
        for attempt in touched:
            self._count(state, attempt)
        for attempt in fresh:
            self._check_place(state, attempt)

    def _count(self, state: State, attempt: Attempt) -> None:
        job = state.jobs.get(attempt.job_id)
        name = job.workload if job is not None else ""
        for other, book in self._books.items():
            if attempt.uid in book.held and (other != name or not _holds(state, attempt)):
                milli, since = book.held.pop(attempt.uid)
                if not attempt.accepted_at_ms:
                    # One that is sent again has used nothing until then; one that was lost and came back has.
                    since = max(since, attempt.assigned_ms)
                book.used_ms += milli * max(0, state.now_ms - since)
        if name in self._books and _holds(state, attempt):
            ask = state.ask(attempt)
            self._books[name].held[attempt.uid] = gpus_of(ask), attempt.assigned_ms

    def _check_place(self, state: State, attempt: Attempt) -> None:
        job = state.jobs[attempt.job_id]
        book, tally = self._books.get(job.workload), state.workloads.get(job.workload)
        if book is None or tally is None or not _holds(state, attempt):
            return
        width = book.terms.width
        if width and len(book.held) > width:
            self._world.fail(
                f"attempt {attempt.uid} makes {len(book.held)} of workload {job.workload}, {width} wide: {book.held}"
            )
        terms = book.terms.distribution
        if terms.required and terms.mode == SPREAD and job.workload not in self._changed:
            self._check_skew(state, attempt, book)

    def _check_skew(self, state: State, attempt: Attempt, book: Book) -> None:
        terms, columns = book.terms.distribution, state.columns
        counts: dict[str, int] = {}

        def place_of(worker: str) -> str:
            labels = dict(columns.offers[columns.get("offer", columns.row_of[worker])].labels)
            return labels.get(terms.by, "") if terms.by else worker

        for row in range(columns.count):
            if columns.get("open", row):
                counts.setdefault(place_of(columns.worker_of[row]), 0)
        for uid in book.held:
            place = place_of(state.attempts[uid].worker)
            counts[place] = counts.get(place, 0) + 1
        ahead = counts[place_of(attempt.worker)] - min(counts.values())
        if ahead > terms.max_skew:
            self._world.fail(f"attempt {attempt.uid} is one too many at its place: {counts}, {terms}")

    # --- what a turn leaves -----------------------------------------------------------------------------------------

    def turned(self, life: HubLife) -> list[str]:
        """What a hub counts of workloads is what its facts say; nobody overlooks an empty purse."""
        found: list[str] = []
        if not self._on or self._behind or life.number != self._life:
            return found
        state, now_ms = life.state, self._world.now_ms
        for name, book in self._books.items():
            tally = state.workloads.get(name)
            if tally is None or tally.record.terms != book.terms or tally.record.is_off == book.is_on:
                found.append(f"workload {name} is {tally}, its facts say {book.terms}, on: {book.is_on}")
                continue
            if tally.used_ms(state.now_ms) != book.used(state.now_ms):
                found.append(
                    f"workload {name} has used {tally.used_ms(state.now_ms)}, counted were "
                    f"{book.used(state.now_ms)}: {book.held}"
                )
            if not book.spent_hours(state.now_ms) or tally.record.spent:
                book.empty_since_ms = -1
            elif book.empty_since_ms < 0:
                book.empty_since_ms = now_ms
            elif now_ms - max(book.empty_since_ms, life.awake_ms, life.began_ms) > LATE_MS:
                found.append(f"the purse of workload {name} is empty since {book.empty_since_ms}, untold")
        return found

    # --- the end ----------------------------------------------------------------------------------------------------

    def settle(self, state: State, store: MemoryStore) -> None:
        """Each workload has ended as its jobs say."""
        jobs = store.list_jobs(JobFilter(limit=1 << 30)) if self._on else []
        for name, tally in state.workloads.items():
            own = [job for job in jobs if job.workload == name and job.seq >= tally.record.first_job]
            record = tally.record
            said = (record.jobs, record.total, record.succeeded, record.failures, record.killed)
            summed = (
                len(own),
                sum(job.total for job in own),
                sum(job.succeeded for job in own),
                sum(job.failed + job.worker_failed + job.unschedulable for job in own),
                sum(job.killed for job in own),
            )
            if said != summed or record.running:
                self._world.fail(f"workload {name} counts {said}, its jobs sum to {summed}: {record}")
            if record.state is not (wanted := _verdict(record, *summed[2:])):
                self._world.fail(f"workload {name} is {record.state}, its jobs say {wanted}: {record}")


def _verdict(record: WorkloadRecord, succeeded: int, failures: int, killed: int) -> WorkloadState:
    if record.is_archived or record.is_cancelled:
        return WorkloadState.ARCHIVED if record.is_archived else WorkloadState.CANCELLED
    came = succeeded + failures
    bad = bool(came) and failures / came > record.terms.failures
    return WorkloadState.FAILED if bad or (killed and not succeeded) else WorkloadState.SUCCEEDED


def _holds(state: State, attempt: Attempt) -> bool:
    return attempt.uid in state.held.get(attempt.worker, ()) and not attempt.behind


def states_of(job: Job, store: MemoryStore) -> dict[str, str]:
    """How each task of a job ended that has a row of its own, by its name."""
    found: dict[str, str] = {}
    for index in range(job.total):
        task = store.find_task(job.id, index)
        if task is not None and task.state in JobState and task.state.final:
            found[f"{job.id}/{index}" if job.numbered else job.id] = task.state.value
    return found
