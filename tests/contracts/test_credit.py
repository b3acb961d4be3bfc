"""Readiness is credit, an assignment is findable, a result counts once: the life of a task on a base-only worker."""

from __future__ import annotations

import pytest

DAY_NS = 24 * 3600 * 10**9
FOREVER_NS = 2**63 - 1


def test_no_credit_no_work(lab) -> None:
    worker = lab.worker()
    assert lab.offers(worker) is None


def test_unspent_credit_is_pushed_to_without_asking_again(lab) -> None:
    worker = lab.worker()
    assert worker.ready() == {"type": "no_work"}
    offer = lab.offers(worker)
    assert offer is not None
    assert lab.offers(worker) is None  # spent


def test_waiting_work_is_the_answer_itself(lab) -> None:
    worker = lab.worker()
    job_id = lab.submit()
    answer = worker.ready()
    assert answer["type"] == "job_assign"
    assert answer["payload"]["spec"]["id"] == job_id


def test_credit_is_set_and_never_added(lab) -> None:
    worker = lab.worker()
    for _ in range(3):
        assert worker.ready()["type"] == "no_work"
    assert lab.offers(worker) is not None
    assert lab.offers(worker) is None


def test_every_poll_gets_an_answer_however_fast_they_come(lab) -> None:
    worker = lab.worker()
    lab.submit()
    for _ in range(20):
        worker.send("ready_for_work", {"worker_id": worker.id, "slots": worker.slots, "reason": "polling"})
    answers = [worker.receive()["type"] for _ in range(20)]
    assert sorted(answers) == ["job_assign"] + ["no_work"] * 19
    assert worker.heartbeat() == []


def test_credits_can_be_asked_for_in_number(lab) -> None:
    worker = lab.worker()
    body = {"worker_id": worker.id, "slots": worker.slots, "reason": "polling", "credits": 3}
    worker.send("ready_for_work", body)
    worker.expect("no_work")
    assert [lab.offers(worker) is not None for _ in range(4)] == [True, True, True, False]


def test_a_new_session_starts_without_credit(lab) -> None:
    worker = lab.worker()
    worker.ready()
    worker.register()
    assert lab.offers(worker) is None


def test_pending_and_assigned_until_accepted_then_running_then_recorded(lab) -> None:
    worker = lab.worker()
    worker.ready()
    job_id = lab.offers(worker, name="walk")["spec"]["id"]
    job = lab.job(job_id)
    assert (job["state"], job["phase"]) == ("pending", "assigned")
    _, shown = lab.hub.ask("GET", f"/api/v1/workers/{worker.id}")
    assert [line["task_id"] for line in shown["jobs"]] == [job_id]
    worker.accept(job_id)
    job = lab.job(job_id)
    assert (job["state"], job["phase"]) == ("running", "accepted")
    assert job["started_at"] is not None
    worker.finish(job_id, "failed", 7, "it broke")
    job = lab.job(job_id)
    assert (job["state"], job["exit_code"], job["error"]) == ("failed", 7, "it broke")


@pytest.mark.parametrize(
    ("said", "code", "state"),
    [
        ("succeeded", 0, "succeeded"),
        ("completed", 0, "succeeded"),
        ("failed", 3, "failed"),
        ("killed", 137, "killed"),
    ],
)
def test_result_states(lab, said: str, code: int, state: str) -> None:
    worker = lab.worker()
    worker.ready()
    job_id = lab.offers(worker)["spec"]["id"]
    worker.accept(job_id)
    worker.finish(job_id, said, code)
    assert lab.job(job_id)["state"] == state
    assert lab.job(job_id)["exit_code"] == code


def test_a_preempted_task_is_queued_again_uncharged(lab) -> None:
    worker = lab.worker()
    worker.ready()
    job_id = lab.offers(worker)["spec"]["id"]
    worker.accept(job_id)
    worker.finish(job_id, "preempted", 143, "drain")
    job = lab.job(job_id)
    assert (job["state"], job["phase"], job["failures"], job["losses"]) == ("pending", "queued", 0, 0)
    again = worker.ready("finished")
    assert again["payload"]["spec"]["id"] == job_id
    assert again["payload"]["attempt"]["no"] == 2


def test_a_result_may_come_without_an_accept(lab) -> None:
    worker = lab.worker()
    worker.ready()
    job_id = lab.offers(worker)["spec"]["id"]
    worker.finish(job_id)
    assert lab.job(job_id)["state"] == "succeeded"


