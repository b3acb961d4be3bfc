"""One request's way to whoever answers: it is sent together with the stream that carries it, to one place at a time.

Surprising rule: the next place is tried only where the last has certainly got nothing, which its worker says by
refusing the stream. What broke before that word came may have been taken, and is not sent again. A worker of which
nothing was heard for a while is asked first, and gets the request once its stream stands: one that hangs costs time
and no requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from dray.errors import Overloaded, Unreachable
from dray.hub.access.caller import Caller
from dray.hub.tunnels.flow import Broken, Flow, Refused
from dray.hub.tunnels.places import Place, Places
from dray.hub.tunnels.reaching import OPENED_S, Reacher, Visit
from dray.wire.streams.frames import PortTarget, write_target

QUIET_S = 1.0
LOOK_S = 1.0


class Openings:
    """Streams that do not stand yet, given up after a while."""

    def __init__(self, opened_s: float = OPENED_S) -> None:
        self._opened_s = opened_s
        self._until: dict[Flow, float] = {}

    def add(self, flow: Flow) -> None:
        loop = asyncio.get_running_loop()
        if not self._until:
            loop.call_later(LOOK_S, self._look, loop)
        self._until[flow] = loop.time() + self._opened_s

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """One look at all of them a second: a timer for each would cost as much as a frame."""
        now = loop.time()
        for flow, until in list(self._until.items()):
            if flow.stream.opened or flow.stream.ended:
                del self._until[flow]
            elif until <= now:
                del self._until[flow]
                flow.break_off(f"nothing came of it within {self._opened_s:g} s")
        if self._until:
            loop.call_later(LOOK_S, self._look, loop)


class Approach:
    """Of one request. `break_off` ends it at any time, with a reason that is not the service's. `may_keep`: its
    connection may serve the caller again, where the worker can do that; `keeps` says so of the last stream.
    """

    def __init__(
        self, reacher: Reacher, openings: Openings, caller: Caller, found: Places, may_keep: bool
    ) -> None:
        self._reacher, self._openings, self._caller, self._found = reacher, openings, caller, found
        self._places: Iterator[Place] = iter(reacher.order(found.places))
        self._notes: list[str] = []
        self._visit: Visit | None = None
        self._flow: Flow | None = None
        self._broken = ""
        self._may_keep, self.keeps = may_keep, False

    async def next(self) -> Flow:
        """A stream to the next place, to be written to at once; raises `Unreachable` with what each of them said."""
        for place in self._places:
            self.leave()
            try:
                return await self._open(place)
            except Refused as fault:
                self._note(place, fault.message)
            except (Unreachable, Overloaded) as fault:
                if self._broken:
                    raise
                self._note(place, fault.message)
        raise self._reacher.give_up(self._found, self._notes)

    def refused(self, fault: Refused) -> None:
        """Take note of what the place said that was given last."""
        if self._visit is not None:
            self._note(self._visit.place, fault.message)

    def break_off(self, reason: str) -> None:
        """End it: whoever reads is told."""
        self._broken = reason
        if self._flow is not None:
            self._flow.break_off(reason)

    def leave(self) -> None:
        """The place is no longer busy with this."""
        if self._visit is not None:
            self._visit.leave()
            self._visit = None

    def _note(self, place: Place, words: str) -> None:
        self._notes.append(f"{place.task} on {place.worker} does not answer: {words}")

    async def _open(self, place: Place) -> Flow:
        line = await self._reacher.line(place.worker)
        if self._broken:
            raise Broken(self._broken)
        flow = self._flow = Flow()
        asks_first = asyncio.get_running_loop().time() - line.heard_s > QUIET_S
        self.keeps = self._may_keep and line.keeps and not asks_first
        keep_for = self._reacher.spell_caller(self._caller) if self.keeps else ""
        target = PortTarget(place.attempt, place.port, keep_for)
        flow.stream = line.mux.open(write_target(target), flow, more=not asks_first)
        self._openings.add(flow)
        # Also where it may be reached no longer since the line was asked for.
        self._visit = self._reacher.visit(self._caller, place, self.break_off)
        if asks_first:
            await self._wait(flow)
        return flow

    async def _wait(self, flow: Flow) -> None:
        try:
            stands = await flow.stand()
        except asyncio.CancelledError:
            flow.stream.reset("nobody waits for it any more")
            raise
        if not stands:
            # Raises why.
            await flow.read()
