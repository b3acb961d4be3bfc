"""One machine: an agent (the product's pure machine), a supervisor with its journal, and the processes it runs.

Agent, supervisor and host die separately. What the journal holds survives all of them; what a process does is
noted down by the world itself, so that the checker knows what truly ran.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from dray.agent.machine import Effect, Launch, Machine, Refuse, Supervise, Tell
from dray.core.model.capability import Capability
from dray.sim.faults.hub_node import HubNode
from dray.sim.faults.network import Connection, Message, Weather
from dray.sim.faults.world import World
from dray.wire.hub_messages import HUB_PAYLOADS

RESEND_MS = (1000, 2000, 4000, 8000, 16000, 30000)
HEARTBEAT_MS = 10_000
SILENCE_MS = 30_000


class Execution(msgspec.Struct):
    """User code that truly ran: the checker's own record, which no product code reads."""

    task_id: str
    uid: str
    worker: str
    began_ms: int
    ended_ms: int = -1
    outcome: str = ""


class Behaviour(NamedTuple):
    """How one run of a task goes."""

    duration_ms: int
    state: str
    exit_code: int
    heeds_term: bool


class Record(msgspec.Struct):
    """What the journal says of one attempt."""

    uid: str
    task_id: str
    meta: dict[str, Any]
    phase: str = "accepted"
    exit: dict[str, Any] | None = None
    acked: bool = False


class Process(msgspec.Struct):
    """One running task."""

    execution: Execution
    behaviour: Behaviour
    limit_ms: int | None
    grace_ms: int
    lease_ms: int | None
    renewed_ms: int
    stop: str = ""
    gone: bool = False


class Supervisor:
    """The journal and the processes. `tell` reaches the agent while one is attached."""

    def __init__(
        self, world: World, name: str, executions: list[Execution], behave: Callable[[str], Behaviour]
    ) -> None:
        self._world, self._name, self._executions, self._behave = world, name, executions, behave
        self.journal_id, self.boot_id = f"{name}-journal-1", f"{name}-boot-1"
        self.max_epoch = 0
        self.records: dict[str, Record] = {}
        self.processes: dict[str, Process] = {}
        self.life = 1
        self.alive = True
        self.tell: Callable[[dict[str, Any]], None] = lambda event: None

    def state(self) -> dict[str, Any]:
        """What a newly attached agent is told."""
        attempts = [
            {"uid": r.uid, "task_id": r.task_id, "phase": r.phase, "meta": r.meta, **(r.exit or {})}
            for r in self.records.values()
            if not r.acked
        ]
        return {
            "ev": "state",
            "journal_id": self.journal_id,
            "boot_id": self.boot_id,
            "max_epoch": self.max_epoch,
            "attempts": attempts,
        }

    def run(self, launch: Launch) -> None:
        """Journal it, start it, say both; an attempt that is known is only told of again."""
        if not self.alive:
            return
        known = self.records.get(launch.uid)
        if known is not None:
            self._repeat(known)
            return
        record = self.records[launch.uid] = Record(
            launch.uid, launch.spec.id, {"pool": launch.spec.slot_pool or "batch"}
        )
        self.tell({"ev": "accepted", "uids": [launch.uid]})
        self._world.at(self._world.rng.randint(0, 4), self._start, self.life, record, launch)

    def _repeat(self, record: Record) -> None:
        if record.phase == "exited":
            self.tell({"ev": "exited", "items": [{"uid": record.uid, **(record.exit or {})}]})
        elif record.phase == "running":
            self.tell({"ev": "started", "items": [{"uid": record.uid, "pid": 1, "started_at": 1.0}]})
        else:
            self.tell({"ev": "accepted", "uids": [record.uid]})

    def _start(self, life: int, record: Record, launch: Launch) -> None:
        if life != self.life or record.phase != "accepted":
            return
        record.phase = "running"
        execution = Execution(launch.spec.id, launch.uid, self._name, self._world.now_ms)
        self._executions.append(execution)
        limit = None if launch.limit_s is None else round(launch.limit_s * 1000)
        lease = None if launch.lease_s is None else round(launch.lease_s * 1000)
        behaviour, grace = self._behave(launch.spec.id), round(launch.grace_s * 1000)
        process = Process(execution, behaviour, limit, grace, lease, self._world.now_ms)
        self.processes[launch.uid] = process
        self.tell({"ev": "started", "items": [{"uid": launch.uid, "pid": 1, "started_at": 1.0}]})
        self._world.at(behaviour.duration_ms, self._finish, process, behaviour.state, "")
        if limit is not None:
            self._world.at(limit, self.cancel, launch.uid, "time_limit", grace)
        if lease is not None:
            self._world.at(lease, self._check_lease, process)

    def _check_lease(self, process: Process) -> None:
        if process.gone or process.lease_ms is None or not self.alive:
            return
        left = process.renewed_ms + process.lease_ms - self._world.now_ms
        if left > 0:
            self._world.at(left, self._check_lease, process)
        else:
            self._world.counts["lease ran out"] += 1
            process.stop = "lease"
            self._finish(process, "killed", "lease")

    def renew(self, age_ms: int) -> None:
        """The hub was heard so long ago."""
        for process in self.processes.values():
            process.renewed_ms = max(process.renewed_ms, self._world.now_ms - age_ms)

    def cancel(self, uid: str, reason: str, grace_ms: int) -> None:
        """TERM now, KILL after the grace; what has not started never will."""
        record = self.records.get(uid)
        if not self.alive or record is None:
            return
        process = self.processes.get(uid)
        if record.phase == "accepted":
            self._record_exit(record, _stopped(reason))
        elif process is not None and not process.gone and not process.stop:
            process.stop = reason
            delay = self._world.rng.randint(1, 500) if process.behaviour.heeds_term else max(grace_ms, 0)
            self._world.at(min(delay, max(grace_ms, 0)), self._finish, process, "killed", reason)
        elif record.phase == "exited":
            self._repeat(record)

    def _finish(self, process: Process, state: str, reason: str) -> None:
        if process.gone or (process.stop and not reason):
            return
        process.gone = True
        execution = process.execution
        execution.ended_ms, execution.outcome = self._world.now_ms, state if not reason else "killed"
        if not self.alive:
            return
        record = self.records.get(execution.uid)
        if record is not None and record.phase == "running":
            exit_ = _stopped(reason) if reason else _exited(state, process.behaviour.exit_code)
            self._record_exit(record, exit_)

    def _record_exit(self, record: Record, exit_: dict[str, Any]) -> None:
        record.phase, record.exit = "exited", exit_
        self.processes.pop(record.uid, None)
        self.tell({"ev": "exited", "items": [{"uid": record.uid, **exit_}]})

    def acked(self, uids: list[str]) -> None:
        for uid in uids:
            if uid in self.records:
                self.records[uid].acked = True

    def die(self) -> None:
        """kill -9: processes go on for a moment, nobody watches them; barriers let nothing through."""
        self.alive = False
        self.life += 1

    def come_back(self, rebooted: bool = False) -> None:
        """Read the journal: what ran is stopped and lost, what had not started never ran."""
        self.alive = True
        self.life += 1
        if rebooted:
            self.boot_id += "+"
        for process in self.processes.values():
            if not process.gone:
                process.gone = True
                process.execution.ended_ms, process.execution.outcome = self._world.now_ms, "killed"
        self.processes.clear()
        for record in self.records.values():
            if record.phase == "running":
                record.phase, record.exit = "exited", _lost("lost")
            elif record.phase == "accepted":
                record.phase, record.exit = "exited", _lost("lost_unstarted")

    def wipe(self) -> None:
        """The home is gone: a new journal that knows nothing."""
        self.come_back(rebooted=True)
        self.records.clear()
        self.max_epoch = 0
        self.journal_id += "+"


