"""Several hubs on one database, with workers and a client that know all their addresses: for tests and the soak.

The hubs share a token, as a site's do. Which one leads is asked of themselves.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from tests.e2e.cluster import CALM, DRAY, Cluster, wait_for

from dray.client.faces.hub import Hub, connect
from dray.errors import DrayError

# Waits are short, so that many leader changes take few minutes.
LEASE_S = 1.5


class Site(Cluster):
    """Hubs 0 to n-1, each at a port of its own; agents and clients are given all addresses."""

    def __init__(self, store: str, hubs: int = 2, lease_s: float = LEASE_S, **more: str) -> None:
        super().__init__({**CALM, "STORE": store, "STORE_LEASE_S": str(lease_s), **more})
        self.homes = [self.folder / f"h{number}" for number in range(hubs)]
        self.home = self.homes[0]
        self.env["DRAY_HOME"] = str(self.home)
        self.ports = [_free_port() for _ in self.homes]
        # Where each of them finds the database: one may have a way of its own there, that can be cut.
        self.stores = [store] * hubs
        self.hubs: list[subprocess.Popen[bytes] | None] = [None] * hubs

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    @property
    def lines(self) -> Path:
        """What the tasks wrote: one line for each run."""
        return self.folder / "lines"

    def start_one(self, number: int) -> None:
        """Start one of the hubs; the first of all makes what they share."""
        home = self.homes[number]
        if not home.exists() and number:
            home.mkdir(mode=0o700)
            shutil.copy2(self.homes[0] / "token", home / "token")
        words = [*DRAY, "hub", "--home", str(home), "--port", str(self.ports[number]), "--log-text"]
        env = {"DRAY_HUB_STORE": self.stores[number]}
        self.hubs[number] = self.spawn(words, self.folder / f"hub{number}.log", env)

    def start_all(self, agents: int = 2) -> None:
        """Start everything; the first hub leads."""
        self.start_one(0)
        wait_for(lambda: self.find_leader() == 0, "the first hub leads")
        for number in range(1, len(self.homes)):
            self.start_one(number)
            wait_for(lambda: self.part(number).get("lag") == 0, f"hub {number} stands by")  # noqa: B023 - at once
        for number in range(agents):
            self.start_agent(f"w{number}", 4, ",".join(self.urls), wait=False)
        with self.connect() as hub:
            wait_for(lambda: len(hub.workers()) == agents, "the workers are there")

    def part(self, number: int) -> dict[str, Any]:
        """What one hub says of itself; empty where it says nothing."""
        token = (self.homes[0] / "token").read_text().strip() if (self.homes[0] / "token").exists() else ""
        with contextlib.closing(HTTPConnection("127.0.0.1", self.ports[number], timeout=1)) as line:
            try:
                line.request("GET", "/api/v1/hub/status", headers={"Authorization": f"Bearer {token}"})
                found: dict[str, Any] = json.loads(line.getresponse().read())
            except (OSError, HTTPException, ValueError):
                return {}
        return found

    def ask_to_resign(self, number: int) -> int:
        """Have one of the hubs hand over, without starting a command for it; gives the status of its answer."""
        self.port = self.ports[number]
        return self.call("POST", "/hub/resign").status

    def find_leader(self, but: int = -1) -> int:
        """The number of the hub that leads; -1 while none does."""
        for number in range(len(self.homes)):
            if number != but and self.part(number).get("role") == "leader":
                return number
        return -1

    def signal_hub(self, number: int, what: signal.Signals) -> None:
        """Send a signal to one of the hubs; after one that ends it, its end is waited for."""
        process = self.hubs[number]
        assert process is not None
        process.send_signal(what)
        if what in (signal.SIGKILL, signal.SIGTERM):
            process.wait(60)

    def wait_standing(self) -> None:
        """Wait until one leads and all others follow it closely."""

        def is_whole() -> bool:
            parts = [self.part(number) for number in range(len(self.homes))]
            return sorted(str(part.get("role")) for part in parts) == [
                "leader",
                *["standby"] * (len(parts) - 1),
            ] and all(part.get("lag") == 0 for part in parts)

        wait_for(is_whole, "one hub leads and the others stand by")

    def connect(self) -> Hub:
        token = (self.homes[0] / "token").read_text().strip()
        return connect(",".join(self.urls), token, self.folder)


class Client:
    """Submits tasks one after another, and keeps account of what it was told."""

    def __init__(self, site: Site, name: str, seconds: float = 0.2) -> None:
        self._site, self._name, self._seconds = site, name, seconds
        self.acknowledged: dict[str, str] = {}
        self.refused: list[str] = []
        self.slowest_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(120)
        assert not self._thread.is_alive()

    def _go_on(self) -> None:
        number = 0
        with self._site.connect() as hub:
            while not self._over.is_set():
                number += 1
                name = f"{self._name}-{number}"
                line = f"echo {name} >> {self._site.lines}; sleep {self._seconds}"
                began = time.monotonic()
                try:
                    self.acknowledged[name] = hub.submit(["sh", "-c", line], name=name, cpus=0.1).id
                except DrayError as fault:
                    self.refused.append(f"{name}: {fault}")
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                self._over.wait(0.05)


def settle(site: Site, clients: list[Client], limit_s: float = 120.0) -> dict[str, list[str]]:
    """Let all that was acknowledged come to its end; gives what is wrong: lost, doubled, stuck."""
    told = {name: job_id for client in clients for name, job_id in client.acknowledged.items()}
    lost, stuck, deadline = [], [], time.monotonic() + limit_s
    with site.connect() as hub:
        for name, job_id in told.items():
            try:
                status = hub.wait(job_id, max(0.1, deadline - time.monotonic()))
            except TimeoutError:
                stuck.append(name)
            except DrayError as fault:
                lost.append(f"{name}: {fault}")
            else:
                if status.state != "succeeded":
                    lost.append(f"{name}: {status.state}")
    runs = Counter(site.lines.read_text().split() if site.lines.exists() else [])
    doubled = [name for name, count in runs.items() if count > 1]
    missing = [name for name in told if not runs[name] and name not in stuck]
    return {"lost": [*lost, *missing], "doubled": doubled, "stuck": stuck}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
