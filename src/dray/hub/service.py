"""What every way into the hub (HTTP, client channel, gRPC) may ask of it, in one place.

The ways in decode, authenticate and encode; what is allowed and what happens is decided behind this interface, so
that the same rules hold everywhere. Documents are plain dicts ready to be encoded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from dray.hub.store.base import JobFilter

Document = dict[str, Any]


class Caller(NamedTuple):
    """Who asks: the token behind a request. `admin` includes every scope. `local`: by the socket of the hub's home."""

    token_id: str
    user: str
    scopes: tuple[str, ...]
    local: bool = False

    def may(self, scope: str) -> bool:
        return scope in self.scopes or "admin" in self.scopes

    def sees(self, user: str) -> bool:
        """Whether something of `user` may be shown to this caller at all."""
        return user == self.user or "admin" in self.scopes


class Submitted(NamedTuple):
    """The jobs of one submit; `created` is False where the same key or id had made them before."""

    jobs: list[Document]
    created: bool


class LogRequest(NamedTuple):
    """Which output is wanted. `skip` bytes of the text were received before."""

    job_id: str
    task: int | None = None
    attempt: int | None = None
    stream: str = "both"
    follow: bool = False
    tail: int | None = None
    skip: int = 0


class ReceiptFilter(NamedTuple):
    """Which receipts of preemptions are wanted; `before` is the number of the last one that was seen (0: none)."""

    job: str = ""
    user: str = ""
    limit: int = 50
    before: int = 0
    window_s: float = 86400


class FeedEvent(NamedTuple):
    """One line of the public feed. `id` is `SEQ.N`, by which a reader resumes."""

    id: str
    type: str
    data: Document


class SiteService(Protocol):
    """The site's rules: its policy, settings, queues, quotas and paces, and the preemptions they led to."""

    async def policy(self, caller: Caller) -> Document: ...
    async def apply(
        self, caller: Caller, raw: Any, dry_run: bool = False, force: bool = False
    ) -> Document: ...
    async def settings(self, caller: Caller) -> Document: ...
    async def queues(self, caller: Caller) -> Document: ...
    async def queue(self, caller: Caller, name: str, limit: int) -> Document: ...
    async def quotas(self, caller: Caller) -> Document: ...
    async def paces(self, caller: Caller) -> Document: ...
    async def preemptions(self, caller: Caller, wanted: ReceiptFilter) -> Document: ...
    async def preemption(self, caller: Caller, receipt_id: str) -> Document: ...


class HubService(Protocol):
    """Raises the errors of `dray.errors`; NotFound also stands for what belongs to others."""

    ready: bool

    @property
    def site(self) -> SiteService: ...

    async def submit(self, caller: Caller, specs: Sequence[Any], key: str = "") -> Submitted: ...
    async def job(self, caller: Caller, job_id: str, wait_s: float = 0) -> Document: ...
    async def jobs(self, caller: Caller, wanted: JobFilter) -> Document: ...
    async def tasks(
        self, caller: Caller, job_id: str, states: tuple[str, ...], cursor: str, limit: int
    ) -> Document: ...
    async def job_events(self, caller: Caller, job_id: str) -> Document: ...
    async def why(self, caller: Caller, job_id: str, fix: bool = True, eta_s: float = 0) -> Document: ...
    async def cancel(
        self, caller: Caller, job_id: str, index: int | None = None, grace_s: float | None = None
    ) -> Document: ...
    async def hold(self, caller: Caller, job_id: str, on: bool) -> Document: ...
    async def requeue(self, caller: Caller, job_id: str, index: int | None = None) -> Document: ...
    async def edit(self, caller: Caller, job_id: str, changes: Mapping[str, Any]) -> Document: ...
    async def plan(self, caller: Caller, spec: Any, eta_s: float = 0) -> Document: ...
    async def estimates(self, caller: Caller) -> Document: ...
    def logs(self, caller: Caller, request: LogRequest) -> AsyncIterator[bytes]: ...
    async def workers(self, caller: Caller, backend: str = "") -> Document: ...
    async def worker(self, caller: Caller, worker_id: str) -> Document: ...
    async def drain(self, caller: Caller, worker_id: str, on: bool) -> Document: ...
    def feed(self, caller: Caller, after: str = "") -> AsyncIterator[FeedEvent | None]: ...
    async def doctor(self, caller: Caller) -> Document: ...
    async def audit(self, caller: Caller, limit: int) -> Document: ...
    async def hub(self, caller: Caller) -> Document: ...
    def metrics_text(self) -> bytes: ...
