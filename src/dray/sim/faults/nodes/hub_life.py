"""One hub process in a simulated world: the product's turns, commands, inbound rules, effects and recovery on a
memory store.

It can stop dead between any two steps of a turn. It does not know of other hubs: a stale one goes on until the store
tells it that it lost its epoch.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from dray.core.lifecycle.recovery import release, take_touched, wake_up
from dray.core.lifecycle.state.effects import Alarm, Note
from dray.core.lifecycle.state.events import (
    Clock,
    EpochStarted,
    Fact,
    SessionClosed,
    WorkerLeft,
    unpack_facts,
)
from dray.core.lifecycle.state.state import State, Touched
from dray.core.lifecycle.timers import next_due_ms
from dray.errors import EpochLost, StoreError
from dray.hub.access.caller import Caller
from dray.hub.calls.arguments import ArgsMemory
from dray.hub.calls.assignments import LaneFeed
from dray.hub.calls.reading import CallReader
from dray.hub.decisions.commands import KeyMemory, Sources
from dray.hub.engine.inbox import Inbox
from dray.hub.engine.projection import build_projection
from dray.hub.engine.turns import Answer, Commit, Conductor, Decide, Decision, Deliver, Leaving, Request, Step
from dray.hub.housekeeping import note_lost_epoch
from dray.hub.rows import RowKey, Rows
from dray.hub.store.base import Projection, Retention, Turn
from dray.hub.workers import inbound
from dray.hub.workers.outbound import Runner
from dray.sim.faults.nodes.desk import Desk
from dray.sim.faults.nodes.site import LeasesEnd, LinksEnd, Site, Start
from dray.sim.faults.nodes.sockets import SilentFeed, SimSession, SimSessions
from dray.sim.faults.world.network import Connection, Message
from dray.wire.messages.worker import WORKER_PAYLOADS, Heartbeat, ReadyForWork, Register, WorkerMessage

HOUSEKEEPING_MS = 60_000
RELOADING = 1012
LONG_TURN_MS = 2000
READ_AGAIN_MS = 500
USER = Caller("sim", "sim", ("admin",))


class HubLife(Desk):
    """A hub from its start to its end."""

    def __init__(self, site: Site, number: int, start: Start) -> None:
        self.site, self.world, self.number = site, site.world, number
        self.up = True
        # Whether the store has lost turns that this hub still believes in.
        self.astray = False
        self.began_ms = self.steady_ms = self.world.now_ms
        self.store, self.process, self.lead, self.shift_ms = (
            start.store,
            start.process,
            start.lead,
            start.shift_ms,
        )
        self._ahead_ms = start.ahead_ms
        recovered = start.recovered
        for _, error in recovered.faults:
            # The product sets aside what it cannot fold; here it is a bug to be found.
            raise error
        self.state: State = recovered.state
        wake_up(self.state, self.clock(), f"hub {number}".encode())
        self.rows = Rows(self.state, self.store)
        self._inbox = Inbox(site.turn_work)
        self.conductor = Conductor(self.rows, max(recovered.seq, start.least_seq), self._inbox)
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
        self.heeded_ms: dict[str, int] = {}
        # Of whom something waited for a later turn when the present one began.
        self.unread: frozenset[str] = frozenset()
        self.asked: dict[int, int] = {}
        self.beats: Counter[str] = Counter()
        self.named: list[tuple[int, str, int, tuple[str, ...]]] = []
        # Whom the present turn took up from a gateway, and by which session; of which attempts it tells workers.
        self.resumed: list[tuple[str, int]] = []
        self.told_uids: set[str] = set()
        # The leader's end of links to gateways, where there are any; the last turn that what leaves may speak of.
        self.end: LinksEnd | None = None
        # The end of leases, once somebody asked for any.
        self.leases: LeasesEnd | None = None
        self._unsaid: Turn | None = None
        self.told = self.conductor.seq
        self.stop_asked_ms: dict[str, int] = {}
        self.replaced_ms = -1
        self.waits_since: dict[str, tuple[int, int]] = {}
        self.drained_ms: dict[str, tuple[int, int]] = {}
        self.turn_ms = self.world.now_ms
        self.policy_then = self.state.policy
        self._knocks: list[tuple[SimSession, int]] = []
        self.braked_ms = -1
        self._first: list[Fact] = [EpochStarted(start.epoch)]
        self._epoch_wanted = 0
        self.busy = False
        self._timer_ms = -1
        self._projecting = False
        self._in_flight: Projection | None = None
        self._written: list[Touched] = []
        if self.lead is not None:
            self.lead.lost, self.lead.hub_now = self._fall, lambda: self.clock().now_ms
        self.world.tell(f"hub {number} starts, epoch {start.epoch}, after turn {recovered.seq}")
        self._schedule_turn(0)
        self.process.at(HOUSEKEEPING_MS, self._keep_house)

    def _keep_house(self) -> None:
        """As the hub's housekeeping does; nothing here is old enough to go, but an epoch may be lost."""
        if not self.up or self.lead is not None:
            # A shared store is swept by the same rules, and says by each beat who leads.
            return
        try:
            self.store.sweep(Retention(0, 1 << 30, 0, 0, 0))
        except EpochLost:
            self.post(note_lost_epoch)
        self.process.at(HOUSEKEEPING_MS, self._keep_house)

    def _draw_ids(self, count: int) -> list[str]:
        return [f"drawn-{self.world.rng.getrandbits(60):x}" for _ in range(count)]

    def _tell(self, note: Note) -> None:
        self.world.tell(f"{note.type} {note.task_id or note.job_id} {note.worker} {dict(note.data)}")

    def die(self, why: str) -> None:
        """kill -9."""
        if self.up:
            self.world.tell(f"hub {self.number} dies: {why}")
            self._end(1006)
            self.site.ended(self)

    def step_down(self, why: str) -> None:
        """Let go of the memory, and of everybody connected; the process goes on."""
        if self.up:
            self.world.tell(f"hub {self.number} steps down: {why}")
            self._end(RELOADING)
            self.site.stepped_down(self)

    def _end(self, code: int) -> None:
        self.up = False
        for session in list(self.sessions.open.values()):
            session.break_off(code)
        if self.end is not None:
            self.end.close("this hub leads no more")
        if self.leases is not None:
            self.leases.close("this hub leads no more")

    @property
    def trusts_its_lead(self) -> bool:
        """Whether it answers: nobody else can lead."""
        return self.lead is None or self.lead.trusted

    @property
    def awake_ms(self) -> int:
        """Since when it deals with what is due: not while it is stopped, or in a turn that takes long."""
        now_ms = self.world.now_ms
        stands_still = self.process.stopped or (self.busy and now_ms - self.turn_ms > LONG_TURN_MS)
        return now_ms if stands_still else self.steady_ms

    def clock(self) -> Clock:
        """Hub time goes on through restarts; wall time jumps as it likes."""
        now_ms = self.world.now_ms
        return Clock(now_ms + self.shift_ms, now_ms + self.world.wall_shift_ms + self._ahead_ms)

    # --- the way in -------------------------------------------------------------------------------------------------

    def connect(self, connection: Connection) -> None:
        """Take a new socket."""
        session = SimSession(self, connection)
        self.sessions.open[session.number] = session
        connection.hub = self.number
        connection.to_hub = lambda _, message: self.process.run(self._received, session, message)
        connection.hub_hears_end = lambda _, code: self.process.run(self.closed, session, code)

    def post(
        self,
        decide: Decide,
        done: Any = None,
        presses: bool = False,
        wants: tuple[RowKey, ...] = (),
        who: str = "",
        weight: int = 1,
        named: tuple[str, ...] = (),
        **more: Any,
    ) -> None:
        """Queue a request; `named`: whose signs of life it brings."""
        self._inbox.add(Request(decide, done, weight, who, named, wants=wants, **more), presses)
        self._schedule_turn(0)

    def _received(self, session: SimSession, message: Message) -> None:
        if not self.up:
            return
        self.take_in(session, msgspec.convert(message.get("payload", {}), WORKER_PAYLOADS[message["type"]]))

    def take_in(self, session: SimSession, body: WorkerMessage | Register) -> None:
        """A worker has said something."""
        at_ms = self.world.now_ms
        if isinstance(body, Register):
            session.name(body)
            outdated = inbound.is_outdated(self.state, self.store.epoch, body)
            if outdated and not self._raise_epoch(body.max_epoch_seen + 1):
                return
            self.post(
                lambda state, clock: self._let_in(session, body, at_ms),
                wants=inbound.register_rows(body),
                who=body.id,
            )
        elif session.worker:
            worker, number = session.worker, session.number
            if isinstance(body, Heartbeat):
                self.beats[worker] += 1
                self.named.append((at_ms, worker, number, tuple(body.active or ())))
            early = isinstance(body, Heartbeat) and self._beat(session, body.beat)
            self.post(lambda state, clock: self._interpret(session, body, early, at_ms), who=worker)
            if isinstance(body, ReadyForWork):
                self.asked[number] = max(body.credits, self.asked.get(number, 0))
            presence = self.state.presence.get(worker)
            if presence is not None and presence.session == number:
                self.heard_ms[worker] = at_ms

    def _raise_epoch(self, wanted: int) -> bool:
        """A worker has seen a later epoch; whether this hub still leads. A shared store is asked before a turn."""
        if self.lead is not None:
            self.want_epoch(wanted)
            return True
        try:
            self._first.append(EpochStarted(self.store.raise_epoch(wanted)))
        except EpochLost as failure:
            self._fall(failure)
            return False
        return True

    def want_epoch(self, at_least: int) -> None:
        """Pass an epoch before the next turn."""
        self._epoch_wanted = max(self._epoch_wanted, at_least)
        self._schedule_turn(0)

    def _let_in(self, session: SimSession, body: Register, at_ms: int) -> Decision:
        """Its turn has come; that it spoke counts, from outside, once it was let in."""
        self._knocks.append((session, at_ms))
        self._note_heard(session.worker, at_ms)
        return Decision(inbound.register(self.rows, session.number, body, body.id))

    def _interpret(self, session: SimSession, body: WorkerMessage, answered: bool, at_ms: int) -> Decision:
        worker, number = session.worker, session.number
        self._heed(session, at_ms)
        return Decision(inbound.interpret(self.state, worker, number, body, answered=answered))

    def _heed(self, session: SimSession, at_ms: int) -> None:
        """The hub takes a sign of life in: what waits behind others' work it cannot go by when it judges silence."""
        if inbound.is_let_in(self.state, session.worker, session.number):
            self._note_heard(session.worker, at_ms)

    def _note_heard(self, worker: str, at_ms: int) -> None:
        self.heard_then[worker], self.heeded_ms[worker] = at_ms, self.world.now_ms
        self.site.heeded_ms[worker] = self.world.now_ms

    def note_far(self, worker: str, at_ms: int) -> None:
        """A gateway's word for a sign of life, taken in now."""
        self._note_heard(worker, at_ms)
        self.heard_ms[worker] = max(at_ms, self.heard_ms.get(worker, 0))

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

        self.post(decide, presses=True, who=worker)
        return True

    def _note_arrivals(self) -> None:
        for session, at_ms in self._knocks:
            presence = self.state.presence.get(session.worker)
            if presence is not None and presence.session == session.number:
                self.heard_ms[session.worker] = max(at_ms, self.heard_ms.get(session.worker, 0))
        self._knocks.clear()

    def closed(self, session: SimSession, code: int) -> None:
        """A socket has ended."""
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
            self.process.at(delay_ms, self._turn)

    def _turn(self) -> None:
        if not self.up:
            return
        if self.lead is not None and self._epoch_wanted > self.state.counters.epoch:
            wanted, self._epoch_wanted = max(self._epoch_wanted, self.store.epoch + 1), 0
            self.lead.raise_epoch(wanted, self._raised)
            return
        # What was put back has a turn of its own, at once: so a world goes on as if its rows had been there.
        requests = self.conductor.take_back() or self._inbox.take()
        self._read_for(requests)

    def _raised(self, epoch: int) -> None:
        if self.up:
            self._first.append(EpochStarted(epoch))
            self._turn()

    def _read_for(self, requests: list[Request]) -> None:
        if not self.up:
            return
        missing = self.rows.missing(key for request in requests for key in request.wants)
        if missing and self.lead is not None and not self.lead.link.sound:
            # Asked until it is answered; until then this hub decides nothing, as in a turn that takes long.
            self.steady_ms = self.world.now_ms
            self.process.at(READ_AGAIN_MS, self._read_for, requests)
            return
        if missing and self.lead is not None and not self.lead.reads_what_was_written():
            return
        self.rows.read(missing)
        self.turn_ms = self.world.now_ms
        self.policy_then = self.state.policy
        waiting = [(request.who, *(request.body or ())) for request in self._inbox]
        self.unread = frozenset(name for names in waiting for name in names)
        self.resumed.clear()
        self.told_uids.clear()
        first, self._first = self._first, []
        self._go_on(self.conductor.turn(requests, first, self.clock()))

    def _go_on(self, steps: Iterator[Step], waiting: Deliver | None = None) -> None:
        if not self.up:
            return
        for step in steps if waiting is None else itertools.chain((waiting,), steps):
            if self._dies_here():
                return
            if isinstance(step, Commit):
                self._commit(step, steps)
                return
            if isinstance(step, Deliver):
                if self.lead is not None and not self.lead.trusted:
                    # As the writer of a shared store does: nothing leaves while another hub may lead.
                    self.world.counts["waited for the lease"] += 1
                    self.lead.when_trusted(lambda late=step: self._go_on(steps, late))  # type: ignore[misc]
                    return
                if self.end is not None and self._unsaid is not None:
                    self.end.tell_turn(self._unsaid)
                self._unsaid = None
                self._deliver(step.effects)
            elif isinstance(step, Answer):
                self._answer(step)
        self._turn_over()

    def _deliver(self, effects: list[Leaving]) -> None:
        if effects:
            self.site.witness.leaves(self)
        for effect in effects:
            if isinstance(effect, Alarm):
                self.site.witness.alarmed(self, effect.text)
        self.told = self.conductor.seq
        carry_out = partial(self.runner.run, effects, self.conductor.seq, self.clock())
        carry_out() if self.end is None else self.end.inside(carry_out)

    def _answer(self, answers: Answer) -> None:
        """What one says whose turns are lost binds nobody: who asked goes on asking."""
        told = answers.answers
        if self.astray:
            # Gateways have no way to ask again: what they are told of lost turns is for them to notice.
            told = [answer for answer in told if isinstance(answer[0], asyncio.Future)]
        if told:
            self.site.witness.leaves(self)
            Answer(told).give()

    def _commit(self, step: Commit, steps: Iterator[Step]) -> None:
        self._unsaid = step.turn
        if self.lead is not None:
            self.lead.commit(step.turn, lambda: self._kept(step.turn), lambda: self._known(step.turn, steps))
            return
        slow = self.site.slow_store
        delay = self.world.rng.randint(100, 2000) if slow else self.world.rng.randint(0, 3)
        self.process.at(delay, self._committed, step, steps)

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
        self._kept(step.turn)
        self._go_on(steps)

    def _kept(self, turn: Turn) -> None:
        """A turn is durable, whether or not this hub hears of it."""
        self.site.witness.kept(self, turn)
        self.site.witness.logged(self, unpack_facts(turn.facts))
        self.site.witness.committed(self)

    def _known(self, turn: Turn, steps: Iterator[Step]) -> None:
        """This hub has heard that a turn is durable."""
        if self.up and not self._dies_here():
            self.site.noted(self, turn.seq)
            self._go_on(steps)

    def _fall(self, failure: StoreError) -> None:
        self.world.counts[f"hub ended by {failure.code}"] += 1
        if self.lead is not None:
            self.step_down(failure.message)
        else:
            self.die(f"the store failed: {failure}")

    def _dies_here(self) -> bool:
        if self.site.die_at_step:
            self.site.die_at_step -= 1
            if self.site.die_at_step == 0:
                self.die("between two steps of a turn")
                return True
        return False

    def _turn_over(self) -> None:
        self._note_arrivals()
        if self.state.braked:
            self.braked_ms = self.world.now_ms
        if self.world.now_ms - self.turn_ms > LONG_TURN_MS:
            self.steady_ms = self.world.now_ms
        if not self.astray:
            self.site.witness.turned(self)
        if self.conductor.put_back:
            self.world.counts["request put back for rows"] += 1
            self._turn()
            return
        self.busy = False
        self._release()
        if len(self.state.touched) and not self._projecting and self.world.rng.random() < 0.3:
            self._project()
        if self._inbox or self._first or self._epoch_wanted or self.conductor.cut:
            self._schedule_turn(0)
        self._arm_timer()

    def _arm_timer(self) -> None:
        due_ms = next_due_ms(self.state)
        if due_ms is None:
            return
        when = due_ms - self.shift_ms
        if self._timer_ms < self.world.now_ms or when < self._timer_ms:
            self._timer_ms = max(when, self.world.now_ms)
            self.process.at(when - self.world.now_ms, self._timer)

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
        if self.lead is not None:
            self.lead.project(projection, lambda: self._written_down(touched))
        else:
            self.process.at(self.world.rng.randint(0, 60), self._projected, projection, touched)

    def _projected(self, projection: Projection, touched: Touched) -> None:
        if not self.up:
            return
        try:
            self.store.project(projection)
        except StoreError as failure:
            self._fall(failure)
            return
        self._written_down(touched)

    def _written_down(self, touched: Touched) -> None:
        if not self.up:
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
