"""Worlds with launchers: sites that hang, lie, start a machine twice or lose it, and hubs that die between two steps.

The real desk carries out what the real core decides; only the site, the clock and the sockets are made up. Each world
is drawn from a seed, and what must hold is looked at after every step and once everything has come to rest.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.providers import launches
from dray.core.lifecycle.recovery import wake_up
from dray.core.lifecycle.state.events import Clock, SessionClosed
from dray.core.lifecycle.state.service_events import LaunchMoved
from dray.core.lifecycle.state.state import State
from dray.core.scheduling.launches import decide
from dray.hub.launchers import desk as desks
from dray.hub.launchers.base import Machine, Order, SiteFault
from dray.hub.launchers.desk import LaunchDesk

MOST, STEPS, MOST_CALM = 3, 20, 80
SEEDS = range(24)
POLICY = {
    "site": {
        "price_per_hour": 1,
        "launch": {
            "command": ["start"],
            "end": ["end", "{handle}"],
            "offers": {"cpus": 2},
            "most": MOST,
            "wait_s": 20,
            "idle_s": 60,
            "start_s": 200,
            "per_hour": 1000,
            "command_s": 10,
        },
    }
}


class Killed(BaseException):  # nobody who handles errors may stop it
    """The hub died here."""


class Broken(BaseException):  # as above
    """Something that must hold does not."""


def must(holds: object, what: str) -> None:
    if not holds:
        raise Broken(what)


class World:
    """One cluster, one site and one desk at a time; `calm`: nothing goes wrong any more."""

    def __init__(self, seed: int) -> None:
        self.rng, self.calm = random.Random(seed), False
        self.cluster = Cluster()
        self.machines: dict[str, str] = {}
        self.joined: dict[str, str] = {}
        self.starts: Counter[str] = Counter()
        self.jobs = 0
        self.desk = self.new_desk()
        self.cluster.govern(providers=POLICY)

    # --- the hub's shell ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self.cluster.state

    def new_desk(self) -> LaunchDesk:
        made = LaunchDesk(
            cast(Any, self), cast(Any, self), lambda token: f"dray worker start --token {token}"
        )
        made._site = lambda name: MadeUp(self)  # type: ignore[method-assign]  # no command is run
        return made

    async def change(self, decision: Callable[[State, Clock], Any], **_: Any) -> Any:
        decided = decision(self.state, self.cluster.clock)
        self.cluster.turn(*decided.events)
        return decided.answer(self.state) if decided.answer else None

    async def create(self, *_: Any) -> dict[str, str]:
        return {"token": "drayjoin_1_x"}

    def made_for(self, launch_id: str) -> str:
        return ""

    def die(self) -> None:
        """The hub is killed and comes back from its log; agents dial again."""
        before = self.cluster
        again = State()
        for clock, fact in before.journal:
            apply(again, fact, clock)
        wake_up(again, before.clock)
        before.state = again
        self.desk = self.new_desk()
        for name in list(before.beating):
            before.beating.pop(name)
            self.connect(name)

    def maybe_die(self) -> None:
        if not self.calm and self.rng.random() < 0.08:
            raise Killed

    # --- the site -----------------------------------------------------------------------------------------------------

    async def start_machine(self, order: Order) -> str:
        self.maybe_die()
        self.starts[order.id] += 1
        must(self.starts[order.id] == 1, f"{order.id} was started twice")
        how = (
            "well"
            if self.calm
            else self.rng.choice(("well", "well", "well", "broken", "hang", "lie", "twice"))
        )
        if how == "broken":
            raise SiteFault("no room")
        handle = f"h{sum(self.starts.values())}"
        if how != "lie" and not (how == "hang" and self.rng.random() < 0.5):
            self.machines[handle] = order.id
        if how == "twice":
            self.machines[f"{handle}b"] = order.id
        if how == "hang":
            raise SiteFault("no answer", unsure=True)
        self.maybe_die()
        return handle

    async def end_machine(self, launch_id: str, handle: str) -> None:
        owner = self.joined.get(launch_id)
        if owner == handle or (owner and not handle):
            must(not self.state.held.get(launch_id), f"{launch_id} was ended while it held work")
        if not self.calm and self.rng.random() < 0.2:
            raise SiteFault("the site is away", unsure=True)
        must(
            handle or not [one for one in self.machines.values() if one == launch_id],
            "ended without a handle",
        )
        if self.machines.pop(handle, None) is not None and owner == handle:
            self.lose(launch_id)

    # --- what happens -------------------------------------------------------------------------------------------------

    def connect(self, name: str) -> None:
        cluster = self.cluster
        active = [cluster.active(uid) for uid in cluster.held(name) if cluster.attempt(uid).accepted_at_ms]
        cluster.register(name, cpus=2, batch=2, active=active)
        cluster.beating[name] = None
        cluster.poll(name, 2)

    def join_some(self) -> None:
        for handle, launch_id in list(self.machines.items()):
            record = launches.find(self.state, launch_id)
            if (
                launch_id in self.joined
                or record is None
                or record.state in (launches.ENDING, *launches.OVER)
            ):
                continue
            if self.calm or self.rng.random() < 0.6:
                self.joined[launch_id] = handle
                self.connect(launch_id)

    def lose(self, launch_id: str) -> None:
        """A machine is gone without a word."""
        if launch_id in self.cluster.beating:
            self.cluster.beating.pop(launch_id)
            self.cluster.turn(SessionClosed(launch_id, self.state.presence[launch_id].session))

    def work(self) -> None:
        cluster = self.cluster
        if not self.calm and self.rng.random() < 0.4:
            self.jobs += 1
            cluster.submit(f"j{self.jobs}", min_cpu_cores=self.rng.choice((1, 2)))
        for name in list(cluster.beating):
            for uid in cluster.held(name):
                attempt = cluster.attempt(uid)
                if not attempt.accepted_at_ms:
                    cluster.run(uid)
                elif self.calm or self.rng.random() < 0.3:
                    cluster.end(uid)
            cluster.poll(name, 2)
        if not self.calm and self.rng.random() < 0.05 and self.machines:
            handle = self.rng.choice(sorted(self.machines))
            self.lose(self.machines.pop(handle))

    async def desk_works(self) -> None:
        try:
            self.desk._look()
            while self.desk._busy:
                await asyncio.gather(*list(self.desk._busy.values()))
        except Killed:
            for task in list(self.desk._busy.values()):
                task.cancel()
            self.die()

    async def step(self) -> None:
        self.work()
        self.join_some()
        await self.desk_works()
        self.cluster.advance(30)
        live = sum(one.state not in launches.OVER for _, one in launches.of_launcher(self.state, "site"))
        must(live <= MOST, f"{live} workers, and {MOST} are the most")

    async def run(self) -> None:
        for _ in range(STEPS):
            await self.step()
        self.calm = True
        for _ in range(MOST_CALM):
            if not self.unrest():
                return
            await self.step()
        raise Broken(self.unrest())

    def unrest(self) -> str:
        """What has not come to its end yet."""
        left = [
            one for one, found in launches.of_launcher(self.state, "site") if found.state not in launches.OVER
        ]
        pending = [job.id for job in self.state.jobs.values() if not job.state.final]
        found = {"launches": left, "machines": list(self.machines), "jobs": pending}
        return ", ".join(f"{name} {some}" for name, some in found.items() if some)


class MadeUp:
    """A world's site, as the desk asks it."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def start(self, order: Order) -> str:
        return await self._world.start_machine(order)

    async def end(self, launch_id: str, handle: str) -> None:
        await self._world.end_machine(launch_id, handle)

    async def machines(self) -> list[Machine]:
        return [Machine(one, handle, "runs") for handle, one in self._world.machines.items()]


