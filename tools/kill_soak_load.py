"""The load of the kill soak: what tasks do, and clients that submit, cancel and look while everything around them dies.

Owns what was asked and what was answered; judges nothing but contradictions it hears itself. Every task writes what it
does to one file opened for appending, so that the order of its lines is the order of what truly happened. The
surprising rule: a client never gives up on a submit; it asks again under the same key until it has an answer.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.e2e.cluster import ENDED, Answer, Cluster

from dray.client.faces.hub import Hub, connect
from dray.client.faces.job import Job
from dray.errors import DrayError, NoSpace, NotReady

# Arguments: file of lines, lines to print, seconds, exit code, lock of a fenced task. One printf is one write.
SCRIPT = r"""
say() { printf '%s %s %s %s %s\n' "$DRAY_TASK_ID" "$DRAY_ATTEMPT_UID" "$$" "$DRAY_WORKER" "$1" >> "$0"; }
say begin
if [ -n "$4" ]; then
  exec 9>> "$4/$DRAY_JOB_ID.$DRAY_TASK_INDEX"
  flock -n 9 || say overlap
fi
i=0
while [ $i -lt "$1" ]; do
  echo "$i $DRAY_ATTEMPT_UID"
  i=$((i + 1))
  [ $((i % 50)) -ne 0 ] || sleep 0.02
