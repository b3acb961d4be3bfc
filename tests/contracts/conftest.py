"""A real hub process, spoken to from outside only: HTTP by `http.client`, `/ws` by the foreign worker."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import sites, warm

HERE = Path(__file__).parent
START_S = 30.0
DONE = ("succeeded", "failed", "killed", "worker_failed", "unschedulable")
Document = dict[str, Any]


def load_foreign_worker() -> Any:
    """Load the script by its path: test folders are no packages."""
    spec = importlib.util.spec_from_file_location("foreign_worker", HERE / "foreign_worker.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ForeignWorker = load_foreign_worker().ForeignWorker


class HubProcess:
    """`dray hub` as its own process; killed and started again on the same home at will."""

    def __init__(self, home: Path, timers: dict[str, str]) -> None:
        self.home = home
        self._env = {key: value for key, value in os.environ.items() if not key.startswith("DRAY_")}
        self._env |= {f"DRAY_HUB_{name.upper()}": value for name, value in timers.items()}
        self.process: subprocess.Popen[str] | None = None
        self.port = 0
        self._backing = sites.make_backing((sys.executable, "-m", "dray.cli.main"), home, self._env)
        self._env |= self._backing.settings if self._backing is not None else {}
        self.start()
        self.token = (home / "token").read_text().strip()

    def start(self, port: int = 0) -> None:
        """Start, and wait for the line that says so."""
        command = [
            sys.executable,
            "-m",
            "dray.cli.main",
            "hub",
            "--home",
            str(self.home),
            "--port",
            str(port),
        ]
        with (self.home / "hub.log").open("a") as log:
            self.process = warm.Popen(command, env=self._env, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            self.kill()
            pytest.fail(f"the hub said {line!r}: {(self.home / 'hub.log').read_text()[-2000:]}")
        self.port = int(line.rsplit(":", 1)[1])
        self.front = self.port
        if self._backing is not None:
            self._backing.stand_by(self.home, self._env)
            self.front = self._backing.front or self.port

    def listen_again(self, **settings: str) -> None:
        """Start at the same port, with some settings changed."""
        self._env |= {f"DRAY_HUB_{name.upper()}": value for name, value in settings.items()}
        self.start(self.port)

    def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to stop, and wait until it has."""
        if self._backing is not None:
            self._backing.leave()
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(START_S)
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None

    def close(self) -> None:
        """Kill it, and let go of what stands behind it."""
        self.kill()
        if self._backing is not None:
            self._backing.close()

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.front}/ws"

    def ask(self, method: str, path: str, body: Any = None, token: str = "") -> tuple[int, Any]:
        """Make one HTTP request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.front, timeout=60)
        headers = {"Authorization": f"Bearer {token or self.token}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()


class Lab:
    """One test's view of a hub: what it made is taken away again at its end, so that tests can share the hub."""

    def __init__(self, hub: HubProcess, prefix: str) -> None:
        self.hub = hub
        self._names = (f"{prefix}-{number}" for number in itertools.count())
        self._workers: list[Any] = []
        self._jobs: list[str] = []

    def name(self) -> str:
        return next(self._names)

    def worker(self, register: bool = True, **parts: Any) -> Any:
        """Connect a foreign worker; keywords that are no argument of it are capabilities."""
        own = {key: parts.pop(key) for key in ("slots", "token", "worker_id") if key in parts}
        base: Document = {"gpu_backend": "nvidia" if parts.get("gpu_count") else "cpu", "cpu_count": 4}
        made = ForeignWorker(
            self.hub.ws,
            own.get("token", self.hub.token),
            own.get("worker_id") or self.name(),
            {**base, **parts},
            own.get("slots"),
        )
        self._workers.append(made)
        if register:
            made.register()
        return made

    def submit(self, **spec: Any) -> str:
        """Submit one job; gives its id."""
        status, job = self.hub.ask("POST", "/api/v1/jobs", {"id": self.name(), "command": ["true"], **spec})
        assert status == 201, job
        self._jobs.append(job["id"])
        return str(job["id"])

    def job(self, job_id: str) -> Document:
        status, job = self.hub.ask("GET", f"/api/v1/jobs/{job_id}")
        assert status == 200, job
        return dict(job)

    def cancel(self, job_id: str, **how: Any) -> Document:
        status, job = self.hub.ask("POST", f"/api/v1/jobs/{job_id}/cancel", how)
        assert status == 200, job
        return dict(job)

    def token(self, *scopes: str) -> str:
        status, made = self.hub.ask("POST", "/api/v1/tokens", {"scopes": list(scopes)})
        assert status == 201, made
        return str(made["token"])

    def until(self, look: Callable[[], Any], timeout_s: float = 10.0) -> Any:
        """Poll until `look` gives something true."""
        deadline = time.monotonic() + timeout_s
        while not (found := look()):
            assert time.monotonic() < deadline, f"did not come true within {timeout_s:g} s"
            time.sleep(0.01)
        return found

    def offers(self, worker: Any, **spec: Any) -> Document | None:
        """Submit a job to a ready worker; gives the assignment that came of it, None where the hub keeps the job.

        No waiting: the hub answers a submit after it has sent what follows from it, and a heartbeat after that.
        """
        job_id = self.submit(**spec)
        got = [message for message in worker.heartbeat() if message["type"] == "job_assign"]
        return dict(got[0]["payload"]) if got and got[0]["payload"]["spec"]["id"] == job_id else None

    def takes(self, worker: Any, **spec: Any) -> bool:
        """Whether the worker is offered such a job; leaves nothing behind."""
        answer = worker.ready()
        assert answer["type"] == "no_work", answer
        offer = self.offers(worker, **spec)
        if offer is None:
            self.cancel(self._jobs[-1])
            return False
        worker.accept(offer["spec"]["id"])
        worker.finish(offer["spec"]["id"])
        return True

    def clear(self) -> None:
        if self.hub.process is not None:
            for job_id in self._jobs:
                self.cancel(job_id)
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.goodbye()


def run_hub(folder: Path, **timers: str) -> Iterator[HubProcess]:
    hub = HubProcess(folder, timers)
    yield hub
    hub.close()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """One hub with the protocol's own timers for all tests of a module."""
    yield from run_hub(tmp_path_factory.mktemp("hub"))


@pytest.fixture
def lab(hub: HubProcess, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """The module's hub, with this test's workers and jobs taken away at the end."""
    made = Lab(hub, f"t{abs(hash(request.node.nodeid)) % 10**9}")
    yield made
    made.clear()


@pytest.fixture
def own_lab(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """`own_lab(accept_s="0.3")`: a hub for one test, with timers of its own."""
    hubs: list[HubProcess] = []

    def make(**timers: str) -> Lab:
        hubs.append(HubProcess(tmp_path, timers))
        return Lab(hubs[-1], "t")

    yield make
    for hub in hubs:
        hub.close()
