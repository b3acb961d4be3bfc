"""Advice on jobs: what was asked for beside what was used, and what would let it start, through a real hub."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.hub.asking import ask

from dray.core.model.records.records import Attempt, Phase
from dray.core.model.records.worker import Use
from dray.core.model.specs.resources import Ask
from dray.core.model.units import GB
from dray.hub.views.advice import compare, compare_time, sum_up
from dray.testing import MockWorker, RunningHub, make_capability, make_slots, running_hub
from dray.testing.worker_script import MODERN
from dray.wire.schemas.views import Demand, JobAdvice

MINUTE_MS = 60_000


def attempt(uid: str, minutes: float, **used: float) -> Attempt:
    where: Any = {"index": 0, "no": 1, "fence": 1, "worker": "w1", "shape": 0}
    found = Attempt(uid=uid, job_id="job", **where, phase=Phase.SUCCEEDED)
    found.started_at_ms, found.ended_at_ms = MINUTE_MS, MINUTE_MS + round(minutes * MINUTE_MS)
    for name, value in used.items():
        setattr(found, name, value)
    return found


def test_what_was_used_is_summed_over_attempts_and_those_that_run() -> None:
    ended = attempt("1", 10, cpu_s=300.0, max_rss_bytes=2 * GB)
    runs = attempt("2", 0)
    runs.ended_at_ms = 0
    blind = attempt("3", 60)
    used = sum_up([ended, runs, blind], {"2": Use(900.0, 3 * GB, 30.0, 600.0)}, 11 * MINUTE_MS)
    assert (used.ran_s, used.memory, used.cores) == (1200, 3 * GB, 1.0)
    assert (used.busy_s, used.looked_s) == (30, 600), "of one that nobody could look at nothing is known"


@pytest.mark.parametrize(
    ("asked", "flags"),
    [
        (Ask(memory_bytes=16 * GB, cpu_milli=8000, gpus=1), {"--mem": "4G", "--cpus": "2", "": ""}),
        (Ask(memory_bytes=5 * GB, cpu_milli=2000), {}),
        (Ask(cpu_milli=1000), {}),
    ],
)
def test_far_more_than_was_used_is_told(asked: Ask, flags: dict[str, str]) -> None:
    done = [attempt("1", 20, cpu_s=1200.0, max_rss_bytes=3 * GB, gpu_s=2.0, gpu_seen_s=1200.0)]
    found = {hint.flag: hint.value for hint in compare(asked, sum_up(done, {}, 0))}
    assert found == flags
    assert [*compare(asked, sum_up([], {}, 0))] == [], "nothing was seen, nothing is said"


def test_a_limit_far_above_what_runs_take_closes_kept_room() -> None:
    [hint] = compare_time(24 * 60 * MINUTE_MS, True, [10 * MINUTE_MS] * 9 + [12 * MINUTE_MS])
    assert (hint.flag, hint.value) == ("--time", "18m")
    assert [*compare_time(30 * MINUTE_MS, True, [12 * MINUTE_MS] * 9)] == []
    assert [*compare_time(24 * 60 * MINUTE_MS, True, [MINUTE_MS] * 2)] == []


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub(estimate_every_s=0) as running:
        yield running


@pytest.fixture(scope="module")
def worker(hub: RunningHub) -> Iterator[MockWorker]:
    with hub.worker("w1", capability=make_capability(gpus=1), slots=make_slots(8), features=MODERN) as found:
        found.register()
        found.ready(8)
        found.recv("no_work")
        yield found


def test_a_hub_advises_on_a_job_and_foretells_demand(hub: RunningHub, worker: MockWorker) -> None:
    spec = {"command": ["true"], "gpu_count": 1, "max_runtime_s": 3600}
    assert ask(hub, "POST", "/jobs", {"id": "holds", **spec})[0] == 201
    task = worker.assigned()
    worker.accept(task)
    worker.started(task)
    assert ask(hub, "POST", "/jobs", {"id": "waits", "command": ["true"], "cpu_milli": 1_000_000})[0] == 201
    status, answer = ask(hub, "GET", "/jobs/waits/advice")
    assert status == 200
    advice = msgspec.convert(answer, JobAdvice)
    assert advice.waits
    assert [one.about for one in advice.advice] == ["start"], advice
    assert ask(hub, "GET", "/jobs/nowhere/advice")[0] == 404
    eve = hub.make_token("eve")
    assert ask(hub, "GET", "/jobs/waits/advice", token=eve)[0] == 404
    status, answer = ask(hub, "GET", "/advice/demand")
    assert status == 200
    demand = msgspec.convert(answer, Demand)
    assert {one.kind: one.now for one in demand.kinds} == {"all": 1, "1": 1}
    assert all(not one.ahead for one in demand.kinds), "within its first day nobody knows anything"
