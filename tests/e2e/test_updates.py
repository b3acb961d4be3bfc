"""Services are updated with real processes: enough answer all the time, whoever is killed meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.e2e.cluster import CALM, Cluster, is_alive, wait_dead, wait_for
from tests.e2e.test_agent_death import kill_supervisor
from tests.e2e.test_services import SHOW_PID, pid_of, show, wait_ready

RULES = {"settle_s": 0.5, "drain_s": 0.5, "ready_timeout_s": 30}


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    cluster = make_cluster(CALM)
    cluster.start_hub()
    cluster.start_agent("w1", 4, "", "--service-slots", "4")
    return cluster


def serve(cluster: Cluster, replicas: int = 2, **rules: Any) -> str:
    job_id = cluster.submit(
        "sh", "-c", SHOW_PID, type="service", name="web", replicas=replicas, update={**RULES, **rules}
    )
    wait_ready(cluster, "web", replicas)
    return job_id


def update(cluster: Cluster, **changes: Any) -> dict[str, Any]:
    answer = cluster.call("POST", "/services/web/update", {"changes": changes})
    assert answer.status == 200, answer
    return dict(answer.json)


def wait_whole(cluster: Cluster, revision: int) -> dict[str, Any]:
    """Wait until all replicas are of one revision and nothing is replaced any more."""

    def whole() -> dict[str, Any] | None:
        document = show(cluster, "web")
        current = next(one for one in document["revisions"] if one["current"])
        same = {replica["revision"] for replica in document["replica_list"]} == {revision}
        over = (current["number"], current["outcome"]) == (revision, "done")
        return document if same and over and document["ready"] == document["replicas"] else None

    return wait_for(whole, f"all replicas are of revision {revision}") or {}


@pytest.mark.parametrize("victim", ["hub", "agent", "supervisor"])
def test_an_update_goes_through_though_somebody_dies_in_the_middle(cluster: Cluster, victim: str) -> None:
    job_id = serve(cluster)
    old = [pid_of(cluster, job_id, index) for index in (0, 1)]
    told = update(cluster, command=["sh", "-c", f"echo new >&2; {SHOW_PID}"])
    assert told["update"].startswith("update from revision 1 to 2: 0 of 2 replicas are settled")
    wait_for(lambda: len(show(cluster, "web")["replica_list"]) == 3, "a third one is started")
    if victim == "hub":
        cluster.kill_hub()
        cluster.start_hub()
    elif victim == "agent":
        cluster.agents["w1"].kill()
        cluster.start_agent("w1")
    else:
        kill_supervisor(cluster.agents["w1"])
    document = wait_whole(cluster, 2)
    assert document["revision"] == 2
    wait_dead(old)
    assert [one["outcome"] for one in document["revisions"]] == ["done", "done"]
    assert cluster.call("POST", "/services/web/stop", {"grace_s": 1}).status == 200
    cluster.check()


def test_a_bad_revision_goes_back_and_nobody_who_answers_is_touched(cluster: Cluster) -> None:
    job_id = serve(cluster, ready_timeout_s=3)
    old = [pid_of(cluster, job_id, index) for index in (0, 1)]
    update(cluster, command=["sh", "-c", "echo no such model >&2; exit 3"])
    document = wait_whole(cluster, 1)
    assert all(is_alive(pid) for pid in old)
    # It rests, waits or is about to end again, whenever one looks.
    told = r"revision 2 was rolled back: replica 2 (on w1 was not ready|was not ready|found no place)"
    assert re.match(told, document["update"]), document["update"]
    assert "no such model" in document["update"]
    assert document["revisions"][1]["outcome"] == "rolled_back"
    cluster.kill_hub()
    cluster.start_hub()
    assert show(cluster, "web")["revisions"] == document["revisions"]


def test_a_rollback_goes_back_to_what_was_and_a_restart_replaces_all(cluster: Cluster) -> None:
    job_id = serve(cluster, 1)
    first = pid_of(cluster, job_id, 0)
    assert cluster.call("POST", "/services/web/rollback").status == 409, "there is nothing to go back to"
    update(cluster, command=["sh", "-c", f"true; {SHOW_PID}"])
    wait_whole(cluster, 2)
    wait_dead([first])
    assert cluster.call("POST", "/services/web/rollback", {"to": 7}).status == 404
    assert cluster.call("POST", "/services/web/rollback").json["note"] == "from revision 2 to 1"
    document = wait_whole(cluster, 1)
    assert document["command"] == ["sh", "-c", SHOW_PID]
    assert cluster.call("POST", "/services/web/restart").json["revision"] == 3
    wait_whole(cluster, 3)
    assert cluster.call("POST", "/services/web/update", {"changes": {"queue": "other"}}).status == 400
    assert cluster.call("POST", "/services/web/update", {}).status == 400
    scaled = update(cluster, replicas=2)
    assert (scaled["replicas"], scaled["revision"]) == (2, 3), "a change of size is no revision"
    whole = {"command": ["sh", "-c", f"true; true; {SHOW_PID}"], "type": "service", "update": RULES}
    assert cluster.call("POST", "/services/web/update", {"spec": whole}).json["revision"] == 4
    wait_whole(cluster, 4)
    assert len(show(cluster, "web")["replica_list"]) == 2, "what a file does not say of the job stays"


def test_a_drained_worker_gives_its_replicas_away_start_then_stop(cluster: Cluster) -> None:
    job_id = serve(cluster, 1)
    first = pid_of(cluster, job_id, 0)
    assert cluster.call("POST", "/workers/w1/drain", {}).status == 200
    told = wait_for(lambda: show(cluster, "web")["update"], "the move is told")
    assert "moving off w1, which is drained" in told
    assert "room for another replica" in told
    detail = cluster.call("GET", "/workers/w1").json["state_detail"]
    assert f"{job_id} of services to move" in detail
    assert is_alive(first)
    cluster.start_agent("w2", 4, "", "--service-slots", "4")

    def moved() -> bool:
        replicas = show(cluster, "web")["replica_list"]
        return [(one["worker"], one["health"]) for one in replicas] == [("w2", "ready")]

    wait_for(moved, "its replica runs on w2")
    wait_dead([first])
