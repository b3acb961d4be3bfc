"""The worker protocol, version 2: what a worker may send, as structs, and how the hub's messages are spelled.

Fields that a base-only peer does not know have defaults that keep it safe. `null` stands for "left out" wherever a
list or an object is expected, since several languages write an empty one so.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dray.core.model.capability import BACKENDS, Capability, Device, Slots
from dray.core.model.ids import ID_RULE, is_id, split_task_id
from dray.core.model.spec import MAX_TASKS
from dray.errors import InvalidInput
from dray.wire.codec import Codec

SUBPROTOCOL_MSGPACK = "dray.v2.msgpack"
SUBPROTOCOL_JSON = "dray.v2.json"
MAX_COUNT = 1 << 20
MAX_AMOUNT = 1 << 60
MAX_STEP = (1 << 53) - 1
MAX_AGE_S = 1 << 31
MAX_NOTE = 256
MAX_CALLS = 4096
DIGEST_PATTERN = "^[0-9a-f]{64}$"
# An attempt's number is its epoch above 40 bits of count, in 63 bits: a later epoch has no room there.
LAST_EPOCH = (1 << 23) - 1
# The furthest that one worker's word may raise a hub. Half of all epochs stay above it, or the worker that raised the
# hub that far would have shut every other one out: each of them repeats the hub's epoch when it registers.
MAX_RAISED_EPOCH = 1 << 22

# Bounded where they are read: a number that no row can hold must be refused here, not after its turn has begun.
ExitCode = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 32) - 1)]
Small = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Port = Annotated[int, Meta(ge=0, le=65535)]


class ActiveTask(msgspec.Struct):
    """A task that a worker says it runs."""

    task_id: str
    state: str = "running"
    started_at: str | None = None
    attempt: str | None = None


class JobResult(msgspec.Struct):
    """How an attempt ended."""

    task_id: str
    state: str
    exit_code: ExitCode | None = None
    error: str | None = None
    attempt: str | None = None
    signal: Small | None = None
    exit_class: str | None = None
    usage: dict[str, float] | None = None
    value: bytes | None = None
    digest: str | None = None


class Register(msgspec.Struct):
    """First message of a session. `features` absent or empty marks a base-only peer."""

    id: str
    capabilities: Capability
    active_tasks: list[ActiveTask] | None = None
    slots: Slots | None = None
    incarnation: str | None = None
    boot_id: str | None = None
    journal_id: str | None = None
    max_epoch_seen: Annotated[int, Meta(ge=0, le=LAST_EPOCH)] = 0
    finished_unacked: list[JobResult] | None = None
    labels: dict[str, str] | None = None
    devices: list[Device] | None = None
    address: str | None = None
    features: list[str] | None = None
    resources: Annotated[dict[str, Annotated[int, Meta(ge=0, le=2**53)]], Meta(max_length=64)] | None = None


class Heartbeat(msgspec.Struct):
    """A sign of life with the whole capability, which may have changed."""

    worker_id: str
    slots: Slots
    capability: Capability | None = None
    active: list[str] | None = None
    last_acked: str | None = None
    usage: dict[str, float] | None = None
    devices: list[Device] | None = None


class ReadyForWork(msgspec.Struct):
    """Sets the session's credit; never adds."""

    worker_id: str
    slots: Slots
    reason: str = ""
    credits: int = 1


class JobAccepted(msgspec.Struct):
    """The worker holds the task durably and will run it."""

    task_id: str
    attempt: str | None = None
    ports: list[Port] | None = None
    address: str | None = None


class JobStarted(msgspec.Struct):
    """User code runs."""

    task_id: str
    attempt: str | None = None
    pid: Small = 0
    devices: list[Small] | None = None


class JobProgress(msgspec.Struct):
    """How far a task has come, by its own word. `saved_age_s`: how long ago it saved its work, as its agent knows."""

    task_id: str
    attempt: str | None = None
    step: int | None = None
    saved_step: int | None = None
    fraction: float | None = None
    note: str | None = None
    saved_age_s: float | None = None


class JobLog(msgspec.Struct):
    """A piece of a task's output; `offset` past the last end marks a gap."""

    task_id: str
    stream: str
    offset: int
    data: bytes
    attempt: str | None = None


class ServiceHealth(msgspec.Struct):
    """What a service's own checks say."""

    task_id: str
    healthy: bool
    message: str | None = None
    attempt: str | None = None
    ready: bool | None = None


class JobYield(msgspec.Struct):
    """A task waits on others and gives its slot and cores up until it asks for them back."""

    task_id: str
    attempt: str


