"""The part of a state that decides who starts next, in pieces small enough to be packed between turns, and back again.

Taken piece by piece while the state moves on, so it may show one thing a moment later than another: whoever builds a
state from it leaves out what does not fit together. Good for estimates, never for decisions.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from dray.core.lifecycle.recovery import load, read_ledger
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.lines import RANGE
from dray.core.lifecycle.state.state import Counters, State
from dray.core.lifecycle.state.timings import Rules
from dray.core.lifecycle.tasks.jobs import next_index
from dray.core.model.capability import Slots
from dray.core.model.records.ledger import Receipt, TemplateRecord, pack_record
from dray.core.model.records.records import Attempt, Job, JobState, Task
from dray.core.model.records.worker import Presence, Worker
from dray.core.scheduling.turns.order import Turns

PIECE = 400
PIECE_BYTES = 1 << 20
MOST_LINES = 2_000
PLENTY = 1 << 20
TaskKey = tuple[str, int]


class Learned(msgspec.Struct, array_like=True):
    """What placement goes by beside the cluster itself: run times and steps a second by job name and kind of card, and
    where what is warm.
    """

    runtimes: list[tuple[str, str, float, int]] = []
    rates: list[tuple[str, str, float, int]] = []
    warm: dict[str, list[str]] = {}


class Piece(msgspec.Struct, array_like=True):
    """One part; only the first holds more than records."""

    now_ms: int = 0
    at_ms: int = 0
    counters: Counters | None = None
    ledger: list[tuple[str, str, bytes]] = []
    spans: dict[str, tuple[int, ...]] = {}
    shares: list[float] = []
    present: list[tuple[str, Slots]] = []
    wanted: list[TaskKey] = []
    workers: list[Worker] = []
    jobs: list[Job] = []
    tasks: list[Task] = []
    attempts: list[Attempt] = []
    calls: dict[str, float] = {}
    learned: Learned | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Piece).decode


def pack_scene(
    state: State, clock: Clock, most: int, guests: Sequence[Job] = (), learned: bool = False
) -> Iterator[bytes]:
    """Pack what a forecast of the first waiting tasks needs; stops after every piece.

    `learned`: with all that placement has learnt, for whoever decides between workers.
    """
    wanted = first_waiting(state, most)
    wanted += [(job.id, 0) for job in guests]
    head = Piece(now_ms=clock.now_ms, at_ms=clock.at_ms, counters=state.counters, wanted=wanted)
    head.ledger = [
        (*key, pack_record(record))
        for key, record in state.ledger.items()
        if not isinstance(record, TemplateRecord)
        and (not isinstance(record, Receipt) or record.status == "open")
    ]
    head.spans, head.shares = dict(state.experience.spans.by_name), list(state.experience.spans.shares)
    head.calls = dict(state.experience.calls)
    head.jobs = list(guests)
    # Without those that stand behind others: they wait for moments.
    live = [attempt for attempt in state.attempts.values() if attempt.phase.live and not attempt.behind]
    workers = list(state.workers.values())
    if learned:
        head.learned = _learned(state)
    yield _encode(head)
    for first in range(0, len(workers), PIECE):
        some = workers[first : first + PIECE]
        yield _encode(Piece(workers=some, present=list(_present(state, some))))
    jobs = dict.fromkeys([key[0] for key in wanted] + [attempt.job_id for attempt in live])
    for some_jobs in _portions(state, list(jobs)):
        again = [
            state.tasks[job.id, index]
            for job in some_jobs
            for index in islice(state.requeued_of.get(job.id, ()), most)
        ]
        yield _encode(Piece(jobs=some_jobs, tasks=again))
    for first in range(0, len(live), PIECE):
        some_live = live[first : first + PIECE]
        keys = [(attempt.job_id, attempt.index) for attempt in some_live]
        yield _encode(
            Piece(attempts=some_live, tasks=[state.tasks[key] for key in keys if key in state.tasks])
        )


def _learned(state: State) -> Learned:
    known = state.experience
    return Learned(
        [(name, kind, mean, count) for (name, kind), (mean, count) in known.runtimes.items()],
        [(name, kind, rate, count) for (name, kind), (rate, count) in known.speeds.rates.items()],
        {token: list(workers) for token, workers in known.warm.items()},
    )


def _portions(state: State, names: list[str]) -> Iterator[list[Job]]:
    """Jobs by the piece: so many, or fewer where their specs are large."""
    some: list[Job] = []
    size = 0
    for name in names:
        if (job := state.jobs.get(name)) is None:
            continue
        if some and (len(some) == PIECE or size + len(job.spec) > PIECE_BYTES):
            yield some
            some, size = [], 0
        some.append(job)
        size += len(job.spec)
    if some:
        yield some


def first_waiting(state: State, most: int, shapes: Container[int] | None = None) -> list[TaskKey]:
    """The first tasks that would be served, in the order of a pass; of very many lines only some are looked at.

    `shapes`: only tasks of these.
    """
    lines = (line for line in state.backlog.buckets if shapes is None or line.shape in shapes)
    turns = Turns(state, islice(lines, MOST_LINES))
    found: list[TaskKey] = []
    while len(found) < most and (head := turns.pop()) is not None:
        entry, job = head.rank[2], head.job
        if entry.position != RANGE:
            found.append((job.id, entry.position))
        else:
            first = next_index(state, job)
            found += [(job.id, index) for index in range(first, min(job.total, first + most - len(found)))]
        turns.push_next(head.line)
    return found


def _present(state: State, workers: Iterable[Worker]) -> Iterator[tuple[str, Slots]]:
    for worker in workers:
        presence, row = state.presence.get(worker.id), state.columns.row_of.get(worker.id)
        if presence is not None and row is not None and state.columns.get("open", row):
            yield worker.id, presence.slots


def build_scene(packed: Iterable[bytes]) -> tuple[State, Clock, list[TaskKey]]:
    """A state made of a scene, its moment, and the tasks that are asked for."""
    pieces = [_decode(piece) for piece in packed]
    head = pieces[0]
    clock = Clock(head.now_ms, head.at_ms)
    state = State(Rules())
    state.now_ms = state.started_ms = head.now_ms
    read_ledger(state, head.ledger)
    state.experience.spans.by_name.update(head.spans)
    state.experience.spans.shares.extend(head.shares)
    state.experience.calls.update(head.calls)
    if (learned := head.learned) is not None:
        known = state.experience
        known.runtimes.update({(name, kind): (mean, count) for name, kind, mean, count in learned.runtimes})
        known.speeds.rates.update({(name, kind): (rate, count) for name, kind, rate, count in learned.rates})
        known.warm.update({token: dict.fromkeys(workers) for token, workers in learned.warm.items()})
    workers = [worker for piece in pieces for worker in piece.workers]
    jobs, tasks, attempts = _fit_together(pieces, {worker.id for worker in workers})
    load(state, head.counters or Counters(), (jobs, tasks, attempts, workers))
    for piece in pieces:
        for worker_id, slots in piece.present:
            free = Slots(batch_total=slots.batch_total, service_total=slots.service_total)
            state.presence[worker_id] = Presence(session=1, seen_ms=head.now_ms, credit=PLENTY, slots=free)
            state.touch_worker(worker_id)
    return state, clock, head.wanted


def _fit_together(pieces: list[Piece], workers: set[str]) -> tuple[list[Job], list[Task], list[Attempt]]:
    """Only what belongs to something that is there, with the jobs' own counts made to agree."""
    jobs = {job.id: job for piece in pieces for job in piece.jobs if not job.state.final}
    tasks = {
        (task.job_id, task.index): task for piece in pieces for task in piece.tasks if task.job_id in jobs
    }
    attempts = [
        attempt
        for piece in pieces
        for attempt in piece.attempts
        if attempt.phase.live
        and attempt.worker in workers
        and (
            attempt.job_id in jobs
            if attempt.lane
            else (task := tasks.get((attempt.job_id, attempt.index))) is not None
            and task.current == attempt.uid
        )
    ]
    held = {(attempt.job_id, attempt.index) for attempt in attempts}
    kept = {key: task for key, task in tasks.items() if key in held or (task.queued and not task.current)}
    for job in jobs.values():
        job.requeued = job.running = 0
    for lane in attempts:
        if lane.calls is not None:
            # Their records stay behind: each counts as if it were there for the first time.
            lane.calls = dict.fromkeys((index for index, number in lane.calls.items() if number > 0), 1)
            jobs[lane.job_id].running += bool(lane.calls and lane.accepted_at_ms)
    for key, task in kept.items():
        jobs[key[0]].requeued += task.queued and key not in held
        jobs[key[0]].running += task.state is JobState.RUNNING
    for job in jobs.values():
        job.state = JobState.RUNNING if job.running else JobState.PENDING
    return list(jobs.values()), list(kept.values()), attempts
