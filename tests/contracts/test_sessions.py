"""Sessions end, break, are taken over; timers decide, and only timers."""

from __future__ import annotations

from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed


def assigned(lab: Any, worker: Any, **spec: Any) -> dict[str, Any]:
    worker.ready()
    offer = lab.offers(worker, **spec)
    assert offer is not None
    return dict(offer)


@pytest.mark.parametrize("code", [1000, 1001])
def test_a_goodbye_gives_unaccepted_work_back_at_once(lab, code: int) -> None:
    leaving, staying = lab.worker(), lab.worker()
    job_id = assigned(lab, leaving)["spec"]["id"]
    staying.ready()
    leaving.goodbye(code)
    offer = staying.expect("job_assign")
    assert (offer["spec"]["id"], offer["attempt"]["no"]) == (job_id, 2)
    assert lab.job(job_id)["losses"] == 0


def test_a_goodbye_leaves_accepted_work_to_the_timers(lab) -> None:
    leaving = lab.worker()
    job_id = assigned(lab, leaving)["spec"]["id"]
    leaving.accept(job_id)
    leaving.goodbye()
    watcher = lab.worker()
    watcher.ready()
    lab.until(lambda: lab.hub.ask("GET", f"/api/v1/workers/{leaving.id}")[1]["status"] == "offline")
    assert watcher.heartbeat() == []
    assert lab.job(job_id)["state"] == "running"


def test_a_broken_socket_costs_nothing(lab) -> None:
    worker, other = lab.worker(), lab.worker()
    unaccepted = assigned(lab, worker)
    running = assigned(lab, worker)["spec"]["id"]
    worker.accept(running)
    other.ready()
    worker.break_off()
    lab.until(lambda: lab.hub.ask("GET", f"/api/v1/workers/{worker.id}")[1]["status"] == "offline")
    assert other.heartbeat() == []
    assert lab.job(running)["state"] == "running"
    assert lab.job(unaccepted["spec"]["id"])["phase"] == "assigned"

    again = lab.worker(register=False, worker_id=worker.id)
    again.register([{"task_id": running, "state": "running"}])
    resent = again.expect("job_assign")
    assert resent["attempt"] == unaccepted["attempt"]
    again.accept(resent["spec"]["id"])
    again.finish(running)
    assert lab.job(running)["attempt_count"] == 1


def test_a_close_that_is_no_goodbye_costs_nothing(lab) -> None:
    worker, other = lab.worker(), lab.worker()
    job_id = assigned(lab, worker)["spec"]["id"]
    other.ready()
    worker.goodbye(3000)
    lab.until(lambda: lab.hub.ask("GET", f"/api/v1/workers/{worker.id}")[1]["status"] == "offline")
    assert other.heartbeat() == []
    assert lab.job(job_id)["phase"] == "assigned"


def test_what_a_returning_worker_no_longer_has_is_queued_again(lab) -> None:
    worker = lab.worker()
    job_id = assigned(lab, worker)["spec"]["id"]
    worker.accept(job_id)
    worker.break_off()
    again = lab.worker(worker_id=worker.id)
    assert (lab.job(job_id)["state"], lab.job(job_id)["losses"]) == ("pending", 1)
    assert again.ready()["payload"]["attempt"]["no"] == 2


def test_what_the_hub_does_not_know_is_listed_and_never_stopped(lab) -> None:
    worker = lab.worker(register=False)
    worker.register([{"task_id": "from-another-life", "state": "running"}])
    assert worker.heartbeat() == []
    _, shown = lab.hub.ask("GET", f"/api/v1/workers/{worker.id}")
    assert shown["quarantined"] == ["from-another-life"]


@pytest.mark.parametrize("restarted", [False, True], ids=["remembered", "looked-up"])
def test_a_heartbeat_that_names_what_is_over_is_answered_by_a_stop(own_lab, restarted: bool) -> None:
    """The word that took it back may have been lost: the worker would run it for ever. The unknown is left alone."""
    lab = own_lab()
    worker = lab.worker()
    offers = []
    for _ in range(2):
        worker.ready()
        offers.append(lab.offers(worker))
        worker.accept(offers[-1]["spec"]["id"])
    over, runs = offers
    worker.finish(over["spec"]["id"])
    if restarted:
        lab.hub.kill()
        worker.break_off()
        lab.hub.start()
        worker = lab.worker(register=False, worker_id=worker.id, **worker.capabilities)
        worker.register([{"task_id": runs["spec"]["id"], "state": "running"}])
    active = [over["attempt"]["uid"], runs["attempt"]["uid"], "1-4711"]
    worker.send("heartbeat", {"worker_id": worker.id, "slots": worker.slots, "active": active})
    stop = worker.expect("job_cancel")
    assert (stop["task_id"], stop["attempt"], stop["grace_s"]) == (over["spec"]["id"], active[0], 0)
    assert worker.receive()["type"] == "ack", "and nothing else was asked to stop"


