"""Hubs and agents as processes of their own, in homes of their own, gone when the block ends.

The processes are the very commands that people run. Supervisors leave their agent's process group on purpose, so
whatever still names the home when the block ends is found by that name and killed by its id.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

START_S = 120.0
STOP_S = 30.0
POLL_S = 0.002


class Cluster:
    """One home with a hub and any number of agents."""

    def __init__(self, home: Path, settings: dict[str, Any]) -> None:
        self.home, self._settings = home, settings
        # Where the steps of the hub's loop are to be timed: the file that they are written to at its end.
        self.watched: Path | None = None
        self.url = ""
        self._hub: subprocess.Popen[str] | None = None
        self._agents: list[subprocess.Popen[bytes]] = []

    @property
    def token(self) -> str:
        return (self.home / "token").read_text().strip()

    @property
    def hub_pid(self) -> int:
        assert self._hub is not None  # asked for after `start_hub`
        return self._hub.pid

    @property
    def agent_pids(self) -> list[int]:
        return [agent.pid for agent in self._agents]

    def start_hub(self) -> float:
        """Start the hub, at its old address if it had one; gives the seconds until it was ready."""
        port = self.url.rpartition(":")[2] or "0"
        command = dray_command("hub", "--home", str(self.home), "--port", port)
        if self.watched is not None:
            script = str(Path(__file__).with_name("watched_hub.py"))
            command = [*command[:2], script, str(self.watched), *command[4:]]
        began = time.perf_counter()
        with (self.home / "hub.err").open("a") as errors:
            self._hub = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=clean_environment(self._settings),
            )
        self.url = self._read_ready(self._hub)
        return time.perf_counter() - began

    def stop_hub(self, number: signal.Signals = signal.SIGTERM) -> None:
        hub, self._hub = self._hub, None
        if hub is not None:
            end_process(hub, number)
            if hub.stdout is not None:
                hub.stdout.close()

    def kill_hub(self) -> None:
        self.stop_hub(signal.SIGKILL)

    def start_agent(self, slots: int, name: str = "bench", *flags: str) -> int:
        """Start an agent with its supervisor and wait until the hub knows it; gives its process id."""
        words = ("worker", "start", "--home", str(self.home), "--name", name, "--slots", str(slots))
        with (self.home / f"{name}.err").open("a") as errors:
            agent = subprocess.Popen(
                dray_command(*words, *flags), stdout=errors, stderr=errors, env=clean_environment({})
            )
        self._agents.append(agent)
        wait_until(lambda: self._is_ready(name), START_S, f"the worker {name}")
        return agent.pid

    def supervisor_pids(self) -> list[int]:
        found = processes_of(self.home)
        return [process.pid for process in found if "dray.agent.supervisor" in " ".join(process.cmdline())]

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """One call of the HTTP API on a connection of its own."""
        import http.client

        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=START_S)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            connection.request(
                method, f"/api/v1{path}", json.dumps(body) if body is not None else None, headers
            )
            answer = connection.getresponse()
            document = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path} was answered {answer.status}: {document}")
        return document

    def services_in_use(self, name: str) -> int:
        """How many of a worker's slots for services are taken."""
        return int(self.request("GET", f"/workers/{name}")["slots"]["service_in_use"])

    def close(self) -> None:
        for agent in self._agents:
            end_process(agent, signal.SIGTERM)
        self.stop_hub()
        kill_all_of(self.home)

    def _is_ready(self, name: str) -> bool:
        workers = self.request("GET", "/workers")["workers"]
        return any(worker["id"] == name and worker["status"] in ("ready", "busy") for worker in workers)

    def _read_ready(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None  # asked for above
        timer = threading.Timer(START_S, process.kill)
        timer.start()
        try:
            for line in process.stdout:
                if line.startswith("ready "):
                    return line.split()[1]
        finally:
            timer.cancel()
        process.wait()
        said = (self.home / "hub.err").read_text()[-2000:]
        raise RuntimeError(f"the hub did not start (exit {process.returncode}): {said}")


@contextlib.contextmanager
def temporary_home() -> Iterator[Path]:
    """A short path on the disk that temporary files go to: unix sockets below it must stay under 107 bytes."""
    home = Path(tempfile.mkdtemp(prefix="drayb-"))
    try:
        yield home
    finally:
        kill_all_of(home)
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def running_cluster(slots: int = 0, home: Path | None = None, **settings: Any) -> Iterator[Cluster]:
    """A hub, and an agent where `slots` are asked for."""
    with contextlib.ExitStack() as stack:
        cluster = Cluster(home or stack.enter_context(temporary_home()), settings)
        stack.callback(cluster.close)
        cluster.start_hub()
        if slots:
            cluster.start_agent(slots)
        yield cluster


def dray_command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "dray.cli.main", *words]


def clean_environment(settings: dict[str, Any]) -> dict[str, str]:
    """The caller's variables without those of dray, which speak of another hub."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
    return kept | {f"DRAY_HUB_{name.upper()}": str(value) for name, value in settings.items()}


def end_process(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(number)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kill_all_of(home: Path) -> None:
    """Kill until none is left. One that has ended and is not reaped yet names nothing any more: it counts as gone."""
    deadline = time.monotonic() + STOP_S
    while (left := processes_of(home)) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(POLL_S)


def processes_of(home: Path) -> list[psutil.Process]:
    """Every process whose command line names this home."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and any(str(home) in word for word in process.cmdline()):
                found.append(process)
    return found


def wait_until(holds: Callable[[], object], limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} was not there within {limit_s:g} s")
        time.sleep(POLL_S)


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def resident_mib(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / (1 << 20)


def proportional_mib(pid: int) -> float:
    """PSS: pages that several processes share are counted in parts."""
    info = psutil.Process(pid).memory_full_info()
    return float(getattr(info, "pss", info.uss)) / (1 << 20)


def raise_file_limit() -> None:
    """Allow as many sockets as the system lets this user have; children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
