"""One machine with dray's own agent: the product's pure machine on a simulated supervisor and network.

Agent, supervisor and host die separately.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from dray.agent.decide.attempts import NOT_HERE, known_to_hub
from dray.agent.decide.effects import (
    BindRunner,
    Effect,
    FeedRunner,
    Grant,
    Launch,
    Nudge,
    Probe,
    Recall,
    Refuse,
    Ship,
    StartRunner,
    Supervise,
    Tell,
    Warn,
)
from dray.agent.decide.leases import wanted
from dray.agent.decide.machine import Machine
from dray.core.model.capability import Capability, Device
from dray.core.model.units import GB
from dray.sim.faults.nodes.hub import HubNode
from dray.sim.faults.nodes.runs import Behaviour, CallRuns, Execution, NoCalls, Runs, card_gb, has_ports
from dray.sim.faults.nodes.supervisor import Supervisor
from dray.sim.faults.world.market import labels_of
from dray.sim.faults.world.network import Connection, Message, Weather
from dray.sim.faults.world.world import World
from dray.wire.messages.hub import HUB_PAYLOADS, JobCancel

RESEND_MS = (1000, 2000, 4000, 8000, 16000, 30000)
HEARTBEAT_MS = 10_000
SILENCE_MS = 30_000
NEVER_SAVED = 1 << 40
# How long a supervisor that is to die with an end untold is let live until there is one.
DOOMED_MS = 5000
FEW_PORTS = range(20_000, 20_003)
# A program that is no task has a port for so long, and so much of the time.
STRANGER_MS, STRANGER_SHARE = 20_000, 0.1


class WorkerNode:
    """A machine with its agent and its network."""

    def __init__(
        self,
        world: World,
        hub: HubNode,
        name: str,
        runs: Runs,
        behave: Callable[[str], Behaviour],
        callers: CallRuns | None = None,
        twin: int = 0,
    ) -> None:
        self.world, self.hub, self.name = world, hub, name
        callers = callers or NoCalls()
        self.machine_name = f"{name}-twin-{twin}" if twin else name
        self.weather = Weather()
        self._runs = runs
        self.supervisor = Supervisor(world, name, self.machine_name, runs, behave, callers)
        self.slots, self.service_slots = world.rng.randint(1, 3), world.rng.randint(0, 1)
        self.cards = world.rng.choice([0, 0, 1, 2, 4])
        self.card_gb = self.supervisor.card_gb = card_gb(world.seed, name)
        self.licences = random.Random(f"licences {world.seed} {name}").choice([0, 1, 2])  # chance, no secret
        runs.slots[self.machine_name, "batch"] = self.slots
        runs.slots[self.machine_name, "service"] = self.service_slots
        self.up = self.retired = False
        # Whether another machine goes by its name: what one of the two heard its hub takes for heard by both.
        self.shared = bool(twin)
        self._hub_of: dict[int, int] = {}
        self.life = 0
        self.connection: Connection | None = None
        self.machine: Machine | None = None
        self._heard_ms = 0
        self._dialling = False
        self._looking = False
        self._called_ms = 0
        self._ready_runners = self.slots if callers.on else 0
        self._young: dict[str, list[Tell]] = {}
        self._looked_ms: dict[str, int] = {}
        # Of which attempts the agent that lives now sends on what they printed.
        self._shipped: set[str] = set()

    # --- the agent's life -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A (new) agent attaches to the supervisor and dials."""
        if self.up or self.retired:
            return
        self.up = True
        self.life += 1
        if not self.supervisor.alive:
            self.supervisor.come_back()
        incarnation = f"{self.machine_name}-{self.life}"
        self.machine = Machine(
            *(self.name, incarnation, self.slots, self.service_slots, RESEND_MS),
            *(labels_of(self.world.seed, self.name), self._ready_runners),
        )
        self._young.clear()
        self._shipped.clear()
        self._hub_of.clear()
        self.machine.capability = capability_with(self.cards, self.card_gb)
        self.machine.resources = {"licence": self.licences}
        if has_ports(self.world.seed):
            self.machine.leases.span = FEW_PORTS
        self.machine.devices = tuple(
            Device(index=index, model="H100", vram_bytes=self.card_gb * GB) for index in range(self.cards)
        )
        self._attach()
        self._dial(0)
        self.world.at(self.world.rng.randint(0, HEARTBEAT_MS), self._beat, self.life)
        self.world.at(1000, self._tick, self.life)

    def _attach(self) -> None:
        assert self.machine is not None
        life = self.life
        self.supervisor.change_hands()
        self.supervisor.runners.tell = lambda what, arguments: self._later_called(life, what, arguments)
        self._carry_out(self.machine.attached(self.supervisor.state(), self.world.now_ms))
        self.supervisor.tell = lambda event: self._later_supervised(life, event)
        self.supervisor.hear = lambda uid, words: self._later_said(life, uid, words)
        self.supervisor.speak_again()

    def _later_supervised(self, life: int, event: dict[str, Any]) -> None:
        self.world.at(self.world.rng.randint(0, 2), self._supervised, life, event)

    def _supervised(self, life: int, event: dict[str, Any]) -> None:
        if self.up and life == self.life and self.machine is not None:
            self._carry_out(self.machine.supervised(event, self.world.now_ms))

    def _later_said(self, life: int, uid: str, words: dict[str, Any]) -> None:
        self.world.at(self.world.rng.randint(0, 2), self._said, life, uid, words)

    def _said(self, life: int, uid: str, words: dict[str, Any]) -> None:
        if self.up and life == self.life and self.machine is not None:
            self._carry_out(self.machine.task_said(uid, words, self.world.now_ms))

    def _later_called(self, life: int, what: str, arguments: tuple[Any, ...]) -> None:
        # Over a socket: late, and in order.
        delay_ms = self.supervisor.runners.rng.randint(0, 2)
        self._called_ms = max(self._called_ms, self.world.now_ms + delay_ms)
        self.world.at(self._called_ms - self.world.now_ms, self._called, life, what, arguments)

    def _called(self, life: int, what: str, arguments: tuple[Any, ...]) -> None:
        """A runner, or the call that it is in, has said something."""
        if self.up and life == self.life and self.machine is not None:
            side: Any = self.machine if what == "task_said" else self.machine.calls
            self._carry_out(getattr(side, what)(*arguments, self.world.now_ms))

    def kill_runner(self, draw: int) -> None:
        """A runner dies in the middle of whatever it does."""
        living = [runner.uid for runner in self.supervisor.runners.runners.values() if not runner.gone]
        if living:
            self.supervisor.runners.kill(living[draw % len(living)])

    def die(self) -> None:
        """kill -9 of the agent; its tasks go on, its runners end with it."""
        if self.up:
            self.up = False
            self.life += 1
            self.supervisor.tell = lambda event: None
            self.supervisor.hear = lambda uid, words: None
            self.supervisor.runners.tell = lambda what, arguments: None
            self.supervisor.runners.end_all()
            # Its word goes with it where the hub has not heard it: then it is asked for the same attempt again.
            self.supervisor.denied.clear()
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

    def retire(self) -> None:
        """Switch the machine off for good."""
        self.retired = True
        self.die()
        self.supervisor.die()
        self.supervisor.come_back()

    def still_has(self, uid: str) -> bool:
        """Whether its journal answers for this attempt: begun, and not acked."""
        record = self.supervisor.records.get(uid)
        return record is not None and not record.acked and record.phase != "accepted"

    def lie(self, run: Execution) -> None:
        """Speak for an attempt that is another machine's."""
        if self.connection is not None:
            claim = {"task_id": run.task_id, "attempt": run.uid, "state": "succeeded", "exit_code": 0}
            self.connection.send_up({"type": "job_result", "payload": claim})
            saved = {"task_id": run.task_id, "attempt": run.uid, "saved_step": NEVER_SAVED}
            self.connection.send_up({"type": "job_progress", "payload": saved})

    @property
    def full(self) -> bool:
        """Whether the disk is."""
        return self.supervisor.full

    @full.setter
    def full(self, full: bool) -> None:
        self.supervisor.full = full

    @property
    def childless(self) -> bool:
        """Whether no process can be started."""
        return self.supervisor.childless

    @childless.setter
    def childless(self, childless: bool) -> None:
        self.supervisor.childless = childless

    @property
    def broken(self) -> bool:
        """Whether everything that starts here fails at once."""
        return self.supervisor.broken

    @broken.setter
    def broken(self, broken: bool) -> None:
        self.supervisor.broken = broken

    @property
    def stalled(self) -> bool:
        """Whether the supervisor answers nothing."""
        return self.supervisor.stalled

    @stalled.setter
    def stalled(self, stalled: bool) -> None:
        self.supervisor.stalled = stalled

    def supervisor_dies(self, untold: bool = False) -> None:
        """The agent notices and starts another, which reports what became of the tasks. `untold`: not before one of
        them has ended and that is on record, and nobody has heard it.
        """
        if untold and self.supervisor.alive and self.supervisor.falls is None:
            self.supervisor.falls = self.supervisor_dies
            self.world.at(DOOMED_MS, self._let_fall, self.supervisor.life)
            return
        self.supervisor.die()
        self.world.at(self.world.rng.randint(10, 2000), self._supervisor_back)

    def _let_fall(self, life: int) -> None:
        if self.supervisor.falls is not None and life == self.supervisor.life:
            self.supervisor_dies()

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
        if not self.hub.open or self.weather.cut:
            self._dial(self.world.rng.randint(100, 5000))
            return
        assert self.machine is not None
        connection = Connection(self.world, self.weather, self.world.rng.getrandbits(60), self.machine_name)
        connection.to_agent = self._hub_said
        connection.agent_hears_end = self._session_over
        if not self.hub.connect(connection):
            self._dial(self.world.rng.randint(100, 1000))
            return
        self.connection = connection
        self._heard_ms = self.world.now_ms
        connection.send_up(
            {"type": "register", "payload": _plain(self.machine.registration(self.world.now_ms))}
        )

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
            self._note_epoch(message.get("hub", connection.hub), body.epoch)
            over = {uid: verdict for uid, verdict in body.results.items() if self._has_ended(uid)}
            self._carry_out(self.machine.acked(body, self.world.now_ms))
            self._judge_output(over, known_to_hub(body))
        elif kind == "job_assign":
            if body.behind:
                self._runs.fed_behind.add(body.attempt.uid)
            self._carry_out(self.machine.assigned(body, self.world.now_ms))
        elif kind == "job_go":
            self._carry_out(self.machine.go(body, self.world.now_ms))
        elif kind == "job_cancel":
            self._carry_out(self._stop(self.machine, body))
        elif kind == "calls_assign":
            self._carry_out(self.machine.calls_assigned(body, self.world.now_ms))
        elif kind == "calls_ack":
            self._carry_out(self.machine.calls_acked(body, self.world.now_ms))
        elif kind == "job_resume":
            self._carry_out(self.machine.resumed(body, self.world.now_ms))

    def _note_epoch(self, hub: int, epoch: int) -> None:
        """No two hubs speak to an agent under one epoch: fences would repeat, and nobody could tell them apart."""
        if not epoch or self.shared:
            return
        known = self._hub_of.setdefault(epoch, hub)
        if known != hub:
            self.world.fail(f"hubs {known} and {hub} both have epoch {epoch} for {self.name}")

    def _has_ended(self, uid: str) -> bool:
        attempt = self.machine.running.get(uid) if self.machine is not None else None
        return attempt is not None and attempt.phase == "exited"

    def _judge_output(self, verdicts: dict[str, str], known: set[str]) -> None:
        """What ran is forgotten here when the hub has heard its end: what it printed is on its way by then or lost."""
        for uid, verdict in verdicts.items():
            record = self.supervisor.records.get(uid)
            if uid not in known or record is None or not record.began or uid in self._shipped:
                continue
            self.world.fail(f"{self.machine_name} forgets {uid} ({verdict}) and sends nothing of its output")

    def _stop(self, machine: Machine, asked: JobCancel) -> list[Effect]:
        """Who is asked to stop what it does not have says so: until then its hub keeps the place for nothing."""
        here = asked.attempt in machine.running or asked.attempt in machine.calls.lanes
        effects = machine.cancelled(asked, self.world.now_ms)
        if asked.attempt and not here and not any(isinstance(effect, Tell) for effect in effects):
            self.world.fail(f"{self.name} was asked to stop {asked.attempt}, has it not, and said nothing")
        return effects

    def _beat(self, life: int) -> None:
        if self.up and life == self.life and self.machine is not None:
            if self.machine.registered:
                self.machine.uses = self._look_at_cards(self.machine)
                self._carry_out([self.machine.heartbeat(self.world.now_ms)])
            self.world.at(
                self.world.rng.randint(9 * HEARTBEAT_MS // 10, 11 * HEARTBEAT_MS // 10), self._beat, life
            )

    def _look_at_cards(self, machine: Machine) -> dict[str, dict[str, Any]]:
        """What each task does with its cards, drawn by its attempt: works, idles, idles by turns, or nobody knows."""
        uses: dict[str, dict[str, Any]] = {}
        for attempt in machine.running.values():
            if attempt.phase != "running" or not attempt.devices:
                continue
            ways = random.Random(f"cards {self.world.seed} {attempt.uid}")  # chance, no secret
            way = ways.choice(("works", "idles", "idles", "blinks", "unknown"))
            since_ms = self._looked_ms.setdefault(attempt.uid, self.world.now_ms)
            idle_ms = {"works": 0, "unknown": 0}.get(way, self.world.now_ms - since_ms)
            idle_s = idle_ms % (25_000 if way == "blinks" else 1 << 40) / 1000
            seen = attempt.devices[1:] if way == "unknown" else attempt.devices
            cards = [{"index": index, "share": 0.0 if idle_s else 1.0, "idle_s": idle_s} for index in seen]
            uses[attempt.uid] = {"gpu_seen_s": 1.0, "cards": cards}
            self._runs.idle_s[attempt.uid] = max(self._runs.idle_s.get(attempt.uid, 0.0), idle_s)
        return uses

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
                self._tell(effect)
            elif isinstance(effect, Launch):
                self._launch(effect)
            elif isinstance(effect, Probe):
                self.supervisor.ask(self.supervisor.probe, effect)
            elif isinstance(effect, Supervise):
                self._supervise(effect.request)
            elif isinstance(effect, Warn):
                self.supervisor.warn(effect.uid)
            elif isinstance(effect, Ship):
                self._shipped.add(effect.uid)
            elif isinstance(effect, Refuse) and self.connection is not None:
                self.connection.break_off(4400)
            else:
                self._serve_calls(effect)
        self._pull()
        if not self._looking and self.machine is not None and self.machine.busy:
            self._looking = True
            self.world.at(self._pace_ms(), self._look, self.life)

    @property
    def registered(self) -> bool:
        """Whether the hub has answered its registration, as far as it knows."""
        return self.machine is not None and self.machine.registered

    def _launch(self, launch: Launch) -> None:
        assert self.machine is not None
        supervisor, running = self.supervisor, self.machine.running
        lease = self.machine.leases.take(running, launch, lambda port: not self._has_stranger(port))
        if lease.fault:
            self._judge_refusal(launch)
            refusal = {"ev": "refused", "uid": launch.uid, "error": lease.fault, "elsewhere": True}
            self._later_supervised(self.life, refusal)
        else:
            supervisor.ask(supervisor.run if launch.gang is None else supervisor.prepare, launch, lease.ports)

    def _judge_refusal(self, launch: Launch) -> None:
        """Nobody is turned away while there are ports: those of what is over are given back."""
        assert self.machine is not None
        self.world.counts["no port left"] += 1
        asked = [ask.number for ask in wanted(launch)]
        records = self.supervisor.records
        alive = [uid for uid in self.machine.running if uid not in records or records[uid].phase != "exited"]
        running = self.machine.running
        held = {port for uid in alive if uid != launch.uid for port in running[uid].ports}
        held |= {port for port in (*self.machine.leases.span, *asked) if self._has_stranger(port)}
        fixed = {*filter(None, asked)}
        span = {*self.machine.leases.span}
        counted = {
            port
            for uid in alive
            if uid != launch.uid and self._is_current(uid)
            for port in running[uid].ports
        }
        if self._is_current(launch.uid) and len(span - counted - fixed) < asked.count(0):
            self.world.fail(f"{launch.uid} was placed on {self.name}, whose ports others have")
        for uid in alive:
            both = uid != launch.uid and self._is_current(uid) and self._is_current(launch.uid)
            if both and fixed & {*running[uid].ports}:
                self.world.fail(
                    f"{launch.uid} was placed on {self.name}, where {uid} has the port it asks for"
                )
        free = len(span - held - fixed)
        if not fixed & held and free >= asked.count(0) and not self._awaits_ends():
            self.world.fail(f"{self.machine_name} refuses {launch.uid}, and has {free} ports for it")

    def _has_stranger(self, port: int) -> bool:
        """Whether a program that is no task has a port now: while there are faults, each now and then."""
        if not port or not self.world.faulty:
            return False
        moment = self.world.now_ms // STRANGER_MS
        draw = random.Random(f"{port} of {self.machine_name} at {moment} in {self.world.seed}")
        return draw.random() < STRANGER_SHARE  # chance

    def _is_current(self, uid: str) -> bool:
        known = self.hub.state.attempts.get(uid)
        return known is not None and known.phase.live and known.worker == self.name

    def _awaits_ends(self) -> bool:
        """Whether the agent has yet to hear of an end that gives a port back."""
        assert self.machine is not None
        ended = [
            uid
            for uid, record in self.supervisor.records.items()
            if record.phase == "exited"
            and uid in self.machine.running
            and self.machine.running[uid].phase != "exited"
        ]
        return bool(ended)

    def _serve_calls(self, effect: Effect) -> None:
        runners = self.supervisor.runners
        if isinstance(effect, StartRunner):
            self.supervisor.ask(self.supervisor.start_runner, effect.uid)
        elif isinstance(effect, BindRunner):
            runners.bind(effect)
        elif isinstance(effect, FeedRunner):
            runners.feed(effect)
        elif isinstance(effect, Recall):
            runners.recall(effect.uid)
        elif isinstance(effect, Nudge):
            runners.nudge(effect.uid)
        elif isinstance(effect, Grant):
            runners.granted(effect.uid)

    def _look(self, life: int) -> None:
        self._looking = False
        if self.up and life == self.life and self.machine is not None:
            self._carry_out(self.machine.tick(self.world.now_ms))

    def _pace_ms(self) -> int:
        """Often while calls wait behind others, seldom while one call of each lane simply runs."""
        assert self.machine is not None
        lanes = self.machine.calls.lanes.values()
        return 25 if any(lane.queue or len(lane.fed) > 1 or lane.cancelled for lane in lanes) else 1000

    def _tell(self, effect: Tell) -> None:
        """Send a message; the first words about a lane wait a moment, since its results make them needless."""
        uid = effect.payload.get("attempt", "")
        if effect.type == "job_result" and effect.payload.get("exit_class") == "lost_unstarted":
            if uid not in self.supervisor.denied and effect.payload.get("error") != NOT_HERE:
                self._runs.hand_back(self.machine_name, uid, effect.payload["task_id"])
            self.supervisor.denied.add(uid)
        lane = self.machine.calls.lanes.get(uid) if self.machine is not None else None
        if effect.type in ("job_accepted", "job_started") and lane is not None and not lane.careful:
            if uid not in self._young:
                self.world.at(10, self._grow_up, self.life, uid)
            self._young.setdefault(uid, []).append(effect)
            return
        if effect.type == "job_result":
            self._young.pop(uid, None)
        self._send(effect)

    def _grow_up(self, life: int, uid: str) -> None:
        for effect in self._young.pop(uid, ()) if life == self.life else ():
            self._send(effect)

    def _pull(self) -> None:
        """What calls have brought leaves whenever there is a connection."""
        if self.machine is not None and self.connection is not None:
            for told in self.machine.pull(self.world.now_ms):
                self._young.pop(told.payload["lane"], None)
                self._send(told)

    def _send(self, effect: Tell) -> None:
        if self.connection is not None:
            self.connection.send_up({"type": effect.type, "payload": _plain(effect.payload)})

    def _supervise(self, request: dict[str, Any]) -> None:
        operation = request["op"]
        supervisor = self.supervisor
        if operation == "cancel" and request.get("held"):
            supervisor.ask(supervisor.let_go, request["uid"], request["reason"])
        elif operation == "cancel":
            grace_ms = round(1000 * request.get("grace_s", 30))
            supervisor.stop_for_hub(request["uid"], request["reason"], grace_ms)
        elif operation == "go":
            supervisor.ask(supervisor.go, request["uid"])
        elif operation == "ping":
            supervisor.ask(supervisor.ping)
        elif operation == "acked":
            self.supervisor.acked(request["uids"])
        elif operation == "epoch":
            self.supervisor.max_epoch = max(self.supervisor.max_epoch, request["value"])
        elif operation == "hasten":
            self.supervisor.hasten(request["uid"])
        elif operation == "renew":
            self.supervisor.renew(round(1000 * request["age_s"]))


def capability_with(cards: int, each_gb: int = 80) -> Capability:
    """A machine of four cores and some cards."""
    if not cards:
        return Capability(cpu_count=4, memory_gb=16)
    return Capability(
        gpu_backend="nvidia",
        gpu_count=cards,
        gpu_type="H100",
        vram_gb=each_gb * cards,
        cpu_count=4,
        memory_gb=16,
    )


def _plain(payload: dict[str, Any]) -> dict[str, Any]:
    """What was sent does not change on the way, whatever its sender does to its own copy."""
    plain: dict[str, Any] = msgspec.to_builtins(payload, builtin_types=(bytes,))
    return plain
