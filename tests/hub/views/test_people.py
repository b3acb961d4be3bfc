"""Who holds what and for how long: users beside each other, and bars from the past into what is foreseen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.hub.asking import ask, wait_until
from tests.hub.views.test_cluster import Frames, get

from dray.testing import RunningHub, make_capability, make_slots, make_spec, running_hub

FEATURES = ("job_started",)


@pytest.fixture(scope="module")
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
        assert 3_500_000 < running[2] - running[1] <= 3_600_000
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
