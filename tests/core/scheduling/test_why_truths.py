"""What `why` says is true: the reason that matters first, amounts as they are, no fix that does not start the job."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.state.events import WorkerDrained
from dray.core.scheduling.explain.explain import explain, look_ahead
from dray.core.scheduling.explain.fixes import seek_change
from dray.core.scheduling.explain.reason import Change, Reason


def why(cluster: Cluster, job_id: str = "job") -> Reason:
    reason = explain(cluster.state, cluster.job(job_id))
    look_ahead(cluster.state, cluster.job(job_id), reason)
    return reason


def change(cluster: Cluster, job_id: str = "job") -> Change | None:
    return ([None, *seek_change(cluster.state, job_id)])[-1]


def fill(cluster: Cluster, job_id: str, **spec: Any) -> None:
    cluster.submit(job_id, **spec)
    for index in range(cluster.job(job_id).total):
        cluster.run(cluster.current(job_id, index))


def test_what_keeps_it_back_comes_before_who_could_never_do(cluster: Cluster) -> None:
    for name in ("c1", "c2", "c3"):
        cluster.join(name, credit=4)
    cluster.join("g1", credit=4, gpus=1)
    fill(cluster, "busy", gpu_count=1)
    cluster.submit(gpu_count=1)
    assert [(no.kind, no.ever) for no in why(cluster).blockers] == [("gpu", False), ("gpu", True)]


def test_workers_that_are_not_there_come_last(cluster: Cluster) -> None:
    for name in ("a1", "a2", "a3"):
        cluster.join(name, credit=4, gpus=1, beats=False)
        cluster.break_socket(name)
    cluster.join("b1", credit=4, gpus=1)
    cluster.join("c1", credit=4)
    fill(cluster, "busy", gpu_count=1)
    cluster.submit(gpu_count=1)
    reason = why(cluster)
    assert (reason.blockers[0].kind, reason.blockers[-1].kind) == ("gpu", "offline")
    assert [name for name, _ in reason.workers] == ["b1", "c1", "a1", "a2", "a3"]
    assert reason.summary.startswith("cannot start now: each task asks for 1 GPU")


def test_workers_that_are_not_there_come_first_where_no_other_could(cluster: Cluster) -> None:
    cluster.join("c1", credit=4)
    cluster.join("g1", credit=4, gpus=1)
    cluster.break_socket("g1")
    cluster.submit(gpu_count=1)
    assert why(cluster).blockers[0].kind == "offline"


def test_shares_of_cards_are_told_as_shares(cluster: Cluster) -> None:
    cluster.join("g1", credit=8, gpus=2)
    fill(cluster, "one", gpu_count=1, gpu_milli=600)
    fill(cluster, "other", gpu_count=1, gpu_milli=500)
    cluster.submit(gpu_count=1, gpu_milli=700)
    reason = why(cluster)
    assert "each task asks for 0.7 of a GPU, the largest worker has 0.5 free of one card" in reason.summary
    found = change(cluster)
    assert found is not None
    assert (found.flag, found.value, found.assign) == ("--gpus", "0.5", "gpus=0.5")


def test_service_slots_are_named_and_so_is_their_flag(cluster: Cluster) -> None:
    cluster.join("w1", credit=4)
    cluster.submit(type="service")
    reason = why(cluster)
    assert "no free service slot" in reason.summary
    assert reason.fix == "start a worker with service slots: dray worker start --service-slots N"


def test_what_is_given_out_and_not_accepted_is_told(cluster: Cluster) -> None:
    cluster.join("w1", credit=4)
    cluster.submit()
    cluster.advance(5)
    words = why(cluster).summary
    assert words.startswith("given to w1 5.0 s ago, which has not accepted it yet")
    assert "goes elsewhere in 25 s at the latest" in words
    cluster.run(cluster.current())
    assert why(cluster).summary == "nothing waits: the job is running"


def test_a_drained_worker_that_alone_could_do_is_to_be_resumed(cluster: Cluster) -> None:
    cluster.join("c1", credit=4)
    cluster.join("g1", credit=4, gpus=1)
    cluster.turn(WorkerDrained("g1", True, "ann", "driver update"))
    cluster.submit(gpu_count=1)
    reason = why(cluster)
    assert reason.summary == "cannot start now: draining: driver update (1 worker)"
    assert reason.fix == "give it work again: dray worker resume g1"
    cluster.turn(WorkerDrained("g1", False, "ann"))
    assert cluster.current()


def test_a_drained_worker_that_is_full_as_well_is_no_fix(cluster: Cluster) -> None:
    cluster.join("g1", credit=4, gpus=1)
    fill(cluster, "busy", gpu_count=1)
    cluster.turn(WorkerDrained("g1", True))
    cluster.submit(gpu_count=1)
    assert why(cluster).fix == ""


PRIORITY = {"queues": {"default": {"order": "priority"}}}


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"min_run_s": 600}, "may run for 10 min more first (min_run_s is 10 min)"),
        ({"min_run_s": 0, "limits": {"cluster": 0}}, "is spared: within 60 min 0 were in all, 0 is the most"),
        ({"min_run_s": 0, "wait_s": 60}, "once it has waited 60 s (wait_s), in 60 s"),
        (
            {"min_run_s": 0, "strategy": "pressure", "pressure_share": 0.9},
            "others are stopped only while 90% of the GPUs are held, 50% are",
        ),
    ],
)
def test_a_preemption_that_is_withheld_says_by_what(
    cluster: Cluster, terms: dict[str, object], words: str
) -> None:
    cluster.join("g1", credit=8, gpus=4)
    cluster.govern(**PRIORITY, preemption=terms)
    for number in range(2):
        fill(cluster, f"low{number}", gpu_count=1, priority=1)
    cluster.submit("high", gpu_count=3, priority=5)
    first = why(cluster, "high").blockers[0]
    assert (first.kind, words in first.message) == ("withheld", True), first.message


def test_nothing_is_withheld_from_whom_has_no_right_to_it(cluster: Cluster) -> None:
    cluster.join("g1", credit=8, gpus=1)
    cluster.govern(**PRIORITY, preemption={"min_run_s": 600})
    fill(cluster, "low", gpu_count=1, priority=5)
    cluster.submit("peer", gpu_count=1, priority=5)
    assert "withheld" not in [no.kind for no in why(cluster, "peer").blockers]


def test_two_steps_are_told_where_two_are_needed(cluster: Cluster) -> None:
    cluster.join("g1", credit=8, gpus=2)
    cluster.submit("two", gpu_count=8, require=["zone=x"])
    assert why(cluster, "two").fix == (
        "ask for 2 GPUs or fewer per task, or start a worker with 8, and then drop zone=x, "
        "or label a worker so (dray worker label)"
    )
    assert "requires zone=x, there is no label zone" in [no.message for no in why(cluster, "two").blockers][1]
    cluster.submit("held", gpu_count=8, hold=True)
    cluster.hold("held")
    assert why(cluster, "held").fix.startswith("release it: dray release held, and then ask for 2 GPUs")


def test_a_fix_that_leads_to_a_wait_says_so(cluster: Cluster) -> None:
    cluster.join("g1", credit=8, gpus=2)
    fill(cluster, "busy", gpu_count=2)
    cluster.submit("wide", gpu_count=8)
    assert why(cluster, "wide").fix.endswith("or start a worker with 8, and then it waits for room")
    cluster.submit("held", gpu_count=1)
    cluster.hold("held")
    assert why(cluster, "held").fix == "release it: dray release held, and then it waits for room"


def test_no_priority_is_advised_where_a_quota_holds_it_back(cluster: Cluster) -> None:
    cluster.join("g1", credit=8, gpus=2)
    cluster.govern(**PRIORITY, preemption={"min_run_s": 0}, quotas=[{"user": "ann", "gpus": 1}])
    fill(cluster, "mine", gpu_count=1, priority=1)
    fill(cluster, "theirs", user="bob", gpu_count=1, priority=1)
    cluster.submit("next", gpu_count=1, priority=0)
    assert change(cluster, "next") is None
