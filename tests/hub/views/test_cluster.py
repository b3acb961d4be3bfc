"""The cluster in columns, by the page and as frames: asked of a real hub, also by those who may see little of it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from tests.hub.asking import ask, wait_until

from dray.testing import RunningHub, make_capability, make_slots, make_spec, running_hub

FEATURES = ("job_started",)


@pytest.fixture
def hub() -> Iterator[RunningHub]:
    with running_hub() as running:
        yield running


class Frames:
    """One reader of `GET /live`."""

    def __init__(
        self, hub: RunningHub, query: str, token: str = "", after: str = "", path: str = "/live"
    ) -> None:
        self._line = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=30)
        headers = {"Authorization": f"Bearer {token or hub.token}"} | (
            {"Last-Event-ID": after} if after else {}
        )
        self._line.request("GET", f"/api/v1{path}{query}", headers=headers)
        self._answer = self._line.getresponse()
        self.status, self.place = self._answer.status, ""
        self.last: dict[str, Any] = {}

    def close(self) -> None:
        self._answer.close()
        self._line.close()

    def next(self) -> tuple[str, dict[str, Any]]:
        """The next event."""
        fields: dict[str, str] = {}
        while True:
            line = self._answer.readline().decode().rstrip("\n")
            assert line or fields or not self._answer.closed
            if not line and "data" in fields:
                self.place = fields["id"]
                self.last = json.loads(fields["data"])
                return fields["event"], self.last
            name, _, text = line.partition(": ")
            fields[name] = text

    def find(self, view: str, wanted: Any) -> Any:
        """Go on until something in a view is as it is wanted."""
        for _ in range(200):
            kind, data = self.next()
            assert kind == "rows", (kind, data)
            if view in data and (found := wanted(data[view])):
                return found
        raise AssertionError(f"{view} never came to that")


def get(hub: RunningHub, path: str, token: str = "") -> Any:
    status, answer = ask(hub, "GET", path, token=token)
    assert status == 200, answer
    return answer


def row(hub: RunningHub, name: str, token: str = "") -> dict[str, Any]:
    found = get(hub, "/cluster?group=rack", token)
    at = found["columns"]["id"].index(name)
    line = {field: cells[at] for field, cells in found["columns"].items()}
    lists = {"kind": "kinds", "state": "states", "user": "users", "queue": "queues", "group": "groups"}
    return line | {field: found[words][line[field]] for field, words in lists.items()}


def test_what_is_held_is_told_in_columns_sentences_and_frames(hub: RunningHub) -> None:
    ana, ben = hub.make_token("ana"), hub.make_token("ben", ["read"])
    assert "there is no worker" in get(hub, "/cluster")["headline"].lower()
    capability, slots = make_capability(gpus=4, gpu_type="H100"), make_slots(4)
    with (
        hub.worker("w1", capability=capability, slots=slots, features=FEATURES) as first,
        hub.worker("w2", capability=make_capability(cpus=8), slots=slots) as second,
    ):
        first.register(labels={"rack": "r7"})
        second.register()
        first.ready(4)
        spec = make_spec(id="train", name="train", gpu_count=3, max_runtime_s=3600)
        assert ask(hub, "POST", "/jobs", spec, token=ana)[0] == 201
        task = first.assigned()
        first.accept(task)
        first.started(task)
        assert ask(hub, "POST", "/jobs", make_spec(id="wide", gpu_count=2), token=ana)[0] == 201
        wait_until(lambda: get(hub, "/cluster")["totals"]["waiting"] == 1)

        told = get(hub, "/cluster", ana)
        assert (
            told["headline"]
            == "3 of 4 GPUs held (75 %). 1 idle while 1 task waits: 1 of them lie in pieces under 2."
        )
        assert told["workers"]["ready"] == 2
        line = row(hub, "w1", ana)
        assert (line["kind"], line["gpus"], line["held"], line["tasks"]) == ("H100 ×4", 4, 3000, 1)
        assert (line["user"], line["queue"], line["group"], line["used"]) == ("ana", "default", "r7", -1)
        assert 3500 < line["free_s"] <= 3600
        assert row(hub, "w2")["kind"] == "cpu"

        # A stranger sees that it is held, and by whom only as far as the policy says.
        shown = {"own": "", "sums": "others", "names": "ana"}
        for visibility, name in shown.items():
            assert ask(hub, "PUT", "/policy", {"visibility": visibility})[0] == 200
            assert row(hub, "w1", ben)["user"] == name
            cards = get(hub, "/workers/w1", ben)["cards"]
            holder = cards[0]["holders"][0]
            assert (holder["user"], holder["task_id"], holder["job_name"]) == (name, "", "")
            assert holder["until"]
            assert cards[3]["holders"] == []
        assert get(hub, "/workers/w1", ana)["cards"][2]["holders"][0]["task_id"] == "train"
        assert ask(hub, "PUT", "/policy", {"visibility": "shy"})[0] == 400
        for job in ("wide", "train"):
            assert ask(hub, "POST", f"/jobs/{job}/cancel")[0] == 200


def test_what_changes_comes_as_frames_and_nothing_is_missed(hub: RunningHub) -> None:
    ana, ben = hub.make_token("ana"), hub.make_token("ben")
    capability, slots = make_capability(gpus=4, gpu_type="H100"), make_slots(4)
    with (
        hub.worker("f1", capability=capability, slots=slots, features=FEATURES) as first,
        hub.worker("f2", capability=make_capability(cpus=8), slots=slots) as second,
    ):
        first.register()
        second.register()
        first.ready(4)
        assert ask(hub, "POST", "/jobs", make_spec(id="fine", gpu_count=3), token=ana)[0] == 201
        task = first.assigned()
        first.accept(task)
        first.started(task)
        frames = Frames(hub, "", ana)
        strange = Frames(hub, "?views=jobs,job:fine", ben)
        assert frames.next()[0] == strange.next()[0] == "ready"
        seen: dict[str, Any] = {"cpu_s": 5.0, "gpu_s": 1.0, "gpu_seen_s": 4.0}
        seen["cards"] = [
            {"index": card, "share": 0.5, "memory_bytes": 1 << 30, "idle_s": 700} for card in range(3)
        ]
        first.heartbeat(usage={"attempts": {task.attempt: seen}})
        busy = frames.find("cluster", lambda view: [one for one in view["rows"] if one[9] == 500])
        assert busy[0][:5] == ["f1", "H100 ×4", 5, 4, 3000]
        assert get(hub, "/cluster")["totals"]["idle"] == 3
        assert get(hub, "/workers/f1", ana)["cards"][0]["holders"][0]["idle_s"] == 700
        place = frames.place
        first.result(task)
        ended = frames.find("jobs", lambda view: [one for one in view["rows"] if one["state"] == "succeeded"])
        assert (ended[0]["id"], ended[0]["tasks"]["succeeded"]) == ("fine", 1)
        frames.close()

        # Who was cut off hears what it missed; who was somewhere else is told to begin anew, and then hears all.
        again = Frames(hub, "?views=job:fine,queues,cluster", ana, place)
        assert again.find("jobs", lambda view: view["rows"])[0]["id"] == "fine"
        again.close()
        epoch = place.partition(".")[2]
        for lost in (f"999999999.{epoch}", f"1.{int(epoch) + 1}", f"1.{epoch}"):
            for verb, state in (("drain", 2), ("resume", 5)):
                reader = Frames(hub, "?views=cluster", ana, lost)
                assert reader.next()[0] == "reset"
                assert ask(hub, "POST", f"/workers/f2/{verb}", {})[0] == 200
                reader.find(
                    "cluster", lambda view, is_so=state: [one for one in view["rows"] if one[2] == is_so]
                )
                reader.close()
        # Nothing of it was for who may not see the job: the first that they hear of is their own.
        assert ask(hub, "POST", "/jobs", make_spec(id="bens", gpu_count=64), token=ben)[0] == 201
        assert [one["id"] for one in strange.find("jobs", lambda view: view["rows"])] == ["bens"]
        strange.close()
    for query, after in (("?views=nobody", ""), ("", "x")):
        refused = Frames(hub, query, after=after)
        assert refused.status == 400
        refused.close()


def test_workers_come_by_the_page_and_a_cursor_belongs_to_its_list(hub: RunningHub) -> None:
    with (
        hub.worker("p1", capability=make_capability(gpus=8, gpu_type="A100")) as one,
        hub.worker("p2", capability=make_capability(gpus=2, gpu_type="A100")) as two,
        hub.worker("p3", capability=make_capability(cpus=2)) as three,
    ):
        for place, worker in enumerate((one, two, three)):
            worker.register(labels={"zone": f"z{place % 2}"})

        def walk(query: str) -> list[str]:
            found, cursor = [], ""
            while cursor is not None:
                page = get(hub, f"/workers?limit=1&q=p{query}{cursor and f'&cursor={cursor}'}")
                found += [worker["id"] for worker in page["workers"]]
                cursor = page["next_cursor"]
                assert page["matched"] >= len(found)
            return found

        assert walk("") == walk("&sort=name") == ["p1", "p2", "p3"]
        assert walk("&sort=-gpus") == ["p1", "p2", "p3"]
        assert walk("&sort=gpus") == ["p3", "p2", "p1"]
        assert walk("&kind=A100&sort=-name") == ["p2", "p1"]
        assert walk(f"&kind={quote('A100 ×8')}") == ["p1"]
        assert walk("&label=zone=z0") == ["p1", "p3"]
        assert walk("&state=offline") == []
        cursor = get(hub, "/workers?limit=1&q=p")["next_cursor"]
        for query in ("q=p&sort=gpus", "q=w", "q=p&state=ready", "q=p&label=zone=z0"):
            status, answer = ask(hub, "GET", f"/workers?limit=1&{query}&cursor={cursor}")
            assert (status, answer["error"]["problems"][0]["where"]) == (400, "cursor")
        for query in (
            "sort=secret",
            "sort=--gpus",
            "limit=0",
            "limit=1001",
            "state=asleep",
            "cursor=AAAA",
            "label=x",
        ):
            assert ask(hub, "GET", f"/workers?{query}")[0] == 400, query
    for path in ("/cluster", "/workers", "/workers/p1", "/live"):
        assert ask(hub, "HEAD", path)[0] == 200
