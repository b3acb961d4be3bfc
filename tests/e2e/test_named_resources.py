"""Named resources for real: an agent says what it has, and the hub gives no more of it away."""

from __future__ import annotations

from collections.abc import Callable

from tests.e2e.cluster import Cluster, wait_for


def submit(cluster: Cluster, seconds: float) -> str:
    spec = {"command": ["sleep", str(seconds)], "resources": {"license": 1}}
    answer = cluster.call("POST", "/jobs", spec)
    assert answer.status in (200, 201), answer.body
    return str(answer.json["id"])


def test_a_license_is_held_by_one_task_at_a_time(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    cluster.start_agent("w1", 4, "", "--resource", "license=1", "--resource", "disk=3")
    assert cluster.call("GET", "/workers/w1").json["resources"] == {"license": 1, "disk": 3}
    first = submit(cluster, 600)
    wait_for(lambda: cluster.call("GET", f"/jobs/{first}").json["state"] == "running", "the first one runs")
    second = submit(cluster, 0)
    why = cluster.call("GET", f"/jobs/{second}/why").json
    assert [blocker["kind"] for blocker in why["blockers"]] == ["resource"]
    assert "0 free of 1 license" in why["summary"]
    cluster.call("POST", f"/jobs/{first}/cancel", {})
    wait_for(
        lambda: cluster.call("GET", f"/jobs/{second}").json["state"] == "succeeded", "the second one ran"
    )
