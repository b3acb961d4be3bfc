"""What Redis is to hold: a small memory of every live job, and from it what changes in which queue.

Pure: rows in, changes of members out; nothing here knows of sockets or clocks. A job takes one entry for as long as it
is live. Rows say how a job is, not what happened, so a row may be folded twice, and those that a load reads may be
older or newer than the ones that come in meanwhile: what came in wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

import msgspec

from dray.core.model.ids import attempt_number, task_id
from dray.core.model.records.records import Attempt, Job, Phase
from dray.core.model.records.worker import Worker
from dray.hub.mirror.documents import spell_worker
from dray.hub.mirror.groups import HASH, SET, ZSET, Group
from dray.hub.mirror.keys import name_queue, name_site, spell_place

# A heap is cleaned up once most of it is of jobs that are gone.
SPARE = 64
WAITING, RUNNING = 0, 1
WORKERS, QUEUES = 0, 1
Runs = dict[str, tuple[tuple[int, int], ...]]


class Entry(msgspec.Struct, gc=False):
    """One live job. `waiting` is how many of its tasks wait in line, `held` how many would if it stood in one. `runs`:
    by member of the set, the attempts that hold it, each by its number, with its start; the newest one counts.
    """

    queue: str
    priority: int
    seq: int
    submitted_ms: int
    numbered: bool
    waiting: int = 0
    held: int = 0
    running: int = 0
    final: bool = False
    runs: Runs | None = None


class Line:
    """One queue in numbers, and what is to be written of it."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.waiting_jobs = self.waiting_tasks = self.held_jobs = self.held_tasks = 0
        self.running = self.runs = 0
        self.priorities: dict[int, int] = {}
        self._oldest: list[tuple[int, str]] = []

    def count(self, entry: Entry, sign: int) -> None:
        """Count a job in, or out."""
        if entry.waiting:
            self.waiting_jobs += sign
            self.waiting_tasks += sign * entry.waiting
            left = self.priorities.get(entry.priority, 0) + sign * entry.waiting
            if left:
                self.priorities[entry.priority] = left
            else:
                del self.priorities[entry.priority]
        if entry.held:
            self.held_jobs += sign
            self.held_tasks += sign * entry.held
        self.running += sign * entry.running

    def queue_up(self, seq: int, job_id: str) -> None:
        """One more may be the oldest that waits."""
        heappush(self._oldest, (seq, job_id))

    def find_oldest(self, entries: dict[str, Entry], queue: str) -> int:
        """When the oldest that waits was submitted; 0: nobody waits."""

        def waits(job_id: str) -> bool:
            entry = entries.get(job_id)
            return entry is not None and entry.waiting > 0 and entry.queue == queue

        if len(self._oldest) > 2 * self.waiting_jobs + SPARE:
            self._oldest = [one for one in set(self._oldest) if waits(one[1])]
            heapify(self._oldest)
        while self._oldest and not waits(self._oldest[0][1]):
            heappop(self._oldest)
        return entries[self._oldest[0][1]].submitted_ms if self._oldest else 0


