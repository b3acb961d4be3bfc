"""The JSON documents of the HTTP API as types: what the OpenAPI document is generated from.

Requests are read through these types; answers are plain dicts made elsewhere, and the types here say what they
hold. A field that a later version adds is no breach, so no answer forbids unknown fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dray.core.model.bounds import IdText, Line
from dray.core.model.ids import ID_PATTERN
from dray.wire.schemas.reasons import EstimateDocument, VerdictDocument, WaitsDocument
from dray.wire.schemas.views import Card

Id = Annotated[str, Meta(pattern=f"^{ID_PATTERN}$")]
Time = Annotated[
    str, Meta(description="RFC 3339, UTC, with milliseconds", extra_json_schema={"format": "date-time"})
]
Fake = Annotated[bool, Meta(description="its machine is made up (`dray worker start --fake`)")]
State = Literal["pending", "running", "succeeded", "failed", "killed", "worker_failed", "unschedulable"]
TokenScope = Literal["admin", "submit", "read", "worker", "join"]


class ProblemEntry(msgspec.Struct):
    """One fault of an input and where it was found."""

    where: str
    what: str


class ErrorBody(msgspec.Struct):
    """Why a request was refused."""

    code: Annotated[str, Meta(description="stable: programs may rely on it")]
    message: str
    problems: list[ProblemEntry] = []
    retry_after_s: Annotated[float, Meta(description="with too_many_requests: when to try again")] | None = (
        None
    )
    leader: Annotated[str, Meta(description="with not_leader: the address of the hub that leads")] | None = (
        None
    )


class ErrorAnswer(msgspec.Struct):
    """Every refusal has this shape."""

    error: ErrorBody


class Usage(msgspec.Struct):
    """What an attempt used, as far as its worker could measure it."""

    wall_s: float = 0
    cpu_s: float = 0
    max_rss_bytes: int = 0
    gpu_s: Annotated[
        float | None, Meta(description="how long its cards were busy; null: nobody could look")
    ] = None
    gpu_seen_s: Annotated[
        float, Meta(description="for how long its cards were looked at, each by itself")
    ] = 0
    max_gpu_bytes: int | None = None


class AttemptDocument(msgspec.Struct):
    """One try to run a task on one worker."""

    no: int
    uid: str
    task_id: str
    worker: str
    phase: str
    fake: Fake = False
    fence: int = 0
    devices: list[int] = []
    address: Annotated[str, Meta(description="where its machine is reached, where it has ports")] = ""
    ports: Annotated[dict[str, int], Meta(description="those that it has, by the names of the job")] = {}
    assigned_at: Time | None = None
    accepted_at: Time | None = None
    started_at: Time | None = None
    ended_at: Time | None = None
    exit_code: int | None = None
    signal: int = 0
    exit_class: str = ""
    error: str = ""
    verdict: VerdictDocument | None = None
    usage: Usage | None = None
    price_per_hour: Annotated[float, Meta(description="by the price list when it was given out")] = 0
    money: Annotated[float | None, Meta(description="what it has cost; null while it runs")] = None
    cancel_reason: str = ""
    idling: Annotated[
        str, Meta(description="what the policy did because it leaves its cards idle: warn, demote or stop")
    ] = ""
    saved_step: Annotated[int | None, Meta(description="the last step that the task said it had saved")] = (
        None
    )
    saved_run_s: Annotated[float, Meta(description="run time up to that save")] = 0
    variant: Annotated[
        str,
        Meta(description="name or number of the alternative by which it runs; empty where the job has none"),
    ] = ""


class ProgressDocument(msgspec.Struct):
    """The last that a running task said of itself."""

    step: int | None = None
    fraction: float | None = None
    note: str = ""
    at: Time | None = None


class TaskCounts(msgspec.Struct):
    """How many tasks of a job are in which state."""

    total: int
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    killed: int = 0
    worker_failed: int = 0
    unschedulable: int = 0


class ServiceStanding(msgspec.Struct):
    """How many replicas a service is to have, and how many of them are ready, or keep ending."""

    replicas: int
    ready: int
    crash_looping: int = 0
    update: Annotated[str, Meta(description="of replicas that are replaced, what it waits for")] = ""


class FieldChange(msgspec.Struct):
    """A field that would differ."""

    name: str
    old: Any
    new: Any


class Preview(msgspec.Struct):
    """What a change would do. `also`: jobs that it concerns too; `undo`: what takes it back."""

    sentence: str
    stops: Annotated[int, Meta(description="how many tries would be stopped")] = 0
    lost_s: Annotated[float, Meta(description="how much of their run time no checkpoint covers")] = 0
    never_start: int = 0
    goes_on: int = 0
    until: Annotated[Time | None, Meta(description="by when what goes on has ended, by its limits")] = None
    also: list[str] = []
    changes: list[FieldChange] = []
    undo: str = ""


class JobDocument(msgspec.Struct):
    """A job: what was asked, how it stands, how it ended."""

    id: str
    name: str
    state: State
    phase: Annotated[str, Meta(description="of the newest live attempt; `queued` while waiting")]
    reason: Annotated[
        str,
        Meta(description="one line: why a pending job waits, or that the worker of a running one is silent"),
    ]
    user: str
    queue: str
    type: Literal["batch", "service"] = "batch"
    priority: int = 0
    tier: str = ""
    labels: dict[str, str] = {}
    workload: str = ""
    submitted_at: Time | None = None
    started_at: Time | None = None
    ended_at: Time | None = None
    exit_code: int | None = None
    signal: int = 0
    exit_class: str = ""
    error: str = ""
    verdict: VerdictDocument | None = None
    worker: str = ""
    tasks: TaskCounts | None = None
    attempts: list[AttemptDocument] = []
    attempt_count: int = 0
    failures: int = 0
    losses: int = 0
    preemptions: int = 0
    outgrown: Annotated[
        int, Meta(description="tries that ran out of GPU memory and led to a larger card")
    ] = 0
    cancel_requested: bool = False
    progress: Annotated[ProgressDocument | None, Meta(description="of the newest attempt while it runs")] = (
        None
    )
    held: bool = False
    held_by: str = ""
    after: Annotated[list[str], Meta(description="conditions on other jobs that are still open")] = []
    edited: Annotated[bool, Meta(description="whether somebody changed `spec` since the submit")] = False
    learned: Annotated[str, Meta(description="why it asks for larger cards than its submit did")] = ""
    calls: Annotated[bool, Meta(description="whether its tasks are calls of a function")] = False
    money: Annotated[float, Meta(description="what its attempts that have ended have cost")] = 0
    spec: Annotated[dict[str, Any], Meta(description="as submitted, after defaults")] = {}
    note: Annotated[str, Meta(description="what a change did not do, and why")] = ""
    service: Annotated[ServiceStanding | None, Meta(description="of a service until it is stopped")] = None
    estimate: Annotated[
        EstimateDocument | None, Meta(description="in lists: when a pending job starts, where that is known")
    ] = None
    preview: Annotated[Preview | None, Meta(description="of a dry run")] = None
    waits: Annotated[WaitsDocument | None, Meta(description="not in lists")] = None


class JobList(msgspec.Struct):
    """Jobs, newest first. `total`: how many there are in all pages, where `count` asked for it, no queue, name or
    label was given, and no more than 100,000 of them have ended.
    """

    jobs: list[JobDocument]
    next_cursor: str | None = None
    total: int | None = None


class TaskDocument(msgspec.Struct):
    """One task of a job."""

    id: str
    index: Annotated[int, Meta(description="-1 for the only task of its job")]
    state: State
    array_index: int | None = None
    phase: str = ""
    worker: str = ""
    attempts: list[AttemptDocument] = []
    failures: int = 0
    losses: int = 0
    preemptions: int = 0
    outgrown: Annotated[
        int, Meta(description="tries that ran out of GPU memory and led to a larger card")
    ] = 0
    exit_code: int | None = None
    signal: int = 0
    exit_class: str = ""
    error: str = ""
    verdict: VerdictDocument | None = None
    started_at: Time | None = None
    ended_at: Time | None = None
    progress: Annotated[ProgressDocument | None, Meta(description="of the newest attempt while it runs")] = (
        None
    )


class JobGroup(msgspec.Struct):
    """How many jobs have these values, in the order that was asked for."""

    values: list[str]
    jobs: int


class JobGroups(msgspec.Struct):
    """Groups of jobs, the largest first; `others` are in groups that are not shown."""

    groups: list[JobGroup]
    others: int = 0


class RerunRequest(msgspec.Struct):
    """Fields to change, null for a default; `failed`: of an array only the tasks that did not succeed."""

    changes: Annotated[dict[IdText, Any], Meta(max_length=256)] = {}
    failed: bool = False


class TaskList(msgspec.Struct):
    """Tasks of one job in order of their index."""

    tasks: list[TaskDocument]
    next_cursor: str | None = None


class JobEvent(msgspec.Struct):
    """Something that happened to a job."""

    at: Time
    type: str
    task_id: str = ""
    attempt: int | str | None = None
    worker: str = ""
    message: str = ""


class JobEvents(msgspec.Struct):
    """Events of one job, oldest first."""

    events: list[JobEvent]


class Slots(msgspec.Struct):
    """Slots of a worker by pool."""

    batch_total: int = 0
    batch_in_use: int = 0
    service_total: int = 0
    service_in_use: int = 0


class WorkerDocument(msgspec.Struct):
    """One worker: what it has, what is free, how it stands."""

    id: str
    status: Literal["ready", "busy", "offline"]
    backend: str
    gpu_count: int
    cpu_count: float
    vram_gb: float
    active_jobs: int
    total_slots: int
    fake: Fake = False
    state_detail: str = ""
    gpu_type: str = ""
    memory_gb: float = 0
    hostname: str = ""
    last_heartbeat: Time | None = None
    draining: bool = False
    faults: Annotated[
        int,
        Meta(
            description="how often in a row it was found faulty: draining, it is in quarantine, else on trial"
        ),
    ] = 0
    drained_by: str = ""
    drain_reason: str = ""
    ends_at: Annotated[Time | None, Meta(description="when its machine is taken away, if anybody knows")] = (
        None
    )
    version: Annotated[str, Meta(description="of its agent; empty where it does not say")] = ""
    drain_until: Annotated[Time | None, Meta(description="when it gets work again by itself")] = None
    labels: dict[str, str] = {}
    given_labels: Annotated[dict[str, str], Meta(description="those of `labels` that people gave it")] = {}
    resources: dict[str, int] = {}
    devices: list[Any] = []
    features: list[str] = []
    address: str = ""
    slots: Slots | None = None
    free: dict[str, Any] = {}
    quarantined: list[str] = []
    registered_at: Time | None = None
    preview: Annotated[Preview | None, Meta(description="of a dry run")] = None


class WorkerList(msgspec.Struct):
    """Workers in the order that was asked for, by default that of their ids."""

    workers: list[WorkerDocument]
    stale: Annotated[int, Meta(description="how many were left out, since they have been away for a day")] = 0
    matched: Annotated[int, Meta(description="how many there are in all")] = 0
    next_cursor: Annotated[str | None, Meta(description="where the next page begins")] = None


class DrainRequest(msgspec.Struct):
    """Why a worker gets no new work, and until when."""

    reason: Annotated[str, Meta(max_length=512)] = ""
    until: Annotated[
        str, Meta(max_length=64, description="a moment as RFC 3339 has it, or a span from now such as 2h")
    ] = ""
    stop: Annotated[bool, Meta(description="have what runs there queued again, but services and calls")] = (
        False
    )
    ends: Annotated[
        str,
        Meta(max_length=64, description="when its machine is taken away: what runs there is stopped in time"),
    ] = ""
    move: Annotated[
        bool, Meta(description="have what runs there moved to other workers, each as there is room for it")
    ] = False


class LabelRequest(msgspec.Struct):
    """Labels to give to a worker, before its own; null takes a given one back."""

    labels: Annotated[dict[IdText, Line | None], Meta(min_length=1, max_length=64)]


class RemovedWorker(msgspec.Struct):
    """A worker that was forgotten, and the token with which its machine could join again."""

    id: str
    token: str | None = None


class WorkerJob(msgspec.Struct):
    """A task on a worker."""

    task_id: str
    job_name: str = ""
    status: str = ""
    started_at: Time | None = None
    user: str = ""


class WorkerDetail(WorkerDocument):
    """A worker, what it runs, and who holds which of its cards."""

    jobs: list[WorkerJob] = []
    cards: list[Card] = []


class CancelRequest(msgspec.Struct):
    """What to cancel; without `task` the whole job."""

    task: Annotated[int, Meta(ge=0, le=10**9, description="index of one task")] | None = None
    grace_s: Annotated[float, Meta(ge=0, le=86400, description="between TERM and KILL")] | None = None


class RequeueRequest(msgspec.Struct):
    """What to queue again; without `task` all that runs of the job."""

    task: Annotated[int, Meta(ge=0, le=10**9, description="index of one task")] | None = None


class ActAnswer(msgspec.Struct):
    """What a request about many jobs came to, or would come to: how many, as they stood, and the first of them.

    `unchanged` counts those that were asked for and left as they are, by the reason.
    """

    action: str
    dry_run: bool
    count: int
    ids: list[str]
    states: dict[str, int]
    users: dict[str, int]
    unchanged: dict[str, int]


class TokenRequest(msgspec.Struct):
    """A token to be made; without `user` for the caller. With `worker` for that worker alone: its token so far ends.

    `shared_account` is a yes to tasks of several users in one account.
    """

    scopes: Annotated[list[TokenScope], Meta(min_length=1, max_length=5)]
    user: Id | None = None
    expires_s: Annotated[float, Meta(gt=0, le=100 * 365 * 86400)] | None = None
    worker: Id | None = None
    shared_account: bool = False


class TokenDocument(msgspec.Struct):
    """A token without its secret."""

    id: str
    user: str
    scopes: list[TokenScope]
    created_at: Time | None
    expires_at: Time | None
    revoked: bool
    last_used_at: Time | None = None
    worker: str | None = None
    parent: str | None = None
    """Of the session of a browser: the token that signed in, with which it ends."""


class NewToken(TokenDocument):
    """A token and its text, shown once; of a join token also the line that makes another machine a worker."""

    token: str = ""
    join: str = ""


class SessionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What a browser signs in with: a token, or the code that `dray ui` had made."""

    token: Annotated[str, Meta(max_length=512)] = ""
    code: Annotated[str, Meta(max_length=128)] = ""


