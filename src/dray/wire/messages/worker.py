"""The worker protocol, version 2: what a worker may send, as structs, and how the hub's messages are spelled.

Fields that a base-only peer does not know have defaults that keep it safe. `null` stands for "left out" wherever a
list or an object is expected, since several languages write an empty one so.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dray.core.model.bounds import (
    Blob,
    ByteAmount,
    Bytes,
    Cards,
    Cores,
    CoreSeconds,
    Count,
    Epoch,
    ExitCode,
    Few,
    FewNamed,
    Gigabytes,
    IdText,
    Line,
    Many,
    Offset,
    Port,
    Seconds,
    Share,
    Small,
    Some,
    Step,
    Text1M,
    Text64K,
    TurnNumber,
    Word,
)
from dray.core.model.capability import BACKENDS, Capability, Device, Slots
from dray.core.model.ids import ID_RULE, is_id, split_task_id
from dray.core.model.specs.spec import MAX_TASKS
from dray.errors import InvalidInput
from dray.wire.messages.codec import Codec

SUBPROTOCOL_MSGPACK = "dray.v2.msgpack"
SUBPROTOCOL_JSON = "dray.v2.json"
MAX_NOTE = 256
MAX_CALLS = 4096
DIGEST_PATTERN = "^[0-9a-f]{64}$"
# All that a worker offers, written in msgpack: cards by the hundred and labels fit, a library does not.
MAX_OFFER_BYTES = 256 << 10


class ActiveTask(msgspec.Struct):
    """A task that a worker says it runs."""

    task_id: IdText
    state: Word = "running"
    started_at: Word | None = None
    attempt: IdText | None = None


class CardUse(msgspec.Struct, omit_defaults=True):
    """How an attempt uses one of its cards now: the busy share of its time, memory, for how long it has idled."""

    index: Count
    share: Share
    memory_bytes: ByteAmount = 0
    idle_s: Seconds = 0


class Usage(msgspec.Struct, omit_defaults=True):
    """What an attempt used, as far as its worker could measure it; what else a worker tells is left unread.

    `gpu_s` are seconds for which its cards were busy, of `gpu_seen_s` for which they were looked at: 0 of those means
    that nobody knows. `cards` are those that were looked at just now, of one that runs. `stdout_bytes` and
    `stderr_bytes` say how much it printed, where the worker ships output.
    """

    wall_s: Seconds = 0
    cpu_s: CoreSeconds = 0
    max_rss_bytes: ByteAmount = 0
    stdout_bytes: ByteAmount | None = None
    stderr_bytes: ByteAmount | None = None
    gpu_s: CoreSeconds = 0
    gpu_seen_s: CoreSeconds = 0
    max_gpu_bytes: ByteAmount = 0
    cards: Few[CardUse] | None = None


class RunningUsage(msgspec.Struct, omit_defaults=True):
    """What the attempts that run on a worker have used so far, by uid."""

    attempts: Annotated[dict[IdText, Usage], Meta(max_length=4096)] | None = None


class JobResult(msgspec.Struct):
    """How an attempt ended."""

    task_id: IdText
    state: Word
    exit_code: ExitCode | None = None
    error: Text1M | None = None
    attempt: IdText | None = None
    signal: Small | None = None
    exit_class: Word | None = None
    usage: Usage | None = None
    value: Blob | None = None
    digest: IdText | None = None
    last_lines: Text64K | None = None


class OfferedGpus(msgspec.Struct):
    """`GpuInfo` as it comes from outside."""

    gpu_type: Line = ""
    count: Count = 0
    devices: Some[Line] | None = None
    driver: Line = ""
    mem_total: Bytes = 0


class Offered(msgspec.Struct):
    """`Capability` as it comes from outside. That one is stored, and what was stored must open whatever the bounds."""

    gpu_backend: Word = "cpu"
    gpu_count: Cards = 0
    gpu_type: Line = ""
    vram_gb: Gigabytes = 0
    cpu_count: Cores = 0
    memory_gb: Gigabytes = 0
    hostname: Line = ""
    gpu_info: OfferedGpus | None = None

    def read(self) -> Capability:
        """As the core's own value."""
        return msgspec.convert(self, Capability, from_attributes=True)


