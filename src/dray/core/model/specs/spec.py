"""The spec of a job as the protocol names it, and what each tier means.

A spec in memory is always complete: defaults are filled in by `core.model.specs.check`, so that two specs can be
compared by their bytes. Base fields come first and are always sent; the rest are extensions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from dray.core.model.ids import EVERYBODY
from dray.core.model.objectives import Objective, pack_objective
from dray.core.model.units import DEFAULT_RUNTIME_S, MAX_RUNTIME_S, parse_moment, spread_indices


class Tier(NamedTuple):
    """Grace between TERM and KILL, and the priority of a job that names none (higher wins)."""

    grace_s: int
    priority: int


TIERS = {
    "data_processing": Tier(30, 0),
    "evaluation": Tier(120, 10),
    "training": Tier(600, 20),
    "fine_tuning": Tier(600, 20),
}
POOLS = ("batch", "service")
# Whether a replica of a service that has ended starts again.
RESTARTS = ("always", "never")
# A type of card, or a variant of a device, that says: any.
ANY_TYPE = "auto"
DEVICE_KINDS = ("cpu", "gpu", "tpu")
OVERLAPS = ("allowed", "fenced")
# What a rule of `retries` may say, beside the number of `code`.
BIGGER, ELSEWHERE = "bigger", "elsewhere"
FOREVER_NS = 2**63 - 1
MAX_NODES = 4096
MAX_TASKS = 10**7
MAX_REPLICAS = 10_000
MAX_COMMAND_BYTES = 256 * 1024
MAX_FUNCTION_BYTES = 256 * 1024
DEFAULT_LOSSES = 3
# Larger ones are read again each time: a thousand of them would stay in memory for whoever listed them.
MAX_KEPT_BYTES = 16 * 1024


class HealthProbe(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One way to ask a service: a path by HTTP, a connection, or a command; on `port` by its name, else on the first.

    `threshold` failures in a row count. Until it has passed once, none of `start_period_s` does.
    """

    http: str = ""
    tcp: bool = False
    command: list[str] = []
    port: str = ""
    interval_s: float = 5.0
    timeout_s: float = 2.0
    threshold: int = 1
    start_period_s: float = 600.0


class HealthCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a service says that it lives and that it is ready: apart, or by one check for both."""

    liveness: str | HealthProbe = ""
    readiness: str | HealthProbe = ""
    interval_secs: float = 10.0
    http: str = ""
    tcp: bool = False
    command: list[str] = []
    port: str = ""
    interval_s: float = 5.0
    timeout_s: float = 2.0
    threshold: int = 1
    start_period_s: float = 600.0
    unhealthy_after: int = 3


class UpdateRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """How replicas of a service are replaced: so many more at a time than there shall be, so many fewer that are ready;
    how long a new one may take to be ready and must have been so before an old one goes, and for how long that one gets
    no new requests before it is asked to stop.
    """

    max_surge: int = 1
    max_unavailable: int = 0
    ready_timeout_s: float = 600.0
    settle_s: float = 10.0
    drain_s: float = 5.0


class DeviceAsk(msgspec.Struct, frozen=True, omit_defaults=True):
    """The kind of device a task computes on; an empty variant or `auto` means any."""

    kind: str = "cpu"
    variant: str = ""
    count: int = 1


class ArraySpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Indices first, first+step … last; `limit` caps how many run at once (0: no cap); `open` takes further members.

    `indices` stands in place of the three: a list such as `1,3,5-9`. It never leaves the hub: each worker is told of
    a range in which its task has the index that it should have.
    """

    first: int = 0
    last: int = 0
    step: int = 1
    limit: int = 0
    open: bool = False
    indices: str = ""

    def index_of(self, task: int) -> int:
        """The index of the task that is this one within its job."""
        return spread_indices(self.indices)[task] if self.indices else self.first + task * self.step

    def told(self, task: int) -> dict[str, Any]:
        """The array as the worker of one task is told: a range, which workers of every version can read."""
        first = self.index_of(task) - task
        return {"first": first, "last": first + self.count - 1, "limit": self.limit}

    @property
    def count(self) -> int:
        """How many tasks there are; an open array may start empty (last below first)."""
        if self.indices:
            return len(spread_indices(self.indices))
        return max(0, (self.last - self.first) // self.step + 1)


class Retries(msgspec.Struct, frozen=True, omit_defaults=True):
    """What follows a failure, by what it was: `code` further tries after the program's own; `oom` and `node` say what
    is done instead about a card whose memory was too small (`bigger`) and about a fault of the machine (`elsewhere`).
    """

    code: int = 0
    oom: str = ""
    node: str = ""


class Variant(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One alternative way to run a job: what it gives replaces the job's own, `env` is laid over it."""

    name: str = ""
    gpu_count: int | None = None
    gpu_type: str | None = None
    gpu_backend: str | None = None
    min_vram_gb: float | None = None
    min_cpu_cores: float | None = None
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    gpu_milli: int | None = None
    vram_per_gpu_bytes: int | None = None
    device: DeviceAsk | None = None
    resources: dict[str, int] | None = None
    require: list[str] | None = None
    prefer: list[str] | None = None
    expected_runtime_s: float | None = None
    command: list[str] | None = None
    env: dict[str, str] = {}


class Rendered(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the hub notes of the template that a job was made by: the content's name, fields beside it that the template
    set (`kept`), and others that it left open.
    """

    digest: str = ""
    kept: list[str] = []
    open: list[str] = []


class JobSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One job as submitted, after defaults."""

    id: str = ""
    type: str = "batch"
    job_tier: str = "data_processing"
    slot_pool: str = ""
    user_id: str = ""
    gpu_count: int = 0
    gpu_type: str = ""
    gpu_backend: str = ""
    min_vram_gb: float = 0
    min_cpu_cores: float = 0
    node_count: int = 1
    max_runtime_hours: float = 0
    command: list[str] = []
    env: dict[str, str] = {}
    prolog: list[str] = []
    epilog: list[str] = []
    snapshot_id: str = ""
    snapshot_sha: str = ""
    health_check: HealthCheck | None = None
    metadata: dict[str, Any] = {}
    # extensions
    name: str = ""
    max_runtime_s: float = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
    gpu_milli: int = 0
    vram_per_gpu_bytes: int = 0
    device: DeviceAsk | None = None
    resources: dict[str, int] = {}
    labels: dict[str, str] = {}
    require: list[str] = []
    prefer: list[str] = []
    priority: int = 0
    queue: str = "default"
    workload: str = ""
    plugin: str = ""
    expected_runtime_s: float = 0
    deadline: str = ""
    scheduling_timeout_s: float = 0
    retries: int | Retries = 0
    losses: int = DEFAULT_LOSSES
    at_most_once: bool = False
    overlap: str = "allowed"
    lost_after_s: float = 0
    array: ArraySpec | None = None
    workdir: str = ""
    checkpoint: str = ""
    function: bytes = b""
    variants: list[Variant] = []
    after: list[str] = []
    hold: bool = False
    mixed_backends: bool = False
    notify: list[str] = []
    notify_to: list[str] = []
    template: str = ""
    params: dict[str, Any] = {}
    rendered: Rendered | None = None
    ports: list[str] = []
    replicas: int = 1
    restart: str = "always"
    interactive: bool = False
    share: list[str] = []
    uses: list[str] = []
    update: UpdateRules | None = None
    objective: Objective | None = None
    environment: str = ""

    def is_shared_with(self, user: str) -> bool:
        """Whether a user whose service it is not may reach it."""
        return user in self.share or EVERYBODY in self.share

    @property
    def replacing(self) -> UpdateRules:
        """How its replicas are replaced."""
        return self.update or UpdateRules()

    @property
    def goes_on(self) -> bool:
        """Whether it is a service whose replicas start again whenever they end: tasks, or groups of several nodes."""
        lasting = self.type == "service" and self.restart == "always"
        return lasting and self.array is None

    @property
    def limit_s(self) -> float:
        """The wall-clock budget of one run in seconds; 0 means none (services only)."""
        asked = self.max_runtime_s or self.max_runtime_hours * 3600
        if asked <= 0:
            return 0 if self.type == "service" else DEFAULT_RUNTIME_S
        return min(asked, MAX_RUNTIME_S)

    @property
    def deadline_ms(self) -> int:
        """Its deadline as a wall time; 0 where it has none."""
        return parse_moment(self.deadline) if self.deadline else 0

    @property
    def packed_objective(self) -> str:
        """What it says of how to choose among workers, as its record has it."""
        return pack_objective(self.objective)

    @property
    def template_name(self) -> str:
        """The template that it was made by, in whichever version; empty where there was none."""
        return self.template.partition("@")[0]

    @property
    def task_count(self) -> int:
        """How many tasks the job has when it is submitted."""
        if self.array is not None:
            return self.array.count
        return self.node_count * self.replicas

    @property
    def rules(self) -> Retries:
        """What follows a failure; a plain number speaks of every kind of failure."""
        return Retries(self.retries) if isinstance(self.retries, int) else self.retries

    @property
    def numbered(self) -> bool:
        """Whether its task ids carry an index: a job with one task shares its id with it."""
        return self.task_count != 1 or (self.array is not None and self.array.open)


def with_variant(spec: JobSpec, number: int) -> JobSpec:
    """The job as it runs by one of its alternatives; a job without any has only number 0, itself."""
    if not spec.variants:
        return spec
    variant = spec.variants[number]
    given = {
        name: value
        for name in Variant.__struct_fields__
        if name not in ("name", "env") and (value := getattr(variant, name)) is not None
    }
    return msgspec.structs.replace(spec, variants=[], env=spec.env | variant.env, **given)


ALWAYS_SENT = {"type": "batch", "slot_pool": "", "gpu_count": 0, "node_count": 1, "command": [], "env": {}}
_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(JobSpec)


def pack_spec(spec: JobSpec) -> bytes:
    """Encode a spec so that equal specs have equal bytes."""
    return _encoder.encode(spec)


def unpack_spec(packed: bytes) -> JobSpec:
    """Undo `pack_spec`. Jobs often come in thousands with one spec, and each is asked for it several times."""
    return _unpack_small(packed) if len(packed) <= MAX_KEPT_BYTES else _decoder.decode(packed)


@lru_cache(maxsize=1024)
def _unpack_small(packed: bytes) -> JobSpec:
    return _decoder.decode(packed)


def spec_document(spec: JobSpec) -> dict[str, Any]:
    """Spell a spec for a peer: base fields that the protocol does not mark optional are always there."""
    document: dict[str, Any] = msgspec.to_builtins(spec, builtin_types=(bytes,))
    for field, default in ALWAYS_SENT.items():
        document.setdefault(field, default)
    return document


def told_spec(spec: JobSpec) -> dict[str, Any]:
    """A spec as the worker that runs it is told: in the words of the first version, and without what is not its
    business. Whom the hub tells of a job may be as good as a password.
    """
    document = spec_document(spec)
    for field in ("notify_to", "template", "params", "rendered", "share", "update", "objective"):
        document.pop(field, None)
    if "retries" in document:
        document["retries"] = spec.rules.code
    return document
