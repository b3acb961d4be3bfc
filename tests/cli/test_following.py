"""run, wait, logs and events: exit codes, a hub that goes away and comes back, output neither lost nor repeated."""

from __future__ import annotations

import json
import os
import threading

import pytest

from dray.cli.base import outage as outage_module
from dray.cli.main import main

ENDS = [
    ({"state": "succeeded", "exit_code": 0, "exit_class": "ok"}, 0),
    ({"state": "failed", "exit_code": 3, "exit_class": "code"}, 3),
    ({"state": "failed", "exit_code": 256, "exit_class": "code"}, 1),
    ({"state": "failed", "exit_code": None, "exit_class": ""}, 1),
    ({"state": "failed", "signal": 9, "exit_class": "signal"}, 137),
    ({"state": "failed", "signal": 9, "exit_class": "oom"}, 137),
    ({"state": "failed", "signal": 15, "exit_class": "time_limit"}, 124),
    ({"state": "failed", "exit_code": 127, "exit_class": "not_found"}, 127),
    ({"state": "failed", "exit_code": None, "exit_class": "not_executable"}, 126),
    ({"state": "failed", "exit_code": 1, "exit_class": "prolog"}, 125),
    ({"state": "failed", "exit_class": "workdir", "error": "no folder /x on w1"}, 125),
    ({"state": "killed", "signal": 15, "exit_class": "cancelled"}, 143),
    ({"state": "killed", "signal": 9, "exit_class": "cancelled"}, 137),
    ({"state": "killed", "signal": 0, "exit_class": "cancelled"}, 143),
    ({"state": "unschedulable"}, 125),
    ({"state": "worker_failed", "exit_class": "lost"}, 125),
]


