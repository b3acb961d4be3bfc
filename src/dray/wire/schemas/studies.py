"""Documents of studies: what is asked, how far it is, and what was found."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dray.core.model.bounds import IdText
from dray.wire.schemas.jobs import Time


class MoreWorkers(msgspec.Struct):
    """Further workers: copies of one that is known."""

    like: Annotated[str, Meta(min_length=1, max_length=256)]
    count: Annotated[int, Meta(ge=1, le=64)] = 1


class WhatIfRequest(msgspec.Struct):
    """What would be otherwise."""

    policy: Annotated[dict[str, Any] | None, Meta(description="another policy, whole")] = None
    drain: Annotated[
        list[IdText], Meta(description="workers that would get nothing new", max_length=1000)
    ] = []
    more: Annotated[list[MoreWorkers], Meta(max_length=64)] = []
    jobs: Annotated[
        list[dict[str, Any]],
        Meta(description="jobs as for a submit; none of them is submitted", max_length=20),
    ] = []
    horizon_s: Annotated[
        float, Meta(ge=60, le=30 * 86400, description="for how long it is told how much of the GPUs is held")
    ] = 6 * 3600


class ReplayRequest(msgspec.Struct):
    """The site's own past under other rules, or with other machines."""

    since: Annotated[str, Meta(max_length=64, description="a moment, or how long ago, such as 7d")] = "7d"
    policies: Annotated[
        dict[str, dict[str, Any]],
        Meta(description="policies by their names, beside the one in force", max_length=6),
    ] = {}
    more: Annotated[list[MoreWorkers], Meta(max_length=64)] = []


class CapacityRequest(msgspec.Struct):
    """What further workers would have brought."""

    since: Annotated[str, Meta(max_length=64, description="a moment, or how long ago, such as 14d")] = "14d"
    counts: Annotated[
        list[Annotated[int, Meta(ge=1, le=64)]],
        Meta(description="how many of each kind are tried", max_length=4),
    ] = msgspec.field(default_factory=lambda: [1, 2])


class StartSpan(msgspec.Struct):
    """When something starts, from now on."""

    p50_s: float
    p90_s: float


class OutlookDocument(msgspec.Struct):
    """How it goes on. `held`: shares of all GPUs, from now to the horizon."""

    tasks: int
    unknown: Annotated[int, Meta(description="of how many nobody can say when they start")] = 0
    wait_p50_s: float | None = None
    wait_p90_s: float | None = None
    gpus: int = 0
    held: list[float] = []
    held_share: float | None = None


class UserContrast(msgspec.Struct):
    """The middle wait of one user's tasks; several users may be one row."""

    user: str
    tasks: int
    today_p50_s: float | None = None
    then_p50_s: float | None = None


class JobContrast(msgspec.Struct):
    """A job that waits."""

    id: str
    name: str
    user: str
    today: StartSpan | None = None
    then: StartSpan | None = None


class NewJob(msgspec.Struct):
    """A job of the question."""

    name: str
    user: str
    tasks: int
    then: StartSpan | None = None


class ReplayFigures(msgspec.Struct):
    """How one replay went; waits are those until the first start."""

    name: str
    jobs: int
    unfinished: int = 0
    wait_p50_s: float = 0
    wait_p90_s: float = 0
    wait_mean_s: float = 0
    gpu_utilisation: float = 0
    preemptions: int = 0
    makespan_s: float = 0
    users: dict[str, float] = {}


class CapacityOption(msgspec.Struct):
    """So many more workers of one kind, such as `like`."""

    kind: str
    like: str
    count: int
    gpus: int = 0
    figures: ReplayFigures | None = None
    message: str = ""


class Judged(msgspec.Struct):
    """What became of an earlier advice."""

    at: Time | None
    kind: str
    like: str
    count: int
    before_p50_s: float
    foretold_p50_s: float
    came: Annotated[bool, Meta(description="whether so many workers of that kind have come since")] = False
    came_at: Time | None = None
    real_p50_s: float | None = None
    message: str = ""


class AdviceList(msgspec.Struct):
    """Earlier advice, the newest first."""

    earlier: list[Judged] = []


class StudyAnswer(msgspec.Struct):
    """What was found; which fields there are depends on the kind."""

    headline: str = ""
    today: OutlookDocument | None = None
    then: OutlookDocument | None = None
    users: list[UserContrast] = []
    jobs: list[JobContrast] = []
    new: list[NewJob] = []
    horizon_s: float = 0
    replays: list[ReplayFigures] = []
    options: list[CapacityOption] = []
    earlier: list[Judged] = []
    since: Time | None = None
    assumes: list[str] = []


class StudyDocument(msgspec.Struct):
    """A question that takes a while, and how far it is."""

    id: str
    kind: Literal["whatif", "replay", "capacity"]
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    asked_at: Time | None = None
    progress: float = 0
    doing: str = ""
    error: str = ""
    answer: StudyAnswer | None = None
