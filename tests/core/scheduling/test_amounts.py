"""Quotas on cores, memory and tasks at once, for one, for each and for everybody together; and what people may ask."""

from __future__ import annotations

import pytest
from tests.core.harness import Cluster, assigned

from dray.core.model.policies.check import check_policy
from dray.core.scheduling.explain.explain import explain
from dray.errors import InvalidPolicy

GIB = 1 << 30


def running(cluster: Cluster) -> int:
    return len(cluster.held("w1"))


def test_cores_at_once_are_bounded_and_come_free_again(cluster: Cluster) -> None:
    cluster.govern(quotas=[{"user": "ann", "cpus": 3}])
    cluster.join("w1", credit=8)
    cluster.submit("a", cpu_milli=1000, array={"first": 0, "last": 5})
    assert running(cluster) == 3
    cluster.submit("b", user="bob", cpu_milli=1000)
    assert running(cluster) == 4
    words = explain(cluster.state, cluster.job("a")).summary
    assert words == "user ann holds 3 of 3 cores, and it asks for 1"
    assert len(assigned(cluster.end(cluster.current("a", 0)))) == 1


def test_memory_at_once_is_bounded(cluster: Cluster) -> None:
    cluster.govern(quotas=[{"queue": "*", "memory": "4G"}])
    cluster.join("w1", credit=8)
    cluster.submit("a", memory_bytes=3 * GIB)
    cluster.submit("b", memory_bytes=2 * GIB)
    cluster.submit("c", memory_bytes=GIB)
    cluster.submit("none")
    assert [cluster.job(name).waiting for name in ("a", "b", "c", "none")] == [0, 1, 0, 0]
    words = explain(cluster.state, cluster.job("b")).summary
    assert words == "queue default holds 4G of 4G memory, and it asks for 2G"


def test_tasks_of_the_whole_cluster_are_bounded(cluster: Cluster) -> None:
    cluster.govern(quotas=[{"cluster": "all", "tasks": 2}])
    cluster.join("w1", credit=8)
    for user in ("ann", "bob", "cid"):
        cluster.submit(user, user=user)
    assert running(cluster) == 2
    words = explain(cluster.state, cluster.job("cid")).summary
    assert words == "the whole cluster holds 2 of 2 tasks, and it asks for 1"


def test_a_gang_waits_until_all_of_it_is_within_the_bound(cluster: Cluster) -> None:
    cluster.govern(quotas=[{"cluster": "all", "tasks": 2}])
    cluster.join("w1", credit=8)
    cluster.join("w2", credit=8)
    cluster.submit("one")
    cluster.submit("pair", node_count=2)
    assert cluster.job("pair").waiting
    cluster.run(cluster.current("one"))
    cluster.end(cluster.current("one"))
    assert not cluster.job("pair").waiting


def test_what_can_never_be_within_its_bound_is_told_so(cluster: Cluster) -> None:
    cluster.govern(quotas=[{"user": "*", "cpus": 2}])
    cluster.join("w1", credit=8)
    cluster.submit(cpu_milli=4000)
    reason = explain(cluster.state, cluster.job())
    assert (reason.blockers[0].kind, reason.blockers[0].ever) == ("quota", True)
    assert reason.fix == "ask for no more than its quota has"


@pytest.mark.parametrize(
    ("quota", "words"),
    [
        ({"user": "ann"}, "limits nothing: give at least one of gpus, cpus"),
        ({"cluster": "some", "tasks": 1}, "must be one of all"),
        ({"user": "ann", "memory": "much"}, "is not a size"),
        (
            {"user": "ann", "queue": "x", "jobs": 1},
            "must name exactly one of user, queue, plugin, template, cluster",
        ),
    ],
)
def test_a_quota_that_makes_no_sense_is_refused(quota: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidPolicy, match=words):
        check_policy({"quotas": [quota]})
