"""A second user on a hub: refused where tasks could read the hub's home, let in by a yes where they share accounts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest
from tests.e2e.cluster import DRAY, Cluster, wait_for

STRICT = {"DRAY_HUB_SHARE_OWN_ACCOUNT": "0"}
CREATE = ("token", "create", "--user", "eve", "--scope", "submit")


@pytest.fixture
def cluster(make_cluster: Callable[[], Cluster]) -> Cluster:
    return make_cluster()


def test_nobody_else_is_let_in_where_tasks_can_read_the_hub_s_home(cluster: Cluster) -> None:
    cluster.start_hub(env=STRICT)
    cluster.start_agent("w1", near=True)
    for more in ((), ("--shared-account",)):
        refused = cluster.dray(*CREATE, *more)
        assert refused.code != 0
        assert "worker w1 runs tasks of eve as" in refused.err
        assert "could read its home with the admin token" in refused.err
    assert [
        line["user"] for line in cluster.call("GET", "/tokens").json["tokens"] if line["user"] == "eve"
    ] == []
    assert cluster.dray("token", "create", "--scope", "submit").code == 0, "the one user may have any number"
    assert cluster.dray("token", "create", "--user", "eve", "--scope", "read").code == 0, (
        "who reads runs nothing"
    )


def test_a_worker_that_would_open_the_hub_s_home_to_others_is_not_taken(cluster: Cluster) -> None:
    cluster.start_hub(env=STRICT)
    assert cluster.dray(*CREATE).code == 0, "no worker, no danger"
    agent = cluster.start_agent("w1", near=True, wait=False)
    words = "the hub does not take this worker: register: worker w1 runs tasks of eve as"
    wait_for(lambda: words in agent.log.read_text(), "it is told why")
    assert cluster.call("GET", "/workers").json["workers"] == []


def test_a_shared_account_needs_a_yes_and_is_told_of(cluster: Cluster) -> None:
    cluster.start_hub()
    agent = cluster.start_agent("w1")
    refused = cluster.dray(*CREATE, "-o", "json")
    assert (refused.code != 0, "shared_account" in refused.err) == (True, True)
    assert cluster.call("POST", "/tokens", {"user": "eve", "scopes": ["admin"]}).status == 409
    agreed = {"user": "eve", "scopes": ["submit"], "shared_account": True}
    assert cluster.call("POST", "/tokens", agreed).status == 201
    assert cluster.dray(*CREATE).code == 0, "the second token of a user changes nothing"
    told = "they can read and stop each other's"
    assert told in cluster.dray("doctor", "-o", "json").out
    cluster.call("POST", "/tokens", {"user": "kim", "scopes": ["read"]})
    cluster.kill_hub()
    cluster.start_hub()
    wait_for(lambda: told in agent.log.read_text(), "whoever runs the worker is told as well")


def test_up_tells_of_a_shared_account(cluster: Cluster) -> None:
    cluster.start_hub()
    cluster.start_agent("w1", near=True)
    up = ("up", "--detach", "--name", "w1")
    alone = cluster.dray(*up)
    assert (alone.code, "was running already" in alone.out, "note " in alone.out) == (0, True, False)
    assert cluster.dray(*CREATE, "--shared-account").code == 0
    told = cluster.dray(*up).out.splitlines()
    (note,) = [line for line in told if line.startswith("note ")]
    assert "worker w1 runs tasks of" in note
    assert "they can read and stop each other's" in note


@pytest.mark.parametrize(("answer", "made"), [("y", True), ("n", False)])
def test_who_sits_at_a_terminal_is_asked(cluster: Cluster, answer: str, made: bool) -> None:
    cluster.start_hub()
    cluster.start_agent("w1")
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [*DRAY, *CREATE], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=cluster.env
    )
    os.write(ours, f"{answer}\n".encode())
    out, _ = process.communicate(timeout=60)
    os.close(theirs)
    os.close(ours)
    assert (process.returncode == 0, out.startswith(b"dray_")) == (made, made)
