"""Documents of the HTTP API about providers: what they cost, and how it goes there."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Health = Annotated[
    Literal["ok", "degraded", "bad"],
    Meta(description="nothing new goes to a bad one while it fits elsewhere"),
]
Money = Annotated[float, Meta(description="in whatever the price list of the policy is written in")]


class ProviderDocument(msgspec.Struct):
    """A provider: its prices by the policy, and what was measured on its workers; what is older counts less, half as
    much after a week.
    """

    name: str
    listed: Annotated[bool, Meta(description="whether the policy names it")]
    health: Health
    why: Annotated[str, Meta(description="why it is not ok")]
    since: Annotated[str | None, Meta(description="since when its health is what it is; null: ever since")]
    workers: int
    workers_here: Annotated[int, Meta(description="those that are heard")]
    price_per_hour: Money
    price_per_gpu_hour: dict[str, Money]
    egress_per_gb: Money
    spot: bool
    worker_days: float
    losses_per_day: Annotated[
        float, Meta(description="losses per worker-day: (losses + 0.5) / (worker-days + 5)")
    ]
    success: Annotated[
        float, Meta(description="share of attempts that it did not spoil; users' own failures aside")
    ]
    succeeded: float
    start_p50_s: Annotated[
        float | None, Meta(description="from being given out to the start; null: none yet")
    ]
    start_p90_s: float | None
    money: Annotated[float, Meta(description="what attempts there have cost")]
    money_per_success: float | None


class ProviderSpeed(msgspec.Struct):
    """How fast jobs of one name run on one kind of card of a provider."""

    job_name: str
    gpu_type: str
    run_s: Annotated[float | None, Meta(description="how long they took, the last ones counting most")] = None
    steps_per_s: Annotated[float | None, Meta(description="by what they say of their progress")] = None


class ProviderDetail(ProviderDocument, kw_only=True):
    """The same with its workers by their kind of card and, for admins, how fast which jobs run on those."""

    gpu_types: Annotated[dict[str, int], Meta(description="workers by their kind of card")]
    speeds: list[ProviderSpeed]


class ProviderList(msgspec.Struct):
    """All providers: those that the policy names and those that workers name."""

    providers: list[ProviderDocument]


class Choice(msgspec.Struct):
    """What a job would come to on one kind of worker of one provider."""

    provider: Annotated[str, Meta(description="empty: workers without the label")]
    gpu_type: Annotated[str, Meta(description="what those workers compute on")]
    workers_with_room: int
    workers: Annotated[int, Meta(description="those that could take it when they are empty")]
    price_per_hour: Annotated[float, Meta(description="for what the job takes of a worker")]
    hours_p50: float
    hours_p90: float
    hours_from: Annotated[str, Meta(description="how the hours are known, or what was assumed")]
    money: Annotated[float, Meta(description="for the whole job: hours with what losses may add, and egress")]
    in_time: Annotated[bool, Meta(description="whether nine of ten such runs would end before its deadline")]
    ends_in_s: float
    success: float
    health: Health
    score: Annotated[float, Meta(description="by what the job counts, without how it fills the worker")]
    latency_s: float | None = None
    variant: str = ""
    priced: Annotated[
        bool, Meta(description="false: the list leaves this card out, the dearest was taken")
    ] = True


class Ranking(msgspec.Struct):
    """Choices, the best first: those with room now before others, bad providers last."""

    choices: list[Choice]
    weights: Annotated[dict[str, float], Meta(description="how much each counts for this job")]
    deadline_in_s: float | None = None
