"""A request to stop that gets lost is repeated, and the simulation notices where it is not."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from dray.core.lifecycle.state.timings import Rules
from dray.core.model.records.records import Phase
from dray.core.model.specs.spec import TIERS
from dray.sim.faults.mutants.mutants import applied
from dray.sim.faults.mutants.table import MUTANTS
from dray.sim.faults.nodes.hub import HubNode
from dray.sim.faults.nodes.runs import Behaviour, Runs
from dray.sim.faults.nodes.worker import WorkerNode
from dray.sim.faults.watches.checker import Checker
from dray.sim.faults.watches.overdue import find_overdue
from dray.sim.faults.world.pending import Pending
from dray.sim.faults.world.world import SMALL, Failure, World

LONG_MS = 10_000_000


def let_pass(world: World, until_ms: int) -> None:
    while world.now_ms < until_ms and world.step():
        pass


def ignore(got: Any, fault: BaseException | None) -> None:
    """Nobody waits for this answer."""


class Site(NamedTuple):
    """A hub with one worker, a moment after the worker came."""

    world: World
    hub: HubNode
    runs: Runs
    worker: WorkerNode

    def wait(self, for_ms: int) -> None:
        let_pass(self.world, self.world.now_ms + for_ms)

    def submit(self, **wanted: Any) -> None:
        self.hub.now.submit([{"id": "long", "command": ["work"], **wanted}], "key", Pending(ignore))

    def cancel(self) -> None:
        self.hub.now.cancel("long", None, Pending(ignore))

    def storm(self, on: bool) -> None:
        """Lose everything in both directions, or no longer."""
        weather = self.worker.weather
        weather.up_lost = weather.down_lost = on
        weather.rough_ms = self.world.now_ms

    def overdue(self) -> list[str]:
        return find_overdue(self.hub.now, self.runs)

    def watch(self, for_ms: int) -> list[str]:
        """Look at every step for what is overdue, which the checker does only now and then."""
        until_ms, found = self.world.now_ms + for_ms, list[str]()
        while not found and self.world.now_ms < until_ms and self.world.step():
            found = self.overdue()
        return found

    def phases(self) -> list[Phase]:
        return [attempt.phase for attempt in self.hub.state.attempts.values()]


def open_site(rules: Rules | None = None) -> Site:
    world = World(1, SMALL)
    hub = HubNode(world, rules or Rules())
    runs = Runs(world, hub)
    checker = Checker(world, hub, runs)
    hub.start()
    worker = WorkerNode(world, hub, "w0", runs, lambda task_id: Behaviour(LONG_MS, "succeeded", 0, True))
    checker.machines = [worker]
    worker.start()
    let_pass(world, 1000)
    return Site(world, hub, runs, worker)


def lose_a_stop() -> tuple[World, Runs]:
    """A job runs on the only worker; its cancel falls into a short one-way loss that breaks no socket."""
    site = open_site()
    site.submit()
    site.wait(14_000)
    assert [run.ended_ms for run in site.runs.all] == [-1]
    site.worker.weather.down_lost = True
    site.cancel()
    site.wait(5000)
    site.worker.weather.down_lost = False
    return site.world, site.runs


def lose_what_never_came() -> Site:
    """Assignment and cancel of a fenced task fall into one storm; no timer may take such a task back."""
    site = open_site()
    site.storm(on=True)
    site.submit(overlap="fenced", job_tier="evaluation")
    site.wait(3000)
    site.cancel()
    site.wait(5000)
    site.storm(on=False)
    return site


def deafen(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the agent pass over all that it is asked to do."""
    assert site.worker.machine is not None
    monkeypatch.setattr(site.worker.machine, "assigned", lambda message, now_ms: [])
    monkeypatch.setattr(site.worker, "_stop", lambda machine, asked: [])


def test_a_lost_request_to_stop_is_repeated():
    world, runs = lose_a_stop()
    assert runs.all[0].ended_ms == -1
    let_pass(world, 300_000)
    assert runs.all[0].outcome == "killed"


def test_a_request_that_is_not_repeated_is_noticed():
    (mutant,) = [one for one in MUTANTS if one.name == "stop-asked-once"]
    with applied(mutant):
        world, _ = lose_a_stop()
        with pytest.raises(Failure, match="was not asked again"):
            let_pass(world, 300_000)


def test_a_request_that_fell_into_a_storm_may_wait_for_its_grace():
    site = lose_what_never_came()
    assert site.watch(90_000) == []
    assert site.phases() == [Phase.STOPPING]
    site.wait(round(1000 * TIERS["evaluation"].grace_s))
    assert Phase.STOPPING not in site.phases()
    assert site.runs.all == []


def test_a_request_in_calm_that_nobody_answers_is_noticed(monkeypatch: pytest.MonkeyPatch):
    site = open_site()
    deafen(site, monkeypatch)
    site.submit(overlap="fenced", job_tier="evaluation")
    site.wait(3000)
    site.cancel()
    assert any("does not run it, and has not said so" in found for found in site.watch(90_000))


def test_an_agent_that_says_nothing_of_what_it_does_not_have_is_noticed(monkeypatch: pytest.MonkeyPatch):
    (mutant,) = [one for one in MUTANTS if one.name == "unknown-stop-unanswered"]
    site = open_site()
    assert site.worker.machine is not None
    monkeypatch.setattr(site.worker.machine, "assigned", lambda message, now_ms: [])
    site.submit()
    site.wait(1000)
    site.cancel()
    with applied(mutant), pytest.raises(Failure, match="has it not, and said nothing"):
        site.wait(1000)


def leave_with_a_stop() -> Site:
    """The worker is cut off when its task is cancelled, and back only long after the task should have ended."""
    site = open_site(Rules(lost_ms=1_000_000))
    site.submit()
    site.wait(14_000)
    site.storm(on=True)
    site.cancel()
    assert site.watch(200_000) == []
    assert site.phases() == [Phase.STOPPING]
    site.storm(on=False)
    return site


def hear_again(site: Site) -> None:
    """Up to the very moment at which the hub takes the worker's registration."""
    heard_ms = site.hub.now.heard_ms
    before_ms = heard_ms["w0"]
    while heard_ms["w0"] == before_ms and site.world.step():
        pass


def test_a_worker_that_was_away_may_confirm_a_stop_on_its_return():
    site = leave_with_a_stop()
    hear_again(site)
    assert site.phases() == [Phase.STOPPING]
    assert site.overdue() == []
    site.wait(2000)
    assert site.runs.all[0].outcome == "killed"


def test_a_worker_that_came_back_and_never_stops_is_noticed(monkeypatch: pytest.MonkeyPatch):
    site = leave_with_a_stop()
    deafen(site, monkeypatch)
    hear_again(site)
    assert any("speaks and has it still" in found for found in site.watch(130_000))