def test_a_second_result_is_a_duplicate_and_changes_nothing(lab) -> None:
    worker = lab.worker()
    worker.ready()
    offer = lab.offers(worker)
    job_id, uid = offer["spec"]["id"], offer["attempt"]["uid"]
    worker.accept(job_id)
    assert worker.finish(job_id)["results"] == {uid: "recorded"}
    assert worker.finish(job_id, "failed", 1)["results"] == {uid: "duplicate"}
    lab.until(lambda: lab.job(job_id)["ended_at"])
    assert worker.finish(job_id, "failed", 1)["results"] == {uid: "duplicate"}
    job = lab.job(job_id)
    assert (job["state"], job["exit_code"], job["attempt_count"]) == ("succeeded", 0, 1)


def test_a_late_result_of_a_cancelled_task_is_superseded(lab) -> None:
    worker = lab.worker()
    worker.ready()
    offer = lab.offers(worker)
    job_id = offer["spec"]["id"]
    worker.accept(job_id)
    lab.cancel(job_id)
    assert worker.expect("job_cancel")["task_id"] == job_id
    answer = worker.finish(job_id)
    assert answer["results"] == {offer["attempt"]["uid"]: "superseded"}
    assert answer["log_offsets"] == {offer["attempt"]["uid"]: {}}, "what it printed is taken all the same"
    assert lab.job(job_id)["state"] == "killed"


def test_tasks_that_are_not_this_workers_are_an_error(lab) -> None:
    owner, other = lab.worker(), lab.worker()
    owner.ready()
    offer = lab.offers(owner)
    job_id = offer["spec"]["id"]
    owner.accept(job_id)
    messages = [
        ("job_accepted", {"task_id": job_id}),
        ("job_accepted", {"task_id": "never-heard-of"}),
        ("job_accepted", {"task_id": job_id, "attempt": offer["attempt"]["uid"]}),
        ("job_result", {"task_id": job_id, "state": "failed", "exit_code": 1}),
        ("job_result", {"task_id": "never-heard-of", "state": "failed", "exit_code": 1}),
        ("service_health", {"task_id": job_id, "healthy": False}),
    ]
    for kind, payload in messages:
        other.send(kind, payload)
        error = other.expect("error")["error"]
        assert error.startswith(f"{kind}: this worker has no attempt of task {payload['task_id']}")
    body = {"task_id": job_id, "state": "failed", "exit_code": 1, "attempt": offer["attempt"]["uid"]}
    other.send("job_result", body)
    assert other.expect("ack")["results"] == {offer["attempt"]["uid"]: "superseded"}
    assert lab.job(job_id)["state"] == "running"


