"""Many jobs changed by one request, over HTTP and the Python client, on a real hub."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.hub.asking import ask

from dray.client.faces.hub import Hub
from dray.errors import Forbidden, InvalidInput
from dray.testing import MockWorker, RunningHub, make_slots, make_spec, running_hub


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    """A hub without a worker: whatever waits, waits on."""
    with running_hub() as running:
        yield running


@pytest.fixture(scope="module")
def client(hub: RunningHub) -> Iterator[Hub]:
    with hub.connect() as connected:
        yield connected


def submit(hub: RunningHub, count: int = 1, token: str = "", **fields: Any) -> list[str]:
    status, jobs = ask(hub, "POST", "/jobs:batch", [make_spec("true", **fields)] * count, token=token)
    assert status == 201, jobs
    return [job["id"] for job in jobs]


def act(hub: RunningHub, action: str, token: str = "", **which: Any) -> Any:
    status, answer = ask(hub, "POST", "/jobs:act", {"action": action, **which}, token=token)
    assert status == 200, answer
    return answer


def states(hub: RunningHub, ids: list[str]) -> list[str]:
    return [ask(hub, "GET", f"/jobs/{job_id}")[1]["state"] for job_id in ids]


def test_a_filter_chooses_and_a_dry_run_only_counts(hub: RunningHub) -> None:
    mine = submit(hub, 3, name="eval-3", queue="default", labels={"sweep": "7", "kind": "x"})
    other = submit(hub, 2, name="train", labels={"sweep": "8"})
    which: dict[str, Any] = {
        "labels": {"sweep": "7"},
        "name": "ev?l-*",
        "states": ["pending"],
        "queue": "default",
    }
    counted = act(hub, "cancel", dry_run=True, **which)
    assert (counted["count"], counted["states"], sorted(counted["ids"])) == (3, {"pending": 3}, sorted(mine))
    assert sum(counted["users"].values()) == 3
    assert states(hub, mine) == ["pending"] * 3
    done = act(hub, "cancel", **which)
    assert (done["action"], done["count"], done["dry_run"]) == ("cancel", 3, False)
    assert states(hub, mine) == ["killed"] * 3
    assert states(hub, other) == ["pending"] * 2
    assert act(hub, "cancel", **which)["count"] == 0, "what has ended is not meant any more"
    records = ask(hub, "GET", "/audit?limit=10")[1]["records"]
    assert {row["target"] for row in records if row["action"] == "cancel"} >= set(mine), "one record for each"


def test_each_filter_chooses_by_itself(hub: RunningHub) -> None:
    lea = hub.make_token("lea", ["submit", "read"])
    (labelled,) = submit(hub, name="plain", labels={"alone": "1", "more": "2"})
    (queued,) = submit(hub, name="plain", queue="apart", labels={"alone": "2"})
    (hers,) = submit(hub, name="her-own", token=lea)
    for which, wanted in (
        ({"labels": {"alone": "1"}}, [labelled]),
        ({"queue": "apart"}, [queued]),
        ({"user": "lea"}, [hers]),
        ({"name": "her-*"}, [hers]),
        ({"states": ["running"]}, []),
    ):
        assert act(hub, "cancel", dry_run=True, **which)["ids"] == wanted, which


def test_hold_and_release_tell_of_those_left_as_they_are(hub: RunningHub) -> None:
    ids = submit(hub, 4, name="kept")
    ask(hub, "POST", f"/jobs/{ids[0]}/hold")
    held = act(hub, "hold", name="kept")
    assert (held["count"], held["unchanged"]) == (3, {"held already": 1})
    assert all(ask(hub, "GET", f"/jobs/{job_id}")[1]["held"] for job_id in ids)
    released = act(hub, "release", ids=[*ids[:2], "nothing"])
    assert released["count"] == 2
    assert released["unchanged"] == {"there is no such job that lives, or it is not yours": 1}
    assert act(hub, "requeue", name="kept")["unchanged"] == {"nothing of it runs": 4}


def test_more_jobs_than_one_turn_takes(hub: RunningHub) -> None:
    for _ in range(3):
        submit(hub, 500, name="crowd")
    assert act(hub, "cancel", name="crowd")["count"] == 1500
    assert ask(hub, "GET", "/jobs?name=crowd&state=pending")[1]["jobs"] == []


def test_everybody_changes_their_own_and_an_admin_all(hub: RunningHub, client: Hub) -> None:
    ann, bob = hub.make_token("ann"), hub.make_token("bob")
    hers, his = submit(hub, 2, ann, name="shared"), submit(hub, 2, bob, name="shared")
    assert act(hub, "hold", ann, all=True)["users"] == {"ann": 2}
    assert act(hub, "hold", ann, ids=his)["count"] == 0
    status, refused = ask(hub, "POST", "/jobs:act", {"action": "cancel", "user": "bob"}, token=ann)
    assert (status, "only an admin" in refused["error"]["message"]) == (403, True)
    assert client.act("hold", user="bob")["count"] == 2
    assert client.act("release", ids=[*hers, *his])["users"] == {"ann": 2, "bob": 2}
    reader = hub.make_token("ann", ["read"])
    assert ask(hub, "POST", "/jobs:act", {"action": "hold", "all": True}, token=reader)[0] == 403


def test_what_names_no_jobs_or_cannot_be_is_refused(hub: RunningHub, client: Hub) -> None:
    for body, words in (
        ({"action": "cancel"}, "say which jobs are meant"),
        ({"action": "cancel", "states": ["failed"]}, "'failed' cannot be changed any more"),
        ({"action": "hold", "all": True, "grace_s": 1}, "goes with cancel"),
        ({"action": "erase", "all": True}, "action"),
        ({"action": "hold", "labels": ["a"]}, "labels"),
        ({"action": "hold", "all": True, "limit": 3}, "is no field of this body"),
    ):
        status, answer = ask(hub, "POST", "/jobs:act", body)
        assert (status, words in str(answer)) == (400, True), answer
    with pytest.raises(InvalidInput, match="say which jobs are meant"):
        client.act("cancel")
    with hub.connect(token=hub.make_token("ann")) as ann, pytest.raises(Forbidden):
        ann.act("cancel", user="bob")


def test_what_runs_is_queued_again_or_cancelled_with_the_grace_given() -> None:
    with running_hub() as hub, MockWorker(hub.url, hub.token, "w1", slots=make_slots(batch=2)) as worker:
        worker.register()
        running = submit(hub, 2)
        worker.ready(2)
        for task in [worker.assigned(30), worker.assigned(30)]:
            worker.accept(task)
        waiting = submit(hub, 1, at_most_once=True)
        answer = act(hub, "requeue", all=True)
        assert (answer["count"], answer["unchanged"]) == (2, {"it may start once only (at_most_once)": 1})
        assert {worker.recv("job_cancel", 30).payload["task_id"] for _ in running} == set(running)
        assert act(hub, "cancel", all=True, grace_s=5)["count"] == 3
        assert states(hub, running + waiting) == ["killed"] * 3
