"""Follow a job to its end: its state by long polls, its output by a stream that is taken up again where it broke.

Owns how to wait and how not to repeat or lose output; says nothing by itself but through `Outage`. The surprising rule:
a stream that ends proves nothing, because a hub that stops ends its streams properly; only the job's state does, and
after that the rest of the output is asked for once more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from dray.cli.base.exit_codes import UNSUCCESSFUL, exit_code, has_ended, is_numbered
from dray.cli.base.hub import Hub, HubRefusal, job_path
from dray.cli.base.outage import Outage
from dray.errors import HubUnavailable

LONG_POLL_S = 30.0
_LEAST_PAUSE_S = 0.2
_HELD_BYTES = 1 << 20
_PAGE = 200
# How members of a gang end that were stopped because of another.
STOPPED_FOR_GANG = "gang"
Document = Mapping[str, Any]


def look(hub: Hub, outage: Outage, job_id: str, wait_s: float = 0.0) -> dict[str, Any]:
    """The job now, or at its end if that comes within `wait_s`."""
    query = {"wait_s": f"{wait_s:g}"} if wait_s else {}
    return dict(outage.ride_out(lambda: hub.get(job_path(job_id), query, extra_s=wait_s)))


def wait_for_job(
    hub: Hub, outage: Outage, job_id: str, watch: Callable[[Document], float] | None = None
) -> dict[str, Any]:
    """Wait for the end of a job. `watch` sees each document and says how long the next look may take."""
    wait_s = 0.0
    while True:
        asked = time.monotonic()
        job = look(hub, outage, job_id, wait_s)
        next_s = watch(job) if watch is not None else LONG_POLL_S
        if has_ended(job):
            return job
        if wait_s and time.monotonic() - asked < _LEAST_PAUSE_S:
            # A hub that answers a long poll at once must not be asked in a tight loop.
            time.sleep(_LEAST_PAUSE_S)
        wait_s = next_s


def job_exit_code(hub: Hub, outage: Outage, job: Document) -> int:
    """A job's exit code; of one with several tasks, that of the first task that did not succeed.

    Of a gang it is that of the member by which it ended, not of those that were stopped for it.
    """
    if not is_numbered(job) or job.get("state") == "succeeded":
        return exit_code(job)
    query: dict[str, Any] = {"state": ",".join(UNSUCCESSFUL), "limit": 1}
    path, found = job_path(str(job["id"]), "/tasks"), job
    while True:
        page = outage.ride_out(partial(hub.get, path, query))
        tasks = sorted(page.get("tasks") or [], key=lambda task: task.get("index", 0))
        culprit = next((task for task in tasks if task.get("exit_class") != STOPPED_FOR_GANG), None)
        if found is job and tasks:
            found = tasks[0]
        if culprit is not None or not page.get("next_cursor"):
            return exit_code(culprit or found)
        query |= {"limit": _PAGE, "cursor": page["next_cursor"]}


class LogCopy:
    """The output of one task, copied in pieces; `position` is how many bytes of it have been seen."""

    def __init__(
        self,
        hub: Hub,
        job_id: str,
        query: Mapping[str, Any],
        write: Callable[[bytes], None],
        position: int = 0,
    ) -> None:
        self._hub = hub
        self._path = job_path(job_id, "/logs")
        self._query = dict(query)
        self._write = write
        self.position = position

    def copy(self, follow: bool, opened: Callable[[], None] | None = None) -> None:
        """Copy what there is beyond `position`, and what comes while the stream lasts."""
        query = {**self._query, "follow": 1 if follow else None, "skip": self.position or None}
        with self._hub.stream(self._path, query) as stream:
            if opened is not None:
                opened()
            for chunk in stream.chunks():
                self._write(chunk)
                self.position += len(chunk)


class LastLines:
    """The end of an output that is read from its beginning, since only so its length becomes known."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held = b""

    def add(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > _HELD_BYTES:
            self._held = self.text

    @property
    def text(self) -> bytes:
        return b"".join(self._held.splitlines(keepends=True)[-self._count :]) if self._count else b""


def follow_logs(copy: LogCopy, outage: Outage, ended: Callable[[], bool]) -> None:
    """Copy until the task has ended and nothing is left."""
    is_over = False
    while True:
        outage.ride_out(lambda: copy.copy(True, outage.note_presence))
        if is_over:
            return
        is_over = outage.ride_out(ended)
        if not is_over:
            time.sleep(_LEAST_PAUSE_S)


class LogThread(threading.Thread):
    """Copies beside the one who waits for the job; silent about a hub that is away, since the other one speaks."""

    def __init__(self, copy: LogCopy) -> None:
        super().__init__(daemon=True)
        self._copy = copy
        self._over = threading.Event()
        self.refusal: HubRefusal | None = None

    def run(self) -> None:
        while True:
            is_over = self._over.is_set()
            try:
                self._copy.copy(True)
                if is_over:
                    return
            except HubRefusal as refusal:
                self.refusal = refusal
                return
            except BrokenPipeError:
                # Nobody reads any more; the job goes on, and so does the wait for its exit code.
                return
            except HubUnavailable:
                pass
            self._over.wait(_LEAST_PAUSE_S)

    def finish(self, limit_s: float) -> None:
        """The task has ended: copy the rest and stop."""
        self._over.set()
        self.join(limit_s)


def read_events(chunks: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    """Server-sent events as (id, data); comments and empty events are passed over."""
    buffer, event_id = b"", ""
    data: list[str] = []
    for chunk in chunks:
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            text = line.rstrip(b"\r").decode("utf-8", "replace")
            name, _, value = text.partition(":")
            value = value.removeprefix(" ")
            if not text:
                if data:
                    yield event_id, "\n".join(data)
                data = []
            elif name == "id":
                event_id = value
            elif name == "data":
                data.append(value)
