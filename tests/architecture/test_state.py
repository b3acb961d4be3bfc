"""The check of who changes a state holds for the project and refuses every way round `apply`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# As much of the core as the planted modules lean on: a class whose methods change it, and a rule.
LINES = """
class Backlog:
    def __init__(self):
        self.awake = {}

    def wake(self, shape):
        self.awake[shape] = None

    def rouse(self, shape):
        self.wake(shape)

    def waits(self, shape):
        return shape in self.awake
"""
JOBS = """
def settle(state: State):
    _end(state)

def _end(state: State):
    del state.jobs["j1"]

def next_index(state: State):
    return len(state.jobs)
"""


def check(*arguments: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "tools" / "check_state.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def plant(folder: Path, module: str, text: str) -> None:
    planted = {
        "dray/core/lifecycle/state/lines": LINES,
        "dray/core/lifecycle/tasks/jobs": JOBS,
        module: text,
    }
    for name, body in planted.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body + "\n")


@pytest.mark.parametrize(
    "body",
    [
        "state.now_ms = 1",
        "state.now_ms += 1",
        "state.jobs['j1'] = None",
        "del state.jobs['j1']",
        "state.unprotected.clear()",
        "state.columns.roomier.update({})",
        "state.backlog.wake(1)",
        "state.backlog.rouse(1)",
        "columns = state.columns; columns.roomier[1] = None",
        "columns, rows = state.columns, []; columns.roomier.pop(1)",
        "for job in state.jobs.values(): job.held = True",
        "for job in list(state.jobs.values()): job.held = True",
        "for name, job in sorted(state.jobs.items()): job.held = True",
        "[job.after.clear() for job in state.jobs.values()]",
        "job = state.jobs.get('j1'); job.party = 2",
        "if (job := state.jobs.get('j1')) is not None: job.party = 2",
        "jobs = [job for job in state.jobs.values()]; jobs[0].party = 2",
        "timers = state.timers; timers += [1]",
        "from heapq import heappush; heappush(state.timers, 1)",
        "setattr(state, 'now_ms', 1)",
        "settle(state)",
        "jobs.settle(state)",
    ],
)
@pytest.mark.parametrize("module", ["dray/core/scheduling/passes/planning", "dray/hub/engine/turns"])
def test_a_write_is_refused(tmp_path: Path, module: str, body: str) -> None:
    imports = (
        "from dray.core.lifecycle.tasks import jobs\nfrom dray.core.lifecycle.tasks.jobs import settle\n"
    )
    plant(tmp_path, module, f"{imports}def decide(state: State):\n    {body}")
    done = check(tmp_path)
    assert done.returncode == 1
    assert f"{module}.py:" in done.stdout
    assert module.replace("/", ".") in done.stdout


def test_a_write_through_what_a_class_keeps_is_refused(tmp_path: Path) -> None:
    text = (
        "class Pass:\n"
        "    def __init__(self, state: State):\n"
        "        self._columns = state.columns\n"
        "    def run(self):\n"
        "        self._columns.roomier[1] = None\n"
    )
    plant(tmp_path, "dray/core/scheduling/passes/planning", text)
    assert "self._columns.roomier[1]" in check(tmp_path).stdout


@pytest.mark.parametrize(
    "body",
    [
        "found = list(state.jobs); found.append(1)",
        "known = dict(state.jobs); known['j1'] = None",
        "seen = [job.id for job in state.jobs.values()]; seen.sort()",
        "state = State(); state.now_ms = 1",
        "return state.backlog.waits(1)",
        "return jobs.next_index(state)",
        "return apply(state, None, None)",
        "own = {}; own[state.now_ms] = 1; own.clear()",
    ],
)
def test_reading_passes(tmp_path: Path, body: str) -> None:
    imports = "from dray.core.lifecycle.apply import apply\nfrom dray.core.lifecycle.tasks import jobs\n"
    plant(tmp_path, "dray/hub/engine/turns", f"{imports}def decide(state: State):\n    {body}")
    done = check(tmp_path)
    assert done.returncode == 0, done.stdout
