"""Reaching a service: the least busy of those that are ready, another one where that does not answer.

Owns how busy each is by what goes through this hub, who is connected to what, and the record of it. Surprising rule:
another replica is tried only where the first has certainly got nothing, which is so until its stream stands.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from dray.core.lifecycle.state.effects import Note
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.errors import Overloaded, Unreachable
from dray.hub.access.caller import Caller
from dray.hub.access.token_leases import End
from dray.hub.engine.engine import Engine
from dray.hub.engine.turns import Decision
from dray.hub.serving.finding import may_reach
from dray.hub.store.base import AuditRecord
from dray.hub.tunnels.lines import Tunnels
from dray.hub.tunnels.places import Place, Places, find_places
from dray.hub.tunnels.sockets import StreamSocket
from dray.wire.streams.frames import PortTarget, ServiceTarget, Target
from dray.wire.streams.joints import Opening
from dray.wire.streams.mux import Stream, Taker

# A worker says within ten seconds that it cannot connect.
OPENED_S = 15.0
# Who reaches the same thing again and again is written down once in so long.
NOTED_MS = 600_000
NOTED_MOST = 10_000


class Standing(NamedTuple):
    """A stream that stands, for `take` to take over. `notes`: who was asked before and did not answer."""

    stream: Stream
    place: Place
    notes: list[str]
    opening: Opening

    def take(self, taker: Taker) -> None:
        """Hear what comes, from the first byte on."""
        self.opening.hand_over(self.stream, taker)


class Visit:
    """Somebody is connected to a place, until `leave`."""

    __slots__ = ("_reacher", "caller", "end", "place")

    def __init__(self, reacher: Reacher, caller: Caller, place: Place, end: End) -> None:
        self._reacher, self.caller, self.place, self.end = reacher, caller, place, end

    def leave(self) -> None:
        self._reacher.leave(self)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *fault: object) -> None:
        self.leave()


class Reacher:
    """One hub's."""

    def __init__(self, engine: Callable[[], Engine], tunnels: Tunnels) -> None:
        self._engine, self._tunnels = engine, tunnels
        self._busy: Counter[str] = Counter()
        self._visits: dict[str, dict[Visit, None]] = {}
        self._noted: dict[tuple[str, str, str], int] = {}
        self._key = secrets.token_bytes(16)

    async def forward(self, caller: Caller, asked: ServiceTarget) -> Standing:
        """A stream to whoever answers for a service."""
        return await self.reach(await self.find(caller, asked.name, asked.port, "forward"))

    async def find(self, caller: Caller, name: str, port: str, action: str) -> Places:
        """Whoever answers for a name, on record: `action` says how it is reached."""
        found = find_places(self._engine().state, caller, name, port)
        await self._note(caller, action, found.meant.job)
        return found

    async def reach(self, found: Places) -> Standing:
        """A stream to the least busy one that answers; raises `Unreachable` with what each of them said."""
        notes: list[str] = []
        for place in self.order(found.places):
            try:
                standing = await self.stand(place, PortTarget(place.attempt, place.port))
                return standing._replace(notes=notes)
            except (Unreachable, Overloaded) as fault:
                notes.append(f"{place.task} on {place.worker} does not answer: {fault.message}")
        raise self.give_up(found, notes)

    def give_up(self, found: Places, notes: Sequence[str]) -> Unreachable:
        """What to say where none of them answers."""
        return Unreachable(f"{'; '.join(notes)}. {_advise(found)}")

    async def line(self, worker: str) -> StreamSocket:
        """The tunnel to a worker; raises `Unreachable`."""
        return await self._tunnels.line(worker)

    def visit(self, caller: Caller, place: Place, end: End) -> Visit:
        """Count a place as busy until the visit is over; `end` hears why the caller may reach it no longer."""
        visit = Visit(self, caller, place, end)
        self._visits.setdefault(place.job_id, {})[visit] = None
        self._busy[place.attempt] += 1
        # What changed while the stream was opened counts as well.
        self._check(visit)
        return visit

    def spell_caller(self, caller: Caller) -> str:
        """A word for a caller by which workers tell callers apart, and learn no more of them."""
        return blake2b(caller.token_id.encode(), key=self._key, digest_size=12).hexdigest()

    def leave(self, visit: Visit) -> None:
        """A visit is over."""
        visits, attempt = self._visits[visit.place.job_id], visit.place.attempt
        del visits[visit]
        if not visits:
            del self._visits[visit.place.job_id]
        self._busy[attempt] -= 1
        if not self._busy[attempt]:
            del self._busy[attempt]

    def hear(self, note: Note) -> None:
        """Hear of a committed note: whom a service is no longer shared with, or who uses it no longer, is cut off."""
        if note.type == "job_edited":
            for visit in [visit for visits in self._visits.values() for visit in visits]:
                self._check(visit)

    def _check(self, visit: Visit) -> None:
        state = self._engine().state
        job = state.jobs.get(visit.place.job_id)
        if job is not None and not may_reach(state, visit.caller, job):
            visit.end(f"{job.name or job.id} is no longer for {visit.caller.user} to reach")

    def order(self, places: Sequence[Place]) -> Sequence[Place]:
        """The least busy first."""
        if len(places) == 1:
            return places
        return sorted(places, key=lambda place: (self._busy[place.attempt], random.random()))

    async def stand(self, place: Place, target: Target) -> Standing:
        """Open a stream there and wait until it stands; raises `Unreachable` with why it does not."""
        opening = Opening()
        stream = await self._tunnels.connect(place.worker, target, opening)
        try:
            async with asyncio.timeout(OPENED_S):
                fault = await opening.answer
        except TimeoutError:
            fault = f"nothing came of it within {OPENED_S:g} s"
        except asyncio.CancelledError:
            stream.reset("nobody waits for it any more")
            raise
        if fault:
            stream.reset(fault)
            raise Unreachable(fault)
        return Standing(stream, place, [], opening)

    async def _note(self, caller: Caller, action: str, job: Job) -> None:
        """Write down who reaches what: the first time, and again after a while."""
        key, engine = (caller.token_id, action, job.id), self._engine()
        now_ms = engine.state.now_ms
        if (noted := self._noted.get(key)) is not None and now_ms - noted < NOTED_MS:
            return
        if len(self._noted) >= NOTED_MOST:
            self._noted.clear()
        self._noted[key] = now_ms

        def decide(state: State, clock: Clock) -> Decision:
            record = AuditRecord(clock.at_ms, caller.user, caller.token_id, action, job.id, f"of {job.user}")
            return Decision(audit=(record,))

        await engine.change(decide)


def _advise(found: Places) -> str:
    """What to look at where whoever should answer does not."""
    job, name = found.meant.job, found.meant.called
    if not job.service:
        return f"`dray logs {job.id}` shows what it printed: does it listen on $DRAY_PORT?"
    if not found.meant.own:
        return f"{job.user}, whose service it is, can see what it printed and start it anew"
    look = f"`dray service logs {name}` shows what it printed, `dray service restart {name}` starts it anew"
    if all(place.rank for place in found.places):
        return f"{look}; most servers that span machines answer at rank 0 alone, where `dray forward {name}` leads"
    return f"{look}; with a health_check nobody is sent to a replica that does not answer"
