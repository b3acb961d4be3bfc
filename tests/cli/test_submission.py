"""Flags become the spec that the hub gets, and a submission happens once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dray.cli.main import main
from dray.core.model.units import DEFAULT_RUNTIME_S, MAX_RUNTIME_S


def sent_spec(hub) -> Any:
    return hub.asked("POST", "/jobs")[-1][1]


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        ([], {"cpu_milli": 1000}),
        (["-c", "0.5"], {"cpu_milli": 500}),
        (["-c", "0"], {"cpu_milli": 0}),
        (["-J", "night run"], {"name": "night run"}),
        (["-G", "2"], {"gpu_count": 2}),
        (["-G", "A100:2"], {"gpu_count": 2, "gpu_type": "A100"}),
        (["-G", "8", "-N", "4"], {"gpu_count": 2, "node_count": 4}),
        (["--gpus-per-node", "2", "-N", "4"], {"gpu_count": 2, "node_count": 4}),
        (["--gpu-type", "H200", "-G", "1"], {"gpu_count": 1, "gpu_type": "H200"}),
        (["--vram", "80G"], {"vram_per_gpu_bytes": 80 * 10**9}),
        (["--mem", "16g"], {"memory_bytes": 16 << 30}),
        (["-t", "90"], {"max_runtime_s": 5400}),
        (["-t", "1-02:00:00"], {"max_runtime_s": 93600}),
        (["-a", "0-9%3"], {"array": {"first": 0, "last": 9, "step": 1, "limit": 3}}),
        (["--backend", "metal"], {"gpu_backend": "metal"}),
        (["--device", "gpu:H200"], {"device": {"kind": "gpu", "variant": "H200"}}),
        (["--tier", "training", "--priority", "-3"], {"job_tier": "training", "priority": -3}),
        (["--queue", "night"], {"queue": "night"}),
        (["--queue-timeout", "5m"], {"scheduling_timeout_s": 300.0}),
        (["--retries", "2", "--losses", "0"], {"retries": 2, "losses": 0}),
        (["--at-most-once"], {"at_most_once": True}),
        (["--label", "team=vision", "--label", "x="], {"labels": {"team": "vision", "x": ""}}),
        (["--require", "disk=ssd", "--prefer", "!spot"], {"require": ["disk=ssd"], "prefer": ["!spot"]}),
        (
            ["--prolog", "mount 'a b'", "--epilog", "umount"],
            {"prolog": ["mount", "a b"], "epilog": ["umount"]},
        ),
        (
            ["--type", "service", "--user", "bob", "--id", "web"],
            {"type": "service", "user_id": "bob", "id": "web"},
        ),
        (["--workdir", "/data"], {"workdir": "/data"}),
    ],
)
def test_flags_become_fields(hub, flags, fields):
    assert main(["submit", *flags, "--", "python", "train.py", "-x", "--lr=3"]) == 0
    spec = sent_spec(hub)
    assert spec["command"] == ["python", "train.py", "-x", "--lr=3"]
    assert {name: spec.get(name) for name in fields} == fields
    extra = set(spec) - set(fields) - {"command", "cpu_milli", "env", "workdir"}
    assert not extra


def test_folder_and_kept_variables_go_along_and_nothing_else(hub, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.setenv("PASSED", "on")
    assert main(["submit", "--env", "PASSED", "--env", "A=b=c", "--", "true"]) == 0
    spec = sent_spec(hub)
    assert spec["workdir"] == os.path.realpath(tmp_path)
    assert spec["env"] == {"PATH": "/bin", "HOME": "/home/ada", "LANG": "C.UTF-8", "PASSED": "on", "A": "b=c"}


def test_flags_of_the_command_are_its_own(hub):
    assert main(["submit", "-c", "2", "python", "x.py", "-c", "9", "job.yaml"]) == 0
    assert sent_spec(hub)["command"] == ["python", "x.py", "-c", "9", "job.yaml"]
    assert sent_spec(hub)["cpu_milli"] == 2000


def test_all_wrong_flags_are_told_at_once(hub, capfd):
    assert (
        main(["submit", "-c", "two", "-G", "3", "-N", "2", "--mem", "x", "--env", "NOT_SET_1", "--", "true"])
        == 2
    )
    said = capfd.readouterr().err
    for part in (
        "--cpus: 'two'",
        "--gpus: 3 GPUs in all do not divide by 2 nodes",
        "--mem: 'x'",
        "--env: NOT_SET_1",
    ):
        assert part in said
    assert not hub.requests


@pytest.mark.parametrize(
    "arguments", [["submit"], ["submit", "-c"], ["submit", "--nonsense", "x"], ["sumbit"]]
)
def test_usage_errors_exit_with_2(hub, arguments, capfd):
    assert main(arguments) == 2
    assert "Error: " in capfd.readouterr().err
    assert not hub.requests


def test_the_help_tells_the_limits_that_hold(capfd):
    assert main(["submit", "--help"]) == 0
    words = " ".join(capfd.readouterr().out.split())
    assert f"[default: {DEFAULT_RUNTIME_S // 3600}h, of a service none]" in words
    assert f"{MAX_RUNTIME_S // 86400} days at most" in words


def test_problems_of_the_hub_name_the_flags(hub, capfd):
    problems = [
        {"where": "gpu_count", "what": "must be 4 or less"},
        {"where": "queue", "what": "no such queue"},
    ]
    error = {"code": "invalid_spec", "message": "the job cannot be accepted", "problems": problems}
    hub.canned["POST", "/jobs"] = (400, {"error": error})
    assert main(["submit", "-G", "8", "--queue", "q", "--", "true"]) == 1
    assert capfd.readouterr().err.splitlines() == [
        "dray: the job cannot be accepted (invalid_spec)",
        "  --gpus: must be 4 or less",
        "  --queue: no such queue",
    ]


def test_the_id_alone_is_printed(hub, capfd):
    assert main(["submit", "--", "true"]) == 0
    assert capfd.readouterr().out == "j1\n"


def test_json_is_the_document(hub, capfd):
    assert main(["submit", "-o", "json", "--", "true"]) == 0
    assert json.loads(capfd.readouterr().out) == hub.jobs["j1"]
    assert main(["-o", "json", "submit", "--", "true"]) == 0
    assert json.loads(capfd.readouterr().out) == hub.jobs["j1"]


def test_a_lost_answer_is_asked_for_again_under_the_same_key(hub, capfd):
    hub.drop_answers = 2
    assert main(["submit", "--", "true"]) == 0
    keys = [headers["Idempotency-Key"] for _, _, headers in hub.asked("POST", "/jobs")]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert len(keys[0]) == 32
    assert capfd.readouterr().out == "j1\n"


def test_every_submission_has_its_own_key_unless_told(hub):
    for flags in ([], [], ["--key", "mine"]):
        assert main(["submit", *flags, "--", "true"]) == 0
    first, second, third = [headers["Idempotency-Key"] for _, _, headers in hub.asked("POST", "/jobs")]
    assert first != second
    assert third == "mine"


def test_a_hub_that_is_not_there_is_final_for_submit(hub, capfd):
    hub.stop()
    assert main(["submit", "--", "true"]) == 1
    assert f"no hub answers at {hub.url}" in capfd.readouterr().err


def test_file_with_several_jobs_is_one_batch_and_flags_win(hub, tmp_path: Path, capfd):
    path = tmp_path / "jobs.yaml"
    path.write_text("- command: python a.py\n  cpu_milli: 4000\n- {command: [b], priority: 1, env: {A: 1}}\n")
    assert main(["submit", str(path), "--priority", "5", "-c", "2", "--env", "B=2"]) == 0
    specs = hub.asked("POST", "/jobs:batch")[0][1]
    assert [spec["command"] for spec in specs] == [["python", "a.py"], ["b"]]
    assert [spec["priority"] for spec in specs] == [5, 5]
    assert [spec["cpu_milli"] for spec in specs] == [2000, 2000]
    assert specs[1]["env"]["A"] == "1"
    assert specs[1]["env"]["B"] == "2"
    assert capfd.readouterr().out == "j0\nj1\n"


def test_after_dashes_a_yaml_name_is_a_command(hub):
    assert main(["submit", "--", "job.yaml"]) == 0
    assert sent_spec(hub)["command"] == ["job.yaml"]