class OfferedCard(msgspec.Struct):
    """`Device` as it comes from outside."""

    index: Count
    uuid: Line = ""
    model: Line = ""
    vram_bytes: Bytes = 0
    healthy: bool = True


def read_cards(cards: list[OfferedCard]) -> tuple[Device, ...]:
    """As the core's own values."""
    return tuple(Device(*msgspec.structs.astuple(card)) for card in cards)


class TaskAccount(msgspec.Struct):
    """As whom tasks of a user run, `*` being all that are not named."""

    user: IdText
    name: IdText = ""
    uid: Annotated[int, Meta(ge=-1, le=(1 << 32) - 1)] = -1


class Register(msgspec.Struct):
    """First message of a session. `features` absent or empty marks a base-only peer. `ends_at`: when this machine is
    taken away, in Unix seconds; 0: nobody knows. `version`: of the program that speaks.
    """

    id: IdText
    capabilities: Offered
    active_tasks: Many[ActiveTask] | None = None
    slots: Slots | None = None
    incarnation: IdText | None = None
    boot_id: IdText | None = None
    journal_id: IdText | None = None
    max_epoch_seen: Epoch = 0
    max_turn_seen: TurnNumber = 0
    finished_unacked: Many[JobResult] | None = None
    labels: FewNamed[Line] | None = None
    devices: Some[OfferedCard] | None = None
    address: Line | None = None
    features: Few[Word] | None = None
    resources: FewNamed[Annotated[int, Meta(ge=0, le=2**53)]] | None = None
    accounts: Some[TaskAccount] | None = None
    ports: Annotated[int, Meta(ge=0, le=65535)] | None = None
    ends_at: Annotated[int, Meta(ge=0, le=2**40)] = 0
    version: Word | None = None


class Heartbeat(msgspec.Struct):
    """A sign of life with the whole capability, which may have changed; the ack names its number, `beat`. `warm`: the
    snapshots and environments that are here, where that is to be said.
    """

    worker_id: IdText
    slots: Slots
    capability: Offered | None = None
    active: Many[IdText] | None = None
    last_acked: IdText | None = None
    usage: RunningUsage | None = None
    devices: Some[OfferedCard] | None = None
    beat: Offset = 0
    warm: Few[Line] | None = None


class ReadyForWork(msgspec.Struct):
    """Sets the session's credit; never adds. `not_ready`: why this worker can start nothing, until it says so again."""

    worker_id: IdText
    slots: Slots
    reason: Line = ""
    credits: Small = 1
    not_ready: Line | None = None


class JobAccepted(msgspec.Struct):
    """The worker holds the task durably and will run it."""

    task_id: IdText
    attempt: IdText | None = None
    ports: Some[Port] | None = None
    address: Line | None = None


class JobStarted(msgspec.Struct):
    """User code runs."""

    task_id: IdText
    attempt: IdText | None = None
    pid: Small = 0
    devices: Some[Small] | None = None


class JobProgress(msgspec.Struct):
    """How far a task has come, by its own word. `saved_age_s`: how long ago it saved its work, as its agent knows."""

    task_id: IdText
    attempt: IdText | None = None
    step: Step | None = None
    saved_step: Step | None = None
    fraction: Share | None = None
    note: Text64K | None = None
    saved_age_s: Seconds | None = None


class JobLog(msgspec.Struct):
    """A piece of a task's output; `offset` past the last end marks a gap."""

    task_id: IdText
    stream: Word
    offset: Offset
    data: Blob
    attempt: IdText | None = None


class ServiceHealth(msgspec.Struct):
    """What a service's own checks say: `healthy` is ready; `live` false, that it will not be again by itself.

    A worker that says nothing of `live` leaves it to the hub what follows.
    """

    task_id: IdText
    healthy: bool
    message: Text64K | None = None
    attempt: IdText | None = None
    ready: bool | None = None
    live: bool | None = None


class JobYield(msgspec.Struct):
    """A task waits on others and gives its slot and cores up until it asks for them back."""

    task_id: IdText
    attempt: IdText


class JobResume(msgspec.Struct):
    """A task that gave its slot up wants it back; the hub answers with a message of the same name."""

    task_id: IdText
    attempt: IdText


