"""Workloads in the core: what is counted of them, their switch, width and purse, how they end, and a restart."""

from __future__ import annotations

import pytest
from tests.core.harness import AGENT, assigned, cancels, only

from dray.core.lifecycle import recovery
from dray.core.lifecycle.invariants import problems
from dray.core.lifecycle.state.effects import Note
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.state.workload_events import (
    WorkloadChanged,
    WorkloadDropped,
    WorkloadMade,
    WorkloadSwitched,
)
from dray.core.model.records.ledger import pack_record
from dray.core.model.workloads.check import check_terms
from dray.core.scheduling.explain.explain import explain
from dray.errors import InvalidSpec


def make(cluster, start=True, name="sweep", **terms):
    return cluster.turn(WorkloadMade(name, "ann", check_terms(terms), start))


def switch(cluster, verb, name="sweep", **more):
    return cluster.turn(WorkloadSwitched(name, verb, "bob", **more))


def change(cluster, name="sweep", **terms):
    return cluster.turn(WorkloadChanged(name, check_terms(terms), "ann"))


def record_of(cluster, name="sweep"):
    return cluster.state.workloads[name].record


def add(cluster, job_id="job", tasks=1, **spec):
    array = {"array": {"first": 0, "last": tasks - 1}} if tasks > 1 else {}
    return cluster.submit(job_id, workload="sweep", cpu_milli=1000, **array, **spec)


def counts(cluster):
    record = record_of(cluster)
    return record.total, record.running, record.succeeded, record.failed, record.killed


def notes(effects):
    return [effect.type for effect in only(effects, Note) if effect.type.startswith("workload_")]


def test_a_draft_starts_nothing_and_a_pause_stops_starts_at_once_but_not_what_runs(cluster):
    cluster.join("w1", credit=8, cpus=2)
    make(cluster, start=False)
    assert not assigned(add(cluster, tasks=4))
    assert cluster.blockers() == [("workload", "started", "a draft")]
    assert record_of(cluster).state == "draft"
    assert len(assigned(switch(cluster, "start"))) == 2
    cluster.accept_all("w1")
    assert counts(cluster) == (4, 2, 0, 0, 0)
    switch(cluster, "pause")
    assert record_of(cluster).state == "paused"
    assert not assigned(cluster.end(cluster.current("job", 0)))
    assert cluster.job().running == 1
    assert "paused by bob: dray workload start sweep" in cluster.summary()
    # Whoever shares the line is not held back with it.
    assert assigned(cluster.submit("other", cpu_milli=1000))
    assert switch(cluster, "start")
    cluster.run(cluster.held("w1")[1])
    cluster.end(cluster.held("w1")[1])
    assert cluster.current("job", 2)


def test_a_pause_may_stop_what_runs_and_a_start_takes_it_up_again(cluster):
    cluster.join("w1", credit=8)
    make(cluster)
    add(cluster, tasks=2)
    add(cluster, "once", at_most_once=True)
    cluster.accept_all("w1")
    stopped = cancels(switch(cluster, "pause", stop=True))
    assert [reason for _, reason in stopped] == ["requeued", "requeued"]
    for uid, _ in stopped:
        cluster.end(uid, "killed")
    assert (cluster.job().waiting, cluster.job("once").running) == (2, 1)
    assert not cluster.current("job", 0)
    cluster.poll("w1", 8)
    assert len(assigned(switch(cluster, "start"))) == 2


def test_jobs_that_share_a_line_get_one_of_their_own_once_it_is_bounded(cluster):
    cluster.join("w1", credit=8, cpus=3)
    make(cluster)
    add(cluster, tasks=2)
    cluster.submit("other", cpu_milli=1000)
    cluster.submit("later", cpu_milli=1000)
    assert cluster.job("other").party == cluster.job().party
    cluster.accept_all("w1")
    change(cluster, width=1)
    assert cluster.job("other").party != cluster.job().party
    add(cluster, "more", tasks=3)
    assert cluster.state.parties.all[cluster.job().party].live == 2
    cluster.end(cluster.current("job", 0))
    assert cluster.current("later")
    assert not cluster.current("more", 0)
    assert cluster.blockers("more")[0] == ("workload", "fewer than 1", "1")
    cluster.end(cluster.current("job", 1))
    assert cluster.current("more", 0)
    assert not cluster.current("more", 1)
    change(cluster, width=3)
    cluster.run(cluster.current("later"))
    cluster.end(cluster.current("later"))
    assert cluster.current("more", 1)


def test_a_gang_waits_behind_the_width_of_its_workload_whole(cluster):
    make(cluster, width=2)
    for worker in ("w1", "w2", "w3"):
        cluster.join(worker, credit=4)
    assert not assigned(cluster.submit("gang", workload="sweep", node_count=3, cpu_milli=1000))
    assert explain_ever(cluster, "gang")
    assert len(assigned(change(cluster, width=3))) == 3
    # Paused while it forms: nobody begins alone, and the room is given back.
    switch(cluster, "pause", stop=True)
    for uid in [*cluster.held("w1"), *cluster.held("w2"), *cluster.held("w3")]:
        cluster.end(uid, "killed")
    assert not any(cluster.held(worker) for worker in ("w1", "w2", "w3"))
    for worker in ("w1", "w2", "w3"):
        cluster.poll(worker, 4)
    assert len(assigned(switch(cluster, "start"))) == 3


