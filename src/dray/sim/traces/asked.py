"""Replays that a hub asks a process beside it for: its own past under other policies, or with further workers.

What a hub sends is rows. What has not ended yet takes part too, or a cluster that is behind would seem to have little
to do: it runs as long as others of its name did, else of its user and size. The surprising rule: a replay of the past
as it was comes first, and everything is compared with that, never with what was measured: the simulator knows no
machine that was slow one night.
"""

from __future__ import annotations

import statistics
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Protocol
from zlib import crc32

import msgspec
import numpy as np

from dray.core.model.policies.policy import Policy, unpack_policy
from dray.core.model.records.records import OPEN_STATES, Attempt, Job
from dray.core.model.records.worker import Worker
from dray.core.model.specs.resources import ask_of
from dray.core.model.specs.spec import unpack_spec
from dray.errors import InvalidInput
from dray.sim.traces.failures import Failure
from dray.sim.traces.figures import measure
from dray.sim.traces.history import Use, absences_of, kind_of, node_of, runs_of, trace_job
from dray.sim.traces.ledger import Ledger
from dray.sim.traces.readers import settle
from dray.sim.traces.workload import EPOCH_MS, Node, TraceJob, check_workload
from dray.sim.traces.world import World

MOST_RUNS = 20_000
MOST_KINDS = 6
BUDGET_S = 300.0
STEPS = 200
# Where nothing at all has ended yet that could tell.
UNKNOWN_MS = 3_600_000
# One that has run longer than any before goes on for about as long again.
LONGER = 2


class Rows(msgspec.Struct, array_like=True):
    """A piece of the past: jobs with their attempts, and workers."""

    jobs: list[tuple[Job, list[Attempt]]] = []
    workers: list[Worker] = []


class Asked(msgspec.Struct):
    """What to replay: policies as they are stored, by name, the one in force first; copies of workers; how many of each
    kind are tried, for advice; the moment until which the rows go.
    """

    at_ms: int
    policies: list[tuple[str, bytes]] = []
    more: list[tuple[str, int]] = []
    counts: list[int] = []


class Figures(msgspec.Struct, array_like=True):
    """How one replay went, waits until the first start in seconds; of each user the middle one."""

    name: str
    jobs: int
    unfinished: int
    wait_p50_s: float
    wait_p90_s: float
    wait_mean_s: float
    gpu_utilisation: float
    preemptions: int
    makespan_s: float
    users: dict[str, float]


class Option(msgspec.Struct, array_like=True):
    """So many more workers like one that is there."""

    like: str
    count: int
    figures: Figures


class Advice(msgspec.Struct, array_like=True):
    """The past as it was, and with each option; `left_out`: kinds for which there was no time."""

    base: Figures
    options: list[Option]
    left_out: list[str]
    guessed: int


class Course(Protocol):
    """Whether to go on, and who hears how far it has come."""

    def __call__(self) -> bool: ...
    def tell(self, done: int, of: int, what: str = "") -> None: ...


class Past:
    """What a hub remembers, ready to be replayed. `guessed`: of how many runs it is guessed how long they take."""

    def __init__(self, rows: Iterable[Rows], at_ms: int) -> None:
        used: dict[str, Use] = {}
        jobs, self.workers = list[tuple[Job, list[Attempt]]](), list[Worker]()
        for piece in rows:
            jobs += piece.jobs
            self.workers += piece.workers
        ended = [(job, one) for job, attempts in jobs for one in runs_of(job, attempts, used)]
        still = _guess(jobs, ended, at_ms, MOST_RUNS - len(ended))
        self.guessed = len(still)
        runs = [one for _, one in ended] + still
        if not runs:
            raise InvalidInput("no job of that time ran or waits: go back further with `since`")
        self.workers = [worker for worker in self.workers if worker.id in used or not worker.left]
        zero_ms = EPOCH_MS + min(one.arrival_ms for one in runs)
        self.jobs: list[TraceJob] = settle(runs)
        self.absences: list[Failure] = absences_of(self.workers, used, zero_ms)
        self.nodes = [node_of(worker) for worker in self.workers]

    def run(self, name: str, policy: Policy, more: Sequence[Node], tell: Any) -> Figures:
        """One replay, in figures."""
        nodes = [*self.nodes, *more]
        check_workload(self.jobs, nodes)
        ledger = World(nodes, policy, failures=self.absences, progress=tell).run(self.jobs)
        return tell_figures(name, ledger)

    def copies(self, like: str, count: int) -> list[Node]:
        """Further machines."""
        origin = next((node for node in self.nodes if node.name == like), None)
        if origin is None:
            raise InvalidInput(f"no worker {like!r} was there in that time")
        return [msgspec.structs.replace(origin, name=f"{like}+{number + 1}") for number in range(count)]


def replay(pieces: Sequence[bytes], course: Course) -> list[Figures]:
    """The past under each policy, with further machines where those are asked for; as it was comes first."""
    asked, past = _open(pieces)
    more = [node for like, count in asked.more for node in past.copies(like, count)]
    (_, in_force), *others = [(name, unpack_policy(packed)) for name, packed in asked.policies]
    runs: list[tuple[str, Policy, list[Node]]] = [("as it was", in_force, [])]
    if more:
        runs.append(("with more workers", in_force, more))
    runs += [(name, policy, more) for name, policy in others]
    found = []
    for number, (name, policy, nodes) in enumerate(runs):
        found.append(past.run(name, policy, nodes, _teller(course, number, len(runs), name)))
    return found


