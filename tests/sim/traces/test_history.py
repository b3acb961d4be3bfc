"""A hub's stored rows replayed: what ran is found again as it was, and other policies are tried on it."""

from __future__ import annotations

import json

import pytest
from tests.sim.traces.excerpts import storm

from dray.cli.main import main
from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.state.events import WorkerLeft
from dray.core.lifecycle.state.state import Touched
from dray.core.model.capability import Slots
from dray.core.model.policies.check import check_policy
from dray.errors import InvalidInput
from dray.hub.engine.projection import build_projection
from dray.hub.store.base import Turn
from dray.hub.store.sqlite.store import SqliteStore
from dray.sim.traces.failures import Failure
from dray.sim.traces.figures import measure
from dray.sim.traces.history import read_history
from dray.sim.traces.readers import parse_cluster, read_jobs
from dray.sim.traces.workload import EPOCH_MS, Node, TraceJob
from dray.sim.traces.world import World

FIFO = {"queues": {"default": {"order": "fifo", "protect_after_s": 0}}, "preemption": {"strategy": "none"}}


class _Writing(World):
    """A replay whose rows are written to a store before they are let go, as by a hub."""

    store: SqliteStore
    seq = 0

    def _let_go(self):
        state = self.state
        self.seq += 1
        self.store.commit(Turn(self.seq, state.now_ms, state.now_ms, b"", b""))
        self.store.project(build_projection(state, state.touched, self.seq, self._clock(state.now_ms)))
        super()._let_go()
        assert isinstance(state.touched, Touched)


@pytest.fixture
def lived(tmp_path):
    """A home whose hub has been through a storm, and the figures of that."""
    trace = tmp_path / "storm.csv"
    trace.write_text(storm(60))
    world = _Writing(parse_cluster("2x8xV100"), check_policy(FIFO))
    world.store = SqliteStore.open(tmp_path / "hub.sqlite")
    world.store.begin_epoch()
    figures = measure(world.run(read_jobs(trace)))
    world.store.close(clean=True)
    return tmp_path, figures


def test_the_same_policy_on_history_gives_the_same_days_again(lived):
    home, figures = lived
    jobs, nodes, absences = read_history(home, 0)
    assert len(jobs) == 60
    assert not absences
    again = measure(World(nodes, check_policy(FIFO)).run(jobs))
    for name in ("jct_s", "queueing_s", "makespan_s", "deadline_misses", "users"):
        assert again[name] == figures[name]


def test_only_what_was_submitted_since_is_replayed(lived):
    home, _ = lived
    some = read_history(home, EPOCH_MS + 1_000_000).jobs
    assert 0 < len(some) < 60
    with pytest.raises(InvalidInput, match="--since"):
        read_history(home, EPOCH_MS + 10**12)


def live(home, jobs, nodes, leavers=(), failures=()):
    """Let a hub live through jobs; some of its workers say goodbye at the end."""
    world = _Writing(nodes, check_policy(FIFO), failures=failures)
    world.store = SqliteStore.open(home / "hub.sqlite")
    world.store.begin_epoch()
    figures = measure(world.run(jobs))
    for name in leavers:
        apply(world.state, WorkerLeft(name), world._clock(world.state.now_ms))
    world._let_go()
    world.store.close(clean=True)
    return figures


def test_slots_bound_a_replay_as_they_bound_the_days_themselves(tmp_path):
    jobs = [TraceJob(id=f"j{place}", arrival_ms=0, duration_ms=60_000) for place in range(6)]
    figures = live(tmp_path, jobs, [Node(name="narrow", cpu_milli=64_000, slots=Slots(batch_total=2))])
    assert figures["makespan_s"] == 180
    found = read_history(tmp_path, 0)
    assert measure(World(found.nodes, check_policy(FIFO)).run(found.jobs))["makespan_s"] == 180


def test_workers_that_left_take_part_for_as_long_as_they_were_there(tmp_path):
    jobs = [TraceJob(id=f"j{place}", arrival_ms=place * 1000, duration_ms=60_000) for place in range(8)]
    slots = Slots(batch_total=1)
    nodes = [Node(name=name, cpu_milli=4_000, slots=slots) for name in ("stays", "left", "came-later")]
    figures = live(tmp_path, jobs, nodes, ["left", "came-later"], [Failure(0, 90_000, "came-later")])
    found = read_history(tmp_path, 0)
    assert {node.name for node in found.nodes} == {"stays", "left", "came-later"}
    assert {(one.node, one.at_ms) for one in found.absences} >= {("came-later", 0)}
    assert {one.node for one in found.absences if not one.back_ms} == {"left", "came-later"}
    replay = World(found.nodes, check_policy(FIFO), failures=found.absences).run(found.jobs)
    assert measure(replay)["makespan_s"] == figures["makespan_s"]


def test_a_cluster_whose_workers_have_all_left_can_still_be_replayed(tmp_path):
    jobs = [TraceJob(id=f"j{place}", arrival_ms=0, duration_ms=60_000, cpu_milli=1000) for place in range(8)]
    figures = live(tmp_path, jobs, [Node(name="one", cpu_milli=2_000)], leavers=["one"])
    found = read_history(tmp_path, 0)
    assert not [one for one in found.absences if not one.back_ms]
    replay = World(found.nodes, check_policy(FIFO), failures=found.absences).run(found.jobs)
    assert measure(replay)["makespan_s"] == figures["makespan_s"] == 240


def test_a_home_without_a_store_is_named(tmp_path):
    with pytest.raises(InvalidInput, match="does not exist"):
        read_history(tmp_path, 0)


def test_the_command_replays_history_and_traces(lived, capsys):
    home, figures = lived
    policy, page = home / "fifo.yaml", home / "report.html"
    policy.write_text(json.dumps(FIFO))
    asked = [
        "sim",
        "--history",
        "--since",
        "100000d",
        "--policy",
        str(policy),
        "--home",
        str(home),
        "-o",
        "json",
    ]
    assert main(asked) == 0
    (replay,) = json.loads(capsys.readouterr().out)["replays"]
    assert replay["policy"] == "fifo"
    assert replay["jct_s"] == figures["jct_s"]
    trace = str(home / "storm.csv")
    assert main(["sim", trace, "--cluster", "2x8", "--compare", str(policy), "--html", str(page)]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0].split() == ["default", "fifo"]
    assert page.read_text().startswith("<!doctype html>")
    assert main(["sim", trace]) == 1
    assert "--cluster" in capsys.readouterr().err
