"""Documents of the HTTP API about workloads."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dray.core.model.bounds import IdText, Line, Word
from dray.core.model.specs.spec import JobSpec
from dray.wire.schemas.jobs import JobDocument, TaskCounts, TaskDocument, Time

WorkloadStateName = Literal[
    "draft", "running", "paused", "completing", "succeeded", "failed", "cancelled", "archived"
]
Priority = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Labels = Annotated[dict[IdText, Line], Meta(max_length=256)]
Amount = Annotated[float, Meta(ge=0, le=10**12)]


class BudgetDocument(msgspec.Struct):
    """How much it may use up; 0: no bound."""

    money: Amount = 0
    gpu_hours: Amount = 0
    when_spent: Annotated[
        Literal["hold", "stop", "tell"],
        Meta(
            description="nothing more starts; what runs is stopped as well; people are told and nothing else"
        ),
    ] = "hold"


class DistributionDocument(msgspec.Struct):
    """How its tasks lie over workers, or over the values of a worker label."""

    mode: Annotated[
        Literal["site", "pack", "spread", "capacity", "shares"],
        Meta(description="as the policy says; together; apart; by what each could hold; by fixed shares"),
    ] = "site"
    by: Annotated[str, Meta(max_length=256, description="the worker label; empty: each worker by itself")] = (
        ""
    )
    shares: Annotated[dict[IdText, Amount], Meta(max_length=256)] = {}
    max_skew: Annotated[int, Meta(ge=0, le=10**9)] = 1
    required: Annotated[bool, Meta(description="wait rather than be off by more than max_skew tasks")] = False


class ObjectiveDocument(msgspec.Struct):
    """What matters when its tasks are placed; the site's own weights where all are 0."""

    cost: Amount = 0
    performance: Amount = 0
    reliability: Amount = 0
    latency: Amount = 0
    cheapest_in_time: bool = False


class WorkloadTerms(msgspec.Struct, kw_only=True):
    """What is said of a workload; to change it, null takes a field back to its default."""

    title: Annotated[str, Meta(max_length=256)] | None = None
    members: Annotated[list[IdText], Meta(max_length=256, description="who else may add")] | None = None
    queue: IdText | None = None
    priority: Priority | None = None
    labels: Labels | None = None
    deadline: Word | None = None
    budget: BudgetDocument | None = None
    width: Annotated[int, Meta(ge=0, le=10**12, description="tasks at once; 0: as many as fit")] | None = None
    distribution: DistributionDocument | None = None
    objective: ObjectiveDocument | None = None
    failures: Annotated[float, Meta(ge=0, le=1, description="which share of its tasks may fail")] | None = (
        None
    )
    defaults: (
        Annotated[
            dict[IdText, Any],
            Meta(max_length=256, description="fields of a job, laid under each of its jobs"),
        ]
        | None
    ) = None


class WorkloadRequest(WorkloadTerms, kw_only=True):
    """A new workload, with its first jobs where some are given."""

    id: IdText
    jobs: Annotated[list[JobSpec], Meta(max_length=65536)] = []
    start: bool = False
    seal: bool = False


class WorkloadUpdate(WorkloadTerms, kw_only=True):
    """What to change; with `etag` only if nobody has changed anything since that was shown."""

    etag: Word = ""


class Spent(msgspec.Struct):
    """What it has used, what still runs included."""

    gpu_hours: float
    money: float


class JobTotals(msgspec.Struct):
    """How many jobs, and how many of them have ended."""

    total: int
    ended: int


class HealthDocument(msgspec.Struct):
    """One verdict, and why."""

    verdict: Annotated[str, Meta(description="ok, at_risk, stuck, failing or over_budget")]
    reasons: list[str] = []
    meets_deadline: Annotated[float | None, Meta(description="share of forecast runs in time")] = None


class WorkloadDocument(msgspec.Struct, kw_only=True):
    """A workload: what was said of it, where it stands, what is counted of it."""

    id: str
    title: str
    state: WorkloadStateName
    reason: Annotated[str, Meta(description="why it does not go on, in words")] = ""
    user: str
    members: list[str]
    queue: str
    priority: int | None
    labels: dict[str, str]
    deadline: str | None
    budget: BudgetDocument
    width: int
    distribution: DistributionDocument
    objective: ObjectiveDocument
    failures: float
    defaults: dict[str, Any]
    sealed: bool
    paused: bool
    switched_by: str
    tasks: TaskCounts
    jobs: JobTotals
    failed_share: float
    spent: Spent
    created_at: Time | None
    started_at: Time | None
    ended_at: Time | None
    etag: str
    health: HealthDocument | None = None
    note: str = ""


