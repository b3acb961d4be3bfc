"""Everything that may hold a job back is named with what is needed and what is there, and the way out really works."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.state.state import NEVER
from dray.core.scheduling.explain.explain import View, explain, headline, look_ahead
from dray.core.scheduling.explain.fixes import seek_change
from dray.core.scheduling.explain.reason import (
    Change,
    Reason,
    span,
    tell_class,
    tell_holder,
    tell_place,
    tell_start,
    tell_underway,
)

HOUR_S = 3600


def why(cluster: Cluster, job_id: str = "job") -> Reason:
    reason = explain(cluster.state, cluster.job(job_id))
    look_ahead(cluster.state, cluster.job(job_id), reason)
    assert headline(cluster.state, cluster.job(job_id), View(cluster.state)) == reason.summary
    return reason


def change(cluster: Cluster, job_id: str = "job") -> Change | None:
    return ([None, *seek_change(cluster.state, job_id)])[-1]


def messages(reason: Reason, kind: str) -> list[str]:
    return [blocker.message for blocker in reason.blockers if blocker.kind == kind]


def run_all(cluster: Cluster) -> None:
    for uid in [uid for uid, attempt in cluster.state.attempts.items() if attempt.phase == "assigned"]:
        cluster.run(uid)


# --- gates ------------------------------------------------------------------------------------------------------------


def test_a_quota_is_told_with_what_is_held_and_what_is_allowed(cluster: Cluster) -> None:
    cluster.govern(quotas=[{"user": "*", "gpus": 3}])
    cluster.join("w1", credit=9, gpus=8)
    cluster.submit("one", gpu_count=2)
    cluster.submit("two", gpu_count=2)
    reason = why(cluster, "two")
    assert reason.summary == "user ann holds 2 of 3 GPUs, and it asks for 2"
    assert [(b.need, b.have, b.ever) for b in reason.blockers] == [("2 GPUs", "2 of 3 held", False)]
    found = change(cluster, "two")
    assert found is not None
    assert (found.flag, found.value, found.assign) == ("--gpus", "1", "gpus=1")
    cluster.submit("huge", gpu_count=4)
    assert why(cluster, "huge").blockers[0].ever


def test_gpu_hours_over_the_hard_budget_say_when_the_next_period_begins(cluster: Cluster) -> None:
    cluster.govern(quotas=[{"user": "ann", "gpu_hours": {"hard": 1, "soft": 0.5, "per_s": 86400}}])
    cluster.join("w1", credit=9, gpus=8)
    cluster.submit("one", gpu_count=4)
    run_all(cluster)
    cluster.advance(10 * 60)
    cluster.submit("soft", gpu_count=9)
    assert messages(why(cluster, "soft"), "soft_budget") == [
        "user ann is over its soft budget (0.6667 of 0.5 GPU-hours): it goes behind all others"
    ]
    cluster.advance(10 * 60)
    cluster.submit("two", gpu_count=1)
    [blocker] = [b for b in why(cluster, "two").blockers if b.kind == "quota"]
    assert blocker.message.startswith("user ann has used 1.333 of 1 GPU-hours: the next period begins in ")
    assert 0 < blocker.in_ms <= 24 * HOUR_S * 1000


def test_a_pace_says_when_the_next_token_comes(cluster: Cluster) -> None:
    cluster.govern(pacing={"starts": [{"queue": "default", "per_minute": 2, "burst": 1}]})
    cluster.join("w1", credit=9)
    cluster.submit("one")
    cluster.submit("two")
    [blocker] = why(cluster, "two").blockers
    assert (blocker.kind, blocker.in_ms) == ("pace", 30_000)
    assert blocker.message == "queue default may have 2 starts a minute: the next token comes in 30 s"
    assert change(cluster, "two") is None


def test_a_cap_on_a_label_is_told_with_its_number(cluster: Cluster) -> None:
    cluster.govern(pacing={"running": [{"label": "site=api", "most": 1}]})
    cluster.join("w1", credit=9)
    cluster.submit("one", labels={"site": "api"})
    cluster.submit("two", labels={"site": "api"})
    assert why(cluster, "two").summary == "1 tasks labelled site=api run already, the cap is 1"


def test_everything_is_named_at_once(cluster: Cluster) -> None:
    cluster.govern(quotas=[{"user": "*", "gpus": 1}])
    cluster.join("w1", credit=9, gpus=8)
    cluster.submit("first", id="first", hold=True)
    cluster.submit("job", gpu_count=9, hold=True, array={"first": 0, "last": 3, "limit": 1})
    assert {blocker.kind for blocker in why(cluster).blockers} == {"held", "quota", "gpu"}
    assert why(cluster).fix == (
        "release it: dray release job, and then ask for 8 GPUs or fewer per task, or start a worker with 9, "
        "and then ask for no more than its quota has"
    )


# --- workers ----------------------------------------------------------------------------------------------------------


def test_workers_are_told_by_class_with_counts(cluster: Cluster) -> None:
    for number in range(3):
        cluster.join(f"a{number}", credit=9, cpus=64, gpus=8, gpu_type="A100")
    cluster.join("v", credit=9, cpus=32, gpus=4, gpu_type="V100")
    cluster.join("c", credit=9, cpus=16)
    cluster.submit("fill", gpu_count=5, gpu_type="A100", array={"first": 0, "last": 1})
    cluster.submit("rest", gpu_count=4, gpu_type="A100")
    cluster.submit(gpu_count=6, gpu_type="A100")
    told = [tell_class(group) for group in why(cluster).classes]
    assert told == [
        "3 workers nvidia a100 × 8, 64 cores: 4 free of 8 GPUs",
        "1 worker cpu, 16 cores: not a100; 0 GPUs",
        "1 worker nvidia v100 × 4, 32 cores: not a100; 4 GPUs",
    ]
    assert why(cluster).known == 5


def test_who_holds_what_is_missing_and_until_when(cluster: Cluster) -> None:
    cluster.join("w1", credit=9, gpus=2)
    cluster.join("w2", credit=9, gpus=2)
    cluster.submit("long", user="bob", gpu_count=2, max_runtime_s=2 * HOUR_S)
    cluster.submit("short", user="bob", gpu_count=2, max_runtime_s=HOUR_S)
    run_all(cluster)
    cluster.advance(60)
    cluster.submit(gpu_count=2)
    reason = why(cluster)
    assert [tell_holder(holder) for holder in reason.holders] == [
        "short (bob) holds 2 GPUs on w2, for at most 59 min more",
        "long (bob) holds 2 GPUs on w1, for at most 119 min more",
    ]
    assert reason.start is not None
    assert tell_start(reason.start) == (
        "by the time limits of what runs there is room on w2 in 59 min at the latest"
    )


def test_a_service_without_a_limit_is_held_for_good(cluster: Cluster) -> None:
    cluster.join("w1", credit=9, service=1, batch=0)
    cluster.submit("service", type="service")
    run_all(cluster)
    cluster.submit(type="service")
    reason = why(cluster)
    assert [(holder.what, holder.ends_in_ms) for holder in reason.holders] == [("a service slot", NEVER)]
    assert tell_holder(reason.holders[0]) == "service (ann) holds a service slot on w1, no time limit"
    assert reason.start is None


def test_alternatives_are_told_apart(cluster: Cluster) -> None:
    cluster.join("w1", credit=9, gpus=1, gpu_type="A100")
    cluster.submit("fill", gpu_count=1)
    cluster.submit(variants=[{"gpu_count": 4}, {"gpu_count": 1}])
    reason = why(cluster)
    assert reason.summary.startswith("cannot start now: each task asks for 1 GPU")
    assert [(b.kind, b.variant, b.ever) for b in reason.blockers] == [("gpu", 0, True), ("gpu", 1, False)]


# --- the queue --------------------------------------------------------------------------------------------------------


def test_the_place_in_the_queue_counts_jobs_and_tasks(cluster: Cluster) -> None:
    cluster.submit("array", array={"first": 0, "last": 9})
    cluster.submit("single", cpu_milli=3000)
    cluster.submit()
    place = why(cluster).place
    assert place is not None
    assert tell_place(place) == "2 jobs with 11 tasks before it in queue default (fifo)"
    first = why(cluster, "array").place
    assert first is not None
    assert tell_place(first) == "first in queue default (fifo)"


def test_priority_comes_before_age_where_the_queue_says_so(cluster: Cluster) -> None:
    cluster.govern(queues={"default": {"order": "priority"}})
    for number, priority in enumerate((1, 5, 9)):
        cluster.submit(f"p{priority}", priority=priority, cpu_milli=1000 + number)
    places = [why(cluster, f"p{priority}").place for priority in (1, 5, 9)]
    assert [place.jobs_ahead for place in places if place is not None] == [2, 1, 0]


def test_in_fair_share_only_ones_own_are_counted(cluster: Cluster) -> None:
    cluster.govern(queues={"default": {"order": "fair_share"}})
    cluster.submit("theirs", user="bob")
    cluster.submit("mine")
    cluster.submit()
    place = why(cluster).place
    assert place is not None
    assert tell_place(place) == (
        "1 job with 1 task before it in queue default (fair_share), taking turns with 1 other user"
    )


# --- reservations and preemption --------------------------------------------------------------------------------------


def test_a_reservation_is_told_to_its_owner_and_to_those_it_keeps_out(cluster: Cluster) -> None:
    cluster.govern(queues={"default": {"protect_after_s": 60}})
    cluster.join("w1", credit=9, gpus=4)
    cluster.submit("run", gpu_count=3, max_runtime_s=HOUR_S)
    run_all(cluster)
    cluster.submit("big", gpu_count=4)
    cluster.advance(120)
    own = why(cluster, "big")
    assert own.summary == "reserved on w1, starts in 58 min at the latest"
    cluster.submit("late", gpu_count=1, max_runtime_s=2 * HOUR_S)
    other = why(cluster, "late")
    assert messages(other, "reserved") == [
        "has room, but it is kept for a task that has waited longer (1 worker): that one starts in 58 min at the latest"
    ]
    assert [b.who for b in other.blockers if b.kind == "reserved"] == ["big"]
    found = change(cluster, "late")
    assert found is not None
    assert (found.flag, found.value) == ("--time", "58m")
    cluster.submit("passes", gpu_count=1, max_runtime_s=58 * 60)
    assert cluster.current("passes")


def test_a_higher_priority_is_offered_and_a_preemption_under_way_is_told(cluster: Cluster) -> None:
    cluster.govern(queues={"default": {"order": "priority"}}, preemption={"min_run_s": 0})
    cluster.join("w1", credit=9, gpus=1)
    cluster.submit("victim", user="bob", gpu_count=1, priority=3)
    run_all(cluster)
    cluster.submit(gpu_count=1, priority=1)
    found = change(cluster)
    assert found is not None
    assert (found.kind, found.value, found.victims) == ("priority", "4", 1)
    cluster.submit("above", gpu_count=1, priority=4)
    reason = why(cluster, "above")
    assert reason.underway is not None
    assert reason.summary == tell_underway(reason.underway)
    assert "1 of 1 task still stopping" in reason.summary


# --- the smallest change ----------------------------------------------------------------------------------------------

CHANGES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"gpu_count": 4}, {"gpu_count": 2}, "--gpus 2"),
    ({"gpu_count": 1, "gpu_type": "H100"}, {"gpu_count": 1}, "without --gpu-type h100"),
    ({"gpu_count": 1, "gpu_backend": "metal"}, {"gpu_count": 1, "gpu_backend": "nvidia"}, "--backend nvidia"),
    ({"gpu_count": 1, "vram_per_gpu_bytes": 100 * 10**9}, {"vram_per_gpu_bytes": 80 * 10**9}, "--vram 80G"),
    ({"gpu_count": 2, "min_vram_gb": 500}, {"gpu_count": 2, "min_vram_gb": 160}, "min_vram_gb 160"),
    ({"memory_bytes": 60 << 30}, {"memory_bytes": 59 << 30}, "--mem 59g"),
    ({"cpu_milli": 20_000}, {"cpu_milli": 12_000}, "--cpus 12"),
    ({"require": ["zone=b"]}, {}, "without --require zone=b"),
    ({"node_count": 3, "mixed_backends": True}, {"node_count": 2, "mixed_backends": True}, "--nodes 2"),
    ({"resources": {"licence": 5}}, {"resources": {"licence": 2}}, "resources licence=2"),
]


@pytest.mark.parametrize(("asked", "changed", "words"), CHANGES)
def test_the_change_is_the_smallest_and_starts_the_job(
    cluster: Cluster, asked: dict[str, Any], changed: dict[str, Any], words: str
) -> None:
    cluster.join(
        "w1",
        credit=9,
        cpus=12,
        memory_gb=64,
        gpus=4,
        vram_gb=320,
        labels={"zone": "a"},
        resources={"licence": 2},
    )
    cluster.join("w2", credit=9, cpus=4, memory_gb=8)
    cluster.submit("fill", gpu_count=2)
    cluster.submit(**asked)
    assert not cluster.current()
    found = change(cluster)
    assert found is not None
    assert found.message == f"would start now {words if words.startswith('without') else f'with {words}'}"
    cluster.submit("changed", **changed)
    assert cluster.current("changed")


def test_nothing_helps_a_job_that_is_held_or_at_its_own_cap(cluster: Cluster) -> None:
    cluster.join("w1", credit=9)
    cluster.submit("held", hold=True)
    cluster.submit("array", array={"first": 0, "last": 3, "limit": 1})
    assert change(cluster, "held") is None
    assert change(cluster, "array") is None
    assert why(cluster, "array").summary == "1 of its tasks run already, its own cap is 1"


@pytest.mark.parametrize(
    ("ms", "words"), [(0, "0 s"), (59_400, "59 s"), (90_000_000, "25 h"), (NEVER, "no time limit")]
)
def test_spans_are_told_as_everywhere(ms: int, words: str) -> None:
    assert span(ms) == words
