"""The blocking face: `Hub` and `Job`, for scripts and notebooks. A thin layer over the async one.

One loop runs in a thread of its own, so that it works the same whether or not the caller is inside a running event
loop. A process made by fork has none of its parent's threads: there the face starts afresh at its first call.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, overload

from dray.client.calls.functions import bare_function
from dray.client.calls.maps import WINDOW, MapResults
from dray.client.calls.recipes import split_keywords
from dray.client.calls.recorded import Recorded, open_recorded, read_value
from dray.client.display.html import draw_hub
from dray.client.display.live import Picture, Shown
from dray.client.faces.async_hub import AsyncHub, AsyncJob, Command
from dray.client.faces.default_hub import default_hub
from dray.client.faces.endpoint import Endpoint
from dray.client.faces.job import Job, is_array, is_functions
from dray.client.faces.leases import Lease
from dray.client.faces.workload import Workload, attach
from dray.client.futures.futures import CallFuture
from dray.client.futures.loop_thread import LoopThread
from dray.client.futures.status import Status
from dray.client.reach.discovery import find_silent, settle_config
from dray.config import ClientConfig
from dray.errors import DrayError, InvalidInput
from dray.functions.values import UnsafeValue

AnyJob = Job | CallFuture[Any] | str


class Hub(Shown):
    """A hub. `connect()` makes one; it is also a context manager."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self._lock = threading.Lock()
        self._pid = 0
        self._thread: LoopThread | None = None
        self._hub: AsyncHub | None = None
        self._lease: Lease | None = None
        self._call("ping")

    @property
    def closed(self) -> bool:
        """Whether `close` was called since it was last used."""
        return self._hub is None

    def __repr__(self) -> str:
        return f"Hub({self.config.hub or str(self.config.home)!r})"

    def _picture(self) -> Picture:
        if self.closed:
            raise RuntimeError("closed; it opens again when it is used")
        return Picture(
            draw_hub(self.config.hub or str(self.config.home), self.overview(), self.jobs(limit=8)), True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the channel and its thread; jobs go on."""
        with self._lock:
            thread, hub, self._thread, self._hub = self._thread, self._hub, None, None
            if self._lease is not None:
                self._lease.cancel()
            if thread is not None and hub is not None and self._pid == os.getpid():
                thread.call(hub.close())
                thread.stop()

    def settle(self) -> None:
        """Have all calls recorded that were submitted, and let their arrays end; done by itself at the end."""
        if not self.closed and self._pid == os.getpid():
            self._call("settle")

    @overload
    def submit(self, work: Command | None = None, /, **given: Any) -> Job: ...
    @overload
    def submit(self, work: Callable[..., Any], /, *args: Any, **given: Any) -> CallFuture[Any]: ...
    def submit(
        self, work: Command | Callable[..., Any] | None = None, /, *args: Any, **given: Any
    ) -> Job | CallFuture[Any]:
        """Submit a function and its arguments, or a command as a list of words, or a spec as a mapping, or a template
        by its name and values for its parameters: `template="torchrun", params={"script": "train.py"}`.

        Keywords say what the work needs (`cpus=2, gpus=1, memory="8g", scheduling_timeout=300`); all others go to the
        function.
        """
        if callable(work):
            if not given:
                return self.submit_plain(work, args, {}, {})
            terms, kwargs = split_keywords(bare_function(work)[0], given)
            return self.submit_plain(work, args, kwargs, terms)
        if args:
            raise InvalidInput("a command takes no arguments of its own: make them words of the command")
        return self._job(self._call("submit", work, **given))

    def submit_task(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallFuture[Any]:
        """Submit what `@dray.task` made: all keywords go to the function."""
        return self.submit_plain(task.__wrapped__, args, kwargs, task.__dray_terms__)

    def submit_plain(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        terms: Mapping[str, Any],
        owner: Any = None,
        limit: int = 0,
    ) -> CallFuture[Any]:
        """Submit a call whose keywords are told apart already. Calls of one `owner` have arrays of their own."""
        future = self._opened()[1].functions.submit(function, args, kwargs, terms, owner, limit)
        future.lease = self._lease
        return future

    def end_owner(self, owner: Any) -> None:
        """Let the arrays of an owner end: no further calls come."""
        if not self.closed:
            self._opened()[1].functions.desk.close_owner(owner)

    def map(
        self,
        function: Callable[..., Any],
        /,
        *iterables: Iterable[Any],
        ordered: bool = True,
        return_exceptions: bool = False,
        timeout: float | None = None,
        progress: bool | None = None,
        limit: int = 0,
        total: int | None = None,
        window: int | None = None,
        **terms: Any,
    ) -> MapResults[Any]:
        """Call a function once per item, as one array job; yields results in order, or as they come.

        The work begins at once. `limit` caps how many run at the same time; `timeout` is for all of the results;
        `window` caps how many are in flight; `total` tells the bar what the input itself does not.
        """
        results = self._opened()[1].functions.map(
            function,
            iterables,
            terms,
            progress,
            total,
            window=window or WINDOW,
            ordered=ordered,
            return_exceptions=return_exceptions,
            timeout=timeout,
            limit=limit,
        )
        results.lease = self._lease
        return results

    def workload(self, name: str, *, start: bool = True, **terms: Any) -> Workload:
        """A campaign of jobs under one name, made where it is not there: `width`, `budget`, `deadline`, `failures`.

        `with` it: leaving the block seals it.
        """
        self._opened()
        return attach(self, name, start, terms)

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
    def wait(  # type: ignore[overload-overlap]  # a text is a sequence of texts, and means an id here
        self, job: AnyJob, timeout: float | None = None
    ) -> Status: ...
    @overload
    def wait(self, job: Sequence[AnyJob], timeout: float | None = None) -> list[Status]: ...
    def wait(self, job: AnyJob | Sequence[AnyJob], timeout: float | None = None) -> Status | list[Status]:
        """Wait for a job's end, or for several. Raises `TimeoutError`; jobs go on."""
        if isinstance(job, (Job, CallFuture, str)):
            return self._wait_one(job, timeout)
        ends_at = None if timeout is None else time.monotonic() + timeout
        return [
            self._wait_one(one, None if ends_at is None else max(0.0, ends_at - time.monotonic()))
            for one in job
        ]

    def _wait_one(self, job: AnyJob, timeout: float | None) -> Status:
        future = Job(self, job) if isinstance(job, str) else job
        if not future.ends_within(timeout):
            raise TimeoutError(f"job {future.id} has not ended within {timeout or 0:g} s; it goes on")
        if isinstance(future, CallFuture):
            return future.status()
        status: Status = self._call("await_end", future.id)
        return status

    def watch_end(self, job: Job) -> None:
        """Let a job's handle hear of the job's end."""
        thread, hub = self._opened()
        thread.spawn(_tell_end(hub, job))

    def results(self, job: AnyJob, timeout: float | None = None, trust: bool = False) -> Any:
        """What a job gave once it has ended: a function's value or values, a command's status.

        Opening a value runs what is in it: those of another user's job only with `trust`.
        """
        status = self._wait_one(job, timeout)
        task_id = _id_of(job)
        whole = self.status(task_id.partition("/")[0]) if "/" in task_id else status
        if not is_functions(whole):
            return status
        if not trust:
            self.check_own(task_id, str(whole.get("user") or ""))
        rows = self._call("recorded", task_id)
        blobs = self._opened()[1].functions.blobs
        if not rows and not status.ok:
            return status
        if "/" in task_id or not is_array(status):
            return open_recorded(rows[0], blobs) if rows else status
        return [open_recorded(row, blobs) for row in rows]

    def check_own(self, job_id: str, user: str) -> None:
        """Refuse to open values of somebody else's job."""
        own = self._call("user")
        if user != own:
            raise UnsafeValue(
                f"{job_id} is a job of {user} and you are {own}: opening a value runs what is in it, with your rights. "
                "Say trust=True if you trust them with that, or take the bytes unopened (hub.recorded)"
            )

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

    def serve(
        self,
        work: Command | Callable[..., Any] | None = None,
        /,
        *,
        replicas: int | None = None,
        **given: Any,
    ) -> Job:
        """Start a service: a command that goes on, and is started again whenever it ends, until it is cancelled.

        Or a function, which is given its port where it takes an argument, and finds it in DRAY_PORT: it serves there
        until it returns. Or `template="tensorboard", params={…}`. Keywords are those of `submit`; by `name` it is found
        again.
        """
        return self._job(self._call("serve", work, replicas=replicas, **given))

    def scale(self, service: AnyJob, replicas: int) -> dict[str, Any]:
        """Give a service, by its job or its name, another number of replicas; gives how it stands then."""
        answer: dict[str, Any] = self._call("scale", _id_of(service), replicas)
        return answer

    def share(self, service: AnyJob, *users: str) -> dict[str, Any]:
        """Let users reach a service, by its job or its name; "everybody" is a word for all. They can change nothing."""
        answer: dict[str, Any] = self._call("share", _id_of(service), *users)
        return answer

    def unshare(self, service: AnyJob, *users: str) -> dict[str, Any]:
        """Let users reach a service no longer; what they have open to it ends."""
        answer: dict[str, Any] = self._call("unshare", _id_of(service), *users)
        return answer

    def show_service(self, service: AnyJob) -> dict[str, Any]:
        """A service with its replicas and revisions, and how far an update of it has come (`update`)."""
        answer: dict[str, Any] = self._call("show_service", _id_of(service))
        return answer

    def update_service(
        self, service: AnyJob, command: Command | None = None, /, **terms: Any
    ) -> dict[str, Any]:
        """Let a service run by another spec, with the keywords of `submit`; None takes one back to its default.

        Its replicas are replaced one by one, start then stop; gives how it stands then.
        """
        answer: dict[str, Any] = self._call("update_service", _id_of(service), command, **terms)
        return answer

    def rollback_service(self, service: AnyJob, to: int | None = None) -> dict[str, Any]:
        """Give an update up, or go back to an earlier revision: the last that was whole, or `to`."""
        answer: dict[str, Any] = self._call("rollback_service", _id_of(service), to)
        return answer

    def endpoints(self, service: AnyJob) -> list[dict[str, Any]]:
        """Where the ready replicas of a service answer: worker, address and ports of each."""
        found: list[dict[str, Any]] = self._call("endpoints", _id_of(service))
        return found

    def endpoint(self, service: AnyJob) -> Endpoint:
        """Where a service is reached through the hub: its `url`, and the `headers` that let a request in."""
        found: Endpoint = self._call("endpoint", _id_of(service))
        return found

    def requeue_failed(self, job: AnyJob) -> Job | None:
        """Run those tasks of a job again that did not succeed, as a new job; None where there are none."""
        made = self._call("requeue_failed", _id_of(job))
        return None if made is None else self._job(made)

    def act(self, action: str, ids: Sequence[AnyJob] = (), **which: Any) -> dict[str, Any]:
        """Cancel, hold, release or requeue many jobs at once: those that live and are all of what is given.

        `states`, `user`, `queue`, `name` (with `*` and `?`), `labels`, or `all=True`; `dry_run=True` only counts them.
        The answer has `count`, `states`, `users`, and `unchanged` with the reasons.
        """
        answer: dict[str, Any] = self._call("act", action, [_id_of(job) for job in ids], **which)
        return answer

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

    def alarms(self) -> list[dict[str, Any]]:
        """What is wrong now, by the alarms of the policy, longest first."""
        found: list[dict[str, Any]] = self._call("alarms")
        return found

    def usage(self, by: str = "user", since: float | str = "7d", limit: int = 100) -> dict[str, Any]:
        """GPU-hours and core-hours asked, held and used since so long ago, by user, queue, plugin, template, name or
        job.
        """
        found: dict[str, Any] = self._call("usage", by, since, limit)
        return found

    def idle_gpus(self, limit: int = 100) -> list[dict[str, Any]]:
        """Cards that are held and idle now, longest first; one that nobody can look at is not among them."""
        found: list[dict[str, Any]] = self._call("idle_gpus", limit)
        return found

    def notifications(
        self, job: AnyJob | None = None, states: Sequence[str] = (), limit: int = 100
    ) -> list[dict[str, Any]]:
        """Who was told of what, newest first, and how that ended: of one job, or of all that are yours."""
        found: list[dict[str, Any]] = self._call(
            "notifications", None if job is None else _id_of(job), states, limit
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

    def recorded_pages(self, job: AnyJob) -> Iterator[list[Recorded]]:
        """The same as `recorded`, as it is read: for jobs whose results nobody wants to hold all at once."""
        first: int | None = 0
        while first is not None:
            rows, first = self._call("recorded_page", _id_of(job), first)
            yield rows

    def open_recorded(self, row: Recorded) -> Any:
        """The value of a recorded call; raises what it raised. Whose job it is is for the caller to know."""
        return open_recorded(row, self._opened()[1].functions.blobs)

    def load_recorded(self, row: Recorded) -> Recorded:
        """The same row with its packed value in it, also where that is a large one."""
        return row._replace(value=read_value(row, self._opened()[1].functions.blobs))

    def recorded(self, job: AnyJob) -> list[Recorded]:
        """What is recorded of a function's job so far, one row per call that has ended; values stay packed."""
        rows: list[Recorded] = self._call("recorded", _id_of(job))
        return rows

    def ping(self) -> dict[str, Any]:
        """The hub's version and epoch."""
        answer: dict[str, Any] = self._call("ping")
        return answer

    def workers(self) -> list[dict[str, Any]]:
        """The machines that the hub knows: id, status, slots, what they have."""
        found: list[dict[str, Any]] = self._call("workers")
        return found

    def overview(self) -> dict[str, Any]:
        """The cluster at a glance: workers by state, slots and GPUs in use of all, who holds how much."""
        answer: dict[str, Any] = self._call("overview")
        return answer

    def drain_worker(self, name: str, reason: str = "", until: str = "") -> dict[str, Any]:
        """Give a worker no new work; `until` is a moment (RFC 3339) or a span such as `2h`."""
        return self._call_worker("drain_worker", name, reason, until)

    def resume_worker(self, name: str) -> dict[str, Any]:
        """Give a drained worker work again."""
        return self._call_worker("resume_worker", name)

    def label_worker(self, name: str, labels: Mapping[str, str | None]) -> dict[str, Any]:
        """Give a worker labels, before its own; None takes a given one back."""
        return self._call_worker("label_worker", name, labels)

    def remove_worker(self, name: str, force: bool = False) -> dict[str, Any]:
        """Forget a worker that is gone for good; `force`: what it may still run is given up."""
        return self._call_worker("remove_worker", name, force)

    def _call_worker(self, method: str, *given: Any) -> dict[str, Any]:
        document: dict[str, Any] = self._call(method, *given)
        return document

    def slots(self) -> int:
        """How many tasks the workers that are here can run at once."""
        here = (worker for worker in self.workers() if worker.get("status") in ("ready", "busy"))
        return sum(int(worker.get("total_slots", 0)) for worker in here)

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
                self._lease = Lease(thread, hub)
            return self._thread, self._hub


def connect(
    hub: str = "",
    token: str = "",
    home: str | os.PathLike[str] | None = None,
    fingerprint: str = "",
    cafile: str | os.PathLike[str] | None = None,
    safe_results: str = "",
) -> Hub:
    """The hub named here, by DRAY_HUB, or running on this machine; else a private one, which ends with the program.

    Where `hub` or `home` is given, only that one is meant: `HubUnavailable` says what to do where it is not there.
    `safe_results="json"` opens results that are plain data and refuses all others: workers then run no code here.
    """
    given = (hub, token, home, fingerprint, cafile, safe_results)
    if os.environ.get("DRAY_IN_CALL") and not any(given):
        # A runner makes thousands of calls: they share one connection for as long as they are of one job.
        return default_hub()
    return dial_hub(*given)


def dial_hub(
    hub: str = "",
    token: str = "",
    home: str | os.PathLike[str] | None = None,
    fingerprint: str = "",
    cafile: str | os.PathLike[str] | None = None,
    safe_results: str = "",
) -> Hub:
    """As `connect`, always with a connection of its own."""
    flags = {
        "hub": hub or None,
        "token": token or None,
        "fingerprint": fingerprint or None,
        "cafile": os.fspath(cafile) if cafile is not None else None,
        "safe_results": safe_results or None,
    }
    config = settle_config(os.fspath(home) if home is not None else None, **flags)
    if home is None and not config.hub and (silent := find_silent(config.home)) is not None:
        from dray.client.faces.private_hub import private_home

        config = settle_config(private_home(config.home if silent else None, silent), **flags)
    return Hub(config)


async def _open(config: ClientConfig) -> AsyncHub:
    return await AsyncHub(config).open()


async def _tell_end(hub: AsyncHub, job: Job) -> None:
    try:
        job.settle(await hub.await_end(job.id))
    except DrayError as fault:
        job.refuse(fault)


def _id_of(job: AnyJob) -> str:
    return job if isinstance(job, str) else job.id
