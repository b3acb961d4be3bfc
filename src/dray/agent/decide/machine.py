"""What an agent decides, pure: messages and supervisor events in, messages and supervisor requests out.

The same shape as the hub's core, so that the fault simulation can run many of them. It reports facts and draws no
conclusions: whether a result counts is the hub's to say. A result is kept and sent again until the hub has acked it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from dray.agent.decide.attempts import (
    PROBE_PREFIX,
    Running,
    acceptance,
    is_careful,
    is_probe,
    known_to_hub,
    let_forgotten_go,
    list_active,
    name_peers,
    never_started,
    result_of,
    ship_late,
    unstarted,
)
from dray.agent.decide.calls.call_results import first_number
from dray.agent.decide.calls.calls import Calls, is_runner
from dray.agent.decide.calls.lanes import Stopping
from dray.agent.decide.effects import Effect, Launch, Probe, Refuse, Ship, Supervise, Tell, Warn
from dray.agent.decide.leases import DEFAULT_SPAN, Leases
from dray.agent.decide.preparing import lay_again, let_go, tell_fault, waits_for_tree
from dray.agent.decide.readiness import NO_ANSWER, Contact, Readiness
from dray.agent.decide.talk import TaskTalk
from dray.core.model.capability import Capability, Device, Slots
from dray.core.model.specs.spec import FOREVER_NS, TIERS
from dray.wire.messages.hub import (
    Ack,
    CallsAck,
    CallsAssign,
    JobAssign,
    JobCancel,
    JobGo,
    JobResume,
)

FEATURES = (
    *("list", "resend", "job_started", "job_log", "shared_gpu", "lease", "gang", "job_progress"),
    *("calls", "yield", "behind", "ports", "prewarm"),
)
# Of the time after which the hub gives a worker up: a fenced task must be gone before another one starts elsewhere.
LEASE_SHARE = 0.75
UNHEARD = "the hub has answered nothing for too long: it may give up at any moment what is begun now"
REMEMBERED = 1000
# How long the supervisor may take to start what it was given, and how much longer its word is waited for: what it has
# not started by then it never will.
START_WITHIN_MS = 10_000
MARGIN_MS = 500
MAX_REASON = 200


class Machine(TaskTalk):
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
        start_within_ms: int = START_WITHIN_MS,
    ) -> None:
        self.name, self.incarnation, self.labels = name, incarnation, labels
        self.batch_total, self.service_total = slots, service_slots
        self.capability, self.devices = Capability(), tuple[Device, ...]()
        self.resources: dict[str, int] = {}
        self.accounts: list[dict[str, Any]] = []
        # What the attempts that run have used so far, as the last look at them found it.
        self.uses: dict[str, dict[str, Any]] = {}
        super().__init__(Calls(incarnation, ready, slots))
        self.journal_id = self.boot_id = self.address = ""
        self.max_epoch = self.max_turn = 0
        self._resend_ms = resend_ms
        self._contact = Contact(first_number(incarnation))
        self._refused_uids: dict[str, None] = {}
        self._asked: set[str] | None = None
        self.readiness = Readiness(start_within_ms)
        self.leases = Leases(DEFAULT_SPAN, first_number(incarnation))

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
        again: list[Effect] = []
        for item in state["attempts"]:
            if is_runner(item["uid"]) or is_probe(item["uid"]):
                continue
            meta = item.get("meta") or {}
            known = before.get(item["uid"])
            attempt = Running(uid=item["uid"], task_id=item["task_id"], pool=meta.get("pool", "batch"))
            attempt.phase, attempt.pid = item["phase"], item.get("pid") or 0
            attempt.started_at = item.get("started_at") or 0
            attempt.devices = tuple(meta.get("devices", ()))
            if item["phase"] == "accepted" and (behind := meta.get("behind")):
                attempt.phase, attempt.behind = "assigned", behind
            attempt.read_meta(meta)
            # No hub has told a new agent yet what it knows: nothing of that was sent by this one.
            attempt.said, attempt.known = (known.said, known.known) if known else (attempt.said, False)
            if (stop := item.get("stop")) is not None:
                attempt.stopping = Stopping(stop["reason"], now_ms + round(1000 * stop["grace_s"]))
            if item["phase"] == "exited":
                attempt.result = known.result if known and known.result else self._result_of(attempt, item)
            again += lay_again(attempt, meta)
            self.running[attempt.uid] = attempt
        asked, self._asked = self._asked or set(), None
        for uid in asked & before.keys():
            self.running.setdefault(uid, before[uid])
        self.readiness.attached(now_ms)
        self.health.attached(self.running)
        runners = [item for item in state["attempts"] if is_runner(item["uid"])]
        tried = [item["uid"] for item in state["attempts"] if is_probe(item["uid"])]
        forgotten: list[Effect] = [Supervise({"op": "acked", "uids": tried})] if tried else []
        forgotten += [effect for attempt in before.values() for effect in self._went_with(attempt)]
        return forgotten + again + self.calls.attached(runners, asked, now_ms)

    def _went_with(self, attempt: Running) -> list[Effect]:
        """What was asked to stop and went with a supervisor that had not written it down: nobody else can say so."""
        if attempt.uid in self.running or attempt.phase != "assigned" or attempt.stopping is None:
            return []
        self._never_start(attempt.uid)
        return [Tell("job_result", never_started(attempt.task_id, attempt.uid))]

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
            return self._all_exited(event["items"], now_ms)
        if kind == "refused":
            return self._refused(event, now_ms)
        if kind == "littered":
            return self.calls.runner_littered(event["uid"], now_ms)
        if kind == "pong":
            self.readiness.answered()
            return self._trouble(event["refusal"], now_ms) if event.get("refusal") else []
        if kind == "stopping":
            return self._stopped(event, now_ms)
        if kind == "next_stage" and (attempt := self.running.get(event["uid"])) is not None:
            attempt.pid = event["pid"]
        return []

    def _all_exited(self, items: list[dict[str, Any]], now_ms: int) -> list[Effect]:
        trouble = next((item for item in items if item.get("host") and not is_probe(item["uid"])), None)
        tasks = [item for item in items if not is_runner(item["uid"])]
        effects = [effect for item in tasks for effect in self._exited(item, now_ms)]
        if trouble is not None:
            effects += self._trouble(trouble["error"], now_ms)
        elif effects and self.registered and not any(one.waits for one in self.running.values()):
            effects.append(self._ready("finished"))
        gone = (item for item in items if is_runner(item["uid"]))
        return effects + [effect for item in gone for effect in self._runner_gone(item, now_ms)]

    def _runner_gone(self, item: dict[str, Any], now_ms: int) -> list[Effect]:
        if self.calls.never_came(item["uid"]):
            self.readiness.doubt()
        return self.calls.runner_exited(item, now_ms)

    def _accepted(self, uid: str) -> list[Effect]:
        attempt = self.running.get(uid)
        if attempt is None or attempt.phase not in ("assigned", "accepted"):
            return []
        attempt.phase = "accepted"
        return [Tell("job_accepted", acceptance(attempt, self.address))]

    def _prepared(self, item: dict[str, Any]) -> list[Effect]:
        attempt = self.running.get(item["uid"])
        if attempt is not None:
            attempt.read_meta(item["meta"])
        accepted = self._accepted(item["uid"])
        return accepted + let_go(attempt) if attempt is not None and "tree" in item["meta"] else accepted

    def _started(self, item: dict[str, Any]) -> list[Effect]:
        attempt = self.running.get(item["uid"])
        if item["uid"] in self._refused_uids:
            # The hub was told that it never will: it must not run on beside the next attempt.
            return [Supervise({"op": "cancel", "uid": item["uid"], "reason": "superseded", "grace_s": 0.0})]
        if attempt is None or attempt.phase == "exited":
            return []
        # The acceptance alone names its ports, and a start that comes first takes its place.
        first = self._accepted(attempt.uid) if attempt.ports and attempt.phase == "assigned" else []
        attempt.phase, attempt.pid, attempt.started_at = "running", item["pid"], item["started_at"]
        devices = list(attempt.devices)
        payload = {"task_id": attempt.task_id, "attempt": attempt.uid, "pid": attempt.pid, "devices": devices}
        self.health.begin(attempt)
        return [*first, Tell("job_started", payload), *self._able()]

    def _exited(self, item: dict[str, Any], now_ms: int) -> list[Effect]:
        if is_probe(item["uid"]):
            acked: list[Effect] = [Supervise({"op": "acked", "uids": [item["uid"]]})]
            fault = item["error"] if item.get("host") else ""
            return acked + (self._probed(fault, now_ms) if self._is_newest(item["uid"]) else [])
        attempt = self.running.get(item["uid"])
        if attempt is None and item["uid"] in self._refused_uids:
            # The hub has long heard of its end.
            return [Supervise({"op": "acked", "uids": [item["uid"]]})]
        if attempt is None or attempt.phase == "exited":
            return []
        attempt.phase = "exited"
        self.health.end(attempt.uid)
        self.yields.ended(attempt.uid)
        attempt.result = self._result_of(attempt, item)
        # A hub restored from a backup refuses the output of what it does not know.
        printed = attempt.known and any((item.get("out") or {"all": 1}).values())
        ship: list[Effect] = [Ship(attempt.uid, attempt.task_id, ended=True)] if printed else []
        return [*ship, *self._send_result(attempt, now_ms)]

    def _result_of(self, attempt: Running, item: dict[str, Any]) -> dict[str, Any]:
        return result_of(attempt, tell_fault(attempt, item), self.uses.get(attempt.uid))

    def _stopped(self, event: dict[str, Any], now_ms: int) -> list[Effect]:
        attempt = self.running.get(event["uid"])
        if attempt is None:
            return []
        attempt.stopping = Stopping(event["reason"], now_ms + round(1000 * event["grace_s"]))
        return [Warn(attempt.uid, attempt.stopping.describe(now_ms))]

    def _refused(self, event: dict[str, Any], now_ms: int) -> list[Effect]:
        uid, error, host = event.get("uid") or "", event["error"], bool(event.get("host"))
        if is_probe(uid):
            return self._probed(error, now_ms) if self._is_newest(uid) else []
        if is_runner(uid):
            trouble = self._trouble(error, now_ms) if host else []
            return trouble + self.calls.runner_exited(event, now_ms)
        attempt = self.running.get(uid)
        if attempt is None or attempt.phase == "exited":
            return []
        if event.get("elsewhere"):
            return self._hand_back(attempt, error, now_ms)
        if host:
            return self._hand_back(attempt, error, now_ms) + self._trouble(error, now_ms)
        # The supervisor keeps no record of it: an assignment that comes twice must not start it after all.
        self._never_start(uid)
        exit_ = {"state": "failed", "exit_code": None, "exit_class": "refused", "error": error}
        return self._exited({"uid": uid, **exit_}, now_ms)

    # --- whether anything can be started ------------------------------------------------------------------------------

    def _hand_back(self, attempt: Running, error: str, now_ms: int) -> list[Effect]:
        """Give back what was not started and never will be."""
        self._never_start(attempt.uid)
        return self._exited({"uid": attempt.uid, **unstarted(error)}, now_ms)

    def _trouble(self, reason: str, now_ms: int) -> list[Effect]:
        """Something could not be started, through no fault of its own: nothing is taken on until a trial goes well."""
        news = self.readiness.troubled(reason, now_ms)
        return [*self._tell_readiness(now_ms, news), *self.calls.bar(True, now_ms)]

    def _probed(self, fault: str, now_ms: int) -> list[Effect]:
        news = self.readiness.probed(fault, now_ms)
        barred = bool(self.readiness.reason)
        return [*self._tell_readiness(now_ms, news), *self.calls.bar(barred, now_ms)]

    def _is_newest(self, uid: str) -> bool:
        return uid == f"{PROBE_PREFIX}{self.incarnation}-{self.readiness.count}"

    def probe_failed(self, fault: str, now_ms: int) -> list[Effect]:
        """A trial start could not even be asked for."""
        return self._probed(fault, now_ms)

    def supervisor_gone(self, now_ms: int) -> list[Effect]:
        """There is nobody to start anything, until another supervisor is attached."""
        return self._trouble("its supervisor is gone, another one is being started", now_ms)

    def _able(self) -> list[Effect]:
        """Something has started: more may come where less was asked for."""
        return [self._ready("started")] if self.readiness.started() and self.registered else []

    def _tell_readiness(self, now_ms: int, news: bool) -> list[Effect]:
        if not news or not self.registered:
            return []
        self.readiness.told(now_ms)
        return [self._ready("not ready" if self.readiness.reason else "polling")]

    def _watch_starts(self, now_ms: int) -> list[Effect]:
        """Notice a supervisor that does not answer, give back what it has not started in time, try again in time."""
        readiness = self.readiness
        if readiness.is_late(now_ms):
            return []
        late = [a for a in self.running.values() if a.start_by_ms and self._is_overdue(a, now_ms)]
        effects = [effect for attempt in late for effect in self._hand_back(attempt, NO_ANSWER, now_ms)]
        if late or readiness.takes_long(now_ms):
            effects += self._trouble(NO_ANSWER, now_ms)
        if number := readiness.tries(now_ms):
            uid = f"{PROBE_PREFIX}{self.incarnation}-{number}"
            effects.append(Probe(uid, now_ms + readiness.within_ms))
        if readiness.pings(now_ms):
            effects.append(Supervise({"op": "ping"}))
        if readiness.repeats(now_ms) and self.registered:
            effects.append(self._ready("polling"))
        return effects

    def _is_overdue(self, attempt: Running, now_ms: int) -> bool:
        held = attempt.phase == "accepted" and attempt.gang is None and not attempt.unready
        return (attempt.phase == "assigned" or held) and now_ms > attempt.start_by_ms + MARGIN_MS

    # --- the hub's side -----------------------------------------------------------------------------------------------

    def registration(self, now_ms: int) -> dict[str, Any]:
        """The first message of a session: all that this worker is, runs and has finished."""
        self._contact.registering(now_ms)
        self.prewarming.registering()
        finished = [attempt.result for attempt in self.running.values() if attempt.result is not None]
        return {
            "id": self.name,
            "capabilities": msgspec.to_builtins(self.capability),
            "active_tasks": [
                {"task_id": attempt.task_id, "state": attempt.phase, "attempt": attempt.uid}
                for attempt in list_active(self.running)
            ]
            + self.calls.describe_active(),
            "slots": msgspec.to_builtins(self.slots()),
            "incarnation": self.incarnation,
            "boot_id": self.boot_id,
            "journal_id": self.journal_id,
            "max_epoch_seen": self.max_epoch,
            "max_turn_seen": self.max_turn,
            "finished_unacked": finished + self.calls.finished(),
            "labels": self.labels,
            "devices": msgspec.to_builtins(self.devices),
            "address": self.address,
            "features": list(FEATURES),
            "resources": self.resources,
            "ports": len(self.leases.span),
            "accounts": self.accounts,
            **self.said,
        }

    def slots(self) -> Slots:
        """How many slots there are and how many tasks hold one now. Lanes are not among them: the hub counts those,
        and does not say when it closes one.
        """
        live = [
            attempt.pool
            for attempt in self.running.values()
            if attempt.phase != "exited" and not attempt.waits and attempt.uid not in self.yields
        ]
        return Slots(self.batch_total, live.count("batch"), self.service_total, live.count("service"))

    def heartbeat(self, now_ms: int) -> Tell:
        """A sign of life with the whole capability. Its ack proves that the hub heard: leases run from its sending."""
        self._contact.beating(now_ms)
        active = [attempt.uid for attempt in self.running.values() if attempt.phase != "exited"]
        payload = {
            "worker_id": self.name,
            "slots": msgspec.to_builtins(self.slots()),
            "capability": msgspec.to_builtins(self.capability),
            "devices": msgspec.to_builtins(self.devices),
            "active": active + self.calls.unfinished(),
            "beat": self._contact.beat,
            **self.prewarming.tell(),
        }
        if self.uses:
            payload["usage"] = {"attempts": self.uses}
        return Tell("heartbeat", payload)

    def _ready(self, reason: str) -> Tell:
        slots = msgspec.to_builtins(self.slots())
        payload = {"worker_id": self.name, "slots": slots, "reason": reason}
        payload["credits"] = self.readiness.credits
        if self.readiness.reason:
            payload["not_ready"] = self.readiness.reason[:MAX_REASON]
        return Tell("ready_for_work", payload, acked=False)

    def acked(self, ack: Ack, now_ms: int) -> list[Effect]:
        """Forget what the hub has recorded; after registering, ask for work."""
        effects: list[Effect] = []
        known = known_to_hub(ack)
        if ack.epoch:
            if ack.epoch < self.max_epoch:
                text = f"the hub's epoch {ack.epoch} is behind {self.max_epoch}, which this worker has seen"
                return [Refuse(text)]
            self.max_turn = max(self.max_turn, ack.turn) if ack.epoch == self.max_epoch else ack.turn
            if ack.epoch > self.max_epoch:
                self.max_epoch = ack.epoch
                effects.append(Supervise({"op": "epoch", "value": ack.epoch}))
        if ack.re == "heartbeat" and self._contact.beat_answered(ack.beat):
            effects.append(Supervise({"op": "renew", "age_s": (now_ms - self._contact.heard_ms) / 1000}))
        if ack.re == "register":
            self._contact.registered()
            # Before the results below are let go: what ended while nobody listened has output to send as well.
            for attempt in self.running.values():
                attempt.known = attempt.uid in known
                attempt.said.repeat()
                effects += let_forgotten_go(attempt)
                if attempt.known:
                    effects.append(Ship(attempt.uid, attempt.task_id, attempt.phase == "exited"))
                # Without its ports a gang is not started: of its members the hub has heard them.
                told = attempt.gang is not None or not attempt.ports
                if attempt.known and not told and attempt.phase in ("accepted", "running"):
                    effects.append(Tell("job_accepted", acceptance(attempt, self.address)))
        for uid in ack.results:
            if self.calls.forget(uid):
                self.yields.ended(uid)
        # What runs is not let go by an answer to a twin under this name, which said that it has no such thing.
        done = [uid for uid in ack.results if uid in self.running and self.running[uid].phase == "exited"]
        for attempt in [self.running.pop(uid) for uid in done]:
            effects += ship_late(attempt) if attempt.uid in known else []
        if done:
            effects.append(Supervise({"op": "acked", "uids": done}))
        if ack.re == "register":
            self.registered = True
            effects += [
                *self.yields.repeat_all(now_ms),
                *self.health.repeat(),
                self._ready("registered"),
                *self.calls.registered(now_ms),
            ]
        return effects

    def assigned(self, message: JobAssign, now_ms: int) -> list[Effect]:
        """Take a task on; one that is here already is answered by how it stands."""
        uid = message.attempt.uid
        known = self.running.get(uid)
        if known is not None:
            # Though a report that was made before it was accepted could not name it.
            return ship_late(known) + self._tell_again(known, now_ms)
        if uid in self._refused_uids:
            return [Tell("job_result", never_started(message.spec.id, uid))]
        spec = message.spec
        if self.readiness.reason:
            self._never_start(uid)
            error = f"this worker is not ready: {self.readiness.reason}"
            # Who sends something now has not heard so, or heard something older since.
            return [Tell("job_result", never_started(spec.id, uid, error)), self._ready("not ready")]
        lease_s = message.lease_s * LEASE_SHARE or None
        if lease_s is not None and self._contact.heard_ms + 1000 * lease_s <= now_ms:
            self._never_start(uid)
            return [Tell("job_result", never_started(spec.id, uid, UNHEARD))]
        pool = spec.slot_pool or spec.type
        attempt = Running(uid=uid, task_id=spec.id, pool=pool, devices=tuple(message.devices))
        attempt.behind, attempt.health, attempt.named = message.behind, spec.health_check, spec.ports
        attempt.unready = waits_for_tree(spec)
        start_by_ms = now_ms + self.readiness.within_ms + round(1000 * message.behind_s)
        # Of one that must not run twice the supervisor's own word is waited for, and the hub's timers.
        attempt.start_by_ms = 0 if is_careful(spec) else start_by_ms
        self.running[uid] = attempt
        if self._asked is not None:
            self._asked.add(uid)
        limit_s = None if message.remaining_time >= FOREVER_NS else message.remaining_time / 1e9
        grace_s = TIERS[spec.job_tier].grace_s
        devices, number = tuple(message.devices), message.attempt.no
        launch = Launch(uid, spec, limit_s, grace_s, devices, number, lease_s, message.gang, start_by_ms)
        heard_ms = self._contact.heard_ms if lease_s is not None else 0
        launch = launch._replace(behind=message.behind, behind_s=message.behind_s, heard_ms=heard_ms)
        return [launch._replace(token=message.token)]

    def _tell_again(self, attempt: Running, now_ms: int) -> list[Effect]:
        if attempt.phase == "exited":
            return self._send_result(attempt, now_ms)
        return [] if attempt.phase == "assigned" else self._accepted_again(attempt)

    def _accepted_again(self, attempt: Running) -> list[Effect]:
        effects: list[Effect] = [Tell("job_accepted", acceptance(attempt, self.address))]
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
        attempt.peers = name_peers(attempt.gang, message.peers)
        return let_go(attempt)

    def calls_assigned(self, message: CallsAssign, now_ms: int) -> list[Effect]:
        """Take calls on; of a lane that is never to start, only its end is told again."""
        if message.lane in self._refused_uids:
            return [Tell("job_result", never_started(message.job, message.lane))]
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
                if attempt.phase == "assigned":
                    attempt.stopping = Stopping(message.reason, now_ms)
                return [Supervise(request)]
            if named:
                return []
        if not message.attempt:
            return []
        self._never_start(message.attempt)
        return [Tell("job_result", never_started(message.task_id, message.attempt))]

    def _never_start(self, uid: str) -> None:
        self._refused_uids[uid] = None
        if len(self._refused_uids) > REMEMBERED:
            del self._refused_uids[next(iter(self._refused_uids))]

    def disconnected(self) -> None:
        """The session is gone; what runs goes on."""
        self.registered = False
        self._contact.lost()
        self.calls.disconnected()
        for attempt in self.running.values():
            attempt.sends = 0

    # --- time ---------------------------------------------------------------------------------------------------------

    def resend(self, now_ms: int) -> list[Effect]:
        """Send what tasks said meanwhile, and results again that were not acked in time."""
        watched = self._watch_starts(now_ms)
        if not self.registered:
            return watched
        live = [attempt for attempt in self.running.values() if attempt.phase != "exited"]
        told = watched + self._tell_progress(live, now_ms)
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
        """Send every unacked result at once: a new supervisor has just told what became of the old one's tasks.

        And what they printed: the old one may have died with the word of an end, and even of a start, on its lips.
        """
        effects: list[Effect] = []
        for attempt in self.running.values():
            if attempt.result is not None:
                effects += [Ship(attempt.uid, attempt.task_id, ended=True)] if attempt.known else []
                effects += self._send_result(attempt, now_ms)
        return effects

    def _patience_ms(self, attempt: Running) -> int:
        return self._resend_ms[min(max(attempt.sends - 1, 0), len(self._resend_ms) - 1)]

    def _send_result(self, attempt: Running, now_ms: int) -> list[Effect]:
        attempt.sent_ms, attempt.sends = now_ms, attempt.sends + 1
        if not self.registered or attempt.result is None:
            return []
        return [Tell("job_result", attempt.result)]
