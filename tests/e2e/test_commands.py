"""The command line against a real hub and a real agent: what people type, what they see, what scripts get back."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.cluster import Cluster, is_alive, wait_for


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -9 $$"], 128 + 9),
        (["sh", "-c", "kill -SEGV $$"], 128 + 11),
        (["/etc/hostname"], 126),
        (["/etc"], 126),
        (["no-such-program-anywhere"], 127),
    ],
)
def test_run_exits_as_the_command_did(site: Cluster, command: list[str], code: int) -> None:
    assert site.dray("run", "--", *command).code == code


def test_run_exits_124_after_a_time_limit(site: Cluster) -> None:
    done = site.dray("run", "-t", "0:00:01", "--", "sleep", "60")
    assert done.code == 124, done
    assert "time limit" in done.err


def test_run_exits_125_when_nothing_could_ever_run_it(site: Cluster) -> None:
    done = site.dray("run", "-G", "2", "--queue-timeout", "0.3s", "--", "true")
    assert done.code == 125, done
    assert "unschedulable" in done.err


def test_without_a_hub(site: Cluster, tmp_path: Path) -> None:
    done = site.dray("run", "--home", str(tmp_path), "--", "true")
    assert done.code == 125, done
    assert "dray up" in done.err
    assert site.dray("ps", "--home", str(tmp_path)).code != 0


def test_ctrl_c_cancels_a_run(site: Cluster) -> None:
    run, log = site.begin("run", "-J", "interrupted", "--", "sh", "-c", "echo begun; sleep 60", name="ctrlc")
    wait_for(lambda: b"begun" in log.read_bytes(), "the output shows")
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 130, log.read_text()
    job = site.call("GET", "/jobs", name="interrupted").json["jobs"][0]
    assert site.job(job["id"])["state"] == "killed"
    assert not is_alive(site.job(job["id"])["attempts"][0].get("pid") or 0)


def test_submit_wait_show_logs(site: Cluster) -> None:
    job_id = site.dray(
        "submit", "-J", "first", "--", "sh", "-c", "echo out; echo err >&2; exit 5"
    ).out.strip()
    assert site.dray("wait", job_id).code == 5
    shown = site.dray("show", job_id)
    assert shown.code == 0
    assert "failed" in shown.out
    assert "first" in shown.out
    document = site.dray("show", job_id, "-o", "json").json
    assert (document["exit_code"], document["exit_class"], document["attempt_count"]) == (5, "code", 1)
    assert sorted(site.dray("logs", job_id).out.splitlines()) == ["err", "out"]
    assert site.dray("logs", "--stream", "stderr", job_id).out == "err\n"
    assert site.dray("logs", "--stream", "stdout", job_id).out == "out\n"


def test_logs_follow_until_the_end(site: Cluster) -> None:
    flag = site.folder / "go"
    job_id = site.submit("sh", "-c", f"echo one; while ! [ -e {flag} ]; do sleep 0.05; done; echo two")
    follower, log = site.begin("logs", "-f", job_id, name="follow")
    wait_for(lambda: log.read_bytes() == b"one\n", "the first line is followed")
    assert follower.poll() is None
    flag.touch()
    assert follower.wait(60) == 0
    assert log.read_bytes() == b"one\ntwo\n"
    assert site.dray("logs", "-n", "1", job_id).out == "two\n"


def test_ps_filters_and_tells(site: Cluster) -> None:
    job_id = site.submit("true", name="listed", labels={"team": "red"})
    site.wait_state(job_id, "succeeded")
    table = site.dray("ps", "--name", "listed")
    assert table.code == 0
    assert job_id in table.out
    assert "succeeded" in table.out

    def listed(*flags: str) -> list[str]:
        return [job["id"] for job in site.dray("ps", "-a", "-o", "json", *flags).json["jobs"]]

    assert listed("--label", "team=red") == [job_id]
    assert job_id not in listed("--state", "failed")
    assert job_id in listed("--state", "succeeded")
    assert len(listed("-n", "1")) == 1
    assert listed("--user", "nobody-here") == []


def test_cancel(site: Cluster) -> None:
    job_id = site.submit("sleep", "60")
    site.wait_running(job_id)
    assert site.dray("cancel", job_id).code == 0
    assert site.wait_state(job_id, "killed")["attempts"][0]["cancel_reason"] == "user"
    again = site.dray("cancel", job_id)
    assert again.code == 0
    assert "already finished" in again.out, "a job that has ended already is said to have"
    assert site.dray("wait", job_id).code == 128 + 15
    assert site.dray("cancel", "no-such-job").code != 0


def test_why_names_the_blocker(site: Cluster) -> None:
    job_id = site.submit("true", cpu_milli=1_000_000_000)
    done = site.dray("why", job_id)
    assert done.code == 0
    assert "cores" in done.out or "cpu" in done.out.lower(), done.out
    document = site.dray("why", job_id, "-o", "json").json
    assert document["blockers"]
    assert [worker["id"] for worker in document["workers"]] == ["w1"]
    site.dray("cancel", job_id)
    site.wait_state(job_id, "killed")


def test_events_tell_the_life_of_a_job(site: Cluster) -> None:
    job_id = site.submit("true")
    site.wait_state(job_id, "succeeded")
    told = [event["type"] for event in site.dray("events", job_id, "-o", "json").json["events"]]
    order = ["job_submitted", "task_assigned", "task_accepted", "task_started", "attempt_ended", "job_ended"]
    assert told == order


def test_events_follow(site: Cluster) -> None:
    follower, log = site.begin("events", "-f", "-o", "json", name="feed")

    def hears() -> bool:
        # The feed begins with what happens from now on, so something has to happen until it is heard.
        return site.submit("true") in log.read_text() or b"job_ended" in log.read_bytes()

    wait_for(hears, "the feed carries jobs")
    assert all(json.loads(line)["type"] for line in log.read_text().splitlines()[:-1])
    follower.send_signal(signal.SIGINT)
    assert follower.wait(60) == 130


def test_workers(site: Cluster) -> None:
    listed = site.dray("worker", "ls")
    assert listed.code == 0
    assert "w1" in listed.out
    assert site.dray("worker", "show", "w1", "-o", "json").json["total_slots"] == 4
    assert site.dray("worker", "show", "w9").code != 0
    assert "draining" in site.dray("worker", "drain", "w1").out
    job_id = site.submit("true")
    assert site.job(job_id)["state"] == "pending"
    assert "drain" in site.dray("why", job_id).out
    assert site.dray("worker", "resume", "w1").code == 0
    site.wait_state(job_id, "succeeded")


def test_tokens(site: Cluster) -> None:
    made = site.dray("token", "create", "--user", "ada", "--scope", "read", "-o", "json").json
    assert site.call("GET", "/jobs", token=made["token"]).status == 200
    listed = site.dray("token", "ls")
    assert "ada" in listed.out
    assert made["token"] not in site.dray("token", "ls", "-o", "json").out + listed.out
    assert site.dray("token", "revoke", made["id"]).code == 0
    assert site.call("GET", "/jobs", token=made["token"]).status == 401
    assert site.dray("ps", "--token", made["token"]).code != 0


def test_doctor_and_version(site: Cluster) -> None:
    done = site.dray("doctor")
    assert done.code == 0, done
    (site.home / "token").chmod(0o644)
    try:
        assert site.dray("doctor").code == 1
    finally:
        (site.home / "token").chmod(0o600)
    told = site.dray("version", "-o", "json").json
    assert told["hub"]["version"] == told["version"]


def test_an_array_with_a_limit_and_progress(site: Cluster) -> None:
    counter = site.folder / "at-once"
    counter.mkdir()
    script = (
        f"touch {counter}/$DRAY_ARRAY_INDEX; ls {counter} | wc -l; sleep 0.1; rm {counter}/$DRAY_ARRAY_INDEX"
    )
    done = site.dray("run", "-a", "10-18:2%2", "-c", "0", "--", "sh", "-c", script)
    assert done.code == 0, done
    job = site.call("GET", "/jobs", limit=1).json["jobs"][0]
    assert job["tasks"]["succeeded"] == 5
    tasks = site.call("GET", f"/jobs/{job['id']}/tasks").json["tasks"]
    assert [task["array_index"] for task in tasks] == [10, 12, 14, 16, 18]
    seen = [int(site.logs(job["id"], task=task["index"])) for task in tasks]
    assert max(seen) <= 2
    assert "5" in done.err, f"progress is shown on stderr: {done.err!r}"


def test_an_array_exits_as_its_first_failure_did(site: Cluster) -> None:
    done = site.dray("run", "-a", "0-3", "-c", "0", "--", "sh", "-c", 'exit "$DRAY_ARRAY_INDEX"')
    assert done.code == 1, done
    assert "failed" in done.err


def test_a_list_of_indices_and_its_failures_again(site: Cluster) -> None:
    script = (
        f'echo "$DRAY_ARRAY_INDEX of $DRAY_ARRAY_COUNT" >> {site.folder}/seen; test $DRAY_ARRAY_INDEX != 6'
    )
    done = site.dray("run", "--id", "listed", "-a", "2,5-6", "-c", "0", "--", "sh", "-c", script)
    assert done.code == 1, done
    assert sorted((site.folder / "seen").read_text().split("\n")) == ["", "2 of 3", "5 of 3", "6 of 3"]
    again = site.dray("requeue", "listed", "--failed").out.strip()
    assert site.wait_state(again, "failed")["spec"]["array"] == {"first": 6, "last": 6}
    assert (site.folder / "seen").read_text().endswith("6 of 1\n")


def test_a_job_file(site: Cluster) -> None:
    path = site.folder / "job.yaml"
    path.write_text("name: from-file\ncommand: [sh, -c, 'echo $GREETING; exit 4']\nenv: {GREETING: hello}\n")
    done = site.dray("run", str(path))
    assert (done.code, done.out) == (4, "hello\n")
    path.write_text("name: [1]\ncomand: [true]\ncpus: -1\n")
    refused = site.dray("submit", str(path))
    assert refused.code != 0
    for word in ("name", "comand", "cpus", "2", "3"):
        assert word in refused.err, refused.err


def test_the_same_key_submits_once(site: Cluster) -> None:
    first = site.dray("submit", "--key", "k-1", "--", "true").out
    assert site.dray("submit", "--key", "k-1", "--", "true").out == first
    other = site.dray("submit", "--key", "k-1", "--", "false")
    assert other.code != 0
    assert "k-1" in other.err or "key" in other.err


def test_a_command_with_a_nul_is_refused(site: Cluster) -> None:
    answer = site.call("POST", "/jobs", {"command": ["echo", "a\0b"]})
    assert answer.status == 400
    assert "command" in json.dumps(answer.json["error"]["problems"])
    assert site.call("POST", "/jobs", {"command": ["true"], "env": {"A": "x\0y"}}).status == 400


def test_bytes_that_are_no_text_are_refused_clearly(site: Cluster) -> None:
    done = site.dray("run", "--", "printf", "%s", b"caf\xe9")
    assert done.code == 2
    assert "the command: 'caf\\udce9' is not valid UTF-8" in done.err
    assert "--env" in site.dray("submit", "--env", b"A=\xff", "--", "true").err


def test_up_and_down(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    started = cluster.dray("up", "--detach", "--port", "0", "--slots", "2", "--name", "here")
    assert started.code == 0, started
    assert "here" in started.out
    assert oct(os.stat(cluster.home / "token").st_mode & 0o777) == "0o600"
    assert cluster.dray("run", "--", "echo", "carried").out == "carried\n"
    again = cluster.dray("up", "--detach", "-o", "json").json
    assert again["already_running"] is True
    job_id = cluster.dray("submit", "--", "sleep", "60").out.strip()
    wait_for(lambda: cluster.dray("show", job_id, "-o", "json").json["state"] == "running", "it runs")
    down = cluster.dray("down")
    assert down.code == 0, down
    assert job_id in down.out, "what goes on is named"
    assert "nothing runs" in cluster.dray("down").out
    assert cluster.dray("up", "--detach", "--port", "0", "--name", "here").code == 0
    wait_for(lambda: cluster.dray("show", job_id, "-o", "json").json["state"] == "running", "it still runs")
    assert cluster.dray("show", job_id, "-o", "json").json["attempt_count"] == 1
    assert cluster.dray("down", "--tasks").code == 0
