"""Spoilt frames at a running hub: worker sessions, registered and not, in both encodings, and client channels.

The frames name tasks and attempts that exist, so that some of them change what the hub holds. Afterwards the hub must
be alive, sound by its own doctor, able to run a job, no larger than a bound, and able to come back from a kill.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import subprocess
import sys
import time
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psutil
from tools.fuzz_frames import Spoiler
from tools.fuzz_samples import CAPABILITY, SLOTS
from websockets import ConnectionClosed, Subprotocol
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake

from dray.core.lifecycle.happenings.workers import FLAPPING
from dray.errors import HubUnavailable
from dray.testing import RunningHub, running_hub
from dray.wire.messages.client import SUBPROTOCOL_CLIENT
from dray.wire.messages.worker import SUBPROTOCOL_JSON, SUBPROTOCOL_MSGPACK

MEMORY_BYTES = 256 << 20
CALL_S = 60.0
SHOUTS = ("Traceback", "ERROR", "CRITICAL")


class Attacker:
    """One peer that keeps coming back. Every few frames it says something sound, so that its session lives a while."""

    def __init__(self, hub: RunningHub, name: str, role: str, binary: bool, seed: int) -> None:
        self._hub, self.name, self.role, self.binary = hub, name, role, binary
        self._rng = random.Random(seed)
        self._facts: list[Any] = [name]
        union = "client" if role == "client" else "worker"
        self._spoiler = Spoiler(union, binary, self._rng, self._facts)
        self.sent = 0
        self.closes: Counter[str] = Counter()

    async def run(self, left: list[int]) -> None:
        """Send until nothing is left of the common count."""
        while left[0] > 0:
            try:
                async with self._dial() as socket:
                    await self._attack(socket, left)
            except ConnectionClosed as end:
                self.closes[str(end.rcvd.code if end.rcvd else 1006)] += 1
            except (OSError, InvalidHandshake, TimeoutError) as fault:
                self.closes[type(fault).__name__] += 1
                await asyncio.sleep(0.05)

    def _dial(self) -> connect:
        path = "/ws/client" if self.role == "client" else "/ws"
        spoken = SUBPROTOCOL_MSGPACK if self.binary else SUBPROTOCOL_JSON
        return connect(
            "ws" + self._hub.url.removeprefix("http") + path,
            additional_headers={"Authorization": f"Bearer {self._hub.token}"},
            subprotocols=[Subprotocol(SUBPROTOCOL_CLIENT if self.role == "client" else spoken)],
            compression=None,
            open_timeout=CALL_S,
            ping_interval=None,
            max_size=None,
            proxy=None,
        )

    async def _attack(self, socket: ClientConnection, left: list[int]) -> None:
        reader = asyncio.create_task(self._listen(socket))
        try:
            if self.role == "registered":
                await self._say(socket, "register", self._registration())
            while left[0] > 0 and not reader.done():
                window = self._rng.randrange(1, 12)
                for _ in range(window):
                    swapped = self._rng.random() < 0.01
                    await socket.send(self._spoiler.draw(), text=self.binary == swapped)
                if self._rng.random() < 0.9:
                    await self._say_sound(socket)
                # Only frames that a living session has read are counted.
                await (await socket.ping())
                left[0] -= window
                self.sent += window
            if reader.done():
                reader.result()
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _say_sound(self, socket: ClientConnection) -> None:
        if self.role == "client":
            await self._say(socket, "ping", {})
        elif self.role == "registered":
            ready = {"worker_id": self.name, "slots": SLOTS, "reason": "polling", "credits": 2}
            await self._say(socket, "ready_for_work", ready)
        else:
            await self._say(socket, "worker_list_request", {"backend": "metal"})

    async def _say(self, socket: ClientConnection, kind: str, payload: dict[str, Any]) -> None:
        envelope = {"type": kind, "payload": payload, **({"id": 1} if self.role == "client" else {})}
        encode = msgspec.msgpack.encode if self.binary else msgspec.json.encode
        await socket.send(encode(envelope), text=not self.binary)

    def _registration(self) -> dict[str, Any]:
        named = {"features": ["list", "job_started", "resend"]} if self._rng.random() < 0.5 else {}
        return {
            "id": self.name,
            "capabilities": CAPABILITY,
            "active_tasks": [],
            "slots": SLOTS,
            "journal_id": self.name,
            "labels": {"role": "fuzz"},
            **named,
        }

    async def _listen(self, socket: ClientConnection) -> None:
        """Read everything; remember the tasks and attempts that are named."""
        async for frame in socket:
            try:
                said = msgspec.json.decode(frame) if isinstance(frame, str) else msgspec.msgpack.decode(frame)
            except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
                self.closes[f"unreadable answer: {fault}"] += 1
                continue
            for message in said if isinstance(said, list) else [said]:
                self._learn(message)

    def _learn(self, message: dict[str, Any]) -> None:
        payload = message.get("payload") or {}
        if message.get("type") == "job_assign":
            self._remember(payload["spec"]["id"], payload["attempt"]["uid"])
        if message.get("type") == "answer" and "ids" in payload:
            self._remember(*payload["ids"][:2])
        if (message.get("error") or {}) and isinstance(message["error"], dict):
            self.closes[f"answered {message['error'].get('code')}"] += 1

    def _remember(self, *names: Any) -> None:
        self._facts += names
        del self._facts[1:-24]


class LiveRun:
    """The attack and the examination after it."""

    def __init__(self, hub: RunningHub, frames: int, seed: int) -> None:
        self._hub, self._frames, self._seed = hub, frames, seed
        self.findings: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        submit_jobs(self._hub, 300)
        began = time.perf_counter()
        attackers = self._attackers()
        rss = asyncio.run(self._attack(attackers))
        wall_s = time.perf_counter() - began
        self._settle()
        self._examine("after the attack")
        seen = self._read_log()
        self._hub.kill()
        began_again = time.perf_counter()
        self._hub.start()
        restart_s = time.perf_counter() - began_again
        self._settle()
        self._examine("after the restart")
        closes: Counter[str] = sum((attacker.closes for attacker in attackers), Counter())
        sent: Counter[str] = Counter()
        for attacker in attackers:
            sent[f"{attacker.role} {'msgpack' if attacker.binary else 'json'}"] += attacker.sent
        return {
            "frames": sent.total(),
            "by_role": dict(sent),
            "per_s": round(sent.total() / wall_s),
            "wall_s": round(wall_s, 1),
            "closes_and_refusals": dict(closes.most_common(20)),
            "rss_mib": [round(value / (1 << 20), 1) for value in rss],
            "rss_growth_bound_mib": MEMORY_BYTES >> 20,
            "restart_s": round(restart_s, 2),
            "log_lines_of_the_hub": seen,
            "seed": self._seed,
            "findings": self.findings,
        }

    def _attackers(self) -> list[Attacker]:
        kinds = [
            ("registered", True),
            ("registered", False),
            ("stranger", True),
            ("stranger", False),
            ("client", True),
            ("registered", True),
            ("registered", False),
            ("client", True),
        ]
        return [
            Attacker(self._hub, f"fuzz-{place}", role, binary, self._seed * 1000 + place)
            for place, (role, binary) in enumerate(kinds)
        ]

    async def _attack(self, attackers: list[Attacker]) -> tuple[int, int]:
        """Gives the hub's memory after a tenth of the frames and at the end."""
        process = psutil.Process(self._hub.pid)
        left = [self._frames]
        running = asyncio.gather(*(attacker.run(left) for attacker in attackers))
        warm = 0
        while not running.done():
            await asyncio.wait([running], timeout=0.2)
            if not warm and left[0] < self._frames * 0.9:
                warm = process.memory_info().rss
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                left[0] = 0
                self.findings["death"] = {"fault": "the hub died under the attack", "log": self._tail()}
                running.cancel()
                break
        await asyncio.gather(running, return_exceptions=True)
        if "death" in self.findings:
            self._hub.kill()
            self._hub.start()
            return warm, 0
        now = process.memory_info().rss
        if now - warm > MEMORY_BYTES:
            self.findings["memory"] = {"fault": f"the hub grew from {warm} to {now} bytes"}
        return warm, now

    def _settle(self) -> None:
        """Let every worker that is known register once more with nothing running, so that nothing is in doubt."""
        for row in call(self._hub, "GET", "/workers")["workers"]:
            deadline = time.monotonic() + CALL_S
            while not self._register_again(row["id"]):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"worker {row['id']} was not let in again within {CALL_S:g} s")
                time.sleep(0.2)

    def _register_again(self, worker_id: str) -> bool:
        """False where its name is refused for a while, because the frames before had several machines fight for it."""
        with self._hub.worker(worker_id, features=["job_started"], msgpack=True) as worker:
            try:
                worker.register(timeout_s=CALL_S, journal_id="settled", max_epoch_seen=self._epoch())
            except ConnectionClosed as closed:
                if closed.rcvd is None or closed.rcvd.code != FLAPPING:
                    raise
                return False
        return True

    def _epoch(self) -> int:
        return int(call(self._hub, "GET", "/hub")["epoch"])

    def _examine(self, when: str) -> None:
        self._deal_with_reports(when)
        doctor = call(self._hub, "GET", "/doctor")
        for check in doctor["checks"]:
            if not check["ok"]:
                self.findings[f"doctor {when}: {check['name']}"] = {"fault": check["detail"][:2000]}
        spoken = subprocess.run(
            [
                sys.executable,
                "-m",
                "dray.cli.main",
                "doctor",
                "--hub",
                self._hub.url,
                "--token",
                self._hub.token,
            ],
            capture_output=True,
            text=True,
            timeout=CALL_S,
            check=False,
        )
        if spoken.returncode:
            said = (spoken.stdout + spoken.stderr)[-1000:]
            self.findings[f"dray doctor {when}"] = {"fault": f"exit {spoken.returncode}: {said}"}
        self._run_job(when)

    def _deal_with_reports(self, when: str) -> None:
        """Workers that lie about what they were told make the hub say that its store may be old: once, and no more."""
        for path in sorted((self._hub.home / "reports").glob("*.json")):
            report = json.loads(path.read_bytes())
            if report["kind"] == "lost turns":
                path.unlink()
            else:
                self.findings[f"report {when}: {report['id']}"] = {"fault": str(report["what"])[:2000]}

    def _run_job(self, when: str) -> None:
        """A sound worker runs a sound job: nothing that was sent before may stand in its way."""
        spec = {"command": ["true"], "require": ["role=sound"], "priority": (1 << 31) - 1}
        with self._hub.worker("sound", features=["job_started"]) as worker:
            worker.register(timeout_s=CALL_S, labels={"role": "sound"}, max_epoch_seen=self._epoch())
            job = call(self._hub, "POST", "/jobs", spec)
            # What spoilt requests have submitted may well stand before it.
            for _ in range(500):
                if worker.run_one(timeout_s=CALL_S).task_id == job["id"]:
                    break
            ended = call(self._hub, "GET", f"/jobs/{job['id']}?wait_s=30")
            heard = [str(message)[:300] for message in worker.script.held]
        if ended["state"] != "succeeded":
            said = {"job": job["id"], "state": ended["state"], "attempts": ended["attempts"], "heard": heard}
            self.findings[f"job {when}"] = {"fault": "a sound job did not succeed", **said}

    def _read_log(self) -> dict[str, int]:
        """What the hub shouted: an exception that nobody foresaw is a finding even where the hub went on."""
        text = (self._hub.home / "hub.err").read_text(errors="replace")
        lines = text.splitlines()
        shouts = [place for place, line in enumerate(lines) if "Traceback" in line]
        for at in shouts[:200]:
            block = lines[max(0, at - 1) : at + 60]
            last = next((line for line in block[2:] if line and not line.startswith((" ", "\t"))), "?")
            known = self.findings.setdefault(f"log: {last[:120]}", {"times": 0, "block": block[:40]})
            known["times"] += 1
        return {word: text.count(word) for word in SHOUTS}

    def _tail(self) -> list[str]:
        return (self._hub.home / "hub.err").read_text(errors="replace").splitlines()[-40:]


def submit_jobs(hub: RunningHub, count: int) -> list[str]:
    """Work for workers to hold: short arrays and single jobs."""
    specs = [
        {"command": ["true"], "require": ["role=fuzz"], **({"array": {"last": 4}} if place % 3 == 0 else {})}
        for place in range(count)
    ]
    return [job["id"] for job in call(hub, "POST", "/jobs:batch", specs)]


def call(hub: RunningHub, method: str, path: str, body: Any = None) -> Any:
    """One sound call of the HTTP API."""
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=CALL_S)
    headers = {"Authorization": f"Bearer {hub.token}", "Content-Type": "application/json"}
    try:
        connection.request(method, f"/api/v1{path}", None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        document = json.loads(answer.read())
    finally:
        connection.close()
    if answer.status >= 400:
        raise HubUnavailable(f"{method} {path} was refused: {document}")
    return document


def run_live(frames: int, seed: int) -> dict[str, Any]:
    """Start a hub, attack it, examine it."""
    with running_hub(accept_s=2, flap_refuse_s=2) as hub:
        return LiveRun(hub, frames, seed).run()