class JobResume(msgspec.Struct):
    """A task that gave its slot up wants it back; the hub answers with a message of the same name."""

    task_id: str
    attempt: str


CALL_STATES = ("succeeded", "failed", "killed", "returned", "lost")
CallState = Literal["succeeded", "failed", "killed", "returned", "lost"]
CallIndex = Annotated[int, Meta(ge=0, lt=MAX_TASKS)]
CallNumber = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
WallUs = Annotated[int, Meta(ge=0, le=1 << 53)]
Digest = Annotated[str, Meta(pattern=DIGEST_PATTERN)]
BlobSize = Annotated[int, Meta(ge=0, le=1 << 60)]
# A value that travels with its call, or the digest and the size of the blob that holds it.
PackedValue = bytes | tuple[Digest, BlobSize]


class CallsResult(msgspec.Struct):
    """How calls of one lane ended, in columns; sent again after every register until its `seq` is acked.

    `state` is one word where all of them ended alike. `value` is None for a call that left none. `details` names by
    its index each call that has more to tell: exit class and error.
    """

    seq: Annotated[int, Meta(ge=0, le=MAX_STEP)]
    lane: str
    job: str
    index: Annotated[list[CallIndex], Meta(min_length=1, max_length=MAX_CALLS)]
    no: list[CallNumber]
    state: list[CallState] | CallState
    value: list[PackedValue | None]
    wall_us: list[WallUs]
    details: dict[str, tuple[str, str]] = {}


class MetricsRequest(msgspec.Struct):
    """Ask for counters and gauges by name."""


class WorkerListRequest(msgspec.Struct):
    """Ask for all workers, or those of one backend."""

    backend: str | None = None


class WorkerShowRequest(msgspec.Struct):
    """Ask for one worker and what runs on it."""

    worker_id: str


WORKER_PAYLOADS: dict[str, type[Any]] = {
    "register": Register,
    "heartbeat": Heartbeat,
    "ready_for_work": ReadyForWork,
    "job_accepted": JobAccepted,
    "job_started": JobStarted,
    "job_progress": JobProgress,
    "job_log": JobLog,
    "job_result": JobResult,
    "job_yield": JobYield,
    "job_resume": JobResume,
    "calls_result": CallsResult,
    "service_health": ServiceHealth,
    "metrics_request": MetricsRequest,
    "worker_list_request": WorkerListRequest,
    "worker_show_request": WorkerShowRequest,
}
QUESTIONS = ("metrics_request", "worker_list_request", "worker_show_request")
RESULT_STATES = ("succeeded", "completed", "failed", "killed", "preempted")
_OF_A_TASK = (JobProgress, JobLog, JobResult, JobYield, JobResume, ServiceHealth)
STREAMS = ("stdout", "stderr")
WorkerMessage = (
    Register
    | Heartbeat
    | ReadyForWork
    | JobAccepted
    | JobStarted
    | JobProgress
    | JobLog
    | JobResult
    | JobYield
    | JobResume
    | CallsResult
    | ServiceHealth
    | MetricsRequest
    | WorkerListRequest
    | WorkerShowRequest
)


def worker_codec(binary: bool) -> Codec:
    """The codec by which a hub reads its workers."""
    return Codec(WORKER_PAYLOADS, binary)


def check_message(kind: str, body: Any) -> None:
    """Raise `InvalidInput` for values that have the right type and make no sense; names the place."""
    for place, fault in _faults(body):
        raise InvalidInput(f"{kind}: {fault} - at `$.{place}`")


