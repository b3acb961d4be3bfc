"""Documents of the HTTP API about launchers and the workers that they start."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dray.core.model.bounds import IdText

LaunchState = Annotated[
    Literal["asked", "starting", "joined", "draining", "ending", "ended", "failed"],
    Meta(description="`starting`: its command may have run; `ending`: its machine is being ended"),
]


class LauncherDocument(msgspec.Struct):
    """A launcher of the policy: how many of its workers there are, and why it starts none now, if so."""

    name: str
    way: Annotated[
        str, Meta(description="`slurm`, `kubernetes`, `ssh` or `command`; empty: gone from the policy")
    ]
    min: int
    most: int
    coming: int
    joined: int
    ending: int
    failures: Annotated[int, Meta(description="starts that failed in a row")]
    spent_today: float
    budget_per_day: Annotated[float, Meta(description="0: no limit")]
    note: Annotated[str, Meta(description="why it starts no worker now; empty where it may")]


class LaunchDocument(msgspec.Struct):
    """One worker that was asked for."""

    id: Annotated[str, Meta(description="the name of its worker too")]
    launcher: str
    state: LaunchState
    why: str
    job_id: Annotated[str, Meta(description="for whose job; empty where it is for none")]
    user: Annotated[str, Meta(description="who asked for it by hand")]
    handle: Annotated[str, Meta(description="what the site calls it")]
    said: Annotated[str, Meta(description="the site's last word")]
    worker: str | None
    tasks: Annotated[int, Meta(description="what it holds")]
    asked_at: str | None
    started_at: str | None
    joined_at: str | None
    ended_at: str | None
    price_per_hour: float


class Stranger(msgspec.Struct):
    """A machine that a site names and the hub knows nothing of; it is left alone."""

    launcher: str
    id: str
    handle: str
    said: str


class LaunchList(msgspec.Struct):
    launchers: list[LauncherDocument]
    launches: list[LaunchDocument]
    strangers: list[Stranger]


class LaunchRequest(msgspec.Struct):
    """Ask a launcher for workers."""

    launcher: IdText
    count: Annotated[int, Meta(ge=1, le=64)] = 1


class Launched(msgspec.Struct):
    launches: list[LaunchDocument]
