"""Every call over a real connection: what reaches the hub of path, query and body, and what comes back."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest

from dray.config import load_hub
from dray.hub.app import start_hub, stop_hub
from dray.hub.http.calls import ROUTES
from dray.hub.operations.site import MOVES
from dray.hub.operations.views import VIEWS
from dray.hub.operations.workloads import WORKLOADS
from dray.hub.store.base import JobFilter


def last(site):
    """What the hub was asked last, without the caller."""
    name, what = site.hub.calls[-1]
    return name, what[1:]


def test_submit_then_show(site):
    made = site.ask("POST", "/api/v1/jobs", {"command": ["true"]}, token="submit")
    assert made.status == 201
    assert made.json["state"] == "pending"
    assert made.headers["content-type"] == "application/json"
    shown = site.ask("GET", f"/api/v1/jobs/{made.json['id']}", token="submit")
    assert (shown.status, shown.json) == (200, made.json)
    caller = site.hub.calls[0][1][0]
    assert (caller.user, caller.scopes) == ("submit-user", ("submit",))
    assert site.on_loop(lambda: list(site.requests)) == [("submit_job", 201), ("show_job", 200)]


def test_a_batch(site):
    made = site.ask(
        "POST", "/api/v1/jobs:batch", [{"id": "a"}, {"id": "b"}], headers={"Idempotency-Key": "k"}
    )
    assert made.status == 201
    assert [job["id"] for job in made.json] == ["a", "b"]
    assert last(site) == ("submit", ([{"id": "a"}, {"id": "b"}], "k"))
    again = site.ask(
        "POST", "/api/v1/jobs:batch", [{"id": "a"}, {"id": "b"}], headers={"Idempotency-Key": "k"}
    )
    assert again.status == 200


def test_a_list_is_filtered_by_its_query(site):
    assert site.ask("GET", "/api/v1/jobs").status == 200
    assert last(site) == ("jobs", (JobFilter(),))
    query = "state=pending,failed&state=killed&user=ann&queue=q&name=n%20m&label=a=b&label=c=d=e&limit=7&cursor=99"
    assert site.ask("GET", f"/api/v1/jobs?{query}").status == 200
    wanted = JobFilter(
        states=("pending", "failed", "killed"),
        user="ann",
        queue="q",
        name="n m",
        labels=(("a", "b"), ("c", "d=e")),
        limit=7,
        before_seq=99,
    )
    assert last(site) == ("jobs", (wanted,))


@pytest.mark.parametrize(
    ("query", "where", "what"),
    [
        ("stat=pending", "stat", "did you mean 'state'?"),
        ("state=pendign", "state", "did you mean 'pending'?"),
        ("state=", "state", "must be one of"),
        ("limit=0", "limit", "must be 1 or more"),
        ("limit=1001", "limit", "must be 1000 or less"),
        ("limit=x", "limit", "must be a whole number"),
        ("limit=1_0", "limit", "must be a whole number"),
        ("limit=%D9%A3", "limit", "must be a whole number"),
        ("limit=" + "9" * 5000, "limit", "must be a whole number"),
        ("limit=5&limit=6", "limit", "came twice"),
        ("cursor=-1", "cursor", "has not the form"),
        ("cursor=" + "9" * 19, "cursor", "has not the form"),
        ("label=x", "label", "has not the form"),
        ("user=", "user", "is empty"),
        ("name=%00", "name", "without control characters"),
        ("user=" + "u" * 300, "user", "at most 256"),
    ],
)
def test_a_bad_query_is_explained(site, query, where, what):
    reply = site.ask("GET", f"/api/v1/jobs?{query}")
    assert (reply.status, reply.code) == (400, "invalid_input")
    (problem,) = reply.json["error"]["problems"]
    assert problem["where"] == where
    assert what in problem["what"]
    assert site.hub.calls == []


def test_every_problem_of_a_query_at_once(site):
    reply = site.ask("GET", "/api/v1/jobs?limit=0&cursor=x&foo=1")
    assert [problem["where"] for problem in reply.json["error"]["problems"]] == ["limit", "cursor", "foo"]


def test_a_query_that_is_no_text(site):
    assert "UTF-8" in site.ask("GET", "/api/v1/jobs?name=%ff").message
    assert "more than 64" in site.ask("GET", "/api/v1/jobs?" + "&".join(["state=pending"] * 65)).message
    assert site.ask("GET", "/api/v1/hub?x=1").message == "x: is no parameter of this call; it takes none"


def test_the_calls_of_one_job(site):
    site.ask("POST", "/api/v1/jobs", {"id": "j"})
    expected = {
        "/jobs/j/tasks": ("tasks", ("j", (), "", 100)),
        "/jobs/j/tasks?state=failed&cursor=17&limit=5": ("tasks", ("j", ("failed",), "17", 5)),
        "/jobs/j/events": ("job_events", ("j",)),
        "/jobs/j/why": ("why", ("j", True, 0)),
        "/jobs/j/why?fix=false&eta_s=2": ("why", ("j", False, 2)),
    }
    for path, asked in expected.items():
        assert site.ask("GET", f"/api/v1{path}", token="read").status == 200
        assert last(site) == asked


def test_cancel_takes_an_optional_body(site):
    document = site.ask("POST", "/api/v1/jobs/j/cancel").json
    assert (document["id"], document["state"]) == ("j", "killed")
    assert last(site) == ("cancel", ("j", None, None))
    assert site.ask("POST", "/api/v1/jobs/j/cancel", {"task": 3, "grace_s": 1.5}).status == 200
    assert last(site) == ("cancel", ("j", 3, 1.5))
    assert site.ask("POST", "/api/v1/jobs/j/cancel", {"task": None}).status == 200


def test_the_calls_of_the_cluster(site):
    expected: dict[tuple[str, str], tuple[str, Any]] = {
        ("POST", "/plan"): ("plan", ({}, 0)),
        ("POST", "/plan?eta_s=1.5"): ("plan", ({}, 1.5)),
        ("GET", "/estimates"): ("estimates", ()),
        ("GET", "/queues"): ("queues", ()),
        ("GET", "/queues/q"): ("queue", ("q", 20)),
        ("GET", "/queues/q?limit=3"): ("queue", ("q", 3)),
        ("GET", "/quotas"): ("quotas", ()),
        ("GET", "/paces"): ("paces", ()),
        ("GET", "/providers"): ("providers", ()),
        ("GET", "/preemptions"): ("preemptions", ("", "", 50, 0, 86400)),
        ("GET", "/preemptions?job=j&user=u&limit=2&cursor=7&window_s=60"): (
            "preemptions",
            ("j", "u", 2, 7, 60),
        ),
        ("GET", "/preemptions/p3"): ("preemption", ("p3",)),
        ("GET", "/policy"): ("policy", ()),
        ("GET", "/templates"): ("templates", ()),
        ("GET", "/templates/t?version=1"): ("template", ("t@1",)),
        ("GET", "/templates/t/history"): ("template_history", ("t",)),
        ("PUT", "/policy"): ("apply", ({}, False, False)),
        ("PUT", "/policy?dry_run=1&force=true"): ("apply", ({}, True, True)),
        ("GET", "/config"): ("settings", ()),
        ("GET", "/doctor"): ("doctor", ()),
        ("GET", "/audit?limit=5"): ("audit", (5,)),
        ("GET", "/hub"): ("hub", ()),
    }
    for (method, path), asked in expected.items():
        assert site.ask(method, f"/api/v1{path}", None if method == "GET" else {}).status == 200
        assert last(site) == asked
    # Nothing sent is not "no rules at all".
    assert site.ask("PUT", "/api/v1/policy").status == 400


def test_tokens_over_http(site):
    made = site.ask("POST", "/api/v1/tokens", {"scopes": ["submit", "read"]})
    assert made.status == 201
    assert (made.json["user"], made.json["scopes"]) == ("admin-user", ["submit", "read"])
    listed = site.ask("GET", "/api/v1/tokens").json["tokens"]
    assert len(listed) == 5
    assert all("token" not in entry and "hash" not in entry for entry in listed)
    assert site.ask("DELETE", "/api/v1/tokens/ffffffff").status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/..",
        "/jobs/%2e%2e",
        "/jobs/a%2Fb",
        "/jobs/..%2f..%2fetc",
        "/jobs/%00",
        "/jobs/a%20b",
        "/jobs/" + "x" * 129,
    ],
)
def test_an_id_is_not_a_path(site, path):
    reply = site.ask("GET", f"/api/v1{path}")
    assert (reply.status, reply.code) == (400, "invalid_input")
    assert "no id" in reply.message
    assert site.hub.calls == []


def test_paths_that_are_not_there(site):
    for path in (
        "/api/v1/jobs/",
        "/api/v1/jobs/a/b/c",
        "/api/v2/jobs",
        "/index.html",
        "/api/v1//jobs",
        "/api/v1/jobs/../hub",
    ):
        reply = site.ask("GET", path)
        assert reply.status in {400, 404}, path
        assert reply.code in {"invalid_input", "not_found"}
    assert "UTF-8" in site.ask("GET", "/api/v1/jobs/%ff").message
    assert site.hub.calls == []


def test_what_this_version_lacks_is_said(site):
    reply = site.ask("POST", "/api/v1/jobs/j/freeze")
    assert (reply.status, reply.code) == (404, "not_found")
    assert "this version of dray has no call POST /api/v1/jobs/j/freeze" in reply.message
    reply = site.ask("DELETE", "/api/v1/jobs/j")
    assert (reply.status, reply.code) == (405, "method_not_allowed")
    assert reply.headers["allow"] == "GET, HEAD, PATCH"
    assert "this version of dray has no DELETE" in reply.message


def test_jobs_are_held_released_requeued_and_edited(site):
    assert site.ask("POST", "/api/v1/jobs/j/hold").json["held"] is True
    assert site.ask("POST", "/api/v1/jobs/j/release").json["held"] is False
    assert site.ask("POST", "/api/v1/jobs/j/requeue").status == 200
    assert site.ask("POST", "/api/v1/jobs/j/requeue", {"task": 3}).status == 200
    assert site.ask("PATCH", "/api/v1/jobs/j", {"priority": 3}).status == 200
    asked = [(name, *given[1:]) for name, given in site.hub.calls]
    assert asked == [
        ("hold", "j", True),
        ("hold", "j", False),
        ("requeue", "j", None),
        ("requeue", "j", 3),
        ("edit", "j", {"priority": 3}),
    ]


def test_bad_changes_are_refused_before_the_hub_hears_of_them(site):
    assert "must be the fields to change" in site.ask("PATCH", "/api/v1/jobs/j", [1]).message
    assert "did you mean 'task'?" in site.ask("POST", "/api/v1/jobs/j/requeue", {"tasks": 1}).message
    assert site.ask("POST", "/api/v1/jobs/j/requeue", {"task": -1}).status == 400
    for verb, path in (("POST", "/jobs/j/hold"), ("POST", "/jobs/j/requeue"), ("PATCH", "/jobs/j")):
        assert site.ask(verb, f"/api/v1{path}", {"priority": 1}, token="read").status == 403
    assert site.hub.calls == []


def test_other_methods_are_told_which_there_are(site):
    assert site.ask("PUT", "/api/v1/jobs", {}).headers["allow"] == "GET, HEAD, POST"
    assert site.ask("OPTIONS", "/api/v1/jobs").status == 405
    assert site.ask("GET", "/api/v1/jobs:batch").headers["allow"] == "POST"


@pytest.mark.parametrize(
    "route",
    # Of a whole hub views are asked in tests/hub/views, workloads in tests/hub/workloads, one task in tests/contracts,
    # launches and moves in tests/e2e.
    [
        route
        for route in ROUTES
        if route.method == "GET"
        and route.media != "application/octet-stream"
        and route.operation not in (*VIEWS, *WORKLOADS, *MOVES)
        and route.name not in ("show_task", "list_launches", "show_launch")
    ],
    ids=lambda route: route.name,
)
def test_head_is_get_without_a_body(site, route):
    site.ask("POST", "/api/v1/jobs", {"id": "x"})
    reply = site.ask(
        "HEAD", route.path.replace("{id}", "x").replace("{name}", "x").replace("{digest}", "ab" * 32)
    )
    assert (reply.status, reply.body) == (200, b"")
    assert "content-length" in reply.headers


def test_one_connection_serves_many_requests(site):
    connection = site.connect()
    sent = {"Authorization": f"Bearer {site.texts['admin']}"}
    for path in ("/api/v1/jobs", "/api/v1/jobs/none", "/api/v1/nowhere", "/healthz", "/api/v1/hub"):
        connection.request("GET", path, headers=sent)
        answer = connection.getresponse()
        assert answer.read()
        assert not answer.will_close
    connection.close()


def test_metrics_and_openapi_need_a_token_and_no_readiness(site):
    site.on_loop(lambda: setattr(site.hub, "ready", False))
    reply = site.ask("GET", "/metrics", token="read")
    assert (reply.status, reply.body) == (200, b"# nothing\n")
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert site.ask("GET", "/openapi.json", token="worker").json["openapi"] == "3.1.0"


async def test_a_wait_is_as_long_as_it_was_asked_for(tmp_path, monkeypatch):
    """The parameter is read up to 300 s, and so late the hub looks at the clock again: nothing cuts it short."""
    hub = await start_hub(load_hub(tmp_path, {"port": 0}))
    engine, loop = asyncio.create_task(hub.engine.run()), asyncio.get_running_loop()
    set_alarm, armed = loop.call_at, asyncio.Event()

    def note_alarm(when, *rest, **more):
        if 250 < when - loop.time() <= 300:
            armed.set()
        return set_alarm(when, *rest, **more)

    token, body = (tmp_path / "token").read_text().strip(), '{"id": "j", "command": ["true"]}'
    head = f"Host: {urlsplit(hub.url).netloc}\r\nAuthorization: Bearer {token}\r\n"
    size = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(hub.url).port)
    try:
        async with asyncio.timeout(60):
            writer.write(f"POST /api/v1/jobs HTTP/1.1\r\n{head}{size}\r\n{body}".encode())
            assert (await reader.readline()).split()[1] == b"201"
            monkeypatch.setattr(loop, "call_at", note_alarm)
            writer.write(f"GET /api/v1/jobs/j?wait_s=300 HTTP/1.1\r\n{head}\r\n".encode())
            await armed.wait()
            assert list(hub.answers._waiters) == ["j"]
    finally:
        writer.close()
        await stop_hub(hub)
        await engine
        await hub.writer.close()
        hub.store.close(clean=True)
