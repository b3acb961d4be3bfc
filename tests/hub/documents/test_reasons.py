"""`why` and `plan` of a real hub over HTTP: whole answers that give nobody away, nothing written, clear errors."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import psutil
import pytest

from dray.testing import MockWorker, RunningHub, make_capability, make_slots, running_hub
from dray.testing.worker_script import MODERN
from dray.wire.schemas.reasons import EstimateRecord, PlanAnswer, Why

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub(estimate_every_s=0.2) as running:
        yield running


@pytest.fixture(scope="module")
def worker(hub: RunningHub) -> Iterator[MockWorker]:
    offer = make_capability(gpus=4)
    with hub.worker("w1", capability=offer, slots=make_slots(8), features=(*MODERN, "gang")) as found:
        found.register()
        found.ready(8)
        found.recv("no_work")
        yield found


def ask(hub: RunningHub, method: str, path: str, body: Any = None, token: str = "") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(hub.url.removeprefix("http://"), timeout=LIMIT_S)
    headers = {"Authorization": f"Bearer {token or hub.token}", "Content-Type": "application/json"}
    connection.request(method, f"/api/v1{path}", json.dumps(body) if body is not None else None, headers)
    answer = connection.getresponse()
    document = json.loads(answer.read())
    connection.close()
    return answer.status, document


def why(hub: RunningHub, job_id: str, query: str = "", token: str = "") -> dict[str, Any]:
    status, document = ask(hub, "GET", f"/jobs/{job_id}/why{query}", token=token)
    assert status == 200, document
    msgspec.convert(document, Why)
    return dict(document)


def submit(hub: RunningHub, token: str = "", **spec: Any) -> str:
    status, document = ask(hub, "POST", "/jobs", {"command": ["true"], **spec}, token)
    assert status == 201, document
    return str(document["id"])


def begin(worker: MockWorker) -> Any:
    task = worker.assigned()
    worker.accept(task)
    worker.started(task)
    return task


@pytest.fixture(scope="module")
def busy(hub: RunningHub, worker: MockWorker) -> Any:
    """Another user's task that holds three of the four cards."""
    token = hub.make_token("bob")
    submit(hub, token, id="bobs", gpu_count=3, max_runtime_s=3600)
    return begin(worker)


def test_why_tells_everything_and_gives_nobody_away(hub: RunningHub, busy: Any) -> None:
    ann = hub.make_token("ann")
    submit(hub, ann, id="anns", gpu_count=2)
    mine, whole = why(hub, "anns", token=ann), why(hub, "anns")
    assert mine["summary"].startswith("cannot start now: each task asks for 2 GPUs")
    assert mine["classes"][0]["workers"] == mine["workers_total"] == 1
    assert mine["place"]["jobs_ahead"] == 0
    assert mine["start"]["workers"] == ["w1"]
    assert 3500 < mine["start"]["in_s"] <= 3600
    assert [(item["task_id"], item["user"], item["what"]) for item in mine["holders"]] == [("", "", "3 GPUs")]
    assert mine["holders"][0]["message"].startswith("a task of another user holds 3 GPUs on w1, for at most ")
    assert [(item["task_id"], item["user"]) for item in whole["holders"]] == [("bobs", "bob")]
    assert mine["change"]["message"] == "would start now with --gpus 1"
    assert why(hub, "anns", "?fix=false")["change"] is None
    status, _ = ask(hub, "PATCH", "/jobs/anns", {"gpu_count": 1}, ann)
    assert status == 200
    started = why(hub, "anns", token=ann)["summary"]
    assert started.startswith("given to w1 "), "the change starts it"


def test_others_jobs_are_not_found_and_bad_questions_are_refused(hub: RunningHub) -> None:
    eve = hub.make_token("eve")
    submit(hub, id="secret", gpu_count=9)
    assert ask(hub, "GET", "/jobs/secret/why", token=eve)[0] == 404
    assert ask(hub, "GET", "/jobs/secret/why?fix=perhaps")[0] == 400
    assert ask(hub, "GET", "/jobs/secret/why?eta_s=-1")[0] == 400


def test_plan_says_where_and_how_good_and_writes_nothing(hub: RunningHub, busy: Any) -> None:
    before = ask(hub, "GET", "/doctor")[1]["facts"]
    status, answer = ask(hub, "POST", "/plan", {"command": ["true"], "cpu_milli": 1000})
    assert status == 200
    msgspec.convert(answer, PlanAnswer)
    assert answer["starts_now"]
    assert answer["summary"] == "it would start now"
    assert answer["placements"] == [{"task": 0, "worker": "w1", "variant": "", "devices": [], "fake": False}]
    assert [each["worker"] for each in answer["candidates"]] == ["w1"]
    assert set(answer["candidates"][0]["terms"]) >= {"leftover"}
    status, answer = ask(hub, "POST", "/plan", {"command": ["true"], "gpu_count": 2, "array": {"last": 499}})
    assert (status, answer["starts_now"], answer["asked"], answer["tasks"]) == (200, False, 100, 500)
    assert answer["earliest"]["workers"] == ["w1"]
    after = ask(hub, "GET", "/doctor")[1]["facts"]
    assert after == before, "nothing was written, no turn was logged"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"command": []}, "command"),
        ({"command": ["true"], "gpu_count": -1}, "gpu_count"),
        ({"command": ["true"], "gpu_count": 2, "gpu_milli": 500}, "gpu"),
        ({"command": ["true"], "priority": 2**31}, "priority"),
        ({"command": ["true"], "deadline": "2001-01-01T00:00:00Z"}, "past"),
        ({"command": ["true"], "nonsense": 1}, "nonsense"),
    ],
)
def test_a_plan_for_an_invalid_spec_is_a_clear_error(
    hub: RunningHub, spec: dict[str, Any], words: str
) -> None:
    status, answer = ask(hub, "POST", "/plan", spec)
    assert status in (400, 422)
    assert words in json.dumps(answer["error"])


