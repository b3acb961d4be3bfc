"""What follows a failure by its verdict: a larger card, another machine, or one of the tries for own code."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.holding import lessons
from dray.core.lifecycle.recovery import load, read_ledger
from dray.core.lifecycle.state.state import State
from dray.core.model.capability import Device
from dray.core.model.records.ledger import pack_record
from dray.core.model.records.records import JobState
from dray.core.model.specs.resources import asks_of_packed
from dray.core.model.units import GB

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
DISK = "OSError: [Errno 28] No space left on device"
LEARNS = {"oom": "bigger", "node": "elsewhere", "code": 0}


def join_cards(cluster: Cluster, worker: str, vram_gb: float, cards: int = 1, model: str = "A100") -> None:
    each = round(vram_gb * GB)
    devices = tuple(Device(index=index, model=model, vram_bytes=each) for index in range(cards))
    cluster.join(worker, credit=8, gpus=cards, gpu_type=model, vram_gb=vram_gb * cards, devices=devices)


def fail(cluster: Cluster, words: str = "", job_id: str = "job", index: int = 0) -> str:
    """Let the current attempt of a task fail with these last words; gives the worker that it ran on."""
    uid = cluster.current(job_id, index)
    assert uid, cluster.task(job_id, index)
    cluster.run(uid)
    worker = cluster.attempt(uid).worker
    cluster.end(uid, "failed", exit_class="code", last=words)
    return worker


def worker_of(cluster: Cluster, job_id: str = "job", index: int = 0) -> str:
    return cluster.attempt(cluster.current(job_id, index)).worker


@pytest.fixture
def sizes() -> Cluster:
    cluster = Cluster()
    for worker, vram_gb in (("small", 16), ("twin", 16.4), ("middle", 24), ("large", 80)):
        join_cards(cluster, worker, vram_gb)
    return cluster


def test_each_card_is_larger_than_the_last_and_costs_no_try(sizes: Cluster) -> None:
    sizes.submit(gpu_count=1, vram_per_gpu_bytes=10 * GB, retries=LEARNS, name="train")
    tried = [fail(sizes, OOM), fail(sizes, OOM), worker_of(sizes)]
    # A card of the same size but for some megabytes is no larger one.
    assert tried == ["small", "middle", "large"]
    job, task = sizes.job(), sizes.task()
    assert (task.failures, task.losses, task.outgrown) == (0, 0, 2)
    assert (job.outgrown_bytes, job.outgrown_by) == (24 * GB, "job")
    assert fail(sizes, OOM) == "large"
    task = sizes.task()
    assert (task.state, task.failures) == (JobState.FAILED, 1)
    assert "no worker known here that suits it has a larger card" in task.error
    assert "80G" in task.error


def test_own_code_is_charged_to_code_alone(sizes: Cluster) -> None:
    sizes.submit(gpu_count=1, vram_per_gpu_bytes=10 * GB, retries={**LEARNS, "code": 1})
    fail(sizes, OOM)
    fail(sizes, "ValueError: no")
    assert (sizes.task().state, sizes.task().failures) == (JobState.PENDING, 1)
    fail(sizes, "ValueError: no")
    assert sizes.task().state is JobState.FAILED


def test_without_the_rule_it_is_a_failure_as_any(sizes: Cluster) -> None:
    sizes.submit(gpu_count=1, vram_per_gpu_bytes=10 * GB, retries={"node": "elsewhere", "code": 0})
    fail(sizes, OOM)
    assert (sizes.task().state, sizes.task().failures, sizes.task().outgrown) == (JobState.FAILED, 1, 0)


def test_a_larger_card_of_another_kind_does_not_count() -> None:
    cluster = Cluster()
    join_cards(cluster, "small", 16, model="A16")
    join_cards(cluster, "large", 80, model="H100")
    cluster.submit(gpu_count=1, gpu_type="A16", retries=LEARNS)
    fail(cluster, OOM)
    assert cluster.task().state is JobState.FAILED
    assert not cluster.job().outgrown_bytes


def test_the_next_job_of_the_name_begins_where_the_last_one_came_to(sizes: Cluster) -> None:
    sizes.submit("first", gpu_count=1, vram_per_gpu_bytes=10 * GB, retries=LEARNS, name="train")
    fail(sizes, OOM, "first")
    sizes.submit("second", gpu_count=1, vram_per_gpu_bytes=10 * GB, retries=LEARNS, name="train")
    second = sizes.job("second")
    assert (second.outgrown_bytes, second.outgrown_by) == (16 * GB, "first")
    assert asks_of_packed(second.spec)[0].vram_each_bytes == 17 * GB
    assert asks_of_packed(second.original)[0].vram_each_bytes == 10 * GB
    others: dict[str, dict[str, Any]] = {
        "larger": {"name": "train", "vram_per_gpu_bytes": 60 * GB, "retries": LEARNS},
        "plain": {"name": "train", "retries": 2},
        "other": {"name": "evaluate", "retries": LEARNS},
        "stranger": {"name": "train", "retries": LEARNS, "user": "bob"},
    }
    for job_id, spec in others.items():
        sizes.submit(job_id, gpu_count=1, **spec)
        assert not sizes.job(job_id).outgrown_bytes, job_id
        assert not sizes.job(job_id).original, job_id


def test_what_was_learned_outlives_the_hub_and_a_replay_tells_the_same(sizes: Cluster) -> None:
    sizes.submit("first", gpu_count=1, vram_per_gpu_bytes=10 * GB, retries=LEARNS, name="train")
    fail(sizes, OOM, "first")
    sizes.submit("second", gpu_count=1, retries=LEARNS, name="train")
    again = State(sizes.state.rules)
    for clock, fact in sizes.journal:
        apply(again, fact, clock)
    assert again.jobs["second"].spec == sizes.job("second").spec
    fresh, state = State(sizes.state.rules), sizes.state
    read_ledger(fresh, [(kind, key, pack_record(record)) for (kind, key), record in state.ledger.items()])
    assert fresh.ledger[lessons.LESSON, "ann/train"] == state.ledger[lessons.LESSON, "ann/train"]
    load(
        fresh,
        state.counters,
        (state.jobs.values(), state.tasks.values(), state.attempts.values(), state.workers.values()),
    )
    live = [attempt for attempt in fresh.attempts.values() if attempt.phase.live]
    assert all(attempt.shape == fresh.jobs[attempt.job_id].shape for attempt in live)


def test_lessons_are_bounded(sizes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lessons, "MOST_LESSONS", 2)
    for name in ("a", "b", "c"):
        sizes.submit(name, gpu_count=1, vram_per_gpu_bytes=10 * GB, retries=LEARNS, name=name)
        fail(sizes, OOM, name)
        sizes.cancel(name)
        sizes.advance(1)
    assert [key for kind, key in sizes.state.ledger if kind == lessons.LESSON] == ["ann/b", "ann/c"]


def test_an_array_moves_on_whole_while_its_tasks_run(sizes: Cluster) -> None:
    spec: dict[str, Any] = {"gpu_count": 1, "vram_per_gpu_bytes": 10 * GB, "retries": LEARNS}
    sizes.submit(array={"last": 5}, **spec)
    ran = {worker_of(sizes, index=index): index for index in range(4)}
    assert set(ran) == {"small", "twin", "middle", "large"}
    fail(sizes, OOM, index=ran["small"])
    # As a restart would find it; the number of the shape before may be another's by then.
    assert {sizes.attempt(uid).shape for uid in sizes.state.live_of["job"]} == {sizes.job().shape}
    fail(sizes, OOM, index=ran["twin"])
    # One task has found out for all; what runs goes on, and what comes next gets one of the two that are larger.
    assert {sizes.attempt(uid).worker for uid in sizes.held("middle") + sizes.held("large")} == {
        "middle",
        "large",
    }
    assert not sizes.held("small")
    assert not sizes.held("twin")
    for _ in range(6):
        for worker in ("middle", "large"):
            for uid in sizes.held(worker):
                sizes.run(uid)
                sizes.end(uid)
    assert sizes.job().state is JobState.SUCCEEDED


def test_a_gang_moves_on_whole() -> None:
    cluster = Cluster()
    for worker, vram_gb in (("s1", 16), ("s2", 16), ("l1", 80), ("l2", 80)):
        join_cards(cluster, worker, vram_gb)
    cluster.submit(gpu_count=1, vram_per_gpu_bytes=10 * GB, node_count=2, retries=LEARNS)
    uids = [cluster.current(index=index) for index in range(2)]
    assert {cluster.attempt(uid).worker for uid in uids} == {"s1", "s2"}
    for uid in uids:
        cluster.accept(uid)
    for uid in uids:
        cluster.start(uid)
    cluster.end(uids[0], "failed", exit_class="code", last=OOM)
    cluster.end(uids[1], "killed")
    assert {worker_of(cluster, index=index) for index in range(2)} == {"l1", "l2"}
    assert [cluster.task(index=index).failures for index in range(2)] == [0, 0]


def test_a_person_s_edit_counts_from_there_on(sizes: Cluster) -> None:
    sizes.submit("first", gpu_count=1, vram_per_gpu_bytes=10 * GB, retries=LEARNS, name="train")
    fail(sizes, OOM, "first")
    sizes.submit("second", gpu_count=1, hold=True, retries=LEARNS, name="train")
    sizes.edit("second", vram_per_gpu_bytes=12 * GB)
    assert not sizes.job("second").outgrown_bytes
    assert asks_of_packed(sizes.job("second").spec)[0].vram_each_bytes == 12 * GB


def test_a_card_that_was_too_small_is_not_held_against_its_machine() -> None:
    sizes = Cluster()
    join_cards(sizes, "wide", 12, cards=4)
    names = [f"job-{number}" for number in range(4)]
    for name in names:
        sizes.submit(name, gpu_count=1, vram_per_gpu_bytes=10 * GB, retries=LEARNS)
    join_cards(sizes, "large", 80, cards=4)
    for name in names:
        # The same work goes well elsewhere, which would be enough to suspect the machine.
        assert fail(sizes, OOM, name) == "wide"
        uid = sizes.current(name)
        sizes.run(uid)
        sizes.end(uid)
    assert not sizes.state.workers["wide"].draining


# --- node: elsewhere --------------------------------------------------------------------------------------------------


def test_a_fault_of_the_machine_is_a_loss_and_the_next_attempt_goes_elsewhere() -> None:
    cluster = Cluster()
    cluster.join("w1", credit=8)
    cluster.join("w2", credit=8)
    cluster.submit(retries=LEARNS, losses=1)
    first = fail(cluster, DISK)
    assert worker_of(cluster) != first
    assert (cluster.task().failures, cluster.task().losses) == (0, 1)
    fail(cluster, DISK)
    assert cluster.task().state is JobState.WORKER_FAILED
    assert "a fault of its machine ended it 2 times, 1 allowed" in cluster.task().error


def test_where_there_is_no_other_machine_it_goes_back_to_the_same() -> None:
    cluster = Cluster()
    cluster.join("w1", credit=8)
    cluster.submit(retries=LEARNS)
    assert fail(cluster, DISK) == "w1"
    assert worker_of(cluster) == "w1"


def test_without_the_rule_it_may_stay_and_is_a_failure() -> None:
    cluster = Cluster()
    cluster.join("w1", credit=8)
    cluster.submit(retries=0)
    fail(cluster, DISK)
    assert cluster.task().state is JobState.FAILED


def test_tasks_of_an_array_avoid_the_machine_as_long_as_others_have_room() -> None:
    cluster = Cluster()
    cluster.join("w1", credit=8)
    cluster.submit(retries=LEARNS, cpu_milli=1000, array={"last": 1, "limit": 1})
    cluster.join("w2", credit=8)
    assert fail(cluster, DISK) == "w1"
    for _ in range(2):
        index = next(index for index in range(2) if cluster.current(index=index))
        assert worker_of(cluster, index=index) == "w2"
        uid = cluster.current(index=index)
        cluster.run(uid)
        cluster.end(uid)
    assert cluster.job().state is JobState.SUCCEEDED


def test_what_ended_under_the_old_ask_is_written_as_its_job_s_though_another_shape_has_its_number(
    sizes: Cluster,
) -> None:
    sizes.submit(gpu_count=1, vram_per_gpu_bytes=10 * GB, retries=LEARNS)
    uid, before = sizes.current(), sizes.job().shape
    fail(sizes, OOM)
    sizes.submit("other", cpu_milli=500)
    assert sizes.job("other").shape == before
    assert sizes.state.ask(sizes.attempt(uid)).gpus == 1
