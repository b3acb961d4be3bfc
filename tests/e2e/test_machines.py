"""Machines as people steer them: drained for a while and for a reason, called something, removed, joined."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest
from tests.e2e.cluster import CALM, DRAY, Cluster, wait_for

import dray
from dray.config import load_client


@pytest.fixture(scope="module")
def lab() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        cluster.start_hub()
        cluster.start_agent("w1")
        cluster.start_agent("w2")
        yield cluster
    finally:
        cluster.close()


def test_a_drain_has_a_reason_and_ends_by_itself(lab: Cluster) -> None:
    done = lab.dray("worker", "drain", "w1", "--reason", "new disk", "--until", "1h")
    assert done.out == "w1: draining\n"
    worker = lab.call("GET", "/workers/w1").json
    assert (worker["draining"], worker["drain_reason"]) == (True, "new disk")
    assert worker["drain_until"] > worker["registered_at"]
    assert worker["state_detail"] == f"draining (new disk, until {worker['drain_until']})"
    shorter = lab.call("POST", "/workers/w1/drain", {"reason": "nearly done", "until": "300ms"})
    assert shorter.json["drain_reason"] == "nearly done"
    wait_for(lambda: not lab.call("GET", "/workers/w1").json["draining"], "it gets work again by itself")
    over = lab.call("POST", "/workers/w1/drain", {"until": "2020-01-31T18:00:00Z"})
    assert (over.status, "is over already" in over.error) == (400, True)


def test_labels_that_people_give_come_first_and_stay(lab: Cluster) -> None:
    lab.dray("worker", "label", "w2", "rack=7", "os=mine")
    assert lab.call("GET", "/workers/w2").json["given_labels"] == {"rack": "7", "os": "mine"}
    job = lab.submit("true", require=["rack=7", "os=mine"])
    assert lab.wait_state(job, "succeeded")["worker"] == "w2"
    lab.agents["w2"].kill()
    lab.start_agent("w2")
    assert lab.dray("worker", "label", "w2", "os-").out.endswith("rack=7\n")
    assert lab.call("GET", "/workers/w2").json["labels"]["os"] == "linux"
    refused = lab.dray("worker", "label", "w2", "os-")
    assert (refused.code, "it says so itself" in refused.err) == (1, True)
    assert "is not a label: write K=V" in lab.dray("worker", "label", "w2", "os").err


def test_words_of_other_tools_lead_here(lab: Cluster) -> None:
    said = lab.dray("worker", "cordon", "w1")
    assert (said.code, "that is `dray worker drain` here" in said.err) == (2, True)


def test_a_worker_that_is_gone_is_removed(lab: Cluster) -> None:
    agent = lab.start_agent("w3")
    assert "is connected and would be back at once" in lab.dray("worker", "rm", "w3").err
    job = lab.submit("sleep", "600", require=["rack=9"])
    lab.dray("worker", "label", "w3", "rack=9")
    lab.wait_running(job)
    agent.signal(signal.SIGTERM)
    lab.wait_worker("w3", ("offline",))
    refused = lab.dray("worker", "rm", "w3")
    assert (refused.code, "may still run 1 task" in refused.err) == (1, True)
    with dray.connect(hub=lab.url, token=lab.token) as hub:
        removed = hub.remove_worker("w3", force=True)
    assert removed["token"]
    assert lab.call("GET", "/workers/w3").status == 404
    assert lab.job(job)["attempts"][-1]["phase"] == "lost"
    assert lab.job(job)["state"] == "pending"
    lab.call("POST", f"/jobs/{job}/cancel", {})
    wait_for(lambda: lab.job(job)["state"] == "killed", "it is cancelled")


def test_the_python_client_steers_them_too(lab: Cluster) -> None:
    with dray.connect(hub=lab.url, token=lab.token) as hub:
        assert hub.drain_worker("w1", reason="tests")["drain_reason"] == "tests"
        assert hub.resume_worker("w1")["draining"] is False
        assert hub.label_worker("w1", {"a": "b"})["given_labels"] == {"a": "b"}
        assert hub.label_worker("w1", {"a": None})["given_labels"] == {}


def test_what_is_away_for_long_leaves_lists(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster({**CALM, "STALE_S": "0.2"})
    cluster.start_hub()
    cluster.start_agent("w1").signal(signal.SIGTERM)
    wait_for(
        lambda: (a := cluster.call("GET", "/workers").json)["stale"] == 1 and not a["workers"],
        "it is left out",
    )
    assert "1 not listed: away for more than" in cluster.dray("worker", "ls").err
    assert cluster.dray("worker", "ls", "--all").out.splitlines()[1].split()[:2] == ["w1", "offline"]


def test_a_worker_keeps_the_pace_that_its_hub_names_from_the_first_heartbeat_on(
    make_cluster: Callable[..., Cluster],
) -> None:
    """Its own pace is ten seconds; a hub of which it hears nothing for three heartbeats it takes for dead."""
    cluster = make_cluster({**CALM, "HEARTBEAT_S": "3"})
    cluster.start_hub()
    cluster.start_agent("w1")
    first = cluster.call("GET", "/workers/w1").json
    worker = wait_for(
        lambda: (
            (w := cluster.call("GET", "/workers/w1").json)["last_heartbeat"] > first["last_heartbeat"] and w
        ),
        "it beats",
    )
    assert worker["registered_at"] == first["registered_at"], "the same session"


def test_joining_without_a_token_says_what_to_do(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    words = [*DRAY, "worker", "start", "--home", str(cluster.folder / "x"), "--hub", "https://hub.lab:7373"]
    process = cluster.spawn(words, cluster.folder / "x.log")
    assert process.wait(60) == 1
    said = (cluster.folder / "x.log").read_text()
    assert "run `dray token create --scope join`, and paste here the line that it prints" in said


def test_a_file_of_settings_that_is_not_read_is_named(lab: Cluster) -> None:
    (lab.home / "config.toml").write_text("")
    (lab.home / "config.yaml").write_text("client: {timeout_s: 3}\n")
    try:
        assert "config.yaml is ignored: the settings are read from config.toml" in lab.dray("ps").err
    finally:
        (lab.home / "config.toml").unlink()
    assert load_client(lab.home, {}, {}).timeout_s == 3
    (lab.home / "config.yaml").unlink()