class Heard:
    """All that was captured so far, though each look takes it out of the capture."""

    def __init__(self, capfd):
        self._capfd = capfd
        self._out = self._err = ""

    def _take(self):
        captured = self._capfd.readouterr()
        self._out += captured.out
        self._err += captured.err

    def out(self):
        self._take()
        return self._out

    def err(self):
        self._take()
        return self._err


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(outage_module, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(outage_module, "LAST_PAUSE_S", 0.05)


@pytest.mark.parametrize(("end", "code"), ENDS)
def test_run_and_wait_exit_as_the_job_did(hub, end, code, capfd):
    hub.on_submit = lambda spec: end
    assert main(["run", "--", "true"]) == code
    assert main(["wait", "j1"]) == code
    assert f"j1: {end['state']}" in capfd.readouterr().out


def test_wait_gives_the_first_failure_in_order(hub, capfd):
    hub.set("a", state="succeeded")
    hub.set("b", state="failed", exit_code=7, exit_class="code")
    hub.set("c", state="failed", exit_code=9, exit_class="code")
    assert main(["wait", "a", "b", "c"]) == 7
    assert main(["wait", "c", "b", "a"]) == 9
    out = capfd.readouterr().out.splitlines()
    assert out[:3] == ["a: succeeded", "b: failed (exit code 7)", "c: failed (exit code 9)"]


def test_an_array_exits_as_its_first_task_that_failed(hub, job):
    tasks = {**job()["tasks"], "total": 3, "failed": 2, "succeeded": 1}
    hub.set("a", state="failed", tasks=tasks, spec={"array": {"first": 0, "last": 2}})
    hub.tasks["a"] = [
        {"id": "a/0", "index": 0, "state": "succeeded", "exit_code": 0},
        {"id": "a/2", "index": 2, "state": "failed", "exit_code": 5, "exit_class": "code"},
        {"id": "a/1", "index": 1, "state": "failed", "exit_code": 4, "exit_class": "code"},
    ]
    assert main(["wait", "a"]) == 4
    assert main(["wait", "a/2"]) == 5
    assert main(["wait", "a/0"]) == 0
    assert main(["wait", "a/7"]) == 1


def test_an_array_reports_each_tenth_where_nobody_watches(hub, job, capfd):
    def counts(done):
        return {**job()["tasks"], "total": 20, "succeeded": done}

    spec = {"array": {"first": 0, "last": 19}}
    hub.set("a", state="running", tasks=counts(0), spec=spec)
    result: dict[str, int] = {}
    thread = threading.Thread(target=lambda: result.update(code=main(["wait", "a"])))
    thread.start()
    hub.wait_asked("GET", "/jobs/a")
    hub.set("a", tasks=counts(9))
    hub.wait_asked("GET", "/jobs/a", 3)
    hub.set("a", tasks=counts(20), state="succeeded")
    thread.join()
    assert result["code"] == 0
    said = capfd.readouterr().err
    assert "a: 9 of 20 tasks done" in said
    assert "left" in said
    assert "a: 20 of 20 tasks done" in said


def test_run_shows_the_output_byte_for_byte(hub, capfdbinary):
    hub.output["j1"] = b"one\n\xff\x00two"
    hub.on_submit = lambda spec: {"state": "failed", "exit_code": 3, "exit_class": "code"}
    assert main(["run", "--", "true"]) == 3
    captured = capfdbinary.readouterr()
    assert captured.out == b"one\n\xff\x00two"
    assert captured.err == b""


def test_run_with_json_keeps_the_output_off_stdout(hub, capfd):
    hub.output["j1"] = b"hello\n"
    hub.on_submit = lambda spec: {"state": "succeeded"}
    assert main(["run", "-o", "json", "--", "true"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out)["id"] == "j1"
    assert captured.err == "hello\n"


def test_run_says_why_it_could_not_run(hub, capfd):
    hub.on_submit = lambda spec: {"state": "unschedulable", "error": "no worker has 12 GPUs"}
    assert main(["run", "--", "true"]) == 125
    assert "dray: j1 unschedulable: no worker has 12 GPUs" in capfd.readouterr().err


def test_run_refused_by_the_hub_is_125(hub, capfd):
    hub.canned["POST", "/jobs"] = (
        403,
        {"error": {"code": "forbidden", "message": "needs submit", "problems": []}},
    )
    assert main(["run", "--", "true"]) == 125
    assert "dray: needs submit (forbidden)" in capfd.readouterr().err


def test_run_says_why_it_waits(hub, capfd, monkeypatch):
    from dray.cli.follow import progress

    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    hub.on_submit = lambda spec: {"state": "pending", "phase": "queued", "reason": "all 4 GPUs are in use"}
    result: dict[str, int] = {}
    thread = threading.Thread(target=lambda: result.update(code=main(["run", "--", "true"])))
    thread.start()
    hub.wait_asked("GET", "/jobs/j1", 2)
    hub.set("j1", state="running", reason="")
    hub.write("j1", b"done\n")
    hub.set("j1", state="succeeded")
    thread.join()
    captured = capfd.readouterr()
    assert captured.err.count("dray: j1 waits: all 4 GPUs are in use") == 1
    assert captured.out == "done\n"


def test_without_a_hub_run_is_125_at_once(clean_environment, capfd):
    assert main(["run", "--", "true"]) == 125
    assert "no hub is running here" in capfd.readouterr().err
    assert main(["ps"]) == 1


def test_a_dead_hub_of_this_home_is_no_hub_to_hand_work_to(clean_environment, capfd):
    # Its pid stands there and belongs to somebody by now: to this very process.
    note = {"url": "http://127.0.0.1:9", "pid": os.getpid(), "epoch": 1}
    (clean_environment / "hub.json").write_text(json.dumps(note))
    (clean_environment / "token").write_text("t")
    assert main(["run", "--", "true"]) == 125
    assert "is gone): start it with `dray up`" in capfd.readouterr().err


def test_wait_outlasts_a_hub_that_goes_away(hub, capfd, wait_until):
    hub.set("a", state="running")
    result: dict[str, int] = {}
    thread = threading.Thread(target=lambda: result.update(code=main(["wait", "a"])))
    thread.start()
    hub.wait_asked("GET", "/jobs/a", 2)
    hub.stop()
    heard = Heard(capfd)
    wait_until(lambda: "trying again for up to 10 min" in heard.err())
    hub.jobs["a"].update(state="failed", exit_code=5, exit_class="code")
    hub.start()
    thread.join()
    assert result["code"] == 5
    assert heard.err().count("trying again") == 1
    assert heard.err().count("the hub is back after") == 1


def test_run_outlasts_a_hub_that_goes_away_and_loses_no_output(hub, capfd, wait_until):
    hub.on_submit = lambda spec: {"state": "running"}
    result: dict[str, int] = {}
    thread = threading.Thread(target=lambda: result.update(code=main(["run", "--", "true"])))
    thread.start()
    hub.wait_asked("GET", "/jobs/j1/logs")
    hub.write("j1", b"before\n")
    heard = Heard(capfd)
    wait_until(lambda: "before" in heard.out())
    hub.wait_asked("GET", "/jobs/j1", 2)
    hub.stop()
    hub.output["j1"] += b"meanwhile\n"
    hub.start()
    hub.wait_asked("GET", "/jobs/j1/logs", 2)
    hub.write("j1", b"after\n")
    hub.set("j1", state="succeeded")
    thread.join()
    assert result["code"] == 0
    assert heard.out() == "before\nmeanwhile\nafter\n"


def test_logs_follow_takes_up_where_it_broke(hub, capfd, wait_until):
    hub.set("a", state="running")
    hub.output["a"] = "größer\n".encode()
    result: dict[str, int] = {}
    thread = threading.Thread(target=lambda: result.update(code=main(["logs", "-f", "a"])))
    thread.start()
    heard = Heard(capfd)
    wait_until(lambda: "größer" in heard.out())
    hub.stop()
    hub.output["a"] += b"two\n"
    hub.start()
    hub.wait_asked("GET", "/jobs/a/logs", 2)
    assert hub.asked("GET", "/jobs/a/logs")[-1][0]["skip"] == [str(len("größer\n".encode()))]
    hub.set("a", state="succeeded")
    thread.join()
    assert heard.out() == "größer\ntwo\n"
    assert result["code"] == 0


@pytest.mark.parametrize(
    "arguments", [["wait", "a"], ["logs", "-f", "a"], ["events", "-f"], ["run", "--", "true"]]
)
def test_patience_ends_with_125(hub, arguments, capfd, monkeypatch):
    hub.stop()
    monkeypatch.setenv("DRAY_CLIENT_AWAY_S", "0.1")
    assert main(arguments) == 125
    said = capfd.readouterr().err
    assert "the hub has not answered for" in said
    if arguments[0] != "events":
        assert "on" in said.splitlines()[-1]


def test_run_that_gives_up_says_how_to_take_it_up_again(hub, capfd, monkeypatch):
    monkeypatch.setenv("DRAY_CLIENT_AWAY_S", "0.1")
    hub.on_submit = lambda spec: {"state": "running"}
    result: dict[str, int] = {}
    thread = threading.Thread(target=lambda: result.update(code=main(["run", "--", "true"])))
    thread.start()
    hub.wait_asked("GET", "/jobs/j1", 2)
    hub.stop()
    thread.join()
    assert result["code"] == 125
    assert "job j1 goes on: `dray wait j1` takes it up again (hub_unavailable)" in capfd.readouterr().err


def test_a_hub_that_comes_back_elsewhere_is_found_by_its_file(hub, capfd, clean_environment):
    hub.set("a", state="running")
    result: dict[str, int] = {}
    thread = threading.Thread(target=lambda: result.update(code=main(["wait", "a"])))
    thread.start()
    hub.wait_asked("GET", "/jobs/a", 2)
    hub.stop()
    hub.jobs["a"].update(state="succeeded")
    (clean_environment / "hub.json").unlink()
    hub.port = 0
    hub.start()
    (clean_environment / "hub.json").write_text(json.dumps({"url": hub.url, "pid": 0, "epoch": 2}))
    thread.join()
    assert result["code"] == 0


def test_a_hub_that_is_starting_is_waited_for(hub, capfd):
    hub.set("a", state="succeeded")
    hub.canned["GET", "/jobs/a"] = (
        503,
        {"error": {"code": "not_ready", "message": "reloading", "problems": []}},
    )
    result: dict[str, int] = {}
    thread = threading.Thread(target=lambda: result.update(code=main(["wait", "a"])))
    thread.start()
    hub.wait_asked("GET", "/jobs/a", 2)
    del hub.canned["GET", "/jobs/a"]
    thread.join()
    assert result["code"] == 0
    assert "the hub is not ready: reloading; trying again" in capfd.readouterr().err


def test_logs_without_following_print_what_is_there(hub, capfd):
    hub.set("a", state="running")
    hub.output["a"] = b"x\n"
    assert main(["logs", "a", "--tail", "5", "--stream", "stderr", "--attempt", "2"]) == 0
    assert capfd.readouterr().out == "x\n"
    query = hub.asked("GET", "/jobs/a/logs")[0][0]
    assert query == {"tail": ["5"], "stream": ["stderr"], "attempt": ["2"]}
    assert main(["logs", "a/3"]) == 0
    assert hub.asked("GET", "/jobs/a/logs")[1][0] == {"task": ["3"]}
    assert main(["logs", "nope"]) == 1


def test_following_may_begin_with_the_last_lines(hub, capfd):
    hub.set("a", state="running")
    hub.output["a"] = b"".join(b"line %d\n" % number for number in range(9))
    result: dict[str, int] = {}
    thread = threading.Thread(target=lambda: result.update(code=main(["logs", "-f", "-n", "2", "a"])))
    thread.start()
    hub.wait_asked("GET", "/jobs/a/logs", 2)
    hub.write("a", b"new\n")
    hub.set("a", state="succeeded")
    thread.join()
    assert capfd.readouterr().out == "line 7\nline 8\nnew\n"
    assert [query.get("skip") for query, _, _ in hub.asked("GET", "/jobs/a/logs")[:2]] == [None, ["63"]]


def test_logs_as_json(hub, capfd):
    hub.set("a", state="succeeded")
    hub.output["a"] = b"x\n"
    assert main(["logs", "a", "-o", "json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"text": "x\n"}


def test_events_of_a_job(hub, capfd):
    hub.set("a")
    event = {
        "at": "2026-11-15T09:10:49.123Z",
        "type": "task_started",
        "task_id": "a",
        "attempt": 1,
        "worker": "w1",
    }
    hub.canned["GET", "/jobs/a/events"] = (200, {"events": [{**event, "message": "pid 7"}]})
    assert main(["events", "a"]) == 0
    line = capfd.readouterr().out
    assert "task_started" in line
    assert line.rstrip().endswith("a pid 7")
    assert main(["events"]) == 2


def test_events_are_followed_over_a_break_without_repeating(hub, capfd, monkeypatch, wait_until):
    from dray.cli.follow import commands as follow_commands
    from dray.cli.follow import following

    class Enough(Exception):
        pass

    seen: list[str] = []

    def note(event_id: str) -> None:
        seen.append(event_id)
        if len(seen) == 3:
            raise Enough

    real = following.read_events

    def watched(chunks):
        for event_id, data in real(chunks):
            yield event_id, data
            note(event_id)

    monkeypatch.setattr(follow_commands, "read_events", watched)
    hub.emit("1.0", type="job_submitted", job_id="a", at="2026-11-15T09:10:49.123Z")
    hub.emit("1.1", type="job_submitted", job_id="b", at="2026-11-15T09:10:49.123Z")
    result: dict[str, int] = {}

    def follow() -> None:
        try:
            main(["events", "-f", "a", "-o", "json"])
        except Enough:
            result["ended"] = 1

    thread = threading.Thread(target=follow)
    thread.start()
    wait_until(lambda: len(seen) == 2)
    hub.stop()
    hub.start()
    hub.emit("2.0", type="job_ended", job_id="a", at="2026-11-15T09:10:50.123Z")
    thread.join()
    events = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [event["type"] for event in events] == ["job_submitted", "job_ended"]
    assert hub.asked("GET", "/events")[-1][2]["Last-Event-ID"] == "1.1"
    assert seen == ["1.0", "1.1", "2.0"]
    assert result == {"ended": 1}
