"""Services with real processes: they come back when they are killed, through deaths of the hub too, until stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from tests.e2e.cluster import CALM, Cluster, is_alive, wait_dead, wait_for

SHOW_PID = "echo $$; exec sleep 1000"


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    cluster = make_cluster(CALM)
    cluster.start_hub()
    cluster.start_agent("w1", 4, "", "--service-slots", "4")
    return cluster


def show(cluster: Cluster, name: str) -> dict[str, Any]:
    answer = cluster.call("GET", f"/services/{name}")
    assert answer.status == 200, answer
    return dict(answer.json)


def wait_ready(cluster: Cluster, name: str, replicas: int) -> dict[str, Any]:
    def there() -> dict[str, Any] | None:
        document = show(cluster, name)
        settled = (document["ready"], document["replicas"]) == (replicas, replicas)
        return document if settled else None

    return wait_for(there, f"{name} has {replicas} ready replicas") or {}


def pid_of(cluster: Cluster, job_id: str, index: int, besides: tuple[int, ...] = ()) -> int:
    """The process of a replica, as it printed it; another than those before."""

    def printed() -> int:
        text = cluster.call("GET", f"/jobs/{job_id}/logs", task=index).body.decode()
        return next((pid for line in text.split() if (pid := int(line)) not in besides), 0)

    return wait_for(printed, f"replica {index} of {job_id} has printed its pid")


def test_a_killed_replica_comes_back_also_over_a_death_of_the_hub(cluster: Cluster) -> None:
    job_id = cluster.submit("sh", "-c", SHOW_PID, type="service", name="web", replicas=2)
    wait_ready(cluster, "web", 2)
    first, other = pid_of(cluster, job_id, 0), pid_of(cluster, job_id, 1)
    os.kill(first, signal.SIGKILL)
    second = pid_of(cluster, job_id, 0, (first,))
    wait_ready(cluster, "web", 2)
    assert is_alive(other), "the other one was let be"
    cluster.kill_hub()
    os.kill(second, signal.SIGKILL)
    cluster.start_hub()
    third = pid_of(cluster, job_id, 0, (first, second))
    document = wait_ready(cluster, "web", 2)
    assert [replica["restarts"] for replica in document["replica_list"]] == [2, 0]
    job = cluster.job(job_id)
    assert (job["state"], job["failures"], job["losses"]) == ("running", 0, 0)
    assert cluster.call("POST", "/services/web/stop", {"grace_s": 5}).json["state"] == "killed"
    wait_dead([third, other])
    assert cluster.call("GET", "/services/web").status == 404
    cluster.check()


def test_scaling_starts_and_ends_processes(cluster: Cluster) -> None:
    job_id = cluster.submit("sh", "-c", SHOW_PID, type="service", name="web")
    first = pid_of(cluster, job_id, 0)
    assert cluster.call("POST", "/services/web/scale", {"replicas": 3}).status == 200
    wait_ready(cluster, "web", 3)
    more = [pid_of(cluster, job_id, index) for index in (1, 2)]
    endpoints = cluster.call("GET", "/services/web/endpoints").json["endpoints"]
    assert [one["id"] for one in endpoints] == [job_id, f"{job_id}/1", f"{job_id}/2"]
    cluster.kill_hub()
    cluster.start_hub()
    assert cluster.call("POST", "/services/web/scale", {"replicas": 1}).status == 200
    wait_dead(more)
    assert is_alive(first)
    assert len(cluster.call("GET", "/services/web/endpoints").json["endpoints"]) == 1
    assert cluster.call("POST", "/services/web/scale", {"replicas": -1}).status == 400
    cluster.submit("true", type="service", name="web", hold=True)
    assert cluster.call("GET", "/services/web").status == 409, "two of one name: which is meant?"
    cluster.call("POST", f"/services/{job_id}/stop", {"grace_s": 5})
    wait_dead([first])


def test_the_output_of_all_replicas_is_shown_also_of_what_began_as_one_and_came_back(
    cluster: Cluster,
) -> None:
    job_id = cluster.submit("sh", "-c", SHOW_PID, type="service", name="web")
    first = pid_of(cluster, job_id, 0)
    cluster.call("POST", "/services/web/scale", {"replicas": 2})
    second = pid_of(cluster, job_id, 1)
    shown = cluster.dray("service", "logs", "web")
    assert (shown.out, shown.err) == (f"0 | {first}\n1 | {second}\n", "")
    following, said = cluster.begin("service", "logs", "-f", "web")
    wait_for(lambda: len(said.read_text().splitlines()) == 2, "both are followed")
    os.kill(second, signal.SIGKILL)
    third = pid_of(cluster, job_id, 1, (second,))
    wait_for(lambda: f"1 | {third}\n" in said.read_text(), "its next life is followed too")
    cluster.call("POST", "/services/web/stop", {"grace_s": 0})
    assert following.wait(60) == 0
    told = [line for line in said.read_text().splitlines() if "[dray: attempt 2" not in line]
    assert sorted(told) == sorted([f"0 | {first}", f"1 | {second}", f"1 | {third}"]), "each line once"


def test_what_a_replica_printed_is_there_while_it_rests(cluster: Cluster) -> None:
    cluster.submit("sh", "-c", "echo no such model; exit 3", type="service", name="bad", replicas=2)
    resting = lambda: [one["next_try_in_s"] or 0 for one in show(cluster, "bad")["replica_list"]]  # noqa: E731
    wait_for(lambda: min(resting()) > 3, "both rest for a while")
    assert {*cluster.dray("service", "logs", "bad").out.splitlines()} == {
        "0 | no such model",
        "1 | no such model",
    }


def test_a_crash_loop_is_told_and_keeps_nobody_else_from_running(cluster: Cluster) -> None:
    cluster.submit("sh", "-c", "echo no such model >&2; exit 3", type="service", name="bad")

    def loops() -> dict[str, Any] | None:
        document = show(cluster, "bad")
        return document if document["crash_looping"] else None

    document = wait_for(loops, "bad is crash-looping") or {}
    (replica,) = document["replica_list"]
    assert (replica["health"], replica["last_exit_code"]) == ("crash_looping", 3)
    assert "no such model" in replica["message"]
    why = cluster.call("GET", f"/jobs/{document['id']}/why").json
    assert "no such model" in why["summary"]
    listed = cluster.job(document["id"])
    assert listed["service"] == {"replicas": 1, "ready": 0, "crash_looping": 1, "update": ""}
    cluster.wait_state(cluster.submit("true"), "succeeded")
