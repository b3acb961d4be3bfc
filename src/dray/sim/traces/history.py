"""A hub's own stored history as a trace: what ended, when it was submitted, how long it truly ran.

Reads the store's file beside a running hub and changes nothing. Every task that ran becomes a job of its own, a gang
one as a whole; the time it ran is that of its last attempt. Work that never ran says nothing about run times and is
left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from dray.core.model.records import Attempt, Job
from dray.core.model.resources import ask_of
from dray.core.model.spec import pack_spec, unpack_spec
from dray.core.model.worker import Worker
from dray.errors import InvalidInput
from dray.hub.store.base import JobFilter
from dray.hub.store.queries import Reader
from dray.sim.traces.readers import settle
from dray.sim.traces.workload import EPOCH_MS, LOSSES, Node, TraceJob

PAGE = 500
MOST_ATTEMPTS = 1_000_000
FILE_NAME = "hub.sqlite"


def read_history(home: Path, since_ms: int) -> tuple[list[TraceJob], list[Node]]:
    """Jobs submitted since a moment of wall time, and the workers that the hub knows."""
    path = home / FILE_NAME
    if not path.exists():
        raise InvalidInput(
            f"{path} does not exist: --history reads the store of a hub's home, give it with --home"
        )
    reader = Reader(path)
    try:
        jobs = [one for job in _jobs(reader, since_ms) for one in _runs(reader, job)]
        nodes = [_node(worker) for worker in reader.load().workers if not worker.left]
    finally:
        reader.close()
    if not jobs:
        raise InvalidInput(
            f"{path} holds no job of that time that ran to its end: go back further with --since"
        )
    return settle(jobs), nodes


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


def _runs(reader: Reader, job: Job) -> Iterator[TraceJob]:
    last: dict[int, Attempt] = {}
    for attempt in reader.find_attempts(job.id, None, MOST_ATTEMPTS):
        if attempt.started and attempt.ended_at_ms >= attempt.started_at_ms > 0:
            last[attempt.index] = attempt
    members = list(last.values())
    for attempt in members[:1] if job.gang else members:
        yield _trace_job(job, attempt)


def _trace_job(job: Job, attempt: Attempt) -> TraceJob:
    spec = unpack_spec(job.spec)
    alone = msgspec.structs.replace(spec, array=None, after=[], hold=False, deadline="", losses=LOSSES)
    ask = ask_of(spec)
    deadline_ms = job.deadline_ms
    if deadline_ms:
        # The replay has its own calendar: what counts is how long there was from the submit on.
        deadline_ms = max(1, deadline_ms - EPOCH_MS)
    return TraceJob(
        id=f"{job.id}-{attempt.index}",
        arrival_ms=max(0, job.submitted_at_ms - EPOCH_MS),
        duration_ms=max(1, attempt.ended_at_ms - attempt.started_at_ms),
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


def _node(worker: Worker) -> Node:
    capability = worker.capability
    return Node(
        name=worker.id,
        cpu_milli=round(capability.cpu_count * 1000),
        memory_bytes=round(capability.memory_gb * 10**9),
        gpus=capability.gpu_count,
        model=capability.gpu_type,
        capability=capability,
        devices=worker.devices,
        labels=worker.labels,
        resources=worker.resources,
    )