def test_members_of_an_array_are_named_by_their_number(lab) -> None:
    worker = lab.worker()
    job_id = lab.submit(array={"first": 10, "last": 12})
    ids, uids = [], []
    for _ in range(3):
        offer = worker.ready()["payload"]
        ids.append(offer["spec"]["id"])
        uids.append(offer["attempt"]["uid"])
        worker.accept(ids[-1])
    assert ids == [f"{job_id}/{number}" for number in range(3)]
    worker.finish(f"{job_id}/1", "failed", 4)
    worker.send("job_result", {"task_id": job_id, "state": "failed", "exit_code": 1})
    assert worker.expect("error")["error"] == f"job_result: this worker has no attempt of task {job_id}"
    body = {"task_id": job_id, "state": "failed", "exit_code": 1, "attempt": uids[0]}
    lab.hub.ask("GET", f"/api/v1/jobs/{job_id}/tasks")  # the rows show all that was committed
    worker.send("job_result", body)
    assert "no attempt of task" in worker.expect("error")["error"]
    worker.finish(f"{job_id}/0")
    worker.finish(f"{job_id}/2")
    assert lab.job(job_id)["state"] == "failed"
    _, tasks = lab.hub.ask("GET", f"/api/v1/jobs/{job_id}/tasks")
    assert [task["exit_code"] for task in tasks["tasks"]] == [0, 4, 0]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, DAY_NS),
        ({"max_runtime_hours": 0}, DAY_NS),
        ({"max_runtime_hours": 2}, DAY_NS // 12),
        ({"max_runtime_hours": 0.5}, DAY_NS // 48),
        ({"max_runtime_hours": 1000}, 7 * DAY_NS),
        ({"type": "service"}, FOREVER_NS),
        ({"type": "service", "max_runtime_hours": 1}, DAY_NS // 24),
        ({"max_runtime_s": 90}, 90 * 10**9),
    ],
)
def test_remaining_time_is_in_nanoseconds(lab, spec, expected: int) -> None:
    worker = lab.worker()
    worker.ready()
    remaining = lab.offers(worker, **spec)["remaining_time"]
    assert type(remaining) is int
    assert remaining == expected


def test_the_spec_arrives_as_it_was_submitted(lab) -> None:
    spec = {
        "type": "service",
        "job_tier": "training",
        "slot_pool": "batch",
        "user_id": "somebody",
        "gpu_count": 1,
        "gpu_type": "T4",
        "gpu_backend": "nvidia",
        "min_vram_gb": 1.5,
        "min_cpu_cores": 0.5,
        "max_runtime_hours": 3,
        "command": ["python", "-c", "print('ä')"],
        "env": {"A": "1"},
        "prolog": ["true"],
        "epilog": ["false"],
        "snapshot_id": "s1",
        "snapshot_sha": "abc",
        "health_check": {"liveness": "/live", "readiness": "/ready", "interval_secs": 5},
        "metadata": {"x": [1, {"y": None}]},
    }
    worker = lab.worker(gpu_count=1, gpu_type="T4", vram_gb=16)
    worker.ready()
    offered = lab.offers(worker, **spec)["spec"]
    given = {key: value for key, value in spec.items() if key != "user_id"}
    assert {key: offered.get(key) for key in given} == given
    assert offered["node_count"] == 1


def test_base_fields_are_there_even_where_a_job_said_nothing(lab) -> None:
    worker = lab.worker()
    worker.ready()
    offer = lab.offers(worker)
    spec = offer["spec"]
    shown = {key: spec[key] for key in ("type", "slot_pool", "gpu_count", "node_count", "command", "env")}
    assert shown == {
        "type": "batch",
        "slot_pool": "batch",
        "gpu_count": 0,
        "node_count": 1,
        "command": ["true"],
        "env": {},
    }


def test_cancel_reaches_the_worker_and_the_slot_is_held_until_it_has_stopped(lab) -> None:
    worker = lab.worker(slots={"batch_total": 1, "batch_in_use": 0, "service_total": 0, "service_in_use": 0})
    worker.ready()
    job_id = lab.offers(worker)["spec"]["id"]
    worker.accept(job_id)
    lab.cancel(job_id, grace_s=3)
    cancel = worker.expect("job_cancel")
    assert (cancel["task_id"], cancel["reason"], cancel["grace_s"]) == (job_id, "user", 3)
    assert lab.job(job_id)["state"] == "killed"
    worker.ready()
    assert lab.offers(worker) is None
    worker.finish(job_id, "killed", 143)
    assert worker.expect("job_assign")


def test_cancel_before_accept_reaches_the_worker_too(lab) -> None:
    worker = lab.worker()
    worker.ready()
    job_id = lab.offers(worker)["spec"]["id"]
    lab.cancel(job_id)
    assert worker.expect("job_cancel")["task_id"] == job_id


def test_service_health_is_acked(lab) -> None:
    worker = lab.worker()
    worker.ready()
    job_id = lab.offers(worker, type="service")["spec"]["id"]
    worker.accept(job_id)
    worker.send("service_health", {"task_id": job_id, "healthy": True, "message": "fine"})
    worker.expect("ack")


def test_many_assignments_at_once(lab) -> None:
    slots = {"batch_total": 2500, "batch_in_use": 0, "service_total": 0, "service_in_use": 0}
    worker = lab.worker(slots=slots)
    worker.send(
        "ready_for_work", {"worker_id": worker.id, "slots": slots, "reason": "polling", "credits": 2500}
    )
    worker.expect("no_work")
    job_id = lab.submit(array={"last": 2499})
    ids = {worker.expect("job_assign")["spec"]["id"] for _ in range(2500)}
    assert ids == {f"{job_id}/{number}" for number in range(2500)}
    for task_id in ids:
        worker.send("job_accepted", {"task_id": task_id})
        worker.send("job_result", {"task_id": task_id, "state": "succeeded", "exit_code": 0})
    for _ in range(5000):
        worker.expect("ack")
    assert lab.job(job_id)["state"] == "succeeded"


def test_many_workers_share_an_array(lab) -> None:
    workers = [lab.worker() for _ in range(20)]
    for worker in workers:
        worker.ready()
    job_id = lab.submit(array={"last": 19})
    ids = [worker.expect("job_assign")["spec"]["id"] for worker in workers]
    assert sorted(ids) == sorted(f"{job_id}/{number}" for number in range(20))


def test_the_worker_script_runs_real_work(lab, tmp_path) -> None:
    import subprocess
    import sys
    from pathlib import Path

    mark = tmp_path / "mark"
    first = lab.submit(command=["sh", "-c", f"echo $WORD > {mark}"], env={"WORD": "hello"})
    second = lab.submit(command=["sh", "-c", "exit 9"])
    script = Path(__file__).parent / "foreign_worker.py"
    command = [sys.executable, str(script), lab.hub.ws, lab.hub.token, lab.name(), "2"]
    assert subprocess.run(command, timeout=30, check=False).returncode == 0
    assert mark.read_text() == "hello\n"
    assert lab.job(first)["state"] == "succeeded"
    assert (lab.job(second)["state"], lab.job(second)["exit_code"]) == ("failed", 9)
