"""The hub is killed (-9) and started again on its home: nothing that was promised is forgotten."""

from __future__ import annotations

from typing import Any

SITES = ("home", "postgres")


def back(lab: Any, worker: Any, active: list[str]) -> tuple[Any, Any]:
    """Connect to the new hub as the same worker and register with what still runs."""
    again = lab.worker(register=False, worker_id=worker.id, **worker.capabilities)
    ack = again.register([{"task_id": task_id, "state": "running"} for task_id in active])
    return again, ack


def test_kill_minus_nine_with_work_waiting_assigned_running_and_done(own_lab) -> None:
    lab = own_lab()
    worker = lab.worker()
    jobs = {}
    for name in ("done", "running", "finished-meanwhile", "assigned"):
        worker.ready()
        offer = lab.offers(worker, name=name)
        jobs[name] = offer
        if name != "assigned":
            worker.accept(offer["spec"]["id"])
        if name == "done":
            worker.finish(offer["spec"]["id"])
    waiting = lab.submit(gpu_count=1)
    lab.hub.kill()
    worker.break_off()
    lab.hub.start()

    ids = {name: offer["spec"]["id"] for name, offer in jobs.items()}
    assert lab.job(ids["done"])["state"] == "succeeded"
    assert lab.job(ids["running"])["state"] == "running"
    assert (lab.job(ids["assigned"])["state"], lab.job(ids["assigned"])["phase"]) == ("pending", "assigned")

    again, ack = back(lab, worker, [ids["running"], ids["finished-meanwhile"]])
    assert sorted(ack["keep"]) == sorted(
        jobs[name]["attempt"]["uid"] for name in ("running", "finished-meanwhile")
    )
    # The ack came first; the assignment follows without credit, as the same attempt.
    resent = again.expect("job_assign")
    assert resent["attempt"] == jobs["assigned"]["attempt"]
    assert resent["spec"] == jobs["assigned"]["spec"]
    again.accept(ids["assigned"])

    uid = jobs["finished-meanwhile"]["attempt"]["uid"]
    assert again.finish(ids["finished-meanwhile"])["results"] == {uid: "recorded"}
    assert again.finish(ids["finished-meanwhile"], "failed", 1)["results"] == {uid: "duplicate"}
    uid = jobs["done"]["attempt"]["uid"]
    assert again.finish(ids["done"], "failed", 1)["results"] == {uid: "duplicate"}
    for name in ("running", "assigned"):
        again.finish(ids[name])
    for name, job_id in ids.items():
        job = lab.job(job_id)
        assert (job["state"], job["attempt_count"], job["losses"]) == ("succeeded", 1, 0), name

    assert lab.job(waiting)["state"] == "pending"
    card = lab.worker(gpu_count=1)
    assert card.ready()["payload"]["spec"]["id"] == waiting


def test_an_epoch_grows_with_each_start(own_lab) -> None:
    lab = own_lab()
    first = lab.worker(register=False).register()["epoch"]
    lab.hub.kill()
    lab.hub.start()
    worker = lab.worker(register=False)
    second = worker.register()["epoch"]
    assert second > first
    body = {"id": worker.id, "capabilities": worker.capabilities, "max_epoch_seen": second + 100}
    worker.send("register", body)
    worker.expect("ack")
    assert worker.register()["epoch"] > second + 100
    assert lab.takes(worker)


def test_a_clean_stop_says_so_and_keeps_running_work(own_lab) -> None:
    lab = own_lab()
    worker = lab.worker()
    worker.ready()
    job_id = lab.offers(worker)["spec"]["id"]
    worker.accept(job_id)
    lab.hub.stop()
    assert worker.closed()[0] == 1001
    lab.hub.start()
    again, _ = back(lab, worker, [job_id])
    again.finish(job_id)
    assert lab.job(job_id)["attempt_count"] == 1


def test_a_restarted_hub_gives_queued_work_to_whoever_registered(own_lab) -> None:
    lab = own_lab()
    job_id = lab.submit()
    lab.hub.kill()
    lab.hub.start()
    worker = lab.worker()
    assert worker.ready()["payload"]["spec"]["id"] == job_id
