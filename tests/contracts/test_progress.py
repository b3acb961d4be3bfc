"""`job_progress`: what a worker says of its own tasks is shown and kept, of others' it is not; a flood is unread."""

from __future__ import annotations

from typing import Any

import pytest

FLOOD = 1000


def running(lab: Any, **spec: Any) -> tuple[Any, str]:
    """A worker and the job that it runs."""
    worker = lab.worker()
    worker.ready()
    offer = lab.offers(worker, **spec)
    assert offer is not None
    worker.accept(offer["spec"]["id"])
    return worker, offer["spec"]["id"]


def tell(worker: Any, task_id: str, **said: Any) -> list[Any]:
    """Say it; gives what came back before the answer to a heartbeat."""
    worker.send("job_progress", {"task_id": task_id, **said})
    return list(worker.heartbeat())


def test_progress_is_shown_and_nothing_answers_it(lab) -> None:
    worker, job_id = running(lab)
    assert lab.job(job_id)["progress"] is None
    assert tell(worker, job_id, step=3, fraction=0.5, note="n" * 1000) == []
    progress = lab.job(job_id)["progress"]
    assert (progress["step"], progress["fraction"], progress["note"]) == (3, 0.5, "n" * 256)
    worker.finish(job_id)
    assert lab.job(job_id)["progress"] is None


def test_a_save_is_kept_and_an_older_one_is_not(lab) -> None:
    worker, job_id = running(lab)
    tell(worker, job_id, saved_step=5, saved_age_s=0)
    tell(worker, job_id, saved_step=4)
    (attempt,) = lab.job(job_id)["attempts"]
    assert attempt["saved_step"] == 5
    assert attempt["saved_run_s"] > 0
    worker.finish(job_id)
    assert lab.job(job_id)["attempts"][0]["saved_step"] == 5


def test_a_worker_speaks_only_for_its_own_tasks(lab) -> None:
    worker, job_id = running(lab)
    stranger = lab.worker()
    uid = lab.job(job_id)["attempts"][0]["uid"]
    for said in ({"attempt": uid}, {}):
        assert tell(stranger, job_id, step=1, saved_step=9, **said) == []
    job = lab.job(job_id)
    assert (job["progress"], job["attempts"][0]["saved_step"]) == (None, None)
    assert tell(worker, "nobodys", step=1, saved_step=1) == []


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ({"step": -1}, "step"),
        ({"saved_step": 1 << 60}, "saved_step"),
        ({"fraction": 1.5}, "fraction"),
        ({"saved_age_s": -0.5}, "saved_age_s"),
        ({"step": "three"}, "step"),
    ],
)
def test_nonsense_is_named(lab, said: dict[str, Any], place: str) -> None:
    worker, job_id = running(lab)
    (error,) = tell(worker, job_id, **said)
    assert error["type"] == "error"
    assert place in error["error"]


def test_a_flood_is_not_read_to_its_end_and_harms_nobody(lab) -> None:
    worker, job_id = running(lab)
    other, other_job = running(lab)
    for step in range(FLOOD):
        worker.send("job_progress", {"task_id": job_id, "step": step, "saved_step": step})
    assert worker.heartbeat() == []
    assert lab.job(job_id)["progress"]["step"] < FLOOD - 1
    assert tell(other, other_job, step=7) == []
    assert lab.job(other_job)["progress"]["step"] == 7
    lab.until(lambda: tell(worker, job_id, step=FLOOD) == [] and lab.job(job_id)["progress"]["step"] == FLOOD)
