"""An agent whose token is revoked: it says so, does not hammer the hub, and its tasks go on."""

from __future__ import annotations

from collections.abc import Callable

from tests.e2e.cluster import Cluster, wait_for


def test_an_agent_whose_token_is_revoked_says_so_and_its_tasks_go_on(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    made = cluster.call("POST", "/tokens", {"scopes": ["worker"]}).json
    env = {"DRAY_WORKER_TOKEN": made["token"], "DRAY_WORKER_RECONNECT_MAX_S": "30"}
    agent = cluster.start_agent("w1", env=env)
    go, done = cluster.folder / "go", cluster.folder / "done"
    job = cluster.submit("sh", "-c", f"until test -e {go}; do sleep 0.05; done; touch {done}")
    cluster.wait_running(job)
    cluster.call("DELETE", f"/tokens/{made['id']}")
    wait_for(lambda: "ERROR dray.agent.link" in agent.text(), "the agent says so")
    assert f"token {made['id']} was revoked; this worker gets no work" in agent.text()
    cluster.wait_worker("w1", ("offline",))
    go.touch()
    wait_for(done.exists, "the task goes on to its end")
    assert agent.process is not None
    assert agent.process.poll() is None
    assert agent.text().count("ERROR") <= 2, "it asks again now and then, not in a row"
    assert cluster.job(job)["state"] == "running", "what it came to is not taken from a revoked worker"
    assert made["token"] not in agent.text() + cluster.hub_text()