def play(seed: int) -> None:
    asyncio.run(World(seed).run())


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are asked for at each look, and what failed is tried again at the next."""
    monkeypatch.setattr(desks, "LIST_S", 0.0)
    monkeypatch.setattr(desks, "AGAIN_S", 0.0)
    monkeypatch.setattr(desks, "LONGEST_AGAIN_S", 0.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_world_starts_a_machine_twice_forgets_one_or_ends_one_that_works(seed: int) -> None:
    play(seed)


def _no_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start is not committed before it runs."""
    told = desks._begin_start

    def begin(launch_id: str) -> Any:
        def look(state: State, clock: Clock) -> Any:
            decided = told(launch_id)(state, clock)
            return decided._replace(events=())

        return look

    monkeypatch.setattr(desks, "_begin_start", begin)
    monkeypatch.setitem(launches._FROM, launches.ENDING, (launches.ASKED, *launches._FROM[launches.ENDING]))


def _ends_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has joined is let go whether it works or not."""

    def retire(state: State, idle: dict[str, int]) -> Any:
        for one, record in list(launches.of_launcher(state, "site")):
            if record.state == launches.JOINED and state.held.get(one):
                yield LaunchMoved(one, launches.ENDING, "test")

    monkeypatch.setattr(decide, "_retire", retire)


def _counts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are coming are not counted as live."""
    monkeypatch.setattr(
        launches,
        "count_live",
        lambda state, name: sum(r.state == launches.JOINED for _, r in launches.of_launcher(state, name)),
    )


def _forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a site still names of a launch that is over is left there."""

    async def compare(self: LaunchDesk, site: Any, launch_id: str, record: Any, named: list[Machine]) -> None:
        return None

    monkeypatch.setattr(LaunchDesk, "_compare", compare)


def _waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever never comes is waited for."""
    monkeypatch.setattr(decide, "_end_one", lambda state, launch_id, record, launch: iter(()))


@pytest.mark.parametrize("plant", [_no_intent, _ends_busy, _counts_none, _forgets, _waits_for_ever])
def test_a_planted_bug_shows_in_some_world(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(shows_in(seed) for seed in SEEDS)


def shows_in(seed: int) -> bool:
    try:
        play(seed)
    except Broken:
        return True
    return False