def explain_ever(cluster, job_id):
    return any(blocker.ever for blocker in explain(cluster.state, cluster.job(job_id)).blockers)


@pytest.mark.parametrize("when", ["hold", "stop", "tell"])
def test_a_purse_that_empties_in_the_middle_of_an_array(cluster, when):
    cluster.join("w1", credit=8, gpus=1, vram_gb=80)
    make(cluster, budget={"gpu_hours": 2, "when_spent": when})
    add(cluster, tasks=3, gpu_count=1)
    cluster.accept_all("w1")
    cluster.advance(3600)
    cluster.end(cluster.held("w1")[0])
    assert len(cluster.held("w1")) == 1
    cluster.accept_all("w1")
    cluster.beating["w1"] = None
    effects = cluster.advance(3700)
    assert notes(effects) == ["workload_spent"]
    assert bool(cancels(effects)) == (when == "stop")
    uid = cluster.held("w1")[0]
    cluster.end(uid, "killed" if when == "stop" else "succeeded")
    cluster.poll("w1", 2)
    assert bool(cluster.held("w1")) == (when == "tell")
    if when != "tell":
        assert cluster.blockers()[0][0] == "workload"
        assert "budget" in cluster.summary()
        assert record_of(cluster).spent
        change(cluster, budget={"gpu_hours": 3, "when_spent": when})
        cluster.poll("w1", 2)
        assert cluster.held("w1")
        assert not record_of(cluster).spent


def places(cluster):
    """How many tasks each worker holds."""
    return {worker: len(cluster.held(worker)) for worker in sorted(cluster.state.workers)}


@pytest.mark.parametrize(
    ("lies", "expected"),
    [
        ({"mode": "pack"}, [0, 0, 0, 6]),
        ({"mode": "spread"}, [1, 1, 2, 2]),
        ({"mode": "spread", "by": "provider"}, [3, 3]),
        ({"mode": "shares", "by": "provider", "shares": {"lab": 2, "cloud": 1}}, [2, 4]),
        ({"mode": "capacity", "by": "provider"}, [2, 4]),
    ],
)
def test_tasks_lie_as_their_workload_says(cluster, lies, expected):
    for number, provider in enumerate(("lab", "lab", "lab", "cloud")):
        cpus = 16 if lies["mode"] != "capacity" or provider == "cloud" else 32 / 3
        cluster.join(f"w{number}", credit=8, cpus=cpus, labels={"provider": provider})
    make(cluster, distribution=lies)
    for number in range(6):
        add(cluster, f"j{number}")
    held = places(cluster)
    if lies.get("by"):
        held = {"lab": held["w0"] + held["w1"] + held["w2"], "cloud": held["w3"]}
    assert sorted(held.values()) == expected
    if lies["mode"] in ("shares", "capacity"):
        assert held["lab"] == 4


def test_what_must_lie_apart_waits_and_takes_no_room_from_others(cluster):
    cluster.join("w1", credit=8, labels={"zone": "a"})
    cluster.join("w2", credit=1, labels={"zone": "b"})
    make(cluster, distribution={"mode": "spread", "by": "zone", "required": True})
    add(cluster, tasks=4)
    assert places(cluster) == {"w1": 2, "w2": 1}
    assert cluster.blockers()[0][0] == "distribution"
    assert "--max-skew" in cluster.summary()
    assert assigned(cluster.submit("other", cpu_milli=1000))
    cluster.poll("w2", 4)
    cluster.advance(6)
    assert places(cluster) == {"w1": 3, "w2": 2}


def test_members_of_a_gang_lie_apart_from_each_other_too(cluster):
    """The best places are all in one zone: a member that was too many there at first goes there once another zone has
    one.
    """
    for number, zone in enumerate(("a", "a", "a", "b")):
        cluster.join(f"w{number}", credit=8, cpus=2 if zone == "a" else 64, labels={"zone": zone})
    make(cluster, distribution={"mode": "spread", "by": "zone", "required": True})
    add(cluster, "pair", node_count=2)
    assert places(cluster)["w3"] == 1
    add(cluster, "three", node_count=3)
    held = places(cluster)
    assert (sum(held.values()), held["w3"]) == (5, 2)
    add(cluster, "four", node_count=4)
    assert sum(places(cluster).values()) == 5


