"""Workloads in programs: a campaign of jobs with one switch, one purse, one width; blocking, and from inside a loop.

A program that asks for one by its name makes it, or goes on with the one that is there. What is submitted through it
belongs to it. The surprising rule: leaving its `with` block seals it, but not where an exception leaves: whoever runs
the program again goes on where it was.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlencode

from dray.client.reach.discovery import find_target
from dray.client.reach.output import ask_document
from dray.config import ClientConfig
from dray.errors import NotFound

if TYPE_CHECKING:
    from dray.client.calls.maps import MapResults
    from dray.client.faces.async_hub import AsyncHub
    from dray.client.faces.hub import Hub

POLL_S = 30.0
Document = dict[str, Any]


class WorkloadCalls:
    """What is asked of the hub about one workload, each a question over HTTP that blocks."""

    def __init__(self, config: ClientConfig, name: str) -> None:
        self._config, self.name = config, name

    def ask(
        self, method: str, rest: str = "", body: Any = None, extra_s: float = 0.0, **query: Any
    ) -> Document:
        """One answer about it."""
        asked = {key: value for key, value in query.items() if value not in (None, "")}
        path = f"/workloads/{quote(self.name, safe='')}{rest}" + (f"?{urlencode(asked)}" if asked else "")
        return ask_document(find_target(self._config), self._config.timeout_s + extra_s, method, path, body)

    def attach(self, terms: Mapping[str, Any], start: bool) -> Document:
        """Make it, or take the one that is there, with these terms."""
        try:
            found = self.ask("GET")
        except NotFound:
            body = {"id": self.name, "start": start, **terms}
            target, wait_s = find_target(self._config), self._config.timeout_s
            return ask_document(target, wait_s, "POST", "/workloads", body)
        return self.ask("PATCH", body=dict(terms)) if terms else found

    def wait(self, timeout: float | None) -> Document:
        """Wait until it has ended: it is sealed and its last task has ended."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = POLL_S if until is None else max(0.0, min(POLL_S, until - time.monotonic()))
            found = self.ask("GET", extra_s=left, wait_s=round(left, 3) if left else None)
            if found["ended_at"]:
                return found
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(
                    f"workload {self.name} has not ended after {timeout:g} s: it is {found['state']}"
                )


class Workload:
    """A workload of a blocking program."""

    def __init__(self, hub: Hub, name: str) -> None:
        self._hub, self.name = hub, name
        self._calls = WorkloadCalls(hub.config, name)

    def __repr__(self) -> str:
        return f"<Workload {self.name}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.seal()

    def submit(self, work: Any = None, /, *args: Any, **given: Any) -> Any:
        """As `hub.submit`, into this workload."""
        return self._hub.submit(work, *args, workload=self.name, **given)

    def map(self, function: Callable[..., Any], /, *iterables: Any, **given: Any) -> MapResults[Any]:
        """As `hub.map`, into this workload."""
        return self._hub.map(function, *iterables, workload=self.name, **given)

    def status(self) -> Document:
        """How it stands: state, counts, what it has used."""
        return self._calls.ask("GET")

    @property
    def state(self) -> str:
        """Where it stands, in a word."""
        return str(self.status()["state"])

    def start(self) -> Document:
        """Let its tasks start; also after a pause."""
        return self._calls.ask("POST", "/start")

    def pause(self, stop: bool = False) -> Document:
        """Start nothing more of it; `stop`: what runs is stopped as well and queued again."""
        return self._calls.ask("POST", "/pause", {"stop": stop})

    def scale(self, width: int) -> Document:
        """Run so many of its tasks at once."""
        return self._calls.ask("POST", "/scale", {"width": width})

    def spread(self, mode: str, **more: Any) -> Document:
        """Let its tasks lie in another way: `by`, `shares`, `max_skew`, `required`."""
        return self._calls.ask("POST", "/spread", {"mode": mode, **more})

    def edit(self, **terms: Any) -> Document:
        """Change what is said of it; None takes a field back to its default."""
        return self._calls.ask("PATCH", body=terms)

    def seal(self) -> Document:
        """Take no more jobs. Calls that are on their way are recorded first."""
        self._hub.settle()
        return self._calls.ask("POST", "/seal")

    def cancel(self, grace_s: float | None = None) -> Document:
        """Stop all of it."""
        return self._calls.ask("POST", "/cancel", {} if grace_s is None else {"grace_s": grace_s})

    def archive(self) -> Document:
        """Put it away once it has ended."""
        return self._calls.ask("POST", "/archive")

    def wait(self, timeout: float | None = None) -> Document:
        """Wait until it has ended. Raises `TimeoutError`; it goes on."""
        return self._calls.wait(timeout)


class AsyncWorkload:
    """The same from inside an event loop."""

    def __init__(self, hub: AsyncHub, name: str) -> None:
        self._hub, self.name = hub, name
        self._calls = WorkloadCalls(hub.config, name)

    def __repr__(self) -> str:
        return f"<AsyncWorkload {self.name}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.seal()

    async def submit(self, work: Any = None, /, *args: Any, **given: Any) -> Any:
        """As `hub.submit`, into this workload."""
        return await self._hub.submit(work, *args, workload=self.name, **given)

    async def ask(self, method: str, rest: str = "", body: Any = None) -> Document:
        """One answer about it, asked in a thread."""
        return await asyncio.to_thread(self._calls.ask, method, rest, body)

    async def status(self) -> Document:
        """How it stands."""
        return await self.ask("GET")

    async def start(self) -> Document:
        """Let its tasks start; also after a pause."""
        return await self.ask("POST", "/start")

    async def pause(self, stop: bool = False) -> Document:
        """Start nothing more of it; `stop`: what runs is stopped as well and queued again."""
        return await self.ask("POST", "/pause", {"stop": stop})

    async def scale(self, width: int) -> Document:
        """Run so many of its tasks at once."""
        return await self.ask("POST", "/scale", {"width": width})

    async def edit(self, **terms: Any) -> Document:
        """Change what is said of it."""
        return await self.ask("PATCH", "", terms)

    async def seal(self) -> Document:
        """Take no more jobs. Calls that are on their way are recorded first."""
        await self._hub.settle()
        return await self.ask("POST", "/seal")

    async def cancel(self, grace_s: float | None = None) -> Document:
        """Stop all of it."""
        return await self.ask("POST", "/cancel", {} if grace_s is None else {"grace_s": grace_s})

    async def wait(self, timeout: float | None = None) -> Document:
        """Wait until it has ended. Raises `TimeoutError`; it goes on."""
        return await asyncio.to_thread(self._calls.wait, timeout)


def attach(hub: Hub, name: str, start: bool, terms: Mapping[str, Any]) -> Workload:
    """The workload of a name, made where it is not there."""
    found = Workload(hub, name)
    found._calls.attach(terms, start)
    return found


async def attach_async(hub: AsyncHub, name: str, start: bool, terms: Mapping[str, Any]) -> AsyncWorkload:
    """The same from inside a loop."""
    found = AsyncWorkload(hub, name)
    await asyncio.to_thread(found._calls.attach, terms, start)
    return found