def test_what_was_cancelled_meanwhile_is_stopped(lab) -> None:
    worker = lab.worker()
    job_id = assigned(lab, worker)["spec"]["id"]
    worker.accept(job_id)
    worker.break_off()
    lab.cancel(job_id)
    again = lab.worker(register=False, worker_id=worker.id)
    again.register([{"task_id": job_id, "state": "running"}])
    cancel = again.expect("job_cancel")
    assert (cancel["task_id"], cancel["reason"]) == (job_id, "user")
    again.finish(job_id, "killed", 143)


def test_the_newest_session_of_an_id_takes_over(lab) -> None:
    old = lab.worker()
    job_id = assigned(lab, old)["spec"]["id"]
    old.accept(job_id)
    new = lab.worker(register=False, worker_id=old.id)
    new.register([{"task_id": job_id, "state": "running"}])
    code, reason = old.closed()
    assert code == 4409
    assert "another session" in reason
    new.finish(job_id)
    assert lab.job(job_id)["attempt_count"] == 1


def test_two_that_keep_throwing_each_other_out_are_both_refused(own_lab) -> None:
    lab = own_lab(flap_refuse_s="1")
    sessions = [lab.worker(worker_id="twin") for _ in range(4)]
    last = lab.worker(register=False, worker_id="twin")
    last.send("register", {"id": "twin", "capabilities": last.capabilities})
    codes = [session.closed() for session in (sessions[-1], last)]
    assert [code for code, _ in codes] == [4429, 4429]
    assert all("refused" in reason for _, reason in codes)
    later = lab.worker(register=False, worker_id="twin")
    later.send("register", {"id": "twin", "capabilities": later.capabilities})
    assert later.closed()[0] == 4429

    def let_in() -> bool:
        try:
            lab.worker(worker_id="twin")
        except ConnectionClosed:
            return False
        return True

    lab.until(let_in)


def test_an_unaccepted_assignment_is_revoked_and_keeps_its_place(own_lab) -> None:
    lab = own_lab(accept_s="1")
    slow, other = lab.worker(), lab.worker()
    first = assigned(lab, slow)
    later = lab.submit()
    cancel = slow.expect("job_cancel")
    assert (cancel["task_id"], cancel["reason"]) == (first["spec"]["id"], "revoked")
    job = lab.job(first["spec"]["id"])
    assert (job["state"], job["phase"], job["failures"], job["losses"]) == ("pending", "queued", 0, 0)
    answer = other.ready()["payload"]
    assert (answer["spec"]["id"], answer["attempt"]["no"]) == (first["spec"]["id"], 2)
    # At once: what is not accepted is revoked from this one as well.
    other.accept(first["spec"]["id"])
    assert other.ready()["payload"]["spec"]["id"] == later
    slow.send("job_accepted", {"task_id": first["spec"]["id"]})
    # Too late: it is told so again, or, once the hub has let go of what is on record, that it has no such attempt.
    answer = slow.receive()
    if answer["type"] == "ack":
        assert slow.expect("job_cancel")["reason"] == "revoked"
    else:
        assert f"no attempt of task {first['spec']['id']}" in answer["error"]
    assert slow.finish(first["spec"]["id"])["results"] == {first["attempt"]["uid"]: "superseded"}


def test_a_base_only_worker_is_not_asked_again_within_a_session(own_lab) -> None:
    lab = own_lab(resend_s="0.1,0.2", accept_s="1")
    worker = lab.worker()
    assigned(lab, worker)
    assert worker.receive()["type"] == "job_cancel"


