"""One hub process in a simulated world: the product's turns, commands, inbound rules, effects and recovery on a
memory store.

It can stop dead between any two steps of a turn. It does not know of other hubs: a stale one goes on until the store
tells it that it lost its epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec

from dray.core.lifecycle.recovery import release, take_touched, wake_up
from dray.core.lifecycle.state.effects import Alarm, Note
from dray.core.lifecycle.state.events import (
    ArrayExtended,
    Clock,
    EpochStarted,
    Fact,
    SessionClosed,
    WorkerLeft,
    unpack_facts,
)
from dray.core.lifecycle.state.state import State, Touched
from dray.core.lifecycle.state.timings import Rules
from dray.core.lifecycle.timers import next_due_ms
from dray.core.model.policies.policy import Policy
from dray.errors import DrayError, EpochLost, NotFound, StoreError
from dray.hub.access.caller import Caller
from dray.hub.calls.arguments import ArgsMemory
from dray.hub.calls.assignments import LaneFeed
from dray.hub.calls.reading import CallReader
from dray.hub.decisions import calls as call_commands
from dray.hub.decisions import commands, edits, machines
from dray.hub.decisions import policy as policy_changes
from dray.hub.decisions.commands import KeyMemory, Sources
from dray.hub.engine.inbox import Inbox
from dray.hub.engine.projection import build_projection
from dray.hub.engine.recovery import recover
from dray.hub.engine.turns import Answer, Commit, Conductor, Decide, Decision, Deliver, Leaving, Request, Step
from dray.hub.housekeeping import note_lost_epoch
from dray.hub.rows import RowKey, Rows, job_row
from dray.hub.serving import decisions as services
from dray.hub.store.base import Projection, Retention
from dray.hub.store.memory import MemoryFile, MemoryStore
from dray.hub.workers import inbound
from dray.hub.workers.frames import Departures
from dray.hub.workers.outbound import Runner
from dray.sim.faults.world.network import Connection, Message
from dray.sim.faults.world.world import World
from dray.wire.messages.client import Calls
from dray.wire.messages.worker import WORKER_PAYLOADS, Heartbeat, ReadyForWork, Register, WorkerMessage

HOUSEKEEPING_MS = 60_000
USER = Caller("sim", "sim", ("admin",))


class Witness(Protocol):
    """Whoever judges what a hub does."""

    def sent(self, life: HubLife, session: SimSession, envelope: Message) -> None: ...
    def logged(self, life: HubLife, facts: list[Fact]) -> None: ...
    def committed(self, life: HubLife) -> None: ...
    def turned(self, life: HubLife) -> None: ...
    def alarmed(self, life: HubLife, text: str) -> None: ...


class Site(Protocol):
    """What hubs on one machine share."""

    world: World
    rules: Rules
    file: MemoryFile
    slow_store: bool
    failing_store: bool
    low_space: bool
    die_at_step: int
    shift_ms: int
    turn_work: int
    witness: Witness

    def ended(self, life: HubLife) -> None: ...


class SimSession:
    """A socket as the effect runner knows it."""

    leader = ""

    def __init__(self, life: HubLife, connection: Connection) -> None:
        self.number, self.connection, self.worker = connection.number, connection, ""
        self.notes: list[str] = []
        self._life = life

    def push(self, envelope: Message) -> None:
        self._life.site.witness.sent(self._life, self, envelope)
        self.connection.send_down(envelope)

    def registered(self, incarnation: str, at_ms: int) -> None:
        """Only who may hand sockets on needs to know."""

    def close(self, code: int, reason: str) -> None:
        self.connection.break_off(code)


class SimSessions:
    """All sockets of one hub."""

    def __init__(self) -> None:
        self.open: dict[int, SimSession] = {}
        self.departures = Departures()


class SilentFeed:
    """Nobody reads the public feed here."""

    def publish(self, seq: int, at_ms: int, notes: Sequence[Any]) -> None:
        """Notes are checked through the log."""


class HubLife:
    """A hub from its start to its end."""

    def __init__(self, site: Site, number: int) -> None:
        self.site, self.world, self.number = site, site.world, number
        self.up = True
        self.began_ms = self.world.now_ms
        self.store = MemoryStore(site.file)
        # In the order of the product: what an older hub may still commit is in what is read, or nowhere.
        epoch = self.store.begin_epoch()
        recovered = recover(self.store, site.rules)
        for _, error in recovered.faults:
            # The product sets aside what it cannot fold; here it is a bug to be found.
            raise error
        site.shift_ms = max(site.shift_ms, recovered.now_ms + 1 - self.world.now_ms)
        self.state: State = recovered.state
        wake_up(self.state, self.clock(), f"hub {number}".encode())
        self.rows = Rows(self.state, self.store)
        self.conductor = Conductor(self.rows, recovered.seq)
        self.sessions = SimSessions()
        sessions: Any = self.sessions
        feed: Any = SilentFeed()
        self.args = ArgsMemory(self.store, most_bytes=400)
        lanes = LaneFeed(self.state, self.args, lambda job: "")
        self.runner = Runner(self.rows, sessions, feed, self._tell, 10.0, lanes)
        self.calls = CallReader(self.rows, lambda: self.conductor.fresh)
        self.sources = Sources(self.rows, self.calls, KeyMemory(), lambda: site.low_space, self._draw_ids)
        self.heard_ms: dict[str, int] = {}
        self.heard_then: dict[str, int] = {}
        self.asked: dict[int, int] = {}
        self.beats: Counter[str] = Counter()
        self.named: list[tuple[int, str, int, tuple[str, ...]]] = []
        self.stop_asked_ms: dict[str, int] = {}
        self.replaced_ms = -1
        self.waits_since: dict[str, tuple[int, int]] = {}
        self.drained_ms: dict[str, tuple[int, int]] = {}
        self.turn_ms = self.world.now_ms
        self._knocks: list[tuple[SimSession, int]] = []
        self.braked_ms = -1
        self._inbox = Inbox(site.turn_work)
        self._first: list[Fact] = [EpochStarted(epoch)]
        self.busy = False
        self._timer_ms = -1
        self._projecting = False
        self._in_flight: Projection | None = None
        self._written: list[Touched] = []
        self.world.tell(f"hub {number} starts, epoch {epoch}, after turn {recovered.seq}")
        self._schedule_turn(0)
        self.world.at(HOUSEKEEPING_MS, self._keep_house)

    def _keep_house(self) -> None:
        """As the hub's housekeeping does; nothing here is old enough to go, but an epoch may be lost."""
        if not self.up:
            return
        try:
            self.store.sweep(Retention(0, 1 << 30, 0, 0, 0))
        except EpochLost:
            self.post(note_lost_epoch)
        self.world.at(HOUSEKEEPING_MS, self._keep_house)

    def _draw_ids(self, count: int) -> list[str]:
        return [f"drawn-{self.world.rng.getrandbits(60):x}" for _ in range(count)]

    def _tell(self, note: Note) -> None:
        self.world.tell(f"{note.type} {note.task_id or note.job_id} {note.worker} {dict(note.data)}")

    def die(self, why: str) -> None:
        """kill -9."""
        if not self.up:
            return
        self.world.tell(f"hub {self.number} dies: {why}")
        self.up = False
        for session in list(self.sessions.open.values()):
            session.connection.break_off()
        self.site.ended(self)

    def clock(self) -> Clock:
        """Hub time goes on through restarts; wall time jumps as it likes."""
        return Clock(self.world.now_ms + self.site.shift_ms, self.world.now_ms + self.world.wall_shift_ms)

    # --- the way in -------------------------------------------------------------------------------------------------

    def connect(self, connection: Connection) -> None:
        """Take a new socket."""
        session = SimSession(self, connection)
        self.sessions.open[session.number] = session
        connection.hub = self.number
        connection.to_hub = lambda _, message: self._received(session, message)
        connection.hub_hears_end = lambda _, code: self._closed(session, code)

    def post(
        self, decide: Decide, done: Any = None, presses: bool = False, wants: tuple[RowKey, ...] = ()
    ) -> None:
        """Queue a request."""
        self._inbox.add(Request(decide, done, wants=wants), presses)
        self._schedule_turn(0)

    def submit(self, specs: list[dict[str, Any]], key: str, done: Any) -> None:
        """Submit as a client would, under a key; answers the ids, whether they are new, and the space there was."""
        checked = commands.read_specs(USER, specs, 1000, expand=dict)
        self.post(
            commands.submit(
                USER,
                checked,
                key,
                self.sources,
                lambda state, ids, created: (tuple(ids), created, self.site.low_space),
            ),
            done,
            wants=commands.submit_rows(USER, checked, key),
        )

    def cancel(self, job_id: str, index: int | None, done: Any) -> None:
        """Cancel as a client would."""
        decide = commands.cancel(USER, job_id, index, None, self.rows, lambda state, ids, did: did)
        self.post(decide, done, wants=(job_row(job_id),))

    def hold(self, job_id: str, on: bool, done: Any) -> None:
        """Hold or release as a client would."""
        decide = edits.hold(USER, job_id, on, self.rows, lambda state, job_id, note: note)
        self.post(decide, done, wants=(job_row(job_id),))

    def requeue(self, job_id: str, index: int | None, done: Any) -> None:
        """Queue again as a client would."""
        decide = edits.requeue(USER, job_id, index, self.calls, lambda state, job_id, note: note)
        self.post(decide, done, wants=(job_row(job_id),))

    def scale(self, job_id: str, replicas: int, done: Any) -> None:
        """Scale a service as a client would."""
        decide = services.scale(USER, job_id, replicas, lambda: False, lambda state, job, note: note)
        self.post(decide, done)

    def update(self, job_id: str, changes: dict[str, Any], done: Any) -> None:
        """Update a service as a client would."""
        decide = services.update(USER, job_id, changes, False, lambda: False, lambda state, job, note: note)
        self.post(decide, done)

    def rollback(self, job_id: str, to: int | None, done: Any) -> None:
        """Roll a service back as a client would."""
        self.post(services.rollback(USER, job_id, to, lambda state, job, note: note), done)

    def restart(self, job_id: str, done: Any) -> None:
        """Restart a service replica by replica, as a client would."""
        self.post(services.restart(USER, job_id, lambda: False, lambda state, job, note: note), done)

    def edit(self, job_id: str, wanted: dict[str, Any], done: Any) -> None:
        """Edit as a client would."""
        # Whoever edits has room here: what a full disk refuses is watched at submits, by the same check.
        decide = edits.edit(USER, job_id, wanted, self.calls, lambda state, job_id, note: note, lambda: False)
        self.post(decide, done, wants=(job_row(job_id),))

    def apply_policy(self, policy: Policy, done: Any) -> None:
        """Replace the policy as an operator would."""
        self.post(policy_changes.apply_policy(USER, policy, True, lambda state, change: True), done)

    def drain(self, worker: str, on: bool, until: str = "") -> None:
        """Drain or resume as an operator would."""
        self.post(machines.drain(USER, worker, on, lambda state, worker_id: None, until=until))

    def remove_worker(self, worker: str) -> None:
        """Remove a worker as an operator would; one that is here, or may run something, is left alone."""
        self.post(machines.remove(USER, worker, False, lambda state, worker_id: None))

    def add_calls(self, body: Calls, done: Any) -> None:
        """Add calls to a job as a client would; answers how many it has."""
        try:
            spec = call_commands.read_call_spec(USER, body)
        except DrayError as refusal:
            done.set_exception(refusal)
            return
        sources = call_commands.CallSources(self.sources, self.args)
        self.post(
            call_commands.add_calls(USER, body, spec, sources, self._count_calls),
            done,
            wants=(job_row(body.job), *commands.submit_rows(USER, [spec] if spec is not None else [])),
        )

    def _count_calls(self, state: State, job_id: str) -> int:
        job = self.rows.job(job_id)
        return job.total if job is not None else 0

    def extend(self, job_id: str, count: int, close: bool, done: Any) -> None:
        """Give an open array further members, or close it; what has ended stays as it is."""

        def decide(state: State, clock: Clock) -> Decision:
            job = commands.owned(USER, self.rows.job(job_id), job_id)
            if not job.open or job.state.final:
                raise NotFound(f"array {job_id} is closed")
            return Decision([ArrayExtended(job_id, count, close)], lambda after: True)

        self.post(decide, done, wants=(job_row(job_id),))

    def _received(self, session: SimSession, message: Message) -> None:
        if not self.up:
            return
        body = msgspec.convert(message.get("payload", {}), WORKER_PAYLOADS[message["type"]])
        at_ms = self.world.now_ms
        if isinstance(body, Register):
            session.worker = body.id
            if inbound.is_outdated(self.state, self.store.epoch, body):
                try:
                    raised = self.store.raise_epoch(body.max_epoch_seen + 1)
                except EpochLost as failure:
                    self._fall(failure)
                    return
                self._first.append(EpochStarted(raised))
            self.post(
                lambda state, clock: self._let_in(session, body, at_ms), wants=inbound.register_rows(body)
            )
        elif session.worker:
            worker, number = session.worker, session.number
            if isinstance(body, Heartbeat):
                self.beats[worker] += 1
                self.named.append((at_ms, worker, number, tuple(body.active or ())))
            early = isinstance(body, Heartbeat) and self._beat(session, body.beat)
            self.post(lambda state, clock: self._interpret(session, body, early, at_ms))
            if isinstance(body, ReadyForWork):
                self.asked[number] = max(body.credits, self.asked.get(number, 0))
            presence = self.state.presence.get(worker)
            if presence is not None and presence.session == number:
                self.heard_ms[worker] = at_ms

    def _let_in(self, session: SimSession, body: Register, at_ms: int) -> Decision:
        """Its turn has come; that it spoke counts, from outside, once it was let in."""
        self._knocks.append((session, at_ms))
        self.heard_then[session.worker] = at_ms
        return Decision(inbound.register(self.rows, session.number, body, body.id))

    def _interpret(self, session: SimSession, body: WorkerMessage, answered: bool, at_ms: int) -> Decision:
        worker, number = session.worker, session.number
        self._heed(session, at_ms)
        return Decision(inbound.interpret(self.state, worker, number, body, answered=answered))

    def _heed(self, session: SimSession, at_ms: int) -> None:
        """The hub takes a sign of life in: what waits behind others' work it cannot go by when it judges silence."""
        if inbound.is_let_in(self.state, session.worker, session.number):
            self.heard_then[session.worker] = at_ms

    def _beat(self, session: SimSession, beat: int) -> bool:
        """As the hub's sessions do: answer a heartbeat before bulk work that waits."""
        worker, number = session.worker, session.number
        known = self.state.workers.get(worker)
        if not self._inbox.is_behind or known is None or known.base:
            return False
        if not inbound.is_let_in(self.state, worker, number):
            return False
        self.world.counts["heartbeat answered early"] += 1
        at_ms = self.world.now_ms

        def decide(state: State, clock: Clock) -> Decision:
            self._heed(session, at_ms)
            return Decision(inbound.answer_beat(state, worker, number, beat))

        self.post(decide, presses=True)
        return True

    def _note_arrivals(self) -> None:
        for session, at_ms in self._knocks:
            presence = self.state.presence.get(session.worker)
            if presence is not None and presence.session == session.number:
                self.heard_ms[session.worker] = max(at_ms, self.heard_ms.get(session.worker, 0))
        self._knocks.clear()

    def _closed(self, session: SimSession, code: int) -> None:
        if not self.up:
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

    def hears(self, worker: str, machine: str) -> bool:
        """Whether that machine speaks for a worker now."""
        presence = self.state.presence.get(worker)
        session = self.sessions.open.get(presence.session) if presence is not None else None
        return session is not None and session.connection.owner == machine

    def _schedule_turn(self, delay_ms: int) -> None:
        if not self.busy:
            self.busy = True
            self.world.at(delay_ms, self._turn)

    def _turn(self) -> None:
        if not self.up:
            return
        # What was put back has a turn of its own, at once: so a world goes on as if its rows had been there.
        requests = self.conductor.take_back() or self._inbox.take()
        self.rows.read(self.rows.missing(key for request in requests for key in request.wants))
        self.turn_ms = self.world.now_ms
        first, self._first = self._first, []
        self._go_on(self.conductor.turn(requests, first, self.clock()))

    def _go_on(self, steps: Iterator[Step]) -> None:
        if not self.up:
            return
        for step in steps:
            if self._dies_here():
                return
            if isinstance(step, Commit):
                slow = self.site.slow_store
                delay = self.world.rng.randint(100, 2000) if slow else self.world.rng.randint(0, 3)
                self.world.at(delay, self._committed, step, steps)
                return
            if isinstance(step, Deliver):
                self._deliver(step.effects)
            elif isinstance(step, Answer):
                step.give()
        self._turn_over()

    def _deliver(self, effects: list[Leaving]) -> None:
        for effect in effects:
            if isinstance(effect, Alarm):
                self.site.witness.alarmed(self, effect.text)
        self.runner.run(effects, self.conductor.seq, self.clock())

    def _committed(self, step: Commit, steps: Iterator[Step]) -> None:
        if not self.up or self._dies_here():
            return
        try:
            if self.site.failing_store:
                raise StoreError("the disk said no")
            self.store.commit(step.turn)
        except StoreError as failure:
            self._fall(failure)
            return
        self.site.witness.logged(self, unpack_facts(step.turn.facts))
        self.site.witness.committed(self)
        self._go_on(steps)

    def _fall(self, failure: StoreError) -> None:
        self.world.counts[f"hub ended by {failure.code}"] += 1
        self.die(f"the store failed: {failure}")

    def _dies_here(self) -> bool:
        if self.site.die_at_step:
            self.site.die_at_step -= 1
            if self.site.die_at_step == 0:
                self.die("between two steps of a turn")
                return True
        return False

    def _turn_over(self) -> None:
        if self.conductor.put_back:
            self.world.counts["request put back for rows"] += 1
            self._turn()
            return
        self.busy = False
        self._note_arrivals()
        if self.state.braked:
            self.braked_ms = self.world.now_ms
        self.site.witness.turned(self)
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
        when = due_ms - self.site.shift_ms
        if self._timer_ms < self.world.now_ms or when < self._timer_ms:
            self._timer_ms = max(when, self.world.now_ms)
            self.world.at(when - self.world.now_ms, self._timer)

    def _timer(self) -> None:
        if self.up:
            self._timer_ms = -1
            self._schedule_turn(0)

    # --- rows -------------------------------------------------------------------------------------------------------

    def _project(self) -> None:
        self._release()
        touched = take_touched(self.state)
        projection = build_projection(self.state, touched, self.conductor.seq, self.clock())
        self._projecting = True
        self._in_flight = projection
        self.world.at(self.world.rng.randint(0, 60), self._projected, projection, touched)

    def _projected(self, projection: Projection, touched: Touched) -> None:
        if not self.up:
            return
        try:
            self.store.project(projection)
        except StoreError as failure:
            self._fall(failure)
            return
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
