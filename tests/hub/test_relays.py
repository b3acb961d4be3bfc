"""Clients at hubs that stand by: what they ask is passed on as theirs, and a change of the lead is waited for."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.hub.asking import ask, look, wait_until
from tests.hub.several_hubs import Hubs, Standby, at, hubs, stand_by

from dray.cli.base.hub import Hub
from dray.client.faces.hub import connect
from dray.client.reach.discovery import settle_config, site_of
from dray.testing.hub_process import RunningHub

__all__ = ["hubs"]
# Of one that is not to take over within a test, and yet looks who leads often enough.
NEVER_S = 9
JOB = {"command": ["true"]}


def code_of(answer: tuple[int, Any]) -> tuple[int, str]:
    return answer[0], answer[1]["error"]["code"]


def names_of(hub: Any) -> list[str]:
    found, cursor = list[str](), ""
    while True:
        page = ask(hub, "GET", f"/jobs?limit=1000{cursor}")[1]
        found += [job["name"] for job in page["jobs"]]
        if not page["next_cursor"]:
            return found
        cursor = f"&cursor={page['next_cursor']}"


def test_what_clients_ask_is_passed_on_and_answered(hubs: Hubs) -> None:
    leader, gateway = hubs(), at(stand_by(hubs))
    assert ask(gateway, "POST", "/jobs", {"id": "a1", **JOB})[0] == 201
    assert ask(gateway, "POST", "/jobs", {"id": "a1", **JOB})[0] == 200
    assert (
        ask(gateway, "POST", "/jobs:batch", [{"id": f"b{number}", **JOB} for number in range(50)])[0] == 201
    )
    assert ask(leader, "GET", "/jobs/b49")[1]["state"] == "pending"
    assert ask(gateway, "GET", "/jobs/a1")[1]["id"] == "a1"
    assert ask(gateway, "POST", "/jobs/a1/cancel", {})[1]["state"] == "killed"
    assert ask(gateway, "GET", "/jobs/a1/events")[1] == ask(leader, "GET", "/jobs/a1/events")[1]
    assert code_of(ask(gateway, "GET", "/jobs/none")) == (404, "not_found")
    assert code_of(ask(gateway, "POST", "/jobs", {"commnd": ["true"]})) == (400, "invalid_spec")
    assert code_of(ask(gateway, "GET", "/nothing")) == (404, "not_found")
    assert code_of(ask(gateway, "DELETE", "/jobs")) == (405, "method_not_allowed")
    assert look(gateway.url, "/readyz") == {"status": "ready"}
    # Who scrapes all hubs would count the leader twice.
    assert code_of(ask(gateway, "GET", "/metrics")) == (503, "not_leader")


def test_large_values_and_streams_go_through(hubs: Hubs) -> None:
    leader, gateway = hubs(), at(stand_by(hubs))
    value = os.urandom(1 << 20) * 9
    digest = hashlib.sha256(value).hexdigest()
    line = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=60)
    line.request("PUT", f"/api/v1/blobs/{digest}", value, {"Authorization": f"Bearer {gateway.token}"})
    assert line.getresponse().read() is not None
    line.request("GET", f"/api/v1/blobs/{digest}", None, {"Authorization": f"Bearer {gateway.token}"})
    assert line.getresponse().read() == value
    line.request("HEAD", f"/api/v1/blobs/{digest}", None, {"Authorization": f"Bearer {gateway.token}"})
    answer = line.getresponse()
    assert (answer.status, answer.read(), answer.headers["Content-Length"]) == (200, b"", str(len(value)))
    line.request("GET", "/api/v1/events", None, {"Authorization": f"Bearer {gateway.token}"})
    events = line.getresponse()
    ask(leader, "POST", "/jobs", {"id": "a1", **JOB})
    seen = b""
    while b"a1" not in seen:
        seen += events.read1(1 << 16)
    line.close()


def test_strangers_and_tokens_without_the_scope_get_no_further_than_at_the_leader(hubs: Hubs) -> None:
    leader, gateway = hubs(), at(stand_by(hubs))
    tokens = {scope: leader.make_token("ana", (scope,)) for scope in ("read", "submit", "worker")}
    ask(leader, "POST", "/jobs", {"id": "a1", **JOB})
    asks = [
        ("GET", "/jobs"),
        ("POST", "/jobs"),
        ("GET", "/jobs/a1"),
        ("GET", "/tokens"),
        ("POST", "/jobs/a1/cancel"),
    ]
    asks += [("POST", "/hub/resign"), ("GET", "/nothing"), ("DELETE", "/workers/w1"), ("GET", "/policy")]
    for token in (*tokens.values(), "dray_00000000_bad", "nonsense"):
        for method, path in asks:
            body = JOB if (method, path) == ("POST", "/jobs") else None
            here, there = (ask(hub, method, path, body, token=token) for hub in (gateway, leader))
            assert here[0] == there[0], (token, method, path, here, there)
            if here[0] >= 400:
                assert here[1]["error"]["code"] == there[1]["error"]["code"]
    for name, value, status in (
        ("Authorization", "", 401),
        ("Authorization", "Basic abc", 401),
        ("Host", "elsewhere.example.org", 421),
        ("Origin", "https://elsewhere.example.org", 403),
    ):
        assert ask(gateway, "GET", "/jobs", headers={name: value})[0] == status, name
    # What one hub has passed on no other passes on again, whoever says so.
    assert code_of(ask(gateway, "GET", "/jobs", headers={"Dray-Relayed": "1"})) == (503, "not_leader")


def test_a_token_that_is_revoked_is_none_at_any_hub_from_then_on(hubs: Hubs) -> None:
    leader, gateway = hubs(), at(stand_by(hubs))
    token = leader.make_token("ana", ("submit",))
    assert ask(gateway, "GET", "/jobs", token=token)[0] == 200
    token_id = token.split("_")[1]
    assert ask(gateway, "DELETE", f"/tokens/{token_id}")[0] == 200
    assert code_of(ask(gateway, "GET", "/jobs", token=token)) == (401, "unauthenticated")


class Submitting:
    """Clients that go on submitting at one hub, without keys or ids, and remember what they were told."""

    def __init__(self, hub: Any, clients: int = 4) -> None:
        self.hub, self.answers = hub, dict[str, int]()
        self.over = threading.Event()
        self._pool = ThreadPoolExecutor(clients)
        self._going = [self._pool.submit(self._go_on, number) for number in range(clients)]

    def _go_on(self, client: int) -> None:
        number = 0
        while not self.over.is_set():
            name = f"c{client}-{number}"
            self.answers[name] = ask(self.hub, "POST", "/jobs", {"name": name, **JOB})[0]
            number += 1

    def count(self) -> int:
        return sum(status == 201 for status in list(self.answers.values()))

    def end(self) -> dict[str, int]:
        self.over.set()
        for going in self._going:
            going.result(60)
        return self.answers


def settle(leader: Any, answers: dict[str, int]) -> None:
    """What was answered is there once, and nothing is there twice."""
    there = names_of(leader)
    assert len(there) == len(set(there)), "doubled"
    assert {name for name, status in answers.items() if status in (200, 201)} <= set(there), "lost"


def change_the_lead(leader: RunningHub, heir: Standby, gateway: Standby, how: signal.Signals) -> None:
    """Submit at a gateway before, while and after another hub leads."""
    submitting = Submitting(at(gateway))
    wait_until(lambda: submitting.count() > 20)
    os.kill(leader.pid, how)
    heir.wait()
    before = submitting.count()
    wait_until(lambda: submitting.count() > before + 20)
    answers = submitting.end()
    if how is signal.SIGSTOP:
        os.kill(leader.pid, signal.SIGCONT)
        wait_until(lambda: ask(leader, "GET", "/hub/status")[1].get("role") == "standby")
    settle(heir, answers)
    # The change was short: nobody was told of it. What the hub that went had done already is found by its key.
    assert set(answers.values()) <= {200, 201}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_submits_at_a_gateway_are_neither_lost_nor_doubled_when_the_lead_changes(
    hubs: Hubs, how: signal.Signals
) -> None:
    change_the_lead(hubs(), stand_by(hubs), stand_by(hubs, store_lease_s=NEVER_S), how)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_gateway_that_takes_over_answers_what_it_held_itself(hubs: Hubs, how: signal.Signals) -> None:
    leader, gateway = hubs(), stand_by(hubs)
    change_the_lead(leader, gateway, gateway, how)


def test_what_is_not_safe_to_repeat_is_not_repeated(hubs: Hubs) -> None:
    leader, heir, gateway = hubs(), stand_by(hubs), at(stand_by(hubs, store_lease_s=NEVER_S))
    ask(gateway, "POST", "/jobs", {"id": "a1", **JOB})
    os.kill(leader.pid, signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        made = pool.submit(ask, gateway, "POST", "/tokens", {"user": "ben", "scopes": ["read"]})
        shown = pool.submit(ask, gateway, "GET", "/jobs/a1")
        held = pool.submit(ask, gateway, "POST", "/jobs/a1/hold")
        heir.wait()
        assert code_of(made.result()) == (504, "outcome_unknown")
        assert shown.result()[1]["id"] == "a1"
        assert held.result()[1]["state"] == "held" or held.result()[0] == 200
    os.kill(leader.pid, signal.SIGCONT)
    wait_until(lambda: ask(leader, "GET", "/hub/status")[1].get("role") == "standby")
    assert "ben" not in json.dumps(ask(heir, "GET", "/tokens")[1])


def test_where_nobody_leads_for_long_it_is_said(hubs: Hubs) -> None:
    leader, gateway = hubs(), at(stand_by(hubs, store_lease_s=60))
    leader.kill()
    held = ask(gateway, "POST", "/jobs", {"id": "a1", **JOB})
    assert held[0] == 503
    assert held[1]["error"]["code"] in ("not_ready", "not_leader")
    with contextlib.closing(http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=5)) as line:
        line.request("GET", "/api/v1/jobs", None, {"Authorization": f"Bearer {gateway.token}"})
        # From here on nobody is held: whoever has another address goes there.
        answer = line.getresponse()
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    leader.start()
    wait_until(lambda: ask(gateway, "POST", "/jobs", {"id": "a1", **JOB})[0] == 201)


def test_a_program_goes_on_over_a_gateway_when_the_leader_is_killed(hubs: Hubs) -> None:
    leader, heir, gateway = hubs(), stand_by(hubs), stand_by(hubs, store_lease_s=NEVER_S)
    with connect(gateway.address, gateway.token, gateway.home) as client:
        first = client.submit(["true"])
        leader.kill()
        second = client.submit(["true"])
        assert {job.id for job in (first, second)} <= {
            job["id"] for job in ask(heir, "GET", "/jobs")[1]["jobs"]
        }


def cli_of(*hubs: Standby) -> Hub:
    """The command line's way to a site that it knows several addresses of."""
    return Hub(settle_config(hubs[0].home, hub=",".join(hub.address for hub in hubs), token=hubs[0].token))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_clients_of_a_gateway_that_goes_move_on_to_another(hubs: Hubs, how: signal.Signals) -> None:
    leader, first, second = (
        hubs(),
        stand_by(hubs, store_lease_s=NEVER_S),
        stand_by(hubs, store_lease_s=NEVER_S),
    )
    urls = f"{first.address},{second.address}"
    cli = cli_of(first, second)
    cli.config = replace(cli.config, timeout_s=3.0)
    with connect(urls, first.token, first.home) as client:
        done = [client.submit(["true"]).id]
        done.append(cli.call("POST", "/jobs", body=JOB, headers={"Idempotency-Key": "one"})["id"])
        # Neither is moved to the leader.
        assert site_of(cli.config).told == ""
        assert look(first.address, "/api/v1/hub/status")["passed_on"] > 0
        os.kill(first.pid, how)
        done.append(cli.call("POST", "/jobs", body=JOB, headers={"Idempotency-Key": "two"})["id"])
        done.append(client.submit(["true"]).id)
        assert site_of(cli.config).told == ""
    if how is signal.SIGSTOP:
        os.kill(first.pid, signal.SIGCONT)
    assert sorted(done) == sorted(job["id"] for job in ask(leader, "GET", "/jobs")[1]["jobs"])


def test_a_command_reads_what_it_wrote_whichever_hub_it_asks_next(hubs: Hubs) -> None:
    hubs()
    first, second = stand_by(hubs), stand_by(hubs)
    one, other = cli_of(first), cli_of(second)
    for number in range(60):
        one.call("PUT", "/policy", body={"queues": {f"q{number}": {}}})
        # As where the first address answers no more.
        other._seq = one._seq
        assert f"q{number}" in json.dumps(other.get("/policy"))
    assert look(second.address, "/api/v1/hub/status")["answered"] > 10
