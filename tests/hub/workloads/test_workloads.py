"""Workloads as a program sees them over HTTP: whose they are, what they are filled with, and how they end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.hub.asking import ask, wait_until

from dray.testing import RunningHub, make_slots, running_hub


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub() as running:
        yield running


class People:
    """Each asks with a token of their own."""

    def __init__(self, hub: RunningHub) -> None:
        self._hub = hub
        self._tokens: dict[str, str] = {}

    def __call__(self, who: str, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        token = self._tokens.setdefault(who, self._hub.make_token(who, ["submit"]))
        status, answer = ask(self._hub, method, path, body, token=token, **more)
        return status, answer


@pytest.fixture(scope="module")
def people(hub: RunningHub) -> People:
    return People(hub)


def good(answer: tuple[int, Any]) -> Any:
    assert answer[0] in (200, 201), answer
    return answer[1]


def test_a_campaign_from_its_draft_to_its_end(hub: RunningHub, people: People) -> None:
    terms = {"labels": {"team": "vision"}, "priority": 3, "defaults": {"env": {"A": "1"}}, "width": 2}
    jobs = [
        {"name": "train", "command": ["true"], "array": {"last": 2}},
        {"command": ["true"], "priority": 9},
    ]
    made = good(people("ann", "POST", "/workloads", {"id": "sweep", **terms, "jobs": jobs}))
    assert (made["created"], made["state"], made["tasks"]["total"]) == (True, "draft", 4)
    again = good(people("ann", "POST", "/workloads", {"id": "sweep", **terms, "jobs": jobs}))
    assert (again["created"], again["submitted"]) == (False, made["submitted"])
    train, judge = [good(people("ann", "GET", f"/jobs/{one}")) for one in made["submitted"]]
    assert (train["priority"], train["labels"], train["spec"]["env"]) == (3, {"team": "vision"}, {"A": "1"})
    assert (judge["priority"], judge["workload"]) == (9, "sweep")
    assert "not started" in good(people("ann", "GET", f"/jobs/{train['id']}/why"))["summary"]
    changed = good(people("ann", "PATCH", "/workloads/sweep", {"priority": 5, "labels": {"team": "speech"}}))
    assert changed["priority"] == 5
    assert good(people("ann", "GET", f"/jobs/{train['id']}"))["labels"] == {"team": "speech"}
    assert [good(people("ann", "GET", f"/jobs/{one['id']}"))["priority"] for one in (train, judge)] == [5, 9]
    assert people("ann", "PATCH", "/workloads/sweep", {"width": 1, "etag": made["etag"]})[0] == 409
    assert people("ann", "POST", "/workloads/sweep/archive")[0] == 409
    assert good(people("ann", "POST", "/workloads/sweep/start"))["state"] == "running"
    with hub.worker("w1", slots=make_slots(batch=4)) as worker:
        worker.register()
        worker.ready(4)
        first = [worker.assigned() for _ in range(2)]
        for task in first:
            worker.accept(task)
        wait_until(lambda: good(people("ann", "GET", "/workloads/sweep"))["tasks"]["running"] == 2)
        assert good(people("ann", "POST", "/workloads/sweep/seal"))["state"] == "completing"
        refused = people("ann", "POST", "/workloads/sweep/jobs", [{"command": ["true"]}])
        assert refused[1]["error"]["code"] == "closed"
        assert "was sealed" in refused[1]["error"]["message"]
        for task in first:
            worker.result(task)
        for _ in range(2):
            worker.ready(2)
            task = worker.assigned()
            worker.accept(task)
            worker.result(task)
    ended = good(people("ann", "GET", "/workloads/sweep?wait_s=20"))
    assert (ended["state"], ended["tasks"]["succeeded"], ended["jobs"]) == (
        "succeeded",
        4,
        {"total": 2, "ended": 2},
    )
    assert len(good(people("ann", "GET", "/jobs?workload=sweep"))["jobs"]) == 2
    assert people("ann", "POST", "/workloads/sweep/start")[0] == 409
    assert good(people("ann", "POST", "/workloads/sweep/archive"))["state"] == "archived"
    assert "sweep" not in [one["id"] for one in good(people("ann", "GET", "/workloads"))["workloads"]]
    assert "sweep" in [one["id"] for one in good(people("ann", "GET", "/workloads?all=1"))["workloads"]]
    assert good(people("ann", "DELETE", "/workloads/sweep"))["removed"]
    assert people("ann", "GET", "/workloads/sweep")[0] == 404


def test_strangers_see_nothing_and_members_add(people: People) -> None:
    good(people("ann", "POST", "/workloads", {"id": "shared", "members": ["bob"], "start": True}))
    job = good(people("bob", "POST", "/workloads/shared/jobs", [{"command": ["true"]}]))["jobs"][0]
    assert (job["user"], job["workload"]) == ("bob", "shared")
    assert good(people("bob", "GET", "/workloads/shared"))["tasks"]["total"] == 1
    assert "shared" in [one["id"] for one in good(people("bob", "GET", "/workloads"))["workloads"]]
    assert people("bob", "POST", "/workloads/shared/pause")[1]["error"]["code"] == "forbidden"
    assert "shared" not in [one["id"] for one in good(people("eve", "GET", "/workloads"))["workloads"]]
    doors = [
        ("GET", "/workloads/shared", None),
        ("PATCH", "/workloads/shared", {"width": 1}),
        ("DELETE", "/workloads/shared", None),
        *(
            ("POST", f"/workloads/shared/{verb}", None)
            for verb in ("start", "pause", "seal", "cancel", "archive")
        ),
        ("POST", "/workloads/shared/scale", {"width": 1}),
        ("POST", "/workloads/shared/spread", {"mode": "pack"}),
        ("POST", "/workloads/shared/jobs", [{"command": ["true"]}]),
        ("POST", "/workloads/shared/attach", {"attach": [job["id"]]}),
    ]
    for method, path, body in doors:
        status, answer = people("eve", method, path, body)
        assert status == 404, (path, answer)
        assert "or it is not yours" in answer["error"]["message"]
    # Nor by the field of a job, nor by its name.
    status, answer = people("eve", "POST", "/jobs", {"command": ["true"], "workload": "shared"})
    assert (status, answer["error"]["problems"][0]["where"]) == (400, "workload")
    assert people("eve", "POST", "/workloads", {"id": "shared"})[0] == 409
    mine = good(people("eve", "POST", "/jobs", {"command": ["true"], "hold": True}))
    assert people("eve", "PATCH", f"/jobs/{mine['id']}", {"workload": "shared"})[0] == 400
    assert good(people("ann", "POST", "/workloads/shared/cancel"))["state"] == "cancelled"
    assert good(people("bob", "GET", f"/jobs/{job['id']}"))["state"] == "killed"


def test_jobs_go_in_and_out(people: People) -> None:
    good(people("ann", "POST", "/workloads", {"id": "late", "start": True}))
    job = good(people("ann", "POST", "/jobs", {"command": ["true"], "hold": True}))["id"]
    other = good(people("ann", "POST", "/jobs", {"command": ["true"], "hold": True}))["id"]
    done = good(
        people("ann", "POST", "/workloads/late/attach", {"attach": [job, "nowhere"], "detach": [other]})
    )
    assert (done["changed"], done["jobs"]["total"]) == (1, 1)
    assert "there is no job 'nowhere'" in done["unchanged"]["nowhere"]
    assert "not in workload late" in done["unchanged"][other]
    assert good(people("ann", "POST", "/workloads/late/attach", {"detach": [job]}))["jobs"]["total"] == 0


def test_what_is_wrong_is_said_and_nothing_is_made(people: People) -> None:
    bad = {
        "id": "bad",
        "budget": {"money": -1},
        "distribution": {"mode": "sprad"},
        "jobs": [{"command": ["true"]}],
    }
    status, answer = people("ann", "POST", "/workloads", bad)
    assert status == 400
    assert {"budget.money", "distribution.mode"} <= {one["where"] for one in answer["error"]["problems"]}
    status, answer = people("ann", "POST", "/workloads", {"id": "bad", "jobs": [{"command": []}]})
    assert status == 400
    assert people("ann", "POST", "/workloads", {"id": "no good"})[0] == 400
    assert people("ann", "POST", "/workloads?dry_run=1", {"id": "bad", "width": 3})[0] == 200
    assert people("ann", "GET", "/workloads/bad")[0] == 404
    good(people("ann", "POST", "/workloads", {"id": "sound"}))
    assert people("ann", "PATCH", "/workloads/sound", {"widht": 3})[1]["error"]["code"] == "invalid_spec"
    assert people("ann", "POST", "/workloads/sound/scale", {"width": -3})[0] == 400
    assert people("ann", "POST", "/workloads/sound/spread", {"mode": "shares"})[0] == 400


def test_a_hub_that_is_killed_at_any_verb_knows_what_it_answered(hub: RunningHub, people: People) -> None:
    terms = {"id": "kept", "budget": {"gpu_hours": 2}, "jobs": [{"id": "kept-1", "command": ["true"]}]}
    states: list[str] = []
    before: dict[str, Any] = {}
    for verb, body in (
        ("", terms), ("/start", None), ("/pause", None), ("/scale", {"width": 3}), ("/seal", None),
        ("/spread", {"mode": "spread", "by": "site"}), ("/cancel", None), ("/archive", None),
    ):  # fmt: skip
        path = f"/workloads/kept{verb}" if verb else "/workloads"
        good(people("ann", "POST", path, body))
        before = good(people("ann", "GET", "/workloads/kept"))
        hub.kill()
        hub.start()
        assert good(people("ann", "GET", "/workloads/kept")) == before, verb
        states.append(before["state"])
    assert states == ["draft", "running", "paused", "paused", "paused", "paused", "cancelled", "archived"]
    assert (before["width"], before["distribution"]["by"], before["budget"]["gpu_hours"]) == (3, "site", 2)
    good(people("ann", "DELETE", "/workloads/kept"))
    hub.kill()
    hub.start()
    assert people("ann", "GET", "/workloads/kept")[0] == 404


def test_what_failed_runs_again_and_results_are_told_once(hub: RunningHub, people: People) -> None:
    array = {"id": "again-a", "command": ["true"], "array": {"first": 5, "last": 7}}
    jobs = [array, {"command": ["true"], "hold": True}]
    terms = {"id": "again", "start": True, "jobs": jobs, "deadline": "2099-01-01T00:00:00Z"}
    held = good(people("ann", "POST", "/workloads", terms))["submitted"][1]
    first = good(people("ann", "GET", "/workloads/again/results"))
    assert (first["results"], first["done"]) == ([], False)
    with hub.worker("w2", slots=make_slots(batch=4)) as worker:
        worker.register()
        worker.ready(3)
        for number, task in enumerate([worker.assigned() for _ in range(3)]):
            worker.accept(task)
            worker.result(task, "failed" if number < 2 else "succeeded", int(number < 2))
        after, told = first["next"], list[str]()
        while len(told) < 3:
            page = good(people("ann", "GET", f"/workloads/again/results?after={after}&wait_s=20&limit=2"))
            told += [f"{one['task']} {one['state']}" for one in page["results"]]
            after = page["next"]
        assert sorted(told) == ["again-a/0 failed", "again-a/1 failed", "again-a/2 succeeded"]
        assert len(set(told)) == 3
        health = good(people("ann", "GET", "/workloads/again"))["health"]
        assert health["verdict"] == "failing"
        assert "2 of 3 tasks" in health["reasons"][0]
        why = good(people("ann", "GET", "/workloads/again/why"))
        assert (why["waiting"], why["groups"][0]["first"]) == (1, held)
        again = good(people("ann", "POST", "/workloads/again/retry"))
        assert again["tasks"] == 2
        assert good(people("ann", "POST", "/workloads/again/retry"))["tasks"] == 0
        spec = good(people("ann", "GET", f"/jobs/{again['jobs'][0]}"))["spec"]
        assert spec["array"] in ({"indices": "5-6"}, {"first": 5, "last": 6})
        forecast = good(people("ann", "GET", "/workloads/again/forecast"))
        assert (forecast["left"], forecast["meets_deadline"]) == (3, 1.0)
        good(people("ann", "POST", f"/jobs/{held}/cancel"))
        good(people("ann", "POST", "/workloads/again/seal"))
        worker.ready(2)
        for task in [worker.assigned() for _ in range(2)]:
            worker.accept(task)
            worker.result(task)
        over = good(people("ann", "GET", "/workloads/again?wait_s=20"))
    assert (over["state"], over["failed_share"]) == ("succeeded", 0)
    rest = good(people("ann", "GET", f"/workloads/again/results?after={after}"))
    assert len(rest["results"]) == 2, "what was cancelled before it began has no result"
    assert good(people("ann", "GET", f"/workloads/again/results?after={rest['next']}"))["done"]
    everything = good(people("ann", "GET", "/workloads/again/results?limit=1000"))["results"]
    assert len(everything) == 5
    seen: list[str] = []
    cursor = ""
    while cursor is not None:
        page = good(
            people("ann", "GET", f"/workloads/again/tasks?limit=2{f'&cursor={cursor}' if cursor else ''}")
        )
        seen += [task["id"] for task in page["tasks"]]
        cursor = page["next_cursor"]
    assert len(seen) == len(set(seen)) == 6
    for path in ("results", "why", "forecast", "health", "tasks", "distribution"):
        assert people("eve", "GET", f"/workloads/again/{path}")[0] == 404
    assert people("eve", "POST", "/workloads/again/retry")[0] == 404
    assert good(people("ann", "GET", "/workloads/again/distribution"))["parts"] is not None
