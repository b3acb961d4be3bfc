"""A real cluster of processes for tests: hub, agents, command line, killed and restarted at will.

Everything lives under one short folder, and every process that belongs to it carries that folder as its HOME: the
clean-up finds hubs, agents, supervisors and tasks by it, however they came to be. Knows nothing about what a test wants
to see.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode, urlsplit

from tests import sites, warm

T = TypeVar("T")
ENDED = ("succeeded", "failed", "killed", "worker_failed", "unschedulable")
DRAY = (sys.executable, "-P", "-m", "dray.cli.main")
POLL_S = 0.02
DEADLINE_S = 60.0
# Calm: nothing is given up while a test looks elsewhere. Nervous: silence is noticed within a few seconds.
CALM = {"HEARTBEAT_S": "0.5", "RESEND_S": "0.2,0.4,0.8"}
NERVOUS = {
    **CALM,
    "HEARTBEAT_S": "0.2",
    "SUSPECT_S": "0.8",
    "UNKNOWN_S": "1.2",
    "LOST_S": "2.4",
    "START_GRACE_S": "2.4",
}


class Answer(NamedTuple):
    """What the hub said: status, headers in small letters, body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"]["message"])


class Finished(NamedTuple):
    """How a command of the command line ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def wait_for(look: Callable[[], T], what: str, limit_s: float = DEADLINE_S) -> T:
    """Ask until the answer is true-like and give it; fail with `what` and the last answer."""
    deadline = time.monotonic() + limit_s
    while not (value := look()):
        assert time.monotonic() < deadline, f"not so within {limit_s:g} s: {what}; last seen: {value!r}"
        time.sleep(POLL_S)
    return value


def wait_dead(pids: Iterable[int]) -> None:
    """Wait until none of these processes runs."""
    listed = list(pids)
    wait_for(lambda: not any(is_alive(pid) for pid in listed), f"{listed} are gone")


def is_alive(pid: int) -> bool:
    """Whether a process still runs: a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


class Agent:
    """One agent and its home; the process changes, the home stays."""

    def __init__(self, name: str, home: Path, command: list[str], log: Path) -> None:
        self.name, self.home, self.command, self.log = name, home, command, log
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def supervisor_pid(self) -> int:
        return int(json.loads((self.home / "worker" / "supervisor.json").read_text())["pid"])

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End the agent as a crash would; its supervisor and tasks go on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Records of one kind in the supervisor's journal, of attempts: runners for calls are left out."""
        lines = (self.home / "worker" / "journal").read_bytes().splitlines()
        records = [record for record in (json.loads(line[9:]) for line in lines) if record["k"] == kind]
        return [record for record in records if not str(record.get("uid", "")).startswith("runner-")]

    def text(self) -> str:
        return self.log.read_text(errors="replace")


