"""Replays: the same trace gives the same bytes, and what the loop tells adds up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.sim.traces.excerpts import storm

from dray.core.lifecycle.invariants import problems
from dray.core.model.policies.check import check_policy
from dray.sim.traces.failures import draw_failures
from dray.sim.traces.figures import measure
from dray.sim.traces.pages import Replay, draw_page, draw_table
from dray.sim.traces.readers import parse_cluster, read_jobs
from dray.sim.traces.workload import TraceJob
from dray.sim.traces.world import World

GOLDEN = Path(__file__).with_name("golden.json")
FREE = {"per_job": 1000, "per_user": 1000, "cluster": 1000}
POLICIES: dict[str, dict[str, Any]] = {
    "fifo": {"queues": {"default": {"order": "fifo", "protect_after_s": 0}}},
    "backfill": {"queues": {"default": {"order": "fifo", "protect_after_s": 60}}},
    "sjf": {"queues": {"default": {"order": "sjf", "protect_after_s": 0}}},
    "srsf": {
        "queues": {"default": {"order": "srsf", "protect_after_s": 0}},
        "preemption": {"min_run_s": 0, "limits": FREE},
    },
    "fair": {
        "queues": {"default": {"order": "fair_share"}},
        "preemption": {"strategy": "fair_share", "limits": FREE},
    },
}


@pytest.fixture
def jobs(tmp_path):
    path = tmp_path / "storm.csv"
    path.write_text(storm())
    return read_jobs(path)


def _replay(jobs, name, failures=()):
    world = World(parse_cluster("2x8"), check_policy(POLICIES[name]), failures=failures)
    ledger = world.run(jobs)
    assert problems(world.state) == []
    return world, Replay(name, measure(ledger), ledger)


def render(jobs):
    """The figures of every policy, and of one with failing workers, as they are recorded."""
    failures = draw_failures(parse_cluster("2x8"), 40_000_000, every_h=2, repair_h=0.2, seed=3)
    found = {name: _replay(jobs, name)[1].figures for name in POLICIES}
    found["failing"] = _replay(jobs, "sjf", failures)[1].figures
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def test_a_replay_never_changes_by_a_byte(jobs):
    assert render(jobs) == GOLDEN.read_text()


@pytest.mark.parametrize("name", POLICIES)
def test_every_job_runs_as_long_as_it_takes_and_memory_is_let_go(jobs, name):
    world, replay = _replay(jobs, name)
    ledger = replay.ledger
    assert replay.figures["ended"] == len(jobs)
    columns = ledger.columns()
    assert (columns["first"] >= columns["arrival"]).all()
    assert (columns["ended"] - columns["first"] >= columns["duration"]).all()
    if replay.figures["preemptions"] == 0:
        assert (columns["ended"] - columns["first"] == columns["duration"]).all()
    assert ledger.running == ledger.waiting == 0
    left = (world.state.jobs, world.state.tasks, world.state.attempts, world.runs)
    assert [len(one) for one in left] == [0, 0, 0, 0]


def test_work_lost_with_a_worker_is_done_again(jobs):
    nodes = parse_cluster("2x8")
    failures = draw_failures(nodes, 40_000_000, every_h=1, repair_h=0.2, seed=1)
    _, replay = _replay(jobs, "sjf", failures)
    assert replay.figures["losses"] > 0
    assert replay.figures["ended"] == len(jobs)
    assert replay.ledger.wasted_ms > 0


def test_the_shortest_service_first_stops_longer_work(jobs):
    _, plain = _replay(jobs, "sjf")
    _, sharp = _replay(jobs, "srsf")
    assert sharp.figures["preemptions"] > 0
    assert sharp.figures["jct_s"]["mean"] < plain.figures["jct_s"]["mean"]


def test_the_report_is_one_page_with_every_policy(jobs):
    replays = [_replay(jobs, name)[1] for name in ("fifo", "sjf")]
    page = draw_page("Replays", "dray sim <trace>", replays)
    assert page == draw_page("Replays", "dray sim <trace>", replays)
    assert page.count("<svg") == 4
    assert "&lt;trace&gt;" in page
    assert "src=" not in page
    assert "href=" not in page
    header, *rows = draw_table(replays).splitlines()
    assert header.split() == ["fifo", "sjf"]
    assert len(rows) == 19


def _job(number, arrival_s, duration_s, gpus=1):
    return TraceJob(
        id=f"j{number}", arrival_ms=arrival_s * 1000, duration_ms=duration_s * 1000, gpus=gpus, user="ann"
    )


def test_shorter_work_is_served_at_once_though_others_of_its_shape_wait():
    jobs = [_job(0, 0, 1000), _job(1, 5, 500), _job(2, 20, 10)]
    ledger = World(parse_cluster("1x1"), check_policy(POLICIES["srsf"])).run(jobs)
    assert list(ledger.first_ms) == [0, 5_000, 20_000]
    assert list(ledger.ended_ms) == [1_510_000, 515_000, 30_000]
    assert list(ledger.preempted) == [1, 1, 0]


def test_wide_work_looks_for_victims_again_once_longer_work_has_slipped_in_before_it():
    jobs = [_job(0, 0, 100), _job(1, 0, 150), _job(2, 10, 300, gpus=2), _job(3, 11, 50_000)]
    world = World(parse_cluster("1x2"), check_policy(POLICIES["srsf"]))
    ledger = world.run(jobs)
    assert ledger.first_ms[3] == 100_000
    assert 150_000 <= ledger.first_ms[2] <= 155_000
    assert ledger.preempted[3] == 1
    # It looks when something has changed, not every few seconds of the hours that the long one runs.
    assert world.turns < 60


def test_a_turn_of_some_length_changes_when_things_start_but_not_what_they_take(jobs):
    fine = World(parse_cluster("2x8"), check_policy(POLICIES["sjf"])).run(jobs)
    rough = World(parse_cluster("2x8"), check_policy(POLICIES["sjf"]), turn_ms=10_000).run(jobs)
    assert rough.ended == fine.ended == len(jobs)
    columns = rough.columns()
    assert (columns["ended"] - columns["first"] == columns["duration"]).all()
    assert all(first % 10_000 == 9_000 for first in rough.first_ms)
