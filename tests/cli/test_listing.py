"""ps, tasks, wait and completion against a hub of its own: nothing is left out in silence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from tests.hub.asking import ask

from dray.cli.main import main
from dray.testing import MockWorker, RunningHub, make_slots, running_hub

SWEEP = 5


def call(hub, method, path, body=None):
    status, answer = ask(hub, method, path, body)
    assert status in (200, 201), answer
    return answer


@pytest.fixture(scope="module")
def swept() -> Iterator[tuple[RunningHub, str]]:
    """A hub that has seen one array: its even tasks succeeded, its odd ones failed."""
    with (
        running_hub() as hub,
        MockWorker(hub.url, hub.token, "w1") as worker,
    ):
        worker.register()
        spec = {"command": ["true"], "array": {"first": 0, "last": SWEEP - 1}, "name": "sweep"}
        job = call(hub, "POST", "/jobs", spec)["id"]
        for _ in range(SWEEP):
            worker.ready()
            task = worker.assigned()
            worker.accept(task)
            odd = int(task.task_id.rpartition("/")[2]) % 2
            fields: dict[str, Any] = {"error": "Traceback:\nValueError: lr is negative"} if odd else {}
            worker.result(task, "failed" if odd else "succeeded", 1 if odd else 0, **fields)
            worker.recv("ack")
        yield hub, job


@pytest.fixture
def hub(swept: tuple[RunningHub, str], speak_to: Callable[[RunningHub], RunningHub]) -> RunningHub:
    return speak_to(swept[0])


@pytest.fixture
def sweep(swept: tuple[RunningHub, str]) -> str:
    return swept[1]


def test_tasks_tells_of_each_how_it_ended(hub, sweep, capsys):
    assert main(["tasks", sweep]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["TASK", "STATE", "END", "WORKER", "TRIES", "RUN", "DETAIL"]
    assert [line.split()[:2] for line in lines[1:]] == [
        [f"{sweep}/{index}", "failed" if index % 2 else "succeeded"] for index in range(SWEEP)
    ]
    assert "code 1" in lines[2]
    assert lines[2].endswith("ValueError: lr is negative"), "the last line of the error, which says most"


def test_tasks_that_failed_alone(hub, sweep, capsys):
    assert main(["tasks", sweep, "--failed", "-q"]) == 0
    assert capsys.readouterr().out.split() == [f"{sweep}/1", f"{sweep}/3"]
    assert main(["tasks", sweep, "--state", "running"]) == 0
    assert f"no task of {sweep} is running" in capsys.readouterr().err


def test_tasks_says_when_there_are_more(hub, sweep, capsys):
    assert main(["tasks", sweep, "-n", "2", "-o", "json"]) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert (len(answer["tasks"]), answer["next"]) == (2, "2")
    assert "there are more" in captured.err
    assert main(["tasks", sweep, "-n", "2", "--all", "-o", "json"]) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert (len(answer["tasks"]), answer["next"], captured.err) == (SWEEP, None, "")


def test_tasks_of_a_task_or_in_a_state_that_is_none(hub, sweep, capsys):
    assert main(["tasks", f"{sweep}/1"]) == 2
    assert "is one task already" in capsys.readouterr().err
    assert main(["tasks", sweep, "--state", "faild"]) == 2


@pytest.fixture
def crowd(hub):
    """One job that runs and is the oldest of many; the rest waits."""
    with MockWorker(hub.url, hub.token, "busy", slots=make_slots(1, 2)) as worker:
        worker.register()
        oldest = call(hub, "POST", "/jobs", {"command": ["true"], "name": "oldest"})["id"]
        worker.ready()
        task = worker.assigned()
        worker.accept(task)
        waiting = [
            call(hub, "POST", "/jobs", {"command": ["true"], "name": "crowd", "hold": True})["id"]
            for _ in range(4)
        ]
        yield oldest, waiting
        for job in [oldest, *waiting]:
            call(hub, "POST", f"/jobs/{job}/cancel", {})
        worker.result(task, "killed")


def test_what_runs_never_falls_off_the_list(hub, crowd, capsys):
    oldest, waiting = crowd
    assert main(["ps", "-q", "-n", "2"]) == 0
    captured = capsys.readouterr()
    assert captured.out.split() == [waiting[-1], oldest]
    assert re.search(r"2 of (\d+) jobs shown: -n 4 or --all", captured.err)
    assert main(["ps", "-n", "2", "-o", "json"]) == 0
    # What ended lately is counted too: what other tests have left.
    assert json.loads(capsys.readouterr().out)["total"] >= 1 + len(waiting)
    assert call(hub, "GET", "/jobs?count=true&limit=1&state=running,pending")["total"] == 1 + len(waiting)
    assert call(hub, "GET", "/jobs?limit=1")["total"] is None


def test_ps_of_a_span_of_time(hub, crowd, capsys):
    assert main(["ps", "--since", "1h", "-q"]) == 0
    assert crowd[0] in capsys.readouterr().out.split()
    assert main(["ps", "--until", "1h", "-q"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["ps", "--since", "2999-01-01", "-q"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["ps", "--since", "soon"]) == 2
    assert "write how long ago" in capsys.readouterr().err


def test_ps_pages_through_all_and_marks_what_is_cut(hub, crowd, sweep, capsys):
    assert main(["ps", "-n", "1", "--state", "pending", "-o", "json"]) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert answer["next"]
    assert answer["total"] == 4
    assert "1 of 4 jobs shown" in captured.err
    assert main(["ps", "-n", "1", "--state", "pending", "--name", "crowd"]) == 0
    assert "1 jobs shown, there are more" in capsys.readouterr().err
    assert main(["ps", "--all", "-o", "json"]) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert answer["next"] is None
    assert answer["total"] == len(answer["jobs"])
    assert {sweep, crowd[0], *crowd[1]} <= {job["id"] for job in answer["jobs"]}
    assert main(["ps", "--failed", "-q"]) == 0
    ended = capsys.readouterr().out.split()
    assert sweep in ended
    assert crowd[0] not in ended


def test_ps_with_times_of_day(hub, sweep, capsys):
    assert main(["ps", "--all", "--time"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "SUBMITTED" in lines[0]
    submitted = call(hub, "GET", f"/jobs/{sweep}")["submitted_at"]
    from dray.cli.base.render import local_time

    assert any(local_time(submitted) in line for line in lines[1:])


def test_wait_for_the_first_of_several(hub, crowd, sweep, capsys):
    assert main(["wait", "--any", crowd[0], sweep]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{sweep}: failed")
    assert main(["wait", "--any", crowd[1][0], f"{sweep}/0"]) == 0


def test_wait_gives_up_in_time(hub, crowd, sweep, capsys):
    assert main(["wait", "--timeout", "0.3s", f"{sweep}/0", crowd[0], crowd[1][0]]) == 124
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{sweep}/0: succeeded")
    assert "2 of 3 not ended after 0.3s: they go on" in captured.err
    assert main(["wait", "--timeout", "0.3s", "--any", crowd[0], crowd[1][0]]) == 124
    assert call(hub, "GET", f"/jobs/{crowd[0]}")["state"] == "running"


def complete(words: str) -> list[str]:
    """What bash would be offered for a line."""
    env = {
        **os.environ,
        "_DRAY_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "dray.cli.main"], env=env, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_the_shell_completes_commands_flags_and_ids(hub, sweep):
    assert "tasks" in complete("dray ta")
    assert "--failed" in complete("dray tasks --fa")
    assert sweep in complete(f"dray logs {sweep[:3]}")
    assert complete("dray worker show w") == ["w1"]
    assert complete("dray ps --state failed,u") == ["failed,unschedulable"]
    assert complete("dray cancel --state p") == ["pending"]


def test_completion_without_a_hub_offers_nothing_and_says_nothing(hub, monkeypatch):
    monkeypatch.setenv("DRAY_HUB", "http://127.0.0.1:9")
    assert complete("dray logs a") == []


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete"), ("zsh", "compdef"), ("fish", "complete")])
def test_the_script_of_each_shell(shell, word, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert word in script
    assert "_DRAY_COMPLETE" in script


def test_status_in_a_few_lines(hub, crowd, capsys):
    assert main(["status"]) == 0
    lines = dict(re.split(" {2,}", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["tasks"].startswith("1 running, 4 waiting")
    assert lines["slots"] == "1 of 4 in use", "of w1 and busy, which has two for services"
    assert lines["failed"] == "1 job in 24 hours: 1 array (`dray ps --failed`)"
    assert "ready" in lines["workers"]
    assert main(["status", "-o", "json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["failed_24h"] == {"array": 1}
    assert figures["workers"]["away"] == {}


def test_status_tells_of_the_last_day_alone(hub, sweep, capsys, monkeypatch):
    monkeypatch.setattr("dray.cli.machines.status.DAY", timedelta(seconds=-60))
    assert main(["status", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["failed_24h"] == {}


def test_status_names_who_is_away(hub, capsys):
    with MockWorker(hub.url, hub.token, "gone") as worker:
        worker.register()
    assert main(["status"]) == 0
    said = capsys.readouterr().out
    assert "1 away" in said or "2 away" in said, "the one of another test may be away too"
    assert "gone for" in said


def test_what_failed_of_an_array_runs_again_as_a_new_job(hub, sweep, capsys):
    assert main(["requeue", sweep, "--failed"]) == 0
    said = capsys.readouterr()
    again = said.out.strip()
    assert said.err == f"{sweep}: 2 of its {SWEEP} tasks run again as {again}\n"
    assert main(["tasks", again, "-o", "json"]) == 0
    assert [task["array_index"] for task in json.loads(capsys.readouterr().out)["tasks"]] == [1, 3]
    assert call(hub, "GET", f"/jobs/{again}")["spec"]["array"] == {"indices": "1,3"}
    assert main(["show", again]) == 0
    assert "array 1,3" in capsys.readouterr().out
    assert main(["requeue", again, "--failed"]) == 0
    assert "no task of it failed" in capsys.readouterr().err
    with hub.connect() as client:
        by_python = client.requeue_failed(sweep)
        assert by_python is not None
        assert by_python.status()["spec"]["array"] == {"indices": "1,3"}
        assert client.requeue_failed(by_python) is None
        listed = client.submit(["true"], array=[4, 2, 9], hold=True)
        assert listed.status()["spec"]["array"] == {"indices": "2,4,9"}
        for job in (again, by_python, listed):
            client.cancel(job)


def test_workers_of_every_version_are_told_of_a_range(hub):
    with MockWorker(hub.url, hub.token, "w2") as worker:
        worker.register()
        spec = {"command": ["true"], "array": {"indices": "7,3,10-12", "limit": 4}}
        job = call(hub, "POST", "/jobs", spec)
        assert job["tasks"]["total"] == 5
        seen = []
        for _ in range(5):
            worker.ready()
            task = worker.assigned(30)
            array = task.spec["array"]
            number = int(task.task_id.rpartition("/")[2])
            seen.append((array["first"] + number * array.get("step", 1), array["last"] - array["first"] + 1))
            worker.accept(task)
            worker.result(task)
        assert seen == [(3, 5), (7, 5), (10, 5), (11, 5), (12, 5)]
    for array, words in (
        ({"indices": "1,x"}, "no list of array indices"),
        ({"indices": "1,2", "last": 4}, "give one or the other"),
        ({"indices": "1,2", "open": True}, "give one or the other"),
        ({"indices": "0-200000,1"}, "lists more than 100,000"),
    ):
        status, answer = ask(hub, "POST", "/jobs", {"command": ["true"], "array": array})
        assert (status, words in str(answer)) == (400, True), answer


def test_a_task_that_was_given_back_unstarted_was_neither_lost_nor_tried(hub, capsys):
    job = call(hub, "POST", "/jobs", {"command": ["true"], "array": {"last": 1}})["id"]
    with MockWorker(hub.url, hub.token, "giver") as giver, MockWorker(hub.url, hub.token, "taker") as taker:
        giver.register()
        giver.ready()
        task = giver.assigned()
        giver.result(task, "failed", None, exit_class="lost_unstarted", error="it would have waited too long")
        giver.recv("ack")
        taker.register()
        taker.ready(2)
        for _ in range(2):
            task = taker.assigned()
            taker.accept(task)
            taker.result(task, "succeeded", 0)
            taker.recv("ack")
    assert main(["tasks", job]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    column = lines[0].index("TRIES")
    assert [line[column] for line in lines[1:]] == ["1", "1"]
    assert main(["show", f"{job}/0"]) == 0
    told = capsys.readouterr().out
    assert "given back" in told
    assert "lost" not in told
