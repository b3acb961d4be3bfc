"""What an operation is, and what its handler works with.

One `Operation` says who may ask, what is asked and answered, what it costs, whether it may be repeated and how it
refuses. The ways in (HTTP, the client channel) decode and encode; they name an operation and hold no rule of their own.
Knows nothing about any of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from dray.errors import DrayError
from dray.hub.access.caller import Caller
from dray.hub.access.tokens import Tokens
from dray.hub.answers.calls import CallAnswers
from dray.hub.answers.service import Document, HubService, Submitted
from dray.hub.calls.blob_access import BlobAccess
from dray.hub.calls.blobs import Blobs
from dray.hub.calls.snapshots import Snapshots
from dray.hub.calls.subscriptions import Listener
from dray.hub.moves.answers import Wanted as WantedMoves
from dray.hub.notifications.outbox import Wanted
from dray.hub.operations.batches import Batches
from dray.hub.pages.sign_in import SignIn
from dray.hub.studies.desk import StudyDesk
from dray.hub.views.views import Views
from dray.hub.workers.leases import Leases
from dray.hub.workers.owners import Owners
from dray.hub.workloads.answers import Wanted as WantedWorkloads
from dray.hub.workloads.reports import WorkloadReports

# A token with `submit` may also read: whoever starts a job must be able to see how it ends, and both see only what is
# their own.
READ = ("read", "submit")
SUBMIT = ("submit",)
# And a task that uses a service may find it.
REACH = (*READ, "use")
ADMIN = ("admin",)
WORKER = ("worker",)
ANY = ("read", "submit", "worker")


class Values(NamedTuple):
    """Where values are read from, and jobs by the hundred."""

    blobs: Blobs
    calls: CallAnswers
    access: BlobAccess
    batches: Batches
    snapshots: Snapshots


class Notifications(Protocol):
    """Who was told of what."""

    async def list(self, caller: Caller, wanted: Wanted) -> Document: ...


class Services(Protocol):
    """What is answered about services."""

    async def list(self, caller: Caller) -> Document: ...
    async def show(self, caller: Caller, name: str) -> Document: ...
    async def endpoints(self, caller: Caller, name: str) -> Document: ...
    async def link(self, caller: Caller, name: str) -> Document: ...
    async def scale(self, caller: Caller, name: str, replicas: int) -> Document: ...
    async def share(
        self, caller: Caller, name: str, add: Sequence[str], remove: Sequence[str]
    ) -> Document: ...
    async def update(
        self, caller: Caller, name: str, changes: Mapping[str, Any], whole: bool
    ) -> Document: ...
    async def rollback(self, caller: Caller, name: str, to: int | None) -> Document: ...
    async def restart(self, caller: Caller, name: str, replica: int | None, at_once: bool) -> Document: ...
    async def stop(self, caller: Caller, name: str, grace_s: float | None) -> Document: ...


class Workloads(Protocol):
    """What is answered about workloads."""

    reports: WorkloadReports

    async def create(
        self, caller: Caller, raw: Mapping[str, Any], key: str = "", dry_run: bool = False
    ) -> Document: ...
    async def list(self, caller: Caller, wanted: WantedWorkloads) -> Document: ...
    async def show(self, caller: Caller, name: str, wait_s: float = 0) -> Document: ...
    async def update(
        self, caller: Caller, name: str, changes: Mapping[str, Any], etag: str = ""
    ) -> Document: ...
    async def switch(
        self, caller: Caller, name: str, verb: str, stop: bool = False, grace_s: float | None = None
    ) -> Document: ...
    async def scale(self, caller: Caller, name: str, width: int) -> Document: ...
    async def spread(self, caller: Caller, name: str, distribution: Mapping[str, Any]) -> Document: ...
    async def drop(self, caller: Caller, name: str) -> Document: ...
    async def add(
        self, caller: Caller, name: str, jobs: Any, key: str = "", seal: bool = False
    ) -> Submitted: ...
    async def attach(
        self, caller: Caller, name: str, attach: Sequence[str], detach: Sequence[str]
    ) -> Document: ...


class Moves(Protocol):
    """What is answered about moves."""

    async def order(self, caller: Caller, job_id: str, task: int | None, to: str) -> Document: ...
    async def list(self, caller: Caller, wanted: WantedMoves) -> Document: ...
    async def show(self, caller: Caller, move_id: str) -> Document: ...
    async def cancel(self, caller: Caller, move_id: str) -> Document: ...
    async def plan(self, caller: Caller, cause: str = "") -> Document: ...
    async def start(self, caller: Caller, etag: str, cause: str = "") -> Document: ...
    async def stop(self, caller: Caller) -> Document: ...
    async def standing(self, caller: Caller) -> Document: ...


class Hubs(Protocol):
    """What is answered about this hub and those that stand by."""

    async def list(self, caller: Caller) -> Document: ...
    async def status(self, caller: Caller) -> Document: ...
    async def resign(self, caller: Caller) -> Document: ...


class Launches(Protocol):
    """What is answered about workers that launchers start."""

    async def list(self, caller: Caller, launcher: str, everything: bool) -> Document: ...
    async def show(self, caller: Caller, launch_id: str) -> Document: ...
    async def start(self, caller: Caller, launcher: str, count: int) -> Document: ...
    async def stop(self, caller: Caller, launch_id: str) -> Document: ...


class Desk(NamedTuple):
    """What handlers work with. A front that serves no values has none."""

    service: HubService
    tokens: Tokens
    owners: Owners
    values: Values | None = None
    notifications: Notifications | None = None
    services: Services | None = None
    moves: Moves | None = None
    hubs: Hubs | None = None
    views: Views | None = None
    sign_in: SignIn | None = None
    workloads: Workloads | None = None
    leases: Leases | None = None
    launches: Launches | None = None
    studies: StudyDesk | None = None


class Session(Protocol):
    """Whoever stays to be told more: one connection that carries many requests. What it submits goes in by `order`."""

    caller: Caller
    order: asyncio.Lock

    @property
    def listener(self) -> Listener: ...

    def tell(self, job_id: str, row: Document, last: bool) -> None: ...


class Operation(NamedTuple):
    """One row. `handler` takes the desk, who asks and what; `ask` and `answer` are the types of both documents.

    `scopes`: a token with any of them may; none for what strangers may ask. `weight`: how many units it takes of its
    caller's budget beside those of its answer; None for a small question, that is always let through. `repeat`: asked
    again it `reads` again, comes to the `same`, makes nothing more under the same `key` or id, or acts `anew`.
    `streams`: its answer grows (`out`), or what is asked comes in pieces (`in`). `errors`: refusals beside those that
    any may meet. `in_session`: its handler takes a `Session` in place of the caller.
    """

    name: str
    about: str
    scopes: tuple[str, ...]
    ask: Any
    answer: Any
    handler: Callable[[Desk, Any, Any], Awaitable[Any]]
    weight: float | None = None
    repeat: Literal["reads", "same", "key", "anew"] = "reads"
    paged: bool = False
    streams: Literal["", "out", "in"] = ""
    errors: tuple[type[DrayError], ...] = ()
    in_session: bool = False
    needs_ready: bool = True
