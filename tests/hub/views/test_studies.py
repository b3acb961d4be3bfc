"""What if, and what would have been: asked of a real hub, worked out in a process beside it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.core.harness import Cluster
from tests.hub.asking import ask

from dray.core.model.policies.check import check_policy
from dray.core.model.policies.policy import pack_policy
from dray.core.scheduling.passes.snapshot import pack_scene
from dray.hub.aside.imagining import Change, Contrast, Outlook, imagine
from dray.testing import RunningHub, make_slots, make_spec, running_hub

FEATURES = ("job_started",)
LONG_S = 600


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub() as running:
        yield running


class Silent:
    """Somebody waits, and does not care how far it is."""

    def __call__(self) -> bool:
        return True

    def tell(self, done: int, of: int, what: str = "") -> None:
        assert 0 < done <= of


def contrast(cluster: Cluster, change: Change) -> Contrast:
    pieces = [msgspec.msgpack.encode(change), *pack_scene(cluster.state, cluster.clock, 100)]
    return imagine(pieces, Silent())


def starts(side: Outlook) -> dict[str, int]:
    return {one.job_id: one.p50_ms // 1000 for one in side.found}


def test_then_differs_from_today_by_the_change_alone() -> None:
    cluster = Cluster()
    for name in ("w1", "w2"):
        cluster.join(name, credit=9, gpus=1)
    for number in range(4):
        cluster.submit(f"j{number}", user="ann" if number < 3 else "bob", gpu_count=1, max_runtime_s=100)
    for job_id in ("j0", "j1"):
        cluster.run(cluster.current(job_id))
    same = contrast(cluster, Change())
    assert starts(same.today) == starts(same.then) == {"j2": 100, "j3": 100}
    assert same.today.held == same.then.held
    assert same.today.gpus == 2
    more = contrast(cluster, Change(more=[("w1", 1)]))
    assert (starts(more.then), more.then.gpus) == ({"j2": 0, "j3": 100}, 3)
    assert starts(contrast(cluster, Change(drain=["w2"])).then) == {"j2": 100, "j3": 200}
    none = contrast(cluster, Change(drain=["w1", "w2"])).then
    assert (none.found, sorted(none.unknown)) == ([], [("j2", 0), ("j3", 0)])
    policy = pack_policy(check_policy({"quotas": [{"user": "ann", "gpus": 0}]}))
    assert starts(contrast(cluster, Change(policy=policy)).then) == {"j3": 100}
    assert not cluster.state.touched.workers.keys() - {"w1", "w2"}


def finished(hub: RunningHub, path: str, body: Any, token: str) -> Any:
    status, study = ask(hub, "POST", path, body, token=token)
    assert status == 201, study
    while study["state"] in ("waiting", "running"):
        study = ask(hub, "GET", f"/studies/{study['id']}?wait_s=20", token=token)[1]
    assert study["state"] == "done", study
    return study["answer"]


def test_a_hub_says_what_more_workers_a_drain_and_another_policy_would_do(hub: RunningHub) -> None:
    token, other = hub.make_token("ana"), hub.make_token("ben")
    with hub.worker("m1", slots=make_slots(1), features=FEATURES) as worker:
        worker.register()
        for number in range(5):
            spec = make_spec(id=f"s{number}", name="train", max_runtime_s=LONG_S)
            assert ask(hub, "POST", "/jobs", spec, token=token)[0] == 201
            if number < 2:
                worker.ready(1)
                task = worker.assigned()
                worker.accept(task)
                worker.started(task)
                worker.result(task, "succeeded", 0) if not number else None
        more = finished(hub, "/whatif", {"more": [{"like": "m1", "count": 3}]}, token)
        assert more["today"]["tasks"] == more["then"]["tasks"] == 3
        assert more["then"]["wait_p90_s"] == 0
        assert more["headline"].startswith("Half of the 3 tasks that wait start within 0 s")
        assert {job["id"] for job in more["jobs"]} == {"s2", "s3", "s4"}
        assert [user["user"] for user in more["users"]] == ["ana"]
        veiled = finished(hub, "/whatif", {"drain": ["m1"], "jobs": [make_spec(name="guest")]}, other)
        assert veiled["jobs"] == []
        assert veiled["users"][0]["user"] == "others"
        # The guest as well.
        assert (veiled["then"]["tasks"], veiled["then"]["unknown"]) == (3, 4)
        assert [(one["name"], one["then"]) for one in veiled["new"]] == [("guest", None)]
        asked = {"since": "1h", "more": [{"like": "m1", "count": 4}], "policies": {"other": {}}}
        replayed = finished(hub, "/sim", asked, token)
        assert [one["name"] for one in replayed["replays"]] == ["as it was", "with more workers", "other"]
        was, then, _ = replayed["replays"]
        assert was["jobs"] == 5
        assert then["wait_p90_s"] <= was["wait_p90_s"]
        advice = finished(hub, "/capacity", {"since": "1h", "counts": [4]}, token)
        assert [(one["like"], one["count"]) for one in advice["options"]] == [("m1", 4)]
        assert any("guess" in line for line in advice["assumes"])
        assert ask(hub, "GET", "/capacity", token=token)[0] == 200


def test_questions_are_bounded_and_called_off(hub: RunningHub) -> None:
    token, other = hub.make_token("cal"), hub.make_token("dan")
    refused = {
        "no worker 'nobody'": {"drain": ["nobody"]},
        "more.like": {"more": [{"like": "nobody"}]},
        "quotas": {"policy": {"quotas": [{"user": "ann", "gpus": "many"}]}},
    }
    for words, body in refused.items():
        status, answer = ask(hub, "POST", "/whatif", body, token=token)
        assert (status in (400, 422), words in str(answer)) == (True, True), answer
    status, study = ask(hub, "POST", "/capacity", {"since": "30d"}, token=token)
    assert status == 201
    status, answer = ask(hub, "POST", "/sim", {}, token=token)
    assert (status, study["id"] in str(answer)) == (409, True)
    # The same question once more is the same study.
    assert ask(hub, "POST", "/capacity", {"since": "30d"}, token=token)[1]["id"] == study["id"]
    assert ask(hub, "GET", f"/studies/{study['id']}", token=other)[0] == 404
    assert ask(hub, "DELETE", f"/studies/{study['id']}", token=other)[0] == 404
    status, ended = ask(hub, "DELETE", f"/studies/{study['id']}", token=token)
    assert (status, ended["state"]) == (200, "cancelled")
    now = datetime.now(UTC).isoformat()
    status, nothing = ask(hub, "POST", "/sim", {"since": now}, token=token)
    assert status == 201
    nothing = ask(hub, "GET", f"/studies/{nothing['id']}?wait_s=30", token=token)[1]
    assert nothing["state"] == "failed"
    assert "go back further" in nothing["error"]
