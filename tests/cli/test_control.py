"""What `hold`, `release`, `requeue`, `set` and the flags beside them send to the hub, and what they say."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dray.cli.asks.fields import JobFileError
from dray.cli.asks.jobfile import load_jobs
from dray.cli.main import main
from dray.core.model.specs.check import check_spec


def sent(hub, method):
    return [(path, body) for verb, path, _, body, _ in hub.requests if verb == method]


@pytest.mark.parametrize(
    ("words", "path", "body", "said"),
    [
        (["hold", "j1"], "/jobs/j1/hold", None, "j1: held"),
        (["release", "j1"], "/jobs/j1/release", None, "j1: released"),
        (["requeue", "j1/3"], "/jobs/j1/requeue", {"task": 3}, "j1/3: stopping; it is queued again"),
        (["requeue", "j1"], "/jobs/j1/requeue", {}, "j1: stopping; it is queued again"),
    ],
)
def test_one_call_per_job(hub, capfd, words, path, body, said):
    hub.canned["POST", path] = (200, {"id": "j1", "state": "pending"})
    assert main(words) == 0
    assert sent(hub, "POST") == [(path, body)]
    assert said in capfd.readouterr().out


def test_one_that_cannot_be_held_does_not_stop_the_others(hub, capfd):
    error = {"code": "conflict", "message": "job a has ended", "problems": []}
    hub.canned["POST", "/jobs/a/hold"] = (409, {"error": error})
    hub.canned["POST", "/jobs/b/hold"] = (
        200,
        {"id": "b", "state": "pending", "note": "held already, by ada"},
    )
    assert main(["hold", "a", "b"]) == 1
    captured = capfd.readouterr()
    assert captured.out == "b: held already, by ada\n"
    assert captured.err == "dray: a: job a has ended (conflict)\n"


def test_a_task_is_not_held_alone(hub, capfd):
    assert main(["hold", "j1/2"]) == 2
    assert "a job is held whole: write j1" in capfd.readouterr().err
    assert not hub.requests


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (["priority=5", "queue=night"], {"priority": 5, "queue": "night"}),
        (
            ["time=2h", "mem=16g", "cpus=0.5"],
            {"max_runtime_s": 7200, "memory_bytes": 16 << 30, "cpu_milli": 500},
        ),
        (["gpus=A100:2"], {"gpu_count": 2, "gpu_type": "A100"}),
        (["gpus=0.5"], {"gpu_count": 1, "gpu_milli": 500}),
        (["after=ok:a,any:b"], {"after": ["ok:a", "any:b"]}),
        (["after="], {"after": []}),
        (["priority=", "mem="], {"priority": None, "memory_bytes": None}),
        (["limit=4"], {"array": {"limit": 4}}),
        (["hold=yes", "name=7"], {"hold": True, "name": "7"}),
        (
            ["labels=a=1,b=2", "require=gpu,disk=ssd"],
            {"labels": {"a": "1", "b": "2"}, "require": ["gpu", "disk=ssd"]},
        ),
        (["queue-timeout=5m"], {"scheduling_timeout_s": 300.0}),
        (["command=echo 'a b'"], {"command": ["echo", "a b"]}),
    ],
)
def test_changes_are_written_as_in_a_job_file(hub, words, body):
    hub.set("j1", state="pending", spec={})
    hub.canned["PATCH", "/jobs/j1"] = (200, {"id": "j1", "state": "pending"})
    assert main(["set", "j1", *words]) == 0
    assert sent(hub, "PATCH") == [("/jobs/j1", body)]


def test_cards_are_the_total_of_the_job(hub):
    hub.set("j1", state="pending", spec={"node_count": 4})
    hub.canned["PATCH", "/jobs/j1"] = (200, {"id": "j1", "state": "pending"})
    assert main(["set", "j1", "gpus=8"]) == 0
    assert sent(hub, "PATCH") == [("/jobs/j1", {"gpu_count": 2})]


def test_every_wrong_change_is_told_at_once(hub, capfd):
    assert main(["set", "j1", "priority", "mem=much", "hold=maybe", "labels=x", "cpus=1", "cpus=2"]) == 2
    said = capfd.readouterr().err
    for part in (
        "write KEY=VALUE",
        "mem: 'much'",
        "hold: must be true or false",
        "labels: must be K=V",
        "twice",
    ):
        assert part in said
    assert not hub.requests


def test_problems_of_the_hub_name_the_keys(hub, capfd):
    error = {
        "code": "invalid_spec",
        "message": "x",
        "problems": [{"where": "memory_bytes", "what": "too late"}],
    }
    hub.canned["PATCH", "/jobs/j1"] = (400, {"error": error})
    assert main(["set", "j1", "mem=1g"]) == 1
    assert "  mem: too late" in capfd.readouterr().err


def test_flags_of_a_submit(hub):
    assert main(["submit", "--hold", "--after", "a, fail:b", "--deadline", "+2h", "--", "true"]) == 0
    ((_, spec),) = sent(hub, "POST")
    assert (spec["hold"], spec["after"]) == (True, ["a", "fail:b"])
    ahead = datetime.fromisoformat(spec["deadline"]) - datetime.now(UTC)
    assert 7100 < ahead.total_seconds() <= 7200


def test_parts_of_several_cards_are_refused(hub, capfd):
    assert main(["submit", "-G", "1.5", "--", "true"]) == 2
    assert "asks for parts of several cards" in capfd.readouterr().err
    assert main(["submit", "-G", "A100:0.25", "--", "true"]) == 0
    ((_, spec),) = sent(hub, "POST")
    assert (spec["gpu_count"], spec["gpu_milli"], spec["gpu_type"]) == (1, 250, "A100")


def test_a_job_is_submitted_again_with_changes(hub, capfd):
    spec = {"id": "old", "user_id": "ada", "command": ["a"], "after": ["ok:x"], "hold": True}
    hub.set("old", state="failed", spec={**spec, "env": {"A": "1"}, "node_count": 2, "gpu_count": 1})
    assert main(["submit", "--from", "old", "--mem", "1g", "--env", "B=2", "-G", "4"]) == 0
    ((_, again),) = sent(hub, "POST")
    assert again == {
        "command": ["a"],
        "env": {"A": "1", "B": "2"},
        "node_count": 2,
        "gpu_count": 2,
        "memory_bytes": 1 << 30,
    }
    assert main(["submit", "--from", "old", "--", "true"]) == 2
    assert "--from repeats the job's own command" in capfd.readouterr().err


# --- alternatives in a job file ---------------------------------------------------------------------------------------


def load(tmp_path, text):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return load_jobs(path, {})


def test_alternatives_are_written_with_the_keys_of_a_job(tmp_path):
    text = """\
