"""A hub's own stored history as a trace: what ended, when it was submitted, how long it truly ran.

Reads the store's file beside a running hub and changes nothing. Every task that ran becomes a job of its own, a gang
one as a whole; the time it ran is that of its last attempt. Calls of a function become what their places were: each
lane is a job that held its place for so long. Work that never ran says nothing about run times and is left out.

A worker that has left takes part from its first start on, and until its last end where one of its kind has stayed:
under another policy work may be left over then, and something must be there to run it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from dray.core.model.capability import Slots
from dray.core.model.records.records import Attempt, Job
from dray.core.model.records.worker import Worker
from dray.core.model.specs.resources import ask_of
from dray.core.model.specs.spec import pack_spec, unpack_spec
from dray.errors import InvalidInput
from dray.hub.store.base import JobFilter
from dray.hub.store.sqlite.queries import Reader
from dray.sim.traces.failures import Failure
from dray.sim.traces.readers import settle
from dray.sim.traces.workload import EPOCH_MS, LOSSES, Node, TraceJob

PAGE = 500
MOST_ATTEMPTS = 1_000_000
FILE_NAME = "hub.sqlite"


class History(NamedTuple):
    """What happened: jobs with their run times, the workers that were there, and when those were not."""

    jobs: list[TraceJob]
    nodes: list[Node]
    absences: list[Failure]


class Use:
    """When a worker was first and last seen to run something."""

    __slots__ = ("first_ms", "last_ms")

    def __init__(self, attempt: Attempt) -> None:
        self.first_ms, self.last_ms = attempt.started_at_ms, attempt.ended_at_ms

    def see(self, attempt: Attempt) -> None:
        self.first_ms = min(self.first_ms, attempt.started_at_ms)
        self.last_ms = max(self.last_ms, attempt.ended_at_ms)


def read_history(home: Path, since_ms: int) -> History:
    """Jobs submitted since a moment of wall time, and the workers that ran them or are there now."""
    path = home / FILE_NAME
    if not path.exists():
        raise InvalidInput(
            f"{path} does not exist: --history reads the store of a hub's home, give it with --home"
        )
    reader = Reader(path)
    used: dict[str, Use] = {}
    try:
        jobs = [
            one
            for job in _jobs(reader, since_ms)
            for one in runs_of(job, reader.find_attempts(job.id, None, MOST_ATTEMPTS), used)
        ]
        workers = [worker for worker in reader.load().workers if worker.id in used or not worker.left]
    finally:
        reader.close()
    if not jobs:
        raise InvalidInput(
            f"{path} holds no job of that time that ran to its end: go back further with --since"
        )
    zero_ms = EPOCH_MS + min(job.arrival_ms for job in jobs)
    return History(settle(jobs), [node_of(worker) for worker in workers], absences_of(workers, used, zero_ms))


def _jobs(reader: Reader, since_ms: int) -> Iterator[Job]:
    before = 0
    while True:
        page = reader.list_jobs(JobFilter(before_seq=before, limit=PAGE))
        for job in page:
            if job.submitted_at_ms >= since_ms:
                yield job
        if len(page) < PAGE or page[-1].submitted_at_ms < since_ms:
            return
        before = page[-1].seq


def runs_of(job: Job, attempts: Iterable[Attempt], used: dict[str, Use]) -> Iterator[TraceJob]:
    """What of a job ran to an end, each task as a job of its own; `used` learns which workers were there when."""
    last: dict[int, Attempt] = {}
    lanes = 0
    for attempt in attempts:
        if not attempt.started or not attempt.ended_at_ms >= attempt.started_at_ms > 0:
            continue
        if attempt.worker in used:
            used[attempt.worker].see(attempt)
        else:
            used[attempt.worker] = Use(attempt)
        if attempt.lane:
            last[lanes] = msgspec.structs.replace(attempt, index=lanes)
            lanes += 1
        else:
            last[attempt.index] = attempt
    members = list(last.values())
    for attempt in members[:1] if job.gang else members:
        yield trace_job(job, attempt.index, attempt.ended_at_ms - attempt.started_at_ms)


def trace_job(job: Job, index: int, ran_ms: int) -> TraceJob:
    """One task of a job as a job of its own, which runs for so long."""
    spec = unpack_spec(job.spec)
    alone = msgspec.structs.replace(spec, array=None, after=[], hold=False, deadline="", losses=LOSSES)
    if spec.function:
        # A lane held one place for its whole time, as a command does.
        alone = msgspec.structs.replace(alone, function=b"", command=["true"])
    ask = ask_of(spec)
    deadline_ms = job.deadline_ms
    if deadline_ms:
        # The replay has its own calendar: what counts is how long there was from the submit on.
        deadline_ms = max(1, deadline_ms - EPOCH_MS)
    return TraceJob(
        id=f"{job.id}-{index}",
        arrival_ms=max(0, job.submitted_at_ms - EPOCH_MS),
        duration_ms=max(1, ran_ms),
        user=job.user or "nobody",
        queue=job.queue,
        cpu_milli=ask.cpu_milli * ask.nodes,
        memory_bytes=ask.memory_bytes * ask.nodes,
        gpus=ask.gpus * ask.nodes,
        gpu_milli=ask.gpu_milli,
        priority=job.priority,
        deadline_ms=deadline_ms,
        spec=pack_spec(alone),
    )


def node_of(worker: Worker) -> Node:
    """A worker as a replay has it."""
    capability = worker.capability
    return Node(
        name=worker.id,
        cpu_milli=round(capability.cpu_count * 1000),
        memory_bytes=round(capability.memory_gb * 10**9),
        gpus=capability.gpu_count,
        model=capability.gpu_type,
        capability=capability,
        devices=worker.devices,
        labels=worker.all_labels,
        resources=worker.resources,
        ports=worker.ports,
        **_slots(worker.slots),
    )


def _slots(slots: Slots) -> dict[str, Slots]:
    """The room that it said it has, empty; nothing where it said so later than when it registered."""
    if not slots.batch_total + slots.service_total:
        return {}
    return {"slots": Slots(batch_total=slots.batch_total, service_total=slots.service_total)}


def absences_of(workers: Iterable[Worker], used: dict[str, Use], zero_ms: int) -> list[Failure]:
    """When workers that have left were not there."""
    workers = list(workers)
    stayed = {kind_of(worker) for worker in workers if not worker.left}
    found: list[Failure] = []
    for worker in workers:
        if not worker.left:
            continue
        use = used[worker.id]
        if (first_ms := use.first_ms - zero_ms) > 0:
            found.append(Failure(0, first_ms, worker.id))
        if kind_of(worker) in stayed:
            found.append(Failure(max(1, use.last_ms - zero_ms), 0, worker.id))
    return found


def kind_of(worker: Worker) -> bytes:
    """What makes two workers equal for every job: all but their names."""
    capability = msgspec.structs.replace(worker.capability, hostname="")
    models = [(device.model, device.vram_bytes) for device in worker.devices]
    slots = (worker.slots.batch_total, worker.slots.service_total)
    return msgspec.msgpack.encode((capability, models, sorted(worker.all_labels.items()), slots))
