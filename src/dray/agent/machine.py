"""What an agent decides, pure: messages and supervisor events in, messages and supervisor requests out.

The same shape as the hub's core, so that the fault simulation can run many of them. It reports facts and draws no
conclusions: whether a result counts is the hub's to say. A result is kept and sent again until the hub has acked it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from dray.agent.calls import Calls, is_runner
from dray.agent.effects import Effect, Launch, Refuse, Ship, Supervise, Tell, Warn
from dray.agent.lanes import Lane, Stopping
from dray.agent.rendezvous import name_peers
from dray.agent.task_words import Said, Words
from dray.core.model.capability import Capability, Device, Slots
from dray.core.model.spec import FOREVER_NS, TIERS
from dray.wire.hub_messages import (
    Ack,
    CallsAck,
    CallsAssign,
    GangPlace,
    JobAssign,
    JobCancel,
    JobGo,
    JobResume,
)

FEATURES = (
    *("list", "resend", "job_started", "job_log", "shared_gpu", "lease", "gang", "job_progress"),
    *("calls", "yield"),
)
# Of the time after which the hub gives a worker up: a fenced task must be gone before another one starts elsewhere.
LEASE_SHARE = 0.75
UNLIMITED_CREDIT = 1 << 20
REMEMBERED = 1000
# Half of what a hub reads of one worker: what is said on the way out comes on top.
TOLD_PER_S = 100


class Running(msgspec.Struct, kw_only=True):
    """One attempt this agent answers for, from its assignment to the ack of its result. `known`: to the present hub.

    `gang`: it is a member of one, which is accepted when the supervisor holds it ready and started by `job_go`.
    """

    uid: str
    task_id: str
    pool: str
    phase: str = "assigned"
    started_at: float = 0
    pid: int = 0
    devices: tuple[int, ...] = ()
    result: dict[str, Any] | None = None
    known: bool = True
    sent_ms: int = 0
    sends: int = 0
    gang: GangPlace | None = None
    ports: list[int] = []
    said: Said = msgspec.field(default_factory=Said)
    stopping: Stopping | None = None


class Machine:
    """One agent's state. `now_ms` comes in with every call: no clock is read here. `ready`: runners kept warm."""

    def __init__(
        self,
        name: str,
        incarnation: str,
        slots: int,
        service_slots: int,
        resend_ms: tuple[int, ...],
        labels: dict[str, str],
        ready: int = 0,
    ) -> None:
        self.name, self.incarnation, self.labels = name, incarnation, labels
        self.batch_total, self.service_total = slots, service_slots
        self.capability, self.devices = Capability(), tuple[Device, ...]()
        self.resources: dict[str, int] = {}
        self.accounts: list[dict[str, Any]] = []
        self.running: dict[str, Running] = {}
        self.calls = Calls(incarnation, ready, slots)
        self.yields = self.calls.yields
        self.journal_id = self.boot_id = self.address = ""
        self.max_epoch = 0
        self.registered = False
        self._resend_ms = resend_ms
        self._beaten_ms: list[int] = []
        self._refused_uids: dict[str, None] = {}
        self._asked: set[str] | None = None
        self._told, self._told_since_ms = 0, 0

    # --- the supervisor's side ----------------------------------------------------------------------------------------

    def greeting(self, unsent: Collection[str]) -> None:
        """A supervisor is asked for its state. It will also be asked to run `unsent` and what is assigned from now on,
        which that state cannot tell; what another one was asked to run before is gone with it.
        """
        self._asked = {*unsent}

    def attached(self, state: dict[str, Any], now_ms: int) -> list[Effect]:
        """Take over what the supervisor holds: after a restart of this agent, or of the supervisor."""
        self.journal_id, self.boot_id = state["journal_id"], state["boot_id"]
        self.max_epoch = max(self.max_epoch, int(state["max_epoch"]))
        before, self.running = self.running, {}
        for item in state["attempts"]:
            if is_runner(item["uid"]):
                continue
            meta = item.get("meta") or {}
            known = before.get(item["uid"])
            attempt = Running(uid=item["uid"], task_id=item["task_id"], pool=meta.get("pool", "batch"))
            attempt.phase, attempt.pid = item["phase"], item.get("pid") or 0
            attempt.started_at = item.get("started_at") or 0
            attempt.devices = tuple(meta.get("devices", ()))
            _read_gang(attempt, meta)
            attempt.said = known.said if known else attempt.said
            if (stop := item.get("stop")) is not None:
                attempt.stopping = Stopping(stop["reason"], now_ms + round(1000 * stop["grace_s"]))
            if item["phase"] == "exited":
                attempt.result = known.result if known and known.result else result_of(attempt, item)
            self.running[attempt.uid] = attempt
        asked, self._asked = self._asked or set(), None
        for uid in asked & before.keys():
            self.running.setdefault(uid, before[uid])
        runners = [item for item in state["attempts"] if is_runner(item["uid"])]
        return self.calls.attached(runners, asked, now_ms)

    def supervised(self, event: dict[str, Any], now_ms: int) -> list[Effect]:
        """Report what the supervisor says has happened."""
        kind = event.get("ev")
        if kind == "accepted":
            return [effect for uid in event["uids"] for effect in self._accepted(uid)]
        if kind == "prepared":
            return [effect for item in event["items"] for effect in self._prepared(item)]
        if kind == "started":
            return [effect for item in event["items"] for effect in self._started(item)]
        if kind == "exited":
            tasks = [item for item in event["items"] if not is_runner(item["uid"])]
            effects = [effect for item in tasks for effect in self._exited(item, now_ms)]
            effects += [self._ready("finished")] if effects and self.registered else []
            gone = (item for item in event["items"] if is_runner(item["uid"]))
            return effects + [effect for item in gone for effect in self.calls.runner_exited(item, now_ms)]
        if kind == "refused":
            return self._refused(event, now_ms)
        if kind == "stopping":
            return self._stopped(event, now_ms)
        return []

    def _accepted(self, uid: str) -> list[Effect]:
        attempt = self.running.get(uid)
        if attempt is None or attempt.phase not in ("assigned", "accepted"):
            return []
        attempt.phase = "accepted"
        return [Tell("job_accepted", self._acceptance(attempt))]

    def _prepared(self, item: dict[str, Any]) -> list[Effect]:
        attempt = self.running.get(item["uid"])
        if attempt is not None:
            _read_gang(attempt, item["meta"])
        return self._accepted(item["uid"])

    def _acceptance(self, attempt: Running) -> dict[str, Any]:
        payload: dict[str, Any] = {"task_id": attempt.task_id, "attempt": attempt.uid}
        if attempt.gang is not None:
            payload |= {"address": self.address, "ports": attempt.ports}
        return payload

    def _started(self, item: dict[str, Any]) -> list[Effect]:
        attempt = self.running.get(item["uid"])
        if attempt is None or attempt.phase == "exited":
            return []
        attempt.phase, attempt.pid, attempt.started_at = "running", item["pid"], item["started_at"]
        devices = list(attempt.devices)
        payload = {"task_id": attempt.task_id, "attempt": attempt.uid, "pid": attempt.pid, "devices": devices}
        return [Tell("job_started", payload)]

    def _exited(self, item: dict[str, Any], now_ms: int) -> list[Effect]:
        attempt = self.running.get(item["uid"])
        if attempt is None or attempt.phase == "exited":
            return []
        attempt.phase = "exited"
        self.yields.ended(attempt.uid)
        attempt.result = result_of(attempt, item)
        # A hub restored from a backup refuses the output of what it does not know.
        printed = attempt.known and any((item.get("out") or {"all": 1}).values())
        ship: list[Effect] = [Ship(attempt.uid, attempt.task_id, ended=True)] if printed else []
        return [*ship, *self._send_result(attempt, now_ms)]

    def _stopped(self, event: dict[str, Any], now_ms: int) -> list[Effect]:
        attempt = self.running.get(event["uid"])
        if attempt is None:
            return []
        attempt.stopping = Stopping(event["reason"], now_ms + round(1000 * event["grace_s"]))
        return [Warn(attempt.uid, attempt.stopping.describe(now_ms))]

    def _refused(self, event: dict[str, Any], now_ms: int) -> list[Effect]:
        if is_runner(event.get("uid") or ""):
            return self.calls.runner_exited(event, now_ms)
        attempt = self.running.get(event.get("uid") or "")
        if attempt is None:
            return []
        # The supervisor keeps no record of it: an assignment that comes twice must not start it after all.
        self._never_start(attempt.uid)
        exit_ = {"state": "failed", "exit_code": None, "exit_class": "refused", "error": event["error"]}
        return self._exited({"uid": attempt.uid, **exit_}, now_ms)

    # --- the task's side ----------------------------------------------------------------------------------------------

    def greeted(self, uid: str, now_ms: int) -> dict[str, Any]:
        """Answer the first word of a session: which task it is of, and whether it is to end."""
        attempt = self.running.get(uid) or self.calls.lanes.get(uid)
        if attempt is None:
            return {}
        stop = {} if attempt.stopping is None else {"stop": attempt.stopping.describe(now_ms)}
        return {"task_id": attempt.job if isinstance(attempt, Lane) else attempt.task_id, **stop}

    def task_said(self, uid: str, words: Words, now_ms: int) -> list[Effect]:
        """Keep what a task says of itself; what it saved goes to the hub at once, and ends a stop early."""
        if uid in self.calls.lanes:
            return self._lane_said(self.calls.lanes[uid], words, now_ms)
        attempt = self.running.get(uid)
        if attempt is None or attempt.phase == "exited":
            return []
        effects = self.yields.said(uid, attempt.task_id, words, now_ms)
        if "watch" in words and not attempt.said.heeds:
            attempt.said.heeds = True
            effects.append(Supervise({"op": "heed", "uid": uid}))
        attempt.said.hear(words, now_ms)
        effects += self._tell_progress([attempt], now_ms)
        if "saved" in words and attempt.stopping is not None:
            effects.append(Supervise({"op": "hasten", "uid": uid}))
        return effects

    def _lane_said(self, lane: Lane, words: Words, now_ms: int) -> list[Effect]:
        """The call that a lane is in speaks: the hub hears of its waiting, and of its progress as the lane's."""
        effects: list[Effect] = []
        if lane.fed:
            effects = self.yields.said(lane.uid, lane.job, words, now_ms)
            if (lane.uid in self.yields) != lane.yielded:
                effects += self.calls.yielded(lane.uid, lane.uid in self.yields, now_ms)
            if "watch" in words:
                effects.append(Supervise({"op": "heed", "uid": lane.runner}))
        lane.said.hear(words, now_ms)
        if self.registered and lane.said.is_due(now_ms):
            lane.said.told(now_ms)
            effects.append(Tell("job_progress", lane.said.payload(lane.job, lane.uid, now_ms), acked=False))
        return effects

    def _tell_progress(self, attempts: list[Running], now_ms: int) -> list[Effect]:
        """Tell the hub what it may hear now: latest words, those first that have waited longest."""
        if not self.registered:
            return []
        if now_ms - self._told_since_ms >= 1000:
            self._told, self._told_since_ms = 0, now_ms
        pressing = [a for a in attempts if a.known and self._is_pressing(a)]
        due = [a for a in attempts if a.known and a.said.is_due(now_ms) and not self._is_pressing(a)]
        due.sort(key=lambda attempt: attempt.said.told_ms or 0)
        chosen = [*pressing, *due[: max(0, TOLD_PER_S - self._told)]]
        self._told += len(chosen)
        for attempt in chosen:
            attempt.said.told(now_ms)
        return [Tell("job_progress", a.said.payload(a.task_id, a.uid, now_ms), acked=False) for a in chosen]

    def _is_pressing(self, attempt: Running) -> bool:
        """What is said on the way out cannot wait: there may be no later."""
        return attempt.said.untold and attempt.stopping is not None

    # --- the hub's side -----------------------------------------------------------------------------------------------

    def registration(self) -> dict[str, Any]:
        """The first message of a session: all that this worker is, runs and has finished."""
        active = [attempt for attempt in self.running.values() if attempt.phase in ("accepted", "running")]
        return {
            "id": self.name,
            "capabilities": msgspec.to_builtins(self.capability),
            "active_tasks": [
                {"task_id": attempt.task_id, "state": attempt.phase, "attempt": attempt.uid}
                for attempt in active
            ]
            + self.calls.describe_active(),
            "slots": msgspec.to_builtins(self.slots()),
            "incarnation": self.incarnation,
            "boot_id": self.boot_id,
            "journal_id": self.journal_id,
            "max_epoch_seen": self.max_epoch,
            "finished_unacked": [
                attempt.result for attempt in self.running.values() if attempt.result is not None
            ]
            + self.calls.finished(),
            "labels": self.labels,
            "devices": msgspec.to_builtins(self.devices),
            "address": self.address,
            "features": list(FEATURES),
            "resources": self.resources,
            "accounts": self.accounts,
        }

    def slots(self) -> Slots:
        """How many slots there are and how many tasks hold one now. Lanes are not among them: the hub counts those,
        and does not say when it closes one.
        """
        live = [
            attempt.pool
            for attempt in self.running.values()
            if attempt.phase != "exited" and attempt.uid not in self.yields
        ]
        return Slots(self.batch_total, live.count("batch"), self.service_total, live.count("service"))

    def heartbeat(self, now_ms: int) -> Tell:
        """A sign of life with the whole capability. Its ack proves that the hub heard it: leases run from its
        sending.
        """
        self._beaten_ms.append(now_ms)
        active = [attempt.uid for attempt in self.running.values() if attempt.phase != "exited"]
        payload = {
            "worker_id": self.name,
            "slots": msgspec.to_builtins(self.slots()),
            "capability": msgspec.to_builtins(self.capability),
            "devices": msgspec.to_builtins(self.devices),
            "active": active + self.calls.unfinished(),
        }
        return Tell("heartbeat", payload)

    def _ready(self, reason: str) -> Tell:
        slots = msgspec.to_builtins(self.slots())
        payload = {"worker_id": self.name, "slots": slots, "reason": reason, "credits": UNLIMITED_CREDIT}
        return Tell("ready_for_work", payload, acked=False)

    def acked(self, ack: Ack, now_ms: int) -> list[Effect]:
        """Forget what the hub has recorded; after registering, ask for work."""
        effects: list[Effect] = []
        if ack.epoch:
            if ack.epoch < self.max_epoch:
                return [
                    Refuse(
                        f"the hub's epoch {ack.epoch} is behind {self.max_epoch}, which this worker has seen"
                    )
                ]
            if ack.epoch > self.max_epoch:
                self.max_epoch = ack.epoch
                effects.append(Supervise({"op": "epoch", "value": ack.epoch}))
        if ack.re == "heartbeat" and self._beaten_ms:
            sent_ms = self._beaten_ms.pop(0)
            effects.append(Supervise({"op": "renew", "age_s": (now_ms - sent_ms) / 1000}))
        if ack.re == "register":
            # Before the results below are let go: what ended while nobody listened has output to send as well.
            known = known_to_hub(ack)
            for attempt in self.running.values():
                attempt.known = attempt.uid in known
                attempt.said.repeat()
                if attempt.known:
                    effects.append(Ship(attempt.uid, attempt.task_id, attempt.phase == "exited"))
        for uid in ack.results:
            if self.calls.forget(uid):
                self.yields.ended(uid)
        done = [uid for uid in ack.results if uid in self.running]
        for uid in done:
            del self.running[uid]
        if done:
            effects.append(Supervise({"op": "acked", "uids": done}))
        if ack.re == "register":
            self.registered = True
            effects += [*self.yields.repeat_all(now_ms), self._ready("registered"), *self.calls.registered()]
        return effects

    def assigned(self, message: JobAssign, now_ms: int) -> list[Effect]:
        """Take a task on; one that is here already is answered by how it stands."""
        uid = message.attempt.uid
        known = self.running.get(uid)
        if known is not None:
            known.known = True  # though a report that was made before it was accepted could not name it
            return self._tell_again(known, now_ms)
        if uid in self._refused_uids:
            return [Tell("job_result", _never_started(message.spec.id, uid))]
        spec = message.spec
        pool = spec.slot_pool or spec.type
        self.running[uid] = Running(uid=uid, task_id=spec.id, pool=pool, devices=tuple(message.devices))
        if self._asked is not None:
            self._asked.add(uid)
        limit_s = None if message.remaining_time >= FOREVER_NS else message.remaining_time / 1e9
        grace_s = TIERS[spec.job_tier].grace_s
        lease_s = message.lease_s * LEASE_SHARE or None
        devices, number = tuple(message.devices), message.attempt.no
        return [Launch(uid, spec, limit_s, grace_s, devices, number, lease_s, message.gang)]

    def _tell_again(self, attempt: Running, now_ms: int) -> list[Effect]:
        if attempt.phase == "exited":
            return self._send_result(attempt, now_ms)
        effects: list[Effect] = [] if attempt.phase == "assigned" else list(self._accepted_again(attempt))
        return effects

    def _accepted_again(self, attempt: Running) -> list[Effect]:
        effects: list[Effect] = [Tell("job_accepted", self._acceptance(attempt))]
        if attempt.phase == "running":
            effects.append(
                Tell("job_started", {"task_id": attempt.task_id, "attempt": attempt.uid, "pid": attempt.pid})
            )
        return effects

    def go(self, message: JobGo, now_ms: int) -> list[Effect]:
        """Start a member of a gang that is held ready; one that has started already is only told of again."""
        attempt = self.running.get(message.attempt)
        if attempt is None or attempt.gang is None or attempt.gang.generation != message.generation:
            return []
        if attempt.phase != "accepted":
            return self._tell_again(attempt, now_ms)
        environment = name_peers(attempt.gang, message.peers)
        return [Supervise({"op": "go", "uid": attempt.uid, "env": environment})]

    def calls_assigned(self, message: CallsAssign, now_ms: int) -> list[Effect]:
        """Take calls on; of a lane that is never to start, only its end is told again."""
        if message.lane in self._refused_uids:
            return [Tell("job_result", _never_started(message.job, message.lane))]
        return self.calls.assigned(message, now_ms)

    def calls_acked(self, message: CallsAck, now_ms: int) -> list[Effect]:
        """Forget ends of calls that the hub has recorded."""
        return self.calls.acked(message, now_ms)

    def pull(self, now_ms: int) -> list[Tell]:
        """The ends of calls that may leave now: asked for when the link has room."""
        return list(self.calls.results.pull(now_ms)) if self.registered else []

    def resumed(self, message: JobResume, now_ms: int) -> list[Effect]:
        """The hub gives a task its slot back."""
        effects = self.yields.granted(message.attempt)
        lane = self.calls.lanes.get(message.attempt)
        if effects and lane is not None:
            effects += self.calls.yielded(lane.uid, False, now_ms)
        return effects

    def cancelled(self, message: JobCancel, now_ms: int = 0) -> list[Effect]:
        """Stop an attempt; one that is not here is reported as never started, and will not be started later."""
        if message.attempt in self.calls.lanes:
            return self.calls.cancelled(message, now_ms)
        for attempt in list(self.running.values()):
            named = attempt.uid == message.attempt if message.attempt else attempt.task_id == message.task_id
            if named and attempt.phase != "exited":
                request: dict[str, Any] = {"op": "cancel", "uid": attempt.uid, "reason": message.reason}
                if message.grace_s is not None:
                    request["grace_s"] = message.grace_s
                return [Supervise(request)]
            if named:
                return []
        if not message.attempt:
            return []
        self._never_start(message.attempt)
        return [Tell("job_result", _never_started(message.task_id, message.attempt))]

    def _never_start(self, uid: str) -> None:
        self._refused_uids[uid] = None
        if len(self._refused_uids) > REMEMBERED:
            del self._refused_uids[next(iter(self._refused_uids))]

    def disconnected(self) -> None:
        """The session is gone; what runs goes on."""
        self.registered = False
        self._beaten_ms.clear()
        self.calls.disconnected()
        for attempt in self.running.values():
            attempt.sends = 0

    # --- time ---------------------------------------------------------------------------------------------------------

    def resend(self, now_ms: int) -> list[Effect]:
        """Send what tasks said meanwhile, and results again that were not acked in time."""
        if not self.registered:
            return []
        live = [attempt for attempt in self.running.values() if attempt.phase != "exited"]
        told = self._tell_progress(live, now_ms)
        late = [
            a
            for a in self.running.values()
            if a.result is not None and now_ms - a.sent_ms >= self._patience_ms(a)
        ]
        told += self.yields.repeat_late(now_ms) + self.calls.resend(now_ms)
        return told + [effect for attempt in late for effect in self._send_result(attempt, now_ms)]

    @property
    def busy(self) -> bool:
        """Whether `tick` has anything to watch."""
        return self.calls.busy

    def tick(self, now_ms: int) -> list[Effect]:
        """Watch what runs for moments: called every few hundredths of a second while `busy`."""
        return self.calls.tick(now_ms)

    def report(self, now_ms: int) -> list[Effect]:
        """Send every unacked result at once: a new supervisor has just told what became of the old one's tasks."""
        ended = [attempt for attempt in self.running.values() if attempt.result is not None]
        return [effect for attempt in ended for effect in self._send_result(attempt, now_ms)]

    def _patience_ms(self, attempt: Running) -> int:
        return self._resend_ms[min(max(attempt.sends - 1, 0), len(self._resend_ms) - 1)]

    def _send_result(self, attempt: Running, now_ms: int) -> list[Effect]:
        attempt.sent_ms, attempt.sends = now_ms, attempt.sends + 1
        if not self.registered or attempt.result is None:
            return []
        return [Tell("job_result", attempt.result)]


