"""What `why`, `plan` and `doctor --eta` look like to a person."""

from __future__ import annotations

import json

import pytest
from tests.whole import whole_answer

from dray.cli.jobs.reason_views import draw_estimates, draw_plan, draw_why
from dray.cli.main import main


def test_why_tells_classes_holders_places_and_the_change_in_order():
    answer = {
        "state": "pending",
        "summary": "user ada holds 4 of 4 GPUs, and it asks for 2",
        "blockers": [
            {"kind": "gpu", "message": "each task asks for 2 GPUs (12 workers)", "workers": 12, "variant": 1},
            {"kind": "quota", "message": "user ada holds 4 of 4 GPUs, and it asks for 2"},
        ],
        "classes": [{"message": "12 workers nvidia a100 × 8: 0 free of 8 GPUs"}],
        "workers": [{"id": f"w{number}", "rejections": []} for number in range(10)],
        "workers_total": 12,
        "holders": [{"message": "j9 (bob) holds 8 GPUs on w3, for at most 2 h more"}],
        "place": {"message": "3 jobs with 300 tasks before it in queue gpu (priority)"},
        "start": {"message": "reserved on w3, starts in 2 h at the latest"},
        "estimate": {"message": "starts in ~10 min (p90 50 min)"},
        "change": {"message": "would start now with --gpus 1", "worker": "w4", "assign": "gpus=1"},
        "fix": "",
    }
    assert draw_why("j", answer).splitlines() == [
        "j: pending",
        "user ada holds 4 of 4 GPUs, and it asks for 2",
        "",
        "In the way:",
        "  - user ada holds 4 of 4 GPUs, and it asks for 2",
        "  - alternative 1: each task asks for 2 GPUs (12 workers)",
        "",
        "Workers:",
        "  - 12 workers nvidia a100 × 8: 0 free of 8 GPUs",
        "",
        "Held by:",
        "  - j9 (bob) holds 8 GPUs on w3, for at most 2 h more",
        "",
        "When:",
        "  - 3 jobs with 300 tasks before it in queue gpu (priority)",
        "  - reserved on w3, starts in 2 h at the latest",
        "  - starts in ~10 min (p90 50 min)",
        "",
        "Fix: would start now with --gpus 1 (on w4): dray set j gpus=1",
    ]


def test_a_long_list_is_cut_and_says_so():
    blockers = [{"kind": "label", "message": f"rule {number}"} for number in range(20)]
    text = draw_why("j", {"state": "pending", "summary": "waits", "blockers": blockers})
    assert "  - rule 11" in text
    assert "  - rule 12" not in text
    assert "  - and 8 more (-o json)" in text


def test_plan_draws_places_scores_victims_and_quotas():
    place = {"worker": "w1", "variant": "", "devices": [0, 1]}
    lost = {"worker": "w3", "priority": 1, "ran_s": 60, "lost_s": 30, "grace_s": 30}
    answer = {
        "starts_now": False,
        "summary": "4 of 9 tasks would start now",
        "placements": [*({**place, "task": task} for task in range(3)), {**place, "task": 3, "worker": "w2"}],
        "candidates": [{"worker": "w1", "score": 917, "terms": {"leftover": 0.917}, "devices": [0, 1]}],
        "candidates_total": 2500,
        "rule": "priority",
        "victims": [{"task_id": "v/1", "user": "bob", **lost}, {"task_id": "", "user": "", **lost}],
        "lost_s": 60,
        "quotas": [{"kind": "quota", "whose": "user ada", "unit": "GPUs", "limit": 8, "used": 1, "after": 7}],
        "blockers": [{"kind": "gpu", "message": "each task asks for 2 GPUs"}],
        "earliest": {"message": "room on w3 in 1 h at the latest"},
        "change": None,
    }
    lines = draw_plan("job", answer).splitlines()
    assert [line.split()[:3] for line in lines[2:5]] == [
        ["TASKS", "WORKER", "GPUS"],
        ["0-2", "w1", "0,1"],
        ["3", "w2", "0,1"],
    ]
    for part in (
        "job: 4 of 9 tasks would start now",
        "Best of 2,500 workers with room:",
        "Would be stopped for it (priority), 60 s of work lost:",
        "  - quota of user ada: 1 of 8 GPUs used, 7 after its start",
        "  - each task asks for 2 GPUs",
        "  - room on w3 in 1 h at the latest",
    ):
        assert part in lines, part
    assert any("0.92" in line for line in lines)
    assert any(line.startswith("v/1") for line in lines)


def test_the_record_of_estimates_is_told_in_words():
    record = {"every_s": 10, "judged": 7, "error_p50_s": 12, "error_p90_s": 80, "later_than_p50": 0.43}
    text = draw_estimates({**record, "within_p90": 0.857})
    assert "7 starts" in text
    assert "86% came within the p90 estimate" in text
    assert "not estimated" in draw_estimates({"every_s": 0})
    assert "no task" in draw_estimates({"every_s": 10, "judged": 0})


@pytest.mark.parametrize(
    ("arguments", "request_line", "document", "part"),
    [
        (
            ["plan", "-c", "1", "--", "true"],
            "POST /plan",
            {"starts_now": True, "summary": "yes", "tasks": 1},
            "job: yes",
        ),
        (["doctor", "--eta"], "GET /estimates", {"every_s": 10, "judged": 0}, "no task that had an estimate"),
        (
            ["why", "a", "--fast", "--eta"],
            "GET /jobs/a/why",
            {"state": "pending", "summary": "waits"},
            "waits",
        ),
    ],
)
def test_text_for_people_and_the_document_for_programs(hub, capfd, arguments, request_line, document, part):
    method, path = request_line.split()
    hub.canned[method, path] = (200, document)
    hub.set("a")
    options = arguments.index("--") if "--" in arguments else len(arguments)
    assert main([*arguments[:options], "-o", "json", *arguments[options:]]) == 0
    assert json.loads(capfd.readouterr().out) == whole_answer(method, f"/api/v1{path}", 200, document)
    assert main(arguments) == 0
    assert part in capfd.readouterr().out


def test_a_pending_job_shows_its_estimate_in_the_list(job):
    from dray.cli.jobs.job_views import tell_detail

    estimate = {"message": "starts in ~3 min (p90 12 min)"}
    shown = tell_detail(job("j", state="pending", phase="queued", reason="no GPU free", estimate=estimate))
    assert shown == "starts in ~3 min (p90 12 min); no GPU free"
