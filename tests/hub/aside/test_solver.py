"""A real hub with a real solver beside it: batches are solved, and nothing that happens to the solver holds work up."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from tests.hub.asking import ask, wait_until

from dray.hub.aside.solver import MISSING, Solver
from dray.testing import MockWorker, RunningHub, make_capability, make_slots, running_hub
from dray.testing.worker_script import MODERN

LIMIT_S = 60.0
MANY, MOST = 60, 50_000


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub(estimate_every_s=0) as running:
        assert ask(running, "PUT", "/policy", {"placement": {"strategy": "min_cost"}})[0] == 200
        yield running


@pytest.fixture(scope="module")
def worker(hub: RunningHub) -> Iterator[MockWorker]:
    with hub.worker("w1", capability=make_capability(), slots=make_slots(MOST), features=MODERN) as found:
        found.register()
        found.ready(MOST)
        found.recv("no_work")
        yield found


def outcomes(hub: RunningHub) -> dict[str, int]:
    lines = ask(hub, "GET", "/metrics")[1].splitlines()
    found = [line.split() for line in lines if line.startswith("dray_solver_answers_total{")]
    return {name.split('"')[1]: int(float(value)) for name, value in found}


def solve(hub: RunningHub, worker: MockWorker) -> None:
    """Submit more than are solved within a pass; whatever the solver does, all of them are placed."""
    assert ask(hub, "POST", "/jobs", {"command": ["true"], "array": {"last": MANY - 1}})[0] == 201
    for _ in range(MANY):
        worker.assigned()


def solve_until(hub: RunningHub, worker: MockWorker, outcome: str, count: int) -> None:
    """Batches are made once a second at most: what comes in between is placed at once, and asks nobody."""

    def look() -> bool:
        solve(hub, worker)
        return outcomes(hub)[outcome] >= count

    wait_until(look, LIMIT_S)


def placement(hub: RunningHub) -> Any:
    return next(one for one in ask(hub, "GET", "/doctor")[1]["checks"] if one["name"] == "placement")


def test_batches_are_solved_and_faults_cost_nothing_but_the_hints(
    hub: RunningHub, worker: MockWorker
) -> None:
    # Its process has to start: the first answers may be late.
    solve_until(hub, worker, "used", 1)
    assert placement(hub)["ok"]
    [child] = [one for one in psutil.Process(hub.pid).children() if "dray.hub.aside.program" in one.cmdline()]

    child.send_signal(signal.SIGSTOP)
    solve_until(hub, worker, "failed", 1)
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, LIMIT_S)
    stuck = placement(hub)
    assert not stuck["ok"]
    assert "placed one by one" in stuck["detail"]

    solve_until(hub, worker, "used", outcomes(hub)["used"] + 1)
    assert placement(hub)["ok"], "it does well again"
    for one in psutil.Process(hub.pid).children():
        one.kill()
    solve_until(hub, worker, "used", outcomes(hub)["used"] + 1)


def test_a_solver_that_is_not_installed_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    engine: Any = None  # nothing is asked of it
    solver = Solver(engine, engine, engine)
    assert solver.trouble == MISSING
    asyncio.run(solver.run())