command: train
nodes: 2
either:
  - {name: cuda, gpus: "A100:4", vram: 40G, time: 1, require: nvlink}
  - name: mac
    gpus: 2
    backend: metal
    command: train --mlx
    env: {N: 1}
"""
    with pytest.raises(JobFileError) as caught:
        load(tmp_path, text)
    (problem,) = caught.value.problems
    assert "either[0].time: is not a field of an alternative" in problem.what
    (spec,) = load(tmp_path, text.replace(" time: 1,", ""))
    assert spec["variants"] == [
        {
            "name": "cuda",
            "gpu_count": 2,
            "gpu_type": "A100",
            "require": ["nvlink"],
            "vram_per_gpu_bytes": 40 * 10**9,
        },
        {
            "name": "mac",
            "gpu_count": 1,
            "gpu_backend": "metal",
            "command": ["train", "--mlx"],
            "env": {"N": "1"},
        },
    ]
    assert len(check_spec(spec).variants) == 2


def test_every_problem_of_every_alternative_has_its_line(tmp_path):
    text = """\
command: train
either:
  - gpus: 1
    backend: cpu
  - gpus: 1
  - 7
  - vram: big
  - gpuss: 1
  - {}
"""
    with pytest.raises(JobFileError) as caught:
        load(tmp_path, text)
    found = [
        (problem.where.rsplit(":", 2)[1], problem.what.partition(":")[0]) for problem in caught.value.problems
    ]
    assert found == [
        ("6", "either[2] must be written as keys and values"),
        ("7", "either[3].vram"),
        ("8", "either[4].gpuss"),
        ("9", "either[5]"),
    ]
    with pytest.raises(JobFileError) as caught:
        load(tmp_path, "\n".join(text.splitlines()[:5]))
    assert [problem.where.rsplit(":", 2)[1] for problem in caught.value.problems] == ["4"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("command: a\neither: 5", "must be a list of alternatives"),
        ("command: a\neither: []", "variants: is empty"),
        ("command: a\neither: [{cpus: 2}]\nvariants: [{cpu_milli: 1}]", "says the same as 'variants'"),
        ("command: a\neither: [{gpus: 1}, {gpus: 1}]", "either[1]: says the same as alternative 0"),
        ("either: [{gpus: 1}, {cpus: 2}]", "command: is empty"),
    ],
)
def test_lists_that_are_none(tmp_path, text, what):
    with pytest.raises(JobFileError) as caught:
        load(tmp_path, text)
    assert any(what.replace("variants:", "either:") in problem.what for problem in caught.value.problems)
