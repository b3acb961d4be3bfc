"""Hold, dependencies, edits, requeue and alternatives over HTTP and the Python client, on a real hub."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from dray.client.faces.hub import Hub
from dray.core.model.records.records import JobState
from dray.errors import DrayError
from dray.testing import RunningHub, make_slots, make_spec, running_hub

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    """A hub without a worker: whatever waits, waits on."""
    with running_hub() as running:
        yield running


@pytest.fixture
def quiet_hub() -> Iterator[RunningHub]:
    """A hub where nothing else waits for a worker."""
    with running_hub() as running:
        yield running


@pytest.fixture
def client(hub: RunningHub) -> Iterator[Hub]:
    with hub.connect() as connected:
        yield connected


def call(hub: RunningHub, method: str, path: str, body: Any = None, token: str = "") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        sent = {"Authorization": f"Bearer {token or hub.token}", "Content-Type": "application/json"}
        packed = None if body is None else json.dumps(body)
        connection.request(method, f"/api/v1{path}", packed, sent)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def submit(hub: RunningHub, token: str = "", **fields: Any) -> dict[str, Any]:
    status, job = call(hub, "POST", "/jobs", make_spec("true", **fields), token)
    assert status == 201, job
    return dict(job)


def refusal(answer: tuple[int, Any]) -> tuple[int, str, list[str]]:
    status, document = answer
    return status, document["error"]["message"], [p["where"] for p in document["error"].get("problems", [])]


def wait_for(holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.01)
    return found


# --- hold -------------------------------------------------------------------------------------------------------------


def test_hold_and_release(hub: RunningHub) -> None:
    job = submit(hub)
    status, held = call(hub, "POST", f"/jobs/{job['id']}/hold")
    assert (status, held["held"], held["reason"]) == (200, True, f"held by {held['held_by']}")
    assert call(hub, "POST", f"/jobs/{job['id']}/hold")[1]["note"].startswith("held already, by ")
    why = call(hub, "GET", f"/jobs/{job['id']}/why")[1]
    assert why["fix"] == f"release it: dray release {job['id']}"
    assert [blocker["kind"] for blocker in why["blockers"]] == ["held"]
    listed = {row["id"]: row["reason"] for row in call(hub, "GET", "/jobs?limit=1000")[1]["jobs"]}
    assert listed[job["id"]].startswith("held by")
    released = call(hub, "POST", f"/jobs/{job['id']}/release")[1]
    assert (released["held"], released["reason"]) == (False, "no worker has joined yet")
    assert call(hub, "POST", f"/jobs/{job['id']}/release")[1]["note"] == "it was not held"
    kinds = [record["action"] for record in call(hub, "GET", "/audit?limit=10")[1]["records"]]
    assert kinds.count("hold") >= 1
    assert kinds.count("release") >= 1


def test_what_has_ended_is_neither_held_nor_edited_nor_queued_again(hub: RunningHub) -> None:
    job = submit(hub)["id"]
    call(hub, "POST", f"/jobs/{job}/cancel")
    asked = [("POST", "/hold", None), ("POST", "/release", None), ("POST", "/requeue", None)]
    for verb, path, body in [*asked, ("PATCH", "", {"priority": 1})]:
        status, message, _ = refusal(call(hub, verb, f"/jobs/{job}{path}", body))
        assert status == 409
        assert f"job {job} has ended (killed)" in message
        assert f"dray submit --from {job}" in message


def test_only_the_owner_and_an_admin_change_a_job(hub: RunningHub) -> None:
    ann, bob = hub.make_token("ann"), hub.make_token("bob")
    job = submit(hub, ann)["id"]
    for verb, path, body in (
        ("POST", "/hold", None),
        ("PATCH", "", {"priority": 1}),
        ("POST", "/requeue", {}),
    ):
        assert call(hub, verb, f"/jobs/{job}{path}", body, bob)[0] == 404
    assert call(hub, "POST", f"/jobs/{job}/hold", None, ann)[0] == 200
    assert call(hub, "PATCH", f"/jobs/{job}", {"priority": 4})[1]["priority"] == 4
    status, message, where = refusal(call(hub, "POST", "/jobs", make_spec("x", after=[job]), bob))
    assert (status, where) == (400, ["after[0]"])
    assert f"there is no job {job!r} to wait for, or it is not yours" in message


# --- dependencies -----------------------------------------------------------------------------------------------------


def test_a_job_that_ended_before_the_submit_is_looked_up_in_the_rows(quiet_hub: RunningHub) -> None:
    good, bad = submit(quiet_hub)["id"], submit(quiet_hub)["id"]
    with quiet_hub.worker() as worker:
        worker.register()
        worker.run_one()
        worker.run_one("failed")
        wait_for(lambda: call(quiet_hub, "GET", f"/jobs/{bad}")[1]["state"] == "failed")
    quiet_hub.restart()
    assert submit(quiet_hub, after=[good])["after"] == []
    assert submit(quiet_hub, after=[f"fail:{bad}", f"any:{good}"])["state"] == "pending"
    lost = submit(quiet_hub, id="lost", after=[f"ok:{bad}"])
    assert (lost["state"], lost["exit_class"]) == ("killed", "dependency")
    assert lost["error"] == f"it waited for job {bad} to succeed, and that job ended failed"
    assert submit(quiet_hub, after=["ok:lost"])["state"] == "killed"


def test_a_batch_may_wait_for_itself_but_not_in_a_circle(hub: RunningHub) -> None:
    chain = [
        make_spec("true", id=f"link{n}", after=[f"link{n + 1}"] if n < 1999 else []) for n in range(2000)
    ]
    for start in range(0, 2000, 500):
        part = chain[2000 - start - 500 : 2000 - start]
        assert call(hub, "POST", "/jobs:batch", part)[0] == 201
    assert call(hub, "GET", "/jobs/link0")[1]["reason"] == "waits for job link1 to succeed"
    call(hub, "POST", "/jobs/link1999/cancel")
    assert call(hub, "GET", "/jobs/link0")[1]["state"] == "killed"
    circle = [make_spec("x", id=f"c{n}", after=[f"any:c{(n + 1) % 3}"]) for n in range(3)]
    status, message, where = refusal(call(hub, "POST", "/jobs:batch", [*circle, make_spec("x", id="c3")]))
    assert (status, where) == (400, ["after"])
    assert "in a circle: c0 -> c1 -> c2 -> c0" in message
    assert call(hub, "GET", "/jobs/c3")[0] == 404


def test_bad_conditions_are_refused_with_which(hub: RunningHub) -> None:
    job = submit(hub)["id"]
    body = [make_spec("x", after=["nobody", job, "any:nothing"]), make_spec("x", after=["ok:none"])]
    status, _, where = refusal(call(hub, "POST", "/jobs:batch", body))
    assert (status, where) == (400, ["[0].after[0]", "[0].after[2]", "[1].after[0]"])
    assert refusal(call(hub, "POST", "/jobs", make_spec("x", id="me", after=["me"])))[2] == ["after"]


def test_an_edit_closes_no_circle(hub: RunningHub) -> None:
    first, second = submit(hub)["id"], ""
    second = submit(hub, after=[first])["id"]
    third = submit(hub, after=[f"any:{second}"])["id"]
    for job, word in ((third, "already: a circle"), (first, "would wait for itself")):
        status, message, where = refusal(call(hub, "PATCH", f"/jobs/{first}", {"after": [job]}))
        assert (status, where) == (400, ["after"])
        assert word in message
    assert call(hub, "PATCH", f"/jobs/{third}", {"after": [first]})[1]["after"] == [f"ok:{first}"]
    done = submit(hub)["id"]
    call(hub, "POST", f"/jobs/{done}/cancel")
    assert "can never be met" in refusal(call(hub, "PATCH", f"/jobs/{third}", {"after": [done]}))[1]
    assert call(hub, "PATCH", f"/jobs/{third}", {"after": []})[1]["reason"] == "no worker has joined yet"


# --- edits ------------------------------------------------------------------------------------------------------------


def test_a_job_that_waits_is_edited_and_runs_by_its_new_spec(quiet_hub: RunningHub) -> None:
    job = submit(quiet_hub, cpu_milli=64_000, labels={"a": "1"})["id"]
    changes = {"cpu_milli": 1000, "queue": "night", "priority": 5, "command": ["echo", "new"], "labels": {}}
    status, edited = call(quiet_hub, "PATCH", f"/jobs/{job}", changes)
    assert (status, edited["edited"], edited["queue"], edited["labels"]) == (200, True, "night", {})
    assert call(quiet_hub, "PATCH", f"/jobs/{job}", changes)[1]["note"].startswith("it was so already")
    quiet_hub.restart()
    with quiet_hub.worker() as worker:
        worker.register()
        task = worker.run_one()
        assert (task.spec["command"], task.spec["cpu_milli"]) == (["echo", "new"], 1000)


def test_a_repeated_submit_is_compared_with_what_was_submitted(hub: RunningHub) -> None:
    spec = make_spec("true", id="again")
    assert call(hub, "POST", "/jobs", spec)[0] == 201
    assert call(hub, "PATCH", "/jobs/again", {"priority": 9})[0] == 200
    status, job = call(hub, "POST", "/jobs", spec)
    assert (status, job["priority"]) == (200, 9)
    assert call(hub, "POST", "/jobs", {**spec, "priority": 9})[0] == 409


@pytest.mark.parametrize(
    ("changes", "where", "what"),
    [
        ({}, [], "give at least one field"),
        ({"prioritty": 1}, ["prioritty"], "did you mean 'priority'?"),
        ({"priority": 2**40}, ["priority"], "must be 2147483647 or less"),
        ({"node_count": 2}, ["node_count"], "cannot be changed: submit a new job"),
        ({"type": "service"}, ["type"], "cannot be changed"),
        ({"user_id": "eve"}, ["user_id"], "cannot be changed"),
        ({"array": {"last": 9}}, ["array"], "only array.limit can be changed"),
        ({"deadline": "2001-01-01T00:00:00Z"}, ["deadline"], "is in the past"),
        ({"gpu_count": 2, "gpu_milli": 300}, ["gpu_milli"], "a share of a card goes with one card"),
        ({"command": None}, ["command"], "is empty"),
    ],
)
def test_bad_edits_change_nothing(hub: RunningHub, changes: Any, where: list[str], what: str) -> None:
    array: Any = {"array": {"last": 3}} if "array" in changes else {}
    job = submit(hub, **array)["id"]
    before = call(hub, "GET", f"/jobs/{job}")[1]
    status, message, found = refusal(call(hub, "PATCH", f"/jobs/{job}", changes))
    assert (status, found) == (400, where)
    assert what in message
    assert call(hub, "GET", f"/jobs/{job}")[1] == before


def test_null_takes_a_field_back_and_no_cards_means_none(hub: RunningHub) -> None:
    job = submit(hub, gpu_type="A100", min_vram_gb=16, job_tier="training", labels={"a": "1"})["id"]
    spec = call(hub, "PATCH", f"/jobs/{job}", {"gpu_count": 0, "labels": None})[1]["spec"]
    assert (spec["gpu_count"], "gpu_type" in spec, "labels" in spec) == (0, False, False)
    assert call(hub, "PATCH", f"/jobs/{job}", {"job_tier": "evaluation"})[1]["priority"] == 10
    plain = submit(hub)["id"]
    assert call(hub, "PATCH", f"/jobs/{plain}", {"job_tier": "evaluation"})[1]["priority"] == 10
    assert call(hub, "PATCH", f"/jobs/{job}", {"priority": 3})[1]["priority"] == 3
    assert call(hub, "PATCH", f"/jobs/{job}", {"priority": None})[1]["priority"] == 10


def test_an_array_that_has_begun_keeps_its_resources(quiet_hub: RunningHub) -> None:
    job = submit(quiet_hub, array={"last": 3, "limit": 1})["id"]
    with quiet_hub.worker(slots=make_slots(4)) as worker:
        worker.register()
        worker.ready(4)
        worker.assigned()
        status, message, where = refusal(
            call(quiet_hub, "PATCH", f"/jobs/{job}", {"memory_bytes": 1, "retries": 3})
        )
        assert (status, where) == (400, ["memory_bytes", "retries"])
        assert "has been placed" in message
        changes = {"array": {"limit": 2}, "priority": 3, "name": "n", "scheduling_timeout_s": 900}
        assert call(quiet_hub, "PATCH", f"/jobs/{job}", changes)[0] == 200
        assert worker.assigned().task_id == f"{job}/1"


# --- requeue ----------------------------------------------------------------------------------------------------------


def test_requeue_stops_and_queues_again(quiet_hub: RunningHub) -> None:
    job = submit(quiet_hub)["id"]
    assert "nothing of it runs" in call(quiet_hub, "POST", f"/jobs/{job}/requeue")[1]["note"]
    with quiet_hub.worker() as worker:
        worker.register()
        worker.ready(1)
        first = worker.assigned()
        worker.accept(first)
        worker.started(first)
        wait_for(lambda: call(quiet_hub, "GET", f"/jobs/{job}")[1]["phase"] == "running")
        assert "note" not in call(quiet_hub, "POST", f"/jobs/{job}/requeue")[1]
        assert worker.recv("job_cancel").payload["reason"] == "user"
        worker.result(first, "killed", exit_class="cancelled")
        worker.ready(1)
        second = worker.assigned()
        worker.accept(second)
        worker.result(second, "succeeded")
        done = wait_for(
            lambda: (found := call(quiet_hub, "GET", f"/jobs/{job}")[1])["state"] == "succeeded" and found
        )
    assert [attempt["phase"] for attempt in done["attempts"]] == ["killed", "succeeded"]
    assert (done["failures"], done["losses"]) == (0, 0)
    assert done["attempts"][0]["cancel_reason"] == "requeued"


def test_what_may_start_once_only_is_not_queued_again(hub: RunningHub) -> None:
    job = submit(hub, at_most_once=True, array={"last": 1})["id"]
    assert "may start once only" in refusal(call(hub, "POST", f"/jobs/{job}/requeue"))[1]
    assert refusal(call(hub, "POST", f"/jobs/{job}/requeue", {"task": 7}))[0] == 404
    call(hub, "POST", f"/jobs/{job}/cancel", {"task": 1})
    assert "its result never changes" in refusal(call(hub, "POST", f"/jobs/{job}/requeue", {"task": 1}))[1]


# --- deadlines and alternatives ---------------------------------------------------------------------------------------


def test_a_deadline_in_the_past_is_refused_unless_the_job_is_there_already(hub: RunningHub) -> None:
    status, message, where = refusal(
        call(hub, "POST", "/jobs", make_spec("x", deadline="2001-01-01T00:00:00+01:00"))
    )
    assert (status, where) == (400, ["deadline"])
    assert "is in the past" in message
    assert submit(hub, deadline="2100-01-01T00:00:00Z")["spec"]["deadline"] == "2100-01-01T00:00:00Z"


def test_the_worker_gets_the_alternative_that_was_chosen(quiet_hub: RunningHub) -> None:
    variants = [{"name": "plain", "command": ["cpu"], "env": {"HOW": "slow"}, "cpu_milli": 500}]
    job = submit(quiet_hub, variants=variants, env={"A": "1"})["id"]
    with quiet_hub.worker() as worker:
        worker.register()
        task = worker.run_one()
        assert (task.spec["command"], task.spec["env"]) == (["cpu"], {"A": "1", "HOW": "slow"})
        assert (task.spec["cpu_milli"], "variants" in task.spec) == (500, False)
    shown = call(quiet_hub, "GET", f"/jobs/{job}")[1]
    assert [attempt["variant"] for attempt in shown["attempts"]] == ["plain"]
    assert shown["spec"]["variants"] == variants


def test_the_alternative_that_fits_is_chosen_and_named(quiet_hub: RunningHub) -> None:
    variants = [
        {"name": "cuda", "gpu_type": "A100", "command": ["cuda"]},
        {"command": ["cores"], "env": {"SLOW": "1"}},
    ]
    job = submit(quiet_hub, variants=variants)["id"]
    with quiet_hub.worker() as worker:
        worker.register()
        task = worker.run_one()
        assert (task.spec["command"], task.spec["env"], task.spec["gpu_count"]) == (
            ["cores"],
            {"SLOW": "1"},
            0,
        )
    shown = call(quiet_hub, "GET", f"/jobs/{job}")[1]
    assert [attempt["variant"] for attempt in shown["attempts"]] == ["1"]


# --- the Python client ------------------------------------------------------------------------------------------------


def test_the_client_holds_releases_edits_and_requeues(client: Hub) -> None:
    first = client.submit(["true"], hold=True)
    second = client.submit(["true"], after=[first])
    assert first.status().reason.startswith("held by")
    assert second.status().reason == f"waits for job {first.id} to succeed"
    assert first.release()["held"] is False
    assert first.hold()["held"] is True
    assert first.edit(gpus=2, memory="1g", time_limit="2h", priority=4)["spec"]["gpu_count"] == 2
    assert first.edit(priority=None, memory=None)["spec"].get("memory_bytes") is None
    assert second.edit(after=f"any:{first.id}")["after"] == [f"any:{first.id}"]
    assert "nothing of it runs" in client.requeue(first)["note"]
    first.cancel()
    assert first.wait(DEADLINE_S).state is JobState.KILLED
    with pytest.raises(DrayError, match="has ended"):
        first.edit(priority=1)
    with pytest.raises(DrayError, match="parts of several cards"):
        _ = client.submit(["true"], gpus=1.5)


def test_gangs_are_edited_by_their_total(client: Hub) -> None:
    gang = client.submit(["true"], gpus=4, nodes=2)
    assert gang.edit(gpus=2)["spec"]["gpu_count"] == 1
