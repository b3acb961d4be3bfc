"""Gangs of real processes: two agents meet at the address the hub gives them, and a broken try is retried whole."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.cluster import Cluster, wait_for

MEET = """
import json, os, socket, sys, time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
names = "RANK WORLD_SIZE NODE_RANK GROUP_RANK LOCAL_RANK LOCAL_WORLD_SIZE JAX_NUM_PROCESSES JAX_PROCESS_ID"
told = {name: int(os.environ[name]) for name in names.split()}
assert told["NODE_RANK"] == told["GROUP_RANK"] == told["JAX_PROCESS_ID"] == rank, told
assert told["JAX_NUM_PROCESSES"] == size and told["LOCAL_WORLD_SIZE"] == 1 and told["LOCAL_RANK"] == 0, told
assert os.environ["JAX_COORDINATOR_ADDRESS"] == f"{place[0]}:{place[1]}"

if rank == 0:
    with socket.create_server(place) as listener:
        listener.settimeout(30)
        peers = [listener.accept()[0] for _ in range(size - 1)]
    ranks = sorted([0, *(int(peer.recv(16)) for peer in peers)])
    for peer in peers:
        peer.sendall(json.dumps(ranks).encode())
        peer.close()
else:
    deadline = time.monotonic() + 30
    while True:
        try:
            peer = socket.create_connection(place, timeout=30)
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    peer.sendall(str(rank).encode())
    ranks = json.loads(peer.recv(4096))
assert ranks == list(range(size)), ranks
print(f"rank {rank} of {size} met {ranks} in try {os.environ['DRAY_GANG_GENERATION']} at {place[0]}", flush=True)
"""
# The first try stays until it is disturbed, the second one ends by itself.
STAY = """
import os, pathlib, time

generation, rank = os.environ["DRAY_GANG_GENERATION"], os.environ["RANK"]
pathlib.Path(f"pid-{generation}-{rank}").write_text(str(os.getpid()))
while generation == "1":
    time.sleep(0.05)
"""


@pytest.fixture
def pair(make_cluster: Callable[..., Cluster]) -> Callable[..., Cluster]:
    def make() -> Cluster:
        cluster = make_cluster()
        cluster.start_hub()
        for name in ("w1", "w2"):
            cluster.start_agent(name)
        (cluster.folder / "meet.py").write_text(MEET)
        (cluster.folder / "stay.py").write_text(STAY)
        return cluster

    return make


def pid_of(cluster: Cluster, generation: int, rank: int) -> int:
    note = cluster.folder / f"pid-{generation}-{rank}"
    return int(
        wait_for(lambda: note.exists() and note.read_text(), f"rank {rank} of try {generation} runs") or 0
    )


def tasks(cluster: Cluster, job_id: str) -> list[dict[str, object]]:
    listed: list[dict[str, object]] = cluster.call("GET", f"/jobs/{job_id}/tasks").json["tasks"]
    return listed


def test_two_workers_meet(pair: Callable[..., Cluster]) -> None:
    cluster = pair()
    done = cluster.dray("run", "-N", "2", "--", "python3", "meet.py")
    assert done.code == 0, done
    assert "rank 0 of 2 met [0, 1] in try 1" in done.out
    job_id = cluster.call("GET", "/jobs").json["jobs"][0]["id"]
    assert {task["worker"] for task in tasks(cluster, job_id)} == {"w1", "w2"}
    assert "rank 1 of 2 met [0, 1]" in cluster.logs(job_id, task=1).decode()
    cluster.check()


def test_a_killed_member_fails_the_try_and_a_retry_starts_all_again(pair: Callable[..., Cluster]) -> None:
    cluster = pair()
    job_id = cluster.submit("python3", "stay.py", node_count=2, retries=1)
    other, victim = pid_of(cluster, 1, 0), pid_of(cluster, 1, 1)
    os.kill(victim, signal.SIGKILL)
    cluster.wait_state(job_id, "succeeded")
    assert [task["failures"] for task in tasks(cluster, job_id)] == [1, 1]
    assert pid_of(cluster, 2, 0) != other
    assert not Path(f"/proc/{other}").exists()
    cluster.check()


def test_without_a_retry_every_task_ends_with_the_try(pair: Callable[..., Cluster]) -> None:
    cluster = pair()
    job_id = cluster.submit("python3", "stay.py", node_count=2)
    pid_of(cluster, 1, 0)
    os.kill(pid_of(cluster, 1, 1), signal.SIGKILL)
    cluster.wait_state(job_id, "failed")
    first, second = tasks(cluster, job_id)
    assert (first["state"], first["exit_class"]) == ("failed", "gang")
    assert f"{job_id}/1 on " in str(first["error"])
    assert (second["state"], second["exit_class"]) == ("failed", "signal")
    # The first one was stopped because of the other: TERM, or its own way to end on it, is not how the gang ended.
    assert cluster.dray("wait", job_id).code == 128 + signal.SIGKILL


def test_a_lost_machine_costs_one_loss_and_all_start_again_when_it_is_back(
    pair: Callable[..., Cluster],
) -> None:
    """Agent and supervisor of one member are killed: its task is stopped by the next supervisor, and lost."""
    cluster = pair()
    job_id = cluster.submit("python3", "stay.py", node_count=2, losses=1)
    pid_of(cluster, 1, 0)
    victim = pid_of(cluster, 1, 1)
    agent = cluster.agents[str(tasks(cluster, job_id)[1]["worker"])]
    supervisor = agent.supervisor_pid
    agent.kill()
    for pid in (supervisor, victim):
        os.kill(pid, signal.SIGKILL)
    cluster.start_agent(agent.name, wait=False)
    cluster.wait_state(job_id, "succeeded")
    assert [task["losses"] for task in tasks(cluster, job_id)] == [1, 1]
    assert [task["failures"] for task in tasks(cluster, job_id)] == [0, 0]
    cluster.check()


def test_an_agent_restarted_between_acceptance_and_go_keeps_its_member(pair: Callable[..., Cluster]) -> None:
    """One supervisor is stopped, so that its member is not accepted yet, while the other one's agent is replaced."""
    cluster = pair()
    slow, quick = cluster.agents["w1"], cluster.agents["w2"]
    os.kill(slow.supervisor_pid, signal.SIGSTOP)
    job_id = cluster.submit("python3", "meet.py", node_count=2)
    wait_for(
        lambda: any(task["phase"] == "accepted" for task in tasks(cluster, job_id)), "one member is accepted"
    )
    assert cluster.job(job_id)["state"] == "pending"
    quick.kill()
    cluster.start_agent("w2", wait=False)
    os.kill(slow.supervisor_pid, signal.SIGCONT)
    cluster.wait_state(job_id, "succeeded")
    assert {task["worker"] for task in tasks(cluster, job_id)} == {"w1", "w2"}
    assert [len(agent.records("spec")) for agent in (slow, quick)] == [1, 1], "no second try was needed"


