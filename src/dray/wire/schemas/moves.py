"""Moves of work that runs, as documents of the HTTP API."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dray.wire.schemas.jobs import Time


class MoveRequest(msgspec.Struct):
    """Where what runs is to go."""

    task: Annotated[int, Meta(ge=0, le=10**9, description="this task alone, by its index")] | None = None
    to: Annotated[str, Meta(max_length=256, description="this worker; the best one by default")] = ""


class MovedTask(msgspec.Struct, rename={"origin": "from"}):
    """One task of a move: from where to where, and how far it is."""

    origin: str
    to: str
    stage: Annotated[
        str,
        Meta(
            description="`claimed` (its place is kept, nobody was asked to stop), `saving` (asked to stop), "
            "`starting`, `settling` (it runs there, its old place is kept), `done`; or `called_off`, `returning` (it "
            "could not start there and goes back), `rolled_back`, `failed` (it waits like any other)"
        ),
    ]
    job_id: str | None = None
    task_id: str | None = None
    user: str | None = None
    stage_s: Annotated[float | None, Meta(description="for how long it is at this stage")] = None
    grace_left_s: Annotated[float | None, Meta(description="how long it has left to save its work")] = None
    saved_step: int | None = None
    lost_s: Annotated[float, Meta(description="run time that was not saved")] = 0
    down_s: Annotated[float | None, Meta(description="from the request to stop until it ran again")] = None
    note: str = ""


class MoveDocument(msgspec.Struct):
    """One move, of one task or of several that go together."""

    id: str
    status: Annotated[str, Meta(description="open, done, rolled_back, called_off or failed")]
    cause: Annotated[
        str, Meta(description="person, evacuate, performance, cost, room or spread: why it is moved")
    ]
    tasks: list[MovedTask]
    by: Annotated[str, Meta(description="who ordered it; nobody where the policy did")] = ""
    why: str = ""
    unit: Annotated[str, Meta(description="of gain and cost: gpu_ms stands for GPU-seconds, or money")] = ""
    foretold_gain: float | None = None
    foretold_cost: float | None = None
    won: Annotated[float | None, Meta(description="what it came to, once the work has ended")] = None
    lost_s: float = 0
    decided_at: Time | None = None
    ended_at: Time | None = None


class MoveList(msgspec.Struct):
    """Moves, newest first."""

    moves: list[MoveDocument]
    next_cursor: str | None = None


class OrderedMoves(msgspec.Struct):
    """The moves that were ordered, one for each task."""

    moves: list[MoveDocument]


class ProposedTask(msgspec.Struct, rename={"origin": "from"}):
    """A task that would go elsewhere."""

    job_id: str
    task_id: str
    user: str
    origin: str
    to: str


class MoveProposal(msgspec.Struct):
    """What would go elsewhere, as one whole, or why it does not."""

    cause: str
    tasks: list[ProposedTask]
    why: str = ""
    refused: Annotated[str, Meta(description="why it stays; nothing where it would be moved")] = ""
    unit: str = ""
    foretold_gain: float | None = None
    foretold_cost: float | None = None


class RebalancePlan(msgspec.Struct):
    """What would be better off elsewhere now. `etag` names what would be moved: to start it, give it back."""

    etag: str
    mode: str
    chosen: int
    levels: Annotated[
        dict[str, float], Meta(description="how much there is to gain by each strategy, between 0 and 1")
    ] = {}
    proposals: list[MoveProposal] = []


class RebalanceRequest(msgspec.Struct):
    """The plan to carry out, by its etag."""

    etag: Annotated[str, Meta(min_length=1, max_length=64)]
    cause: Annotated[Literal["", "performance", "cost"], Meta(description="as the plan was asked for")] = ""


class StrategyStanding(msgspec.Struct):
    """What one cause has moved, and what that came to."""

    cause: str
    level: Annotated[float | None, Meta(description="what there was to gain when it was last looked")] = None
    moves: int = 0
    by_status: dict[str, int] = {}
    lost_s: float = 0
    unit: str = ""
    foretold: float | None = None
    won: float | None = None
    only_advises: Annotated[str, Meta(description="why it no longer moves anybody by itself")] = ""


class RebalanceStanding(msgspec.Struct):
    """Whether work is moved by itself, and what moves have come to."""

    mode: Annotated[str, Meta(description="off, advise or on, by the policy")]
    quiet: Annotated[bool, Meta(description="these are quiet hours")] = False
    under_way: int = 0
    strategies: list[StrategyStanding] = []
