"""Gangs in a simulated world with the trouble at a chosen moment: half accepted, half started, a member lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dray.core.lifecycle.state.timings import Rules
from dray.core.model.records.records import Attempt, Job, JobState, Phase
from dray.sim.faults.nodes.hub import HubNode
from dray.sim.faults.nodes.runs import Behaviour, Runs
from dray.sim.faults.nodes.worker import WorkerNode
from dray.sim.faults.settlement import Settlement
from dray.sim.faults.watches.checker import Checker
from dray.sim.faults.world.pending import Pending
from dray.sim.faults.world.world import SMALL, World


class Site:
    """Three machines and a hub, every message and every result judged as in the large runs."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed, SMALL)
        self.world.faulty = False
        self.hub = HubNode(self.world, Rules())
        self.runs = Runs(self.world, self.hub)
        self.checker = Checker(self.world, self.hub, self.runs)
        self.workers = {
            name: WorkerNode(self.world, self.hub, name, self.runs, self.behave)
            for name in ("w0", "w1", "w2")
        }
        self.checker.machines = list(self.workers.values())
        self.hub.start()
        for worker in self.workers.values():
            worker.cards, worker.slots = 0, 2
            self.runs.slots[worker.name, "batch"] = 2
            worker.start()
        self.until(lambda: len(self.hub.state.workers) == 3 and self.ready(), "the machines have joined")

    def behave(self, task_id: str) -> Behaviour:
        """Longer than a silent machine is waited for."""
        return Behaviour(200_000, "succeeded", 0, heeds_term=True)

    def ready(self) -> bool:
        return all(presence.credit for presence in self.hub.state.presence.values())

    def submit(self, **spec: object) -> None:
        answered: list[object] = []
        self.hub.now.submit(
            [{"id": "gang", "command": ["work"], **spec}], "key", Pending(lambda got, _: answered.append(got))
        )
        self.until(lambda: bool(answered), "the submit is answered")
        self.checker.account.acknowledged["gang"] = None

    def until(self, there: Callable[[], bool], what: str, limit_ms: int = 3_600_000) -> None:
        deadline_ms = self.world.now_ms + limit_ms
        while not there():
            assert self.world.step(), what
            assert self.world.now_ms < deadline_ms, what

    @property
    def job(self) -> Job:
        return self.hub.state.jobs.get("gang") or self.hub.store.find_job("gang") or pytest.fail("no job")

    def members(self, generation: int) -> list[Attempt]:
        found = [a for a in self.hub.state.attempts.values() if a.generation == generation]
        return sorted(found, key=lambda attempt: attempt.index)

    def going(self) -> list[int]:
        """The generations of what truly runs."""
        return sorted(run.generation for runs in self.runs.going.values() for run in runs)

    def cut(self, worker: str, off: bool = True) -> None:
        weather = self.workers[worker].weather
        weather.up_lost = weather.down_lost = off

    def finish(self, final: JobState = JobState.SUCCEEDED) -> list[int]:
        """Let it end, settle the account, and give the generations that ran."""
        self.until(lambda: self.hub.up and not self.hub.busy and self.job.state.final, "the gang ends")
        Settlement(self.world, self.hub, self.runs, self.checker, restored=False).settle()
        assert self.job.state is final
        return sorted({run.generation for run in self.runs.all})


@pytest.fixture(params=range(4))
def site(request: pytest.FixtureRequest) -> Site:
    return Site(request.param)


def test_a_gang_half_accepted_is_released_whole(site: Site) -> None:
    """One machine goes deaf before its member arrives: nobody runs, and all are placed anew, at no charge."""
    site.cut("w2")
    site.submit(node_count=3, losses=0)
    site.until(
        lambda: len([a for a in site.members(1) if a.accepted_at_ms]) == 2, "two of three are accepted"
    )
    assert site.going() == []
    site.until(lambda: site.job.requeued == 3, "all are queued again")
    assert site.going() == []
    assert {site.hub.state.tasks["gang", index].losses for index in range(3)} == {0}
    site.cut("w2", off=False)
    assert site.finish() == [2]


@pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
def test_a_gang_half_started_starts_whole(site: Site, moment: str) -> None:
    """The hub dies in the turn in which the last member is accepted, or just after one of them was told to start."""
    site.submit(node_count=2)
    site.until(lambda: any(a.accepted_at_ms for a in site.members(1)), "one member is accepted")
    if moment == "before the commit":
        site.hub.die_at_step = 1
    else:
        site.until(lambda: len(site.going()) == 1 or bool(site.runs.all), "one member runs")
        site.hub.die("killed")
    assert site.finish() == [1], "the same try goes on"
    assert site.job.generation == 1


def test_a_member_lost_ends_the_generation_and_all_are_retried(site: Site) -> None:
    """A machine is cut off while its member runs: the other one is stopped, and the next try begins without either."""
    site.submit(node_count=2, losses=1)
    site.until(lambda: bool(site.members(1)) and all(a.started for a in site.members(1)), "both run")
    lost, kept = site.members(1)
    site.cut(lost.worker)
    site.until(lambda: site.job.generation == 2, "all are placed anew")
    assert (lost.phase, kept.phase, kept.cancel) == (Phase.LOST, Phase.KILLED, "gang")
    assert lost.worker not in {attempt.worker for attempt in site.members(2)}
    site.until(lambda: site.going().count(2) == 2, "the second try runs")
    site.cut(lost.worker, off=False)
    assert site.finish() == [1, 2]
    assert {task.losses for index in range(2) if (task := site.hub.store.find_task("gang", index))} == {1}


def test_the_machine_to_blame_is_left_out_of_the_next_try(site: Site) -> None:
    site.submit(node_count=2, losses=1, max_runtime_s=3600)
    site.until(lambda: bool(site.members(1)) and all(a.started for a in site.members(1)), "both run")
    victim = site.members(1)[1].worker
    site.workers[victim].supervisor_dies()
    site.until(lambda: site.job.generation == 2, "all are placed anew")
    assert victim not in {attempt.worker for attempt in site.members(2)}
    assert site.finish() == [1, 2]
    assert {task.losses for index in range(2) if (task := site.hub.store.find_task("gang", index))} == {1}
