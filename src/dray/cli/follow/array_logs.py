"""The output of a job with several tasks: each line under the number of its task, each task's lines in their order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from dray.cli.base.exit_codes import ENDED, UNSUCCESSFUL, has_ended
from dray.cli.base.hub import Hub
from dray.cli.base.outage import Outage
from dray.cli.follow.following import LogCopy, LogThread, look
from dray.cli.jobs.listing import page_tasks

# So many streams at once: the rest is read when a task has ended.
FOLLOWED = 16
LOOK_S = 1.0
REST_S = 60.0
# Of so many tasks all are looked at each time for those that began and ended meanwhile; of more only at the end.
LISTED = 1000
EVERY = 1 << 62
Print = Callable[[int, bytes], None]


class Lines:
    """Pieces of one task's output, given on in whole lines, so that those of two tasks never mix within one."""

    def __init__(self, index: int, give: Print) -> None:
        self._index, self._give, self._rest = index, give, b""

    def add(self, data: bytes) -> None:
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest
        if newline:
            self._give(self._index, whole + newline)

    def close(self) -> None:
        if self._rest:
            self._give(self._index, self._rest + b"\n")
            self._rest = b""


def under_numbers(total: int, write: Callable[[bytes], None]) -> Print:
    """Put the number of its task before every line."""
    lock, width = threading.Lock(), len(str(max(0, total - 1)))

    def give(index: int, lines: bytes) -> None:
        before = f"{index:>{width}} | ".encode()
        with lock:
            write(b"".join(before + line for line in lines.splitlines(keepends=True)))

    return give


class ArrayLogs:
    """One job's tasks. `failed`: only those that ended without success. `again`: what ended may begin once more, as
    replicas of services do.
    """

    def __init__(
        self, hub: Hub, job_id: str, query: Mapping[str, Any], give: Print, failed: bool, again: bool = False
    ) -> None:
        self._hub, self._job_id, self._query = hub, job_id, query
        # Of a service one that waits may have run before.
        self._living = ["running", "pending"] if again else ["running"]
        self._give, self._states = give, list(UNSUCCESSFUL if failed else ENDED)
        self._failed = failed
        self._seen: set[int] = set()
        self._threads: dict[int, tuple[LogThread, Lines]] = {}

    def copy(self) -> None:
        """What there is now, task by task."""
        states = self._states if self._failed else [*self._states, *self._living]
        for task in page_tasks(self._hub, self._job_id, states, EVERY).items:
            if task["attempts"]:
                self._copy_one(_number(task))

    def follow(self, outage: Outage) -> None:
        """Until the job has ended: what runs as it comes, what ended in between when it is found."""
        outage.ride_out(self._copy_ended)
        while True:
            job = look(self._hub, outage, self._job_id, LOOK_S)
            if not self._failed:
                outage.ride_out(self._follow_running)
            if has_ended(job):
                break
            if int(job["tasks"]["total"]) <= LISTED:
                outage.ride_out(self._copy_ended)
        for index in list(self._threads):
            self._finish(index)
        outage.ride_out(self._copy_ended)

    def _copy_ended(self) -> None:
        for task in page_tasks(self._hub, self._job_id, self._states, EVERY).items:
            if _number(task) not in self._seen:
                self._copy_one(_number(task))

    def _copy_one(self, index: int) -> None:
        lines = Lines(index, self._give)
        LogCopy(self._hub, self._job_id, {**self._query, "task": index}, lines.add).copy(follow=False)
        lines.close()
        self._seen.add(index)

    def _follow_running(self) -> None:
        running = page_tasks(self._hub, self._job_id, self._living, FOLLOWED).items
        still = {_number(task) for task in running if task["attempts"]}
        for index in [index for index in self._threads if index not in still]:
            self._finish(index)
        for index in sorted(still - self._seen)[: FOLLOWED - len(self._threads)]:
            lines = Lines(index, self._give)
            copy = LogCopy(self._hub, self._job_id, {**self._query, "task": index}, lines.add)
            self._threads[index] = (LogThread(copy), lines)
            self._seen.add(index)
            self._threads[index][0].start()

    def _finish(self, index: int) -> None:
        thread, lines = self._threads.pop(index)
        thread.finish(REST_S)
        lines.close()


def _number(task: Mapping[str, Any]) -> int:
    """The first task of a job that began with one goes by the job's own id, and has no number in it."""
    return max(0, int(task["index"]))