class Shadow:
    """All queues, all live jobs, all workers as of turn `seq`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.entries: dict[str, Entry] = {}
        self.lines: dict[str, Line] = {}
        self.workers: dict[str, bytes] = {}
        self.site = Group(name_site(prefix), (HASH, SET))
        self.epoch = self.seq = 0
        # While rows are loaded: what came in meanwhile, and is newer than they.
        self._fresh: set[str] | None = None

    @property
    def groups(self) -> list[Group]:
        """All that is written, each by itself; other threads may ask."""
        return [self.site, *(line.group for line in list(self.lines.values()))]

    def queue_of(self, job_id: str) -> str | None:
        """The queue of a live job."""
        entry = self.entries.get(job_id)
        return None if entry is None else entry.queue

    def line(self, queue: str, now_s: float = 0.0) -> Line:
        """A queue, new where it was not heard of before."""
        line = self.lines.get(queue)
        if line is None:
            line = self.lines[queue] = Line(Group(name_queue(self._prefix, queue), (ZSET, ZSET), queue))
            self.site.note(QUEUES, queue, "", now_s)
        return line

    # --- rows come in -----------------------------------------------------------------------------------------------

    def begin_load(self) -> None:
        """Forget everything: all rows are about to be read. Queues stay known, so that they are told to be empty."""
        self.entries.clear()
        self.workers.clear()
        self._fresh = set()
        for queue, line in self.lines.items():
            self.lines[queue] = Line(line.group)

    def end_load(self) -> None:
        """All rows were read."""
        self._fresh = None

    def load(self, rows: Iterable[Job | Attempt | Worker], now_s: float) -> None:
        """Take rows that were read: jobs before their attempts. What came in since is newer."""
        fresh = self._fresh
        assert fresh is not None, "begun before"
        for row in rows:
            if type(row) is Job:
                if row.id not in fresh:
                    self._fold_job(row, now_s)
            elif type(row) is Attempt:
                if row.uid not in fresh and row.job_id in self.entries:
                    self._fold_attempt(row, now_s)
            elif type(row) is Worker and f"worker {row.id}" not in fresh:
                self._fold_worker(row, now_s)

    def fold(
        self,
        jobs: Iterable[Job],
        attempts: Iterable[Attempt],
        workers: Iterable[Worker],
        gone: Iterable[str],
        now_s: float,
    ) -> None:
        """Take rows as they stand after a turn. Jobs that are over are let go by `release`."""
        fresh = self._fresh
        for job in jobs:
            if fresh is not None:
                fresh.add(job.id)
            self._fold_job(job, now_s)
        for attempt in attempts:
            if fresh is not None:
                fresh.add(attempt.uid)
            self._fold_attempt(attempt, now_s)
        for worker in workers:
            if fresh is not None:
                fresh.add(f"worker {worker.id}")
            self._fold_worker(worker, now_s)
        for name in gone:
            if fresh is not None:
                fresh.add(f"worker {name}")
            if self.workers.pop(name, None) is not None:
                self.site.note(WORKERS, name, None, now_s)

    def release(self, job_ids: Iterable[str]) -> None:
        """Let go of those of these jobs that are over, and hold nothing on a worker."""
        for job_id in job_ids:
            entry = self.entries.get(job_id)
            if entry is not None and entry.final and not entry.runs:
                del self.entries[job_id]

    def _fold_job(self, job: Job, now_s: float) -> None:
        old, final = self.entries.get(job.id), job.state.final
        tasks = 0 if final else job.waiting
        waiting, held = (0, tasks) if job.barred else (tasks, 0)
        entry = Entry(job.queue, job.priority, job.seq, job.submitted_at_ms, job.numbered)
        entry.waiting, entry.held, entry.running, entry.final = waiting, held, job.running, final
        self.entries[job.id] = entry
        line = self.line(job.queue, now_s)
        stood = False
        if old is not None:
            entry.runs = old.runs
            before = line if old.queue == job.queue else self.lines[old.queue]
            before.count(old, -1)
            before.group.touch(now_s)
            stood = old.waiting > 0 and before is line and old.priority == job.priority
            if old.waiting and not (stood and waiting):
                before.group.note(WAITING, spell_place(old.priority, old.seq, job.id), None, now_s)
            if before is not line and old.runs:
                self._move(old.runs, before, line, now_s)
        line.count(entry, 1)
        if waiting and not stood:
            line.queue_up(job.seq, job.id)
            line.group.note(WAITING, spell_place(job.priority, job.seq, job.id), 0, now_s)
        else:
            line.group.touch(now_s)

    @staticmethod
    def _move(runs: Runs, before: Line, line: Line, now_s: float) -> None:
        for member, tries in runs.items():
            before.group.note(RUNNING, member, None, now_s)
            line.group.note(RUNNING, member, tries[-1][1], now_s)
        before.runs -= len(runs)
        line.runs += len(runs)

    def _fold_attempt(self, attempt: Attempt, now_s: float) -> None:
        entry = self.entries.get(attempt.job_id)
        if entry is None:
            return
        # A task counts as running from its acceptance on.
        runs = attempt.phase.live and attempt.phase is not Phase.ASSIGNED
        number = attempt_number(attempt.uid)
        if attempt.lane:
            member = f"{attempt.job_id}/lane-{attempt.uid}"
        else:
            spelled = attempt.index if entry.numbered or attempt.index > 0 else -1
            member = task_id(attempt.job_id, spelled)
        known = entry.runs or {}
        before = known.get(member, ())
        after = tuple(one for one in before if one[0] != number)
        if runs:
            began_ms = attempt.started_at_ms or attempt.accepted_at_ms or attempt.assigned_at_ms
            after = tuple(sorted((*after, (number, began_ms))))
        if after == before:
            return
        line = self.lines[entry.queue]
        if after:
            known[member] = after
            entry.runs = known
            line.group.note(RUNNING, member, after[-1][1], now_s)
        else:
            del known[member]
            entry.runs = known or None
            line.group.note(RUNNING, member, None, now_s)
        line.runs += bool(after) - bool(before)

    def _fold_worker(self, worker: Worker, now_s: float) -> None:
        document = spell_worker(worker)
        if self.workers.get(worker.id) != document:
            self.workers[worker.id] = document
            self.site.note(WORKERS, worker.id, document, now_s)

    # --- what Redis is to hold --------------------------------------------------------------------------------------

    def tell_stats(self, group: Group) -> tuple[dict[str, int | str], tuple[int, int]]:
        """The numbers of a group, and how much its two collections hold, as of now."""
        queue = group.queue
        if queue is None:
            counts = (len(self.workers), len(self.lines))
            return {"workers": counts[0], "queues": counts[1], "count": counts[0]}, counts
        line = self.lines[queue]
        stats: dict[str, int | str] = {
            "waiting_jobs": line.waiting_jobs,
            "waiting_tasks": line.waiting_tasks,
            "held_jobs": line.held_jobs,
            "held_tasks": line.held_tasks,
            "running": line.running,
            "oldest_ms": line.find_oldest(self.entries, queue),
            "count": line.waiting_jobs,
        }
        stats |= {f"p:{priority}": tasks for priority, tasks in line.priorities.items()}
        return stats, (line.waiting_jobs, line.runs)

    def collect(
        self, job_ids: Iterable[str], queues: frozenset[str]
    ) -> dict[tuple[str, int], list[int | str]]:
        """What these jobs add to queues that are made anew: by queue and collection, scores and members."""
        found: dict[tuple[str, int], list[int | str]] = {}
        for job_id in job_ids:
            entry = self.entries.get(job_id)
            if entry is None or entry.queue not in queues:
                continue
            if entry.waiting:
                place = spell_place(entry.priority, entry.seq, job_id)
                found.setdefault((entry.queue, WAITING), []).extend((0, place))
            for member, tries in (entry.runs or {}).items():
                found.setdefault((entry.queue, RUNNING), []).extend((tries[-1][1], member))
        return found