class CreatedWorkload(WorkloadDocument, kw_only=True):
    """What was made; `created` is False where it was there already. `submitted`: the jobs that came with it."""

    created: bool
    submitted: list[str] = []


class WorkloadList(msgspec.Struct):
    """Workloads, newest first."""

    workloads: list[WorkloadDocument]
    next_cursor: str | None = None


class PauseRequest(msgspec.Struct):
    """`stop`: what runs is stopped too and queued again."""

    stop: bool = False


class WidthRequest(msgspec.Struct):
    """How many of its tasks run at once; 0: as many as fit."""

    width: Annotated[int, Meta(ge=0, le=10**12)]


class CancelWorkloadRequest(msgspec.Struct):
    """`grace_s`: so long what runs has to end; the tier's own by default."""

    grace_s: Annotated[float, Meta(ge=0, le=10**9)] | None = None


class AttachRequest(msgspec.Struct):
    """Jobs that are there already, to be put into a workload or taken out."""

    attach: Annotated[list[IdText], Meta(max_length=1000)] = []
    detach: Annotated[list[IdText], Meta(max_length=1000)] = []


class AttachAnswer(WorkloadDocument, kw_only=True):
    """The workload, and what was not done about which job."""

    changed: int
    unchanged: dict[str, str] = {}


class AddedJobs(msgspec.Struct):
    """New jobs of a workload; `created` is False where the same key had made them before."""

    jobs: list[JobDocument]
    created: bool


class RemovedWorkload(msgspec.Struct):
    """A workload that is forgotten."""

    id: str
    removed: bool


class RetriedWorkload(msgspec.Struct):
    """How many tasks run again, as which jobs, and what was left out why."""

    id: str
    tasks: int
    jobs: list[str] = []
    left_out: dict[str, str] = {}


class WorkloadTask(TaskDocument, kw_only=True):
    """A task, and the job that it is of."""

    job: str


class WorkloadTasks(msgspec.Struct):
    """Tasks, those of the newest job first."""

    tasks: list[WorkloadTask]
    next_cursor: str | None = None


class WorkloadResult(msgspec.Struct):
    """How one task ended; or how many calls of a job did, by how they ended."""

    job: str
    at: Time
    task: str = ""
    state: str = ""
    exit_code: int | None = None
    exit_class: str = ""
    error: str = ""
    calls: dict[str, int] = {}


class WorkloadResults(msgspec.Struct):
    """What ended, in the order in which it was recorded. `next`: go on behind this one; `done`: no more will come."""

    results: list[WorkloadResult]
    next: str
    done: bool


class WaitingPart(msgspec.Struct):
    """Tasks that wait for the same reason."""

    tasks: int
    jobs: int
    first: Annotated[str, Meta(description="one of the jobs")]
    reason: str


class WorkloadWhy(msgspec.Struct):
    """What keeps the rest of a workload waiting."""

    id: str
    waiting: int
    summary: str
    groups: list[WaitingPart] = []


class WorkloadForecast(msgspec.Struct, kw_only=True):
    """When it ends if as many of its tasks go side by side as now, or as its width lets."""

    id: str
    left: Annotated[int, Meta(description="tasks that have not ended")]
    side_by_side: int
    p50_s: float | None
    p90_s: float | None
    ends_p50: Time | None
    ends_p90: Time | None
    deadline: str | None
    meets_deadline: Annotated[float | None, Meta(description="share of the forecasts in time")]


class DistributionPart(msgspec.Struct):
    """One place: how many run there, which share that is and which it should be."""

    value: str
    running: int
    share: float
    wanted: float


class WorkloadDistribution(msgspec.Struct):
    """Where its tasks run; `off_by`: by how many tasks the worst place is off."""

    id: str
    mode: str
    by: str
    parts: list[DistributionPart]
    off_by: float