CallState = Literal["succeeded", "failed", "killed", "returned", "lost"]
CallIndex = Annotated[int, Meta(ge=0, lt=MAX_TASKS)]
# Stands for every try of a call: a worker that is asked to end one and has none of them names it.
LAST_TRY = (1 << 31) - 1
CallNumber = Annotated[int, Meta(ge=1, le=LAST_TRY)]
WallUs = Annotated[int, Meta(ge=0, le=1 << 53)]
Digest = Annotated[str, Meta(pattern=DIGEST_PATTERN)]
# A value that travels with its call, or the digest and the size of the blob that holds it.
# The frame bounds the bytes: with a bound of their own beside a tuple, msgspec 0.22 writes past its own memory.
PackedValue = bytes | tuple[Digest, Bytes]


class CallsResult(msgspec.Struct):
    """How calls of one lane ended, in columns; sent again after every register until its `seq` is acked.

    `state` is one word where all of them ended alike. `value` is None for a call that left none. `details` names by
    its index each call that has more to tell: exit class and error.
    """

    seq: Step
    lane: IdText
    job: IdText
    index: Annotated[list[CallIndex], Meta(min_length=1, max_length=MAX_CALLS)]
    no: Some[CallNumber]
    state: Some[CallState] | CallState
    value: Some[PackedValue | None]
    wall_us: Some[WallUs]
    details: Annotated[dict[Word, tuple[Line, Text1M]], Meta(max_length=MAX_CALLS)] = {}


class MetricsRequest(msgspec.Struct):
    """Ask for counters and gauges by name."""


class WorkerListRequest(msgspec.Struct):
    """Ask for all workers, or those of one backend."""

    backend: Word | None = None


class WorkerShowRequest(msgspec.Struct):
    """Ask for one worker and what runs on it."""

    worker_id: IdText


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


@functools.cache
def worker_codec(binary: bool) -> Codec:
    """The codec by which a hub reads its workers; made once, from all its structs."""
    return Codec(WORKER_PAYLOADS, binary)


def check_message(kind: str, body: Any) -> None:
    """Raise `InvalidInput` for values that have the right type and make no sense; names the place."""
    for place, fault in _faults(body):
        raise InvalidInput(f"{kind}: {fault} - at `$.{place}`")


def check_offer(kind: str, body: Register | Heartbeat) -> None:
    """Raise `InvalidInput` for an offer that takes more room than any machine needs to describe itself."""
    offer: Any = (
        (body.capabilities, body.labels, body.resources) if isinstance(body, Register) else body.capability
    )
    size = len(msgspec.msgpack.encode((offer, body.devices)))
    if size > MAX_OFFER_BYTES:
        raise InvalidInput(
            f"{kind}: what this worker offers takes {size} bytes, the limit is {MAX_OFFER_BYTES}"
        )


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
    if isinstance(body, _OF_A_TASK):
        faults += _task_faults("task_id", body.task_id)
    if isinstance(body, JobResult) and body.state not in RESULT_STATES:
        faults.append(("state", f"must be one of {', '.join(RESULT_STATES)}, got {body.state[:64]!r}"))
    if isinstance(body, CallsResult):
        faults += _calls_faults(body)
    if isinstance(body, JobLog) and body.stream not in STREAMS:
        faults.append(("stream", f"must be one of {', '.join(STREAMS)}, got {body.stream[:64]!r}"))
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


def _worker_faults(place: str, text: str) -> list[tuple[str, str]]:
    return [] if is_id(text) else [(place, f"a worker id must be {ID_RULE}, got {text[:160]!r}")]


def _task_faults(place: str, text: str) -> list[tuple[str, str]]:
    return [] if split_task_id(text) else [(place, f"{text[:160]!r} is not a task id: JOB or JOB/INDEX")]


def _capability_faults(place: str, capability: Offered) -> list[tuple[str, str]]:
    if capability.gpu_backend in BACKENDS:
        return []
    named = ", ".join(BACKENDS)
    return [(f"{place}.gpu_backend", f"must be one of {named}, got {capability.gpu_backend[:64]!r}")]


def _device_faults(devices: list[OfferedCard] | None) -> list[tuple[str, str]]:
    seen: dict[int, int] = {}
    faults = []
    for place, device in enumerate(devices or ()):
        if device.index in seen:
            faults.append((f"devices[{place}]", f"a card must have an index of its own, got {device}"))
        seen[device.index] = place
    return faults
