"""The hub dies under load: nothing acknowledged is lost, nothing runs twice, what ended meanwhile counts."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.cluster import NERVOUS, Cluster, is_alive, wait_for

SITES = ("home", "postgres")

NOTE = 'echo "$DRAY_TASK_ID $DRAY_ATTEMPT_UID" >> {trace}'


def starts(trace: Path) -> Counter[str]:
    """How often each task ran user code."""
    return (
        Counter(line.split()[0] for line in trace.read_text().splitlines()) if trace.exists() else Counter()
    )


def wait_starts(trace: Path, count: int) -> None:
    wait_for(lambda: len(starts(trace)) >= count, f"{count} tasks have run")


def wait_said(log: Path, text: str) -> None:
    wait_for(lambda: text in log.read_text(), f"{log.name} says {text!r}")


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    # Nothing is given up for silence here: a second attempt could then only come from the restarts.
    cluster = make_cluster({**NERVOUS, "LOST_S": "60", "START_GRACE_S": "60"})
    cluster.start_hub()
    return cluster


def test_killed_with_queued_assigned_and_running_tasks(cluster: Cluster) -> None:
    agent = cluster.start_agent("w1", 2)
    trace, flag = cluster.folder / "trace", cluster.folder / "flag"
    note = NOTE.format(trace=trace)
    wait_flag = f"{note}; while ! [ -e {flag} ]; do sleep 0.02; done"
    running = [cluster.submit("sh", "-c", wait_flag) for _ in range(2)]
    for job_id in running:
        cluster.wait_running(job_id)
    queued = [cluster.submit("sh", "-c", note) for _ in range(6)]
    cluster.kill_hub()
    flag.touch()
    uids = {record["uid"] for record in agent.records("attempt")}
    wait_for(lambda: {record["uid"] for record in agent.records("exit")} >= uids, "they end without a hub")
    assert is_alive(agent.pid)
    cluster.start_hub()
    for job_id in [*running, *queued]:
        job = cluster.wait_state(job_id, "succeeded")
        assert (job["attempt_count"], job["losses"]) == (1, 0)
    assert starts(trace) == Counter([*running, *queued])
    cluster.check()


def test_an_unaccepted_assignment_keeps_its_number(cluster: Cluster) -> None:
    agent = cluster.start_agent("w1", 1)
    trace = cluster.folder / "trace"
    # A stopped agent takes an assignment into its socket and says nothing.
    agent.signal(signal.SIGSTOP)
    job_id = cluster.submit("sh", "-c", NOTE.format(trace=trace))
    before = wait_for(lambda: cluster.job(job_id)["attempts"], "it is assigned")
    assert before[0]["phase"] == "assigned"
    cluster.kill_hub()
    agent.signal(signal.SIGCONT)
    cluster.start_hub()
    job = cluster.wait_state(job_id, "succeeded")
    assert [(a["no"], a["uid"]) for a in job["attempts"]] == [(1, before[0]["uid"])]
    assert starts(trace) == Counter([job_id])


def test_killed_again_and_again_under_load(cluster: Cluster) -> None:
    cluster.start_agent("w1", 2)
    cluster.start_agent("w2", 2)
    trace = cluster.folder / "trace"
    script = f"{NOTE.format(trace=trace)}; sleep 0.05"
    jobs: list[str] = []
    for round_no in range(4):
        jobs += [
            cluster.submit("sh", "-c", script, name=f"round-{round_no}", at_most_once=True) for _ in range(8)
        ]
        wait_starts(trace, 6 * (round_no + 1))
        cluster.kill_hub()
        cluster.start_hub()
    ended = [cluster.wait_state(job_id, "succeeded") for job_id in jobs]
    assert [job["attempts"] for job in ended if job["attempt_count"] != 1] == []
    assert starts(trace) == Counter(jobs)
    cluster.check()


def test_sigterm_is_clean_and_tasks_go_on(cluster: Cluster) -> None:
    cluster.start_agent("w1", 2)
    flag = cluster.folder / "flag"
    job_id = cluster.submit("sh", "-c", f"echo $$; while ! [ -e {flag} ]; do sleep 0.02; done; exit 6")
    pid = int(wait_for(lambda: cluster.logs(job_id), "it says its pid"))
    assert cluster.stop_hub() == 0
    assert not (cluster.home / "hub.json").exists()
    assert is_alive(pid)
    cluster.start_hub()
    cluster.wait_worker("w1")
    assert cluster.job(job_id)["attempts"][0]["phase"] == "running"
    flag.touch()
    job = cluster.wait_state(job_id, "failed")
    assert (job["exit_code"], job["attempt_count"]) == (6, 1)


def test_followers_outlast_the_hub(cluster: Cluster) -> None:
    cluster.start_agent("w1", 2)
    flag = cluster.folder / "flag"
    script = f"echo one; while ! [ -e {flag} ]; do sleep 0.02; done; echo two; exit 9"
    run, run_log = cluster.begin("run", "-J", "followed", "--", "sh", "-c", script, name="run")
    wait_for(lambda: b"one" in run_log.read_bytes(), "the run shows its output")
    job_id = cluster.call("GET", "/jobs", name="followed").json["jobs"][0]["id"]
    wait, wait_log = cluster.begin("wait", job_id, name="wait")
    logs, logs_log = cluster.begin("logs", "-f", job_id, name="logs")
    wait_for(lambda: b"one" in logs_log.read_bytes(), "the log is followed")
    cluster.kill_hub()
    for log in (run_log, logs_log, wait_log):
        wait_said(log, "trying again")
    flag.touch()
    cluster.start_hub()
    assert run.wait(60) == 9
    assert wait.wait(60) == 9
    assert logs.wait(60) == 0
    for log in (run_log, logs_log):
        text = log.read_text()
        assert text.count("one\n") == text.count("two\n") == 1, text
    assert "is back" in wait_log.read_text()


def test_an_answered_submit_survives_a_kill(cluster: Cluster) -> None:
    jobs = []
    for _ in range(3):
        jobs.append(cluster.submit("true"))
        cluster.kill_hub()
        cluster.start_hub()
    assert {cluster.job(job_id)["state"] for job_id in jobs} == {"pending"}
    key = {"Idempotency-Key": "again"}
    first = cluster.call("POST", "/jobs", {"command": ["true"]}, headers=key)
    cluster.kill_hub()
    cluster.start_hub()
    second = cluster.call("POST", "/jobs", {"command": ["true"]}, headers=key)
    assert (first.status, second.status) == (201, 200)
    assert first.json["id"] == second.json["id"]
