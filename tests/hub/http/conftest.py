"""A real server on a free port, with a stand-in for the engine behind it: what is tested here ends at `HubService`."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import pytest
import uvloop
from tests.whole import whole, whole_answer

from dray.core.lifecycle.state.state import State
from dray.errors import NotFound
from dray.hub.access.caller import Caller
from dray.hub.access.tokens import Tokens, make_token
from dray.hub.answers.service import LogRequest, Submitted
from dray.hub.documents.public_feed import FeedEvent
from dray.hub.documents.receipts import ReceiptFilter
from dray.hub.http.api import HttpApi, HttpLimits, SocketRoute
from dray.hub.http.server import HttpServer, bind
from dray.hub.notifications.outbox import Wanted
from dray.hub.operations.operation import Desk
from dray.hub.pages.sign_in import SignIn
from dray.hub.roles import HubRoles, Role
from dray.hub.store.base import AuditRecord, JobFilter, TokenRow
from dray.hub.store.memory import MemoryStore
from dray.hub.workers.owners import Owners
from dray.wire.messages.client import Usage as ShowUsage
from dray.wire.schemas import jobs as schemas
from dray.wire.schemas import providers as provider_schemas
from dray.wire.schemas import reasons as reason_schemas
from dray.wire.schemas import services as service_schemas
from dray.wire.schemas import site as site_schemas
from dray.wire.schemas import templates as template_schemas

NOW_MS = 1_800_000_000_000
WORKER = {
    "status": "ready",
    "backend": "cpu",
    "gpu_count": 0,
    "cpu_count": 4,
    "vram_gb": 0,
    "active_jobs": 0,
    "total_slots": 4,
}


def job_document(job_id: str, state: str, **changes: Any) -> dict[str, Any]:
    fields = {
        "id": job_id,
        "name": "",
        "state": state,
        "phase": "",
        "reason": "",
        "user": "ada",
        "queue": "default",
    }
    return dict(whole(schemas.JobDocument, {**fields, **changes}))


class FakeNotifications:
    """Nobody was told of anything."""

    async def list(self, caller: Caller, wanted: Wanted) -> dict[str, Any]:
        return {"notifications": [], "next_cursor": None}


class FakeServices:
    """One service without replicas, whatever is asked."""

    row: ClassVar[dict[str, Any]] = {
        "id": "s", "name": "web", "user": "ann", "queue": "default", "state": "running", "command": ["true"],
        "replicas": 0, "ready": 0, "crash_looping": 0, "summary": "0 of 0 replicas ready",
    }  # fmt: skip

    async def list(self, caller: Caller) -> dict[str, Any]:
        return dict(whole(service_schemas.ServiceList, {"services": [self.row]}))

    async def show(self, caller: Caller, name: str) -> dict[str, Any]:
        return dict(whole(service_schemas.ServiceDocument, self.row))

    async def endpoints(self, caller: Caller, name: str) -> dict[str, Any]:
        return dict(whole(service_schemas.EndpointList, {"service": name, "id": "s", "endpoints": []}))

    async def link(self, caller: Caller, name: str) -> dict[str, Any]:
        found = {"service": name, "id": "s", "host": "", "path": "/", "expires_in_s": 300.0}
        return dict(whole(service_schemas.ServiceLink, found))

    async def scale(self, caller: Caller, name: str, replicas: int) -> dict[str, Any]:
        return dict(whole(service_schemas.ServiceDocument, {**self.row, "replicas": replicas}))

    async def share(
        self, caller: Caller, name: str, add: Sequence[str], remove: Sequence[str]
    ) -> dict[str, Any]:
        return dict(whole(service_schemas.ServiceDocument, {**self.row, "share": list(add)}))

    async def update(
        self, caller: Caller, name: str, changes: Mapping[str, Any], whole: bool
    ) -> dict[str, Any]:
        return await self.show(caller, name)

    async def rollback(self, caller: Caller, name: str, to: int | None) -> dict[str, Any]:
        return await self.show(caller, name)

    async def restart(self, caller: Caller, name: str, replica: int | None, at_once: bool) -> dict[str, Any]:
        return dict(whole(service_schemas.ServiceDocument, self.row))

    async def stop(self, caller: Caller, name: str, grace_s: float | None) -> dict[str, Any]:
        return dict(whole(service_schemas.StoppedService, {"id": "s", "name": name, "state": "killed"}))


class FakeTemplates:
    """One template, whatever is asked."""

    row: ClassVar[dict[str, Any]] = {
        "name": "t", "version": 1, "kind": "job", "about": "", "built_in": False, "digest": "sha256:0"
    }  # fmt: skip

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note

    async def list(self, caller: Caller) -> dict[str, Any]:
        self._note("templates", caller)
        return dict(whole(template_schemas.TemplateList, {"templates": [self.row]}))

    async def show(self, caller: Caller, name: str) -> dict[str, Any]:
        self._note("template", caller, name)
        return dict(whole(template_schemas.TemplateDocument, {**self.row, "params": [], "document": {}}))

    async def history(self, caller: Caller, name: str) -> dict[str, Any]:
        self._note("template_history", caller, name)
        return dict(whole(template_schemas.TemplateHistory, {"name": name, "versions": []}))

    async def render(self, caller: Caller, name: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self._note("render", caller, name, params)
        return {"template": f"{name}@1", "spec": {}}

    async def add(self, caller: Caller, raw: Any) -> dict[str, Any]:
        self._note("add_template", caller, raw)
        made = {**self.row, "params": [], "document": raw, "created": True}
        return dict(whole(template_schemas.AddedTemplate, made))

    async def remove(self, caller: Caller, name: str) -> dict[str, Any]:
        self._note("remove_template", caller, name)
        return {"name": name, "removed": True, "note": ""}


class FakeHub:
    """Keeps jobs in a dict, records what it was asked, and fails on demand."""

    def __init__(self) -> None:
        self.ready = True
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.made: dict[str, dict[str, Any]] = {}
        self.fault: Exception | None = None
        self.ended = asyncio.Event()
        self.output: list[bytes] = [b"one\n", b"two\n"]
        self.events: list[FeedEvent] = []
        self.open_feeds = 0

    def note(self, name: str, *what: Any) -> None:
        self.calls.append((name, what))
        if self.fault is not None:
            raise self.fault

    async def submit(
        self, caller: Caller, specs: Sequence[Any], key: str = "", exists: str = "same"
    ) -> Submitted:
        self.note("submit", caller, list(specs), key)
        created = key == "" or key not in self.made
        jobs = [
            job_document(spec.get("id") or f"j{len(self.made)}", "pending", user=caller.user)
            for spec in specs
        ]
        if created:
            self.made.update({job["id"]: job for job in jobs} | ({key: jobs[0]} if key else {}))
        return Submitted(jobs, created)

    async def job(self, caller: Caller, job_id: str, wait_s: float = 0) -> dict[str, Any]:
        self.note("job", caller, job_id, wait_s)
        if job_id not in self.made:
            raise NotFound(f"no job has the id {job_id!r}")
        if wait_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self.ended.wait()
        state = "succeeded" if self.ended.is_set() else "pending"
        return {**self.made[job_id], "state": state}

    async def count(self, caller: Caller, asked: Any) -> dict[str, Any]:
        self.note("count", caller, asked)
        return dict(whole(schemas.JobGroups, {"groups": []}))

    async def jobs(self, caller: Caller, wanted: JobFilter) -> dict[str, Any]:
        self.note("jobs", caller, wanted)
        return dict(whole(schemas.JobList, {"jobs": list(self.made.values())}))

    async def tasks(
        self, caller: Caller, job_id: str, states: tuple[str, ...], cursor: str, limit: int
    ) -> dict[str, Any]:
        self.note("tasks", caller, job_id, states, cursor, limit)
        return dict(whole(schemas.TaskList, {"tasks": []}))

    async def job_events(self, caller: Caller, job_id: str) -> dict[str, Any]:
        self.note("job_events", caller, job_id)
        return dict(whole(schemas.JobEvents, {"events": []}))

    async def why(self, caller: Caller, job_id: str, fix: bool = True, eta_s: float = 0) -> dict[str, Any]:
        self.note("why", caller, job_id, fix, eta_s)
        return dict(whole(reason_schemas.Why, {"state": "pending", "summary": ""}))

    async def cancel(
        self, caller: Caller, job_id: str, index: int | None = None, grace_s: float | None = None
    ) -> dict[str, Any]:
        self.note("cancel", caller, job_id, index, grace_s)
        return job_document(job_id, "killed")

    async def hold(self, caller: Caller, job_id: str, on: bool) -> dict[str, Any]:
        self.note("hold", caller, job_id, on)
        return job_document(job_id, "pending", held=on)

    async def requeue(self, caller: Caller, job_id: str, index: int | None = None) -> dict[str, Any]:
        self.note("requeue", caller, job_id, index)
        return job_document(job_id, "running")

    async def act(self, caller: Caller, ask: Any) -> dict[str, Any]:
        self.note("act", caller, ask)
        empty: dict[str, Any] = {"ids": [], "states": {}, "users": {}, "unchanged": {}}
        return {"action": ask.action, "dry_run": ask.dry_run, "count": 0, **empty}

    async def edit(self, caller: Caller, job_id: str, changes: Any) -> dict[str, Any]:
        self.note("edit", caller, job_id, changes)
        return job_document(job_id, "pending")

    async def plan(self, caller: Caller, spec: Any, eta_s: float = 0) -> dict[str, Any]:
        self.note("plan", caller, spec, eta_s)
        return dict(whole(reason_schemas.PlanAnswer, {"starts_now": True, "tasks": 1, "summary": "now"}))

    async def logs(self, caller: Caller, request: LogRequest) -> AsyncIterator[bytes]:
        self.note("logs", caller, request)
        for piece in self.output:
            yield piece
        if request.follow:
            await self.ended.wait()
            yield b"last\n"

    async def overview(
        self, caller: Caller, sort: str, match: str, offset: int, limit: int, heads: int
    ) -> dict[str, Any]:
        self.note("overview", caller, sort, match, offset, limit, heads)
        empty: dict[str, Any] = {"workers": {}, "users": [], "matched": 0, "rows": [], "heads": []}
        return {**empty, "slots": {"total": 0, "in_use": 0}, "gpus": {"total": 0, "held": 0}}

    async def drain(
        self,
        caller: Caller,
        worker_id: str,
        on: bool,
        reason: str = "",
        until: str = "",
        stop: bool = False,
        ends: str = "",
        move: bool = False,
    ) -> dict[str, Any]:
        self.note("drain", caller, worker_id, on)
        return dict(whole(schemas.WorkerDocument, {**WORKER, "id": worker_id, "draining": on}))

    async def label_worker(
        self, caller: Caller, worker_id: str, labels: Mapping[str, str | None]
    ) -> dict[str, Any]:
        self.note("label_worker", caller, worker_id, labels)
        return dict(whole(schemas.WorkerDocument, {**WORKER, "id": worker_id}))

    async def remove_worker(self, caller: Caller, worker_id: str, force: bool) -> dict[str, Any]:
        self.note("remove_worker", caller, worker_id, force)
        return {"id": worker_id}

    @property
    def site(self) -> FakeHub:
        return self

    @property
    def templates(self) -> FakeTemplates:
        return FakeTemplates(self.note)

    async def queues(self, caller: Caller) -> dict[str, Any]:
        self.note("queues", caller)
        return dict(whole(site_schemas.QueueList, {"queues": []}))

    async def queue(self, caller: Caller, name: str, limit: int) -> dict[str, Any]:
        self.note("queue", caller, name, limit)
        return dict(whole(site_schemas.QueueDetail, {"name": name, "policy": "fifo", "weight": 1}))

    async def quotas(self, caller: Caller) -> dict[str, Any]:
        self.note("quotas", caller)
        return dict(whole(site_schemas.QuotaList, {"quotas": []}))

    async def alarms(self, caller: Caller) -> dict[str, Any]:
        self.note("alarms", caller)
        return {"alarms": []}

    async def providers(self, caller: Caller) -> dict[str, Any]:
        self.note("providers", caller)
        return {"providers": []}

    async def rank(self, caller: Caller, spec: Any) -> dict[str, Any]:
        self.note("rank", caller)
        return {"choices": [], "weights": {}}

    async def provider(self, caller: Caller, name: str) -> dict[str, Any]:
        self.note("provider", caller, name)
        told = {
            "name": name,
            "listed": True,
            "health": "ok",
            "why": "",
            "since": None,
            "spot": False,
            "speeds": [],
        }
        told |= dict.fromkeys(
            ("workers", "workers_here", "price_per_hour", "egress_per_gb", "worker_days"), 0
        )
        told |= {"price_per_gpu_hour": {}, "gpu_types": {}, "start_p50_s": None, "start_p90_s": None}
        told |= dict.fromkeys(("losses_per_day", "success", "succeeded", "money"), 0)
        return dict(whole(provider_schemas.ProviderDetail, told | {"money_per_success": None}))

    async def usage(self, caller: Caller, ask: ShowUsage) -> dict[str, Any]:
        self.note("usage", caller, ask.by, ask.window_s, ask.limit)
        hours = {"asked": 0.0, "held": 0.0, "used": 0.0}
        total = {"attempts": 0, "gpu_hours": {**hours, "measured": 0.0}, "core_hours": hours}
        return {"by": ask.by, "window_s": ask.window_s, "usage": [], "left_out": 0, "total": total}

    async def idle(self, caller: Caller, limit: int) -> dict[str, Any]:
        self.note("idle", caller, limit)
        return {"idle": []}

    async def paces(self, caller: Caller) -> dict[str, Any]:
        self.note("paces", caller)
        return dict(whole(site_schemas.PaceList, {"submits": [], "starts": [], "running": []}))

    async def preemptions(self, caller: Caller, wanted: ReceiptFilter) -> dict[str, Any]:
        self.note("preemptions", caller, *wanted)
        found = {"preemptions": [], "statistics": {"window_s": wanted.window_s}}
        return dict(whole(site_schemas.PreemptionList, found))

    async def preemption(self, caller: Caller, receipt_id: str) -> dict[str, Any]:
        self.note("preemption", caller, receipt_id)
        return dict(
            whole(site_schemas.PreemptionDocument, {"id": receipt_id, "status": "open", "rule": "priority"})
        )

    async def policy(self, caller: Caller) -> dict[str, Any]:
        self.note("policy", caller)
        return dict(whole(site_schemas.PolicyAnswer, {"policy": {}, "values": [], "origin": "default"}))

    async def apply(
        self, caller: Caller, raw: Any, dry_run: bool = False, force: bool = False, etag: str = ""
    ) -> dict[str, Any]:
        self.note("apply", caller, raw, dry_run, force)
        return dict(whole(site_schemas.PolicyChange, {"policy": raw, "values": [], "origin": "applied"}))

    async def settings(self, caller: Caller) -> dict[str, Any]:
        self.note("settings", caller)
        return dict(whole(site_schemas.Settings, {"values": []}))

    async def feed(self, caller: Caller, after: str = "") -> AsyncIterator[FeedEvent | None]:
        self.note("feed", caller, after)
        self.open_feeds += 1
        try:
            sent = 0
            while True:
                while sent < len(self.events):
                    yield self.events[sent]
                    sent += 1
                await asyncio.sleep(0.005)
        finally:
            self.open_feeds -= 1

    async def estimates(self, caller: Caller) -> dict[str, Any]:
        self.note("estimates", caller)
        return dict(whole(reason_schemas.EstimateRecord, {"every_s": 10, "judged": 0}))

    async def doctor(self, caller: Caller) -> dict[str, Any]:
        self.note("doctor", caller)
        return dict(whole(schemas.Doctor, {"ok": True, "checks": [], "facts": {}}))

    async def audit(self, caller: Caller, limit: int) -> dict[str, Any]:
        self.note("audit", caller, limit)
        return dict(whole(schemas.AuditList, {"records": []}))

    async def hub(self, caller: Caller) -> dict[str, Any]:
        self.note("hub", caller)
        return dict(whole(schemas.HubDocument, {"version": "0", "epoch": 1, "ready": True}))

    def metrics_text(self) -> bytes:
        return b"# nothing\n"


class Reply(NamedTuple):
    """An answer as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])

    @property
    def message(self) -> str:
        return str(self.json["error"]["message"])


