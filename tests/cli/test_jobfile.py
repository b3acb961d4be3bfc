"""Job files: every problem at once, each where it stands; text taken as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.cli.asks.fields import JobFileError
from dray.cli.asks.jobfile import load_jobs
from dray.cli.main import main


def load(tmp_path: Path, text: str, **flags):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return load_jobs(path, flags)


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(JobFileError) as caught:
        load(tmp_path, text)
    prefix = f"{tmp_path / 'job.yaml'}:"
    return [f"{problem.where.removeprefix(prefix)} {problem.what}" for problem in caught.value.problems]


def test_every_problem_is_told_with_its_line_and_column(tmp_path):
    text = """\
name: good
comand: [a]
cpus: two
gpus: A100:3
nodes: 2
time: 5
time: 6
array: {first: 0, lats: 4}
priority: high
---
- command: [b]
  queue: "bad queue"
- 17
- command: "echo 'unclosed"
  after: [when:x]
"""
    found = problems(tmp_path, text)
    assert [line.split(" ")[0] for line in found] == [
        *("2:1", "3:1", "4:1", "7:1", "8:19", "9:1", "12:3", "13:3", "14:3", "15:3")
    ]
    for line, part in zip(
        found,
        [
            "'comand' is not a key of a job; did you mean 'command'?",
            "cpus: 'two' is not a number of cores",
            "gpus: 3 GPUs in all do not divide by 2 nodes: ask for 2 or 4",
            "'time' is given twice, first in line 6",
            "array.lats: is not a field of a job; did you mean 'last'?",
            "priority: must be a whole number, got 'high'",
            "queue: must be 1 to 128 letters",
            "a job must be written as keys and values",
            'command: "echo \'unclosed" cannot be split into words',
            "after: 'when:x' must begin with ok:, any: or fail:",
        ],
        strict=True,
    ):
        assert part in line


def test_friendly_forms(tmp_path):
    text = """\
name: 007
command: python "my train.py" --lr 3e-4 | tee x
cpus: 1.5
memory: 16g
gpus: A100:4
nodes: 2
vram: 80G
time: 1:30:00
tier: training
backend: nvidia
queue_timeout: 5m
env: {A: 1.10, B: yes, C: , D: 0x1f}
labels: {run: 12}
require: disk=ssd
metadata: {when: 2026-01-01, n: 3}
"""
    (spec,) = load(tmp_path, text)
    assert spec["command"] == ["python", "my train.py", "--lr", "3e-4", "|", "tee", "x"]
    expected = {
        "name": "007",
        "cpu_milli": 1500,
        "memory_bytes": 16 << 30,
        "gpu_count": 2,
        "gpu_type": "A100",
        "node_count": 2,
        "vram_per_gpu_bytes": 80 * 10**9,
        "max_runtime_s": 5400,
        "job_tier": "training",
        "gpu_backend": "nvidia",
        "scheduling_timeout_s": 300.0,
        "labels": {"run": "12"},
        "require": ["disk=ssd"],
        "metadata": {"when": "2026-01-01", "n": 3},
    }
    assert {name: spec[name] for name in expected} == expected
    assert {name: spec["env"][name] for name in "ABCD"} == {"A": "1.10", "B": "yes", "C": "", "D": "0x1f"}


def test_spec_fields_lists_documents_and_merge_keys(tmp_path):
    text = """\
- &base {command: [a], cpu_milli: 250, array: 0-9%3}
- {<<: *base, command: [b], array: {first: 1, last: 4}}
---
command: [c, 3, yes]
---
"""
    first, second, third = load(tmp_path, text)
    assert first["array"] == {"first": 0, "last": 9, "step": 1, "limit": 3}
    assert second["command"] == ["b"]
    assert second["cpu_milli"] == 250
    assert second["array"] == {"first": 1, "last": 4}
    assert third["command"] == ["c", "3", "yes"]
    assert third["cpu_milli"] == 1000


@pytest.mark.parametrize(
    ("text", "place", "part"),
    [
        ("command: [a\nname: {", "2:", "this is not valid YAML"),
        ("command: a\n\tname: b\n", "2:1", "this is not valid YAML"),
        ("command: !!python/object/apply:os.system [ls]", "1:10", "has no meaning in a job file"),
        ("command: [a]\nmetadata: {x: .nan}", "2:15", "must be a finite number"),
        ("command: [a]\ncpus: 2\ncpu_milli: 3", "3:1", "says the same as 'cpus'"),
        ("command: *nothing", "1:10", "undefined alias"),
        ("{}", "1:1", "command: is empty"),
    ],
)
def test_single_faults(tmp_path, text, place, part):
    (found,) = problems(tmp_path, text)
    assert found.startswith(place)
    assert part in found


def test_a_file_that_unfolds_without_end_is_refused(tmp_path):
    assert any("unfolds to more" in line for line in problems(tmp_path, "command: [a]\nmetadata: &m {x: *m}"))
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    assert any("unfolds to more" in line for line in problems(tmp_path, f"{bomb}command: [a]\n"))


def test_an_empty_or_missing_file(tmp_path):
    assert "holds no job" in problems(tmp_path, "# nothing\n")[0]
    with pytest.raises(JobFileError, match="cannot be read"):
        load_jobs(tmp_path / "missing.yaml", {})
    (tmp_path / "b.yaml").write_bytes(b"command: \xff")
    with pytest.raises(JobFileError, match="not UTF-8"):
        load_jobs(tmp_path / "b.yaml", {})


def test_on_the_command_line_a_bad_file_is_a_usage_error_and_nothing_is_sent(hub, tmp_path, capfd):
    path = tmp_path / "job.yaml"
    path.write_text("comand: [a]\n")
    assert main(["submit", str(path)]) == 2
    said = capfd.readouterr().err.splitlines()
    assert said[0] == f"dray: {path} has 2 problems, nothing was submitted (invalid_job_file)"
    assert said[1] == f"  {path}:1:1: 'comand' is not a key of a job; did you mean 'command'?"
    assert not hub.requests
    assert main(["submit", str(path), "-c", "two"]) == 2
    assert "--cpus: 'two'" in capfd.readouterr().err


def test_run_takes_a_file_with_one_job(hub, tmp_path):
    hub.on_submit = lambda spec: {"state": "succeeded"}
    path = tmp_path / "job.yaml"
    path.write_text("command: [a]\n")
    assert main(["run", str(path)]) == 0
    path.write_text("- command: [a]\n- command: [b]\n")
    assert main(["run", str(path)]) == 2


def test_a_character_that_yaml_does_not_know_is_told(tmp_path):
    (found,) = problems(tmp_path, "command: [a\x01b]\n")
    assert "is not valid YAML: unacceptable character #x0001" in found
