"""Who holds what and for how long: users beside each other, and bars from the past into what is foreseen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.hub.asking import ask, wait_until
from tests.hub.views.test_cluster import Frames, get

from dray.testing import RunningHub, make_capability, make_slots, make_spec, running_hub

FEATURES = ("job_started",)


@pytest.fixture
def hub() -> Iterator[RunningHub]:
    with running_hub(estimate_every_s=0.2) as running:
        yield running


def bars(hub: RunningHub, query: str, token: str = "") -> list[list[Any]]:
    return [bar for row in get(hub, f"/timeline?{query}", token)["rows"] for bar in row["bars"]]


def test_cards_are_drawn_from_the_past_into_what_is_foreseen(hub: RunningHub) -> None:
    ana, ben = hub.make_token("ana"), hub.make_token("ben")
    capability = make_capability(gpus=2, gpu_type="H100")
    with hub.worker("t1", capability=capability, slots=make_slots(4), features=FEATURES) as worker:
        worker.register()
        for name, state in (("past", "failed"), ("runs", "")):
            worker.ready(1)
            spec = make_spec(id=name, name=name, gpu_count=2, max_runtime_s=3600)
            assert ask(hub, "POST", "/jobs", spec, token=ana)[0] == 201
            task = worker.assigned()
            worker.accept(task)
            worker.started(task)
            if state:
                worker.result(task, state, 1)
        worker.ready(1)
        spec = make_spec(id="next", gpu_count=1, max_runtime_s=600)
        assert ask(hub, "POST", "/jobs", spec, token=ben)[0] == 201

        found = wait_until(lambda: [bar for bar in bars(hub, "", ben) if bar[3] == "foreseen"])
        ((card, begin, end, _, user, *named),) = found
        assert (card in (0, 1), user, named, end - begin) == (True, "ben", ["next", 0, ""], 600_000)
        drawn = {(bar[0], bar[3], bar[4], bar[5]) for bar in bars(hub, "worker=t1", ana)}
        assert drawn >= {
            (0, "failed", "ana", "past"),
            (1, "failed", "ana", "past"),
            (0, "runs", "ana", "runs"),
        }
        assert {bar[5] for bar in bars(hub, "worker=t1", ben) if bar[4] == "others"} == {""}
        (running,) = (bar for bar in bars(hub, "job=runs", ana) if bar[0] == 0 and bar[3] == "runs")
        assert 3_500_000 < running[2] - running[1] < 3_601_000
        assert begin >= running[2] - 60_000
        assert bars(hub, "kind=A100") == bars(hub, "from=2h&to=1h", ana) == []
        assert get(hub, "/timeline?kind=H100")["rows"][0]["cards"] == 2
        assert "next start is foreseen" in get(hub, "/timeline")["headline"]

        # Side by side: what ana holds, what ben waits for, and what each may know of the other.
        told = get(hub, "/users", ben)
        mine = {row["user"]: row for row in told["users"]}
        assert mine.keys() == {"ben", "others"}
        assert (mine["ben"]["waiting"], mine["ben"]["share"], mine["others"]["gpus_held"]) == (1, 0.5, 2)
        assert told["headline"].startswith("ben waits ")
        everybody = {row["user"]: row for row in get(hub, "/users")["users"]}
        assert everybody["ana"]["times_share"] == 2
        assert everybody["ana"]["wait_p50_s"] is not None
        assert ask(hub, "PUT", "/policy", {"visibility": "own"})[0] == 200
        assert [row["user"] for row in get(hub, "/users", ben)["users"]] == ["ben"]
    assert ask(hub, "GET", "/timeline?worker=nobody")[0] == 404
    assert ask(hub, "GET", "/timeline?job=runs", token=ben)[0] == 404
    for query in ("limit=65", "from=2999-01-01T00:00:00Z", "from=1h&to=2h", "job=%2F"):
        assert ask(hub, "GET", f"/timeline?{query}")[0] == 400, query


def test_events_come_by_the_page_and_the_stream_takes_the_same_filters(hub: RunningHub) -> None:
    ana, ben = hub.make_token("ana"), hub.make_token("ben")
    only = Frames(hub, "?job=paged&type=job_ended", ana, path="/events")
    for job, token in (("paged", ana), ("theirs", ben)):
        assert ask(hub, "POST", "/jobs", make_spec(id=job, gpu_count=9), token=token)[0] == 201
        assert ask(hub, "POST", f"/jobs/{job}/cancel", token=token)[0] == 200
    assert only.next() == ("job_ended", only.last)
    assert only.last["job_id"] == "paged"
    only.close()
    found: list[dict[str, Any]] = []
    cursor = ""
    while cursor is not None:
        page = get(hub, f"/events:page?from=1h&limit=2{cursor and f'&cursor={cursor}'}", ana)
        found += page["events"]
        cursor = page["next_cursor"]
    assert [one["id"] for one in found] == sorted(
        {one["id"] for one in found}, key=lambda text: [int(part) for part in text.split(".")]
    )
    assert "theirs" not in {one.get("job_id") for one in found}
    assert {one["type"] for one in found if one.get("job_id") == "paged"} >= {"job_submitted", "job_ended"}
    ended = get(hub, "/events:page?job=paged&type=job_ended")["events"]
    assert [one["type"] for one in ended] == ["job_ended"]
    assert get(hub, "/events:page?from=2020-01-01T00:00:00Z&to=2020-01-02T00:00:00Z")["events"] == []
    for query in ("type=A%20B", "limit=0", "cursor=x", "from=tomorrow"):
        assert ask(hub, "GET", f"/events:page?{query}")[0] == 400, query


def is_noted(hub: RunningHub, token: str, minutes: int) -> bool:
    loads = get(hub, "/jobs/busy/load", token)["loads"]
    return bool(loads) and len(loads[0]["at"]) >= minutes


def test_what_a_task_uses_is_remembered(hub: RunningHub) -> None:
    ana = hub.make_token("ana")
    with hub.worker("l1", capability=make_capability(gpus=1), features=FEATURES) as worker:
        worker.register()
        worker.ready(1)
        assert ask(hub, "POST", "/jobs", make_spec(id="busy", gpu_count=1), token=ana)[0] == 201
        task = worker.assigned()
        worker.accept(task)
        worker.started(task)
        for cpu_s in (1.0, 3.0):
            card = {"index": 0, "share": 0.25, "memory_bytes": 1 << 30, "idle_s": 0}
            used = {
                "cpu_s": cpu_s,
                "max_rss_bytes": 5 << 20,
                "gpu_s": 1.0,
                "gpu_seen_s": 4.0,
                "cards": [card],
            }
            worker.heartbeat(usage={"attempts": {task.attempt: used}})
            wait_until(partial(is_noted, hub, ana, min(int(cpu_s), 2)))
        (load,) = get(hub, "/jobs/busy/load?task=0", ana)["loads"]
        assert (load["worker"], load["gpu_share"][-1], load["gpu_bytes"][-1]) == ("l1", 0.25, 1 << 30)
        assert load["cores"][0] is None
        assert load["cores"][1] > 0
        assert ask(hub, "GET", "/jobs/busy/load?task=5", token=ana)[0] == 404
        assert ask(hub, "GET", "/jobs/busy/load", token=hub.make_token("ben"))[0] == 404


def test_the_command_line_draws_them(hub: RunningHub) -> None:
    for words, said in {
        ("history", "--since", "2h"): "gpus_held",
        ("failures",): "failed since",
        ("timeline",): "…",
        ("users",): "USER",
    }.items():
        done = dray(hub, *words)
        assert done.returncode == 0, done.stderr
        assert said in done.stdout + done.stderr
    assert ask(hub, "POST", "/jobs", make_spec(id="spared", gpu_count=9))[0] == 201
    assert "never starts" in dray(hub, "cancel", "spared", "--dry-run").stdout
    assert "priority" in dray(hub, "set", "spared", "priority=3", "--dry-run").stdout
    assert get(hub, "/jobs/spared")["state"] == "pending"


def dray(hub: RunningHub, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dray.cli.main", "--hub", hub.url, *words]
    environment = {**os.environ, "DRAY_TOKEN": hub.token}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def test_a_feed_whose_place_is_lost_says_so_and_goes_on(hub: RunningHub) -> None:
    for lost in ("999999999.0",):
        reader = Frames(hub, "", after=lost, path="/events")
        kind, data = reader.next()
        assert (kind, data["type"]) == ("reset", "reset")
        assert ask(hub, "POST", "/jobs", make_spec(id="after", gpu_count=99))[0] == 201
        while (found := reader.next()[1])["type"] != "job_submitted":
            pass
        assert found["job_id"] == "after"
        reader.close()
    reader = Frames(hub, "", after="1.0", path="/events")
    assert reader.next()[0] != "reset"
    reader.close()
