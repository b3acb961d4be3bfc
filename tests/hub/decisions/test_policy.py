"""The policy of a real hub: applied, refused, kept over restarts, and what it does to submits."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import dray
from dray.errors import HubUnavailable
from dray.testing import RunningHub, make_capability, make_slots, make_spec, running_hub

GPUS = make_capability(gpus=8)
WIDE = make_slots(batch=8)


class Asker:
    """Plain HTTP against a hub."""

    def __init__(self, hub: RunningHub, token: str = "") -> None:
        self.hub, self.token = hub, token

    def __call__(
        self, method: str, path: str, body: Any = None, token: str = "", **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        connection = http.client.HTTPConnection(urlsplit(self.hub.url).netloc, timeout=60)
        sent = {"Authorization": f"Bearer {token or self.token or self.hub.token}", **headers}
        data = None
        if body is not None:
            data, sent["Content-Type"] = json.dumps(body), "application/json"
        try:
            connection.request(method, f"/api/v1{path}", data, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, json.loads(answer.read()), found
        finally:
            connection.close()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    with running_hub(tmp_path / "h") as running:
        yield running


@pytest.fixture
def ask(hub: RunningHub) -> Asker:
    return Asker(hub)


def value_of(answer: Any, name: str) -> tuple[Any, str]:
    (found,) = [item for item in answer["values"] if item["name"] == name]
    return found["value"], found["origin"]


def test_apply_show_and_restart(hub: RunningHub, ask: Asker) -> None:
    status, before, _ = ask("GET", "/policy")
    assert (status, before["origin"]) == (200, "default")
    assert value_of(before, "preemption.strategy") == ("priority", "default")
    wanted = {"queues": {"gold": {"weight": 3}}, "fair_share": {"half_life_s": "1d"}}

    status, tried, _ = ask("PUT", "/policy?dry_run=1", wanted)
    assert (status, tried["changed"]) == (200, False)
    assert {"name": "fair_share.half_life_s", "old": 604800, "new": 86400} in tried["changes"]
    assert ask("GET", "/policy")[1] == before

    status, done, _ = ask("PUT", "/policy", wanted)
    assert (status, done["changed"]) == (200, True)
    assert done["changes"] == tried["changes"]
    for _ in range(2):
        after = ask("GET", "/policy")[1]
        assert after["origin"] == "applied"
        assert value_of(after, "queues.gold.weight")[0] == 3
        assert value_of(after, "queues.gold.weight")[1].startswith(f"applied by {after['user']} at 20")
        assert value_of(after, "queues.gold.order") == ("fifo", "default")
        hub.kill()
        hub.start()
    status, again, _ = ask("PUT", "/policy", wanted)
    assert (status, again["changed"], again["changes"]) == (200, False, [])

    records = ask("GET", "/audit")[1]["records"]
    (record,) = [line for line in records if line["action"] == "apply_policy"]
    assert "queues.gold.weight" in record["detail"]


def test_bad_policies_change_nothing(ask: Asker) -> None:
    before = ask("GET", "/policy")[1]
    status, refused, _ = ask("PUT", "/policy", {"queus": {}, "quotas": [{"gpus": -1}], "preemption": 3})
    assert (status, refused["error"]["code"]) == (400, "invalid_policy")
    assert [problem["where"] for problem in refused["error"]["problems"]] == [
        "queus",
        "quotas[0].gpus",
        "preemption",
    ]
    bodies: list[Any] = [[], "fifo", 3]
    for body in bodies:
        assert ask("PUT", "/policy", body)[0] == 400
    assert ask("GET", "/policy")[1] == before


def test_only_admins_change_it_and_everybody_sees_it(hub: RunningHub, ask: Asker) -> None:
    token = hub.make_token("ben", ("submit",))
    assert ask("PUT", "/policy", {}, token)[0] == 403
    assert ask("GET", "/policy", token=token)[0] == 200
    assert ask("GET", "/config", token=token)[0] == 403
    settings = ask("GET", "/config")[1]
    assert value_of(settings, "port") == (0, "--port")
    assert value_of(settings, "accept_s") == (30.0, "default")


def test_a_queue_with_jobs_in_it_stays(ask: Asker) -> None:
    status, job, _ = ask("POST", "/jobs", make_spec(queue="gold"))
    assert status == 201
    status, refused, _ = ask("PUT", "/policy", {"queues": {"silver": {}}})
    assert (status, refused["error"]["code"]) == (409, "conflict")
    (problem,) = refused["error"]["problems"]
    assert problem["where"] == "queues.gold"
    assert f"1 tasks wait and 0 run in it ({job['id']})" in problem["what"]
    assert ask("PUT", "/policy?force=1", {"queues": {"silver": {}}})[0] == 409
    dry = ask("PUT", "/policy?dry_run=1", {"queues": {"silver": {}}})[1]
    assert [line["where"] for line in dry["problems"]] == ["queues.gold"]
    assert ask("GET", "/policy")[1]["origin"] == "default"
    ask("POST", f"/jobs/{job['id']}/cancel", {})
    assert ask("PUT", "/policy", {"queues": {"silver": {}}})[0] == 200


def test_a_quota_below_what_runs_needs_force(hub: RunningHub, ask: Asker) -> None:
    with hub.worker(capability=GPUS, slots=WIDE) as worker:
        worker.register()
        worker.ready(credits=4)
        ask("POST", "/jobs", make_spec(gpu_count=3, user_id="ana", plugin="sweeps"))
        worker.accept(worker.assigned())
        small = {"quotas": [{"user": "*", "gpus": 2}]}
        status, refused, _ = ask("PUT", "/policy", small)
        assert status == 409
        assert "is 2, but user 'ana' holds 3 now" in refused["error"]["problems"][0]["what"]
        plugin = {"quotas": [{"plugin": "sweeps", "gpus": 2.5}, {"queue": "default", "gpus": 3}]}
        assert len(ask("PUT", "/policy", plugin)[1]["error"]["problems"]) == 1
        assert (
            ask("PUT", "/policy", {"quotas": [{"user": "*", "gpus": 2}, {"user": "ana", "gpus": 4}]})[0]
            == 200
        )
        assert ask("PUT", "/policy?force=1", small)[1]["changed"] is True
        # What was forced once is no news with the next change.
        assert ask("PUT", "/policy", {**small, "preemption": {"wait_s": 5}})[0] == 200
        quotas = {line["name"]: line for line in ask("GET", "/quotas")[1]["quotas"]}
        assert (quotas["ana"]["kind"], quotas["ana"]["gpus_held"], quotas["ana"]["standing"]) == (
            "user",
            3,
            "over",
        )
        token = hub.make_token("ben", ("read",))
        (own,) = ask("GET", "/quotas", token=token)[1]["quotas"]
        assert (own["name"], own["gpus_held"], own["gpus_limit"], own["standing"]) == ("ben", 0, 2, "ok")


def test_only_listed_queues_take_jobs(hub: RunningHub, ask: Asker) -> None:
    ask("PUT", "/policy", {"queues": {"gold": {}, "silver": {}}})
    status, refused, _ = ask("POST", "/jobs", make_spec(queue="glod"))
    assert (status, refused["error"]["code"]) == (400, "invalid_spec")
    assert refused["error"]["problems"] == [
        {
            "where": "queue",
            "what": "there is no queue 'glod'; did you mean 'gold'?; this hub has gold, silver, default",
        }
    ]
    status, refused, _ = ask("POST", "/jobs:batch", [make_spec(queue="gold"), make_spec(queue="x")])
    assert status == 400
    assert refused["error"]["problems"][0]["where"] == "[1].queue"
    assert ask("POST", "/plan", make_spec(queue="x"))[0] == 400
    assert ask("GET", "/jobs")[1]["jobs"] == []
    status, job, _ = ask("POST", "/jobs", make_spec(queue="silver"))
    assert status == 201
    status, refused, _ = ask("PATCH", f"/jobs/{job['id']}", {"queue": "x"})
    assert (status, refused["error"]["problems"][0]["where"]) == (400, "queue")
    assert ask("PATCH", f"/jobs/{job['id']}", {"queue": "gold"})[1]["queue"] == "gold"
    assert ask("POST", "/jobs", make_spec())[0] == 201
    with hub.connect() as client, pytest.raises(dray.errors.InvalidSpec, match="no queue 'x'"):
        _ = client.submit(["true"], queue="x")


def test_submits_are_paced(hub: RunningHub, ask: Asker) -> None:
    ask("PUT", "/policy", {"pacing": {"submits": [{"user": "*", "per_minute": 1, "burst": 3}]}})
    assert ask("POST", "/jobs:batch", [make_spec()] * 2, **{"Idempotency-Key": "k"})[0] == 201
    assert ask("POST", "/jobs", make_spec(id="one"))[0] == 201
    status, refused, headers = ask("POST", "/jobs", make_spec())
    assert (status, refused["error"]["code"]) == (429, "too_many_requests")
    told_s = refused["error"]["retry_after_s"]
    assert 10 < told_s <= int(headers["retry-after"]) <= 60
    assert ask("POST", "/jobs:batch", [make_spec()] * 2)[0] == 429
    # What was made before costs nothing again.
    assert ask("POST", "/jobs:batch", [make_spec()] * 2, **{"Idempotency-Key": "k"})[0] == 200
    assert ask("POST", "/jobs", make_spec(id="one"))[0] == 200
    assert len(ask("GET", "/jobs")[1]["jobs"]) == 3
    token = hub.make_token("ben")
    assert ask("POST", "/jobs", make_spec(), token)[0] == 201
    buckets = {line["name"]: line for line in ask("GET", "/paces")[1]["submits"]}
    assert 0 <= buckets["ben"]["tokens"] <= 3
    assert [line["name"] for line in ask("GET", "/paces", token=token)[1]["submits"]] == ["*", "ben"]


def test_the_client_waits_as_told(hub: RunningHub, ask: Asker, caplog: pytest.LogCaptureFixture) -> None:
    ask("PUT", "/policy", {"pacing": {"submits": [{"user": "*", "per_minute": 120, "burst": 1}]}})
    with hub.connect() as client:
        # A debt of two seconds: the next one comes too early on a slow machine as well.
        assert ask("POST", "/jobs:batch", [make_spec()] * 5)[0] == 201
        jobs = [client.submit(["true"]) for _ in range(2)]
    assert len({job.id for job in jobs}) == 2
    assert "may submit 120 jobs a minute" in caplog.text


def test_caps_and_starts_are_listed(hub: RunningHub, ask: Asker) -> None:
    ask(
        "PUT",
        "/policy",
        {
            "pacing": {
                "running": [{"label": "license=x", "most": 2}],
                "starts": [{"queue": "*", "per_minute": 30}],
            }
        },
    )
    with hub.worker(slots=WIDE) as worker:
        worker.register()
        worker.ready(credits=4)
        ask("POST", "/jobs", make_spec(labels={"license": "x"}))
        worker.accept(worker.assigned())
        found = ask("GET", "/paces")[1]
    assert found["running"] == [{"label": "license=x", "most": 2, "running": 1}]
    assert [(line["kind"], line["name"], line["per_minute"]) for line in found["starts"]] == [
        ("queue", "*", 30),
        ("queue", "default", 30),
    ]


def test_what_holds_work_back_is_told(hub: RunningHub, ask: Asker) -> None:
    rules = {
        "quotas": [{"user": "*", "gpus": 2, "gpu_hours": {"soft": 100, "hard": 200}}],
        "pacing": {"starts": [{"user": "*", "per_minute": 60, "burst": 3}]},
    }
    assert ask("PUT", "/policy", rules)[0] == 200
    with hub.worker(capability=GPUS, slots=WIDE) as worker:
        worker.register()
        worker.ready(credits=4)
        for _ in range(2):
            ask("POST", "/jobs", make_spec(gpu_count=2, user_id="ana"))
        task = worker.assigned()
        worker.accept(task)
        queue = ask("GET", "/queues/default")[1]
        assert (queue["waiting"], queue["running"], queue["gpus_held"]) == (1, 1, 2)
        quotas = {line["name"]: line for line in ask("GET", "/quotas")[1]["quotas"]}
        assert (quotas["ana"]["gpus_held"], quotas["ana"]["standing"]) == (2, "full")
        assert quotas["ana"]["gpu_hours_hard"] == 200
        starts = {line["name"]: line for line in ask("GET", "/paces")[1]["starts"]}
        assert starts["ana"]["tokens"] < 3.001
        assert starts["*"]["tokens"] is None
        worker.result(task)
        worker.accept(worker.assigned())
        assert ask("GET", "/queues/default")[1]["waiting"] == 0


def test_queues_and_their_line(hub: RunningHub, ask: Asker) -> None:
    ask("PUT", "/policy", {"queues": {"gold": {"order": "priority", "weight": 3}}})
    ben = hub.make_token("ben")
    first = ask("POST", "/jobs", make_spec(queue="gold", gpu_count=1, name="first"))[1]["id"]
    ask("POST", "/jobs", make_spec(queue="gold", gpu_count=64), ben)
    last = ask("POST", "/jobs", make_spec(queue="gold", gpu_count=64, array={"first": 0, "last": 9}))[1]["id"]
    gold = ask("GET", "/queues/gold")[1]
    assert (gold["waiting"], gold["running"], gold["policy"], gold["weight"]) == (12, 0, "priority", 3)
    assert [(line["place"], line["job_id"], line["tasks"]) for line in gold["line"]][::2] == [
        (1, first, 1),
        (3, last, 10),
    ]
    assert gold["oldest_wait_s"] >= 0
    assert [line["place"] for line in ask("GET", "/queues/gold?limit=1")[1]["line"]] == [1]
    assert [line["place"] for line in ask("GET", "/queues/gold", token=ben)[1]["line"]] == [2]
    with hub.worker(capability=GPUS, slots=WIDE) as worker:
        worker.register()
        worker.ready(credits=1)
        worker.run_one()
        gold = ask("GET", f"/jobs/{first}?wait_s=10")[1]
        assert gold["state"] == "succeeded"
        gold = ask("GET", "/queues/gold")[1]
        assert gold["starts_per_min_5m"] == gold["ends_per_min_1h"] == 1
        assert gold["wait_p50_s"] > 0
    names = [queue["name"] for queue in ask("GET", "/queues")[1]["queues"]]
    assert names == ["default", "gold"]
    status, missing, _ = ask("GET", "/queues/none")
    assert status == 404
    assert "there is default, gold" in missing["error"]["message"]
    depth = 'dray_queue_depth{queue="gold"} 11.0'
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=60)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {hub.token}"})
    text = connection.getresponse().read().decode()
    connection.close()
    assert depth in text
    assert 'dray_queue_depth{queue="default"} 0.0' in text


def test_the_file_of_the_home(tmp_path: Path) -> None:
    home = tmp_path / "h"
    home.mkdir()
    file = home / "policy.yaml"
    file.write_text("queues: {gold: {weight: 3}}\n")
    with running_hub(home) as hub:
        ask = Asker(hub)
        assert value_of(ask("GET", "/policy")[1], "queues.gold.weight") == (3, "policy.yaml")
        ask("PUT", "/policy", {"queues": {"gold": {"weight": 5}}})
        hub.restart()
        assert value_of(ask("GET", "/policy")[1], "queues.gold.weight")[0] == 5
        file.write_text("queues: {gold: {weight: 7}}\n")
        hub.restart()
        assert value_of(ask("GET", "/policy")[1], "queues.gold.weight") == (7, "policy.yaml")
        assert [line["target"] for line in ask("GET", "/audit")[1]["records"]] == [
            "policy.yaml",
            "policy",
            "policy.yaml",
        ]

        job = ask("POST", "/jobs", make_spec(queue="gold"))[1]["id"]
        hub.stop()
        for text, said in (
            (
                "queues:\n  silver:\n",
                f"queues.gold: is not listed, but 1 tasks wait and 0 run in it ({job})",
            ),
            ("queues:\n  gold:\n    wieght: 2\n", f"{file}:3:5: queues.gold.wieght: is no key of a queue"),
        ):
            file.write_text(text)
            with pytest.raises(HubUnavailable) as refused:
                hub.start()
            assert said in refused.value.message
            hub.stop()
        file.write_text("queues: {gold: {weight: 7}}\n")
        hub.start()
        assert ask("GET", f"/jobs/{job}")[1]["state"] == "pending"
        file.unlink()
        hub.restart()
        after = ask("GET", "/policy")[1]
        assert (after["origin"], after["policy"]["queues"]) == ("default", {})


def test_changes_are_in_the_feed(hub: RunningHub, ask: Asker) -> None:
    ask("PUT", "/policy", {"queues": {"gold": {}}})
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=60)
    connection.request("GET", "/api/v1/events?since=0.0", headers={"Authorization": f"Bearer {hub.token}"})
    answer = connection.getresponse()
    lines: list[str] = []
    while not any("policy_changed" in line for line in lines):
        lines.append(answer.readline().decode())
    data = next(line for line in iter(lambda: answer.readline().decode(), "") if line.startswith("data:"))
    connection.close()
    assert '"origin":"applied"' in data.replace(" ", "")
