"""The async face: `AsyncHub` and the handles of jobs. Everything but output goes over one channel.

Every submit carries an idempotency key of its own unless the caller names one, so that sending again after a break is
always safe.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Self, overload
from urllib.parse import quote

from dray.client.calls.desk import CallDesk
from dray.client.calls.functions import Functions, bare_function
from dray.client.calls.large_values import Blobs
from dray.client.calls.recipes import split_keywords
from dray.client.calls.recorded import Recorded, read_page, read_recorded
from dray.client.calls.terms import build_changes, build_service, build_spec
from dray.client.faces.endpoint import Endpoint, reach_through
from dray.client.faces.workload import AsyncWorkload, attach_async
from dray.client.futures.futures import CallFuture
from dray.client.futures.pausing import pause_until
from dray.client.futures.status import Status
from dray.client.reach.channel import Channel
from dray.client.reach.discovery import count_known, find_target, site_of
from dray.client.reach.snapshots import bring_all
from dray.config import ClientConfig
from dray.core.model.ids import is_name, split_task_id
from dray.core.model.records.records import JobState
from dray.core.model.specs.again import again_spec
from dray.core.model.specs.asks import is_to_bring, spell_users
from dray.core.model.units import parse_seconds
from dray.errors import InvalidInput, NotFound
from dray.functions.opening import choose_opener

Command = Sequence[str] | Mapping[str, Any]
_END = object()
_FAILED = [state.value for state in JobState if state.final and state is not JobState.SUCCEEDED]
ASK_MIN_S, ASK_MAX_S = 0.02, 1.0


class AsyncJob:
    """One submitted job. `state` is as last heard of; `created` is False where an earlier submit had made it."""

    def __init__(self, hub: AsyncHub, job_id: str, state: str, created: bool = True) -> None:
        self._hub, self.id, self.created = hub, job_id, created
        self._state = state

    def __repr__(self) -> str:
        return f"AsyncJob(id={self.id!r}, state={self._state!r})"

    async def state(self) -> JobState:
        """Ask how it stands now."""
        return (await self._hub.status(self)).state

    async def status(self) -> Status:
        return await self._hub.status(self)

    async def wait(self, timeout: float | None = None) -> Status:
        return await self._hub.wait(self, timeout)

    async def why(self) -> dict[str, Any]:
        return await self._hub.why(self)

    async def cancel(self, grace_s: float | None = None) -> bool:
        return await self._hub.cancel(self, grace_s)

    async def hold(self) -> Status:
        return await self._hub.hold(self)

    async def release(self) -> Status:
        return await self._hub.release(self)

    async def requeue(self) -> Status:
        return await self._hub.requeue(self)

    async def edit(self, **terms: Any) -> Status:
        return await self._hub.edit(self, **terms)

    def logs(self, follow: bool = False, **wanted: Any) -> AsyncIterator[bytes]:
        return self._hub.logs(self, follow=follow, **wanted)


AnyJob = AsyncJob | str


class AsyncHub:
    """A hub, from inside an event loop. Open it with `async with`, or `await open()` and `close()`."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self._channel = Channel(
            lambda: find_target(config), config.away_s, site_of(config), count_known(config)
        )
        self._functions: Functions | None = None

    async def open(self) -> Self:
        """Dial. Raises `HubUnavailable` where no hub answers."""
        await self._channel.open()
        if self._functions is None:
            wake = asyncio.get_running_loop().call_soon_threadsafe
            opener = choose_opener(self.config.safe_results)
            blobs = Blobs(lambda: find_target(self.config), wake, opener)
            self._functions = Functions(CallDesk(self._channel, blobs, self.read_logs), blobs)
        return self

    async def settle(self) -> None:
        """Have all calls recorded that were submitted, and let their arrays end; the client can be used on."""
        if self._functions is not None:
            await self._functions.desk.settle()

    async def close(self) -> None:
        if self._functions is not None:
            await self._functions.desk.close()
        await self._channel.close()

    @property
    def functions(self) -> Functions:
        """What this client does with functions; for threads other than the loop's."""
        if self._functions is None:
            raise InvalidInput("this client is not open: use it in an `async with`, or await its open()")
        return self._functions

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- jobs ---------------------------------------------------------------------------------------------------------

    @overload
    async def submit(
        self, work: Callable[..., Any], /, *args: Any, key: str | None = None, **terms: Any
    ) -> CallFuture[Any]: ...
    @overload
    async def submit(
        self, work: Command | None = None, /, *, key: str | None = None, **terms: Any
    ) -> AsyncJob: ...
    async def submit(
        self,
        work: Command | Callable[..., Any] | None = None,
        /,
        *args: Any,
        key: str | None = None,
        **terms: Any,
    ) -> AsyncJob | CallFuture[Any]:
        """Submit a function and its arguments, or a command as a list of words, or a spec as a mapping, or a template
        by its name and values for its parameters: `template="torchrun", params={"script": "train.py"}`.
        """
        if callable(work):
            wanted, kwargs = split_keywords(bare_function(work)[0], terms)
            wanted = wanted if key is None else {**wanted, "key": key}
            return await asyncio.to_thread(self.functions.submit, work, args, kwargs, wanted)
        if args:
            raise InvalidInput("a command takes no arguments of its own: make them words of the command")
        return (await self.submit_specs([build_spec(work, terms)], key))[0]

    async def workload(self, name: str, *, start: bool = True, **terms: Any) -> AsyncWorkload:
        """A campaign of jobs under one name, made where it is not there; see `Hub.workload`."""
        return await attach_async(self, name, start, terms)

    async def submit_many(
        self, commands: Sequence[Command], *, key: str | None = None, **terms: Any
    ) -> list[AsyncJob]:
        """Submit several jobs, all or none, under the same keywords."""
        return await self.submit_specs([build_spec(command, terms) for command in commands], key)

    async def submit_specs(self, specs: Sequence[dict[str, Any]], key: str | None = None) -> list[AsyncJob]:
        """Submit specs as they stand, all or none."""
        specs = await self._bring_folders(specs)
        payload = {"specs": specs, "key": key or os.urandom(16).hex()}
        answer = await self._channel.ask("submit", payload)
        created = bool(answer["created"])
        pairs = zip(answer["ids"], answer["states"], strict=True)
        return [AsyncJob(self, job_id, state, created) for job_id, state in pairs]

    async def _bring_folders(self, specs: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """Send along the folders and environments that specs name."""
        if not any(map(is_to_bring, specs)):
            return specs
        return await asyncio.to_thread(bring_all, lambda: find_target(self.config), specs)

    def job(self, job_id: str) -> AsyncJob:
        """The handle of a job that is known by its id; the hub is not asked."""
        return AsyncJob(self, job_id, "")

    async def status(self, job: AnyJob) -> Status:
        """How a job stands now, or one task of it (`JOB/INDEX`)."""
        job_id, index = split_task_id(id_of(job)) or (id_of(job), -1)
        if index >= 0:
            rows = (await self._channel.ask("tasks", {"id": job_id, "cursor": str(index), "limit": 1}))[
                "tasks"
            ]
            if not rows or rows[0].get("index", index) != index:
                raise NotFound(f"job {job_id} has no task {index}")
            return Status({"id": id_of(job), **rows[0]})
        answer = await self._channel.ask("get", {"ids": [job_id]})
        if not answer["jobs"]:
            raise NotFound(f"there is no job {job_id!r}, or it is not yours")
        return Status(answer["jobs"][0])

    async def wait(self, job: AnyJob, timeout: float | None = None) -> Status:
        """Wait for the end of a job, or of one task (`JOB/INDEX`). Raises `TimeoutError`; the job goes on."""
        ended = asyncio.ensure_future(self.await_end(job, timeout))
        try:
            await pause_until(ended)
        finally:
            ended.cancel()
        return ended.result()

    async def await_end(self, job: AnyJob, timeout: float | None = None) -> Status:
        """As `wait`, for one who listens and does not wait: inside a task the slot is kept."""
        if "/" in id_of(job):
            return await self._wait_for_task(job, timeout)
        watch = self._channel.watch(id_of(job))
        try:
            async with asyncio.timeout(timeout):
                row = await asyncio.shield(watch.ended)
        except TimeoutError:
            raise TimeoutError(f"job {id_of(job)} has not ended within {timeout:g} s; it goes on") from None
        return Status(row["document"], row.get("value", b""))

    async def _wait_for_task(self, job: AnyJob, timeout: float | None) -> Status:
        """Nobody tells of single tasks: the hub is asked, less and less often."""
        pause_s = ASK_MIN_S
        try:
            async with asyncio.timeout(timeout):
                while not (status := await self.status(job)).state.final:
                    await asyncio.sleep(pause_s)
                    pause_s = min(ASK_MAX_S, 1.5 * pause_s)
        except TimeoutError:
            raise TimeoutError(f"task {id_of(job)} has not ended within {timeout:g} s; it goes on") from None
        return status

    async def wait_all(self, jobs: Sequence[AnyJob], timeout: float | None = None) -> list[Status]:
        """Wait for several jobs; the answers are in the order asked for."""
        async with asyncio.timeout(timeout):
            return list(await asyncio.gather(*(self.wait(job) for job in jobs)))

    async def follow(self, job: AnyJob) -> AsyncIterator[dict[str, Any]]:
        """Yield a job's rows as they change; the last one holds its document."""
        watch = self._channel.watch(id_of(job))
        row = watch.row or await watch.next()
        while "document" not in row:
            yield row
            row = await watch.next()
        yield row

    async def cancel(self, job: AnyJob, grace_s: float | None = None) -> bool:
        """Ask for a job's end, or one task's (`JOB/INDEX`). False where it had ended before."""
        job_id, index = split_task_id(id_of(job)) or (id_of(job), -1)
        payload: dict[str, Any] = {"id": job_id}
        if index >= 0:
            payload["task"] = index
        if grace_s is not None:
            payload["grace_s"] = grace_s
        return "note" not in await self._channel.ask("cancel", payload)

    async def hold(self, job: AnyJob) -> Status:
        """Keep a job from starting until it is released; what runs goes on."""
        return Status(await self._channel.ask("hold", {"id": id_of(job)}))

    async def release(self, job: AnyJob) -> Status:
        """Let a held job start."""
        return Status(await self._channel.ask("release", {"id": id_of(job)}))

    async def requeue(self, job: AnyJob) -> Status:
        """Stop what runs of a job, or one task's (`JOB/INDEX`), and queue it again, free of charge."""
        job_id, index = split_task_id(id_of(job)) or (id_of(job), -1)
        payload: dict[str, Any] = {"id": job_id, **({"task": index} if index >= 0 else {})}
        return Status(await self._channel.ask("requeue", payload))

    async def serve(
        self,
        work: Command | Callable[..., Any] | None = None,
        /,
        *,
        replicas: int | None = None,
        **terms: Any,
    ) -> AsyncJob:
        """Start a service: a command that goes on, or a function that is given its port, or a template."""
        if callable(work):
            work, own = bare_function(work)
            terms = {**own, **terms}
        key = terms.pop("key", None)
        return (await self.submit_specs([build_service(work, {**terms, "replicas": replicas})], key))[0]

    async def scale(self, service: AnyJob, replicas: int) -> dict[str, Any]:
        """Give a service, by its job or its name, another number of replicas."""
        answer: dict[str, Any] = await self._channel.ask(
            "scale", {"name": id_of(service), "replicas": replicas}
        )
        return answer

    async def share(self, service: AnyJob, *users: str) -> dict[str, Any]:
        """Let users reach a service, by its job or its name; "everybody" is a word for all."""
        payload = {"name": id_of(service), "add": spell_users(users)}
        answer: dict[str, Any] = await self._channel.ask("share", payload)
        return answer

    async def unshare(self, service: AnyJob, *users: str) -> dict[str, Any]:
        """Let users reach a service no longer."""
        payload = {"name": id_of(service), "remove": spell_users(users)}
        answer: dict[str, Any] = await self._channel.ask("share", payload)
        return answer

    async def show_service(self, service: AnyJob) -> dict[str, Any]:
        """A service with its replicas and revisions, and how far an update of it has come."""
        answer: dict[str, Any] = await self._channel.ask("show_service", {"name": id_of(service)})
        return answer

    async def update_service(
        self, service: AnyJob, command: Command | None = None, **terms: Any
    ) -> dict[str, Any]:
        """Let a service run by another spec, with the keywords of `submit`; None takes one back to its default."""
        changes = build_changes(terms, 1)
        if command is not None:
            changes["command"] = build_spec(command, {})["command"]
        (changes,) = await self._bring_folders([changes])
        payload = {"name": id_of(service), "changes": changes}
        answer: dict[str, Any] = await self._channel.ask("update_service", payload)
        return answer

    async def rollback_service(self, service: AnyJob, to: int | None = None) -> dict[str, Any]:
        """Give an update up, or go back to an earlier revision: the last that was whole, or `to`."""
        answer: dict[str, Any] = await self._channel.ask(
            "rollback_service", {"name": id_of(service), "to": to}
        )
        return answer

    async def endpoints(self, service: AnyJob) -> list[dict[str, Any]]:
        """Where the ready replicas of a service answer: worker, address and ports of each."""
        found: list[dict[str, Any]] = (await self._channel.ask("endpoints", {"name": id_of(service)}))[
            "endpoints"
        ]
        return found

    async def endpoint(self, service: AnyJob) -> Endpoint:
        """Where a service is reached through the hub, by its job or its name."""
        name = id_of(service)
        found = await self._channel.ask("endpoints", {"name": name})
        return reach_through(find_target(self.config), name if is_name(name) else found["id"])

    async def requeue_failed(self, job: AnyJob) -> AsyncJob | None:
        """Run those tasks of a job again that did not succeed, as a new job; None where there are none."""
        status = await self.status(id_of(job))
        indices: list[int] | None = None
        if (status.get("spec") or {}).get("array") and status["tasks"]["total"] != 1:
            cursor, indices = "", []
            while cursor is not None:
                wanted = {"id": id_of(job), "states": _FAILED, "limit": 1000, "cursor": cursor}
                page = await self._channel.ask("tasks", wanted)
                indices += [int(task["array_index"]) for task in page["tasks"]]
                cursor = page["next_cursor"]
        if not (indices if indices is not None else status.state.value in _FAILED):
            return None
        return (await self.submit_specs([again_spec(status["spec"], indices)]))[0]

    async def act(
        self,
        action: str,
        ids: Sequence[AnyJob] = (),
        states: Sequence[str] = (),
        user: str = "",
        queue: str = "",
        name: str = "",
        labels: Mapping[str, str] | None = None,
        all: bool = False,  # noqa: A002 - the word of the command line and of the HTTP API
        dry_run: bool = False,
        grace_s: float | None = None,
    ) -> dict[str, Any]:
        """Cancel, hold, release or requeue every job that lives and is all of what is given; `dry_run` counts them."""
        payload: dict[str, Any] = {
            "action": action,
            "ids": [id_of(job) for job in ids],
            "states": list(states),
            "user": user,
            "queue": queue,
            "name": name,
            "labels": dict(labels or {}),
            "all": all,
            "dry_run": dry_run,
            "grace_s": grace_s,
        }
        answer: dict[str, Any] = await self._channel.ask("act", payload)
        return answer

    async def edit(self, job: AnyJob, **terms: Any) -> Status:
        """Change a job that waits, with the keywords of `submit`; None takes one back to its default."""
        nodes = (await self.status(job)).get("spec", {}).get("node_count", 1) if "gpus" in terms else 1
        payload = {"id": id_of(job), "changes": build_changes(terms, nodes)}
        return Status(await self._channel.ask("edit", payload))

    async def why(self, job: AnyJob) -> dict[str, Any]:
        """Why a job waits: state, summary, blockers, workers, fix."""
        answer: dict[str, Any] = await self._channel.ask("why", {"id": id_of(job)})
        return answer

    async def plan(self, command: Command, **terms: Any) -> dict[str, Any]:
        """Where a job would run; nothing is written."""
        answer: dict[str, Any] = await self._channel.ask("plan", {"spec": build_spec(command, terms)})
        return answer

    async def jobs(
        self,
        states: Sequence[str] = (),
        user: str = "",
        queue: str = "",
        name: str = "",
        labels: Mapping[str, str] | None = None,
        limit: int = 100,
    ) -> list[Status]:
        """Jobs, newest first."""
        wanted = {
            "states": list(states),
            "user": user,
            "queue": queue,
            "name": name,
            "labels": dict(labels or {}),
        }
        found: list[Status] = []
        cursor = ""
        while len(found) < limit:
            page = min(1000, limit - len(found))
            answer = await self._channel.ask("jobs", {**wanted, "limit": page, "cursor": cursor})
            found += [Status(document) for document in answer["jobs"]]
            cursor = answer["next_cursor"]
            if cursor is None:
                break
        return found

    async def preemptions(
        self, job: AnyJob | None = None, user: str = "", limit: int = 50
    ) -> list[dict[str, Any]]:
        """Receipts of preemptions, newest first: those that a job or a user made or suffered, or all."""
        wanted = {"job": "" if job is None else id_of(job), "user": user}
        return await self._pages("preemptions", wanted, limit)

    async def _pages(self, name: str, wanted: dict[str, Any], limit: int) -> list[dict[str, Any]]:
        """The entries of a list, which comes in pages."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while len(found) < limit:
            page = min(200, limit - len(found))
            answer = await self._channel.ask(name, {**wanted, "limit": page, "cursor": cursor})
            found += answer[name]
            cursor = answer["next_cursor"]
            if cursor is None:
                break
        return found

    async def alarms(self) -> list[dict[str, Any]]:
        """What is wrong now, by the alarms of the policy, longest first."""
        answer = await self._channel.ask("alarms", {})
        found: list[dict[str, Any]] = answer["alarms"]
        return found

    async def usage(self, by: str = "user", since: float | str = "7d", limit: int = 100) -> dict[str, Any]:
        """GPU-hours and core-hours asked, held and used since so long ago, by user, queue, plugin, template, name or
        job.
        """
        wanted = {"by": by, "window_s": parse_seconds(since), "limit": limit}
        answer: dict[str, Any] = await self._channel.ask("usage", wanted)
        return answer

    async def idle_gpus(self, limit: int = 100) -> list[dict[str, Any]]:
        """Cards that are held and idle now, longest first; one that nobody can look at is not among them."""
        answer = await self._channel.ask("idle", {"limit": limit})
        found: list[dict[str, Any]] = answer["idle"]
        return found

    async def notifications(
        self, job: AnyJob | None = None, states: Sequence[str] = (), limit: int = 100
    ) -> list[dict[str, Any]]:
        """Who was told of what, newest first, and how that ended: of one job, or of all that are yours."""
        wanted = {"job": "" if job is None else id_of(job), "states": list(states)}
        return await self._pages("notifications", wanted, limit)

    async def preemption(self, receipt_id: str) -> dict[str, Any]:
        """The receipt of one preemption: who, which rule, what was lost, when it comes back."""
        answer: dict[str, Any] = await self._channel.ask("preemption", {"id": receipt_id})
        return answer

    async def values(self, job: AnyJob) -> list[bytes | None]:
        """What the tasks of a job gave back, in order; None where one gave nothing."""
        values: list[bytes | None] = []
        first: int | None = 0
        while first is not None:
            answer = await self._channel.ask("values", {"id": id_of(job), "first": first})
            values += answer["values"]
            first = answer["next"]
        return values

    async def user(self) -> str:
        """Whom this client's token speaks for."""
        return str((await self.ping()).get("user", ""))

    async def recorded_page(self, job: AnyJob, first: int = 0) -> tuple[list[Recorded], int | None]:
        """A part of what `recorded` gives, and where to go on."""
        return await read_page(self._channel.ask, id_of(job), first)

    async def recorded(self, job: AnyJob) -> list[Recorded]:
        """What is recorded of a function's job, one row per call that has ended; values stay packed."""
        return await read_recorded(self._channel.ask, id_of(job))

    async def ping(self) -> dict[str, Any]:
        """The hub's version and epoch."""
        answer: dict[str, Any] = await self._channel.ask("ping", {})
        return answer

    async def workers(self) -> list[dict[str, Any]]:
        """The machines that the hub knows: id, status, slots, what they have."""
        return list((await self._ask_http("GET", "/workers"))["workers"])

    async def overview(self) -> dict[str, Any]:
        """The cluster at a glance: workers by state, slots and GPUs in use of all, who holds how much."""
        return await self._ask_http("GET", "/overview?limit=0")

    async def drain_worker(self, name: str, reason: str = "", until: str = "") -> dict[str, Any]:
        """Give a worker no new work; `until` is a moment (RFC 3339) or a span such as `2h`."""
        return await self._ask_http("POST", _worker(name, "/drain"), {"reason": reason, "until": until})

    async def resume_worker(self, name: str) -> dict[str, Any]:
        """Give a drained worker work again."""
        return await self._ask_http("POST", _worker(name, "/resume"))

    async def label_worker(self, name: str, labels: Mapping[str, str | None]) -> dict[str, Any]:
        """Give a worker labels, before its own; None takes a given one back."""
        return await self._ask_http("PATCH", _worker(name), {"labels": dict(labels)})

    async def remove_worker(self, name: str, force: bool = False) -> dict[str, Any]:
        """Forget a worker that is gone for good; `force`: what it may still run is given up."""
        return await self._ask_http("DELETE", _worker(name, "?force=true" if force else ""))

    async def _ask_http(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        from dray.client.reach.output import ask_document  # here: HTTP loads half of the mail package

        target = find_target(self.config)
        return await asyncio.to_thread(ask_document, target, self.config.timeout_s, method, path, body)

    async def logs(self, job: AnyJob, follow: bool = False, **wanted: Any) -> AsyncIterator[bytes]:
        """Yield a task's output; keywords `task`, `attempt`, `stream`, `tail`."""
        pieces = self.read_logs(job, follow=follow, **wanted)
        try:
            while (piece := await asyncio.to_thread(next, pieces, _END)) is not _END:
                yield piece  # type: ignore[misc]  # bytes: the sentinel is ruled out above
        finally:
            await asyncio.to_thread(pieces.close)  # type: ignore[attr-defined]  # a generator

    def read_logs(self, job: AnyJob, follow: bool = False, **wanted: Any) -> Iterator[bytes]:
        """The same, blocking, for those without a loop."""
        job_id, index = split_task_id(id_of(job)) or (id_of(job), -1)
        from dray.client.reach.output import read_output  # here: HTTP loads half of the mail package

        query = {"follow": follow, **({"task": index} if index >= 0 else {}), **wanted}
        return read_output(find_target(self.config), job_id, query, self.config.timeout_s)


def _worker(name: str, rest: str = "") -> str:
    return f"/workers/{quote(name, safe='')}{rest}"


def id_of(job: AsyncJob | str) -> str:
    """A handle or an id, as an id."""
    return job if isinstance(job, str) else job.id
