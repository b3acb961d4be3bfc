"""What the policy lets people ask for: how high a priority, how many jobs; told where it is asked."""

from __future__ import annotations

from collections.abc import Callable

from tests.e2e.cluster import Cluster


def test_priorities_and_numbers_of_jobs_are_bounded(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    quotas = [{"user": "*", "priority": 5, "jobs": 3}, {"cluster": "all", "cpus": 64}]
    assert cluster.call("PUT", "/policy", {"quotas": quotas}).status == 200
    refused = cluster.call("POST", "/jobs", {"command": ["true"], "priority": 6})
    assert refused.status == 400
    assert "must be 5 or less for user" in refused.error
    by_tier = cluster.call("POST", "/jobs", {"command": ["true"], "job_tier": "training"})
    assert "got 20, which tier training gives by itself" in by_tier.error
    job = cluster.submit("true", priority=5)
    raised = cluster.call("PATCH", f"/jobs/{job}", {"priority": 9})
    assert (raised.status, "must be 5 or less" in raised.error) == (400, True)
    batch = cluster.call("POST", "/jobs:batch", [{"command": ["true"]}] * 3)
    assert batch.status == 409
    assert "has 1 of 3 jobs that wait or run" in batch.error
    cluster.submit("true")
    cluster.submit("true")
    said = cluster.dray("submit", "--", "true")
    assert (said.code != 0, "has 3 of 3 jobs" in said.err) == (True, True)
    cluster.call("POST", f"/jobs/{job}/cancel", {})
    cluster.submit("true")
    (mine, whole) = sorted(
        cluster.call("GET", "/quotas").json["quotas"], key=lambda one: one["kind"], reverse=True
    )
    assert (mine["jobs_limit"], mine["priority_limit"]) == (3, 5)
    assert (whole["kind"], whole["cpus_held"], whole["cpus_limit"]) == ("cluster", 0, 64)
    assert "0/64" in cluster.dray("quota").out
