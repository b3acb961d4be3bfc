"""What was: minutes of the cluster, what failed and whose fault it was, lists and counts of jobs, of a real hub."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.hub.asking import ask, wait_until

from dray.hub.views.past.failures import normalise
from dray.hub.views.past.history import Sample, spell_series
from dray.hub.views.spans import Span
from dray.testing import RunningHub, make_slots, make_spec, running_hub

FEATURES = ("job_started",)


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub() as running:
        yield running


def get(hub: RunningHub, path: str, token: str = "") -> Any:
    status, answer = ask(hub, "GET", path, token=token)
    assert status == 200, answer
    return answer


def ids(hub: RunningHub, query: str, token: str = "") -> list[str]:
    found: list[str] = []
    cursor = ""
    while cursor is not None:
        page = get(hub, f"/jobs?limit=2&{query}{cursor and f'&cursor={cursor}'}", token)
        found += [job["id"] for job in page["jobs"]]
        cursor = page["next_cursor"]
    return found


def has_ended(hub: RunningHub, job_id: str) -> bool:
    return get(hub, f"/jobs/{job_id}")["state"] in ("failed", "succeeded")


def test_failures_come_in_groups_with_a_verdict_and_jobs_are_found_by_how_they_ended(hub: RunningHub) -> None:
    ana, ben = hub.make_token("ana"), hub.make_token("ben")
    ends = {
        "sweep": [("failed", 1, f"ValueError: row {n} of /data/run{n}/x.csv") for n in range(3)],
        "large": [("failed", 137, "")],
        "fine": [("succeeded", 0, "")] * 5 + [("failed", 1, "cuBLAS says no")] * 3,
        "bens": [("failed", 3, "secret words")],
    }
    with (
        hub.worker("m1", slots=make_slots(1), features=FEATURES) as good,
        hub.worker("m2", slots=make_slots(1), features=FEATURES) as bad,
    ):
        good.register()
        bad.register()
        for name, found in ends.items():
            spec = make_spec(id=name, name=name, array={"first": 0, "last": len(found) - 1})
            assert ask(hub, "POST", "/jobs", spec, token=ben if name == "bens" else ana)[0] == 201
            for state, code, error in found:
                worker = bad if name == "fine" and code else good
                worker.ready(1)
                task = worker.assigned()
                worker.accept(task)
                worker.started(task)
                more: dict[str, Any] = {"exit_class": "oom"} if code == 137 else {}
                worker.result(task, state, code, error=error, **more)
            wait_until(partial(has_ended, hub, name))
        told = get(hub, "/failures", ana)
        groups = {group["names"][0]: group for group in told["groups"]}
        assert {name: (one["count"], one["fault"]) for name, one in groups.items()} == {
            "sweep": (3, "program"),
            "large": (1, "limit"),
            "fine": (3, "machine"),
        }
        assert groups["sweep"]["error"] == "ValueError: row # of /…"
        assert groups["sweep"]["bins"][-1] == 3
        assert groups["sweep"]["example"]["task_id"] == "sweep/2"
        assert groups["fine"]["workers"] == {"m2": 3}
        assert told["headline"].startswith("7 tries failed since ")
        assert "3 with m2" in told["headline"]
        assert told["others"] == {"others": 1}
        assert "secret" not in str(told)
        assert get(hub, "/failures?by=user", hub.token)["groups"][0]["users"] == {"ana": 6}
        assert get(hub, "/failures?from=2020-01-01T00:00:00Z&to=2020-01-02T00:00:00Z")["count"] == 0
        for visibility, others in (("own", {}), ("names", {"ana": 7})):
            assert ask(hub, "PUT", "/policy", {"visibility": visibility})[0] == 200
            assert get(hub, "/failures", ben)["others"] == others

        assert ids(hub, "sort=ended") == ["bens", "fine", "large", "sweep"]
        assert ids(hub, "sort=ended", ana) == ["fine", "large", "sweep"]
        assert ids(hub, "worker=m2") == ids(hub, "q=in") == ["fine"]
        assert ids(hub, "exit_class=oom&ended_after=1h&state=failed") == ["large"]
        assert ids(hub, "submitted_before=1h") == ids(hub, "worker=m1", ben)[1:] == []
        counted = get(hub, "/jobs:counts?ended_after=1h", ana)
        assert counted["ended"] == {"failed": 3}
        assert counted["headline"] == "0 run, 0 wait; 0 succeeded and 3 did not since 1h."
        assert get(hub, "/jobs:counts?user=ana", ben)["ended"] == {}
    cursor = get(hub, "/jobs?limit=1")["next_cursor"]
    for query in (
        f"/jobs?sort=ended&cursor={cursor}", "/jobs?cursor=5.5", "/jobs?sort=secret",
        "/jobs?ended_after=yesterday", "/failures?from=1h&to=2h", "/failures?by=password", "/failures?limit=9999",
        "/history?series=passwords", "/history?from=2999-01-01T00:00:00Z", "/history?step_s=-1",
    ):  # fmt: skip
        assert ask(hub, "GET", query)[0] == 400, query
    early = "0001-01-01T00:00:00Z"
    for query in (f"/jobs?ended_after={early}", "/failures?from=36500d", f"/history?from={early}"):
        assert ask(hub, "GET", query)[0] == 200, query


def test_errors_of_one_kind_are_one() -> None:
    same = ["worker 3 of /tmp/a/b failed at 0xdeadBEEF", "worker 17 of /var/x/y/z failed at 0x1"]
    assert len({normalise(error) for error in same}) == 1


def test_minutes_are_kept_over_a_restart_and_a_gap_is_no_zero(hub: RunningHub) -> None:
    minute = 60_000
    rows = [
        (minute, Sample(gpus=4, held=2000, starts=3, wait_p90_ms=1500, failures={"oom": 1})),
        (2 * minute, Sample(gpus=4, held=4000, starts=1, used=500)),
        (4 * minute, Sample(gpus=8)),
    ]
    packed = [(at_ms, msgspec.msgpack.encode(sample)) for at_ms, sample in rows]
    names = ("gpus_held", "starts", "used_share", "wait_p90_s", "failures")
    told = spell_series(packed, names, Span(minute, 5 * minute), minute)["series"]
    assert told["gpus_held"] == [2, 4, None, 0]
    assert told["starts"] == [3, 1, None, 0]
    assert told["used_share"] == [None, 0.5, None, None]
    wide = spell_series(packed, names, Span(0, 6 * minute), 3 * minute)
    assert wide["series"]["gpus_held"] == [3, 0]
    assert (wide["series"]["starts"], wide["series"]["wait_p90_s"], wide["failures"]) == (
        [4, 0],
        [1.5, None],
        {"oom": 1},
    )
    # The first one is taken at the start, and outlives it.
    wait_until(lambda: 0 in get(hub, "/history?series=gpus&from=2h")["series"]["gpus"])
    hub.restart()
    assert 0 in get(hub, "/history?series=gpus&from=2h&to=0")["series"]["gpus"]
    told = get(hub, "/history?series=gpus,starts&from=2h")
    assert told["step_s"] == 60
    assert len(told["at"]) == len(told["series"]["gpus"]) in (120, 121)
    assert ask(hub, "HEAD", "/history")[0] == ask(hub, "HEAD", "/failures")[0] == 200


def test_a_job_says_what_it_waited_for_while_it_waits_and_after_its_end(hub: RunningHub) -> None:
    token = hub.make_token("cal")
    for job_id, more in (("held1", {"hold": True}), ("wait1", {})):
        spec = make_spec(id=job_id, name=job_id, **more)
        assert ask(hub, "POST", "/jobs", spec, token=token)[0] == 201

    def waited(job_id: str) -> Any:
        return get(hub, f"/jobs/{job_id}", token)["waits"]

    # So long that it is written down once it is over.
    wait_until(lambda: (waited("wait1") or {"seconds": 0})["seconds"] > 1.1)
    assert [part["reason"] for part in waited("held1")["parts"]] == ["held"]
    assert {part["reason"] for part in waited("wait1")["parts"]} <= {"room", "turn"}
    with hub.worker("m9", slots=make_slots(1), features=FEATURES) as worker:
        worker.register()
        worker.ready(1)
        task = worker.assigned()
        worker.accept(task)
        worker.started(task)
        worker.result(task, "succeeded", 0)
        wait_until(partial(has_ended, hub, "wait1"))
    first, again = waited("wait1"), get(hub, "/jobs/wait1/why", token)["waits"]
    assert first == again
    assert first["parts"][0]["reason"] == "room"
    assert first["message"].startswith("waited 1.")
    assert ask(hub, "POST", "/jobs/held1/cancel", token=token)[0] == 200
    assert waited("held1")["parts"][0]["reason"] == "held"


def test_a_machine_on_which_others_of_the_job_went_well_is_not_blamed(hub: RunningHub) -> None:
    token = hub.make_token("dee")
    spec = make_spec(id="mixed", name="mixed", array={"first": 0, "last": 6})
    assert ask(hub, "POST", "/jobs", spec, token=token)[0] == 201
    with hub.worker("m7", slots=make_slots(1), features=FEATURES) as worker:
        worker.register()
        for number in range(7):
            worker.ready(1)
            task = worker.assigned()
            worker.accept(task)
            worker.started(task)
            worker.result(task, *(("failed", 1) if number > 3 else ("succeeded", 0)))
        wait_until(partial(has_ended, hub, "mixed"))
    told = get(hub, "/failures", token)
    assert [(group["count"], group["fault"]) for group in told["groups"]] == [(3, "program")]
