"""Measures what the policy's alarms are about, every few seconds beside the turns, and says when one begins or ends.

What is measured is read off the state as of the last commit; what follows is an event like any other, so that a restart
neither forgets an alarm nor raises it twice. How long something has been wrong is counted by one run of the hub.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from dray.core.lifecycle.state.effects import Note
from dray.core.lifecycle.state.events import AlarmChanged, Clock
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.alarms import AlarmRule
from dray.core.model.records.ledger import AlarmRecord
from dray.core.model.records.records import Phase
from dray.core.model.units import format_seconds
from dray.errors import NotReady
from dray.hub.decisions.holdings import find_oldest
from dray.hub.engine.engine import Engine
from dray.hub.engine.turns import Decision

MOST_LOOPS = 10_000
HUB = "hub"
_JUDGED = (Phase.SUCCEEDED, Phase.FAILED)


class Found(NamedTuple):
    """One measure: of what, how much, in words; `job_id` where it is about somebody's job."""

    subject: str
    value: float
    text: str
    job_id: str = ""


class Alarms:
    """One hub's. Made with its engine, run beside it, cancelled with it."""

    def __init__(self, engine: Engine, home: Path, every_s: float) -> None:
        self._engine, self._home, self._every_s = engine, home, every_s
        self._loops: dict[str, int] = {}
        self._ends: deque[tuple[int, int, int]] = deque()
        self._disk = 0.0
        # Since when a rule has seen something that is not told yet, by its key.
        self._since: dict[str, int] = {}
        for task in engine.state.tasks.values():
            if task.failures and not task.state.final:
                self._loops[task.job_id] = max(task.failures, self._loops.get(task.job_id, 0))

    def hear(self, note: Note) -> None:
        """Hear of a task that is tried again, and of a job that ended."""
        if note.type == "job_ended":
            self._loops.pop(note.job_id, None)
        elif note.type == "task_requeued":
            _, mark, index = note.task_id.rpartition("/")
            task = self._engine.state.tasks.get((note.job_id, int(index) if mark else 0))
            if task is not None and task.failures and len(self._loops) < MOST_LOOPS:
                self._loops[note.job_id] = max(task.failures, self._loops.get(note.job_id, 0))

    async def run(self) -> None:
        """Look every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            try:
                if any(rule.kind == "disk" for rule in self._engine.state.policy.alarms):
                    self._disk = await asyncio.to_thread(used_share, self._home)
                at_ms = self._engine.clock_ms()
                changes = await self._engine.ask(lambda state: self._look(state, at_ms))  # noqa: B023 - awaited here
            except NotReady:
                return
            if changes:
                self._engine.post(_fold(changes))

    def _look(self, state: State, at_ms: int) -> list[AlarmChanged]:
        """What begins and what ends now."""
        self._count(state, at_ms)
        raised = {key: record for (kind, key), record in state.ledger.items() if kind == "alarm"}
        changes: list[AlarmChanged] = []
        seen: set[str] = set()
        for rule in state.policy.alarms:
            for found in self._measure(rule, state, at_ms):
                key = f"{rule.kind}/{found.subject}/{rule.above:g}"
                seen.add(key)
                bad = found.value > (rule.over_at if key in raised else rule.above)
                if self._lasts(key, bad != (key in raised), rule.for_s, at_ms):
                    del self._since[key]
                    changes.append(AlarmChanged(key, rule.kind, found.subject, found.text, bad, found.job_id))
        for key, record in raised.items():
            # What is measured no more (a worker that was removed, a job that ended, a rule that is gone) is over.
            if key not in seen and isinstance(record, AlarmRecord):
                text = f"over: {record.text}"
                changes.append(AlarmChanged(key, record.kind, record.subject, text, False, record.job_id))
        self._since = {key: since for key, since in self._since.items() if key in seen}
        return changes

    def _lasts(self, key: str, differs: bool, for_s: float, at_ms: int) -> bool:
        """Whether it has been so for long enough to be told."""
        if not differs:
            self._since.pop(key, None)
            return False
        return at_ms - self._since.setdefault(key, at_ms) >= for_s * 1000

    def _count(self, state: State, at_ms: int) -> None:
        ended = [state.ends.get(phase, 0) for phase in _JUDGED]
        self._ends.append((at_ms, ended[1], sum(ended)))
        longest_ms = 1000 * max((rule.window_s for rule in state.policy.alarms), default=0)
        while len(self._ends) > 1 and self._ends[1][0] <= at_ms - longest_ms:
            self._ends.popleft()

    def _measure(self, rule: AlarmRule, state: State, at_ms: int) -> Iterator[Found]:
        return _MEASURES[rule.kind](self, rule, state, at_ms)

    def _worker_away(self, rule: AlarmRule, state: State, at_ms: int) -> Iterator[Found]:
        for worker in state.workers.values():
            if not worker.draining or worker.faults:
                away_s = (at_ms - worker.gone_at_ms) / 1000 if worker.gone_at_ms else 0.0
                yield Found(worker.id, away_s, f"worker {worker.id} {_tell_away(away_s)}")

    def _queue_wait(self, rule: AlarmRule, state: State, at_ms: int) -> Iterator[Found]:
        names = [rule.queue] if rule.queue else list(state.backlog.depth)
        oldest = find_oldest(state, names)
        for name in names:
            job = oldest.get(name)
            wait_s = (at_ms - job.submitted_at_ms) / 1000 if job is not None else 0.0
            text = f"the first of queue {name} has waited for {format_seconds(int(wait_s))}"
            yield Found(name, wait_s, text if job is not None else f"nobody waits in queue {name}")

    def _disk_used(self, rule: AlarmRule, state: State, at_ms: int) -> Iterator[Found]:
        yield Found(HUB, self._disk, f"the hub's disk is {self._disk:.0%} full")

    def _crash_loop(self, rule: AlarmRule, state: State, at_ms: int) -> Iterator[Found]:
        for job_id, failures in self._loops.items():
            yield Found(job_id, failures, f"a task of job {job_id} has failed {failures} times", job_id)
        for job_id in state.services:
            known = (state.tasks.get((job_id, index)) for index in range(state.jobs[job_id].cursor))
            ends = max((task.restarts for task in known if task is not None and task.looping), default=0)
            if ends:
                yield Found(job_id, ends, f"a replica of service {job_id} has ended {ends} times", job_id)

    def _failed_share(self, rule: AlarmRule, state: State, at_ms: int) -> Iterator[Found]:
        first = next((ends for ends in self._ends if ends[0] >= at_ms - rule.window_s * 1000), self._ends[-1])
        failed, ended = self._ends[-1][1] - first[1], self._ends[-1][2] - first[2]
        share = failed / ended if ended and ended >= rule.least else 0.0
        yield Found(
            HUB, share, f"{failed} of {ended} attempts failed within {format_seconds(int(rule.window_s))}"
        )


_MEASURES: Mapping[str, Callable[[Alarms, AlarmRule, State, int], Iterator[Found]]] = {
    "worker_away": Alarms._worker_away,
    "queue_wait": Alarms._queue_wait,
    "disk": Alarms._disk_used,
    "crash_loop": Alarms._crash_loop,
    "failed_share": Alarms._failed_share,
}


def used_share(folder: Path) -> float:
    """How much of a disk is used, of what ordinary programs may use."""
    disk = os.statvfs(folder)
    usable = disk.f_blocks - disk.f_bfree + disk.f_bavail
    return 1 - disk.f_bavail / usable if usable else 0.0


def _tell_away(away_s: float) -> str:
    return f"is away for {format_seconds(int(away_s))}" if away_s else "is back"


def _fold(changes: list[AlarmChanged]) -> Callable[[State, Clock], Decision]:
    return lambda state, clock: Decision(changes)
