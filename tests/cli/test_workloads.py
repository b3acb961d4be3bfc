"""`dray workload`: files with a head, verbs, views, exit codes; against a hub with a worker that does as told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dray.cli.base.invocation import Session
from dray.cli.main import cli
from dray.cli.workloads.files import load_workload
from dray.errors import InvalidSpec
from dray.testing import RunningHub, make_slots, running_hub

FILE = """
workload: vision
deadline: +2d
budget: {money: 400, gpu_hours: 1200}
width: 1
failures: 5%
distribution: {mode: shares, by: provider, shares: {lab: 0.7, cloud: 0.3}}
defaults: {queue: default, gpus: 1, vram: 40G, time: 6h, env: {A: "1"}}
jobs:
  - {name: train, array: 0-1, gpus: 0, command: ["true"]}
  - {name: judge, after: [train], gpus: 0, command: ["true"]}
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub() as running:
        yield running


class Shell:
    """Commands as somebody types them."""

    def __init__(self, hub: RunningHub) -> None:
        self._env = {"DRAY_HUB": hub.url, "DRAY_TOKEN": hub.token, "DRAY_HOME": str(hub.home / "shell")}

    def __call__(self, *words: str, code: int = 0) -> str:
        done: Result = CliRunner().invoke(
            cli, list(words), env=self._env, obj=Session(), standalone_mode=False
        )
        got = done.return_value if isinstance(done.return_value, int) else int(done.exception is not None)
        assert got == code, (words, done.output, done.exception)
        return done.output

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "-o", "json"))


@pytest.fixture(scope="module")
def shell(hub: RunningHub) -> Shell:
    return Shell(hub)


def test_a_file_with_a_head_is_run_to_its_end(hub: RunningHub, shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "campaign.yaml"
    file.write_text(FILE)
    assert "vision" in shell("workload", "create", str(file))
    again = shell("workload", "create", str(file))
    assert "there already" in again or "vision" in again
    shown = shell.json("workload", "show", "vision")
    assert (shown["state"], shown["tasks"]["total"], shown["failures"]) == ("draft", 3, 0.05)
    train = shell.json("show", "vision-train")
    assert train["spec"]["env"]["A"] == "1"
    assert "gpu_count" not in train["spec"] or train["spec"]["gpu_count"] == 0
    assert shell.json("show", "vision-judge")["after"] == ["ok:vision-train"]
    assert "start vision" in shell("workload", "show", "vision")
    shell("workload", "start", "vision")
    shell("workload", "pause", "vision")
    assert "paused" in shell("workload", "ls")
    shell("workload", "start", "vision")
    shell("workload", "set", "vision", "--gpu-hours", "2", "--priority", "4")
    assert shell.json("show", "vision-train")["priority"] == 4
    shell("workload", "scale", "vision", "5")
    shell("workload", "spread", "vision", "spread", "--by", "zone", "--max-skew", "2")
    shell("workload", "seal", "vision")
    with hub.worker("w1", slots=make_slots(batch=4)) as worker:
        worker.register()
        worker.ready(4)
        for task in [worker.assigned() for _ in range(2)]:
            worker.accept(task)
            worker.result(task)
        worker.run_one()
    assert "succeeded" in shell("workload", "wait", "vision", "--timeout", "30s")
    assert [one["id"] for one in shell.json("ps", "-a", "--workload", "vision")["jobs"]] == [
        "vision-judge",
        "vision-train",
    ]
    assert "removed" in shell("workload", "rm", "vision")
    assert not shell.json("workload", "ls")["workloads"]


def test_a_campaign_that_is_stopped_says_so(shell: Shell) -> None:
    shell("workload", "create", "short", "--width", "3", "--label", "team=a", "--failures", "10%")
    shell("submit", "--workload", "short", "--", "true")
    assert "is not sealed" in shell("workload", "wait", "short", "--timeout", "0s", code=124)
    assert "cancelled" in shell("workload", "cancel", "short")
    shell("workload", "wait", "short", code=1)


def test_every_problem_of_a_file_has_its_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        "workload: x\nwidth: -3\nbudgett: 3\ndefaults: {gpuss: 1}\njobs:\n  - {command: [], mem: lots}\n"
    )
    with pytest.raises(InvalidSpec) as refused:
        load_workload(file, {})
    told = {problem.where.removeprefix(str(file)): problem.what for problem in refused.value.problems}
    assert "is not a key of a workload" in told[":3:1"]
    assert "width" in told[":2:1"]
    assert any(where.startswith(":4:") and "gpuss" in what for where, what in told.items())
    assert any(where.startswith(":6:") for where in told)
