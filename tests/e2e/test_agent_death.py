"""Agents, supervisors and whole workers die: tasks are adopted, stopped, or run again elsewhere."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.cluster import NERVOUS, Agent, Cluster, is_alive, wait_dead, wait_for

from dray.agent.supervisor.attempts.attempt import make_result
from dray.agent.supervisor.records.journal import encode_record

FAMILY = "sh -c 'echo $$; exec sleep 300' & echo $$; wait"


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    cluster = make_cluster(NERVOUS)
    cluster.start_hub()
    return cluster


def kill_supervisor(agent: Agent) -> int:
    pid = agent.supervisor_pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid), "the supervisor is dead")
    return pid


def wait_stopped(supervisor: int) -> None:
    stat = Path(f"/proc/{supervisor}/stat")
    wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the supervisor stands still")


def test_an_agent_that_comes_back_adopts(cluster: Cluster) -> None:
    agent = cluster.start_agent("w1")
    flag = cluster.folder / "flag"
    hold = f"echo $$; while ! [ -e {flag} ]; do sleep 0.02; done; echo done"
    ends_meanwhile = cluster.submit("sh", "-c", f"{hold}; exit 3", losses=0)
    goes_on = cluster.submit("sh", "-c", f"{hold}; while ! [ -e {flag}2 ]; do sleep 0.02; done")
    pids = [int(cluster.wait_logs(name, 1)[0]) for name in (ends_meanwhile, goes_on)]
    agent.kill()
    flag.touch()
    wait_for(lambda: not is_alive(pids[0]), "one ends while no agent is there")
    assert is_alive(pids[1])
    cluster.start_agent("w1", wait=False)
    job = cluster.wait_state(ends_meanwhile, "failed")
    assert (job["exit_code"], job["attempt_count"], job["losses"]) == (3, 1, 0)
    wait_for(lambda: cluster.logs(ends_meanwhile).endswith(b"done\n"), "its output follows")
    cluster.wait_running(goes_on)
    assert is_alive(pids[1])
    (cluster.folder / "flag2").touch()
    job = cluster.wait_state(goes_on, "succeeded")
    assert (job["attempt_count"], job["losses"]) == (1, 0)
    assert cluster.logs(goes_on).count(b"done") == 1
    cluster.check()


def test_a_killed_supervisor_takes_its_tasks_with_it(cluster: Cluster) -> None:
    agent = cluster.start_agent("w1")
    job_id = cluster.submit("sh", "-c", FAMILY, retries=0)
    once = cluster.submit("sh", "-c", FAMILY, at_most_once=True)
    families = {}
    for name in (job_id, once):
        cluster.wait_running(name)
        families[name] = [int(pid) for pid in cluster.wait_logs(name, 2)]
    kill_supervisor(agent)
    wait_dead([*families[job_id], *families[once]])
    lost = cluster.wait_state(once, "worker_failed")
    assert (lost["losses"], lost["failures"], lost["attempt_count"]) == (1, 0, 1)
    again = wait_for(
        lambda: cluster.job(job_id)["attempt_count"] == 2 and cluster.wait_running(job_id), "it runs again"
    )
    assert (again["losses"], again["failures"]) == (1, 0)
    assert [attempt["phase"] for attempt in again["attempts"]] == ["lost", "running"]
    assert is_alive(agent.pid)
    cluster.check()


def test_the_output_of_what_ended_with_its_supervisor_follows(cluster: Cluster) -> None:
    """Its end is on record and its supervisor died before it could tell of it, nor of its start: as it is left then."""
    agent = cluster.start_agent("w1")
    supervisor = agent.supervisor_pid
    job_id = cluster.submit("sh", "-c", "echo $$ > pid; kill -STOP $PPID; exec sleep 300")
    wait_stopped(supervisor)
    (starting,) = agent.records("starting")
    os.kill(int((cluster.folder / "pid").read_text()), signal.SIGKILL)
    folder = agent.home / "worker" / "attempts" / starting["uid"]
    folder.mkdir(parents=True)
    (folder / "stdout.0").write_bytes(b"last words\n")
    used = {"usage": {"wall_s": 0.1, "cpu_s": 0.0, "max_rss_bytes": 0}, "out": {"stdout": 11, "stderr": 0}}
    exit_ = make_result("succeeded", 0, 0, "ok", "") | used
    with (agent.home / "worker" / "journal").open("ab") as file:
        file.write(encode_record({"k": "exit", "uid": starting["uid"], "exit": exit_}))
    kill_supervisor(agent)
    job = cluster.wait_state(job_id, "succeeded")
    assert (job["attempt_count"], job["losses"]) == (1, 0)
    wait_for(lambda: cluster.logs(job_id) == b"last words\n", "its output follows")
    wait_for(
        lambda: any(starting["uid"] in record["uids"] for record in agent.records("acked")),
        "its supervisor may forget it",
    )


def test_the_output_of_what_an_agent_could_not_name_to_the_next_hub_follows(cluster: Cluster) -> None:
    """It is cancelled and the hub killed before the agent hears of its start: to the next hub it says nothing of it,
    and is answered nothing, until it has ended.
    """
    agent = cluster.start_agent("w1")
    supervisor = agent.supervisor_pid
    job_id = cluster.submit("sh", "-c", "echo last words; kill -STOP $PPID; exec sleep 300")
    wait_stopped(supervisor)
    (starting,) = agent.records("starting")
    assert cluster.call("POST", f"/jobs/{job_id}/cancel", {}).status == 200
    cluster.kill_hub()
    cluster.start_hub()
    cluster.wait_worker("w1")
    agent.signal(signal.SIGSTOP)
    os.kill(supervisor, signal.SIGCONT)
    wait_for(lambda: agent.records("exit"), "it has ended")
    agent.signal(signal.SIGCONT)
    job = cluster.wait_state(job_id, "killed")
    assert [attempt["uid"] for attempt in job["attempts"]] == [starting["uid"]]
    wait_for(lambda: cluster.logs(job_id) == b"last words\n", "its output follows")


def test_agent_and_supervisor_both_killed(cluster: Cluster) -> None:
    agent = cluster.start_agent("w1")
    job_id = cluster.submit("sh", "-c", FAMILY)
    cluster.wait_running(job_id)
    family = [int(pid) for pid in cluster.wait_logs(job_id, 2)]
    agent.kill()
    kill_supervisor(agent)
    cluster.start_agent("w1")
    wait_dead(family)
    job = wait_for(
        lambda: cluster.job(job_id)["attempt_count"] == 2 and cluster.wait_running(job_id), "it runs again"
    )
    assert (job["losses"], job["failures"]) == (1, 0)


def test_a_worker_that_is_gone_for_good(cluster: Cluster) -> None:
    first = cluster.start_agent("w1")
    job_id = cluster.submit("sleep", "300")
    once = cluster.submit("sleep", "300", at_most_once=True)
    for name in (job_id, once):
        cluster.wait_running(name)
    # Before the first one goes, so that nothing takes long between its end and the first look.
    second = cluster.start_agent("w2")
    phases = {cluster.job(job_id)["attempts"][0]["phase"]}
    first.kill()

    def moved() -> bool:
        job = cluster.job(job_id)
        phases.add(job["attempts"][0]["phase"])
        return len(job["attempts"]) == 2 and job["attempts"][1]["phase"] == "running"

    wait_for(moved, "it runs on the other worker")
    assert phases == {"running", "unknown", "lost"}
    job = cluster.job(job_id)
    assert [attempt["worker"] for attempt in job["attempts"]] == ["w1", "w2"]
    assert (job["losses"], job["failures"]) == (1, 0)
    assert cluster.wait_state(once, "worker_failed")["attempt_count"] == 1
    assert cluster.wait_worker("w1", ("offline",))["active_jobs"] == 0
    # The first one comes back with what it still runs: superseded, so it is stopped there and changes nothing.
    cluster.start_agent("w1")
    uids = {record["uid"] for record in first.records("started")}
    wait_for(
        lambda: {record["uid"] for record in first.records("exit")} == uids, "the old attempts are stopped"
    )
    assert cluster.job(job_id)["attempts"][1]["phase"] == "running"
    assert cluster.job(once)["state"] == "worker_failed"
    assert not second.records("exit")
    cluster.check()


def test_a_stale_attempt_that_ends_late_changes_nothing(cluster: Cluster) -> None:
    first = cluster.start_agent("w1")
    flag = cluster.folder / "flag"
    script = f'[ "$DRAY_WORKER" = w2 ] && exec sleep 300; while ! [ -e {flag} ]; do sleep 0.02; done; exit 77'
    job_id = cluster.submit("sh", "-c", script)
    cluster.wait_running(job_id)
    first.kill()
    cluster.start_agent("w2")
    wait_for(
        lambda: cluster.job(job_id)["attempt_count"] == 2 and cluster.wait_running(job_id),
        "it runs elsewhere",
    )
    flag.touch()
    wait_for(lambda: first.records("exit"), "the old attempt ends")
    cluster.start_agent("w1")
    wait_for(lambda: first.records("acked"), "the late result is acked")
    job = cluster.job(job_id)
    assert (job["state"], job["exit_code"], job["failures"]) == ("running", None, 0)
    assert [attempt["phase"] for attempt in job["attempts"]] == ["lost", "running"]
    cluster.check()


def test_a_worker_that_comes_back_before_anybody_else_goes_on(cluster: Cluster) -> None:
    agent = cluster.start_agent("w1")
    job_id = cluster.submit("sleep", "300")
    cluster.wait_running(job_id)
    agent.kill()
    wait_for(lambda: cluster.job(job_id)["attempts"][0]["phase"] == "lost", "it is given up")
    assert cluster.job(job_id)["state"] == "pending"
    cluster.start_agent("w1")
    job = cluster.wait_running(job_id)
    assert job["attempt_count"] == 1, "the same attempt is taken up again"
    cluster.check()


def test_a_new_journal_means_lost_at_once(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    agent = cluster.start_agent("w1")
    job_id = cluster.submit("sleep", "300")
    cluster.wait_running(job_id)
    agent.kill()
    kill_supervisor(agent)
    shutil.rmtree(agent.home / "worker")
    # With calm timers silence would be forgiven for two minutes: what is seen here follows from registering.
    cluster.start_agent("w1")
    job = wait_for(
        lambda: cluster.job(job_id)["attempt_count"] == 2 and cluster.job(job_id), "it is given up at once"
    )
    assert job["attempts"][0]["phase"] == "lost"
    assert "journal" in job["attempts"][0]["error"]


def test_a_second_agent_with_the_same_home_is_refused(site: Cluster) -> None:
    agent = site.agents["w1"]
    second = site.spawn(agent.command, site.folder / "second.log")
    assert second.wait(60) == 1
    text = (site.folder / "second.log").read_text()
    assert str(agent.pid) in text
    assert "--home" in text
    assert is_alive(agent.pid)
    site.wait_worker("w1")
