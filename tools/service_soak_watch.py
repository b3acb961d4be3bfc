"""What must hold of services: looked at while everything around them dies, and strictly when the kills are over.

Reads the hub over HTTP, asks the services themselves, and looks at processes. The surprising rule: while things die an
endpoint may be out of date for as long as the hub needs to notice; it is a finding only when it stays so.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.cluster import Cluster, is_alive
from tools.kill_soak_kills import Killer
from tools.service_soak_load import BAD, NAMES, Book, People, ask_who
from tools.soak_aftermath import POLL_S, Aftermath

LOOK_S = 0.2
# Until a worker is given up, its replica placed elsewhere and checked, on a machine that does much else.
SILENT_S = 20.0
LONG_REST_S = 4.0
STEADY_S = 3.0


class Endpoint(NamedTuple):
    """A place where a service is said to answer."""

    name: str
    attempt: str
    worker: str
    port: int


class Watch(Aftermath):
    """Everything that is looked at; `anomalies` is empty where it held."""

    def __init__(self, cluster: Cluster, book: Book, killer: Killer) -> None:
        super().__init__(cluster, killer)
        self._book = book
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._bad: dict[Endpoint, float] = {}
        self.counts: Counter[str] = Counter()

    # --- while things die ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._stop.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """One look at everything."""
        before = {name: known for name, known in self._book.wanted.items() if known is not None}
        try:
            found = {name: self._show(job) for name, (job, _) in before.items()}
            endpoints = [point for name, (job, _) in before.items() for point in self._endpoints(name, job)]
        except (OSError, HTTPException, LookupError):
            # A hub that is away, or that begins, is not expected to know.
            self._bad.clear()
            return
        self.counts["looks"] += 1
        for name, document in found.items():
            job, wanted = before[name]
            if self._book.wanted[name] is before[name] and document["replicas"] != wanted:
                self._find("forgotten", f"{name} ({job}) is to have {wanted} replicas: {document}", job)
        self._check_answers(endpoints)

    def _check_answers(self, endpoints: list[Endpoint]) -> None:
        now = time.monotonic()
        self._bad = {point: since for point, since in self._bad.items() if point in endpoints}
        for point in endpoints:
            self.counts["endpoints"] += 1
            if (answer := ask_who(point.port))[0] == point.attempt:
                self._bad.pop(point, None)
            elif now - self._bad.setdefault(point, now) > SILENT_S:
                self._bad[point] = now
                self._find("endpoint", f"{point} is listed for {SILENT_S:g} s and answers {answer!r}")

    def _show(self, job: str) -> dict[str, Any]:
        answer = self._cluster.call("GET", f"/services/{job}")
        if answer.status != 200:
            raise LookupError(str(answer))
        document: dict[str, Any] = answer.json
        return document

    def _endpoints(self, name: str, job: str) -> Iterator[Endpoint]:
        answer = self._cluster.call("GET", f"/services/{job}/endpoints")
        if answer.status != 200:
            raise LookupError(str(answer))
        for one in answer.json["endpoints"]:
            yield Endpoint(name, one["attempt"], one["worker"], one["ports"]["http"])

    # --- when the kills are over --------------------------------------------------------------------------------------

    def wait_ready(self, people: People, limit_s: float) -> bool:
        """Every service has as many ready replicas as were asked for, for a while: what was killed last may not be
        noticed yet. One that rests for long is restarted.
        """
        deadline = time.monotonic() + limit_s
        whole_since = math.inf
        while True:
            self._killer.look()
            left = {name: document for name, document in self._standing() if not self._is_well(document)}
            whole_since = math.inf if left else min(whole_since, time.monotonic())
            if time.monotonic() - whole_since > STEADY_S:
                return True
            for document in left.values():
                for replica in document["replica_list"]:
                    if (replica["next_try_in_s"] or 0) > LONG_REST_S:
                        body = {"replica": replica["index"]}
                        people.ask("POST", f"/services/{document['id']}/restart", body)
                        self.counts["rests_cut_short"] += 1
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        for name, document in left.items():
            self._find("not ready", f"{name} after {limit_s:g} s: {document}", document["id"])
        return False

    def _is_well(self, document: dict[str, Any]) -> bool:
        points = [*self._endpoints("", document["id"])]
        return _is_whole(document) and self._count_answers(points) == len(points) == document["replicas"]

    def _standing(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, known in self._book.wanted.items():
            if known is not None:
                yield name, self._show(known[0])

    def check_whole(self) -> None:
        """Nothing dies now: every endpoint answers as itself, no port is held twice, no process is too many."""
        points: list[Endpoint] = []
        for name, known in self._book.wanted.items():
            assert known is not None  # people have stopped
            found = [*self._endpoints(name, known[0])]
            points += found
            if len(found) != known[1]:
                self._find("endpoint", f"{name} is to have {known[1]} replicas and has {found}", known[0])
            answers = [ask_who(point.port) for point in found]
            for point, answer in zip(found, answers, strict=True):
                if answer[0] != point.attempt:
                    self._find("endpoint", f"{point} answers {answer!r}", known[0])
            if len({version for _, version in answers}) > 1:
                self._find("mixed", f"{name} is not updated any more and answers {answers}", known[0])
        held = Counter((point.worker, point.port) for point in points)
        for place, count in held.items():
            if count > 1:
                self._find("port", f"{place} is held {count} times: {points}")
        self._check_processes_of({point.attempt for point in points})

    def _check_processes_of(self, attempts: set[str]) -> None:
        """Of services only what is listed runs; what was stopped has no process left."""
        deadline = time.monotonic() + self._patience_s
        while (strays := self._strays(attempts)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        for uid, (task, pid) in strays.items():
            stopped = " of a service that was stopped" * (task.partition("/")[0] in self._book.stopped)
            self._find("stray", f"process {pid} of {task}, attempt {uid}, runs{stopped}", task)

    def _strays(self, attempts: set[str]) -> dict[str, tuple[str, int]]:
        found = {}
        for line in self._book.lines.read_text().splitlines():
            task, uid, pid, _, word = line.split()
            if word == "begin" and uid not in attempts and is_alive(int(pid)):
                with contextlib.suppress(OSError):
                    if f"DRAY_ATTEMPT_UID={uid}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                        found[uid] = task, int(pid)
        return found

    def check_calm(self, people: People, limit_s: float) -> None:
        """Changes while nothing dies cost no ready replica that was not asked for."""
        with ThreadPoolExecutor(len(NAMES)) as pool:
            for done in [pool.submit(self._change_all, people, name, limit_s) for name in NAMES]:
                done.result()

    def _change_all(self, people: People, name: str, limit_s: float) -> None:
        known = self._book.wanted[name]
        assert known is not None  # people have stopped
        job, size = known
        changes = [partial(people.set_size, name, wanted) for wanted in (size + 1, size)]
        # A bad one for each but the last, since it takes long to be given up.
        versions = ("calm", *BAD[NAMES.index(name) :][:1])
        changes += [partial(people.set_version, name, version) for version in versions]
        changes += [partial(act, name, random.Random(0)) for act in (people.restart, people.rollback)]
        for change in changes:
            self._change_calmly(job, size, change, limit_s)

    def _change_calmly(self, job: str, least: int, change: Callable[[], None], limit_s: float) -> None:
        """Make a change, and count who answers until it is done."""
        change()
        self.counts["calm_changes"] += 1
        deadline = time.monotonic() + limit_s
        while True:
            points = [*self._endpoints("", job)]
            if (ready := self._count_answers(points)) < least:
                # One of them may have been let go between the two looks, which is all right where another stands.
                ready = max(ready, self._count_answers([*self._endpoints("", job)]))
            if ready < least:
                self._find("unavailable", f"{job}: {ready} of {least} answer, and nobody was killed", job)
            document = self._show(job)
            if _is_whole(document):
                return
            if time.monotonic() > deadline:
                self._find("unfinished", f"{job} after {limit_s:g} s: {document}", job)
                return
            time.sleep(POLL_S)

    @staticmethod
    def _count_answers(points: list[Endpoint]) -> int:
        return sum(ask_who(point.port)[0] == point.attempt for point in points)

    def check_lines(self) -> None:
        """What the services themselves said: each attempt began once, and its port was nobody else's."""
        words: Counter[tuple[str, str]] = Counter()
        for line in self._book.lines.read_text().splitlines():
            task, uid, _, worker, word = line.split()
            words[uid, word] += 1
            self.counts[f"said_{word}"] += 1
            if word == "clash":
                self._find("port", f"attempt {uid} of {task} found its port taken on {worker}", task)
        for (uid, word), count in words.items():
            if count > 1:
                self._find("ran twice", f"attempt {uid} said {word} {count} times")
        for text in self._book.contradictions:
            self._find("contradiction", text)


def _is_whole(document: dict[str, Any]) -> bool:
    """Every replica is there, ready, and of the one revision that the service is at."""
    replicas, numbers = document["replica_list"], {one["number"]: one for one in document["revisions"]}
    if not document["ready"] == document["replicas"] == len(replicas):
        return False
    current = document["revision"]
    return numbers[current]["outcome"] == "done" and all(one["revision"] == current for one in replicas)
