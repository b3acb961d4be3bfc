"""The load of the service soak: a service that tells who it is, and people who scale, restart, update and replace it.

Owns what was asked and what was answered: one person for each service, so that what was acknowledged last is what must
be. The surprising rule: a person never gives up on an ask; it is asked again until it has an answer.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
import traceback
from collections import Counter
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from tests.e2e.cluster import Answer, Cluster

# Answers any request with the attempt and the version that it is. Of two versions one ends at once, the other does not
# listen. Arguments: the file of lines. One write is one line.
PROGRAM = r"""
import os, signal, socket, sys
def say(word):
    names = ('DRAY_TASK_ID', 'DRAY_ATTEMPT_UID', None, 'DRAY_WORKER')
    words = [os.environ[name] if name else str(os.getpid()) for name in names]
    os.write(lines, ' '.join([*words, word, '\n']).encode())
def leave(number, frame):
    say('end')
    os._exit(0)
lines = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
signal.signal(signal.SIGTERM, leave)
say('begin')
version = os.environ['VERSION']
if version == 'dead':
    os._exit(3)
while version == 'deaf':
    signal.pause()
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    server.bind(('127.0.0.1', int(os.environ['DRAY_PORT'])))
except OSError:
    say('clash')
    raise
server.listen(64)
told = f"{os.environ['DRAY_ATTEMPT_UID']} {version}".encode()
while True:
    peer, _ = server.accept()
    with peer:
        peer.settimeout(1)
        try:
            peer.recv(4096)
            peer.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b' % (len(told), told))
        except OSError:
            pass
