"""What was asked for, held and used, and which cards idle: asked of a real hub whose workers say what they see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.hub.asking import ask, wait_until

import dray
from dray.core.model.records.worker import Use
from dray.hub.documents.usage import read_shape, usage_document
from dray.hub.store.base import UseQuery, UseRow
from dray.testing import RunningHub, make_capability, make_slots, make_spec, running_hub

FEATURES = ("job_started",)


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub() as running:
        yield running


def usage(hub: RunningHub, by: str = "user", token: str = "") -> dict[str, Any]:
    status, answer = ask(hub, "GET", f"/usage?by={by}&window_s=3600", token=token)
    assert status == 200, answer
    assert answer["window_s"] == 3600
    return {one["name"]: one for one in answer["usage"]} | {"": answer["total"]}


def idle(hub: RunningHub, token: str = "") -> list[tuple[str, int, float]]:
    status, answer = ask(hub, "GET", "/usage/idle", token=token)
    assert status == 200, answer
    return [(one["task_id"], one["gpu"], one["idle_s"]) for one in answer["idle"]]


def card(index: int, share: float, idle_s: float = 0) -> dict[str, Any]:
    return {"index": index, "share": share, "memory_bytes": 1 << 30, "idle_s": idle_s}


def test_what_workers_see_is_summed_up_and_known_after_a_restart(hub: RunningHub) -> None:
    ana, ben = hub.make_token("ana"), hub.make_token("ben")
    asked = {"gpu_count": 2, "cpu_milli": 1000, "max_runtime_s": 3600, "queue": "default", "plugin": "sweep"}
    assert ask(hub, "POST", "/jobs", make_spec(id="a", name="train", **asked), token=ana)[0] == 201
    capability = make_capability(gpus=3)
    with hub.worker("w1", capability=capability, slots=make_slots(4), features=FEATURES) as worker:
        worker.register()
        worker.ready(4)
        first = worker.assigned(60)
        assert ask(hub, "POST", "/jobs", make_spec(id="b", gpu_count=1), token=ben)[0] == 201
        second = worker.assigned(60)
        for task in (first, second):
            worker.accept(task)
            worker.started(task)
        used = {"cpu_s": 50.0, "gpu_s": 10.0, "gpu_seen_s": 40.0, "max_gpu_bytes": 5 << 30}
        seen = {first.attempt: used | {"cards": [card(0, 0.5), card(1, 0.0, 30.0)]}, "9-9": used}
        worker.heartbeat(usage={"attempts": seen})
        wait_until(lambda: idle(hub) == [("a", 1, 30.0)])
        assert idle(hub, ana) == [("a", 1, 30.0)]
        assert idle(hub, ben) == []
        # Of what runs the newest word counts; nobody could look at the card of the other one.
        assert usage(hub)["ana"]["gpu_hours"]["used"] == pytest.approx(10 / 3600, abs=1e-4)
        assert usage(hub)["ben"]["gpu_hours"]["used"] is None
        assert usage(hub, token=ben).keys() == {"ben", ""}
        document = ask(hub, "GET", "/jobs/a", token=ana)[1]
        assert document["attempts"][0]["usage"]["gpu_s"] == 10.0
        ended = {"wall_s": 100, "cpu_s": 90.0, "gpu_s": 20.0, "gpu_seen_s": 190.0, "max_gpu_bytes": 6 << 30}
        worker.result(first, usage=ended)
        wait_until(lambda: ask(hub, "GET", "/jobs/a", token=ana)[1]["state"] == "succeeded")
        assert idle(hub) == []
    hub.restart()
    told = usage(hub)["ana"]
    held = told["gpu_hours"]["held"]
    # The worker's word about how long it ran, beside an hour that it might have taken.
    assert held == pytest.approx(2 * 100 / 3600, rel=0.01)
    assert told["gpu_hours"]["asked"] == pytest.approx(2.0, rel=0.01)
    assert told["gpu_hours"]["measured"] == pytest.approx(190 / 3600, rel=0.01)
    assert told["gpu_hours"]["used"] == pytest.approx(20 / 3600, rel=0.01)
    assert told["core_hours"]["used"] == pytest.approx(90 / 3600, rel=0.01)

    def named_lately() -> set[str]:
        return {one["name"] for one in ask(hub, "GET", "/usage?by=job&window_s=1")[1]["usage"]}

    wait_until(lambda: "a" not in named_lately())
    for by, name in (("queue", "default"), ("plugin", "sweep"), ("name", "train"), ("job", "a")):
        assert usage(hub, by)[name]["gpu_hours"]["held"] >= held


def test_programs_ask_for_it_too(hub: RunningHub) -> None:
    with dray.connect(hub.url, hub.token) as client:
        answer = client.usage(by="queue", since="1h")
        assert (answer["by"], answer["total"]["attempts"]) == ("queue", usage(hub)[""]["attempts"])
        assert client.idle_gpus() == []
    status, answer = ask(hub, "GET", "/usage?by=team")
    assert (status, "by" in answer["error"]["message"]) == (400, True)


def test_a_share_of_a_card_counts_as_one() -> None:
    assert read_shape("cpu_milli=500 gpus=1 gpu_milli=250 gpu_type=A100") == (0.25, 0.5)
    assert read_shape("require=('gpus=9', 'a') gpus=2") == (2.0, 0.0)
    assert read_shape("") == (0.0, 0.0)


def test_of_what_runs_only_the_part_inside_the_window_counts() -> None:
    row = UseRow("ana", "gpus=1", 1, 7_200_000, 3_600_000, number=(1 << 40) + 5, part=0.5)
    uses = {"1-5": Use(cpu_s=100, gpu_s=3600, gpu_seen_s=7200, at_ms=1)}
    told = usage_document(UseQuery("user", "", 0, 3_600_000), [row], uses, 10)["usage"][0]
    assert told["gpu_hours"] == {"asked": 2.0, "held": 1.0, "measured": 1.0, "used": 0.5}


def test_the_policy_warns_and_stops_what_idles_and_says_why(hub: RunningHub) -> None:
    idle_rules = {"idle": {"grace_s": 0, "warn_s": "1h", "stop_s": "2h"}}
    assert ask(hub, "PUT", "/policy", idle_rules)[0] == 200
    assert ask(hub, "POST", "/jobs", make_spec(id="lazy", gpu_count=1))[0] == 201
    capability = make_capability(gpus=1)
    with hub.worker("w2", capability=capability, slots=make_slots(1), features=FEATURES) as worker:
        worker.register()
        worker.ready()
        task = worker.assigned(60)
        worker.accept(task)
        worker.started(task)

        def say(idle_s: float) -> None:
            worker.heartbeat(
                usage={"attempts": {task.attempt: {"gpu_seen_s": 1, "cards": [card(0, 0, idle_s)]}}}
            )

        # A worker is believed no further than its task has run.
        say(9_000)
        worker.recv("ack", 60)
        assert ask(hub, "GET", "/jobs/lazy")[1]["attempts"][0]["idling"] == ""
        idle_rules["idle"] |= {"warn_s": "10ms", "stop_s": 0}
        assert ask(hub, "PUT", "/policy", idle_rules)[0] == 200

        def attempt() -> dict[str, Any]:
            say(9_000)
            found: dict[str, Any] = ask(hub, "GET", "/jobs/lazy")[1]["attempts"][0]
            return found

        wait_until(lambda: attempt()["idling"] == "warn")
        idle_rules["idle"] |= {"stop_s": "20ms"}
        assert ask(hub, "PUT", "/policy", idle_rules)[0] == 200
        wait_until(lambda: attempt()["idling"] == "stop")
        # Agents of before know nothing of this reason: they are told one that they stop for.
        assert worker.recv("job_cancel", 60).payload["reason"] == "user"
        worker.result(task, "killed", exit_code=143)
    document = wait_until(lambda: (job := ask(hub, "GET", "/jobs/lazy")[1])["state"] == "killed" and job)
    assert document["exit_class"] == "idle"
    assert "stopped by the policy" in document["error"]
    assert document["verdict"]["kind"] == "idle"
    assert ask(hub, "PUT", "/policy", {})[0] == 200