def _faults(body: Any) -> list[tuple[str, str]]:
    if isinstance(body, (JobAccepted, JobStarted)):
        return _task_faults("task_id", body.task_id)  # two of them for every task
    faults: list[tuple[str, str]] = []
    if isinstance(body, Register):
        faults += _worker_faults("id", body.id)
        faults += _capability_faults("capabilities", body.capabilities)
        for place, item in enumerate(body.active_tasks or ()):
            faults += _task_faults(f"active_tasks[{place}].task_id", item.task_id)
        for place, result in enumerate(body.finished_unacked or ()):
            faults += [(f"finished_unacked[{place}].{where}", what) for where, what in _faults(result)]
        faults += _device_faults(body.devices)
    if isinstance(body, (Heartbeat, ReadyForWork)):
        faults += _worker_faults("worker_id", body.worker_id)
    if isinstance(body, Heartbeat) and body.capability is not None:
        faults += _capability_faults("capability", body.capability)
        faults += _device_faults(body.devices)
    slots = getattr(body, "slots", None)
    if isinstance(slots, Slots) and not all(
        0 <= value <= MAX_COUNT for value in msgspec.structs.astuple(slots)
    ):
        for name in Slots.__struct_fields__:
            faults += _count_faults(f"slots.{name}", getattr(slots, name))
    if isinstance(body, ReadyForWork):
        faults += _count_faults("credits", body.credits, 1 << 31)
    if isinstance(body, _OF_A_TASK):
        faults += _task_faults("task_id", body.task_id)
    if isinstance(body, JobResult) and body.state not in RESULT_STATES:
        faults.append(("state", f"must be one of {', '.join(RESULT_STATES)}, got {body.state[:64]!r}"))
    if isinstance(body, (Heartbeat, JobResult)):
        faults += _usage_faults(body.usage)
    if isinstance(body, CallsResult):
        faults += _calls_faults(body)
    if isinstance(body, JobProgress):
        faults += _progress_faults(body)
    if isinstance(body, JobLog):
        if body.stream not in STREAMS:
            faults.append(("stream", f"must be one of {', '.join(STREAMS)}, got {body.stream[:64]!r}"))
        faults += _count_faults("offset", body.offset, 1 << 62)
    return faults


def _calls_faults(body: CallsResult) -> list[tuple[str, str]]:
    faults = [] if is_id(body.job) else [("job", f"a job id must be {ID_RULE}, got {body.job[:160]!r}")]
    count = len(body.index)
    for name in ("no", "value", "wall_us", "state"):
        column = getattr(body, name)
        if isinstance(column, list) and len(column) != count:
            faults.append((name, f"holds {len(column)} entries, index holds {count}"))
    if len(set(body.index)) != count:
        faults.append(("index", "names a call twice"))
    if body.details and (strange := body.details.keys() - {str(index) for index in body.index}):
        faults.append(("details", f"names {min(strange)[:16]!r}, which is not in index"))
    return faults


def _progress_faults(body: JobProgress) -> list[tuple[str, str]]:
    faults = []
    for name, high in (
        ("step", MAX_STEP),
        ("saved_step", MAX_STEP),
        ("fraction", 1),
        ("saved_age_s", MAX_AGE_S),
    ):
        value = getattr(body, name)
        if value is not None and not 0 <= value <= high:
            faults.append((name, f"must be 0 to {high}, got {value}"))
    return faults


def _worker_faults(place: str, text: str) -> list[tuple[str, str]]:
    return [] if is_id(text) else [(place, f"a worker id must be {ID_RULE}, got {text[:160]!r}")]


def _task_faults(place: str, text: str) -> list[tuple[str, str]]:
    return [] if split_task_id(text) else [(place, f"{text[:160]!r} is not a task id: JOB or JOB/INDEX")]


def _count_faults(place: str, value: int, high: int = MAX_COUNT) -> list[tuple[str, str]]:
    return [] if 0 <= value <= high else [(place, f"must be 0 to {high}, got {value}")]


def _usage_faults(usage: dict[str, float] | None) -> list[tuple[str, str]]:
    return [
        (f"usage.{name[:64]}", f"must be 0 to {MAX_AMOUNT}, got {value}")
        for name, value in (usage or {}).items()
        if not 0 <= value <= MAX_AMOUNT
    ]


def _capability_faults(place: str, capability: Capability) -> list[tuple[str, str]]:
    faults = []
    if capability.gpu_backend not in BACKENDS:
        named = ", ".join(BACKENDS)
        faults.append(
            (f"{place}.gpu_backend", f"must be one of {named}, got {capability.gpu_backend[:64]!r}")
        )
    for name, high in (("gpu_count", 65536), ("vram_gb", 10**9), ("cpu_count", 10**6), ("memory_gb", 10**9)):
        value = getattr(capability, name)
        if not 0 <= value <= high:
            faults.append((f"{place}.{name}", f"must be 0 to {high}, got {value}"))
    if (info := capability.gpu_info) is not None:
        faults += _count_faults(f"{place}.gpu_info.count", info.count)
        faults += _count_faults(f"{place}.gpu_info.mem_total", info.mem_total, MAX_AMOUNT)
    return faults


def _device_faults(devices: list[Device] | None) -> list[tuple[str, str]]:
    seen: dict[int, int] = {}
    faults = []
    for place, device in enumerate(devices or ()):
        sane = 0 <= device.index < MAX_COUNT and 0 <= device.vram_bytes <= MAX_AMOUNT
        if device.index in seen or not sane:
            faults.append(
                (f"devices[{place}]", f"a card must have an index of its own and sane memory, got {device}")
            )
        seen[device.index] = place
    return faults
