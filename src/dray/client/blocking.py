"""The blocking face: `Hub` and `Job`, for scripts and notebooks. A thin layer over the async one.

One loop runs in a thread of its own, so that it works the same whether or not the caller is inside a running event
loop. A process made by fork has none of its parent's threads: there the face starts afresh at its first call.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar, overload

from dray.client.async_client import AsyncHub, AsyncJob, Command
from dray.client.discovery import settle_config
from dray.client.status import Status
from dray.config import ClientConfig
from dray.core.model.records import JobState

T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="dray-client", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait here; an interrupt here cancels it there."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call inside dray's own loop would wait for itself: use AsyncHub")
        running = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()


class Job:
    """One submitted job."""

    def __init__(self, hub: Hub, job_id: str, state: str = "", created: bool = True) -> None:
        self._hub, self.id, self.created = hub, job_id, created
        self._last = state

    def __repr__(self) -> str:
        return f"Job(id={self.id!r})"

    @property
    def state(self) -> JobState:
        """How it stands now; a job that has ended is not asked about again."""
        if not self._last or not JobState(self._last).final:
            self._last = self._hub.status(self).state
        return JobState(self._last)

    def status(self) -> Status:
        return self._hub.status(self)

    def wait(self, timeout: float | None = None) -> Status:
        return self._hub.wait(self, timeout)

    def why(self) -> dict[str, Any]:
        return self._hub.why(self)

    def cancel(self, grace_s: float | None = None) -> bool:
        return self._hub.cancel(self, grace_s)

    def hold(self) -> Status:
        return self._hub.hold(self)

    def release(self) -> Status:
        return self._hub.release(self)

    def requeue(self) -> Status:
        return self._hub.requeue(self)

    def edit(self, **terms: Any) -> Status:
        return self._hub.edit(self, **terms)

    def logs(self, follow: bool = False, **wanted: Any) -> Iterator[bytes]:
        return self._hub.logs(self, follow=follow, **wanted)


AnyJob = Job | str


class Hub:
    """A hub. `connect()` makes one; it is also a context manager."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self._lock = threading.Lock()
        self._pid = 0
        self._thread: LoopThread | None = None
        self._hub: AsyncHub | None = None
        self._call("ping")

    def __repr__(self) -> str:
        return f"Hub({self.config.hub or str(self.config.home)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the channel and its thread; jobs go on."""
        with self._lock:
            thread, hub, self._thread, self._hub = self._thread, self._hub, None, None
            if thread is not None and hub is not None and self._pid == os.getpid():
                thread.call(hub.close())
                thread.stop()

    def submit(self, command: Command, *, key: str | None = None, **terms: Any) -> Job:
        """Submit one job: a command as a list of words, or a spec as a mapping, and keywords."""
        return self._job(self._call("submit", command, key=key, **terms))

    def submit_many(self, commands: Sequence[Command], *, key: str | None = None, **terms: Any) -> list[Job]:
        """Submit several jobs, all or none, under the same keywords."""
        return [self._job(job) for job in self._call("submit_many", commands, key=key, **terms)]

    def job(self, job_id: str) -> Job:
        """The handle of a job that is known by its id; the hub is not asked."""
        return Job(self, job_id)

    def status(self, job: AnyJob) -> Status:
        """How a job stands now."""
        status: Status = self._call("status", _id_of(job))
        return status

    @overload
    def wait(self, job: AnyJob, timeout: float | None = None) -> Status: ...
    @overload
    def wait(self, job: Sequence[Job], timeout: float | None = None) -> list[Status]: ...
    def wait(self, job: AnyJob | Sequence[Job], timeout: float | None = None) -> Status | list[Status]:
        """Wait for a job's end, or for several. Raises `TimeoutError`; jobs go on."""
        answer: Status | list[Status]
        if isinstance(job, (Job, str)):
            answer = self._call("wait", _id_of(job), timeout)
        else:
            answer = self._call("wait_all", [_id_of(one) for one in job], timeout)
        return answer

    def cancel(self, job: AnyJob, grace_s: float | None = None) -> bool:
        """Ask for a job's end, or one task's (`JOB/INDEX`). False where it had ended before."""
        return bool(self._call("cancel", _id_of(job), grace_s))

    def hold(self, job: AnyJob) -> Status:
        """Keep a job from starting until it is released; what runs goes on."""
        status: Status = self._call("hold", _id_of(job))
        return status

    def release(self, job: AnyJob) -> Status:
        """Let a held job start."""
        status: Status = self._call("release", _id_of(job))
        return status

    def requeue(self, job: AnyJob) -> Status:
        """Stop what runs of a job, or one task's (`JOB/INDEX`), and queue it again, free of charge."""
        status: Status = self._call("requeue", _id_of(job))
        return status

    def edit(self, job: AnyJob, **terms: Any) -> Status:
        """Change a job that waits, with the keywords of `submit`; None takes one back to its default."""
        status: Status = self._call("edit", _id_of(job), **terms)
        return status

    def why(self, job: AnyJob) -> dict[str, Any]:
        """Why a job waits: state, summary, blockers, workers, fix."""
        answer: dict[str, Any] = self._call("why", _id_of(job))
        return answer

    def plan(self, command: Command, **terms: Any) -> dict[str, Any]:
        """Where a job would run; nothing is written."""
        answer: dict[str, Any] = self._call("plan", command, **terms)
        return answer

    def jobs(
        self,
        states: Sequence[str] = (),
        user: str = "",
        queue: str = "",
        name: str = "",
        labels: Mapping[str, str] | None = None,
        limit: int = 100,
    ) -> list[Status]:
        """Jobs, newest first."""
        found: list[Status] = self._call("jobs", states, user, queue, name, labels, limit)
        return found

    def preemptions(self, job: AnyJob | None = None, user: str = "", limit: int = 50) -> list[dict[str, Any]]:
        """Receipts of preemptions, newest first: those that a job or a user made or suffered, or all."""
        found: list[dict[str, Any]] = self._call(
            "preemptions", None if job is None else _id_of(job), user, limit
        )
        return found

    def preemption(self, receipt_id: str) -> dict[str, Any]:
        """The receipt of one preemption: who, which rule, what was lost, when it comes back."""
        answer: dict[str, Any] = self._call("preemption", receipt_id)
        return answer

    def values(self, job: AnyJob) -> list[bytes | None]:
        """What the tasks of a job gave back, in order; None where one gave nothing."""
        values: list[bytes | None] = self._call("values", _id_of(job))
        return values

    def ping(self) -> dict[str, Any]:
        """The hub's version and epoch."""
        answer: dict[str, Any] = self._call("ping")
        return answer

    def logs(self, job: AnyJob, follow: bool = False, **wanted: Any) -> Iterator[bytes]:
        """Yield a task's output; keywords `task`, `attempt`, `stream`, `tail`."""
        return self._opened()[1].read_logs(_id_of(job), follow=follow, **wanted)

    def _job(self, job: AsyncJob) -> Job:
        return Job(self, job.id, job._state, job.created)

    def _call(self, name: str, /, *given: Any, **named: Any) -> Any:
        thread, hub = self._opened()
        return thread.call(getattr(hub, name)(*given, **named))

    def _opened(self) -> tuple[LoopThread, AsyncHub]:
        with self._lock:
            if self._thread is None or self._hub is None or self._pid != os.getpid():
                thread = LoopThread()
                try:
                    hub = thread.call(_open(self.config))
                except BaseException:
                    thread.stop()
                    raise
                self._thread, self._hub, self._pid = thread, hub, os.getpid()
            return self._thread, self._hub


def connect(
    hub: str = "",
    token: str = "",
    home: str | os.PathLike[str] | None = None,
    fingerprint: str = "",
    cafile: str | os.PathLike[str] | None = None,
) -> Hub:
    """The hub named here, by DRAY_HUB, or running on this machine; `HubUnavailable` says what to do where none is."""
    flags = {
        "hub": hub or None,
        "token": token or None,
        "fingerprint": fingerprint or None,
        "cafile": os.fspath(cafile) if cafile is not None else None,
    }
    return Hub(settle_config(os.fspath(home) if home is not None else None, **flags))


async def _open(config: ClientConfig) -> AsyncHub:
    return await AsyncHub(config).open()


def _id_of(job: AnyJob) -> str:
    return job if isinstance(job, str) else job.id
