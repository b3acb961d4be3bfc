"""What is replayed: jobs with their true run times, nodes, and how each looks to the core.

Owns the translation into specs and registrations. Knows no file formats and no time. The surprising rule: a job that
asks for more cards than the largest node has becomes a gang of whole nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from dray.core.lifecycle.state.events import WorkerRegistered
from dray.core.model.capability import Capability, Device, Slots
from dray.core.model.specs.resources import WHOLE
from dray.core.model.specs.spec import JobSpec, Variant, pack_spec, unpack_spec
from dray.core.model.units import GB
from dray.errors import InvalidInput

EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
EPOCH_MS = int(EPOCH.timestamp()) * 1000
MANY = 1 << 20
CREDIT = 1 << 40
FEATURES = ("gang", "shared_gpu", "calls", "lease", "prewarm")
LOSSES = 1_000_000


class TraceJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One job of a trace. Times count from the trace's start.

    `duration_ms` is how long it truly runs once it holds everything, `restart_ms` what each start costs on top.
    `estimate_ms` is what its user believed: the order goes by it, and it becomes the time limit; without one the order
    goes by the true run time. `deadline_ms` 0: none. `again_ms` is what each start after the first costs.

    `speeds`: how fast it runs on each kind of card, `duration_ms` being how long it takes at 1; kinds that are not
    named run it at 1. `steps` is how many it makes in all, of which it tells; 0: it tells nothing. `name`: what it is
    called. `spec`: as a hub was given it; it then says all the rest. `snapshot`: the one that it needs.
    """

    id: str
    arrival_ms: int
    duration_ms: int
    user: str = "trace"
    queue: str = "default"
    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: int = 0
    gpu_milli: int = WHOLE
    models: tuple[str, ...] = ()
    priority: int = 0
    estimate_ms: int = 0
    deadline_ms: int = 0
    restart_ms: int = 0
    again_ms: int = 0
    speeds: dict[str, float] = {}
    steps: float = 0
    name: str = "trace"
    spec: bytes = b""
    snapshot: str = ""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One worker of the cluster; one that a hub knew also has what it registered. Without slots resources decide."""

    name: str
    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: int = 0
    model: str = ""
    capability: Capability | None = None
    devices: tuple[Device, ...] = ()
    labels: dict[str, str] = {}
    resources: dict[str, int] = {}
    ports: int = -1
    slots: Slots = Slots(batch_total=MANY, service_total=MANY)


class Shares(msgspec.Struct, frozen=True):
    """How a job is cut into tasks: so many nodes, so many cards on each."""

    nodes: int
    gpus: int


def cut(job: TraceJob, most_gpus: int) -> Shares:
    """Spread a job over as few nodes as hold its cards."""
    if job.spec:
        spec = unpack_spec(job.spec)
        return Shares(spec.node_count, spec.gpu_count)
    if job.gpus <= max(1, most_gpus):
        return Shares(1, job.gpus)
    nodes = -(-job.gpus // most_gpus)
    return Shares(nodes, -(-job.gpus // nodes))


def make_spec(job: TraceJob, shares: Shares) -> bytes:
    """The job as its user would have submitted it."""
    if job.spec:
        if not job.deadline_ms:
            return job.spec
        spec = unpack_spec(job.spec)
        return pack_spec(msgspec.structs.replace(spec, deadline=_moment(job.deadline_ms)))
    models = [model.lower() for model in job.models]
    return pack_spec(
        JobSpec(
            command=["true"],
            name=job.name,
            snapshot_id=job.snapshot,
            queue=job.queue,
            priority=job.priority,
            cpu_milli=job.cpu_milli // shares.nodes,
            memory_bytes=job.memory_bytes // shares.nodes,
            gpu_count=shares.gpus,
            gpu_milli=job.gpu_milli if shares.gpus else 0,
            gpu_type=models[0] if len(models) == 1 else "",
            variants=[Variant(name=model, gpu_type=model) for model in models] if len(models) > 1 else [],
            node_count=shares.nodes,
            expected_runtime_s=(job.estimate_ms or job.duration_ms + job.restart_ms) / 1000,
            # What is brought for it takes from its limit as well.
            max_runtime_s=job.estimate_ms / 1000 * (3 if job.snapshot else 1),
            deadline=_moment(job.deadline_ms) if job.deadline_ms else "",
            losses=LOSSES,
        )
    )


def _moment(at_ms: int) -> str:
    at = EPOCH + timedelta(milliseconds=at_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def register(node: Node, session: int) -> WorkerRegistered:
    """The node as its agent would have registered it."""
    capability = node.capability or Capability(
        gpu_backend="nvidia" if node.gpus else "cpu",
        gpu_count=node.gpus,
        gpu_type=node.model,
        cpu_count=node.cpu_milli / 1000,
        memory_gb=node.memory_bytes / GB,
        hostname=node.name,
    )
    devices = node.devices or tuple(Device(index=place, model=node.model) for place in range(node.gpus))
    return WorkerRegistered(
        node.name,
        session,
        capability,
        devices=devices,
        labels=node.labels,
        slots=node.slots,
        features=FEATURES,
        base=False,
        resources=node.resources,
        ports=node.ports,
    )


def check_workload(jobs: Sequence[TraceJob], nodes: Sequence[Node]) -> None:
    """Refuse a workload that could never run here, before anything is simulated."""
    if not jobs:
        raise InvalidInput("the trace holds no jobs")
    if not nodes:
        raise InvalidInput("the cluster holds no nodes")
    gpus = sum(node.gpus for node in nodes)
    widest = max(jobs, key=lambda job: job.gpus)
    if widest.gpus > gpus:
        raise InvalidInput(
            f"job {widest.id} asks for {widest.gpus} GPUs, the whole cluster has {gpus}: describe a larger one"
        )
