"""A machine with somebody else's worker: base protocol only, no supervisor, no memory beyond its process.

Some of them name the attempt they speak of, some do not; none keeps a time limit, renews a lease or asks again. What
runs on one dies with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from dray.core.model.specs.resources import WHOLE
from dray.core.model.specs.spec import TIERS, JobSpec
from dray.sim.faults.nodes.hub import HubNode
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.nodes.runs import Behaviour, CallRuns, Execution, Runs
from dray.sim.faults.nodes.worker import HEARTBEAT_MS, SILENCE_MS, capability_with
from dray.sim.faults.world.network import Connection, Message, Weather
from dray.sim.faults.world.world import World

POLL_MS = 4000
OVERDUE_MS = 20_000


class Work(msgspec.Struct):
    """One process of a foreign worker."""

    execution: Execution
    behaviour: Behaviour
    uid: str
    stopping: bool = False


class ForeignNode:
    """A base-only worker and its network."""

    def __init__(
        self,
        world: World,
        hub: HubNode,
        name: str,
        runs: Runs,
        behave: Callable[[str], Behaviour],
        callers: CallRuns | None = None,
    ) -> None:
        self.world, self.hub, self.name, self.machine_name = world, hub, name, name
        self.weather = Weather(ordered=True)
        self.slots = world.rng.randint(1, 3)
        self.cards = world.rng.choice([0, 0, 2])
        runs.slots[name, "batch"] = self.slots
        self.names_attempts = world.rng.random() < 0.5
        # Those say of what they could not start that it never began; the others have no word for it.
        self.says_unstarted = self.names_attempts
        self.full = self.up = self.retired = False
        self.life = 0
        self.connection: Connection | None = None
        self._runs, self._behave = runs, behave
        self._works: dict[str, Work] = {}
        self._seen: set[tuple[str, str]] = set()
        self._results: dict[int, dict[str, Any]] = {}
        self._sent: list[int] = []
        self._count = 0
        self._heard_ms = 0
        self._dialling = False

    # --- its life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin with nothing."""
        if self.up:
            return
        self.up = True
        self.life += 1
        self._dial(0)
        self.world.at(self.world.rng.randint(0, HEARTBEAT_MS), self._beat, self.life)
        self.world.at(POLL_MS, self._poll, self.life)

    def die(self) -> None:
        """The process ends, and all its children with it."""
        if not self.up:
            return
        self.up = False
        self.life += 1
        for work in self._works.values():
            self._runs.end(work.execution, "killed")
        self._works.clear()
        self._results.clear()
        if self.connection is not None:
            self.connection.break_off()
        self.connection = None
        self.world.at(self.world.rng.randint(100, 20_000), self.start)

    def leave(self) -> None:
        """A clean goodbye, back later."""
        if self.up and self.connection is not None:
            self.connection.break_off(1001)
            self.connection = None
        self.die()

    def still_has(self, uid: str) -> bool:
        """It promises nothing of the kind."""
        return False

    def lie(self, run: Execution) -> None:
        """Speak for an attempt that is another machine's."""
        claim = {"task_id": run.task_id, "attempt": run.uid, "state": "succeeded", "exit_code": 0}
        if self.connection is not None:
            self._sent.append(0)  # this, too, gets an answer
            self._say("job_result", claim)

    def supervisor_dies(self, untold: bool = False) -> None:
        """There is only one process."""
        self.die()

    def reboot(self, wiped: bool) -> None:
        """It keeps nothing either way."""
        self.die()

    # --- the link ---------------------------------------------------------------------------------------------------

    def _dial(self, delay_ms: int) -> None:
        if not self._dialling:
            self._dialling = True
            self.world.at(delay_ms, self._connect)

    def _connect(self) -> None:
        self._dialling = False
        if not self.up or self.connection is not None:
            return
        if not self.hub.open or self.weather.cut:
            self._dial(self.world.rng.randint(100, 5000))
            return
        connection = Connection(self.world, self.weather, self.world.rng.getrandbits(60), self.name)
        connection.to_agent, connection.agent_hears_end = self._hub_said, self._session_over
        if not self.hub.connect(connection):
            self._dial(self.world.rng.randint(100, 1000))
            return
        self.connection = connection
        self._heard_ms = self.world.now_ms
        self._sent = []
        active = [
            {"task_id": work.execution.task_id, "state": "running"}
            | ({"attempt": work.uid} if self.names_attempts else {})
            for work in self._works.values()
        ]
        capability = msgspec.to_builtins(capability_with(self.cards))
        self._say("register", {"id": self.name, "capabilities": capability, "active_tasks": active})
        for number in list(self._results):
            self._send_result(number)
        self._ready()

    def _session_over(self, connection: Connection, code: int) -> None:
        if self.connection is connection:
            self.connection = None
            self._dial(self.world.rng.randint(100, 3000))

    def _say(self, kind: str, payload: dict[str, Any]) -> None:
        if self.connection is not None:
            self.connection.send_up({"type": kind, "payload": payload})

    def _slots(self) -> dict[str, int]:
        return {"batch_total": self.slots, "batch_in_use": len(self._works)}

    def _ready(self) -> None:
        self._say("ready_for_work", {"worker_id": self.name, "slots": self._slots(), "reason": "polling"})

    def _beat(self, life: int) -> None:
        if self.up and life == self.life:
            payload = {"worker_id": self.name, "slots": self._slots()}
            self._say("heartbeat", payload | {"capability": msgspec.to_builtins(capability_with(self.cards))})
            self.world.at(HEARTBEAT_MS, self._beat, life)

    def _poll(self, life: int) -> None:
        if not self.up or life != self.life:
            return
        if self.connection is not None and self.world.now_ms - self._heard_ms > SILENCE_MS:
            connection = self.connection
            connection.break_off()
            self._session_over(connection, 1006)
        self._ready()
        self.world.at(POLL_MS, self._poll, life)

    # --- work -------------------------------------------------------------------------------------------------------

    def _hub_said(self, connection: Connection, message: Message) -> None:
        if not self.up or self.connection is not connection:
            return
        self._heard_ms = self.world.now_ms
        kind, payload = message["type"], message.get("payload", {})
        if kind == "job_assign":
            self._take(payload)
        elif kind == "job_cancel":
            self._stop(payload["task_id"], payload["attempt"], round(1000 * payload["grace_s"]))
        elif self._sent and _answers_result(kind, message):
            # A socket keeps its order: the first answer is for the first result sent on it.
            self._results.pop(self._sent.pop(0), None)

    def _key(self, task_id: str, uid: str) -> str:
        """A uid counts only for its own task: it shows no hub its epoch, so a restored one may draw that uid again."""
        return f"{task_id} {uid}" if self.names_attempts else task_id

    def _take(self, payload: dict[str, Any]) -> None:
        spec, uid = msgspec.convert(payload["spec"], JobSpec), payload["attempt"]["uid"]
        key = self._key(spec.id, uid)
        named = {"attempt": uid} if self.names_attempts else {}
        known = self._works.get(key)
        if known is not None:
            known.uid = uid
            self._say("job_accepted", {"task_id": spec.id, **named})
            return
        if (spec.id, uid) in self._seen:
            return
        self._seen.add((spec.id, uid))
        if not self.names_attempts:
            # Without names an old result would be taken for the new one's.
            self._results = {n: r for n, r in self._results.items() if r["task_id"] != spec.id}
        if self.full:
            refusal = {"task_id": spec.id, "state": "failed", "exit_code": 1, "error": "disk full", **named}
            if self.says_unstarted:
                self._runs.hand_back(self.name, uid, spec.id)
                self._report(refusal | {"exit_class": "lost_unstarted"})
            else:
                self._runs.refuse(self.name, spec.id)
                self._report(refusal)
            self._ready()
            return
        self._say("job_accepted", {"task_id": spec.id, **named})
        execution = Execution(
            spec.id,
            uid,
            self.name,
            self.name,
            self.world.now_ms,
            tuple(payload["devices"]),
            spec.gpu_milli or WHOLE,
            names_attempt=self.names_attempts,
        )
        self._runs.begin(execution)
        work = self._works[key] = Work(execution, self._behave(spec.id), uid)
        self.world.at(work.behaviour.duration_ms, self._finish, key, work, work.behaviour.state)
        if payload["remaining_time"] < 1 << 62:
            grace_ms = 1000 * TIERS[spec.job_tier].grace_s
            budget_ms = payload["remaining_time"] // 1_000_000 + grace_ms
            self.world.at(budget_ms + OVERDUE_MS, self._look, work, self.connection, self.hub.life, grace_ms)
        self._ready()

    def _look(self, work: Work, connection: Connection | None, life: HubLife | None, grace_ms: int) -> None:
        """Its time limit is the hub's to keep: nothing was in the way, and still it runs. A hub that stood still keeps
        it from when it went on.
        """
        run, now_ms = work.execution, self.world.now_ms
        if life is None or life is not self.hub.life or not self.hub.up:
            return
        if connection is None or connection is not self.connection:
            return
        if run.ended_ms >= 0 or run.stranger or not connection.undisturbed(now_ms - run.began_ms):
            return
        wait_ms = life.awake_ms + grace_ms + OVERDUE_MS - now_ms
        if wait_ms <= 0:
            self.world.fail(f"{run} runs far beyond its time limit")
        self.world.at(wait_ms, self._look, work, connection, life, grace_ms)

    def _stop(self, task_id: str, uid: str, grace_ms: int) -> None:
        key = self._key(task_id, uid)
        work = self._works.get(key)
        if work is None:
            return
        if self.names_attempts and not self._runs.may_be_stopped(work.execution):
            self.world.fail(f"the hub stops {work.execution}, of which it never heard")
        if not work.stopping:
            work.stopping = True
            delay = self.world.rng.randint(1, 500) if work.behaviour.heeds_term else max(grace_ms, 0)
            self.world.at(min(delay, max(grace_ms, 0)), self._finish, key, work, "killed")

    def _finish(self, key: str, work: Work, state: str) -> None:
        if self._works.get(key) is not work or (work.stopping and state != "killed"):
            return
        del self._works[key]
        self._runs.end(work.execution, state)
        code = 143 if state == "killed" else work.behaviour.exit_code
        result = {"task_id": work.execution.task_id, "state": state, "exit_code": code}
        self._report(result | ({"attempt": work.uid} if self.names_attempts else {}))
        self._ready()

    def _report(self, result: dict[str, Any]) -> None:
        self._count += 1
        self._results[self._count] = result
        self._send_result(self._count)

    def _send_result(self, number: int) -> None:
        if self.connection is not None:
            self._sent.append(number)
            self._say("job_result", self._results[number])


def _answers_result(kind: str, message: Message) -> bool:
    if kind == "ack":
        return bool(message["payload"]["re"] == "job_result")
    return kind == "error" and str(message["error"]).startswith("job_result")
