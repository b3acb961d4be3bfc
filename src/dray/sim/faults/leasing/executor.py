"""A machine with an executor of leases: it polls, renews, completes and returns by calls of its own, and keeps nothing
beyond its process.

It is as careful as its page asks: nothing begins before its acceptance was answered, and what could not be renewed for
as long as a lease lasts is ended. Beyond that it is a nuisance: it vanishes between a poll and its answer, sits on
leases, completes twice, returns what it began, and speaks for others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from dray.core.model.records.records import Phase
from dray.core.model.specs.resources import WHOLE
from dray.core.model.specs.spec import JobSpec
from dray.errors import DrayError, NotReady
from dray.hub.workers import leases
from dray.sim.faults.leasing.end import Answered, Work, end_of
from dray.sim.faults.nodes.hub import HubNode
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.nodes.runs import Behaviour, CallRuns, Execution, Runs
from dray.sim.faults.nodes.worker import capability_with
from dray.sim.faults.world.market import labels_of
from dray.sim.faults.world.network import Connection, Weather
from dray.sim.faults.world.world import World

PATIENCE_MS, TICK_MS = 9000, 3500
SAT_ON, RETURNED, TWICE, NOSY, VANISHING = 0.05, 0.06, 0.15, 0.03, 0.03
# Of what a lease lasts, from the last renewal that was answered.
SAFE_SHARE = 0.7
OVER = ("recorded", "duplicate", "superseded", "unknown")


class Lease:
    """One that it holds."""

    def __init__(self, given: dict[str, Any], now_ms: int) -> None:
        self.uid: str = given["lease"]
        self.task: str = given["task"]
        self.spec = msgspec.convert(given["spec"], JobSpec)
        self.devices = tuple(given["devices"])
        self.lasts_ms = round(1000 * given["lost_after_s"])
        self.renewed_ms = now_ms
        self.accepted = self.dropped = self.stopping = self.is_sat_on = False
        self.run: Execution | None = None
        self.behaviour: Behaviour | None = None
        self.result: dict[str, Any] | None = None


class Call:
    """One that is under way: answered once, or given up."""

    def __init__(self, life: int, answered: Answered) -> None:
        self.life, self._answered = life, answered
        self.over = False
        self.cancel: Callable[[], None] = lambda: None

    def end(self, got: Any, fault: BaseException | None) -> None:
        if not self.over:
            self.over = True
            self._answered(got, fault)


class ExecutorNode:
    """A program somewhere, and its network."""

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
        self.rng = random.Random(f"executor {name} in {world.seed}")  # a simulation's chance, no secret
        self.slots = self.rng.randint(1, 3)
        self.cards = self.rng.choice([0, 0, 2])
        runs.slots[name, "batch"] = self.slots
        self.full = self.up = self.retired = False
        self.connection: Connection | None = None
        self.life = 0
        self._runs, self._behave = runs, behave
        self._asked: HubLife | None = None
        self._session, self._epoch = "", 0
        self._registering = self._polling = False
        self._leases: dict[str, Lease] = {}
        self._rough_ms = 0

    # --- its life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin with nothing."""
        if self.up:
            return
        self.up = True
        self.life += 1
        self._session, self._registering, self._polling = "", False, False
        self._rough_ms = self.world.now_ms
        self.world.at(self.rng.randint(0, TICK_MS), self._tick, self.life)

    def die(self) -> None:
        """The process ends, and all its children with it."""
        if not self.up:
            return
        self.up = False
        self.life += 1
        for lease in list(self._leases.values()):
            self._forget(lease)
        self.world.at(self.rng.randint(100, 20_000), self.start)

    def leave(self) -> None:
        """A clean goodbye, back later."""
        if self.up and self._session:
            ask = leases.GiveBack(self._said(), [], "", True)
            self._call(lambda desk, caller: desk.give_back(caller, ask), lambda got, fault: None)
        self.die()

    def still_has(self, uid: str) -> bool:
        """What it had accepted it names when it registers."""
        lease = self._leases.get(uid)
        return self.up and lease is not None and lease.accepted and lease.result is None

    def supervisor_dies(self, untold: bool = False) -> None:
        """There is only one process."""
        self.die()

    def reboot(self, wiped: bool) -> None:
        """It keeps nothing either way."""
        self.die()

    def speaks_freely(self, life: HubLife, for_ms: int) -> bool:
        """Whether it was there, and everything got through, for so long and as long as it lets pass between calls."""
        far = self.hub.weather_of(life)
        since = max(self._rough_ms, self.weather.rough_ms, far.rough_ms)
        calm = self.up and self._asked is life and self.weather.calm and far.calm and not life.process.stopped
        return calm and self.world.now_ms - since > for_ms + 2 * TICK_MS + PATIENCE_MS

    def lie(self, run: Execution) -> None:
        """Speak for an attempt that is another machine's."""
        if not self._session:
            return
        claim = {"lease": run.uid, "task_id": run.task_id, "state": "succeeded", "exit_code": 0}
        ask = leases.Complete(self._said(), [claim])

        def heard(got: Any, fault: BaseException | None) -> None:
            if fault is None and got["verdicts"][run.uid] == "recorded":
                self.world.fail(f"{self.name} was believed about {run}")

        self._call(lambda desk, caller: desk.complete(caller, ask), heard)

    # --- calls ------------------------------------------------------------------------------------------------------

    def _said(self) -> leases.Said:
        return leases.Said(self.name, self._session)

    def _call(self, work: Work, heard: Answered, wait_ms: int = 0) -> None:
        """Send a call; one that is not answered within so long is given up, whatever became of it."""
        number, world = self.life, self.world

        def answered(got: Any, fault: BaseException | None) -> None:
            if self.up and number == self.life:
                if fault is not None and not isinstance(fault, DrayError):
                    raise fault
                if fault is not None:
                    self._hear_fault()
                heard(got, fault)

        call = Call(number, answered)
        world.at(wait_ms + PATIENCE_MS, self._give_up, call)
        if self._asked is None or not self._asked.up:
            self._asked = self.hub.life if self.hub.up else None
        life = self._asked
        far = self.hub.weather_of(life)
        if life is None:
            world.at(self.rng.randint(0, 50), call.end, None, NotReady("nobody listens"))
        elif not (self.weather.up_lost or far.up_lost):
            world.at(self._delay(), self._arrive, call, life, work)

    def _give_up(self, call: Call) -> None:
        if not call.over:
            self._rough_ms = self.world.now_ms
            call.end(None, NotReady("no answer"))
            call.cancel()

    def _delay(self) -> int:
        return self.rng.randint(200, 3000) if self.weather.slow else self.rng.randint(0, 8)

    def _arrive(self, call: Call, life: HubLife, work: Work) -> None:
        life.process.run(self._ask, call, life, work)

    def _ask(self, call: Call, life: HubLife, work: Work) -> None:
        if not life.up:
            self.world.at(self._delay(), call.end, None, NotReady("nobody listens"))
            return

        def reply(got: Any, fault: BaseException | None) -> None:
            if not (self.weather.down_lost or self.hub.weather_of(life).down_lost):
                self.world.at(self._delay(), call.end, got, fault)

        cancel = end_of(life).ask(self, work, reply)
        call.cancel = lambda: life.process.run(cancel) if life.up else None

    def _hear_fault(self) -> None:
        """Whatever it was: register again, with whoever leads."""
        self._rough_ms = self.world.now_ms
        self._session = ""
        if self.rng.random() < 0.7:
            self._asked = None

    # --- what it asks -----------------------------------------------------------------------------------------------

    def _tick(self, life: int) -> None:
        if not self.up or life != self.life:
            return
        self.world.at(self.rng.randint(TICK_MS // 2, TICK_MS), self._tick, life)
        self._let_run_out()
        if self.rng.random() < VANISHING and self.world.faulty:
            self.world.counts["executor vanished"] += 1
            self.die()
        elif not self._session:
            self._register()
        else:
            self._renew()
            self._complete()
            self._poll()

    def _register(self) -> None:
        if self._registering:
            return
        self._registering = True
        named = [(one.uid, one.task) for one in self._leases.values() if one.accepted]
        ask = leases.RegisterLeasing(
            self.name,
            {"gpu_backend": "cpu", **msgspec.to_builtins(capability_with(self.cards))},
            self.slots,
            f"{self.name}-{self.life}",
            labels_of(self.world.seed, self.name),
            active=named,
            max_epoch_seen=self._epoch,
        )

        def heard(got: Any, fault: BaseException | None) -> None:
            self._registering = False
            if fault is None:
                self._session, self._epoch = got["session"], max(self._epoch, got["epoch"])
                for lease in [one for one in self._leases.values() if not one.accepted]:
                    self._forget(lease)
                self._obey(got["orders"])
                self._renew()

        self._call(lambda desk, caller: desk.register(caller, ask), heard)

    def _poll(self) -> None:
        free = self.slots - sum(1 for one in self._leases.values() if one.result is None)
        if self._polling or free <= 0:
            return
        self._polling = True
        wait_s = self.rng.choice([0.0, 2.0, 2.0, 15.0])
        ask = leases.Dequeue(self._said(), free, wait_s)

        def heard(got: Any, fault: BaseException | None) -> None:
            self._polling = False
            if fault is None:
                for given in got["leases"]:
                    self._take(given)
                self._obey(got["orders"])
                self._renew()

        self._call(lambda desk, caller: desk.dequeue(caller, ask), heard, round(1000 * wait_s))

    def _take(self, given: dict[str, Any]) -> None:
        self.world.counts["lease given"] += 1
        lease = Lease(given, self.world.now_ms)
        if lease.uid in self._leases:
            self.world.fail(f"{self.name} was given lease {lease.uid} twice")
        self._leases[lease.uid] = lease
        drawn = self.rng.random() if self.world.faulty else 1.0
        if self.full or drawn < RETURNED:
            self._return(lease)
        else:
            lease.is_sat_on = drawn < RETURNED + SAT_ON

    def _return(self, lease: Lease) -> None:
        ask = leases.GiveBack(self._said(), [lease.uid], "no room")
        begun, accepted = lease.run is not None, lease.accepted
        self.world.counts["lease returned"] += 1

        def heard(got: Any, fault: BaseException | None) -> None:
            if fault is None and begun and got["verdicts"][lease.uid] == "recorded":
                self.world.fail(f"{self.name} gave {lease.uid} back, which it had begun")
            if fault is None and not accepted:
                self._forget(lease)

        lease.is_sat_on = True
        if not begun:
            self._runs.hand_back(self.name, lease.uid, lease.task)
        self._call(lambda desk, caller: desk.give_back(caller, ask), heard)

    def _renew(self) -> None:
        """Say what is under way, now and then of a lease that is another's; it begins once that was answered."""
        now_ms = self.world.now_ms
        named = [one for one in self._leases.values() if not one.is_sat_on and one.result is None]
        reports: list[dict[str, Any]] = [{"lease": one.uid} for one in named]
        strangers = [run for run in self._runs.all[-20:] if run.worker != self.name and run.ended_ms < 0]
        stranger = ""
        if strangers and self.rng.random() < NOSY:
            stranger = self.rng.choice(strangers).uid
            reports.append({"lease": stranger})
        for one in named:
            # From here on it may count as begun.
            self._runs.intended.add(one.uid)
        ask = leases.Renew(self._said(), reports)

        def heard(got: Any, fault: BaseException | None) -> None:
            if fault is not None:
                return
            told = {order["lease"]: order["kind"] for order in got["orders"]}
            if stranger and told.get(stranger) != "drop":
                self.world.fail(f"{self.name} renewed {stranger}, which is another's")
            for one in named:
                one.renewed_ms = max(one.renewed_ms, now_ms)
                if one.uid not in told:
                    self._check_accepted(one)
                    one.accepted = True
                    self._begin(one)
            self._obey([order for order in got["orders"] if order["lease"] != stranger])

        self._call(lambda desk, caller: desk.renew(caller, ask), heard)

    def _check_accepted(self, lease: Lease) -> None:
        """Whoever answered has it on record."""
        life = self._asked
        attempt = life.state.attempts.get(lease.uid) if life is not None and life.up else None
        if attempt is not None and attempt.phase is Phase.ASSIGNED:
            self.world.fail(f"{self.name} renewed {lease.uid}, and the hub has no word of it: {attempt}")

    def _complete(self) -> None:
        results = [one.result for one in self._leases.values() if one.result is not None]
        if not results:
            return
        ask = leases.Complete(self._said(), results)

        def heard(got: Any, fault: BaseException | None) -> None:
            for uid, verdict in (got["verdicts"] if fault is None else {}).items():
                if verdict not in OVER:
                    self.world.fail(f"{self.name} was told {verdict!r} of {uid}")
                if self.rng.random() < TWICE:
                    self.world.counts["lease completed twice"] += 1
                elif (one := self._leases.get(uid)) is not None:
                    self._forget(one)

        self._call(lambda desk, caller: desk.complete(caller, ask), heard)

    def _obey(self, orders: list[dict[str, Any]]) -> None:
        for order in orders:
            lease = self._leases.get(order["lease"])
            if lease is None or lease.result is not None:
                continue
            if lease.run is not None and not self._runs.may_be_stopped(lease.run):
                self.world.fail(
                    f"{self.name} is to {order['kind']} {lease.run}, of which the hub never heard"
                )
            if order["kind"] == "drop":
                self.world.counts["lease dropped"] += 1
                self._forget(lease)
            elif not lease.stopping:
                lease.stopping = True
                grace_ms = max(0, round(1000 * order["grace_s"]))
                heeds = lease.behaviour is None or lease.behaviour.heeds_term
                delay_ms = min(self.rng.randint(1, 500), grace_ms) if heeds else grace_ms
                self.world.at(delay_ms, self._finish, lease, "killed", 143)

    # --- work -------------------------------------------------------------------------------------------------------

    def _begin(self, lease: Lease) -> None:
        if lease.run is not None or lease.stopping or lease.dropped:
            return
        if self.rng.random() < RETURNED and self.world.faulty:
            self.world.at(self.rng.randint(100, 3000), self._return_late, lease)
        share = lease.spec.gpu_milli or WHOLE
        lease.run = Execution(
            lease.task, lease.uid, self.name, self.name, self.world.now_ms, lease.devices, share
        )
        self._runs.begin(lease.run)
        lease.behaviour = self._behave(lease.task)
        how = lease.behaviour
        self.world.at(how.duration_ms, self._finish, lease, how.state, how.exit_code)

    def _return_late(self, lease: Lease) -> None:
        """What was begun has to be completed."""
        if self._session and lease.run is not None and lease.result is None and not lease.dropped:
            self._return(lease)
            lease.is_sat_on = False

    def _finish(self, lease: Lease, state: str, code: int) -> None:
        if lease.dropped or lease.result is not None or (lease.stopping and state != "killed"):
            return
        if lease.run is not None:
            self._runs.end(lease.run, state)
        lease.result = {"lease": lease.uid, "task_id": lease.task, "state": state, "exit_code": code}
        if self._session:
            self._complete()

    def _let_run_out(self) -> None:
        """End what could not be renewed for as long as a lease lasts."""
        for lease in list(self._leases.values()):
            silent_ms = self.world.now_ms - lease.renewed_ms
            if lease.run is not None and lease.result is None and silent_ms > SAFE_SHARE * lease.lasts_ms:
                self.world.counts["lease ran out"] += 1
                self._forget(lease)

    def _forget(self, lease: Lease) -> None:
        lease.dropped = True
        self._leases.pop(lease.uid, None)
        if lease.run is not None and lease.run.ended_ms < 0:
            self._runs.end(lease.run, "killed")
