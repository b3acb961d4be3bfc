"""Documents of the HTTP API about the site's rules: policy, settings, queues, quotas, paces, preemptions."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dray.wire.schemas.jobs import JobDocument, ProblemEntry, Time


class ValueEntry(msgspec.Struct):
    """One value in force and where it came from: default, a file, a variable, a flag, or who applied it when."""

    name: str
    value: Any
    origin: str


class Settings(msgspec.Struct):
    """The hub's own settings."""

    values: list[ValueEntry]


class PolicyAnswer(msgspec.Struct):
    """The policy in force, whole and value by value. `digest` names the policy file that was last read, `etag` the
    content that is in force.
    """

    policy: dict[str, Any]
    values: list[ValueEntry]
    origin: str
    user: str = ""
    changed_at: Time | None = None
    digest: str = ""
    etag: str = ""


class ValueChange(msgspec.Struct):
    """One value that differs; null where there is none."""

    name: str
    old: Any
    new: Any


class PolicyChange(PolicyAnswer):
    """What applying a policy came to; after a dry run `problems` says what would stand in its way."""

    changed: bool = False
    changes: list[ValueChange] = []
    problems: list[ProblemEntry] = []


class QueueDocument(msgspec.Struct):
    """One queue. Rates are per minute over the last five minutes and the last hour of this hub's life."""

    name: str
    policy: Annotated[str, Meta(description="the order of its line")] = ""
    weight: float = 1
    ageing_s: float = 0
    protect_after_s: float = 0
    listed: Annotated[bool, Meta(description="whether the policy names it")] = False
    waiting: int = 0
    running: int = 0
    gpus_held: float = 0
    gpus_limit: float | None = None
    oldest_wait_s: float | None = None
    starts_per_min_5m: float = 0
    starts_per_min_1h: float = 0
    ends_per_min_5m: float = 0
    ends_per_min_1h: float = 0
    wait_p50_s: float | None = None
    wait_p90_s: float | None = None
    shapes: Any = None


class Holder(msgspec.Struct):
    """A task that a worker has."""

    task_id: str
    user: str


class OverviewRow(msgspec.Struct):
    """A worker in a few words. `others` counts what it has beyond `holders`, those of other users among them."""

    id: str
    status: str
    fake: bool = False
    state_detail: str = ""
    gpu_type: str = ""
    gpu_count: int = 0
    gpus_held: int = 0
    cpu_count: float = 0
    total_slots: int = 0
    active_jobs: int = 0
    holders: list[Holder] = []
    others: int = 0


class UserHolding(msgspec.Struct):
    """What a user's tasks hold now; a share of a card counts as one."""

    user: str
    tasks: int
    gpus: int


class SlotTotals(msgspec.Struct):
    """Of workers that are here."""

    total: int
    in_use: int


class GpuTotals(msgspec.Struct):
    """Of workers that are here; a card that is shared counts once for each task that has a part of it."""

    total: int
    held: int


class Overview(msgspec.Struct):
    """The cluster at a glance. `matched` is how many workers there are behind `rows`; `heads` are first in line.
    `prewarms`: how many hints workers were sent since the hub's start, and how many of those were used, wasted, lost.
    """

    workers: dict[str, int]
    slots: SlotTotals
    gpus: GpuTotals
    users: list[UserHolding]
    matched: int
    rows: list[OverviewRow]
    heads: list[JobDocument]
    prewarms: dict[str, int] = {}


class LineEntry(msgspec.Struct):
    """One job in the line; `task` where a single task of an array was queued again."""

    place: int
    job_id: str
    task: int | None = None
    name: str = ""
    user: str = ""
    priority: int = 0
    tasks: int = 0
    submitted_at: Time | None = None


class QueueDetail(QueueDocument):
    """A queue and the first of those who wait in it, the caller's own with their places."""

    line: list[LineEntry] = []


class QueueList(msgspec.Struct):
    """Every queue."""

    queues: list[QueueDocument]


class QuotaDocument(msgspec.Struct):
    """What one user, queue, plugin or template holds and has used of its quota; `each`: by that for each of them."""

    kind: str
    name: str
    each: bool = False
    running: int = 0
    gpus_held: float = 0
    gpus_limit: float | None = None
    cpus_held: float | None = None
    cpus_limit: float | None = None
    memory_held: Annotated[int | None, Meta(description="bytes")] = None
    memory_limit: Annotated[int | None, Meta(description="bytes")] = None
    tasks_limit: int | None = None
    jobs_limit: int | None = None
    priority_limit: int | None = None
    gpu_hours_used: float | None = None
    gpu_hours_soft: float | None = None
    gpu_hours_hard: float | None = None
    period_s: float | None = None
    standing: Annotated[str, Meta(description="ok, full, over, over soft or over hard")] = "ok"


