"""Broken networks between agent and hub, and a hub that was restored from an older backup."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from tests.e2e.cluster import CALM, NERVOUS, Cluster, is_alive, wait_for
from tests.e2e.proxy import Relay

# Silence is noticed soon, but nothing is given up for it.
PATIENT = {**NERVOUS, "LOST_S": "60", "START_GRACE_S": "60"}


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    cluster = make_cluster(PATIENT)
    cluster.start_hub()
    return cluster


@pytest.fixture
def relay(cluster: Cluster) -> Iterator[Relay]:
    relay = Relay(cluster.port)
    yield relay
    relay.close()


def hold(cluster: Cluster, code: int = 0) -> tuple[list[str], Callable[[], None]]:
    """A command that ends when told to, and the telling."""
    flag = cluster.folder / f"flag{len(list(cluster.folder.iterdir()))}"
    script = f"while ! [ -e {flag} ]; do sleep 0.02; done; echo finished; exit {code}"
    return ["sh", "-c", script], flag.touch


def test_a_lost_ack_is_asked_for_again_and_recorded_once(cluster: Cluster, relay: Relay) -> None:
    agent = cluster.start_agent("w1", 4, relay.url)
    command, let_go = hold(cluster, 5)
    job_id = cluster.submit(*command)
    cluster.wait_running(job_id)
    relay.lose("down", later_too=True)
    let_go()
    first = cluster.wait_state(job_id, "failed")
    assert not agent.records("acked"), "the worker has not heard that it was recorded"
    relay.heal()
    relay.cut()
    wait_for(lambda: agent.records("acked"), "it hears of it later")
    assert cluster.job(job_id) == first
    assert [event["type"] for event in cluster.events(job_id)].count("attempt_ended") == 1
    cluster.check()


def test_a_submit_whose_answer_was_lost_happens_once(cluster: Cluster, relay: Relay) -> None:
    relay.lose("down", later_too=True)
    submit, log = cluster.begin("submit", "--hub", relay.url, "-J", "once", "--", "true", name="submit")

    def taken() -> list[str]:
        return [job["id"] for job in cluster.call("GET", "/jobs", name="once").json["jobs"]]

    wait_for(taken, "the hub has it, though nobody was told")
    relay.heal()
    relay.cut()
    assert submit.wait(60) == 0, log.read_text()
    assert log.read_text().splitlines()[-1] == taken()[0]
    assert len(taken()) == 1


def test_a_hub_killed_right_after_a_result_arrived(cluster: Cluster) -> None:
    agent = cluster.start_agent("w1")
    command, let_go = hold(cluster, 4)
    job_id = cluster.submit(*command)
    cluster.wait_running(job_id)
    let_go()
    wait_for(lambda: agent.records("exit"), "it ends")
    cluster.kill_hub()
    cluster.start_hub()
    job = cluster.wait_state(job_id, "failed")
    assert (job["exit_code"], job["attempt_count"], job["failures"]) == (4, 1, 1)
    wait_for(lambda: agent.records("acked"), "the worker may forget it")
    assert len(agent.records("exit")) == 1


@pytest.mark.parametrize("direction", ["up", "down"])
def test_one_way_loss_is_noticed_by_the_agent_itself(cluster: Cluster, relay: Relay, direction: str) -> None:
    agent = cluster.start_agent("w1", 4, relay.url)
    command, let_go = hold(cluster, 3)
    job_id = cluster.submit(*command)
    cluster.wait_running(job_id)
    dialled = relay.dialled
    relay.lose(direction)
    wait_for(lambda: relay.dialled > dialled, "the agent dials anew without being cut off")
    let_go()
    job = cluster.wait_state(job_id, "failed")
    assert (job["exit_code"], job["attempt_count"], job["losses"]) == (3, 1, 0)
    assert is_alive(agent.pid)
    again = cluster.submit("true")
    cluster.wait_state(again, "succeeded")
    cluster.check()


@pytest.mark.parametrize("direction", ["up", "down"])
def test_work_assigned_into_a_one_way_loss_still_runs_once(
    cluster: Cluster, relay: Relay, direction: str
) -> None:
    cluster.start_agent("w1", 4, relay.url)
    trace = cluster.folder / "trace"
    relay.lose(direction)
    job_id = cluster.submit("sh", "-c", f"echo ran >> {trace}")
    job = cluster.wait_state(job_id, "succeeded")
    assert trace.read_text() == "ran\n"
    assert job["losses"] == 0


def test_a_long_break_ends_as_unknown_then_back_to_running(cluster: Cluster, relay: Relay) -> None:
    cluster.start_agent("w1", 4, relay.url)
    command, let_go = hold(cluster)
    job_id = cluster.submit(*command)
    cluster.wait_running(job_id)
    relay.refuses = True
    relay.cut()
    wait_for(lambda: cluster.job(job_id)["attempts"][0]["phase"] == "unknown", "nobody knows how it is")
    waiting = cluster.submit("true")
    assert cluster.job(waiting)["attempts"] == [], "nothing is given to a worker that is not heard"
    relay.heal()
    job = cluster.wait_running(job_id)
    assert job["attempt_count"] == 1
    let_go()
    cluster.wait_state(job_id, "succeeded")
    cluster.wait_state(waiting, "succeeded")


@pytest.mark.home_site("its file is put back")
def test_a_hub_from_an_older_backup_lists_what_it_does_not_know(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(CALM)
    cluster.start_hub()
    agent = cluster.start_agent("w1")
    cluster.wait_state(cluster.submit("true"), "succeeded")
    assert cluster.stop_hub() == 0
    backup = cluster.folder / "backup"
    shutil.copytree(cluster.home, backup)
    for _ in range(2):
        cluster.start_hub()
        cluster.stop_hub()
    cluster.start_hub()
    cluster.wait_worker("w1")
    command, let_go = hold(cluster)
    chatty = cluster.submit(
        "sh", "-c", f"echo $$; yes | head -c 3000000; exec {command[0]} -c '{command[2]}'"
    )
    pid = int(wait_for(lambda: cluster.logs(chatty), "it says its pid").split()[0])
    seen = cluster.call("GET", "/hub").json["epoch"]
    cluster.stop_hub()
    shutil.rmtree(cluster.home)
    os.rename(backup, cluster.home)
    cluster.start_hub()
    shown = wait_for(lambda: cluster.wait_worker("w1").get("quarantined"), "it is listed")
    assert shown == [chatty]
    assert chatty in cluster.dray("worker", "show", "w1").out
    assert cluster.call("GET", "/hub").json["epoch"] > seen
    assert cluster.call("GET", f"/jobs/{chatty}").status == 404
    cluster.wait_state(cluster.submit("true"), "succeeded")
    assert is_alive(pid), "it is never killed"
    let_go()
    wait_for(lambda: not is_alive(pid), "it ends by itself")
    wait_for(lambda: agent.records("acked")[-1], "its result is let go")
    cluster.wait_state(cluster.submit("true"), "succeeded")
    assert "in a row" not in agent.text(), "the session holds, although the output is not wanted"