def test_a_worker_that_asked_for_it_is_asked_again(own_lab) -> None:
    lab = own_lab(resend_s="0.1,0.2")
    worker = lab.worker(register=False)
    body = {"id": worker.id, "capabilities": worker.capabilities, "features": ["resend"]}
    worker.send("register", body)
    worker.expect("ack")
    first = assigned(lab, worker)
    assert [worker.expect("job_assign")["attempt"] for _ in range(2)] == [first["attempt"]] * 2


@pytest.mark.parametrize("features", [None, []])
def test_past_its_limit_a_task_is_cancelled_for_a_base_only_worker(own_lab, features) -> None:
    lab = own_lab(limit_margin_s="0.1")
    worker = lab.worker(register=False)
    body = {"id": worker.id, "capabilities": worker.capabilities, "features": features}
    worker.send("register", body)
    worker.expect("ack")
    job_id = assigned(lab, worker, max_runtime_s=1)["spec"]["id"]
    worker.accept(job_id)
    cancel = worker.expect("job_cancel")
    assert (cancel["task_id"], cancel["reason"]) == (job_id, "time_limit")
    worker.finish(job_id, "killed", 137)
    job = lab.job(job_id)
    assert (job["state"], job["exit_class"]) == ("failed", "time_limit")


def test_silence_makes_suspect_then_unknown_then_lost_and_late_results_superseded(own_lab) -> None:
    lab = own_lab(suspect_s="0.3", unknown_s="0.6", lost_s="0.9", start_grace_s="0.1")
    silent, other = lab.worker(), lab.worker()
    offer = assigned(lab, silent)
    job_id = offer["spec"]["id"]
    silent.accept(job_id)

    def requeued() -> Any:
        other.heartbeat()
        return lab.job(job_id)["phase"] == "queued"

    lab.until(requeued)
    assert lab.job(job_id)["losses"] == 1
    moved = other.ready()["payload"]
    assert (moved["spec"]["id"], moved["attempt"]["no"]) == (job_id, 2)
    other.accept(job_id)
    code, reason = silent.closed()
    assert code == 4408
    assert "register again" in reason
    late = lab.worker(worker_id=silent.id)
    assert late.finish(job_id, "failed", 1)["results"] == {offer["attempt"]["uid"]: "superseded"}
    other.finish(job_id)
    assert lab.job(job_id)["state"] == "succeeded"


@pytest.mark.parametrize("still_runs", [True, False])
def test_a_lost_attempt_counts_again_while_no_other_began(own_lab, still_runs: bool) -> None:
    lab = own_lab(suspect_s="0.2", unknown_s="0.3", lost_s="0.5", start_grace_s="0.1")
    worker = lab.worker()
    job_id = assigned(lab, worker)["spec"]["id"]
    worker.accept(job_id)
    lab.until(lambda: lab.job(job_id)["phase"] == "queued")
    again = lab.worker(register=False, worker_id=worker.id)
    again.register([{"task_id": job_id, "state": "running"}] if still_runs else None)
    assert lab.job(job_id)["state"] == ("running" if still_runs else "pending")
    again.finish(job_id)
    job = lab.job(job_id)
    assert (job["state"], job["losses"]) == ("succeeded", 0)


def test_no_new_work_for_a_suspect(own_lab) -> None:
    lab = own_lab(suspect_s="0.3", unknown_s="100")
    worker = lab.worker()
    worker.ready()
    lab.until(lambda: lab.hub.ask("GET", f"/api/v1/workers/{worker.id}")[1]["state_detail"] == "suspect")
    job_id = lab.submit()
    assert lab.job(job_id)["phase"] == "queued"
    assert [message["type"] for message in worker.heartbeat()] + [
        message["type"] for message in worker.heartbeat()
    ] == ["job_assign"]


def test_the_first_message_of_a_session_is_its_ack(lab) -> None:
    """Also while an assignment to the old session is being committed: it goes to the new one, after the ack."""
    lab.submit(array={"last": 29})
    for _ in range(30):
        old = lab.worker()
        new = lab.worker(register=False, worker_id=old.id)
        old.send("ready_for_work", {"worker_id": old.id, "slots": old.slots, "reason": "polling"})
        ack = new.register()
        assert ack["re"] == "register"
        got = new.heartbeat()
        assert [message["type"] for message in got] in ([], ["job_assign"])
        for message in got:
            new.accept(message["payload"]["spec"]["id"])
            new.finish(message["payload"]["spec"]["id"])