done
sleep "$2"
say end
exit "$3"
"""
BACKLOG_JOBS = 40
AGAIN_S = 0.1
SAMPLE_JOBS = 8
NOTHING: Mapping[str, Any] = MappingProxyType({})
STATIC = ("state", "exit_code", "signal", "exit_class", "failures", "losses", "ended_at")


class Kind(NamedTuple):
    """One kind of job: how often it comes, how long and how loud it is, and what it asks for."""

    name: str
    weight: int
    seconds: tuple[float, float]
    lines: int = 0
    code: int = 0
    tasks: int = 1
    terms: Mapping[str, Any] = NOTHING


KINDS = (
    Kind("quick", 30, (0.0, 0.2), lines=3),
    Kind("failing", 12, (0.0, 0.2), lines=2, code=3),
    Kind("retried", 8, (0.0, 0.2), code=4, terms={"retries": 1}),
    Kind("chatty", 10, (0.0, 0.3), lines=400),
    Kind("once", 12, (0.1, 1.5), lines=1, terms={"at_most_once": True}),
    Kind("fenced", 14, (0.5, 3.0), lines=1, terms={"overlap": "fenced"}),
    Kind("sealed", 6, (0.1, 2.0), lines=1, terms={"at_most_once": True, "overlap": "fenced"}),
    Kind("long", 6, (3.0, 6.0), lines=60),
    Kind("array", 8, (0.0, 0.3), lines=2, tasks=12),
    # Short enough to stand behind one another.
    Kind("row", 8, (0.0, 0.0), lines=1, tasks=60),
)
BY_NAME = {kind.name: kind for kind in KINDS}


def choose(rng: random.Random) -> tuple[Kind, float]:
    """Draw a kind of job and how long it takes."""
    kind = rng.choices(KINDS, [kind.weight for kind in KINDS])[0]
    return kind, rng.uniform(*kind.seconds)


class Ledger:
    """What was asked, answered and seen, by all clients together."""

    def __init__(self, folder: Path) -> None:
        self.lock = threading.Lock()
        self.lines = folder / "lines"
        self.locks = folder / "locks"
        self.locks.mkdir()
        self.lines.touch()
        self.keys: dict[str, str] = {}
        self.ids: dict[str, str] = {}
        self.cancelled: dict[str, bool] = {}
        self.finals: dict[str, tuple[Any, ...]] = {}
        self.waited: dict[str, str] = {}
        self.contradictions: list[str] = []
        self.backlog = 0
        self.retries = 0
        self.samples = 0

    def acknowledge(self, key: str, job_id: str, kind: str) -> None:
        """A submit was answered; a second answer must name the same job."""
        with self.lock:
            first = self.keys.setdefault(key, job_id)
            self.ids[job_id] = kind
        if first != job_id:
            self.contradict(f"key {key} was answered with {first}, then with {job_id}")

    def tell(self) -> str:
        """How it goes, in a few words."""
        return f"{len(self.ids)} jobs answered, {self.backlog} open"

    def contradict(self, text: str) -> None:
        with self.lock:
            self.contradictions.append(text)

    def see(self, document: dict[str, Any]) -> None:
        """A final state was shown: it must be the one that was shown before."""
        if document["state"] not in ENDED:
            known = self.finals.get(document["id"])
            if known is not None:
                self.contradict(f"{document['id']} had ended as {known} and is {document['state']}")
            return
        shown = tuple(document[name] for name in STATIC)
        with self.lock:
            first = self.finals.setdefault(document["id"], shown)
            self.samples += 1
        if first != shown:
            self.contradict(f"{document['id']} was shown as {first}, then as {shown}")


class Load:
    """All clients. They stop when told to, each after its last answer."""

    def __init__(self, cluster: Cluster, ledger: Ledger, seed: int, clients: int = 3) -> None:
        self.cluster, self.ledger = cluster, ledger
        self._seed, self._stop = seed, threading.Event()
        works = [*[self._submit_over_http] * clients, *[self._submit_over_channel] * clients]
        works += [self._cancel, self._sample]
        self._threads = [
            threading.Thread(target=self._guard, args=(work, number), daemon=True)
            for number, work in enumerate(works)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, limit_s: float) -> None:
        """Ask the clients to come to an end; one that does not is a finding."""
        self._stop.set()
        deadline = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self.ledger.contradict(f"client {thread.name} has no answer after {limit_s:g} s")

    def _guard(self, work: Callable[[random.Random, int], None], number: int) -> None:
        try:
            work(random.Random(self._seed * 100 + number), number)
        except Exception:  # noqa: BLE001 - whatever breaks a client is a finding of the run
            self.ledger.contradict(f"a client broke:\n{traceback.format_exc()}")

    # --- submits ------------------------------------------------------------------------------------------------------

    def make_spec(self, kind: Kind, seconds: float, key: str) -> dict[str, Any]:
        """One job of a kind; the key is also a label, so that the record tells which submit made it."""
        ledger = self.ledger
        locks = str(ledger.locks) if kind.terms.get("overlap") == "fenced" else ""
        told = (ledger.lines, kind.lines, f"{seconds:.2f}", kind.code, locks)
        words = ["sh", "-c", SCRIPT, *(str(word) for word in told)]
        spec = {"command": words, "workdir": str(self.cluster.folder), "name": kind.name, **kind.terms}
        if kind.tasks > 1:
            spec["array"] = {"first": 0, "last": kind.tasks - 1}
        return {**spec, "labels": {"key": key}}

    def submit(self, kind: Kind, seconds: float, key: str) -> None:
        """Submit over HTTP until it is answered."""
        spec = self.make_spec(kind, seconds, key)
        answer = self.ask("POST", "/jobs", spec, {"Idempotency-Key": key})
        if answer.status in (200, 201):
            self.ledger.acknowledge(key, str(answer.json["id"]), kind.name)
        else:
            self.ledger.contradict(f"submit {key} was refused: {answer}")

    def _submit_over_http(self, rng: random.Random, number: int) -> None:
        for count in self._turns(rng):
            kind, seconds = choose(rng)
            for _ in range(1 + (rng.random() < 0.1)):
                self.submit(kind, seconds, f"http{number}-{count}")

    def _submit_over_channel(self, rng: random.Random, number: int) -> None:
        hub = self._connect()
        for count in self._turns(rng):
            key = f"channel{number}-{count}"
            kind, seconds = choose(rng)
            job = self._submit_until_taken(hub, self.make_spec(kind, seconds, key), key)
            self.ledger.acknowledge(key, job.id, kind.name)
            if rng.random() < 0.25:
                # One that waits or runs for long is told by the account at the end.
                with contextlib.suppress(TimeoutError):
                    self.ledger.waited[job.id] = hub.wait(job, 4).state.value
        hub.close()

    def _submit_until_taken(self, hub: Hub, spec: dict[str, Any], key: str) -> Job:
        while True:
            try:
                return hub.submit(spec, key=key)
            except (NoSpace, NotReady):
                self.ledger.retries += 1
                time.sleep(AGAIN_S)

    def _connect(self) -> Hub:
        while True:
            try:
                return connect(hub=self.cluster.url, token=self.cluster.token, home=self.cluster.folder)
            except DrayError:
                time.sleep(AGAIN_S)

    def _turns(self, rng: random.Random) -> Iterator[int]:
        count = 0
        while not self._stop.is_set():
            if self.ledger.backlog > BACKLOG_JOBS:
                self._stop.wait(AGAIN_S)
                continue
            yield (count := count + 1)
            self._stop.wait(rng.uniform(0.0, 0.25))

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        **query: Any,
    ) -> Answer:
        """Ask until a hub answers for good; the key or the nature of the call makes that safe."""
        while True:
            try:
                answer = self.cluster.call(method, path, body, headers=headers, **query)
            except (OSError, HTTPException):
                self.ledger.retries += 1
            else:
                # Too busy, starting or reloading, no room left: all of that passes.
                if answer.status not in (429, 503, 507):
                    return answer
                self.ledger.retries += 1
            time.sleep(AGAIN_S)

    # --- cancels and looks --------------------------------------------------------------------------------------------

    def _cancel(self, rng: random.Random, number: int) -> None:
        while not self._stop.wait(rng.uniform(0.2, 1.2)):
            with self.ledger.lock:
                recent = list(self.ledger.ids)[-15:]
            if not recent:
                continue
            job_id = rng.choice(recent)
            self.ledger.cancelled.setdefault(job_id, False)
            answer = self.ask("POST", f"/jobs/{job_id}/cancel", {"grace_s": 0})
            if answer.status != 200:
                self.ledger.contradict(f"{job_id} was acknowledged; its cancel is answered {answer}")
            elif "note" not in answer.json:
                self.ledger.cancelled[job_id] = True

    def _sample(self, rng: random.Random, number: int) -> None:
        while not self._stop.wait(0.2):
            waiting = self.ask("GET", "/jobs", state="pending,running", limit=1000).json["jobs"]
            self.ledger.backlog = len(waiting)
            with self.ledger.lock:
                known = list(self.ledger.ids)
            for job_id in rng.sample(known, min(SAMPLE_JOBS, len(known))):
                answer = self.ask("GET", f"/jobs/{job_id}")
                if answer.status != 200:
                    self.ledger.contradict(f"{job_id} was acknowledged and is answered with {answer}")
                    continue
                self.ledger.see(answer.json)
                if answer.json["tasks"]["total"] > 1:
                    for task in self.ask("GET", f"/jobs/{job_id}/tasks", limit=1000).json["tasks"]:
                        self.ledger.see(task)