def test_it_ends_when_it_is_sealed_and_its_last_task_has_ended(cluster):
    cluster.join("w1", credit=8)
    make(cluster, failures=0.4)
    add(cluster, tasks=3)
    assert notes(switch(cluster, "seal")) == ["workload_sealed"]
    assert record_of(cluster).state == "completing"
    cluster.accept_all("w1")
    said = ["succeeded", "failed", "succeeded"]
    effects = [cluster.end(uid, word) for uid, word in zip(cluster.held("w1"), said, strict=True)]
    assert [notes(each) for each in effects] == [[], [], ["workload_ended"]]
    assert record_of(cluster).state == "succeeded"
    assert counts(cluster) == (3, 0, 2, 1, 0)
    change(cluster, failures=0.1)
    assert record_of(cluster).state == "failed"
    switch(cluster, "archive")
    assert record_of(cluster).state == "archived"
    cluster.turn(WorkloadDropped("sweep"))
    assert not cluster.state.workloads


def test_a_cancel_ends_all_of_it(cluster):
    cluster.join("w1", credit=8, cpus=1)
    make(cluster)
    add(cluster, tasks=3)
    cluster.map("calls", 2, workload="sweep", open=True, cpu_milli=1000)
    cluster.accept_all("w1")
    assert "workload_ended" in notes(switch(cluster, "cancel", grace_s=1))
    assert record_of(cluster).state == "cancelled"
    assert counts(cluster)[4] == 5
    for uid in cluster.held("w1"):
        cluster.end(uid, "killed")
    assert not problems(cluster.state)


def test_calls_go_into_no_lane_while_their_workload_is_paused_and_none_come_once_it_is_sealed(cluster):
    cluster.join("w1", credit=8, features=(*AGENT, "calls"))
    make(cluster)
    cluster.map("calls", 400, workload="sweep", open=True)
    (lane, *_) = cluster.lanes("calls")
    cluster.accept(lane.uid)
    cluster.returns(lane.uid, list(cluster.calls(lane.uid)), wall_us=100)
    assert record_of(cluster).succeeded
    switch(cluster, "pause")
    given = set(cluster.calls(lane.uid))
    cluster.returns(lane.uid, list(given), wall_us=100)
    assert not cluster.calls(lane.uid)
    before = cluster.job("calls").waiting
    cluster.advance(1)
    assert cluster.job("calls").waiting == before
    switch(cluster, "seal")
    assert not cluster.job("calls").open
    switch(cluster, "start")
    assert cluster.job("calls").waiting < before


def test_a_job_goes_from_one_workload_to_another_with_what_it_holds(cluster):
    cluster.join("w1", credit=8, gpus=2, vram_gb=80)
    make(cluster)
    make(cluster, name="other", width=1, budget={"gpu_hours": 100})
    add(cluster, tasks=2, gpu_count=1)
    cluster.accept_all("w1")
    cluster.advance(60)
    cluster.edit(workload="other")
    assert (record_of(cluster).jobs, record_of(cluster).used_ms) == (0, 2 * 60_000 * 1000)
    assert record_of(cluster, "other").running == 2
    assert cluster.state.workloads["other"].gpu_milli == 2000
    cluster.edit(workload="")
    assert record_of(cluster, "other").jobs == 0


def test_a_restart_finds_what_was_counted_and_what_is_shut(cluster):
    cluster.join("w1", credit=8, gpus=1, vram_gb=80)
    make(cluster, budget={"gpu_hours": 1}, width=4)
    add(cluster, tasks=3, gpu_count=1)
    cluster.accept_all("w1")
    cluster.advance(600)
    switch(cluster, "pause")
    again = State(cluster.state.rules)
    again.now_ms = cluster.now_ms
    recovery.read_ledger(again, [(*key, pack_record(one)) for key, one in cluster.state.ledger.items()])
    known = cluster.state
    rows = tuple(list(each.values()) for each in (known.jobs, known.tasks, known.attempts, known.workers))
    recovery.load(again, known.counters, rows)  # type: ignore[arg-type]  # four of them, in this order
    recovery.wake_up(again, cluster.clock)
    assert not problems(again)
    tally, before = again.workloads["sweep"], cluster.state.workloads["sweep"]
    assert tally.used_ms(cluster.now_ms) == before.used_ms(cluster.now_ms) == 600_000 * 1000
    assert tally.is_shut(cluster.now_ms)
    assert any(kind == "purse" for _, kind, _ in again.timers)


def test_terms_are_refused_with_every_problem_at_once():
    with pytest.raises(InvalidSpec) as refused:
        check_terms(
            {
                "width": -1,
                "failures": 7,
                "deadline": "friday",
                "budget": {"money": -5, "when_spent": "beg"},
                "distribution": {"mode": "shares"},
                "defaults": {"gpu_count": -2},
            }
        )
    places = {problem.where for problem in refused.value.problems}
    assert places >= {"width", "failures", "deadline", "budget.money", "budget.when_spent", "distribution.by"}
    assert "defaults.gpu_count" in places
    with pytest.raises(InvalidSpec, match="did you mean 'width'"):
        check_terms({"widht": 3})
    with pytest.raises(InvalidSpec, match="expected `float`"):
        check_terms({"budget": {"money": "much"}})
