"""Receipts of preemptions of a real hub: who sees what of them, how they go on, what they come to."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
import pytest

from dray.testing import Assignment, MockWorker, RunningHub, make_spec, running_hub
from dray.wire.schemas.site import PreemptionDocument, PreemptionList

POLICY = {"queues": {"default": {"order": "priority"}}, "preemption": {"min_run_s": 0}}
AGENT = ("job_started", "resend")


class Site:
    """A hub whose policy lets priorities preempt, and everybody who speaks to it."""

    def __init__(self, hub: RunningHub) -> None:
        self.hub = hub
        self.tokens = {"": hub.token} | {name: hub.make_token(name) for name in ("ana", "ben", "cleo")}
        assert self("PUT", "/policy", POLICY)[0] == 200

    def __call__(
        self, method: str, path: str, body: Any = None, user: str = "", **query: Any
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(urlsplit(self.hub.url).netloc, timeout=60)
        sent = {"Authorization": f"Bearer {self.tokens[user]}", "Content-Type": "application/json"}
        target = f"/api/v1{path}?{urlencode(query)}" if query else f"/api/v1{path}"
        try:
            connection.request(method, target, None if body is None else json.dumps(body), sent)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def submit(self, user: str, job_id: str, priority: int, **fields: Any) -> None:
        status, answer = self("POST", "/jobs", make_spec(id=job_id, priority=priority, **fields), user)
        assert status == 201, answer

    def receipts(self, by: str = "", **query: Any) -> list[dict[str, Any]]:
        path = f"/preemptions?{urlencode(query)}" if query else "/preemptions"
        status, answer = self("GET", path, user=by)
        assert status == 200, answer
        msgspec.convert(answer, PreemptionList)
        found: list[dict[str, Any]] = answer["preemptions"]
        return found

    def receipt(self, receipt_id: str, user: str = "") -> dict[str, Any]:
        status, answer = self("GET", f"/preemptions/{receipt_id}", user=user)
        assert status == 200, answer
        msgspec.convert(answer, PreemptionDocument)
        found: dict[str, Any] = answer
        return found

    def wait(self, look: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 60
        while not (found := look()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with running_hub(tmp_path / "h") as hub:
        yield Site(hub)


@pytest.fixture
def worker(site: Site) -> Iterator[MockWorker]:
    with site.hub.worker("w1", features=AGENT) as mock:
        mock.register()
        yield mock


def start(worker: MockWorker, credits: int = 1) -> Assignment:  # noqa: A002 - the word of the protocol
    worker.ready(credits)
    task = worker.assigned()
    worker.accept(task)
    worker.started(task)
    return task


def preempt(site: Site, worker: MockWorker) -> Assignment:
    """Ben's job runs and is asked to stop for ana's."""
    site.submit("ben", "low", 1)
    task = start(worker)
    site.submit("ana", "high", 5, max_runtime_s=600)
    stop = worker.recv("job_cancel")
    assert (stop.payload["reason"], stop.payload["grace_s"]) == ("preempted", 30)
    return task


def test_the_life_of_a_receipt(site: Site, worker: MockWorker) -> None:
    task = preempt(site, worker)
    (receipt,) = site.receipts()
    assert (receipt["id"], receipt["status"], receipt["rule"], receipt["kind"]) == (
        "p1",
        "open",
        "priority",
        "cpu",
    )
    assert (receipt["task_id"], receipt["user"], receipt["priority"]) == ("high", "ana", 5)
    assert (receipt["workers"], receipt["wait_s"]) == (["w1"], None)
    (victim,) = receipt["victims"]
    assert (victim["task_id"], victim["user"], victim["state"]) == ("low", "ben", "stopping")
    assert (victim["priority"], victim["grace_s"], victim["gone_at"]) == (1, 30, None)

    worker.result(task, "preempted", wall_s=1)
    worker.ready()
    high = worker.assigned()
    assert high.task_id == "high"
    receipt = site.receipt("p1")
    assert (receipt["status"], receipt["served_at"]) == ("served", receipt["ended_at"])
    assert receipt["wait_s"] >= 0
    (victim,) = receipt["victims"]
    assert victim["state"] == "waiting"
    assert victim["gone_at"] >= receipt["decided_at"]
    # The preemptor may run for ten minutes: that is when there is room again at the latest.
    assert victim["earliest_back_at"] > receipt["served_at"]

    worker.accept(high)
    worker.result(high)
    back = start(worker)
    assert back.task_id == "low"
    (victim,) = site.wait(lambda: [v for v in site.receipt("p1")["victims"] if v["state"] == "running"])
    assert (victim["back_on"], victim["earliest_back_at"]) == ("w1", None)
    assert victim["back_at"] >= victim["gone_at"]
    worker.result(back)
    (victim,) = site.wait(lambda: [v for v in site.receipt("p1")["victims"] if v["state"] == "succeeded"])
    assert victim["back_on"] == "w1"


def test_each_side_sees_its_own_and_whose_it_was(site: Site, worker: MockWorker) -> None:
    preempt(site, worker)
    (seen,) = site.receipts("ana")
    assert (seen["job_id"], seen["user"]) == ("high", "ana")
    (victim,) = seen["victims"]
    assert (victim["job_id"], victim["task_id"], victim["user"]) == (None, None, None)
    assert (victim["state"], victim["priority"]) == ("stopping", 1)
    (seen,) = site.receipts("ben")
    assert (seen["job_id"], seen["task_id"], seen["user"], seen["priority"]) == (None, None, "ana", 5)
    assert seen["victims"][0]["task_id"] == "low"
    assert site.receipts("cleo") == []
    assert site("GET", "/preemptions/p1", user="cleo")[0] == 404
    assert site("GET", "/preemptions/p9")[0] == 404
    # Filters tell no more than the list does.
    assert len(site.receipts(job="low")) == len(site.receipts(job="high")) == 1
    assert site.receipts("ana", job="low") == site.receipts("ben", job="high") == []
    assert len(site.receipts("ben", user="ana")) == len(site.receipts(user="ben")) == 1
    assert site.receipts("ana", user="ben") == site.receipts(user="cleo") == []
    mine = site("GET", "/preemptions", user="ben")[1]["statistics"]
    assert [line["user"] for line in mine["users"]] == ["ben"]


def test_a_cancelled_preemptor_is_rolled_back(site: Site, worker: MockWorker) -> None:
    task = preempt(site, worker)
    assert site("POST", "/jobs/high/cancel", {}, "ana")[0] == 200
    receipt = site.receipt("p1")
    assert (receipt["status"], receipt["served_at"]) == ("rolled_back", None)
    assert receipt["victims"][0]["state"] == "stopping"
    worker.result(task, "preempted", wall_s=2)
    assert start(worker).task_id == "low"
    (victim,) = site.receipt("p1")["victims"]
    assert victim["gone_at"] is not None
    assert [line["status"] for line in site.receipts()] == ["rolled_back"]


def test_what_was_lost_is_known_in_the_end(site: Site, worker: MockWorker) -> None:
    task = preempt(site, worker)
    worker.result(task, "succeeded")
    (victim,) = site.wait(lambda: [v for v in site.receipt("p1")["victims"] if v["gone_at"]])
    assert (victim["state"], victim["lost_s"]) == ("succeeded", 0)
    assert site("GET", "/jobs/low")[1]["state"] == "succeeded"


def test_pages_and_statistics(site: Site, worker: MockWorker) -> None:
    task = preempt(site, worker)
    for priority in (6, 7, 8):
        worker.result(task, "preempted", wall_s=1)
        task = start(worker)
        site.submit("ana", f"j{priority}", priority)
        worker.recv("job_cancel")
    assert [line["id"] for line in site.receipts()] == ["p4", "p3", "p2", "p1"]
    first = site("GET", "/preemptions", limit=3)[1]
    assert [line["id"] for line in first["preemptions"]] == ["p4", "p3", "p2"]
    rest = site("GET", "/preemptions", limit=3, cursor=first["next_cursor"])[1]
    assert ([line["id"] for line in rest["preemptions"]], rest["next_cursor"]) == (["p1"], None)
    told = first["statistics"]
    assert (told["receipts"], told["victims"], told["by_rule"]) == (4, 4, {"priority": 4})
    assert told["by_status"] == {"open": 1, "served": 3}
    assert told["serve_p50_s"] >= 0
    assert {(line["user"], line["stopped"], line["preempted"]) for line in told["users"]} == {
        ("ana", 3, 4),
        ("ben", 1, 0),
    }
    with site.hub.connect(site.tokens["ben"]) as client:
        assert [line["id"] for line in client.preemptions()] == ["p1"]
        assert client.preemptions("high") == client.preemptions(user="cleo") == []
        assert client.preemption("p1")["user"] == "ana"
    for bad in ({"limit": 0}, {"cursor": "x"}, {"window_s": -1}, {"job": "a b"}, {"usr": "x"}):
        assert site("GET", "/preemptions", **bad)[0] == 400


def test_histories_tell_both_sides(site: Site, worker: MockWorker) -> None:
    task = preempt(site, worker)
    worker.result(task, "preempted", wall_s=1)
    worker.ready()
    worker.assigned()
    said = {
        line["type"]: line["message"] for line in site("GET", "/jobs/low/events", user="ben")[1]["events"]
    }
    assert said["task_preempting"] == (
        "asked to stop within 30 s for a job of ana with priority 5 (by priority, receipt p1)"
    )
    said = {
        line["type"]: line["message"] for line in site("GET", "/jobs/high/events", user="ana")[1]["events"]
    }
    assert said["preemption_decided"] == "1 task on w1 is asked to stop for it (by priority, receipt p1)"
    assert said["preemption_served"] == "the room of receipt p1 is free, and it is given to it"


def test_a_hub_that_is_killed_keeps_room_and_receipt(site: Site, worker: MockWorker) -> None:
    task = preempt(site, worker)
    before = site.receipt("p1")
    site.hub.kill()
    site.hub.start()
    assert site.receipt("p1") == before
    # A rival of the same priority, and work that would fit: the room is ana's.
    site.submit("ben", "rival", 5)
    with site.hub.worker("w1", features=AGENT) as again:
        again.register(active_tasks=[{"task_id": "low", "attempt": task.attempt, "state": "running"}])
        again.result(task, "preempted", wall_s=1)
        again.ready()
        assert again.assigned().task_id == "high"
        assert site.receipt("p1")["status"] == "served"


def test_a_worker_that_knows_no_preemption(site: Site) -> None:
    """It is told to cancel, says that the task was killed, and the task waits again all the same."""
    with site.hub.worker("w1") as base:
        base.register()
        site.submit("ben", "low", 1)
        base.ready()
        task = base.assigned()
        base.accept(task)
        site.wait(lambda: site("GET", "/jobs/low")[1]["state"] == "running")
        site.submit("ana", "high", 5)
        base.recv("job_cancel")
        base.result(task, "killed")
        base.ready()
        high = base.assigned()
        assert high.task_id == "high"
        low = site("GET", "/jobs/low")[1]
        assert (low["state"], low["preemptions"], low["failures"]) == ("pending", 1, 0)
        assert site.receipt("p1")["victims"][0]["state"] == "waiting"
        base.accept(high)
        base.result(high)
        base.ready()
        assert base.assigned().task_id == "low"