def test_a_hub_killed_between_acceptance_and_go_starts_them_after_its_return(
    pair: Callable[..., Cluster],
) -> None:
    cluster = pair()
    slow = cluster.agents["w1"]
    os.kill(slow.supervisor_pid, signal.SIGSTOP)
    job_id = cluster.submit("python3", "meet.py", node_count=2)
    wait_for(
        lambda: any(task["phase"] == "accepted" for task in tasks(cluster, job_id)), "one member is accepted"
    )
    cluster.kill_hub()
    os.kill(slow.supervisor_pid, signal.SIGCONT)
    cluster.start_hub()
    cluster.wait_state(job_id, "succeeded")
    assert [len(agent.records("spec")) for agent in cluster.agents.values()] == [1, 1]
    cluster.check()


def test_a_cancel_of_one_member_ends_the_gang_and_says_so(pair: Callable[..., Cluster]) -> None:
    cluster = pair()
    job_id = cluster.submit("python3", "stay.py", node_count=2)
    pids = [pid_of(cluster, 1, rank) for rank in (0, 1)]
    done = cluster.dray("cancel", f"{job_id}/1")
    assert "the tasks of a gang end together" in done.out
    assert cluster.wait_state(job_id)["state"] == "killed"
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "both processes are gone")


def test_a_requeue_of_one_member_starts_all_again(pair: Callable[..., Cluster]) -> None:
    cluster = pair()
    job_id = cluster.submit("python3", "stay.py", node_count=2)
    pids = [pid_of(cluster, 1, rank) for rank in (0, 1)]
    done = cluster.dray("requeue", f"{job_id}/1")
    assert done.code == 0, done
    cluster.wait_state(job_id, "succeeded")
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert [task["failures"] for task in tasks(cluster, job_id)] == [0, 0]


def test_a_gang_larger_than_the_cluster_says_so(pair: Callable[..., Cluster]) -> None:
    cluster = pair()
    job_id = cluster.submit("true", node_count=3)
    why = cluster.dray("why", job_id).out
    assert "cannot ever" in why
    assert "needs 3 workers" in why
    assert "2 of 2" in why