def advise(pieces: Sequence[bytes], course: Course) -> Advice:
    """The past with so many more workers of each kind, those kinds first of which there are most."""
    asked, past = _open(pieces)
    policy = unpack_policy(asked.policies[0][1])
    kinds: dict[bytes, list[str]] = {}
    for worker in past.workers:
        if not worker.left:
            kinds.setdefault(kind_of(worker), []).append(worker.id)
    likes = [names[0] for names in sorted(kinds.values(), key=lambda names: (-len(names), names[0]))]
    wanted = [(like, count) for count in asked.counts for like in likes[:MOST_KINDS]]
    began, of = time.monotonic(), len(wanted) + 1
    base = past.run("as it was", policy, [], _teller(course, 0, of, "as it was"))
    options, left_out = [], likes[MOST_KINDS:]
    for number, (like, count) in enumerate(wanted):
        if time.monotonic() - began > BUDGET_S or not course():
            left_out += [like for like, _ in wanted[number:] if like not in left_out]
            break
        what = f"{count} more like {like}"
        figures = past.run(what, policy, past.copies(like, count), _teller(course, number + 1, of, what))
        options.append(Option(like, count, figures))
    return Advice(base, options, left_out, past.guessed)


def _open(pieces: Sequence[bytes]) -> tuple[Asked, Past]:
    asked = msgspec.msgpack.decode(pieces[0], type=Asked)
    decode = msgspec.msgpack.Decoder(Rows).decode
    return asked, Past(map(decode, pieces[1:]), asked.at_ms)


def _teller(course: Course, number: int, of: int, what: str) -> Any:
    told = [0.0]

    def tell(done: int, total: int) -> None:
        if (now := time.monotonic()) - told[0] > 0.2:
            told[0] = now
            course.tell(round(STEPS * (number + done / max(1, total))), STEPS * of, what)

    return tell


def tell_figures(name: str, ledger: Ledger) -> Figures:
    """What people compare replays by."""
    found, columns = measure(ledger), ledger.columns()
    started = columns["first"] >= 0
    waits = (columns["first"] - columns["arrival"])[started] / 1000
    users: dict[str, list[float]] = {}
    for place, wait in zip(np.flatnonzero(started).tolist(), waits.tolist(), strict=True):
        users.setdefault(ledger.jobs[place].user, []).append(wait)
    p50, p90 = (float(value) for value in np.percentile(waits, [50, 90])) if len(waits) else (0.0, 0.0)
    return Figures(
        name,
        len(ledger.jobs),
        found["unfinished"],
        round(p50, 3),
        round(p90, 3),
        round(float(waits.mean()), 3) if len(waits) else 0.0,
        found["gpu_utilisation"],
        found["preemptions"],
        found["makespan_s"],
        {user: round(statistics.median(each), 3) for user, each in users.items()},
    )


# --- what has not ended -----------------------------------------------------------------------------------------------


def _guess(
    jobs: Sequence[tuple[Job, list[Attempt]]], ended: Sequence[tuple[Job, TraceJob]], at_ms: int, most: int
) -> list[TraceJob]:
    """Tasks that run or wait, each for as long as others like it took; services have no end and stay out."""
    spans: dict[tuple[str, ...], list[int]] = {}
    for job, run in ended:
        for key in _likeness(job, run.gpus):
            spans.setdefault(key, []).append(run.duration_ms)
    known = {key: sorted(each) for key, each in spans.items()}
    found: list[TraceJob] = []
    for job, attempts in jobs:
        if job.state not in OPEN_STATES or job.service or len(found) >= most:
            continue
        ask = ask_of(unpack_spec(job.spec))
        like = next((known[key] for key in _likeness(job, ask.gpus * ask.nodes) if key in known), [])
        live = [one for one in attempts if one.phase.live and one.started_at_ms]
        runs = {one.index: at_ms - one.started_at_ms for one in live}
        if job.gang:
            found.append(trace_job(job, 0, _draw(job, 0, like, max(runs.values(), default=0))))
            continue
        found += [trace_job(job, one, _draw(job, one, like, ran)) for one, ran in runs.items() if one >= 0]
        last = min(job.total, job.cursor + most - len(found)) if job.untouched else job.cursor
        found += [trace_job(job, one, _draw(job, one, like, 0)) for one in range(job.cursor, last)]
    return found[:most]


def _draw(job: Job, index: int, like: Sequence[int], ran_ms: int) -> int:
    """How long one runs in all: as one of those that took longer than it has run already, by its id."""
    longer = like[bisect_right(like, ran_ms) :]
    if longer:
        span_ms = longer[crc32(f"{job.id}/{index}".encode()) % len(longer)]
    else:
        span_ms = ran_ms * LONGER or job.expected_ms or job.limit_ms or UNKNOWN_MS
    return max(ran_ms + 1, min(span_ms, job.limit_ms) if job.limit_ms else span_ms)


def _likeness(job: Job, gpus: int) -> list[tuple[str, ...]]:
    """By what a job is like another, the closest first."""
    return [("name", job.user, job.name), ("user", job.user, str(gpus)), ("size", str(gpus)), ("any",)]
