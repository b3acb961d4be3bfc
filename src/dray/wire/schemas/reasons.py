"""Documents of the HTTP API about why a job waits and what would become of one: answers of `why` and `plan`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dray.wire.schemas.providers import Choice

Alternative = Annotated[int, Meta(description="of which alternative of the job it speaks, from 0")]


class RejectionDocument(msgspec.Struct):
    """Why one worker cannot take a task."""

    kind: str
    message: str
    need: Any = None
    have: Any = None
    ever: bool = False


class Blocker(msgspec.Struct):
    """One reason why a job waits, over all workers that give it. `ever`: time alone will not help."""

    kind: str
    message: str
    need: Any = None
    have: Any = None
    workers: int = 0
    ever: bool = False
    variant: Alternative = 0
    in_s: Annotated[float | None, Meta(description="when time alone lifts it")] = None
    by: Annotated[str, Meta(description="the job that the room is kept for, where it may be seen")] = ""


class ClassBlocker(msgspec.Struct):
    """One rule over the workers of one class; `have` is that of the one that comes closest."""

    kind: str
    need: Any = None
    have: Any = None
    workers: int = 0
    ever: bool = False


class WorkerClass(msgspec.Struct):
    """Workers of one make, how many of them have room, and what rules the others out."""

    name: str
    workers: int
    message: str
    fit: int = 0
    variant: Alternative = 0
    blockers: list[ClassBlocker] = []


class WorkerRejections(msgspec.Struct):
    """What stands in the way on one worker."""

    id: str
    fake: bool = False
    rejections: list[RejectionDocument] = []


class HolderDocument(msgspec.Struct):
    """Who holds what is missing; whose task it is only where the caller may know."""

    worker: str
    what: str
    message: str
    task_id: str = ""
    user: str = ""
    ends_in_s: Annotated[float | None, Meta(description="at the latest; null without a time limit")] = None


class PlaceDocument(msgspec.Struct):
    """Where it stands in its queue. `exact` false: more than were counted."""

    queue: str
    order: str
    jobs_ahead: int
    tasks_ahead: int
    message: str
    exact: bool = True
    rivals: Annotated[int, Meta(description="other users it takes turns with")] = 0


class StartDocument(msgspec.Struct):
    """When it starts at the latest, by the time limits of what runs on the workers that come closest."""

    workers: list[str]
    message: str
    in_s: float | None = None
    variant: Alternative = 0
    reserved: bool = False


class UnderwayDocument(msgspec.Struct):
    """A preemption that makes room for it."""

    receipt: str
    rule: str
    victims: int
    stopping: int
    message: str
    ends_in_s: float | None = None


class ChangeDocument(msgspec.Struct):
    """The smallest single change that would let it start now, as the planner found. `assign`: for `dray set`."""

    kind: str
    flag: str
    value: str
    was: str
    message: str
    worker: str = ""
    victims: int = 0
    assign: str = ""


class EstimateDocument(msgspec.Struct):
    """When it starts, by running the scheduler forward: half of such starts come by `p50_s`, nine of ten by `p90_s`."""

    message: str
    p50_s: float | None = None
    p90_s: float | None = None
    age_s: Annotated[float, Meta(description="how long ago it was found")] = 0


class JudgedEstimate(msgspec.Struct):
    """What was foreseen when a task first had an estimate, and how long it really took from there."""

    p50_s: float
    p90_s: float
    real_s: float


class EstimateRecord(msgspec.Struct):
    """How good estimates were for the last thousand starts that had one. Errors are against `p50_s`."""

    every_s: Annotated[float, Meta(description="how often they are made at most; 0: never")]
    known: Annotated[int, Meta(description="jobs that have an estimate now")] = 0
    judged: int = 0
    error_p50_s: float | None = None
    error_p90_s: float | None = None
    later_than_p50: float | None = None
    within_p90: float | None = None
    last: list[JudgedEstimate] = []


class VerdictDocument(msgspec.Struct):
    """Why something did not succeed: `evidence` are lines, the one that matters first; `step` is what to do next."""

    kind: Annotated[
        str,
        Meta(
            description="code, host_memory, gpu_memory, time_limit, person, node, environment, dependency, preempted, "
            "gang or unplaced"
        ),
    ]
    title: str = ""
    evidence: list[str] = []
    step: str = ""


class FailureDocument(VerdictDocument):
    """A verdict on some tasks of a job: how many of those looked at share it, and the first of them."""

    tasks: int = 1
    task_id: str = ""


class WaitPart(msgspec.Struct):
    """A first reason, and for how long it was one."""

    reason: str
    words: str
    seconds: float


class WaitsDocument(msgspec.Struct):
    """For how long some of a job has waited, by what stood in its way first; the longest part comes first."""

    seconds: float
    parts: list[WaitPart] = []
    message: str = ""


class Why(msgspec.Struct):
    """Why a job is where it is, and what would help. `workers` holds those that come closest, 50 at most."""

    state: str
    summary: str
    ever: bool = False
    blockers: list[Blocker] = []
    classes: list[WorkerClass] = []
    workers: list[WorkerRejections] = []
    workers_total: int = 0
    holders: list[HolderDocument] = []
    place: PlaceDocument | None = None
    start: StartDocument | None = None
    preemption: UnderwayDocument | None = None
    estimate: EstimateDocument | None = None
    fix: str = ""
    change: ChangeDocument | None = None
    failures: list[FailureDocument] = []
    learned: Annotated[str, Meta(description="why it asks for larger cards than its submit did")] = ""
    waits: WaitsDocument | None = None
    launches: Annotated[
        list[str],
        Meta(description="what each launcher does for it whose workers would hold it, one line each"),
    ] = []


class PlacementDocument(msgspec.Struct):
    """Where one task would go."""

    task: int
    worker: str
    fake: bool = False
    variant: str = ""
    devices: list[int] = []


class CandidateDocument(msgspec.Struct):
    """A worker that has room: its score, and what each scorer says of it, 0 to 1."""

    worker: str
    score: int
    fake: bool = False
    variant: str = ""
    devices: list[int] = []
    terms: dict[str, float] = {}


class StrategyDocument(msgspec.Struct):
    """By which strategy tasks are placed, and why: `automatic` where the policy leaves it to a table of rules."""

    strategy: str
    automatic: bool = False
    rule: int = 0
    why: str = ""
    since: str | None = None


class PlannedVictimDocument(msgspec.Struct):
    """A task that would be stopped, and what that would cost it. `moved_to`: where it would start again at once."""

    worker: str
    priority: int
    ran_s: float
    lost_s: float
    grace_s: float
    task_id: str = ""
    user: str = ""
    moved_to: str = ""


class GateUseDocument(msgspec.Struct):
    """A quota, pace or cap that the job falls under: used now, and after its start."""

    kind: str
    whose: str
    unit: str
    limit: float
    used: float
    after: float


class PlanAnswer(msgspec.Struct):
    """What would become of a job that was submitted now. `asked`: how many of its tasks were tried."""

    starts_now: bool
    tasks: int
    summary: str
    asked: int = 0
    learned: Annotated[str, Meta(description="why it would ask for larger cards than it says")] = ""
    placements: list[PlacementDocument] = []
    candidates: list[CandidateDocument] = []
    candidates_total: int = 0
    choices: Annotated[
        list[Choice], Meta(description="providers and cards by money and time, the best first")
    ] = []
    chosen: Annotated[str, Meta(description="which of them it would take, and why")] = ""
    placement: StrategyDocument | None = None
    rule: Annotated[str, Meta(description="by which rule the victims would be stopped")] = ""
    victims: list[PlannedVictimDocument] = []
    lost_s: float = 0
    quotas: list[GateUseDocument] = []
    ever: bool = False
    blockers: list[Blocker] = []
    holders: list[HolderDocument] = []
    place: PlaceDocument | None = None
    earliest: StartDocument | None = None
    estimate: EstimateDocument | None = None
    fix: str = ""
    change: ChangeDocument | None = None
