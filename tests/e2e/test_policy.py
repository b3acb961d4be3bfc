"""A site's policy from the command line to the hub and back, over restarts, with real jobs in its queues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.e2e.cluster import Cluster

SHARES = """\
queues:
  prod: {order: priority, weight: 3}
  research:
pacing:
  submits:
    - {user: "*", per_minute: 600, burst: 2}
"""


def write(cluster: Cluster, text: str, name: str = "p.yaml") -> Path:
    path = cluster.folder / name
    path.write_text(text)
    return path


def origin_of(cluster: Cluster, name: str) -> tuple[object, str]:
    values = cluster.dray("config", "show", "-o", "json").json["policy"]["values"]
    (found,) = [item for item in values if item["name"] == name]
    return found["value"], found["origin"]


def test_apply_restart_and_the_file_wins(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    cluster.start_agent("w1")
    file = write(cluster, SHARES)

    tried = cluster.dray("config", "apply", "--dry-run", str(file))
    assert tried.code == 0, tried
    assert "queues.prod.weight" in tried.out
    assert origin_of(cluster, "queues") == ({}, "default")

    assert cluster.dray("config", "apply", str(file)).code == 0
    value, origin = origin_of(cluster, "queues.prod.weight")
    assert value == 3
    assert origin.startswith("applied by ")
    cluster.kill_hub()
    cluster.start_hub()
    assert origin_of(cluster, "queues.prod.weight") == (value, origin)

    # A real job goes through a listed queue; one for a queue that is not listed is refused.
    ran = cluster.dray("run", "--queue", "prod", "--", "echo", "through")
    assert (ran.code, ran.out) == (0, "through\n")
    refused = cluster.dray("run", "--queue", "prd", "--", "echo", "no")
    assert refused.code != 0
    assert "did you mean 'prod'?; this hub has prod, research, default" in refused.err

    # What waits or runs in a queue keeps it there.
    job = cluster.submit("sleep", "60", queue="research")
    cluster.wait_running(job)
    smaller = write(cluster, "queues: {prod: }\n", "smaller.yaml")
    kept = cluster.dray("config", "apply", str(smaller))
    assert kept.code == 1
    assert f"0 tasks wait and 1 run in it ({job})" in kept.err
    assert origin_of(cluster, "queues.research.weight")[0] == 1

    # The home's own file counts once it is there, and again when it has changed.
    write(cluster, SHARES.replace("3", "5"), "h/policy.yaml")
    assert cluster.stop_hub() == 0
    cluster.start_hub()
    assert origin_of(cluster, "queues.prod.weight") == (5, "policy.yaml")
    assert cluster.job(job)["state"] == "running"
    cluster.wait_worker("w1", ("ready", "busy"))
    cluster.dray("cancel", job)
    cluster.wait_state(job, "killed")
    assert cluster.dray("config", "apply", str(smaller)).code == 0
    assert cluster.stop_hub() == 0
    cluster.start_hub()
    assert list(cluster.call("GET", "/policy").json["policy"]["queues"]) == ["prod"]
    cluster.check()


def test_a_bad_file_stops_the_start_and_harms_nothing(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    job = cluster.submit("true", queue="gold")
    assert cluster.stop_hub() == 0
    path = write(cluster, "queues:\n  gold: {wieght: 2}\nquotas:\n  - gpus: 1\n", "h/policy.yaml")
    refused = cluster.dray("hub", "--home", str(cluster.home), "--port", "0")
    assert refused.code == 1
    assert f"{path}:2:10: queues.gold.wieght: is no key of a queue; did you mean 'weight'?" in refused.err
    assert f"{path}:4:5: quotas[0]: must name exactly one" in refused.err
    path.write_text("queues: {silver: }\n")
    refused = cluster.dray("hub", "--home", str(cluster.home), "--port", "0")
    assert refused.code == 1
    assert f"queues.gold: is not listed, but 1 tasks wait and 0 run in it ({job})" in refused.err
    path.write_text("queues: {gold: }\n")
    cluster.start_hub()
    assert cluster.job(job)["state"] == "pending"


def test_a_loop_of_submits_is_slowed_down(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    file = write(cluster, "pacing:\n  submits:\n    - {user: '*', per_minute: 300, burst: 1}\n")
    assert cluster.dray("config", "apply", str(file)).code == 0
    assert cluster.call("POST", "/jobs:batch", [{"command": ["true"]}] * 600).status == 201
    assert "in debt" in cluster.dray("pace").out
    refused = cluster.call("POST", "/jobs", {"command": ["true"]})
    assert refused.status == 429
    assert 60 < int(refused.headers["retry-after"]) <= 120
    hasty = cluster.dray("submit", "--", "true", env={"DRAY_CLIENT_AWAY_S": "1"})
    assert hasty.code == 1
    assert "may submit 300 jobs a minute (burst 1)" in hasty.err
    # A faster pace lets the debt flow off at once.
    file.write_text("pacing:\n  submits:\n    - {user: '*', per_minute: 6000000, burst: 1}\n")
    assert cluster.dray("config", "apply", str(file)).code == 0
    assert cluster.dray("submit", "--", "true").code == 0