class Site:
    """A running server. The loop lives in its own thread, so that tests may block on plain sockets."""

    def __init__(self, **options: Any) -> None:
        self.now_ms = NOW_MS
        self.saved: list[tuple[TokenRow, AuditRecord]] = []
        self.texts: dict[str, str] = {}
        self.requests: list[tuple[str, int]] = []
        self._options = options
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._started.wait(60)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._options.get("loop_factory", uvloop.new_event_loop)) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self.hub = FakeHub()
        rows = []
        for scope in ("admin", "submit", "read", "worker"):
            self.texts[scope], row = make_token(f"{scope}-user", (scope,), self.now_ms)
            rows.append(row)
        self.rows = {row.scopes[0]: row for row in rows}

        async def save(row: TokenRow, record: AuditRecord) -> None:
            self.saved.append((row, record))

        self.tokens = Tokens(rows, lambda: self.now_ms, save)
        self.api = HttpApi(
            Desk(
                self.hub,
                self.tokens,
                Owners(self.tokens, State, self._audit),
                notifications=FakeNotifications(),
                sign_in=SignIn(self.tokens),
                services=FakeServices(),
                hubs=HubRoles(
                    Role(), MemoryStore(), cast(Any, None)
                ),  # only one that may resign asks its engine
            ),
            hosts=("hub.example:7373", "0.0.0.0", "::", ""),
            limits=self._options.get("limits", HttpLimits()),
            sockets=[SocketRoute("/ws", ("worker",), self._echo)],
            count_request=lambda name, status: self.requests.append((name, status)),
        )
        bound = bind(self._options.get("host", "127.0.0.1"), 0)
        self.port = bound.port
        self.server = HttpServer(
            self.api, bound, cert=self._options.get("cert"), key=self._options.get("key")
        )
        await self.server.start()
        self._started.set()
        await self._stopping.wait()
        self.api.close()
        await self.server.stop(deadline_s=2)

    async def _audit(self, record: AuditRecord) -> None:
        """Nobody joins here."""

    async def _echo(self, scope: Any, receive: Any, send: Any, caller: Caller) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            if message["text"] == "fail":
                raise RuntimeError("the handler broke")
            times = 1_000_000 if message["text"] == "flood" else 1
            for _ in range(times):
                await send({"type": "websocket.send", "text": f"{caller.user}:{message['text']}"})
                await asyncio.sleep(0)

    def on_loop(self, call: Callable[[], Any]) -> Any:
        """Run something on the server's loop and give back what it returned."""

        async def run() -> Any:
            found = call()
            return await found if asyncio.iscoroutine(found) else found

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(20)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str | None = "admin",
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """One request on a connection of its own. `token` is the name of a scope, or a token."""
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {self.texts.get(token, token)}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection = self.connect()
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            reply = Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()
        if reply.body and reply.headers.get("content-type") == "application/json" and path != "/openapi.json":
            whole_answer(method, path.partition("?")[0], reply.status, reply.json)
        return reply

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture
def site() -> Iterator[Site]:
    running = Site()
    yield running
    running.stop()


@pytest.fixture
def make_site() -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(**options: Any) -> Site:
        made.append(Site(**options))
        return made[-1]

    yield make
    for running in made:
        running.stop()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"
