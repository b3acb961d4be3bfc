"""Jobs, workers and events as the mirror spells them: JSON with the names of the HTTP API, less than it has.

A document of a job begins with `as_of`, which says by its bytes which of two is the newer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from dray.core.lifecycle.state.effects import Note
from dray.core.model.records.records import Job
from dray.core.model.records.worker import Worker
from dray.core.model.specs.spec import unpack_spec
from dray.hub.documents.public_feed import spell_events
from dray.hub.documents.records import moment, task_counts
from dray.hub.mirror.groups import Event

_encode = msgspec.json.Encoder().encode
_moment = lru_cache(maxsize=4096)(moment)
# Where `as_of` stands in a document: after `{"as_of":"`.
AS_OF_FROM, AS_OF_TO = 10, 32


class _JobDocument(msgspec.Struct, gc=False):
    as_of: str
    id: str
    name: str
    state: str
    user: str
    queue: str
    priority: int
    tier: str
    labels: dict[str, str]
    submitted_at: str | None
    started_at: str | None
    ended_at: str | None
    tasks: dict[str, int]
    held: bool
    after: tuple[str, ...]
    cancel_requested: bool
    error: str


class _WorkerDocument(msgspec.Struct):
    id: str
    backend: str
    gpu_count: int
    gpu_type: str
    vram_gb: int | float
    cpu_count: int | float
    memory_gb: int | float
    hostname: str
    labels: dict[str, str]
    resources: dict[str, int]
    batch_slots: int
    service_slots: int
    draining: bool
    drain_reason: str
    silent: bool
    gone_at: str | None
    registered_at: str | None


def spell_as_of(epoch: int, seq: int) -> str:
    """When a document was true, in a form that compares by its bytes."""
    return f"{epoch:010x}-{seq:012x}"


def spell_job(job: Job, as_of: str) -> bytes:
    """The document of a job."""
    document = _JobDocument(
        as_of,
        job.id,
        job.name,
        job.state.value,
        job.user,
        job.queue,
        job.priority,
        job.tier,
        unpack_spec(job.spec).labels,
        _moment(job.submitted_at_ms),
        _moment(job.started_at_ms),
        _moment(job.ended_at_ms),
        task_counts(job),
        job.held,
        job.after,
        job.cancelled,
        job.error,
    )
    return _encode(document)


def spell_worker(worker: Worker) -> bytes:
    """What a worker registered, and whether it gets work; who is connected is the hub's alone to know."""
    capability, slots = worker.capability, worker.slots
    document = _WorkerDocument(
        worker.id,
        capability.gpu_backend or "cpu",
        capability.gpu_count,
        capability.gpu_type,
        capability.vram_gb,
        capability.cpu_count,
        capability.memory_gb,
        capability.hostname,
        worker.all_labels,
        worker.resources,
        slots.batch_total,
        slots.service_total,
        worker.draining,
        worker.drain_reason,
        worker.silent,
        moment(worker.gone_at_ms),
        moment(worker.registered_at_ms),
    )
    return _encode(document)


def spell_notes(seq: int, at_ms: int, notes: Sequence[Note]) -> list[tuple[str, Event]]:
    """Events of one turn, each after the id of its job: under the feed's own numbers, as a stream wants them."""
    events = spell_events(seq, at_ms, notes)
    return [
        (note.job_id, (f"{seq}-{place}", event.type, _encode(event.data)))
        for place, (note, event) in enumerate(zip(notes, events, strict=True))
    ]
