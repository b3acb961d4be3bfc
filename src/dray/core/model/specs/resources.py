"""What one task asks for, in integers: millicores, bytes, milli-GPUs.

The asks of a job's alternatives are its shape: all tasks with equal ones are one class to the scheduler, so an `Ask`
holds everything that is matched, the node count and a bucket of the time limit, and leaves out what differs from job to
job (deadline, expected run time, name).
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from dray.core.model.specs.health import port_names
from dray.core.model.specs.ports import port_needs
from dray.core.model.specs.spec import ANY_TYPE, JobSpec, unpack_spec, with_variant
from dray.core.model.units import GB

WHOLE = 1000
# Among what is preferred: the first alternative that fits anywhere, whatever the others score.
IN_ORDER = "order"


class Ask(msgspec.Struct, frozen=True):
    """One task's requirement. `gpu_milli` is the share of each card it takes: WHOLE, or less of a single one."""

    pool: str = "batch"
    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: int = 0
    gpu_milli: int = WHOLE
    gpu_type: str = ""
    backend: str = ""
    vram_total_bytes: int = 0
    vram_each_bytes: int = 0
    device_kind: str = ""
    device_variant: str = ""
    require: tuple[str, ...] = ()
    resources: tuple[tuple[str, int], ...] = ()
    nodes: int = 1
    features: tuple[str, ...] = ()
    limit_bucket: int = 0
    prefer: tuple[str, ...] = ()
    mixed_backends: bool = False


def ask_of(spec: JobSpec) -> Ask:
    """Read a complete spec as the ask of one of its tasks."""
    device = spec.device
    shared = 0 < spec.gpu_milli < WHOLE
    needs = []
    if spec.node_count > 1:
        needs.append("gang")
    if spec.function:
        needs.append("calls")
    if shared:
        needs.append("shared_gpu")
    if spec.overlap == "fenced":
        needs.append("lease")
    if spec.ports:
        needs.append("ports")
    return Ask(
        pool=spec.slot_pool or spec.type,
        cpu_milli=spec.cpu_milli or round(spec.min_cpu_cores * 1000),
        memory_bytes=spec.memory_bytes,
        gpus=spec.gpu_count,
        gpu_milli=spec.gpu_milli if shared else WHOLE,
        gpu_type=_type_of(spec.gpu_type),
        backend=spec.gpu_backend,
        vram_total_bytes=round(spec.min_vram_gb * GB),
        vram_each_bytes=spec.vram_per_gpu_bytes,
        device_kind="" if device is None else device.kind,
        device_variant="" if device is None else _type_of(device.variant),
        require=tuple(sorted(spec.require)),
        resources=tuple(sorted({**spec.resources, **_port_needs(spec)}.items())),
        nodes=spec.node_count,
        features=tuple(needs),
        limit_bucket=round(spec.limit_s).bit_length(),
        prefer=tuple(sorted(spec.prefer)),
        mixed_backends=spec.mixed_backends,
    )


def _port_needs(spec: JobSpec) -> dict[str, int]:
    """The ports that one of its tasks gets: those it names, one that only its check needs, one where a gang meets."""
    unnamed = 0 if spec.ports else len(port_names((), spec.health_check))
    return port_needs(spec.ports, unnamed + (spec.node_count > 1))


def _type_of(text: str) -> str:
    return "" if text.lower() == ANY_TYPE else text.lower()


Asks = tuple[Ask, ...]


def asks_of(spec: JobSpec) -> Asks:
    """The asks of a job's alternatives in order; most jobs have one."""
    if not spec.variants:
        return (ask_of(spec),)
    return tuple(ask_of(with_variant(spec, number)) for number in range(len(spec.variants)))


@lru_cache(maxsize=1024)
def asks_of_packed(packed: bytes) -> Asks:
    """The same of a packed spec."""
    return asks_of(unpack_spec(packed))


class Rejection(msgspec.Struct, frozen=True):
    """One "no" as a value: what was needed, what is there. Turned into words late, once, for every renderer.

    `ever` tells a "cannot ever on this worker" from a "cannot now". `amount` is what is there as a number, so that the
    worker that comes closest can be named.
    """

    kind: str
    need: str
    have: str
    ever: bool = False
    amount: int = 0
