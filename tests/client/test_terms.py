"""Keywords of `submit` become fields of a spec, and every fault is told at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dray.client.calls.terms import KEPT_VARIABLES, build_spec
from dray.core.model.specs.check import check_spec
from dray.errors import InvalidInput, InvalidSpec


@pytest.mark.parametrize(
    ("terms", "fields"),
    [
        ({"cpus": 2}, {"cpu_milli": 2000}),
        ({"cpus": 0.5}, {"cpu_milli": 500}),
        ({}, {"cpu_milli": 1000}),
        ({"memory": "8g"}, {"memory_bytes": 8 << 30}),
        ({"memory": 1024}, {"memory_bytes": 1024}),
        ({"gpus": 1, "vram": "16G"}, {"gpu_count": 1, "vram_per_gpu_bytes": 16 * 10**9}),
        ({"gpus": "A100:2"}, {"gpu_count": 2, "gpu_type": "A100"}),
        ({"gpus": 8, "nodes": 2}, {"gpu_count": 4, "node_count": 2}),
        ({"gpus_per_node": 8, "nodes": 2}, {"gpu_count": 8, "node_count": 2}),
        (
            {"resources": {"cpu": 2, "memory": "8g", "gpu": "A100:2"}},
            {"cpu_milli": 2000, "memory_bytes": 8 << 30, "gpu_count": 2, "gpu_type": "A100"},
        ),
        ({"resources": {"licence": 3}}, {"resources": {"licence": 3}}),
        ({"scheduling_timeout": 300}, {"scheduling_timeout_s": 300}),
        ({"scheduling_timeout_seconds": 0.5}, {"scheduling_timeout_s": 0.5}),
        ({"scheduling_timeout": "5m"}, {"scheduling_timeout_s": 300}),
        ({"time_limit": 90}, {"max_runtime_s": 90}),
        ({"time_limit": "1:30:00"}, {"max_runtime_s": 5400}),
        (
            {"tier": "training", "name": "t", "backend": "nvidia"},
            {"job_tier": "training", "name": "t", "gpu_backend": "nvidia"},
        ),
        ({"array": 10}, {"array": {"first": 0, "last": 9}}),
        ({"array": range(2, 9, 3)}, {"array": {"first": 2, "last": 8, "step": 3}}),
        ({"array": "0-9%3"}, {"array": {"first": 0, "last": 9, "step": 1, "limit": 3}}),
        ({"labels": {"team": 7}}, {"labels": {"team": "7"}}),
        ({"require": "zone=a"}, {"require": ["zone=a"]}),
        ({"retries": 2, "priority": 5, "queue": "q"}, {"retries": 2, "priority": 5, "queue": "q"}),
        ({"gpus": None}, {"cpu_milli": 1000}),
    ],
)
def test_keywords_become_fields_that_the_hub_accepts(terms: dict[str, Any], fields: dict[str, Any]) -> None:
    spec = build_spec(["true"], terms)
    assert {name: spec[name] for name in fields} == fields
    assert spec["command"] == ["true"]
    check_spec(spec)


def test_the_callers_folder_and_a_few_variables_travel_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET", "do not tell")
    spec = build_spec(["true"], {"env": {"STEP": 1, "PATH": "/bin"}})
    assert spec["workdir"] == os.getcwd()
    assert (spec["env"]["STEP"], spec["env"]["PATH"]) == ("1", "/bin")
    assert set(spec["env"]) <= {"STEP", *KEPT_VARIABLES}
    assert build_spec(["true"], {"workdir": "data"})["workdir"] == str(tmp_path / "data")


def test_a_spec_stays_as_it_is() -> None:
    spec = {"command": ["true"], "gpu_count": 2}
    assert build_spec(spec, {}) == spec
    assert build_spec(spec, {"name": "n"}) == {**spec, "name": "n"}


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(InvalidSpec) as refused:
        build_spec(["true"], {"gpuz": 1, "memory": "lots", "cpus": 1, "resources": {"cpu": 2, "gpu": "x"}})
    assert [problem.where for problem in refused.value.problems] == [
        "gpuz",
        "memory",
        "resources['cpu']",
        "resources['gpu']",
    ]
    assert "did you mean 'gpu" in refused.value.problems[0].what


@pytest.mark.parametrize("command", ["python train.py", 7])
def test_a_command_is_a_list_of_words(command: Any) -> None:
    with pytest.raises(InvalidSpec, match="list of words"):
        build_spec(command, {})


def test_without_a_command_there_is_a_template() -> None:
    with pytest.raises(InvalidInput, match="nothing is to be run"):
        build_spec(None, {"cpus": 2})
    spec = build_spec(None, {"template": "t", "params": {"a": 1}})
    assert (spec["template"], spec["params"], "cpu_milli" in spec) == ("t", {"a": 1}, False)


@pytest.mark.parametrize(
    "terms",
    [
        {"cpus": "many"},
        {"cpus": -1},
        {"cpus": float("nan")},
        {"time_limit": 0},
        {"array": 0},
        {"array": range(0)},
        {"array": "9-0"},
        {"gpus": 7, "nodes": 2},
        {"gpus": True},
        {"env": "A=1"},
        {"resources": 3},
    ],
)
def test_nonsense_is_refused_here(terms: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec):
        build_spec(["true"], terms)
