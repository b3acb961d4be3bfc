"""A small hub over real sockets that answers with the documents of the HTTP API, can go away and come back."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from tests.whole import answer_kind, whole, whole_answer

from dray.errors import DrayError
from dray.presence import hold
from dray.testing import RunningHub
from dray.wire.schemas.jobs import JobDocument

TOKEN = "test-token"
ENDED = ("succeeded", "failed", "killed", "worker_failed", "unschedulable")
NOW = "2026-11-15T09:10:49.123Z"


def job_document(job_id: str = "j1", **changes: Any) -> dict[str, Any]:
    """A job as the hub tells of it, which the type of that document fills up."""
    document = {
        "id": job_id,
        "name": "train",
        "state": "running",
        "phase": "running",
        "reason": "",
        "user": "ada",
        "queue": "default",
        "tier": "data_processing",
        "submitted_at": NOW,
        "worker": "w1",
        "tasks": {"total": 1, "running": 1},
        "attempt_count": 1,
        "spec": {"command": ["true"], "cpu_milli": 1000},
    }
    made: dict[str, Any] = whole(JobDocument, {**document, **changes})
    return made


class FakeHub:
    """Jobs are documents in a dict; tests change them with `set`, which wakes long polls and log followers."""

    def __init__(self, tls: Any = None) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.tasks: dict[str, list[dict[str, Any]]] = {}
        self.output: dict[str, bytes] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.canned: dict[tuple[str, str], tuple[int, Any]] = {}
        self.requests: list[tuple[str, str, dict[str, list[str]], Any, dict[str, str]]] = []
        self.keys: dict[str, Any] = {}
        self.drop_answers = 0
        # What was to be answered and no hub would answer so.
        self.faults: list[str] = []
        self.on_submit: Callable[[dict[str, Any]], dict[str, Any]] = lambda spec: {}
        self.changed = threading.Condition()
        self.tls = tls
        self.port = 0
        self.server: ThreadingHTTPServer | None = None
        self.sockets: set[socket.socket] = set()
        self.start()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def start(self) -> None:
        hub = self

        class Handler(_Handler):
            fake = hub

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        if self.tls:
            self.server.socket = self.tls.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Go away as a killed hub does: every connection breaks."""
        assert self.server is not None
        self.server.shutdown()
        self.server.server_close()
        for connection in list(self.sockets):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        with self.changed:
            self.changed.notify_all()

    def set(self, job_id: str, **changes: Any) -> None:
        with self.changed:
            self.jobs[job_id] = whole(JobDocument, {**self.jobs.get(job_id, job_document(job_id)), **changes})
            self.changed.notify_all()

    def write(self, job_id: str, data: bytes) -> None:
        with self.changed:
            self.output[job_id] = self.output.get(job_id, b"") + data
            self.changed.notify_all()

    def emit(self, event_id: str, **event: Any) -> None:
        with self.changed:
            self.events.append((event_id, event))
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool], limit_s: float = 20.0) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, limit_s), "the condition never came true"

    def asked(self, method: str, path: str) -> list[tuple[dict[str, list[str]], Any, dict[str, str]]]:
        return [
            (query, body, headers) for m, p, query, body, headers in self.requests if (m, p) == (method, path)
        ]

    def wait_asked(self, method: str, path: str, count: int = 1) -> None:
        self.wait_for(lambda: len(self.asked(method, path)) >= count)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeHub

    def setup(self) -> None:
        super().setup()
        self.fake.sockets.add(self.connection)

    def finish(self) -> None:
        self.fake.sockets.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Keep the tests' output clean."""

    def do_GET(self) -> None:
        self.answer("GET")

    def do_POST(self) -> None:
        self.answer("POST")

    def do_PATCH(self) -> None:
        self.answer("PATCH")

    def do_PUT(self) -> None:
        self.answer("PUT")

    def do_DELETE(self) -> None:
        self.answer("DELETE")

    def answer(self, method: str) -> None:
        self.close_connection = True
        parts = urlsplit(self.path)
        path = parts.path.removeprefix("/api/v1")
        query = parse_qs(parts.query)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        with self.fake.changed:
            self.fake.requests.append((method, path, query, body, dict(self.headers)))
            self.fake.changed.notify_all()
        with contextlib.suppress(OSError):
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self.send(
                    401, {"error": {"code": "unauthenticated", "message": "no such token", "problems": []}}
                )
            elif (method, path) in self.fake.canned:
                self.send(*self.can(method, parts.path, *self.fake.canned[method, path]))
            else:
                self.route(method, path, query, body)

    def can(self, method: str, path: str, status: int, document: Any) -> tuple[int, Any]:
        """An answer as a test has it ready; of a job it names what matters, and the rest is as always."""
        if status < 400 and answer_kind(method, path, status) is JobDocument:
            document = job_document(
                **{"job_id" if key == "id" else key: value for key, value in document.items()}
            )
        return status, document

    def route(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> None:
        words = path.strip("/").split("/")
        if (method, path) == ("POST", "/jobs"):
            self.submit(body)
        elif (method, path) == ("POST", "/jobs:batch"):
            self.send(201, [self.accept(spec, f"j{index}") for index, spec in enumerate(body)])
        elif path == "/events":
            self.stream_events()
        elif words[0] == "jobs" and len(words) > 1 and words[1] in self.fake.jobs:
            self.route_job(words[1], words[2:], query)
        else:
            self.send(404, {"error": {"code": "not_found", "message": f"nothing at {path}", "problems": []}})

    def route_job(self, job_id: str, rest: list[str], query: dict[str, list[str]]) -> None:
        if not rest:
            self.wait_end(job_id, float(query.get("wait_s", ["0"])[0]))
            self.send(200, self.fake.jobs[job_id])
        elif rest == ["tasks"]:
            states = query.get("state", [""])[0].split(",")
            found = [
                task for task in self.fake.tasks.get(job_id, []) if states == [""] or task["state"] in states
            ]
            self.send(200, {"tasks": found, "next_cursor": None})
        elif rest == ["cancel"]:
            self.fake.set(job_id, cancel_requested=True)
            self.fake.set(job_id, state="killed", signal=15, exit_class="cancelled")
            self.send(200, self.fake.jobs[job_id])
        elif rest == ["logs"]:
            self.stream_logs(job_id, int(query.get("skip", ["0"])[0]), "follow" in query)

    def submit(self, spec: dict[str, Any]) -> None:
        key = self.headers.get("Idempotency-Key") or ""
        known = self.fake.keys.get(key)
        if known is None:
            known = self.fake.keys[key] = self.accept(spec, spec.get("id") or "j1")
        if self.fake.drop_answers:
            self.fake.drop_answers -= 1
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send(201, known)

    def accept(self, spec: dict[str, Any], job_id: str) -> dict[str, Any]:
        self.fake.set(job_id, **{"spec": spec, "name": spec.get("name", ""), **self.fake.on_submit(spec)})
        return self.fake.jobs[job_id]

    def wait_end(self, job_id: str, wait_s: float) -> None:
        with self.fake.changed:
            self.fake.changed.wait_for(lambda: self.fake.jobs[job_id]["state"] in ENDED, wait_s)

    def stream_logs(self, job_id: str, skip: int, follow: bool) -> None:
        self.begin("text/plain; charset=utf-8")
        sent = skip
        while True:
            with self.fake.changed:
                ended = self.fake.jobs[job_id]["state"] in ENDED
                data = self.fake.output.get(job_id, b"")[sent:]
                if not data and follow and not ended:
                    self.fake.changed.wait(0.05)
                    continue
            if not data:
                break
            self.chunk(data)
            sent += len(data)
        self.chunk(b"")

    def stream_events(self) -> None:
        self.begin("text/event-stream")
        last = self.headers.get("Last-Event-ID")
        known = [event_id for event_id, _ in self.fake.events]
        at = known.index(last) + 1 if last in known else 0
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            self.chunk(b": keep-alive\n\n")
            for event_id, event in self.fake.events[at:]:
                self.chunk(f"id: {event_id}\nevent: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
                at += 1
            with self.fake.changed:
                self.fake.changed.wait(0.05)

    def begin(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def send(self, status: int, document: Any) -> None:
        try:
            document = whole_answer(self.command, urlsplit(self.path).path, status, document)
        except (DrayError, LookupError, msgspec.ValidationError) as fault:
            self.fake.faults.append(f"{self.command} {self.path} {status}: {fault}")
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("DRAY_HUB", "DRAY_TOKEN", "DRAY_FINGERPRINT", "DRAY_CAFILE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DRAY_HOME", str(home))
    return home


@pytest.fixture
def speak_to(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[RunningHub], RunningHub]:
    """Commands of this test go to a real hub, from a home with nothing in it."""

    def choose(hub: RunningHub) -> RunningHub:
        monkeypatch.setenv("DRAY_HUB", hub.url)
        monkeypatch.setenv("DRAY_TOKEN", hub.token)
        return hub

    return choose


@pytest.fixture
def hub(clean_environment: Path) -> Iterator[FakeHub]:
    fake = FakeHub()
    (clean_environment / "hub.json").write_text(json.dumps({"url": fake.url, "pid": 0, "epoch": 1}))
    (clean_environment / "token").write_text(TOKEN)
    with hold(clean_environment, "hub"):
        yield fake
    with contextlib.suppress(OSError):
        fake.stop()
    assert not fake.faults, "\n".join(fake.faults)


@pytest.fixture
def job() -> Callable[..., dict[str, Any]]:
    return job_document
