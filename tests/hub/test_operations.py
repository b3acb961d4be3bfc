"""One table behind every way in: whoever asks by HTTP and by the channel hears the same, and is refused alike."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import websockets
from tests.hub.asking import ask
from tests.hub.channel.test_channel import opened

from dray.hub.channel.channel import MESSAGES
from dray.hub.grpc.methods import METHODS
from dray.hub.http.calls import ROUTES
from dray.hub.http.replies import STATUS
from dray.hub.operations.table import OPERATIONS
from dray.testing import RunningHub, make_spec, running_hub
from dray.wire.messages.client import CLIENT_PAYLOADS

SCOPES = ("none", "read", "submit", "worker", "admin")
KINDS = {kind: name for name, kind in CLIENT_PAYLOADS.items()}
BY_HTTP = {route.operation.name: route for route in ROUTES}
BY_CHANNEL = {message.operation.name: KINDS[kind] for kind, message in MESSAGES.items()}
BY_GRPC = {method.operation.name for method in METHODS}
BOTH = [name for name in OPERATIONS if name in BY_HTTP and name in BY_CHANNEL]


class Ask(NamedTuple):
    """The same question twice: the body over HTTP, and the payload beside the id on the channel."""

    body: Any = None
    payload: Mapping[str, Any] = MappingProxyType({})
    query: str = ""


# What is said beside the id of a job; "plan_job" and lists take none.
ASKS = {
    "list_jobs": Ask(payload={"states": ["pending"], "limit": 2}, query="?state=pending&limit=2"),
    "list_tasks": Ask(payload={"limit": 5}, query="?limit=5"),
    "cancel_job": Ask({"task": 0}, {"task": 0}),
    "act_on_jobs": Ask({"action": "hold", "queue": "none"}, {"action": "hold", "queue": "none"}),
    "edit_job": Ask({"priority": 3}, {"changes": {"priority": 3}}),
    "plan_job": Ask(make_spec("planned"), {"spec": make_spec("planned")}),
    "list_preemptions": Ask(payload={"user": "ana"}, query="?user=ana"),
    "scale_service": Ask({"replicas": 2}, {"replicas": 2}),
    "share_service": Ask({"add": ["ben"]}, {"add": ["ben"]}),
    "update_service": Ask({"changes": {"env": {"A": "1"}}}, {"changes": {"env": {"A": "1"}}}),
    "rollback_service": Ask({"to": 2}, {"to": 2}),
}
# A service is meant by its name, or by its id.
NAMED = (
    "list_endpoints",
    "show_service",
    "scale_service",
    "share_service",
    "update_service",
    "rollback_service",
)
# Where neither end says which job is meant.
UNNAMED = (
    "list_jobs",
    "act_on_jobs",
    "plan_job",
    "list_preemptions",
    "list_notifications",
    "list_alarms",
    "show_usage",
    "list_idle",
)


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub(batch_specs=3) as running:
        yield running


@pytest.fixture(scope="module")
def tokens(hub: RunningHub) -> dict[str, str]:
    return {"none": "nobody", **{scope: hub.make_token("ana", [scope]) for scope in SCOPES[1:]}}


async def by_http(hub: RunningHub, name: str, job_id: str, token: str) -> Any:
    route, asked = BY_HTTP[name], ASKS.get(name, Ask())
    path = route.path.removeprefix("/api/v1").replace("{id}", job_id).replace("{name}", job_id) + asked.query
    status, answer = ask(hub, route.method, path, asked.body, token=token)
    return answer["error"] if status >= 300 else answer


async def by_channel(hub: RunningHub, name: str, job_id: str, token: str) -> Any:
    whom = {} if name in UNNAMED else {"name" if name in NAMED else "id": job_id}
    payload = {**ASKS.get(name, Ask()).payload, **whom}
    try:
        async with opened(hub, token) as raw:
            reply = await raw.ask(BY_CHANNEL[name], payload)
    except websockets.InvalidStatus as refusal:
        return json.loads(refusal.response.body or b"")["error"]
    return reply.payload if reply.type == "answer" else reply.error


def is_refusal(answer: Any) -> bool:
    return set(answer) >= {"code", "message", "problems"}


def test_every_operation_is_served_and_nothing_else_is() -> None:
    assert {*BY_HTTP, *BY_CHANNEL} - OPERATIONS.keys() == {"tell_alive", "tell_ready", "show_openapi"}
    assert OPERATIONS.keys() <= {*BY_HTTP, *BY_CHANNEL, *BY_GRPC}
    assert set(MESSAGES) == set(CLIENT_PAYLOADS.values())
    assert len(BOTH) == 22


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_a_row_is_whole(name: str) -> None:
    row = OPERATIONS[name]
    assert row.about
    # A stranger may sign in, by a token in the body.
    assert row.scopes or name == "open_session"
    assert row.ask is not None
    assert row.answer is not None
    assert all(kind in STATUS for kind in row.errors)
    if row.repeat != "reads" and not name.endswith(("_session", "_session_code")):
        assert "read" not in row.scopes, "what changes something takes more than a reader"
    if name in BY_HTTP:
        assert (BY_HTTP[name].method == "GET") <= (row.repeat == "reads")


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", BOTH)
async def test_both_ways_answer_alike(hub: RunningHub, tokens: dict[str, str], name: str, scope: str) -> None:
    owner, token = tokens["submit"], tokens[scope]
    _, job = ask(hub, "POST", "/jobs", make_spec("kept", name="kept"), token=owner)
    if scope in ("submit", "admin"):
        # What it changes has been changed before, so that both find the same.
        await by_http(hub, name, job["id"], token)
    first = await by_http(hub, name, job["id"], token)
    second = await by_channel(hub, name, job["id"], token)
    lets_in = scope == "admin" or scope in OPERATIONS[name].scopes
    if lets_in:
        assert first == second
        assert not is_refusal(first) or first["code"] not in ("forbidden", "unauthenticated")
    else:
        assert first["code"] == second["code"] == ("unauthenticated" if scope == "none" else "forbidden")
        if scope == "read":
            assert first == second


@pytest.mark.parametrize("name", [name for name in BOTH if name not in UNNAMED])
async def test_both_ways_know_nothing_of_what_is_not_there(
    hub: RunningHub, tokens: dict[str, str], name: str
) -> None:
    first = await by_http(hub, name, "nowhere-1", tokens["submit"])
    assert first == await by_channel(hub, name, "nowhere-1", tokens["submit"])
    assert first["code"] == "not_found"


async def test_a_batch_over_the_limit_is_refused_alike(hub: RunningHub, tokens: dict[str, str]) -> None:
    specs = [make_spec("one")] * 4
    status, answer = ask(hub, "POST", "/jobs:batch", specs, token=tokens["submit"])
    assert (status, answer["error"]["code"]) == (413, "too_large")
    async with opened(hub, tokens["submit"]) as raw:
        assert (await raw.ask("submit", {"specs": specs})).error == answer["error"]