class Cluster:
    """One hub, any number of agents, one user's command line."""

    def __init__(
        self, timers: Mapping[str, str] = CALM, popen: type[subprocess.Popen[bytes]] = warm.Popen
    ) -> None:
        self._popen = popen
        self.folder = Path(tempfile.mkdtemp(prefix="dr"))
        self.home = self.folder / "h"
        self.env = {
            # Hub and agents of a test are one account, whatever users it has.
            "DRAY_HUB_SHARE_OWN_ACCOUNT": "1",
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "DRAY_HOME": str(self.home),
            "DRAY_WORKER_RECONNECT_MIN_S": "0.05",
            "DRAY_WORKER_RECONNECT_MAX_S": "0.2",
            # Started when there are calls: most of these tests have none.
            "DRAY_WORKER_RUNNERS": "0",
            **{f"DRAY_HUB_{name}": value for name, value in timers.items()},
        }
        self.hub: subprocess.Popen[bytes] | None = None
        self.agents: dict[str, Agent] = {}
        self.port = 0
        self._backing = sites.make_backing(DRAY, self.folder, self.env)
        self.env |= self._backing.settings if self._backing is not None else {}
        self._spawned: list[subprocess.Popen[bytes]] = []

    # --- processes ----------------------------------------------------------------------------------------------------

    def spawn(
        self, words: Iterable[str | bytes], log: Path, env: Mapping[str, str] = {}
    ) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own, its output in a file."""
        with log.open("ab") as file:
            process = self._popen(
                [*words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**self.env, **env},
                cwd=self.folder,
                start_new_session=True,
            )
        self._spawned.append(process)
        return process

    def start_hub(self, *flags: str, env: Mapping[str, str] = {}) -> None:
        """Start the hub (again, on the same port) and wait until it is ready."""
        words = [*DRAY, "hub", "--home", str(self.home), "--port", str(self.port), *flags]
        self.hub = self.spawn(words, self.folder / "hub.log", env)
        self.port = int(urlsplit(self.wait_ready(self.hub)["url"]).port or 0)
        if self._backing is not None:
            self._backing.stand_by(self.home, self.env)
            if self._backing.front is not None:
                # Commands of this home ask there as well.
                self.env["DRAY_HUB"] = self.url

    def wait_ready(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        def ready() -> dict[str, Any] | None:
            assert process.poll() is None, f"the hub ended with {process.returncode}: {self.hub_text()}"
            try:
                document: dict[str, Any] = json.loads((self.home / "hub.json").read_text())
            except (OSError, ValueError):
                return None
            leads = document["pid"] == process.pid and document["role"] == "leader"
            return document if leads else None

        return wait_for(ready, "the hub is ready") or {}

    def hub_text(self) -> str:
        return (self.folder / "hub.log").read_text(errors="replace")

    def kill_hub(self) -> None:
        """End the hub as a crash would."""
        assert self.hub is not None
        self.hub.kill()
        self.hub.wait()

    def stop_hub(self) -> int:
        """Ask the hub to stop; give its exit code."""
        assert self.hub is not None
        if self._backing is not None:
            self._backing.leave()
        self.hub.terminate()
        return self.hub.wait(DEADLINE_S)

    def start_agent(
        self,
        name: str,
        slots: int = 4,
        hub: str = "",
        *flags: str,
        env: Mapping[str, str] = {},
        wait: bool = True,
        near: bool = False,
    ) -> Agent:
        """Start an agent, or start one that was killed again with the same home; `near`: the hub's own."""
        agent = self.agents.get(name)
        if agent is None:
            home = self.home if near else self.folder / name
            command = [*DRAY, "worker", "start", "--home", str(home), "--name", name, "--slots", str(slots)]
            if not near:
                home.mkdir(exist_ok=True)
                token = (self.home / "token").read_text().strip()
                (home / "token").write_text(token)
                (home / "token").chmod(0o600)
                command += ["--hub", hub or self.url]
            command += ["--backend", "cpu", *flags]
            agent = self.agents[name] = Agent(name, home, command, self.folder / f"{name}.log")
        agent.process = self.spawn(agent.command, agent.log, env)
        if wait:
            self.wait_worker(name)
        return agent

    def wait_worker(self, name: str, status: tuple[str, ...] = ("ready", "busy")) -> dict[str, Any]:
        def seen() -> dict[str, Any] | None:
            answer = self.call("GET", f"/workers/{name}")
            document: dict[str, Any] = answer.json if answer.status == 200 else {}
            waits = document.get("state_detail") == "has not asked for work"
            return document if document.get("status") in status and not waits else None

        return wait_for(seen, f"worker {name} is {status} and has asked for work") or {}

    # --- the hub's own voice ------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.front}"

    @property
    def front(self) -> int:
        """The port of the hub that is asked, which may be another than the one that leads."""
        return (self._backing.front if self._backing is not None else None) or self.port

    @property
    def token(self) -> str:
        return (self.home / "token").read_text().strip()

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str | None = None,
        headers: Mapping[str, str] = {},
        **query: Any,
    ) -> Answer:
        """One request to the hub; raises OSError where none answers."""
        connection = HTTPConnection("127.0.0.1", self.front, timeout=DEADLINE_S)
        sent = {"Authorization": f"Bearer {self.token if token is None else token}", **headers}
        data = None
        if body is not None:
            data, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        target = path if path.startswith(("/healthz", "/metrics")) else f"/api/v1{path}"
        try:
            connection.request(method, f"{target}?{urlencode(query)}" if query else target, data, sent)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def submit(self, *command: str, token: str | None = None, **fields: Any) -> str:
        """Submit a job as it stands and give its id."""
        spec = {"command": list(command), "workdir": str(self.folder), **fields}
        answer = self.call("POST", "/jobs", spec, token)
        assert answer.status == 201, answer
        return str(answer.json["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        answer = self.call("GET", f"/jobs/{job_id}")
        assert answer.status == 200, answer
        document: dict[str, Any] = answer.json
        return document

    def wait_state(self, job_id: str, *states: str, limit_s: float = DEADLINE_S) -> dict[str, Any]:
        """Wait until a job is in one of these states (any end by default)."""

        def there() -> dict[str, Any] | None:
            try:
                job = self.job(job_id)
            except OSError:
                return None
            if job["state"] in (states or ENDED):
                return job
            assert job["state"] not in ENDED, f"{job_id} ended: {job}"
            return None

        return wait_for(there, f"{job_id} is {states or 'at its end'}", limit_s) or {}

    def wait_running(self, job_id: str) -> dict[str, Any]:
        """Wait until the newest attempt of a job has started its process."""

        def there() -> dict[str, Any] | None:
            job = self.job(job_id)
            assert job["state"] not in ENDED, f"{job_id} ended: {job}"
            return job if job["attempts"] and job["attempts"][-1]["phase"] == "running" else None

        try:
            return wait_for(there, f"{job_id} runs") or {}
        except AssertionError as error:
            why = self.call("GET", f"/jobs/{job_id}/why").json
            raise AssertionError(
                f"{error}; {self.job(job_id)}; {why}; {self.call('GET', '/workers').json}"
            ) from None

    def logs(self, job_id: str, **query: Any) -> bytes:
        answer = self.call("GET", f"/jobs/{job_id}/logs", **query)
        assert answer.status == 200, answer
        return answer.body

    def wait_logs(self, job_id: str, lines: int) -> list[str]:
        """Wait until a job has printed so many lines."""
        return (
            wait_for(
                lambda: text if len(text := self.logs(job_id).decode().splitlines()) >= lines else None,
                f"{job_id} prints {lines} lines",
            )
            or []
        )

    def events(self, job_id: str) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.call("GET", f"/jobs/{job_id}/events").json["events"]
        return listed

    def check(self) -> None:
        """The hub's own invariants hold."""
        answer = self.call("GET", "/doctor").json
        assert answer["ok"], [check for check in answer["checks"] if not check["ok"]]

    # --- the command line ---------------------------------------------------------------------------------------------

    def dray(
        self, *words: str | bytes, env: Mapping[str, str] = {}, cwd: Path | None = None, limit_s: float = 60.0
    ) -> Finished:
        """Run a command of the command line to its end."""
        done = warm.run([*DRAY, *words], limit_s, env={**self.env, **env}, cwd=cwd or self.folder)
        return Finished(
            done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )

    def begin(
        self, *words: str, name: str = "cli", env: Mapping[str, str] = {}
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a command of the command line that stays; its output goes into the file that is given back."""
        log = self.folder / f"{name}.out"
        return self.spawn([*DRAY, *words], log, env), log

    # --- the end ------------------------------------------------------------------------------------------------------

    def members(self) -> list[int]:
        """Every process that was started here, has this cluster's folder as its HOME, or came out of one."""
        mark = f"HOME={self.folder}\0".encode()
        found = [process.pid for process in self._spawned if process.poll() is None]
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in (os.getpid(), *found):
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes() and is_alive(int(entry.name)):
                        found.append(int(entry.name))
        return found

    def close(self) -> None:
        """Kill whatever is left and remove the folder; a second look catches what was being forked."""

        def quiet() -> bool:
            for pid in (left := self.members()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        wait_for(quiet, "every process of the cluster is gone")
        for process in self._spawned:
            process.wait(DEADLINE_S)
        if self._backing is not None:
            self._backing.close()
        shutil.rmtree(self.folder, ignore_errors=True)