class QuotaList(msgspec.Struct):
    """Every quota by whom it is about."""

    quotas: list[QuotaDocument]


class PaceDocument(msgspec.Struct):
    """One token bucket; `tokens` may be below 0 after a request larger than the burst."""

    kind: str
    name: str
    per_minute: float
    burst: int
    tokens: float | None = None


class CapDocument(msgspec.Struct):
    """How many tasks with a label run, and how many may."""

    label: str
    most: int
    running: int


class PaceList(msgspec.Struct):
    """Every bucket and cap."""

    submits: list[PaceDocument]
    starts: list[PaceDocument]
    running: list[CapDocument]


class LimitList(PaceList):
    """All that may hold work back beside room: quotas, buckets and caps."""

    quotas: list[QuotaDocument] = []


class VictimDocument(msgspec.Struct):
    """One task that was stopped. What belongs to others is null; `lost_s` is run time that no checkpoint covers."""

    worker: str
    state: Annotated[
        str,
        Meta(
            description="`stopping`, `waiting` (gone, and in line again), `starting` or `running` (again), "
            "the state it ended in, or `gone` where more is not known or not the caller's business"
        ),
    ]
    job_id: str | None = None
    task_id: str | None = None
    user: str | None = None
    priority: int = 0
    ran_s: float = 0
    lost_s: float = 0
    members: Annotated[
        int,
        Meta(
            description="how many tasks went with it, itself included: a gang goes whole, and `lost_s` is that of all; "
            "0: counted with another victim of the same gang"
        ),
    ] = 1
    moved_to: Annotated[
        str,
        Meta(
            description="the worker on which room is kept for it to start again; empty: it was only stopped"
        ),
    ] = ""
    saved_step: Annotated[int | None, Meta(description="the step from which it goes on")] = None
    grace_s: float = 0
    gone_at: Annotated[Time | None, Meta(description="when its process was confirmed gone")] = None
    back_at: Annotated[Time | None, Meta(description="when it ran again")] = None
    back_on: str = ""
    earliest_back_at: Annotated[
        Time | None,
        Meta(
            description="when time limits leave room for it again; null where they do not tell, and in lists"
        ),
    ] = None


class PreemptionDocument(msgspec.Struct):
    """The receipt of one preemption: for whom, by which rule, whom it stopped, how it went."""

    id: str
    status: Annotated[
        str,
        Meta(
            description="`open` (room is kept while the victims leave), `served`, "
            "`rolled_back` (the preemptor no longer waits) or `lapsed` (the room did not come free in time)"
        ),
    ]
    rule: Annotated[str, Meta(description="priority, pressure, fair_share or srsf")]
    kind: Annotated[str, Meta(description="the scarce resource: gpu, cpu or memory")] = ""
    job_id: str | None = None
    task_id: str | None = None
    user: str = ""
    priority: int = 0
    queue: str = ""
    workers: list[str] = []
    fake: Annotated[bool, Meta(description="some of these machines are made up")] = False
    victims: list[VictimDocument] = []
    lost_s: float = 0
    decided_at: Time | None = None
    served_at: Time | None = None
    ended_at: Time | None = None
    wait_s: Annotated[float | None, Meta(description="from the decision to the preemptor's start")] = None


class PreemptionUser(msgspec.Struct):
    """How often a user's tasks were stopped, what that cost, and how often others were stopped for theirs."""

    user: str
    stopped: int = 0
    lost_s: float = 0
    preempted: int = 0


class PreemptionStatistics(msgspec.Struct):
    """What the receipts of the window come to."""

    window_s: float
    receipts: int = 0
    victims: int = 0
    moved: int = 0
    lost_s: float = 0
    by_rule: dict[str, int] = {}
    by_status: dict[str, int] = {}
    serve_p50_s: float | None = None
    users: Annotated[list[PreemptionUser], Meta(description="those who lost most, first")] = []


class PreemptionList(msgspec.Struct):
    """Receipts, newest first."""

    preemptions: list[PreemptionDocument]
    statistics: PreemptionStatistics
    next_cursor: str | None = None


