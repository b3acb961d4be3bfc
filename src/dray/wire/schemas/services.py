"""Documents of the HTTP API about services."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dray.core.model.bounds import IdText
from dray.core.model.specs.spec import MAX_REPLICAS
from dray.wire.schemas.jobs import State, Time

Users = Annotated[list[IdText], Meta(max_length=1000)]


class ReplicaDocument(msgspec.Struct):
    """One replica of a service, or one member of a group where its replicas have several nodes."""

    id: Annotated[
        str, Meta(description="of its task: the replica of a service that began with one has the job's")
    ]
    index: int
    health: Annotated[
        str,
        Meta(
            description="queued, starting, ready, unhealthy, draining (it gets no new requests), stopping, "
            "silent (its worker), restarting or crash_looping"
        ),
    ]
    message: str
    revision: Annotated[int, Meta(description="of the spec, by which it runs")] = 1
    worker: str = ""
    attempt: int = 0
    started_at: Time | None = None
    address: str = ""
    ports: dict[str, int] = {}
    restarts: Annotated[int, Meta(description="ends since it was last ready for ten minutes")] = 0
    next_try_in_s: float | None = None
    last_exit_code: int | None = None
    last_error: str = ""
    group: Annotated[int, Meta(description="of which replica it is, where a replica has several nodes")] = 0
    rank: Annotated[int, Meta(description="which member of its group; callers are sent to 0")] = 0


class RevisionDocument(msgspec.Struct):
    """One revision of a service's spec, and what came of it."""

    number: int
    kind: Annotated[str, Meta(description="submit, update, restart or rollback: how it came")]
    user: str
    command: list[str]
    outcome: Annotated[
        str,
        Meta(
            description="empty while it is under way, done (it was whole), rolled_back, or replaced by a later update"
        ),
    ]
    why: Annotated[str, Meta(description="it was rolled back or replaced")] = ""
    at: Annotated[Time | None, Meta(description="it was last begun")] = None
    current: Annotated[bool, Meta(description="new replicas run by it")] = False


class ServiceDocument(msgspec.Struct):
    """A service that runs: how many replicas it is to have, how many are ready, and each of them."""

    id: str
    name: str
    user: str
    queue: str
    state: State
    command: Annotated[list[str], Meta(description="empty where the service is shared with whoever asks")]
    replicas: int
    ready: int
    crash_looping: int
    summary: Annotated[str, Meta(description="one line: how many are ready, and why the others are not")]
    nodes: Annotated[int, Meta(description="of each replica: more than 1 where replicas are groups")] = 1
    share: Annotated[
        list[str], Meta(description="users who may reach it beside its owner; `*`: everybody")
    ] = []
    revision: Annotated[int, Meta(description="by which new replicas run")] = 1
    update: Annotated[
        str,
        Meta(description="of replicas that are replaced: by what, how far it has come, what it waits for"),
    ] = ""
    submitted_at: Time | None = None
    revisions: Annotated[
        list[RevisionDocument], Meta(description="the last ten, oldest first; empty in lists")
    ] = []
    replica_list: Annotated[list[ReplicaDocument], Meta(description="empty in lists")] = []
    note: Annotated[str, Meta(description="what a change did not do, and why")] = ""


class ServiceList(msgspec.Struct):
    """Services, the oldest first."""

    services: list[ServiceDocument]


class Endpoint(msgspec.Struct):
    """Where one ready replica answers."""

    id: str
    index: int
    worker: str
    attempt: str
    address: str
    ports: Annotated[dict[str, int], Meta(description="by the names that the service gave them")] = {}


class EndpointList(msgspec.Struct):
    """The ready replicas of a service, by index."""

    service: str
    id: str
    endpoints: list[Endpoint]


class ServiceLink(msgspec.Struct):
    """A way in for a browser, good once."""

    service: str
    id: str
    host: Annotated[str, Meta(description="of the service's own; empty where it is under the hub's")]
    path: Annotated[str, Meta(description="to be asked for there; it holds the word that lets in")]
    expires_in_s: float


class StoppedService(msgspec.Struct):
    """A service that was stopped: its processes get the grace that it has, or was given."""

    id: str
    name: str
    state: State
    note: str = ""


class ScaleRequest(msgspec.Struct):
    """How many replicas there shall be."""

    replicas: Annotated[int, Meta(ge=0, le=MAX_REPLICAS)]


class ShareRequest(msgspec.Struct):
    """Who else may reach it from here on, and who no longer; `*` is everybody."""

    add: Users = []
    remove: Users = []


class RestartRequest(msgspec.Struct):
    """Which replica, by its index; all by default."""

    replica: Annotated[int, Meta(ge=0, le=10**9, description="index of one replica")] | None = None
    at_once: Annotated[
        bool, Meta(description="stop all and start them again; else each is stopped once another is ready")
    ] = False


class UpdateRequest(msgspec.Struct):
    """Another spec for a service: `changes` of fields, null for a default, or all of it as `spec`."""

    changes: Annotated[dict[IdText, Any], Meta(min_length=1, max_length=256)] | None = None
    spec: Annotated[dict[IdText, Any], Meta(min_length=1, max_length=256)] | None = None


class RollbackRequest(msgspec.Struct):
    """Which revision; by default an update is given up, or the last that was whole comes again."""

    to: Annotated[int, Meta(ge=1, le=10**9, description="number of a revision")] | None = None


class StopRequest(msgspec.Struct):
    """How long processes have after TERM; what the tier gives by default."""

    grace_s: Annotated[float, Meta(ge=0, le=86400, description="between TERM and KILL")] | None = None