class SessionDocument(msgspec.Struct):
    """Who asks, of whom, and which pages are served now."""

    user: str
    scopes: list[TokenScope]
    token: str
    session: bool
    """Whether this is the session of a browser, which may be closed."""
    expires_at: Time | None
    now: Time
    version: str
    build: str


class NewSession(SessionDocument):
    """A session that begins. `half` goes with each request as `X-Dray-Session`; the other half is a cookie."""

    half: str = ""


class SessionCode(msgspec.Struct):
    """A word by which a browser signs in once, as `#code=` of the page's address."""

    code: str
    expires_s: float


class TokenList(msgspec.Struct):
    """Every token, newest first."""

    tokens: list[TokenDocument]


class BlobDocument(msgspec.Struct):
    """A large value that the hub now has."""

    digest: str
    size: int


class SnapshotCheck(msgspec.Struct):
    """A snapshot whose manifest the hub has: `sha` of what is in it, and the digests of chunks that are not here."""

    id: str
    sha: str
    files: int
    bytes: int
    chunks: int
    missing: list[str]


class Check(msgspec.Struct):
    """One check of the doctor."""

    name: str
    ok: bool
    detail: str = ""


class Report(msgspec.Struct):
    """Something that went wrong inside the hub: what, by whose request, where in the code; no values."""

    id: str
    at: Time
    last_at: Time
    kind: str
    what: str
    who: str = ""
    error: str = ""
    count: int = 1
    digest: str = ""
    trace: list[str] = []


class Doctor(msgspec.Struct):
    """Whether the hub's state holds together, and what went wrong so far."""

    ok: bool
    checks: list[Check]
    facts: dict[str, Any] = {}
    reports: list[Report] = []


class AuditEntry(msgspec.Struct):
    """Who changed what."""

    at: Time
    user: str
    token_id: str
    action: str
    target: str
    detail: str = ""


class AuditList(msgspec.Struct):
    """Changes, newest first."""

    records: list[AuditEntry]


class HubDocument(msgspec.Struct):
    """The hub itself."""

    version: str
    epoch: int
    ready: bool
    started_at: Time | None = None
    home: str | None = None
    reports: int = 0
    shared_accounts: list[str] = []
    user: Annotated[str, Meta(description="whom the hub takes the caller for")] = ""
    scopes: Annotated[list[str], Meta(description="what the caller's token may")] = []


class Health(msgspec.Struct):
    """Whether the hub lives, or is ready to work."""

    status: str
