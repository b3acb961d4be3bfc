"""Queues, quotas, paces and the policy at the command line: what is sent, and how answers look."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.whole import whole

from dray.cli.base.policy_text import spell_value, write_policy
from dray.cli.main import main
from dray.cli.site.views import draw_queues
from dray.core.model.policies.check import check_policy
from dray.core.model.policies.policy import Policy
from dray.core.model.policies.spelling import list_values, policy_document
from dray.hub.decisions.policy import read_policy_text
from dray.wire.schemas.site import QueueDocument

NOW = "2026-11-15T09:10:49.123Z"
QUEUE: dict[str, Any] = {
    "name": "prod",
    "policy": "priority",
    "weight": 3,
    "ageing_s": 3600,
    "protect_after_s": 0,
    "listed": True,
    "waiting": 12,
    "running": 2,
    "gpus_held": 1.5,
    "gpus_limit": 8,
    "oldest_wait_s": 75,
    "starts_per_min_5m": 2.25,
    "starts_per_min_1h": 1,
    "ends_per_min_5m": 0,
    "ends_per_min_1h": 0.5,
    "wait_p50_s": 3,
    "wait_p90_s": 130,
}


def policy_answer(raw: Any, origin: str = "applied", **more: Any) -> dict[str, Any]:
    policy = check_policy(raw)
    told = f"applied by ada at {NOW}" if origin == "applied" else origin
    values = [
        {"name": item.name, "value": item.value, "origin": told if item.given else "default"}
        for item in list_values(policy)
    ]
    return {"policy": policy_document(policy), "values": values, "origin": origin, **more}


def test_queue_ls(hub, capsys):
    hub.canned["GET", "/queues"] = (
        200,
        {"queues": [QUEUE, {"name": "default", "policy": "fifo", "weight": 1}]},
    )
    assert main(["queue", "ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0].split()
        == "QUEUE ORDER WEIGHT WAITING RUNNING GPUS OLDEST P50 P90 STARTS/MIN ENDS/MIN".split()
    )
    assert lines[1].split() == "prod priority 3 12 2 1.5/8 1m15s 3s 2m10s 2.25 -".split()
    assert main(["queue", "ls", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["queues"][0] == whole(QueueDocument, QUEUE)


def test_queues_on_a_narrow_terminal():
    drawn = draw_queues([{**QUEUE, "name": "a-queue-with-a-long-name"}], 60)
    assert max(map(len, drawn.splitlines())) <= 60
    assert "WAITING" in drawn


def test_queue_show(hub, capsys):
    line = [
        {"place": 1, "job_id": "j1", "name": "train", "user": "ada", "priority": 5, "tasks": 10, "submitted_at": NOW},
        {"place": 4, "job_id": "j2", "task": 7, "user": "ben", "tasks": 1, "submitted_at": NOW},
    ]  # fmt: skip
    hub.canned["GET", "/queues/prod"] = (200, {**QUEUE, "line": line})
    assert main(["queue", "show", "prod", "-n", "5"]) == 0
    out = capsys.readouterr().out
    assert hub.asked("GET", "/queues/prod")[0][0] == {"limit": ["5"]}
    assert "one more point of priority per 1h" in out
    assert "protected  off" in out
    assert "12 tasks, the oldest for 1m15s" in out
    rows = [row.split() for row in out.splitlines()[-2:]]
    assert rows[0][:6] == ["1", "j1", "train", "ada", "5", "10"]
    assert rows[1][:2] == ["4", "j2/7"]


def test_quota(hub, capsys):
    quotas = [
        {"kind": "user", "name": "ada", "gpus_held": 4, "gpus_limit": 4, "running": 3, "gpu_hours_used": 123.4567,
         "gpu_hours_soft": 100, "gpu_hours_hard": 200, "period_s": 604800, "standing": "over soft"},
        {"kind": "queue", "name": "prod", "gpus_held": 0.5, "gpus_limit": 2, "standing": "ok"},
    ]  # fmt: skip
    hub.canned["GET", "/quotas"] = (200, {"quotas": quotas})
    assert main(["quota"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == [
        "user",
        "ada",
        "4/4",
        "-",
        "-",
        "3",
        "-",
        "-",
        "123",
        "100",
        "200",
        "7d",
        "over",
        "soft",
    ]
    assert lines[2] == ["queue", "prod", "0.5/2", "-", "-", "0", "-", "-", "-", "-", "-", "-", "ok"]
    hub.canned["GET", "/quotas"] = (200, {"quotas": []})
    assert main(["quota"]) == 0
    assert "no quotas hold for you" in capsys.readouterr().err


def test_pace(hub, capsys):
    answer = {
        "submits": [{"kind": "user", "name": "*", "per_minute": 60, "burst": 5, "tokens": None},
                    {"kind": "user", "name": "ada", "per_minute": 60, "burst": 5, "tokens": -3.5}],
        "starts": [{"kind": "label", "name": "a=b", "per_minute": 0.5, "burst": 1, "tokens": 1}],
        "running": [{"label": "license", "most": 2, "running": 1}],
    }  # fmt: skip
    hub.canned["GET", "/paces"] = (200, answer)
    assert main(["pace"]) == 0
    out = capsys.readouterr().out
    assert "3.5 in debt" in out
    assert "0.5 a minute" in out
    assert "2 at once" in out
    hub.canned["GET", "/paces"] = (200, {"submits": [], "starts": [], "running": []})
    assert main(["pace"]) == 0
    assert "nothing is paced" in capsys.readouterr().err


def test_config_show(hub, capsys):
    hub.canned["GET", "/policy"] = (200, policy_answer({"queues": {"gold": {"weight": 3}}}))
    settings = [
        {"name": "port", "value": 7400, "origin": "/home/ada/.dray/config.toml [hub] port"},
        {"name": "lost_s", "value": 120, "origin": "default"},
        {"name": "body_bytes", "value": 8 << 20, "origin": "default"},
    ]
    hub.canned["GET", "/config"] = (200, {"values": settings})
    assert main(["config", "show"]) == 0
    out = capsys.readouterr().out
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert lines["hub.lost_s"] == ["2m", "default"]
    assert lines["hub.body_bytes"] == ["8m", "default"]
    assert lines["hub.port"][:2] == ["7400", "/home/ada/.dray/config.toml"]
    assert lines["client.away_s"] == ["10m", "default"]
    assert lines["policy.queues.gold.weight"][:4] == ["3", "applied", "by", "ada"]
    assert "test-token" not in out
    assert main(["config", "show", "--changed", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [item["name"] for item in shown["hub"]["values"]] == ["port"]
    assert [item["name"] for item in shown["policy"]["values"]] == ["queues.gold.weight"]
    assert shown["policy"]["policy"]["queues"]["gold"]["weight"] == 3


def test_config_show_without_admin(hub, capsys):
    hub.canned["GET", "/policy"] = (200, policy_answer({}, "default"))
    refusal = {"error": {"code": "forbidden", "message": "this call needs the scope admin", "problems": []}}
    hub.canned["GET", "/config"] = (403, refusal)
    assert main(["config", "show"]) == 0
    told = capsys.readouterr()
    assert "needs the scope admin: they are left out" in told.err
    assert "policy.preemption.strategy" in told.out
    assert "hub.port" not in told.out


RICH = {
    "queues": {"no": {"weight": 0.25, "ageing_s": 90}, "gold.1": {"order": "edf", "protect_after_s": "2h"}},
    "quotas": [{"user": "*", "gpus": 1.5, "gpu_hours": {"hard": 3}}, {"plugin": "p", "gpus": 0}],
    "pacing": {"running": [{"label": "a=: # x", "most": 1}]},
    "fair_share": {"half_life_s": 1234567.5, "entry_charge_s": 1e-7, "weights": {"ada": 2}},
    "preemption": {"kinds": {"gpu": "none"}, "by_tier": True},
    "providers": {"on prem: east": {"price_per_hour": 0.123456789}},
}


@pytest.mark.parametrize("raw", [{}, RICH])
def test_the_yaml_of_show_is_what_apply_reads(hub, capsys, raw):
    hub.canned["GET", "/policy"] = (200, policy_answer(raw))
    assert main(["config", "show", "-o", "yaml"]) == 0
    _, policy = read_policy_text(capsys.readouterr().out, "shown")
    assert policy == check_policy(raw)


def test_yaml_tells_what_was_chosen():
    text = write_policy(policy_answer({"queues": {"gold": {"weight": 3}}}))
    assert text.splitlines()[0] == f"# applied by ada at {NOW}"
    assert "    weight: 3  # applied" in text.splitlines()
    assert "    order: fifo" in text.splitlines()


def test_config_apply(hub, tmp_path: Path, capsys):
    file = tmp_path / "p.yaml"
    file.write_text("fair_share:\n  half_life_s: 1d\n")
    changes = [{"name": "fair_share.half_life_s", "old": 604800, "new": 86400}]
    hub.canned["PUT", "/policy"] = (200, policy_answer({}, changed=True, changes=changes, problems=[]))
    assert main(["config", "apply", str(file)]) == 0
    assert hub.asked("PUT", "/policy")[0][:2] == ({}, {"fair_share": {"half_life_s": "1d"}})
    out = capsys.readouterr().out
    assert out.startswith("changed 1 value:")
    assert "fair_share.half_life_s  7d   1d" in out
    assert main(["config", "apply", "--dry-run", "--force", str(file)]) == 0
    assert hub.asked("PUT", "/policy")[1][0] == {"dry_run": ["1"], "force": ["1"]}
    assert capsys.readouterr().out.startswith("would change 1 value:")


def test_a_dry_run_that_would_be_refused_fails(hub, tmp_path: Path, capsys):
    file = tmp_path / "p.yaml"
    file.write_text("queues: {a: }\n")
    problems = [{"where": "queues.b", "what": "is not listed, but 1 tasks wait"}]
    hub.canned["PUT", "/policy"] = (200, policy_answer({}, changes=[], problems=problems))
    assert main(["config", "apply", "--dry-run", str(file)]) == 1
    assert "it would be refused: queues.b: is not listed" in capsys.readouterr().err


def test_a_bad_file_is_never_sent(hub, tmp_path: Path, capsys):
    file = tmp_path / "p.yaml"
    file.write_text("queus: {}\nquotas:\n  - gpus: 3\n")
    assert main(["config", "apply", str(file)]) == 2
    told = capsys.readouterr().err
    assert f"{file} has 2 problems, nothing was changed" in told
    assert f"{file}:1:1: queus: is no key of the policy; did you mean 'queues'?" in told
    assert f"{file}:3:5: quotas[0]: must name exactly one" in told
    assert main(["config", "apply", str(tmp_path / "none.yaml")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert hub.asked("PUT", "/policy") == []


def test_apply_from_stdin(hub, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("queues: {a: {weight: x}}"))
    assert main(["config", "apply", "-"]) == 2
    assert "stdin:1:14: queues.a.weight: must be a number" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO("queues: {a: {weight: 2}}"))
    hub.canned["PUT", "/policy"] = (200, policy_answer({}, changes=[], problems=[]))
    assert main(["config", "apply", "-"]) == 0
    assert hub.asked("PUT", "/policy")[0][1] == {"queues": {"a": {"weight": 2}}}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("a.b_s", 604800, "7d"),
        ("x_s", 90, "90s"),
        ("x_s", 0, "0"),
        ("x_s", 0.5, "0.5s"),
        ("n_bytes", 1 << 30, "1g"),
        ("weight", 2.5, "2.5"),
        ("flag", True, "true"),
        ("list", [], "none"),
        ("resend_s", [2.0, 60.0], "2s, 1m"),
        ("map", {"a": "b"}, "a=b"),
        ("nothing", None, "-"),
    ],
)
def test_values_are_spelled_with_units(name, value, text):
    assert spell_value(name, value) == text


def test_the_default_policy_needs_no_remark():
    answer = policy_answer({}, "default")
    assert answer["policy"] == policy_document(Policy())
    assert write_policy(answer).count("#") == 1


def test_a_paced_submit_waits_and_says_so(hub, capsys):
    refusal = {
        "error": {"code": "too_many_requests", "message": "user 'ada' may submit 1 job", "problems": []}
    }
    hub.canned["POST", "/jobs"] = (429, refusal)

    import threading

    def calm() -> None:
        hub.wait_asked("POST", "/jobs", 2)
        del hub.canned["POST", "/jobs"]

    thread = threading.Thread(target=calm)
    thread.start()
    assert main(["submit", "--", "true"]) == 0
    thread.join()
    asked = hub.asked("POST", "/jobs")
    assert len(asked) >= 3
    assert len({headers["Idempotency-Key"] for _, _, headers in asked}) == 1
    assert capsys.readouterr().err.count("user 'ada' may submit 1 job; waiting for up to 10 min") == 1


def test_a_pace_that_is_too_slow_is_told_at_once(hub, monkeypatch, capsys):
    monkeypatch.setenv("DRAY_CLIENT_AWAY_S", "0.5")
    refusal = {"error": {"code": "too_many_requests", "message": "try again in 10 min", "problems": []}}
    hub.canned["POST", "/jobs"] = (429, refusal)
    assert main(["submit", "--", "true"]) == 1
    assert "(too_many_requests)" in capsys.readouterr().err
