"""Work that people have moved, on real workers: ordered, followed, called off, refused; a worker that is emptied."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.e2e.cluster import Cluster, wait_for

STAYS = ("sh", "-c", "echo begun; exec sleep 600")


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


def stage_of(lab: Cluster, move: str) -> str:
    return str(lab.call("GET", f"/moves/{move}").json["tasks"][0]["stage"])


def test_a_job_goes_where_it_is_told_though_the_hub_dies_on_the_way(lab: Cluster) -> None:
    job = lab.submit(*STAYS)
    origin = str(lab.wait_running(job)["worker"])
    target = "w2" if origin == "w1" else "w1"
    told = lab.dray("move", job, "--to", target)
    assert told.code == 0, told
    assert f"{job} goes from {origin} to {target}" in told.out
    lab.kill_hub()
    lab.start_hub()
    (move,) = lab.call("GET", "/moves", job=job, all="1").json["moves"]
    assert (move["cause"], move["tasks"][0]["to"]) == ("person", target)
    wait_for(lambda: stage_of(lab, move["id"]) in ("settling", "done"), "it runs where it was to go")
    assert lab.job(job)["worker"] == target
    assert any(line["type"] == "task_moving" for line in lab.events(job))
    # Its old place is kept still: what is past calling off says so.
    refused = lab.dray("move", "cancel", move["id"])
    assert (refused.code, "past calling off" in refused.err) == (1, True)
    assert move["id"] in lab.dray("move", "ls").out
    assert "ordered by" in lab.dray("move", "show", move["id"]).out
    lab.dray("cancel", job)
    lab.wait_state(job, "killed")
    wait_for(lambda: lab.call("GET", f"/moves/{move['id']}").json["status"] != "open", "the move is over")
    watched = lab.dray("move", "watch", move["id"], "-o", "json")
    assert [one["id"] for one in watched.json["moves"]] == [move["id"]]


def test_what_cannot_be_moved_is_refused_with_the_reason(lab: Cluster) -> None:
    waits = lab.submit("true", hold=True)
    done = lab.dray("move", waits)
    assert (done.code, "nothing runs" in done.err) == (1, True)
    lab.dray("cancel", waits)
    job = lab.submit(*STAYS)
    here = lab.wait_running(job)["worker"]
    assert f"it runs on {here} already" in lab.dray("move", job, "--to", here).err
    assert "there is no worker 'nowhere'" in lab.dray("move", job, "--to", "nowhere").err
    once = lab.submit(*STAYS, at_most_once=True)
    lab.wait_running(once)
    assert "it may start once only" in lab.dray("move", once).err
    assert lab.call("POST", "/moves/p999/cancel").status == 404
    for each in (job, once):
        lab.dray("cancel", each)
        lab.wait_state(each, "killed")


def test_a_worker_is_emptied_and_what_ran_there_runs_elsewhere(lab: Cluster) -> None:
    jobs = [lab.submit(*STAYS) for _ in range(3)]
    for job in jobs:
        lab.wait_running(job)
    both = lab.dray("worker", "drain", "w1", "--stop", "--move")
    assert (both.code, "give one of --stop and --move" in both.err) == (2, True)
    there = [job for job in jobs if lab.job(job)["worker"] == "w1"]
    foretold = lab.dray("worker", "drain", "w1", "--move", "--dry-run").out
    assert there == [] or "find room elsewhere now" in foretold
    assert lab.dray("worker", "drain", "w1", "--move", "--reason", "new disk").code == 0
    wait_for(lambda: all(lab.job(job)["worker"] == "w2" for job in jobs), "all of it runs on w2")
    wait_for(lambda: all(lab.job(job)["state"] == "running" for job in jobs), "and runs")
    moved = lab.call("GET", "/moves", cause="evacuate", all="1").json["moves"]
    assert sorted(one["tasks"][0]["job_id"] for one in moved) == sorted(there)
    lab.dray("worker", "resume", "w1")
    for job in jobs:
        lab.dray("cancel", job)