"""
CHECK = {"http": "/", "interval_s": 0.5, "timeout_s": 2}
NAMES = ("ants", "bees", "cats")
MOST = 3
AGAIN_S = 0.1
ASK_S = 2.0
ACTS = {"scale": 5, "update": 4, "spoil": 1, "rollback": 2, "restart": 2, "restart_one": 2, "replace": 2}
# Quick, so that many of them are over while a soak lasts.
CARE = {"settle_s": 0.5, "drain_s": 0.3, "ready_timeout_s": 8}
BAD = ("dead", "deaf")


class Book:
    """What was asked for and acknowledged, by all people together."""

    def __init__(self, folder: Path) -> None:
        self.lock = threading.Lock()
        self.lines = folder / "lines"
        self.lines.touch()
        # Of each service the job that it is now and how many replicas it is to have; None while that changes.
        self.wanted: dict[str, tuple[str, int] | None] = dict.fromkeys(NAMES)
        self.stopped: dict[str, float] = {}
        self.contradictions: list[str] = []
        self.acts: Counter[str] = Counter()
        self.retries = 0

    def contradict(self, text: str) -> None:
        with self.lock:
            self.contradictions.append(text)

    def tell(self) -> str:
        """How it goes, in a few words."""
        return ", ".join(f"{name} {count}" for name, count in sorted(self.acts.items()))


class People:
    """One for each service. They stop when told to, each after its last answer."""

    def __init__(self, cluster: Cluster, book: Book, seed: int) -> None:
        self.cluster, self.book, self._seed = cluster, book, seed
        self._stop = threading.Event()
        self._made = 0
        self._threads = [
            threading.Thread(target=self._guard, args=(name, number), daemon=True, name=name)
            for number, name in enumerate(NAMES)
        ]

    def start(self) -> None:
        for name in NAMES:
            self.make(name, 2)
        for thread in self._threads:
            thread.start()

    def stop(self, limit_s: float) -> None:
        """Ask them to come to an end; one that does not is a finding."""
        self._stop.set()
        deadline = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self.book.contradict(f"whoever looks after {thread.name} has no answer after {limit_s:g} s")

    def _guard(self, name: str, number: int) -> None:
        rng = random.Random(self._seed * 100 + number)
        try:
            while not self._stop.wait(rng.uniform(0.3, 2.0)):
                act = rng.choices([*ACTS], [*ACTS.values()])[0]
                getattr(self, act)(name, rng)
                self.book.acts[act] += 1
        except Exception:  # noqa: BLE001 - whatever breaks a person is a finding of the run
            self.book.contradict(f"whoever looks after {name} broke:\n{traceback.format_exc()}")

    # --- what they do -------------------------------------------------------------------------------------------------

    def make(self, name: str, replicas: int) -> None:
        """Start a service, under a key: asked twice it is one."""
        self._made += 1
        spec = {
            "command": [sys.executable, "-I", "-S", "-c", PROGRAM, str(self.book.lines)],
            "workdir": str(self.cluster.folder),
            "type": "service",
            "name": name,
            "replicas": replicas,
            "ports": ["http"],
            "min_cpu_cores": 0,
            "health_check": CHECK,
            "env": {"VERSION": "0"},
            "update": CARE,
        }
        answer = self.ask("POST", "/jobs", spec, {"Idempotency-Key": f"{name}-{self._made}"})
        if answer.status not in (200, 201):
            raise RuntimeError(f"{name} was refused: {answer}")
        self.book.wanted[name] = str(answer.json["id"]), replicas

    def scale(self, name: str, rng: random.Random) -> None:
        self.set_size(name, rng.randint(1, MOST))

    def set_size(self, name: str, replicas: int) -> None:
        """Have another number of replicas."""
        job, _ = self._begin(name)
        self._change(job, "scale", {"replicas": replicas})
        self.book.wanted[name] = job, replicas

    def update(self, name: str, rng: random.Random) -> None:
        self.set_version(name, str(rng.randrange(1, 10**6)))

    def spoil(self, name: str, rng: random.Random) -> None:
        """An update that cannot come to a good end: the hub is to find out by itself."""
        self.set_version(name, rng.choice(BAD))

    def set_version(self, name: str, version: str) -> None:
        """Have another revision."""
        self._keep(name, "update", {"changes": {"env": {"VERSION": version}}})

    def rollback(self, name: str, rng: random.Random) -> None:
        # Where it was never updated there is nothing to go back to.
        self._keep(name, "rollback", {}, 404, 409)

    def restart(self, name: str, rng: random.Random) -> None:
        # Refused while it is updated.
        self._keep(name, "restart", {}, 409)

    def restart_one(self, name: str, rng: random.Random) -> None:
        job, replicas = self._begin(name)
        found = self.ask("GET", f"/services/{job}").json["replica_list"]
        chosen = rng.choice([None, *(replica["index"] for replica in found)])
        # One may be gone by then, or leaving.
        body = {"replica": chosen} if chosen is not None else {"at_once": True}
        self._change(job, "restart", body, 404, 409)
        self.book.wanted[name] = job, replicas

    def _keep(self, name: str, verb: str, body: dict[str, Any], *allowed: int) -> None:
        """A change that leaves the number of replicas as it is."""
        job, replicas = self._begin(name)
        self._change(job, verb, body, *allowed)
        self.book.wanted[name] = job, replicas

    def replace(self, name: str, rng: random.Random) -> None:
        """Stop it for good, and start another one under its name."""
        self.end(name)
        self.make(name, rng.randint(1, MOST))

    def end(self, name: str) -> None:
        """Stop it for good."""
        job, _ = self._begin(name)
        answer = self.ask("POST", f"/services/{job}/stop", {"grace_s": 1})
        # Asked twice, because nobody heard the first answer: there is no such service any more.
        if answer.status not in (200, 404):
            raise RuntimeError(f"the stop of {job} is answered {answer}")
        state = self.ask("GET", f"/jobs/{job}").json["state"]
        if state != "killed":
            self.book.contradict(f"the stop of {job} was taken; it is {state}")
        self.book.stopped[job] = time.time()

    def _begin(self, name: str) -> tuple[str, int]:
        known = self.book.wanted[name]
        assert known is not None  # only its own person changes it
        self.book.wanted[name] = None
        return known

    def _change(self, job: str, verb: str, body: dict[str, Any], *allowed: int) -> None:
        answer = self.ask("POST", f"/services/{job}/{verb}", body)
        if answer.status not in (200, *allowed):
            raise RuntimeError(f"{verb} of {job} is answered {answer}")

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """Ask until a hub answers for good."""
        while True:
            try:
                answer = self.cluster.call(method, path, body, headers=headers or {})
            except (OSError, HTTPException):
                self.book.retries += 1
            else:
                # Too busy, starting or reloading, no room left: all of that passes.
                if answer.status not in (429, 503, 507):
                    return answer
                self.book.retries += 1
            time.sleep(AGAIN_S)


def ask_who(port: int) -> tuple[str, str]:
    """Which attempt answers on a port of this machine, and its version; empty where none does."""
    connection = HTTPConnection("127.0.0.1", port, timeout=ASK_S)
    with contextlib.suppress(OSError, HTTPException), contextlib.closing(connection):
        connection.request("GET", "/")
        attempt, _, version = connection.getresponse().read().decode(errors="replace").partition(" ")
        return attempt, version
    return "", ""
