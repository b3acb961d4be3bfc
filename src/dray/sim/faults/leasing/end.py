"""The hub's end of leases, in the simulation: the product's `Leases`, on one life of a simulated hub.

What that needs of an engine, of sessions and tokens is here; what frames mean the life knows, as for sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from dray.core.lifecycle.state.state import State
from dray.errors import DrayError, NotReady
from dray.hub.access.caller import Caller
from dray.hub.workers.leases import Leases, LeaseSession
from dray.hub.workers.session import Session
from dray.sim.faults.gateways.loop import ProcessLoop
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.nodes.sockets import SimSession
from dray.sim.faults.world.network import Message
from dray.wire.messages.codec import Codec
from dray.wire.messages.worker import Register, worker_codec

HEARTBEAT_S = 10.0
Answered = Callable[[Any, BaseException | None], None]
Work = Callable[[Leases, Caller], Coroutine[Any, Any, Any]]


class Executor(Protocol):
    """Who asks."""

    name: str

    def speaks_freely(self, life: HubLife, for_ms: int) -> bool:
        """Whether all that it said came through for so long."""


class LeaseView:
    """An executor's session as whoever judges the hub sees it."""

    alive, plain = True, False

    def __init__(self, life: HubLife, number: int, executor: Executor) -> None:
        self._life, self._executor = life, executor
        self.number, self.owner, self.began_ms = number, executor.name, life.world.now_ms

    def undisturbed(self, for_ms: int) -> bool:
        """Whether everything got through here for so long."""
        since_ms = self._life.world.now_ms - self.began_ms
        return since_ms > for_ms and self._executor.speaks_freely(self._life, for_ms)


class LeasePeer(SimSession):
    """A session as the effect runner knows it."""

    def __init__(self, life: HubLife, session: LeaseSession, view: Any, loop: ProcessLoop) -> None:
        super().__init__(life, view)
        self.session, self._loop = session, loop

    def name(self, body: Register) -> None:
        super().name(body)
        self.session.name(body.id, tuple(body.features or ()))

    def push(self, envelope: Message) -> None:
        self._life.site.witness.sent(self._life, self, envelope)
        self._loop.inside(lambda: self.session.push(envelope))

    def close(self, code: int, reason: str) -> None:
        self._loop.inside(lambda: self.session.close(code, reason))

    def break_off(self, code: int) -> None:
        """The hub is gone, and its end of leases with it."""


class LeaseEnd:
    """Engine, sessions and tokens to `Leases`: one hub from when somebody asks it to its end."""

    def __init__(self, life: HubLife) -> None:
        self._life, self._rng = life, random.Random(f"leases at {life.number} in {life.world.seed}")  # chance
        self._loop = ProcessLoop(life.process)
        self._codec: Codec = worker_codec(True)
        self.limits, self.heartbeat_s = self, HEARTBEAT_S
        self._asking: Executor | None = None
        self._waiting: dict[asyncio.Task[Any], Answered] = {}
        parts: Any = self
        self._leases = Leases(lambda: parts, parts, parts)

    def ask(self, executor: Executor, work: Work, answered: Answered) -> Callable[[], None]:
        """Carry a call out; gives what ends it when its caller has gone."""
        caller = Caller(executor.name, "sim", ("worker",))
        tasks: list[asyncio.Task[Any]] = []

        async def carry_out() -> tuple[Any, BaseException | None]:
            self._asking = executor
            try:
                return await work(self._leases, caller), None
            except DrayError as fault:
                return None, fault

        def begin() -> None:
            task = self._loop.create_task(carry_out())
            tasks.append(task)
            self._waiting[task] = answered
            task.add_done_callback(self._ended)

        self._loop.inside(begin)

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        return lambda: self._loop.inside(cancel)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        answered = self._waiting.pop(task, None)
        if answered is None or task.cancelled():
            return
        if task.exception() is None:
            answered(*task.result())

    def close(self, why: str) -> None:
        """This hub leads no more, or is gone."""
        waiting, self._waiting = self._waiting, {}
        self._loop.kill()
        for answered in waiting.values():
            answered(None, NotReady(why))

    # --- an engine, sessions and tokens -----------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._life.state

    def begin(self, make: Callable[[int, Codec], LeaseSession]) -> LeaseSession:
        """Open a session."""
        assert self._asking is not None
        number = self._rng.getrandbits(60)
        session = make(number, self._codec)
        view = LeaseView(self._life, number, self._asking)
        self._life.sessions.open[number] = LeasePeer(self._life, session, view, self._loop)
        return session

    def leave(self, ended: Sequence[tuple[Session, int]]) -> None:
        """They are gone."""
        for session, code in ended:
            peer = self._life.sessions.open.get(session.number)
            if peer is not None:
                self._life.closed(peer, code)

    def take(self, session: Session, frame: bytes) -> bool:
        """Take a frame."""
        peer = self._life.sessions.open.get(session.number)
        if peer is not None and self._life.up:
            for envelope in session.codec.split(frame):
                if session.closing is None:
                    self._life.take_in(peer, session.codec.open(envelope))
        return True

    async def take_slowly(self, session: Session, frame: bytes) -> None:
        """As above; nobody waits for anything here."""
        self.take(session, frame)

    def hold(self, token_id: str, end: object) -> contextlib.AbstractContextManager[None]:
        """No token ends here."""
        return contextlib.nullcontext()


def end_of(life: HubLife) -> LeaseEnd:
    """The end of leases of a hub, made when somebody first asks."""
    if life.leases is None:
        life.leases = LeaseEnd(life)
        life.site.lease_ends.append(life.leases)
    assert isinstance(life.leases, LeaseEnd)
    return life.leases
