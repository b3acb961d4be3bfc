"""What is answered about services, and the changes that are made of them. A restart of one replica is
a requeue, a stop a cancel."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.errors import NotFound
from dray.hub.access.caller import Caller
from dray.hub.access.passes import LINK_FIELD, LINK_S, Passes
from dray.hub.answers.answers import Answers
from dray.hub.calls.snapshots import refs_of
from dray.hub.documents.records import Document
from dray.hub.documents.services import endpoints_document, service_document, shared_document
from dray.hub.engine.engine import Engine
from dray.hub.engine.turns import Decision
from dray.hub.serving import decisions
from dray.hub.serving.finding import find_reachable, find_service, living_services

# What a host may be called in every resolver and browser.
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def _finish(state: State, job: Job, note: str) -> Document:
    return service_document(state, job) | {"note": note}


class ServiceAnswers:
    """One hub's."""

    def __init__(self, answers: Answers, engine: Engine, passes: Passes, domain: str) -> None:
        self._answers, self._engine, self._passes, self._domain = answers, engine, passes, domain

    async def list(self, caller: Caller) -> Document:
        def look(state: State) -> Document:
            found = living_services(state, caller)
            return {"services": [self._draw(state, job, caller, False) for job in found]}

        return await self._engine.ask(look)

    async def show(self, caller: Caller, name: str) -> Document:
        return await self._look(caller, name, lambda state, job: self._draw(state, job, caller))

    def _draw(self, state: State, job: Job, caller: Caller, whole: bool = True) -> Document:
        document = service_document(state, job, whole)
        return document if caller.sees(job.user) else shared_document(document)

    async def endpoints(self, caller: Caller, name: str) -> Document:
        return await self._look(
            caller, name, lambda state, job: endpoints_document(state, job, caller.sees(job.user))
        )

    async def _look(self, caller: Caller, name: str, draw: Callable[[State, Job], Document]) -> Document:
        return await self._engine.ask(lambda state: draw(state, find_reachable(state, caller, name)))

    async def link(self, caller: Caller, name: str) -> Document:
        """A way in for a browser, good once: at a host of the service's own, where there is a domain for them."""
        job = await self._engine.ask(lambda state: find_reachable(state, caller, name))
        word = self._passes.make_link(caller, job.id)
        own = job.user == caller.user and name != job.id
        label = job.name if own and job.name and _LABEL.fullmatch(job.name) else job.id
        path = "/" if self._domain else f"/proxy/{quote(label)}/"
        return {
            "service": job.name or job.id,
            "id": job.id,
            "host": f"{label}.{self._domain}" if self._domain else "",
            "path": f"{path}?{LINK_FIELD}={word}",
            "expires_in_s": LINK_S,
        }

    async def scale(self, caller: Caller, name: str, replicas: int) -> Document:
        decide = decisions.scale(caller, name, replicas, self._answers.sources.low_space, _finish)
        answer: Document = await self._engine.change(decide, 1, caller.user, (name, replicas), "scale")
        return answer

    async def share(self, caller: Caller, name: str, add: Sequence[str], remove: Sequence[str]) -> Document:
        """Let users reach a service, or no longer; what they have open to it ends."""

        def finish(state: State, job_id: str, note: str) -> Document:
            return service_document(state, state.jobs[job_id]) | {"note": note}

        calls, low_space = self._answers.calls, self._answers.sources.low_space
        decide = decisions.share(caller, name, add, remove, calls, low_space, finish)
        answer: Document = await self._engine.change(decide, 1, caller.user, (name, add, remove), "share")
        return answer

    async def update(self, caller: Caller, name: str, changes: Mapping[str, Any], whole: bool) -> Document:
        low_space = self._answers.sources.low_space
        decide = decisions.update(caller, name, changes, whole, low_space, _finish)
        tree, built = str(changes.get("snapshot_id") or ""), str(changes.get("environment") or "")
        snapshots, named = self._answers.snapshots, list(filter(None, (tree, built)))
        holds = await snapshots.settle(caller, named) if snapshots and named else {}

        def decide_holding(state: State, clock: Clock) -> Decision:
            made = decide(state, clock)
            if not holds or not made.events:
                return made
            refs = refs_of(find_service(state, caller, name).id, tree, built, holds)
            return made._replace(events=[*made.events, *refs])

        answer: Document = await self._engine.change(
            decide_holding, 1, caller.user, (name, changes), "update"
        )
        self._answers.note_snapshots(holds)
        return answer

    async def rollback(self, caller: Caller, name: str, to: int | None) -> Document:
        decide = decisions.rollback(caller, name, to, _finish)
        answer: Document = await self._engine.change(decide, 1, caller.user, (name, to), "rollback")
        return answer

    async def restart(self, caller: Caller, name: str, replica: int | None, at_once: bool) -> Document:
        if replica is None and not at_once:
            decide = decisions.restart(caller, name, self._answers.sources.low_space, _finish)
            answer: Document = await self._engine.change(decide, 1, caller.user, (name,), "restart")
            return answer
        job = await self._find(caller, name)
        note = (await self._answers.requeue(caller, job.id, replica)).get("note", "")
        return await self._told(caller, job, note)

    async def stop(self, caller: Caller, name: str, grace_s: float | None) -> Document:
        job = await self._find(caller, name)
        document = await self._answers.cancel(caller, job.id, None, grace_s)
        return {"id": job.id, "name": job.name, "state": document["state"], "note": document.get("note", "")}

    async def _find(self, caller: Caller, name: str) -> Job:
        return await self._engine.ask(lambda state: find_service(state, caller, name))

    async def _told(self, caller: Caller, job: Job, note: str) -> Document:
        def look(state: State) -> Document:
            known = state.jobs.get(job.id)
            if known is None or known.state.final:
                raise NotFound(f"service {job.name or job.id!r} was stopped meanwhile")
            return service_document(state, known) | {"note": note}

        return await self._engine.ask(look)
