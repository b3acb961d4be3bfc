"""A supervisor with its journal and the processes it runs.

What the journal holds survives agent, supervisor and host; what a process does is noted down by the world itself, so
that the checker knows what truly ran.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from dray.agent.decide.attempts import gang_meta
from dray.agent.decide.calls.calls import is_runner
from dray.agent.decide.effects import Launch, Probe
from dray.agent.supervisor.attempts.attempt import give_back
from dray.agent.supervisor.attempts.followers import Followers
from dray.core.model.specs.resources import WHOLE
from dray.sim.faults.nodes.runner import RunnerHost
from dray.sim.faults.nodes.runs import BROKEN, NEED, NEVER_MS, OUTGROWN, Behaviour, CallRuns, Execution, Runs
from dray.sim.faults.world.world import World

NO_SPACE = "no space left on the worker"


class Record(msgspec.Struct):
    """What the journal says of one attempt."""

    uid: str
    task_id: str
    meta: dict[str, Any]
    phase: str = "accepted"
    intended: bool = False
    began: bool = False
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
    words: str = ""


class Supervisor:
    """The journal and the processes. `tell` reaches the agent while one is attached, `hear` carries there what tasks
    say.
    """

    def __init__(
        self,
        world: World,
        name: str,
        machine: str,
        runs: Runs,
        behave: Callable[[str], Behaviour],
        callers: CallRuns,
    ) -> None:
        self._world, self._name, self._machine, self._runs, self._behave = world, name, machine, runs, behave
        self.journal_id, self.boot_id = f"{machine}-journal-1", f"{machine}-boot-1"
        self.full = self.childless = self.broken = False
        self.card_gb = 0
        self._stalled = False
        self._unread: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.denied: set[str] = set()
        self.refused: set[str] = set()
        self.max_epoch = 0
        self.records: dict[str, Record] = {}
        self.processes: dict[str, Process] = {}
        self.prepared: dict[str, tuple[Launch, int]] = {}
        self.followers = Followers()
        self._waiting: dict[str, Launch] = {}
        self.life = 1
        self.alive = True
        self.tell: Callable[[dict[str, Any]], None] = lambda event: None
        # Kills it when it has put the next end on record, before it can tell anybody.
        self.falls: Callable[[], None] | None = None
        self.runners = RunnerHost(world, name, machine, runs, callers)
        self.runners.exited = self._runner_exited
        self.hear: Callable[[str, dict[str, Any]], None] = lambda uid, words: None

    def state(self) -> dict[str, Any]:
        """What a newly attached agent is told."""
        attempts = [
            {"uid": r.uid, "task_id": r.task_id, "phase": r.phase, "meta": r.meta, **(r.exit or {})}
            for r in self.records.values()
            if not r.acked
        ]
        attempts += self.runners.items()
        return {
            "ev": "state",
            "journal_id": self.journal_id,
            "boot_id": self.boot_id,
            "max_epoch": self.max_epoch,
            "attempts": attempts,
        }

    @property
    def stalled(self) -> bool:
        """Whether it reads nothing of what it is asked; what runs is watched all the same."""
        return self._stalled

    @stalled.setter
    def stalled(self, stalled: bool) -> None:
        self._stalled = stalled
        self._runs.reads_from_ms[self._machine] = NEVER_MS if stalled else self._world.now_ms
        unread, self._unread = self._unread, []
        for call, arguments in unread:
            self.ask(call, *arguments)

    def ask(self, call: Callable[..., None], *arguments: Any) -> None:
        """A request of the agent: done at once, or read when it is read."""
        if self._stalled:
            self._unread.append((call, arguments))
        else:
            call(*arguments)

    def change_hands(self) -> None:
        """Another agent has connected: what the one before asked and nobody has read goes with its connection, and
        nothing is done that the state does not tell which the new one is given.
        """
        self._unread.clear()

    def ping(self) -> None:
        if self.alive:
            self.tell({"ev": "pong", "refusal": NO_SPACE if self.full else ""})

    def probe(self, probe: Probe) -> None:
        """A start for its own sake."""
        if not self.alive:
            return
        late = self._world.now_ms > probe.start_by_ms
        if self.full or late:
            self.tell({"ev": "refused", "uid": probe.uid, "error": NO_SPACE, "host": True})
        else:
            exit_ = _unable() if self.childless else _exited("succeeded", 0)
            self.tell({"ev": "exited", "items": [{"uid": probe.uid, **exit_}]})

    def start_runner(self, uid: str) -> None:
        """Start a process that runs calls, where the disk has room for what it needs."""
        if not self.alive:
            return
        if self.full:
            self.tell({"ev": "refused", "uid": uid, "error": NO_SPACE, "host": True})
        elif self.childless:
            self.tell({"ev": "exited", "items": [{"uid": uid, **_unable()}]})
        else:
            self.runners.start(uid)

    def _runner_exited(self, item: dict[str, Any]) -> None:
        if self.alive:
            self.tell({"ev": "exited", "items": [item]})

    def run(self, launch: Launch, ports: list[int]) -> None:
        """Journal it, start it, say both; an attempt that is known is only told of again."""
        record = self._take_on(launch, ports)
        if record is None:
            return
        ahead = self.records.get(launch.behind)
        if launch.behind and (ahead is None or ahead.phase == "exited") and not (ahead and ahead.began):
            self._record_exit(record, give_back())
            return
        if ahead is None or ahead.phase == "exited":
            self.tell({"ev": "accepted", "uids": [launch.uid]})
            self._start_soon(record, launch)
            return
        self._world.counts["waited behind another"] += 1
        self.followers.join(launch.uid, launch.behind)
        self._waiting[launch.uid] = launch
        self._world.at(round(1000 * launch.behind_s), self._give_back, self.life, record)

    def _take_over(self, record: Record, launch: Launch) -> None:
        if self._is_late(launch):
            self._record_exit(record, _unable())
        else:
            self._start_soon(record, launch)

    def _give_back(self, life: int, record: Record) -> None:
        if life == self.life and record.uid in self.followers:
            self._world.counts["given back by one that waited"] += 1
            self._record_exit(record, give_back())

    def prepare(self, launch: Launch, ports: list[int]) -> None:
        """Journal a member of a gang and hold it."""
        record = self._take_on(launch, ports)
        if record is not None and launch.gang is not None:
            record.meta["gang"] = gang_meta(launch.gang)
            self.prepared[launch.uid] = (launch, launch.heard_ms or self._world.now_ms)
            self._repeat(record)

    def go(self, uid: str) -> None:
        """Start a member that is held; one whose lease ran out meanwhile never will."""
        record = self.records.get(uid)
        if not self.alive or record is None:
            return
        launch, renewed_ms = self.prepared.pop(uid, (None, 0))
        if launch is None:
            self._repeat(record)
        elif launch.lease_s is not None and renewed_ms + 1000 * launch.lease_s <= self._world.now_ms:
            self._record_exit(record, _lost("lost_unstarted"))
        else:
            self._start_soon(record, launch, renewed_ms)

    def _take_on(self, launch: Launch, ports: list[int]) -> Record | None:
        if not self.alive:
            return None
        known = self.records.get(launch.uid)
        if known is not None:
            self._repeat(known)
            return None
        if self.full or self._is_late(launch) or launch.uid in self.refused:
            self.refused.add(launch.uid)
            self.tell({"ev": "refused", "uid": launch.uid, "error": NO_SPACE, "host": True})
            return None
        if launch.uid in self.denied:
            self._world.fail(f"{self._machine} starts {launch.uid}, of which it said that it never will")
        if self._is_held(launch.uid, ports):
            self.refused.add(launch.uid)
            self.tell({"ev": "refused", "uid": launch.uid, "error": "its port is held", "elsewhere": True})
            return None
        pool = launch.spec.slot_pool or launch.spec.type
        meta: dict[str, Any] = {"pool": pool, "devices": list(launch.devices), "ports": ports}
        if launch.behind:
            meta["behind"] = launch.behind
        record = self.records[launch.uid] = Record(launch.uid, launch.spec.id, meta)
        return record

    def _is_held(self, uid: str, ports: list[int]) -> bool:
        """Whether an attempt that is not over has one of these ports: one that its agent has given back, or it would
        not have given them out again.
        """
        for record in self.records.values():
            if record.phase != "exited" and {*ports} & {*record.meta["ports"]}:
                if record.uid not in self.denied:
                    self._world.fail(f"{self._machine} gives ports {ports} of {record.uid} to {uid} as well")
                return True
        return False

    def _is_late(self, launch: Launch) -> bool:
        return bool(launch.start_by_ms) and self._world.now_ms > launch.start_by_ms

    def _start_soon(self, record: Record, launch: Launch, renewed_ms: int = 0) -> None:
        delay_ms = self._world.rng.randint(0, 4)
        self._world.at(max(0, delay_ms - 1), self._intend, self.life, record)
        self._world.at(delay_ms, self._start, self.life, record, launch, renewed_ms)

    def _repeat(self, record: Record) -> None:
        if record.uid in self.prepared:
            self.tell({"ev": "prepared", "items": [{"uid": record.uid, "meta": record.meta}]})
        elif record.phase == "exited":
            self.tell({"ev": "exited", "items": [{"uid": record.uid, **(record.exit or {})}]})
        elif record.phase == "running":
            self.tell({"ev": "started", "items": [{"uid": record.uid, "pid": 1, "started_at": 1.0}]})
        elif record.uid not in self.followers:
            self.tell({"ev": "accepted", "uids": [record.uid]})

    def _is_outgrown(self, launch: Launch) -> bool:
        return bool(launch.devices) and int(launch.spec.env.get(NEED, 0)) > self.card_gb

    def _intend(self, life: int, record: Record) -> None:
        """The intent to start is safe before the process exists: between the two the supervisor may die."""
        if life == self.life and record.phase == "accepted":
            record.intended = True

    def _start(self, life: int, record: Record, launch: Launch, renewed_ms: int = 0) -> None:
        if life != self.life or record.phase != "accepted":
            return
        if self.childless:
            self._record_exit(record, _unable())
            return
        if launch.uid in self.denied:
            self._world.fail(f"{self._machine} starts {launch.uid}, of which it said that it never will")
        record.phase, record.began = "running", True
        limit = None if launch.limit_s is None else round(launch.limit_s * 1000)
        lease = None if launch.lease_s is None else round(launch.lease_s * 1000)
        behaviour, grace = self._behave(launch.spec.id), round(launch.grace_s * 1000)
        words = BROKEN if self.broken else OUTGROWN if self._is_outgrown(launch) else ""
        if words:
            behaviour = Behaviour(1 + behaviour.duration_ms % 300, "failed", 1, behaviour.heeds_term)
        execution = Execution(
            launch.spec.id,
            launch.uid,
            self._name,
            self._machine,
            self._world.now_ms,
            launch.devices,
            launch.spec.gpu_milli or WHOLE,
            round(launch.spec.limit_s * 1000),
            grace,
            pool=launch.spec.slot_pool or launch.spec.type,
            generation=launch.gang.generation if launch.gang else -(launch.spec.node_count > 1),
            ports=tuple(record.meta["ports"]),
        )
        self._runs.begin(execution)
        heard_ms = renewed_ms or launch.heard_ms or self._world.now_ms
        process = Process(execution, behaviour, limit, grace, lease, heard_ms)
        process.words = words
        self.processes[launch.uid] = process
        self.tell({"ev": "started", "items": [{"uid": launch.uid, "pid": 1, "started_at": 1.0}]})
        self._world.at(behaviour.duration_ms, self._finish, process, behaviour.state, "")
        if limit is not None:
            self._world.at(limit, self.cancel, launch.uid, "time_limit", grace)
        if lease is not None:
            self._world.at(max(0, heard_ms + lease - self._world.now_ms), self._check_lease, process)
        if self._world.rng.random() < 0.5:
            self._world.at(self._world.rng.randint(1, behaviour.duration_ms), self._save, process)

    def _save(self, process: Process) -> None:
        """The task saves its work, says so, and goes on to the next step."""
        execution = process.execution
        if process.gone:
            return
        execution.saves[len(execution.saves)] = self._world.now_ms
        self._speak(process)
        if not process.stop:
            self._world.at(self._world.rng.randint(100, 30_000), self._save, process)

    def _speak(self, process: Process) -> None:
        step = len(process.execution.saves) - 1
        words: dict[str, Any] = {"watch": {}, "progress": {"step": step, "fraction": 0.5}}
        self.hear(process.execution.uid, words | ({"saved": {"step": step}} if step >= 0 else {}))

    def speak_again(self) -> None:
        """A new agent listens: every task repeats its last words."""
        for process in self.processes.values():
            if not process.gone and process.execution.saves:
                self._speak(process)

    def warn(self, uid: str) -> None:
        """A task is told that it is to end: it saves its work, if it is one that does."""
        process = self.processes.get(uid)
        if process is not None and process.execution.saves:
            self._world.at(self._world.rng.randint(1, 300), self._save, process)

    def hasten(self, uid: str) -> None:
        """It has saved its work: its stop need not wait any longer."""
        process = self.processes.get(uid)
        if process is not None and process.stop:
            self._world.at(self._world.rng.randint(1, 50), self._finish, process, "killed", process.stop)

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
        for uid, (launch, renewed_ms) in self.prepared.items():
            self.prepared[uid] = (launch, max(renewed_ms, self._world.now_ms - age_ms))

    def cancel(self, uid: str, reason: str, grace_ms: int) -> None:
        """TERM now, KILL after the grace; what has not started never will."""
        if is_runner(uid):
            if self.alive:
                self.runners.cancel(uid, max(grace_ms, 0))
            return
        record = self.records.get(uid)
        if not self.alive or record is None:
            return
        process = self.processes.get(uid)
        if record.phase == "accepted":
            self.prepared.pop(uid, None)
            self._record_exit(record, _stopped(reason))
        elif process is not None and not process.gone and not process.stop:
            process.stop = reason
            self.tell({"ev": "stopping", "uid": uid, "reason": reason, "grace_s": grace_ms / 1000})
            delay = self._world.rng.randint(1, 500) if process.behaviour.heeds_term else max(grace_ms, 0)
            self._world.at(min(delay, max(grace_ms, 0)), self._finish, process, "killed", reason)
        elif process is not None and not process.gone:
            # A second request may shorten the grace, never lengthen it.
            self._world.at(max(grace_ms, 0), self._finish, process, "killed", process.stop)
        elif record.phase == "exited":
            self._repeat(record)

    def let_go(self, uid: str, reason: str) -> None:
        """Stop a member that is still held ready."""
        if uid in self.prepared:
            self.cancel(uid, reason, 0)

    def _finish(self, process: Process, state: str, reason: str) -> None:
        if process.gone or (process.stop and not reason):
            return
        process.gone = True
        execution = process.execution
        self._runs.end(execution, state if not reason else "killed")
        if not self.alive:
            return
        record = self.records.get(execution.uid)
        if record is not None and record.phase == "running":
            exit_ = _stopped(reason) if reason else _exited(state, process.behaviour.exit_code)
            if process.words and not reason:
                exit_["error"] = process.words
            self._record_exit(record, exit_)

    def _record_exit(self, record: Record, exit_: dict[str, Any]) -> None:
        record.phase, record.exit = "exited", exit_
        self.processes.pop(record.uid, None)
        self._waiting.pop(record.uid, None)
        if self.falls is not None:
            self.falls()
            return
        if after := self.followers.leave(record.uid):
            self._world.counts["took a place over"] += 1
            self._take_over(self.records[after], self._waiting.pop(after))
        self.tell({"ev": "exited", "items": [{"uid": record.uid, **exit_}]})

    def stop_for_hub(self, uid: str, reason: str, grace_ms: int) -> None:
        """Stop an attempt on the hub's word; work that this hub cannot know is never its to stop.

        Judged when it is asked for: a supervisor that stands still may read a stop of the hub before this one.
        """
        process = self.processes.get(uid)
        if process is not None and not process.gone and not self._runs.may_be_stopped(process.execution):
            self._world.fail(f"the hub stops {process.execution}, of which it never heard ({reason})")
        self.ask(self.cancel, uid, reason, grace_ms)

    def end_strangers(self) -> None:
        """End, as by a signal from a person, whatever runs here that the hub never heard of."""
        for process in [*self.processes.values()]:
            if process.execution.stranger and not process.gone:
                self._world.counts["unknown work ended by hand"] += 1
                self._finish(process, "failed", "")

    def acked(self, uids: list[str]) -> None:
        self.runners.acked(uids)
        for uid in uids:
            if uid in self.records:
                self.records[uid].acked = True

    def die(self) -> None:
        """kill -9: processes go on for a moment, nobody watches them; what has not begun never will."""
        self.alive = False
        self.life += 1
        self.falls = None
        self._unread.clear()

    def come_back(self, rebooted: bool = False) -> None:
        """Read the journal: what ran, or was about to, is stopped and lost; the rest never ran."""
        self.alive = True
        self.life += 1
        self.falls = None
        # A host that went down took along what nobody had read.
        self._unread.clear()
        if rebooted:
            self.boot_id += "+"
        for process in self.processes.values():
            if not process.gone:
                process.gone = True
                self._runs.end(process.execution, "killed")
        self.processes.clear()
        self.prepared.clear()
        self._waiting.clear()
        self.followers = Followers()
        self.refused.clear()
        self.runners.end_all()
        for uid, record in self.records.items():
            if record.phase != "exited":
                begun = record.intended or record.phase == "running"
                if record.intended:
                    self._runs.intended.add(uid)
                record.phase, record.exit = "exited", _lost("lost" if begun else "lost_unstarted")

    def wipe(self) -> None:
        """The home is gone: a new journal that knows nothing."""
        self.come_back(rebooted=True)
        self.records.clear()
        self.runners.runners.clear()
        self.max_epoch = 0
        self.journal_id += "+"


def _exited(state: str, code: int) -> dict[str, Any]:
    return {"state": state, "exit_code": code, "signal": 0, "exit_class": "ok" if code == 0 else "code"}


def _lost(exit_class: str) -> dict[str, Any]:
    return {"state": "failed", "exit_code": -1, "signal": 0, "exit_class": exit_class}


def _unable() -> dict[str, Any]:
    return _lost("lost_unstarted") | {"host": True, "error": "this worker could not start another process"}


def _stopped(reason: str) -> dict[str, Any]:
    if reason == "lease":
        return _lost("lost")
    if reason == "time_limit":
        return {"state": "failed", "exit_code": 143, "signal": 15, "exit_class": "time_limit"}
    state = "preempted" if reason == "preempted" else "killed"
    return {"state": state, "exit_code": 143, "signal": 15, "exit_class": "cancelled"}
