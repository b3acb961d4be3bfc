"""Preemption of a base-only worker's task: it is asked to cancel, says how that ended, and the task waits again."""

from __future__ import annotations

import pytest

POLICY = {"queues": {"default": {"order": "priority"}}, "preemption": {"min_run_s": 0}}


@pytest.mark.parametrize("word", ["killed", "failed"])
def test_a_victim_of_the_old_world_is_queued_again(own_lab, word: str) -> None:
    lab = own_lab()
    assert lab.hub.ask("PUT", "/api/v1/policy", POLICY)[0] == 200
    worker = lab.worker(slots={"batch_total": 1, "batch_in_use": 0, "service_total": 0, "service_in_use": 0})
    low = lab.submit(priority=1)
    assert worker.ready()["payload"]["spec"]["id"] == low
    worker.accept(low)
    high = lab.submit(priority=5)
    stop = worker.expect("job_cancel")
    assert (stop["task_id"], stop["reason"]) == (low, "preempted")

    def receipt() -> dict[str, object]:
        status, answer = lab.hub.ask("GET", "/api/v1/preemptions/p1")
        assert status == 200, answer
        return dict(answer)

    assert (receipt()["status"], receipt()["task_id"]) == ("open", high)
    worker.finish(low, word, 1)
    assert lab.job(low)["state"] == "pending"
    assert worker.ready()["payload"]["spec"]["id"] == high
    assert receipt()["status"] == "served"
    worker.accept(high)
    worker.finish(high)
    again = worker.ready()
    assert again["payload"]["spec"]["id"] == low
    worker.accept(low)
    worker.finish(low)
    job = lab.job(low)
    assert (job["state"], job["preemptions"], job["failures"], job["losses"]) == ("succeeded", 1, 0, 0)
