"""Promises that must hold while parts are away: cancels, time limits, retries, drained workers, followers."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable

import psutil
import pytest
from tests.e2e.cluster import CALM, Cluster, is_alive, wait_dead, wait_for

from dray.wire.reach.dialling import SOCKET_NAME


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    cluster = make_cluster({**CALM, "FLAP_REFUSE_S": "3"})
    cluster.start_hub()
    return cluster


def test_a_cancel_outlives_the_hub(cluster: Cluster) -> None:
    agent = cluster.start_agent("w1")
    job_id = cluster.submit("sh", "-c", "echo $$; exec sleep 300")
    pid = int(cluster.wait_logs(job_id, 1)[0])
    agent.signal(signal.SIGSTOP)
    assert cluster.call("POST", f"/jobs/{job_id}/cancel", {}).status == 200
    cluster.kill_hub()
    agent.signal(signal.SIGCONT)
    cluster.start_hub()
    job = cluster.wait_state(job_id, "killed")
    assert job["attempt_count"] == 1
    wait_dead([pid])
    cluster.check()


def test_a_cancel_reaches_a_worker_that_was_away(cluster: Cluster) -> None:
    agent = cluster.start_agent("w1")
    job_id = cluster.submit("sh", "-c", "echo $$; exec sleep 300")
    pid = int(cluster.wait_logs(job_id, 1)[0])
    agent.kill()
    assert cluster.call("POST", f"/jobs/{job_id}/cancel", {}).status == 200
    assert is_alive(pid)
    cluster.start_agent("w1")
    wait_dead([pid])
    cluster.wait_state(job_id, "killed")


def test_a_time_limit_is_kept_with_hub_and_agent_dead(cluster: Cluster) -> None:
    agent = cluster.start_agent("w1")
    job_id = cluster.submit("sh", "-c", "echo $$; exec sleep 300", max_runtime_s=1)
    pid = int(cluster.wait_logs(job_id, 1)[0])
    cluster.kill_hub()
    agent.kill()
    wait_dead([pid])
    cluster.start_hub()
    cluster.start_agent("w1", wait=False)
    job = cluster.wait_state(job_id, "failed")
    assert (job["exit_class"], job["attempt_count"]) == ("time_limit", 1)
    assert cluster.dray("wait", job_id).code == 124


def test_sigterm_of_the_agent_leaves_its_tasks(cluster: Cluster) -> None:
    agent = cluster.start_agent("w1")
    flag = cluster.folder / "flag"
    job_id = cluster.submit("sh", "-c", f"echo $$; while ! [ -e {flag} ]; do sleep 0.02; done; exit 5")
    pid = int(cluster.wait_logs(job_id, 1)[0])
    agent.signal(signal.SIGTERM)
    assert agent.process is not None
    assert agent.process.wait(60) == 0
    wait_for(lambda: cluster.wait_worker("w1", ("offline",)), "it has said goodbye")
    waiting = cluster.submit("true")
    assert is_alive(pid)
    cluster.start_agent("w1")
    flag.touch()
    job = cluster.wait_state(job_id, "failed")
    assert (job["exit_code"], job["attempt_count"], job["losses"]) == (5, 1, 0)
    cluster.wait_state(waiting, "succeeded")


def test_sigterm_of_the_hub_does_not_wait_for_followers(cluster: Cluster) -> None:
    cluster.start_agent("w1")
    job_id = cluster.submit("sh", "-c", "echo begun; sleep 300")
    followers = [
        cluster.begin("logs", "-f", job_id, name="logs"),
        cluster.begin("events", "-f", name="events"),
        cluster.begin("wait", job_id, name="wait"),
    ]
    cluster.wait_running(job_id)
    wait_for(lambda: b"begun" in followers[0][1].read_bytes(), "the log is followed")
    assert cluster.hub is not None
    hub = psutil.Process(cluster.hub.pid)

    def connected() -> int:
        """How many programs talk to the hub through its home; the socket that listens is one more."""
        opened = hub.net_connections("unix")
        return sum(1 for one in opened if str(one.laddr).endswith(SOCKET_NAME)) - 1

    wait_for(lambda: connected() >= len(followers), "all of them are connected")
    assert cluster.stop_hub() == 0
    assert "error" not in cluster.hub_text(), cluster.hub_text()
    assert [process.poll() for process, _ in followers] == [None] * 3


def test_retries_count_failures_only(cluster: Cluster) -> None:
    cluster.start_agent("w1")
    trace = cluster.folder / "trace"
    script = f'echo "$DRAY_ATTEMPT" >> {trace}; [ "$(wc -l < {trace})" -ge 3 ]'
    job = cluster.wait_state(cluster.submit("sh", "-c", script, retries=5), "succeeded")
    assert (job["attempt_count"], job["failures"], job["losses"]) == (3, 2, 0)
    assert trace.read_text().split() == ["1", "2", "3"]
    uids = {attempt["uid"] for attempt in job["attempts"]}
    assert len(uids) == 3


def test_two_machines_under_one_name_are_refused_loudly(cluster: Cluster) -> None:
    first = cluster.start_agent("w1")
    # As by a disk image: with its token, too.
    home = cluster.folder / "twin"
    (home / "worker").mkdir(parents=True)
    shutil.copy(first.home / "worker" / "token", home / "worker" / "token")
    command = [str(home) if word == str(first.home) else word for word in first.command]
    log = cluster.folder / "twin.log"
    twin = cluster.spawn(command, log)
    wait_for(
        lambda: "two machines keep registering" in first.text() + log.read_text() + cluster.hub_text(),
        "somebody is told",
    )
    twin.terminate()
    assert twin.wait(60) == 0
    cluster.wait_worker("w1")
    cluster.wait_state(cluster.submit("true"), "succeeded")
    assert "two machines" in first.text() or "two machines" in log.read_text(), (
        "the person at the worker is told"
    )


def test_a_hub_that_stays_away(cluster: Cluster) -> None:
    cluster.start_agent("w1")
    job_id = cluster.submit("sleep", "300")
    run, log = cluster.begin("run", "--", "sh", "-c", "echo begun; sleep 300", name="run")
    wait_for(lambda: b"begun" in log.read_bytes(), "the run shows its output")
    cluster.kill_hub()
    done = cluster.dray("wait", job_id, env={"DRAY_CLIENT_AWAY_S": "0.5"})
    assert done.code == 125, done
    assert "goes on" in done.err
    wait_for(lambda: b"trying again" in log.read_bytes(), "the run says that the hub is away")
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 130
    assert "may still run" in log.read_text()


def test_a_drained_worker_finishes_what_it_has(cluster: Cluster) -> None:
    cluster.start_agent("w1")
    flag = cluster.folder / "flag"
    job_id = cluster.submit("sh", "-c", f"while ! [ -e {flag} ]; do sleep 0.02; done")
    cluster.wait_running(job_id)
    assert "1 task still running" in cluster.dray("worker", "drain", "w1").out
    cluster.kill_hub()
    cluster.start_hub()
    cluster.wait_worker("w1")
    waiting = cluster.submit("true")
    flag.touch()
    cluster.wait_state(job_id, "succeeded")
    assert cluster.job(waiting)["attempts"] == [], "it is still drained after a restart of the hub"
    cluster.dray("worker", "resume", "w1")
    cluster.wait_state(waiting, "succeeded")