def _exited(state: str, code: int) -> dict[str, Any]:
    return {"state": state, "exit_code": code, "signal": 0, "exit_class": "ok" if code == 0 else "code"}


def _lost(exit_class: str) -> dict[str, Any]:
    return {"state": "failed", "exit_code": -1, "signal": 0, "exit_class": exit_class}


def _stopped(reason: str) -> dict[str, Any]:
    if reason == "lease":
        return _lost("lost")
    if reason == "time_limit":
        return {"state": "failed", "exit_code": 143, "signal": 15, "exit_class": "time_limit"}
    state = "preempted" if reason == "preempted" else "killed"
    return {"state": state, "exit_code": 143, "signal": 15, "exit_class": "cancelled"}


class WorkerNode:
    """A machine with its agent and its network."""

    def __init__(
        self,
        world: World,
        hub: HubNode,
        name: str,
        executions: list[Execution],
        behave: Callable[[str], Behaviour],
    ) -> None:
        self.world, self.hub, self.name = world, hub, name
        self.weather = Weather()
        self.supervisor = Supervisor(world, name, executions, behave)
        self.slots = world.rng.randint(1, 3)
        self.up = False
        self.life = 0
        self.connection: Connection | None = None
        self.machine: Machine | None = None
        self._heard_ms = 0
        self._dialling = False

    # --- the agent's life -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A (new) agent attaches to the supervisor and dials."""
        if self.up:
            return
        self.up = True
        self.life += 1
        if not self.supervisor.alive:
            self.supervisor.come_back()
        self.machine = Machine(self.name, f"{self.name}-{self.life}", self.slots, 0, RESEND_MS, {})
        self.machine.capability = Capability(cpu_count=4, memory_gb=16)
        self._attach()
        self._dial(0)
        self.world.at(self.world.rng.randint(0, HEARTBEAT_MS), self._beat, self.life)
        self.world.at(1000, self._tick, self.life)

    def _attach(self) -> None:
        assert self.machine is not None
        self.machine.attached(self.supervisor.state())
        life = self.life
        self.supervisor.tell = lambda event: self._later_supervised(life, event)

    def _later_supervised(self, life: int, event: dict[str, Any]) -> None:
        self.world.at(self.world.rng.randint(0, 2), self._supervised, life, event)

    def _supervised(self, life: int, event: dict[str, Any]) -> None:
        if self.up and life == self.life and self.machine is not None:
            self._carry_out(self.machine.supervised(event, self.world.now_ms))

    def die(self) -> None:
        """kill -9 of the agent; its tasks go on."""
        if self.up:
            self.up = False
            self.life += 1
            self.supervisor.tell = lambda event: None
            if self.connection is not None:
                self.connection.break_off()
            self.connection = None
            self.world.at(self.world.rng.randint(100, 20_000), self.start)

    def leave(self) -> None:
        """A clean goodbye, back later."""
        if self.up:
            if self.connection is not None:
                self.connection.break_off(1001)
            self.connection = None
            self.die()

    def supervisor_dies(self) -> None:
        """The agent notices and starts another, which reports what became of the tasks."""
        self.supervisor.die()
        self.world.at(self.world.rng.randint(10, 2000), self._supervisor_back)

    def _supervisor_back(self) -> None:
        if self.supervisor.alive:
            return
        self.supervisor.come_back()
        if self.up and self.machine is not None:
            self._attach()
            if self.machine.registered:
                self._carry_out(self.machine.report(self.world.now_ms))

    def reboot(self, wiped: bool) -> None:
        """Everything on the host dies at once; with `wiped` it comes back as a new installation."""
        self.die()
        if wiped:
            self.supervisor.wipe()
        else:
            self.supervisor.come_back(rebooted=True)

    # --- the link ---------------------------------------------------------------------------------------------------

    def _dial(self, delay_ms: int) -> None:
        if not self._dialling:
            self._dialling = True
            self.world.at(delay_ms, self._connect, self.life)

    def _connect(self, life: int) -> None:
        self._dialling = False
        if not self.up or self.connection is not None:
            return
        if not self.hub.up or self.weather.cut:
            self._dial(self.world.rng.randint(100, 5000))
            return
        assert self.machine is not None
        connection = Connection(self.world, self.weather, self.world.rng.getrandbits(60))
        connection.to_agent = self._hub_said
        connection.agent_hears_end = self._session_over
        self.hub.connect(connection)
        self.connection = connection
        self._heard_ms = self.world.now_ms
        connection.send_up({"type": "register", "payload": _plain(self.machine.registration())})

    def _session_over(self, connection: Connection, code: int) -> None:
        if self.connection is connection:
            self.connection = None
            if self.machine is not None:
                self.machine.disconnected()
            self._dial(self.world.rng.randint(100, 3000))

    def _hub_said(self, connection: Connection, message: Message) -> None:
        if not self.up or self.connection is not connection or self.machine is None:
            return
        self._heard_ms = self.world.now_ms
        kind = message["type"]
        body = msgspec.convert(message.get("payload", {}), HUB_PAYLOADS[kind])
        if kind == "ack":
            self._carry_out(self.machine.acked(body, self.world.now_ms))
        elif kind == "job_assign":
            self._carry_out(self.machine.assigned(body, self.world.now_ms))
        elif kind == "job_cancel":
            self._carry_out(self.machine.cancelled(body))

    def _beat(self, life: int) -> None:
        if self.up and life == self.life and self.machine is not None:
            if self.machine.registered:
                self._carry_out([self.machine.heartbeat(self.world.now_ms)])
            self.world.at(
                self.world.rng.randint(9 * HEARTBEAT_MS // 10, 11 * HEARTBEAT_MS // 10), self._beat, life
            )

    def _tick(self, life: int) -> None:
        if not self.up or life != self.life or self.machine is None:
            return
        self._carry_out(self.machine.resend(self.world.now_ms))
        if self.connection is not None and self.world.now_ms - self._heard_ms > SILENCE_MS:
            self.world.tell(f"{self.name} finds its socket half open")
            connection = self.connection
            connection.break_off()
            self._session_over(connection, 1006)
        self.world.at(self.world.rng.randint(1000, 3000), self._tick, life)

    # --- effects ----------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Tell):
                if self.connection is not None:
                    self.connection.send_up({"type": effect.type, "payload": _plain(effect.payload)})
            elif isinstance(effect, Launch):
                self.supervisor.run(effect)
            elif isinstance(effect, Supervise):
                self._supervise(effect.request)
            elif isinstance(effect, Refuse) and self.connection is not None:
                self.connection.break_off(4400)

    def _supervise(self, request: dict[str, Any]) -> None:
        operation = request["op"]
        if operation == "cancel":
            self.supervisor.cancel(
                request["uid"], request["reason"], round(1000 * request.get("grace_s", 30))
            )
        elif operation == "acked":
            self.supervisor.acked(request["uids"])
        elif operation == "epoch":
            self.supervisor.max_epoch = max(self.supervisor.max_epoch, request["value"])
        elif operation == "renew":
            self.supervisor.renew(round(1000 * request["age_s"]))


def _plain(payload: dict[str, Any]) -> dict[str, Any]:
    """What was sent does not change on the way, whatever its sender does to its own copy."""
    plain: dict[str, Any] = msgspec.to_builtins(payload)
    return plain