class NotificationDocument(msgspec.Struct):
    """One thing that one receiver was told, or is to be told. `id` is what the receiver was given with it."""

    id: str
    event: Annotated[
        str, Meta(description="started, done, failed, killed, preempted; alarm or cleared of the site")
    ]
    job_id: str
    user: str
    way: Annotated[str, Meta(description="webhook, mail or command")]
    to: Annotated[
        str, Meta(description="the receiver; of an address that a job named only what may be shown")
    ]
    state: Annotated[str, Meta(description="waiting, sent, failed or dropped")]
    tries: int
    at: str | None
    next_try_at: str | None
    ended_at: str | None
    detail: Annotated[str, Meta(description="what was answered, or why it failed")]


class NotificationList(msgspec.Struct):
    """Who was told of what, newest first."""

    notifications: list[NotificationDocument]
    next_cursor: str | None = None


class AlarmDocument(msgspec.Struct):
    """Something that is wrong now, by a rule of the policy."""

    kind: Annotated[str, Meta(description="worker_away, queue_wait, disk, crash_loop or failed_share")]
    subject: Annotated[str, Meta(description="the worker, queue or job that it is about, or `hub`")]
    text: str
    job_id: str
    since: str | None


class AlarmList(msgspec.Struct):
    """What is wrong now, longest first."""

    alarms: list[AlarmDocument]


class GpuHours(msgspec.Struct):
    """Hours of cards; `asked` is up to the time limits, `used` what was busy of those `measured`."""

    asked: float
    held: float
    measured: float
    used: Annotated[float | None, Meta(description="null: nobody could look")]


class CoreHours(msgspec.Struct):
    """Hours of cores."""

    asked: float
    held: float
    used: float


class UsageSum(msgspec.Struct):
    """What some attempts asked for, held and used."""

    attempts: int
    gpu_hours: GpuHours
    core_hours: CoreHours
    money: Annotated[float, Meta(description="by the prices of providers when it was given out")] = 0


class UsageEntry(UsageSum, kw_only=True):
    """The same of one user, queue, plugin, template, name or job."""

    name: str


class UsageAnswer(msgspec.Struct):
    """Who held most cards first."""

    by: str
    window_s: Annotated[float, Meta(description="how far back it reaches")]
    usage: list[UsageEntry]
    left_out: Annotated[int, Meta(description="how many more there are")]
    total: UsageSum


class IdleGpu(msgspec.Struct):
    """A card that is held and idle now, with who holds it."""

    worker: str
    gpu: int
    gpu_type: str
    idle_s: float
    since: str | None
    memory_bytes: int
    user: str
    job_id: str
    task_id: str
    name: str
    queue: str


class IdleList(msgspec.Struct):
    """Longest first."""

    idle: list[IdleGpu]


class HubEntry(msgspec.Struct):
    """A hub of the store, by its own last word."""

    id: str
    url: str
    role: Annotated[str, Meta(description="leader or standby")]
    epoch: Annotated[int, Meta(description="the epoch that is led in now")]
    seen_s: Annotated[float, Meta(description="how long ago it said that it is there")]
    lag: Annotated[int, Meta(description="turns that it has not folded in yet")] | None
    version: str
    workers: Annotated[int, Meta(description="that are connected to this very hub")] = 0


class HubList(msgspec.Struct):
    """The hub that leads and those that stand by; `shared` where the store is on a server."""

    hubs: list[HubEntry]
    shared: bool


class Takeover(msgspec.Struct):
    """How a hub came to lead."""

    at: Time
    cause: Annotated[str, Meta(description="first, restarted, resigned or silent")]
    why: str
    after_s: Annotated[float, Meta(description="how long after the last sign of the one before")]
    before: str | None


class HubRole(msgspec.Struct):
    """The part that the hub which answers plays; one that stands by answers it to anybody."""

    id: str
    role: Annotated[str, Meta(description="leader, standby or starting")]
    since: Time
    url: str
    leader: str | None
    epoch: int
    lag: int | None
    takeover: Takeover | None
    told_turns: Annotated[
        int, Meta(description="of one that stands by: turns that came from the leader itself, not by a look")
    ] = 0
    answered: Annotated[
        int, Meta(description="requests of clients that it answered from its own state while another hub led")
    ] = 0
    passed_on: Annotated[int, Meta(description="those that it passed on to the leader")] = 0


class Handover(msgspec.Struct):
    """A hub hands over to one of these."""

    resigned: bool
    standbys: list[HubEntry]
