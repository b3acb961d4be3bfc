"""The hub in a simulated world: the product's turns, commands, inbound rules, effects and recovery on a memory store.

It can stop dead between any two steps of a turn, and comes back from what was committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from dray.core.lifecycle.effects import Note
from dray.core.lifecycle.events import Clock, EpochStarted, Fact, SessionClosed, WorkerLeft
from dray.core.lifecycle.recovery import release, wake_up
from dray.core.lifecycle.rules import Rules
from dray.core.lifecycle.state import State, Touched
from dray.core.lifecycle.timers import next_due_ms
from dray.errors import StoreError
from dray.hub import commands, inbound
from dray.hub.commands import KeyMemory, Sources
from dray.hub.effect_runner import Runner
from dray.hub.projection import build_projection
from dray.hub.recovery import recover
from dray.hub.service import Caller
from dray.hub.store.base import Projection
from dray.hub.store.memory import MemoryFile, MemoryStore
from dray.hub.turns import Answer, Commit, Conductor, Decide, Decision, Deliver, Request, Step
from dray.sim.faults.network import Connection, Message
from dray.sim.faults.world import World
from dray.wire.worker_messages import WORKER_PAYLOADS, Register

USER = Caller("sim", "sim", ("admin",))


class SimSession:
    """A socket as the effect runner knows it."""

    def __init__(self, connection: Connection) -> None:
        self.number, self.connection, self.worker = connection.number, connection, ""

    def push(self, envelope: Message) -> None:
        self.connection.send_down(envelope)

    def close(self, code: int, reason: str) -> None:
        self.connection.break_off(code)


class SimSessions:
    """All sockets of one life of the hub."""

    def __init__(self) -> None:
        self.open: dict[int, SimSession] = {}


class SilentFeed:
    """Nobody reads the public feed here."""

    def publish(self, seq: int, at_ms: int, notes: Sequence[Any]) -> None:
        """Notes are checked through the log."""


class HubNode:
    """One store, and the hubs that own it one after another."""

    def __init__(self, world: World, rules: Rules) -> None:
        self.world, self.rules = world, rules
        self.file = MemoryFile()
        self.up = False
        self.life = 0
        self.slow_store = self.failing_store = False
        self.die_at_step = 0
        self.after_commit: Callable[[], None] = lambda: None
        self.after_turn: Callable[[], None] = lambda: None
        self._shift_ms = 0

    def start(self) -> None:
        """Come (back) up from what is committed."""
        if self.up:
            return
        self.life += 1
        self.store = MemoryStore(self.file)
        recovered = recover(self.store, self.rules)
        self._shift_ms = max(self._shift_ms, recovered.now_ms + 1 - self.world.now_ms)
        epoch = self.store.begin_epoch()
        self.state: State = recovered.state
        wake_up(self.state, self.clock())
        self.conductor = Conductor(self.state, recovered.seq)
        self.sessions = SimSessions()
        sessions: Any = self.sessions
        feed: Any = SilentFeed()
        self.runner = Runner(self.state, sessions, self.store, feed, self._tell, 10.0)
        self.sources = Sources(self.store, KeyMemory(), lambda: False)
        self._inbox: list[Request] = []
        self._first: list[Fact] = [EpochStarted(epoch)]
        self.busy = False
        self._timer_ms = -1
        self._projecting = False
        self._in_flight: Projection | None = None
        self._written: list[Touched] = []
        self.up = True
        self.world.tell(f"hub starts, epoch {epoch}, after turn {recovered.seq}")
        self._schedule_turn(0)

    def _tell(self, note: Note) -> None:
        self.world.tell(f"{note.type} {note.task_id or note.job_id} {note.worker} {dict(note.data)}")

    def die(self, why: str) -> None:
        """kill -9."""
        if not self.up:
            return
        self.world.tell(f"hub dies: {why}")
        self.up = False
        self.die_at_step = 0
        for session in list(self.sessions.open.values()):
            session.connection.break_off()
        self.world.at(self.world.rng.randint(50, 8000), self.start)

    def clock(self) -> Clock:
        """Hub time goes on through restarts; wall time jumps as it likes."""
        return Clock(self.world.now_ms + self._shift_ms, self.world.now_ms + self.world.wall_shift_ms)

    # --- the way in -------------------------------------------------------------------------------------------------

    def connect(self, connection: Connection) -> None:
        """Take a new socket."""
        session = SimSession(connection)
        self.sessions.open[session.number] = session
        life = self.life
        connection.to_hub = lambda _, message: self._received(life, session, message)
        connection.hub_hears_end = lambda _, code: self._closed(life, session, code)

    def post(self, decide: Decide, done: Any = None) -> None:
        """Queue a request."""
        self._inbox.append(Request(decide, done))
        self._schedule_turn(0)

    def submit(self, specs: list[dict[str, Any]], key: str, done: Any) -> None:
        """Submit as a client would, under a key."""
        checked = commands.read_specs(USER, specs, 1000)
        self.post(
            commands.submit(USER, checked, key, self.sources, lambda state, ids, created: tuple(ids)), done
        )

    def cancel(self, job_id: str, index: int | None, done: Any) -> None:
        """Cancel as a client would."""
        self.post(commands.cancel(USER, job_id, index, None, self.store, lambda state, ids, did: did), done)

    def _received(self, life: int, session: SimSession, message: Message) -> None:
        if not self.up or life != self.life:
            return
        body = msgspec.convert(message.get("payload", {}), WORKER_PAYLOADS[message["type"]])
        if isinstance(body, Register):
            session.worker = body.id
            if body.max_epoch_seen > self.state.counters.epoch:
                self._first.append(EpochStarted(self.store.begin_epoch(body.max_epoch_seen + 1)))
            self.post(
                lambda state, clock: Decision(inbound.register(state, self.store, session.number, body))
            )
        elif session.worker:
            worker, number = session.worker, session.number
            self.post(
                lambda state, clock: Decision(inbound.interpret(state, self.store, worker, number, body))
            )

    def _closed(self, life: int, session: SimSession, code: int) -> None:
        if not self.up or life != self.life:
            return
        self.sessions.open.pop(session.number, None)
        worker, number = session.worker, session.number

        def decide(state: State, clock: Clock) -> Decision:
            presence = state.presence.get(worker)
            if presence is None or presence.session != number:
                return Decision()
            events: list[Any] = [SessionClosed(worker, number)]
            return Decision([*events, WorkerLeft(worker)] if code in (1000, 1001) else events)

        if worker:
            self.post(decide)

    # --- turns ------------------------------------------------------------------------------------------------------

    def _schedule_turn(self, delay_ms: int) -> None:
        if not self.busy:
            self.busy = True
            self.world.at(delay_ms, self._turn, self.life)

    def _turn(self, life: int) -> None:
        if not self.up or life != self.life:
            return
        requests, self._inbox = self._inbox[:64], self._inbox[64:]
        first, self._first = self._first, []
        self._go_on(life, self.conductor.turn(requests, first, self.clock()))

    def _go_on(self, life: int, steps: Iterator[Step]) -> None:
        if not self.up or life != self.life:
            return
        for step in steps:
            if self._dies_here():
                return
            if isinstance(step, Commit):
                delay = self.world.rng.randint(100, 2000) if self.slow_store else self.world.rng.randint(0, 3)
                self.world.at(delay, self._committed, life, step, steps)
                return
            if isinstance(step, Deliver):
                self.runner.run(step.effects, self.conductor.seq, self.clock())
            elif isinstance(step, Answer):
                step.give()
        self._turn_over()

    def _committed(self, life: int, step: Commit, steps: Iterator[Step]) -> None:
        if not self.up or life != self.life:
            return
        if self._dies_here():
            return
        try:
            if self.failing_store:
                raise StoreError("the disk said no")
            self.store.commit(step.turn)
        except StoreError as failure:
            self.die(f"commit failed: {failure}")
            return
        self.after_commit()
        self._go_on(life, steps)

    def _dies_here(self) -> bool:
        if self.die_at_step:
            self.die_at_step -= 1
            if self.die_at_step == 0:
                self.die("between two steps of a turn")
                return True
        return False

    def _turn_over(self) -> None:
        self.busy = False
        self.after_turn()
        self._release()
        if len(self.state.touched) and not self._projecting and self.world.rng.random() < 0.3:
            self._project()
        if self._inbox or self._first or self.conductor.cut:
            self._schedule_turn(0)
        self._arm_timer()

    def _arm_timer(self) -> None:
        due_ms = next_due_ms(self.state)
        if due_ms is None:
            return
        when = due_ms - self._shift_ms
        if self._timer_ms < self.world.now_ms or when < self._timer_ms:
            self._timer_ms = max(when, self.world.now_ms)
            self.world.at(when - self.world.now_ms, self._timer, self.life)

    def _timer(self, life: int) -> None:
        if self.up and life == self.life:
            self._timer_ms = -1
            self._schedule_turn(0)

    # --- rows -------------------------------------------------------------------------------------------------------

    def _project(self) -> None:
        self._release()
        touched, self.state.touched = self.state.touched, Touched()
        projection = build_projection(self.state, touched, self.conductor.seq, self.clock())
        self._projecting = True
        self._in_flight = projection
        self.world.at(self.world.rng.randint(0, 60), self._projected, self.life, projection, touched)

    def _projected(self, life: int, projection: Projection, touched: Touched) -> None:
        if not self.up or life != self.life:
            return
        self.store.project(projection)
        self._projecting, self._in_flight = False, None
        self._written.append(touched)
        if not self.busy:
            self._release()

    def _release(self) -> None:
        """As the projector does: let go of what is written and was not touched again."""
        for touched in self._written:
            again = self.state.touched
            jobs = [key for key in touched.jobs if key not in again.jobs]
            tasks = [key for key in touched.tasks if key not in again.tasks]
            release(self.state, jobs, tasks, [uid for uid in touched.attempts if uid not in again.attempts])
        self._written.clear()

    def flush(self) -> None:
        """Write every row now (at the end of a history)."""
        if self._in_flight is not None:
            self.store.project(self._in_flight)
        projection = build_projection(self.state, self.state.touched, self.conductor.seq, self.clock())
        self.store.project(projection)
