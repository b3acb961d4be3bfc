"""Tables fit the terminal and hold what matters; piped output is never cut; names cannot steer a terminal."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from tests.whole import whole_answer

from dray.cli.base.render import Column, draw_table, short_span, shorten, text_width
from dray.cli.jobs.job_views import draw_event, draw_job, draw_jobs
from dray.cli.jobs.reason_views import draw_why
from dray.cli.machines.views import draw_workers
from dray.cli.main import main

NOW = datetime(2026, 11, 15, 9, 40, tzinfo=UTC)
REASON = "needs 4 A100 with 80 GB; 2 of 3 workers have none free, 1 has too little memory"


def stamp(ago_s: float) -> str:
    return (
        (datetime.now(UTC) - timedelta(seconds=ago_s))
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


@pytest.fixture
def jobs(job):
    return [
        job(
            "j-1",
            name="llama-finetune-with-a-long-name",
            started_at="2026-11-15T09:11:00.000Z",
            worker="gpu-17.lab",
        ),
        job("j-2", state="pending", reason=REASON, worker="", priority=7),
        job("j-3", state="failed", exit_class="oom", name="評価ジョブ"),
        job("j-4", tasks={**job()["tasks"], "total": 10, "succeeded": 3, "failed": 1}),
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140, 300])
def test_the_table_fits_and_keeps_id_state_and_reason(jobs, width):
    lines = draw_jobs(jobs, width, NOW).splitlines()
    assert max(map(text_width, lines)) <= width
    assert [line.split()[0] for line in lines] == ["ID", "j-1", "j-2", "j-3", "j-4"]
    assert "STATE" in lines[0]
    assert "needs 4 A100" in lines[2]
    assert "out of memory" in lines[3]


def test_with_room_nothing_is_cut(jobs):
    text = draw_jobs(jobs, 300, NOW)
    for part in (
        REASON,
        "llama-finetune-with-a-long-name",
        "gpu-17.lab",
        "4/10",
        "29m00s",
        "評価ジョブ",
        "1 failed",
    ):
        assert part in text
    assert "…" not in text


def test_columns_that_say_nothing_go_first():
    columns = (Column("ID"), Column("A", drop=1, dull="x"), Column("B", drop=2), Column("C", least=3))
    text = draw_table(columns, [["1", "x", "beta", "long text"], ["2", "x", "beta", "long text"]], 18)
    assert text.splitlines()[0].split() == ["ID", "B", "C"]


def test_names_cannot_steer_the_terminal(job):
    for text in (
        draw_jobs([job("j", name="\x1b[31mred\n")], 200, NOW),
        draw_job(job("j", name="\x1b]0;title\x07", spec={"command": ["\x1b[2J"]})),
        draw_event({"type": "alarm", "message": "\x1b[2J"}),
        draw_why("j", {"state": "pending", "summary": "\x1b[2J", "workers": [{"id": "w", "rejections": []}]}),
    ):
        assert "\x1b" not in text
        assert "\x07" not in text


def test_spans_and_widths():
    spans = [short_span(seconds) for seconds in (-1, 0, 59, 60, 3599, 3600, 86399, 86400, 10**6)]
    assert spans == ["0s", "0s", "59s", "1m00s", "59m59s", "1h00m", "23h59m", "1d00h", "11d13h"]
    assert shorten("abcdef", 4) == "abc…"
    assert shorten("評価評価", 5) == "評価…"
    assert text_width("評価é") == 5


def test_why_groups_workers(capfd):
    answer = {
        "state": "pending",
        "summary": "waits for 4 GPUs",
        "blockers": [{"kind": "gpus", "message": "4 asked, 2 free"}],
        "workers": [{"id": f"w{i}", "rejections": [{"message": "2 of 8 GPUs free"}]} for i in range(5)],
        "fix": "ask for 2",
    }
    text = draw_why("j", answer)
    assert "w0, w1 and 3 more: 2 of 8 GPUs free" in text
    assert "  - 4 asked, 2 free" in text
    assert text.endswith("Fix: ask for 2")


def test_ps_asks_for_the_living_and_the_recently_ended(hub, job, capfd):
    living = job("live", state="running", submitted_at=stamp(50))
    fresh = job("fresh", state="failed", submitted_at=stamp(90), ended_at=stamp(60))
    old = job("old", state="failed", submitted_at=stamp(9000), ended_at=stamp(700))
    answers = {
        "running": [living],
        "pending": [],
        "succeeded,failed,killed,worker_failed,unschedulable": [fresh, old],
    }
    seen = []

    def route(handler, method, path, query, body):
        seen.append(query)
        handler.send(
            200, {"jobs": answers.get(query.get("state", [""])[0], [living, fresh, old]), "next_cursor": None}
        )

    hub.server.RequestHandlerClass.route = route
    assert main(["ps"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ID", "live", "fresh"]
    assert main(["ps", "-a", "-o", "json"]) == 0
    assert [found["id"] for found in json.loads(capfd.readouterr().out)["jobs"]] == ["live", "fresh", "old"]
    arguments = [
        "--state",
        "failed,killed",
        "--user",
        "ada",
        "--queue",
        "q",
        "--name",
        "n",
        "--label",
        "k=v",
        "-n",
        "5",
    ]
    assert main(["ps", *arguments]) == 0
    expected = {
        "state": "failed,killed",
        "user": "ada",
        "queue": "q",
        "name": "n",
        "label": "k=v",
        "limit": "5",
        "count": "true",
    }
    assert seen[-1] == {name: [value] for name, value in expected.items()}
    assert main(["ps", "--state", "faild"]) == 2


def test_ps_turns_pages_until_it_has_enough(hub, job, capfd):
    def route(handler, method, path, query, body):
        first = int(query.get("cursor", ["0"])[0])
        page = [job(f"j{index}") for index in range(first, first + 200)]
        handler.send(200, {"jobs": page, "next_cursor": str(first + 200)})

    hub.server.RequestHandlerClass.route = route
    assert main(["ps", "-a", "-n", "450"]) == 0
    captured = capfd.readouterr()
    assert len(captured.out.splitlines()) == 451
    assert "450 jobs shown, there are more" in captured.err


def test_show_of_a_job_and_of_a_task(hub, capfd):
    attempt = {
        "no": 1,
        "uid": "1-1",
        "task_id": "a",
        "worker": "w1",
        "phase": "failed",
        "devices": [0, 1],
        "exit_code": 3,
        "exit_class": "code",
    }
    spec = {
        "command": ["python", "my train.py"],
        "gpu_count": 2,
        "gpu_type": "A100",
        "vram_per_gpu_bytes": 80 * 10**9,
    }
    hub.set("a", state="failed", exit_code=3, exit_class="code", attempts=[attempt], spec=spec)
    hub.tasks["a"] = [
        {"id": f"a/{i}", "index": i, "array_index": 10 * i, "state": "failed", "attempts": [attempt]}
        for i in range(5)
    ]
    assert main(["show", "a"]) == 0
    text = capfd.readouterr().out
    for part in ("ended as", "exit code 3", "2 A100 GPUs with 80G", "python 'my train.py'", "0,1"):
        assert part in text
    assert main(["show", "a/3"]) == 0
    text = capfd.readouterr().out
    assert "a/3" in text
    assert "30" in text
    assert main(["show", "a/9"]) == 1
    assert "job a has no task 9" in capfd.readouterr().err
    assert main(["show", "a/x"]) == 2
    assert main(["show", "nope"]) == 1


def test_cancel_goes_on_after_a_wrong_id(hub, job, capfd):
    hub.set("a")
    hub.set("done")
    hub.canned["POST", "/jobs/done/cancel"] = (200, job("done", state="succeeded", note="already finished"))
    assert main(["cancel", "nope", "a", "done", "--grace", "1m"]) == 1
    captured = capfd.readouterr()
    assert "dray: nope:" in captured.err
    assert captured.out.splitlines() == ["a: killed", "done: already finished"]
    assert hub.asked("POST", "/jobs/a/cancel")[0][1] == {"grace_s": 60.0}
    assert main(["cancel", "a/3"]) == 0
    assert hub.asked("POST", "/jobs/a/cancel")[1][1] == {"task": 3}


WORKER = {
    "id": "w1",
    "status": "busy",
    "backend": "nvidia",
    "gpu_count": 8,
    "gpu_type": "H200",
    "vram_gb": 1128,
    "cpu_count": 128,
    "active_jobs": 2,
    "total_slots": 8,
}
TOKEN_DOCUMENT = {
    "id": "t1",
    "user": "ada",
    "scopes": ["read"],
    "created_at": "2026-11-15T09:40:00Z",
    "expires_at": None,
    "revoked": False,
}
DOCTOR = {
    "ok": True,
    "checks": [{"name": "epoch", "ok": True, "detail": "3"}],
    "facts": {"uptime_s": 5, "brake": False},
}


@pytest.mark.parametrize(
    ("arguments", "request_line", "document", "part"),
    [
        (["worker", "ls"], "GET /workers", {"workers": [WORKER]}, "8× H200"),
        (["worker", "show", "w1"], "GET /workers/w1", {**WORKER, "jobs": []}, "8× H200"),
        (
            ["worker", "drain", "w1"],
            "POST /workers/w1/drain",
            {**WORKER, "draining": True},
            "w1: draining, 2 tasks",
        ),
        (["worker", "resume", "w1"], "POST /workers/w1/resume", {**WORKER, "draining": False}, "w1: busy"),
        (["token", "ls"], "GET /tokens", {"tokens": [TOKEN_DOCUMENT]}, "valid"),
        (
            ["token", "create", "--scope", "read"],
            "POST /tokens",
            {**TOKEN_DOCUMENT, "token": "secret"},
            "secret",
        ),
        (
            ["token", "revoke", "t1"],
            "DELETE /tokens/t1",
            {**TOKEN_DOCUMENT, "revoked": True},
            "t1 is revoked",
        ),
        (["doctor"], "GET /doctor", DOCTOR, "epoch"),
        (["why", "a"], "GET /jobs/a/why", {"state": "pending", "summary": "waits"}, "waits"),
    ],
)
def test_text_for_people_and_the_document_for_programs(hub, capfd, arguments, request_line, document, part):
    method, path = request_line.split()
    status = 201 if path == "/tokens" and method == "POST" else 200
    hub.canned[method, path] = (status, document)
    hub.set("a")
    assert main([*arguments, "-o", "json"]) == 0
    assert json.loads(capfd.readouterr().out) == whole_answer(method, f"/api/v1{path}", status, document)
    assert main(arguments) == (1 if arguments == ["doctor"] else 0)
    assert part in capfd.readouterr().out
    assert len(hub.asked(method, path)) == 2


def test_doctor_fails_when_a_check_does(hub, clean_environment, capfd):
    hub.canned["GET", "/doctor"] = (200, {**DOCTOR, "ok": False})
    (clean_environment / "token").chmod(0o600)
    assert main(["doctor"]) == 1
    hub.canned["GET", "/doctor"] = (200, DOCTOR)
    assert main(["doctor"]) == 0
    (clean_environment / "token").chmod(0o644)
    assert main(["doctor"]) == 1
    assert "may be read by others" in capfd.readouterr().out


def test_version_with_and_without_a_hub(hub, capfd, clean_environment):
    hub.canned["GET", "/hub"] = (200, {"version": "9", "epoch": 4, "started_at": "now", "ready": True})
    assert main(["version"]) == 0
    assert "hub  9 (epoch 4" in capfd.readouterr().out
    (clean_environment / "hub.json").unlink()
    assert main(["version", "-o", "json"]) == 0
    assert json.loads(capfd.readouterr().out)["hub"] is None


def test_slots_in_use_are_those_that_are_not_free_now():
    worker = {
        "id": "w1",
        "slots": {"batch_total": 4, "batch_in_use": 0},
        "free": {"batch_slots": 1},
        "last_heartbeat": "2026-01-01T00:00:00Z",
    }
    assert "3/4" in draw_workers([worker], 200)
    assert "0/4" in draw_workers([{**worker, "free": None}], 200)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"state": "failed", "failures": 1}, ""),
        ({"state": "failed", "failures": 3}, "2 after a failure"),
        ({"state": "succeeded", "failures": 1, "losses": 2}, "1 after a failure, 2 after a lost worker"),
        ({"state": "worker_failed", "losses": 1}, ""),
        ({"state": "running", "preemptions": 1}, "1 after preemption"),
    ],
)
def test_only_what_was_tried_again_is_called_so(job, changes, told):
    document = job("j", **changes)
    document["tasks"] = {**document["tasks"], "running": 0, changes["state"]: 1}
    line = next((line for line in draw_job(document).splitlines() if line.startswith("tried again")), "")
    assert line.removeprefix("tried again").strip() == told


def test_an_array_without_an_end_shows_none(job):
    assert "a task per call" in draw_job(job("j", spec={"array": {"first": 0, "last": -1}}))
    assert "array 0-3" in draw_job(job("j", spec={"array": {"first": 0, "last": 3}}))


def test_what_was_asked_for_stands_beside_what_was_used():
    usage = {"usage": {"max_rss_bytes": 3 << 30}}
    job = {"id": "j", "state": "succeeded", "spec": {"memory_bytes": 64 << 30}, "attempts": [{}, usage]}
    assert "you asked 64G of memory, used 3G" in draw_job(job)
    assert "you asked" not in draw_job({**job, "attempts": [{}]})
    assert "you asked" not in draw_job({**job, "spec": {}})


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({}, "24 h at most (the default)"),
        ({"max_runtime_s": 7200}, "2 h at most"),
        ({"max_runtime_hours": 720}, "7 d at most (the longest; 30 d was asked for)"),
        ({"type": "service"}, ""),
    ],
)
def test_the_time_limit_that_holds_is_told(spec, told):
    shown = draw_job({"id": "j", "state": "pending", "spec": {"cpu_milli": 1000, **spec}})
    assert f"1 core{', ' if told else ''}{told}\n" in f"{shown}\n"


def test_cores_and_cards_stand_beside_what_was_asked_for_too():
    usage = {"wall_s": 100, "cpu_s": 150, "gpu_s": 40.0, "gpu_seen_s": 160.0, "max_gpu_bytes": 6 * 10**9}
    job = {
        "id": "j",
        "state": "running",
        "spec": {"cpu_milli": 8000},
        "attempts": [{"devices": [0, 1], "usage": usage}],
    }
    assert "you asked 8 cores, used 1.50 in the mean; its GPUs were busy for 25% of the time" in draw_job(job)
    assert "with at most 6G of their memory" in draw_job(job)
    unseen = {"devices": [0], "usage": {"wall_s": 100, "gpu_s": None, "gpu_seen_s": 0}}
    assert "how busy its GPUs were is not known" in draw_job({**job, "attempts": [unseen]})
    assert "in the mean" not in draw_job({**job, "attempts": [unseen]})


def test_run_time_is_the_process_s_also_where_its_end_was_heard_of_later(job):
    """An agent that was away for a minute tells of an end then; how long the process ran it knows."""
    began, heard = "2026-01-01T10:00:00.000Z", "2026-01-01T10:01:20.000Z"
    attempt = {"no": 1, "worker": "w1", "phase": "succeeded", "started_at": began, "ended_at": heard}
    ended = job("j", state="succeeded", started_at=began, ended_at=heard)
    ended |= {"attempts": [attempt | {"usage": {"wall_s": 20.3}}]}
    shown = draw_job(ended)
    assert "(ran 20s)" in shown
    assert "1m20s" not in shown + draw_jobs([ended], 300, NOW)
    # Of one whose worker does not say it, the hub's own clock is all there is.
    assert "(ran 1m20s)" in draw_job(ended | {"attempts": [attempt]})
