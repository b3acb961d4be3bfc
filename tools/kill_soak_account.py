"""The account of the kill soak: what was acknowledged, what is recorded and what truly ran must agree.

Reads the hub over HTTP after the end, the file in which tasks noted what they did, and the processes that are left.
Knows nothing about how the load was made. The surprising rule: an attempt that ran is allowed to be unrecorded only
where it was lost, taken back or cancelled; a recorded end needs the lines of exactly that attempt.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from datetime import datetime
from typing import Any, NamedTuple

from tests.e2e.cluster import ENDED, Cluster
from tools.kill_soak_kills import Killer
from tools.kill_soak_load import BY_NAME, Kind, Ledger
from tools.soak_aftermath import POLL_S, Aftermath

OPEN_PHASES = ("assigned", "accepted", "running", "stopping", "unknown")
DEFAULT_LOSSES = 3
CANNOT_FORK = 2  # what `sh` ends with then
ROUND_S = 0.5  # a supervisor that met a full disk tries again after as long


class Task(NamedTuple):
    """One task as recorded at the end."""

    id: str
    job_id: str
    kind: Kind
    record: dict[str, Any]
    spec: dict[str, Any]

    @property
    def attempts(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.record["attempts"]
        return listed


class Account(Aftermath):
    """All that was found; `anomalies` is empty where everything held."""

    def __init__(self, cluster: Cluster, ledger: Ledger, killer: Killer, patience_s: float = 10.0) -> None:
        super().__init__(cluster, killer, patience_s)
        self._ledger = ledger
        self.tasks: dict[str, Task] = {}
        self.jobs: list[dict[str, Any]] = []
        self.counts: Counter[str] = Counter()
        self._words: dict[str, list[str]] = defaultdict(list)
        self._order: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self._task_of: dict[str, str] = {}

    def wait_for_end(self, limit_s: float) -> bool:
        """Everything ends, and every attempt is confirmed gone, within a bounded time after the kills."""
        deadline = time.monotonic() + limit_s
        while True:
            self._killer.look()
            waiting = self._call("/jobs", state="pending,running", limit=1000)["jobs"]
            busy = [] if waiting else [line for line in self._workers() if line["active_jobs"]]
            if not waiting and not busy:
                return True
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        for job in waiting:
            why = self._call(f"/jobs/{job['id']}/why")
            self._find("stuck", f"{job['id']} is {job['state']} after {limit_s:g} s: {why}", job["id"])
        for line in busy:
            shown = self._call(f"/workers/{line['id']}")["jobs"]
            self._find("stuck", f"{line['id']} still holds {shown} after {limit_s:g} s")
        return False

    def settle(self) -> None:
        """Compare everything with everything."""
        self._read_lines()
        self._read_jobs()
        self._check_acknowledged()
        for uid in self._words:
            self._check_line(uid)
        for task in self.tasks.values():
            self._check_task(task)
            self._check_attempts(task)
        self._check_outputs()
        self.look_around()
        for text in self._ledger.contradictions:
            self._find("contradiction", text)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _workers(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self._call("/workers")["workers"]
        return listed

    def _read_lines(self) -> None:
        for line in self._ledger.lines.read_text().splitlines():
            task_id, uid, _, _, word = line.split()
            self._words[uid].append(word)
            self._order[task_id].append((uid, word))
            self._task_of[uid] = task_id

    def _read_jobs(self) -> None:
        cursor = None
        while True:
            page = self._call("/jobs", limit=1000, **({"cursor": cursor} if cursor else {}))
            self.jobs += page["jobs"]
            cursor = page["next_cursor"]
            if not cursor:
                break
        for job in self.jobs:
            self._ledger.see(job)
            records = [self._call(f"/jobs/{job['id']}")]
            if job["tasks"]["total"] > 1:
                records = self._call(f"/jobs/{job['id']}/tasks", limit=1000)["tasks"]
            for record in records:
                self._ledger.see(record)
                task = Task(record["id"], job["id"], BY_NAME[job["name"]], record, job["spec"])
                self.tasks[task.id] = task
                self.counts["attempts"] += len(task.attempts)
                self.counts["requeues"] += max(0, len(task.attempts) - 1)
                self.counts["losses"] += record["losses"]
                self.counts[record["state"]] += 1

    # --- judging ------------------------------------------------------------------------------------------------------

    def _check_acknowledged(self) -> None:
        by_key: dict[str, list[str]] = defaultdict(list)
        for job in self.jobs:
            by_key[job["labels"]["key"]].append(job["id"])
        for key, ids in by_key.items():
            if len(ids) > 1:
                self._find("doubled", f"key {key} made {ids}")
            if key not in self._ledger.keys:
                self._find(
                    "unasked", f"key {key} was never answered, but its client asked until it was: {ids}"
                )
        recorded = {job["id"] for job in self.jobs}
        for key, job_id in self._ledger.keys.items():
            if job_id not in recorded:
                self._find("lost", f"key {key} was answered with {job_id}, which is not recorded", job_id)
        states = {job["id"]: job["state"] for job in self.jobs}
        for job_id, state in self._ledger.waited.items():
            if states.get(job_id) != state:
                self._find(
                    "changed", f"a client saw {job_id} end as {state}; it is {states.get(job_id)}", job_id
                )
        for job_id, taken in self._ledger.cancelled.items():
            if taken and states.get(job_id) != "killed":
                self._find("cancel", f"the cancel of {job_id} was taken; it is {states.get(job_id)}", job_id)

    def _check_line(self, uid: str) -> None:
        task = self.tasks.get(self._task_of[uid])
        words = self._words[uid]
        if task is None or uid not in [attempt["uid"] for attempt in task.attempts]:
            self._find("unknown", f"attempt {uid} ran ({words}) and is not recorded", self._task_of[uid])
        if words.count("begin") != 1 or words.count("end") > 1:
            self._find("ran twice", f"attempt {uid} says {words}", self._task_of[uid])
        if "overlap" in words:
            self._find("overlap", f"attempt {uid} found its predecessor alive", self._task_of[uid])

    def _check_task(self, task: Task) -> None:
        record, state = task.record, task.record["state"]
        if state not in ENDED:
            return
        by_phase = Counter(attempt["phase"] for attempt in task.attempts)
        if state == "succeeded" and (by_phase["succeeded"] != 1 or task.kind.code):
            self._find("result", f"succeeded with attempts {by_phase}, exit code {task.kind.code}", task.id)
        if state == "failed" and not by_phase["failed"]:
            self._find("result", f"failed without a failed attempt: {by_phase}", task.id)
        if state == "killed" and task.job_id not in self._ledger.cancelled:
            self._find("result", f"killed, and nobody asked for it: {record['error']}", task.id)
        if state == "unschedulable":
            self._find("result", f"unschedulable: {record['error']}", task.id)
        once = bool(task.spec.get("at_most_once"))
        allowed = 0 if once else DEFAULT_LOSSES
        handed_back = once and record["exit_class"] == "preempted"
        if state == "worker_failed" and record["losses"] != allowed + 1 and not handed_back:
            self._find("result", f"given up after {record['losses']} losses, {allowed} allowed", task.id)
        retries = task.spec.get("retries", 0)
        if record["losses"] > allowed + 1 or record["failures"] > retries + 1:
            self._find("result", f"{record['losses']} losses, {record['failures']} failures", task.id)
        starts = [attempt["uid"] for attempt in task.attempts if attempt["started_at"]]
        if once and len(starts) > 1:
            self._find("once", f"at most once, and started as {starts}", task.id)
        begins = [uid for uid, word in self._order[task.id] if word == "begin"]
        # Promised is at most one recorded start; what was begun unheard is counted and judged per attempt.
        self.counts["once_begun_again"] += once and len(begins) > 1
        if task.spec.get("overlap") == "fenced":
            self._check_fence(task)
        final = [uid for uid in begins if "end" in self._words[uid]]
        self.counts["ended_more_than_once"] += len(final) > 1 and task.kind.name != "retried"

    def _check_fence(self, task: Task) -> None:
        """No line of an attempt comes after a later attempt has begun."""
        current = ""
        over: set[str] = set()
        for uid, word in self._order[task.id]:
            if uid in over:
                self._find("overlap", f"{uid} says {word} after {current} has begun", task.id)
            if uid != current:
                over.add(current)
                current = uid

    def _check_attempts(self, task: Task) -> None:
        for attempt in task.attempts:
            uid, phase, words = attempt["uid"], attempt["phase"], self._words.get(attempt["uid"], [])
            if phase in OPEN_PHASES:
                if task.record["state"] in ENDED:
                    self._find("stuck", f"attempt {uid} is still {phase}", task.id)
                continue
            if self._had_no_pids(attempt):
                self.counts["attempts_without_pids"] += 1
                continue
            by_code = phase == "succeeded" or (phase == "failed" and attempt["exit_class"] == "code")
            if by_code and "end" not in words:
                self._find("result", f"attempt {uid} is recorded as {phase} and says {words}", task.id)
            if by_code and attempt["exit_code"] != task.kind.code:
                self._find("result", f"attempt {uid} has exit code {attempt['exit_code']}", task.id)
            by_signal = attempt["exit_class"] == "signal" and uid in self._killer.killed_uids
            if phase == "failed" and not by_code and not by_signal:
                what = f"attempt {uid} failed by {attempt['exit_class']}: {attempt['error']}"
                self._find("result", what, task.id)
            if phase in ("succeeded", "failed") and not (attempt["started_at"] and "begin" in words):
                what = f"attempt {uid} {phase}, started at {attempt['started_at']}, says {words}"
                self._find("result", what, task.id)
            self.counts["attempts_begun"] += "begin" in words
            self.counts["attempts_started"] += bool(attempt["started_at"])
            if "begin" in words and not attempt["started_at"]:
                self.counts["begun_unrecorded"] += 1
                if not (phase == "revoked" or (phase == "lost" and attempt["error"].startswith("silent"))):
                    what = f"attempt {uid} ran and its worker told how it ended, but no start is recorded"
                    self._find("unrecorded", what, task.id)

    def _check_outputs(self) -> None:
        """Recorded ends by exit code have printed every line; the last pieces may need a moment to arrive."""
        deadline = time.monotonic() + self._patience_s
        for task in self.tasks.values():
            ended = [a for a in task.attempts if a["phase"] in ("succeeded", "failed")]
            by_code = [a for a in ended if a["exit_class"] in ("ok", "code", "")]
            for attempt in [a for a in by_code if not self._had_no_pids(a)]:
                wanted = [f"{at} {attempt['uid']}" for at in range(task.kind.lines)]
                while (shown := self._output(task, attempt["no"])) != wanted and time.monotonic() < deadline:
                    time.sleep(POLL_S)
                self.counts["outputs"] += 1
                if shown != wanted and self._had_no_room(attempt):
                    self.counts["outputs_without_room"] += 1
                elif shown != wanted:
                    what = f"attempt {attempt['uid']} printed {len(wanted)} lines, {len(shown)} are there"
                    self._find("output", f"{what}: {shown[:3]} … {shown[-3:]}", task.id)

    def _had_no_room(self, attempt: dict[str, Any]) -> bool:
        """A full disk, the worker's or the hub's, costs output, and nothing else."""
        return self._befell("full", attempt, attempt["worker"], "hub")

    def _had_no_pids(self, attempt: dict[str, Any]) -> bool:
        """A task may find no pid for a process of its own: its shell says so, and that is how it truly ended."""
        return (
            (attempt["phase"], attempt["exit_class"], attempt["exit_code"]) == ("failed", "code", CANNOT_FORK)
            and self._words.get(attempt["uid"]) == ["begin"]
            and self._befell("pids", attempt, attempt["worker"])
        )

    def _befell(self, fault: str, attempt: dict[str, Any], *places: str) -> bool:
        machine = self._killer.machine
        if machine is None or not attempt["started_at"]:
            return False
        # A hub that was away hears of a start long after it: what counts is from when on it can have run.
        began, ended = (
            datetime.fromisoformat(attempt[name]).timestamp() for name in ("assigned_at", "ended_at")
        )
        return any(machine.was(fault, place, began - ROUND_S, ended + ROUND_S) for place in places)

    def _output(self, task: Task, no: int) -> list[str]:
        where = {"task": task.record["index"]} if task.id != task.job_id else {}
        return self._cluster.logs(task.job_id, attempt=no, **where).decode().splitlines()
