"""Preemption on real machines: work makes room for what stands above it, comes back and succeeds; receipts say so."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cluster import Cluster, is_alive, wait_dead, wait_for

POLICY = """\
queues:
  default: {order: priority}
preemption: {min_run_s: 0}
"""
# Prints its process id, and goes on until the file `go` is there.
STEADY = "echo $$; until test -e go; do sleep 0.05; done; echo whole"
STUBBORN = f"trap '' TERM; {STEADY}"


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    made = make_cluster()
    made.home.mkdir(exist_ok=True)
    (made.home / "policy.yaml").write_text(POLICY)
    made.start_hub()
    made.start_agent("w1", 2)
    return made


def receipt(cluster: Cluster, number: int = 1) -> dict[str, Any]:
    answer = cluster.call("GET", f"/preemptions/p{number}")
    found: dict[str, Any] = answer.json if answer.status == 200 else {}
    return found


def begin(cluster: Cluster, script: str, job_id: str = "low", **fields: Any) -> int:
    """Start a job of low priority on the whole machine, and give its process id."""
    cores = cluster.wait_worker("w1")["cpu_count"]
    cluster.submit("sh", "-c", script, id=job_id, priority=1, cpu_milli=int(1000 * cores), **fields)
    cluster.wait_running(job_id)
    return int(cluster.wait_logs(job_id, 1)[0])


def submit(cluster: Cluster, *command: str, **fields: Any) -> str:
    """Submit a job that asks for a core: it cannot run beside one that has them all."""
    return cluster.submit(*command, cpu_milli=1000, **fields)


def wait_receipt(cluster: Cluster, status: str) -> dict[str, Any]:
    return wait_for(lambda: found if (found := receipt(cluster)).get("status") == status else {}, status)


def test_low_makes_room_and_comes_back(cluster: Cluster) -> None:
    pid = begin(cluster, STEADY)
    high = submit(cluster, "echo", "mine", id="high", priority=9)
    cluster.wait_state(high, "succeeded")
    wait_dead([pid])
    (cluster.folder / "go").touch()
    low = cluster.wait_state("low", "succeeded")
    assert (low["preemptions"], low["failures"], low["losses"]) == (1, 0, 0)
    assert [attempt["phase"] for attempt in low["attempts"]] == ["preempted", "succeeded"]
    assert cluster.logs("low").endswith(b"whole\n")

    found = wait_receipt(cluster, "served")
    assert (found["task_id"], found["rule"], found["kind"], found["workers"]) == (
        "high",
        "priority",
        "cpu",
        ["w1"],
    )
    (victim,) = found["victims"]
    assert (victim["task_id"], victim["state"], victim["back_on"]) == ("low", "succeeded", "w1")
    assert victim["lost_s"] > 0
    # The preemptor started when the victim was surely gone, the victim when the preemptor had ended.
    first, second = low["attempts"]
    (own,) = cluster.job("high")["attempts"]
    assert first["ended_at"] <= own["assigned_at"]
    assert own["ended_at"] <= second["assigned_at"]

    shown = cluster.dray("preemptions", "p1")
    assert shown.code == 0, shown
    assert "made for  high of " in shown.out
    assert "succeeded, ran again from " in shown.out
    assert "stopped for others once (p1)" in cluster.dray("show", "low").out
    said = cluster.dray("events", "low").out
    assert f"for a job of {found['user']} with priority 9 (by priority, receipt p1)" in said
    cluster.check()


def test_a_tier_alone_stops_nobody(cluster: Cluster, tmp_path: Path) -> None:
    pid = begin(cluster, STEADY)
    submit(cluster, "true", id="train", job_tier="training")
    submit(cluster, "true", id="same", priority=1)
    wait_for(lambda: cluster.call("GET", "/jobs/train/why").json["blockers"], "it waits for a reason")
    assert receipt(cluster) == {}
    assert is_alive(pid)
    policy = tmp_path / "p.yaml"
    policy.write_text(POLICY.replace("{min_run_s: 0}", "{min_run_s: 0, by_tier: true}"))
    assert cluster.dray("config", "apply", str(policy)).code == 0
    cluster.wait_state("train", "succeeded")
    wait_dead([pid])
    assert receipt(cluster)["task_id"] == "train"
    (cluster.folder / "go").touch()
    cluster.wait_state("low", "succeeded")
    cluster.wait_state("same", "succeeded")


def test_a_cancelled_preemptor_leaves_the_room_to_its_victim(cluster: Cluster) -> None:
    pid = begin(cluster, STUBBORN)
    submit(cluster, "true", id="high", priority=9)
    found = wait_receipt(cluster, "open")
    assert found["victims"][0]["state"] == "stopping"
    cluster.dray("cancel", "high")
    assert wait_receipt(cluster, "rolled_back")["served_at"] is None
    # It ignores TERM and has half a minute: a process that was told to go is not told otherwise.
    assert is_alive(pid)
    assert cluster.job("low")["phase"] == "stopping"
    (cluster.folder / "go").touch()
    low = cluster.wait_state("low")
    assert low["state"] == "succeeded"
    assert receipt(cluster)["status"] == "rolled_back"
    assert receipt(cluster)["victims"][0]["gone_at"] is not None
    cluster.check()


def test_a_hub_killed_in_between_keeps_the_room(cluster: Cluster) -> None:
    pid = begin(cluster, STUBBORN)
    submit(cluster, "true", id="high", priority=9)
    before = wait_receipt(cluster, "open")
    cluster.kill_hub()
    cluster.start_hub()
    after = receipt(cluster)
    assert (after["status"], after["decided_at"]) == ("open", before["decided_at"])
    # Submitted later with a priority of its own: what is being freed is not for it.
    submit(cluster, "true", id="rival", priority=8)
    cluster.wait_worker("w1")
    assert is_alive(pid)
    os.kill(pid, 9)
    cluster.wait_state("high", "succeeded")
    found = wait_receipt(cluster, "served")
    assert found["victims"][0]["gone_at"] is not None
    cluster.wait_state("rival", "succeeded")
    (cluster.folder / "go").touch()
    low = cluster.wait_state("low", "succeeded")
    assert [attempt["phase"] for attempt in low["attempts"]] == ["preempted", "succeeded"]
    order = [cluster.job(name)["attempts"][-1]["assigned_at"] for name in ("high", "rival", "low")]
    assert order == sorted(order)
    assert len(cluster.call("GET", "/preemptions").json["preemptions"]) == 1
    cluster.check()