def gang_meta(place: GangPlace, ports: list[int]) -> dict[str, Any]:
    """What the supervisor keeps of a member beside its spec, for the agent that comes after this one."""
    return {"generation": place.generation, "rank": place.rank, "size": place.size, "ports": ports}


def _read_gang(attempt: Running, meta: dict[str, Any]) -> None:
    if (kept := meta.get("gang")) is not None:
        attempt.gang = GangPlace(kept["generation"], kept["rank"], kept["size"])
        attempt.ports = list(kept["ports"])


def known_to_hub(ack: Ack) -> set[str]:
    """Name the attempts that the hub has heard of, by its answer to `register`; it refuses the output of others.

    A superseded result may be on record or not: the hub names those whose output it still takes.
    """
    counted = (uid for uid, verdict in ack.results.items() if verdict != "superseded")
    return {*ack.keep, *ack.stop, *ack.log_offsets, *counted}


def result_of(attempt: Running, item: dict[str, Any]) -> dict[str, Any]:
    """Spell an exit as the message that reports it."""
    out = item.get("out") or {}
    usage = dict(item.get("usage") or {})
    usage |= {f"{stream}_bytes": count for stream, count in out.items()}
    result = {
        "task_id": attempt.task_id,
        "attempt": attempt.uid,
        "state": item["state"],
        "exit_code": item.get("exit_code"),
        "signal": item.get("signal") or 0,
        "exit_class": item.get("exit_class") or "",
        "usage": usage,
    }
    if item["state"] == "preempted" and attempt.said.finished and item.get("exit_code") == 0:
        # It said that its work is whole: a second run would only find nothing left to do.
        return result | {"state": "succeeded", "exit_class": "ok"}
    if item.get("error"):
        result["error"] = item["error"]
    return result


def _never_started(task_id: str, uid: str) -> dict[str, Any]:
    """Answer for an attempt that is not here: the hub may be sure that it does not run."""
    error = "this worker does not have this attempt"
    return {
        "task_id": task_id,
        "attempt": uid,
        "state": "killed",
        "exit_class": "lost_unstarted",
        "error": error,
    }


# The simulation and the shell know the machine's effects by its name.
__all__ = [
    "Effect",
    "Launch",
    "Machine",
    "Refuse",
    "Running",
    "Ship",
    "Supervise",
    "Tell",
    "Warn",
    "gang_meta",
]