def test_a_gang_larger_than_the_cluster_can_never_start(hub: RunningHub, worker: MockWorker) -> None:
    status, answer = ask(hub, "POST", "/plan", {"command": ["true"], "node_count": 5})
    assert (status, answer["ever"]) == (200, True)
    assert "needs 5 workers of one backend at once, 1 of 1 could ever run a task of it" in answer["summary"]
    assert answer["change"]["message"] == "would start now with --nodes 1"


def test_lists_say_why_each_waits(hub: RunningHub, busy: Any) -> None:
    submit(hub, id="listed", gpu_count=4)
    submit(hub, id="held", hold=True)
    jobs = {job["id"]: job for job in ask(hub, "GET", "/jobs?state=pending")[1]["jobs"]}
    assert jobs["listed"]["reason"].startswith("cannot start now: each task asks for 4 GPUs")
    assert jobs["held"]["reason"].startswith("held by ")


def test_an_estimate_is_made_shown_and_judged() -> None:
    offer = make_capability(gpus=4)
    with (
        running_hub(estimate_every_s=0.2) as hub,
        hub.worker("w1", capability=offer, slots=make_slots(8), features=MODERN) as worker,
    ):
        worker.register()
        worker.ready(8)
        submit(hub, id="first", gpu_count=4, max_runtime_s=3600)
        running = begin(worker)
        submit(hub, id="patient", gpu_count=4, max_runtime_s=60)
        answer = why(hub, "patient", f"?eta_s={LIMIT_S}")
        assert answer["estimate"] is not None
        assert 3000 < answer["estimate"]["p50_s"] <= answer["estimate"]["p90_s"] <= 3600
        assert answer["estimate"]["message"].startswith("starts in ~")
        [listed] = ask(hub, "GET", "/jobs?state=pending")[1]["jobs"]
        assert listed["estimate"]["p50_s"] > 3000
        status, planned = ask(hub, "POST", f"/plan?eta_s={LIMIT_S}", {"command": ["true"], "gpu_count": 4})
        assert (status, planned["estimate"] is not None) == (200, True)
        assert planned["estimate"]["p50_s"] > listed["estimate"]["p50_s"], "it would go behind the other"
        assert ask(hub, "GET", "/estimates")[1]["judged"] == 0
        worker.result(running, "succeeded", 0)
        worker.ready(8)
        begin(worker)
        deadline = time.monotonic() + LIMIT_S
        while (record := ask(hub, "GET", "/estimates")[1])["judged"] < 1:
            assert time.monotonic() < deadline, record
            time.sleep(0.01)
    msgspec.convert(record, EstimateRecord)
    assert record["within_p90"] == 1.0
    assert record["error_p50_s"] > 3000


def test_no_estimates_where_they_are_switched_off() -> None:
    with running_hub(estimate_every_s=0) as hub:
        submit(hub, id="waits")
        assert why(hub, "waits", "?eta_s=5")["estimate"] is None
        status, planned = ask(hub, "POST", "/plan?eta_s=5", {"command": ["true"]})
        assert (status, planned["estimate"]) == (200, None)
        assert ask(hub, "GET", "/estimates")[1]["every_s"] == 0


def test_the_side_process_ends_with_its_hub() -> None:
    with running_hub(estimate_every_s=0.2) as hub, hub.worker("w1", features=MODERN) as worker:
        worker.register()
        submit(hub, id="waits", gpu_count=1, max_runtime_s=60)
        submit(hub, id="next", max_runtime_s=60)
        why(hub, "next", f"?eta_s={LIMIT_S}")
        [child] = psutil.Process(hub.pid).children()
        assert "dray.hub.aside.program" in child.cmdline()
        hub.kill()
        deadline = time.monotonic() + LIMIT_S
        while _lives(child):
            assert time.monotonic() < deadline, "the side process outlives its hub"
            time.sleep(0.01)


def _lives(process: psutil.Process) -> bool:
    """One that has ended does not, whether or not it was reaped."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def test_the_strategy_that_was_chosen_is_told_with_its_reason(hub: RunningHub, worker: MockWorker) -> None:
    plain = ask(hub, "POST", "/plan", {"command": ["true"]})[1]["placement"]
    assert (plain["strategy"], plain["automatic"], plain["since"]) == ("greedy", False, None)
    assert ask(hub, "PUT", "/policy", {"placement": {"strategy": "auto"}})[0] == 200
    submit(hub, id="placed", cpu_milli=100)
    chosen = ask(hub, "POST", "/plan", {"command": ["true"]})[1]["placement"]
    assert (chosen["strategy"], chosen["automatic"], chosen["rule"]) == ("greedy", True, 1)
    assert "one kind of worker" in chosen["why"]
    [check] = [each for each in ask(hub, "GET", "/doctor")[1]["checks"] if each["name"] == "placement"]
    assert check["ok"]
    assert check["detail"] == f"greedy, chosen by rule 1: {chosen['why']}"
    assert ask(hub, "PUT", "/policy", {})[0] == 200
