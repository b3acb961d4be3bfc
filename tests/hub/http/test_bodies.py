"""Bodies and errors: what is refused, how it is said, and that nothing bad becomes a 500."""

from __future__ import annotations

import json
import socket

import pytest

from dray import errors
from dray.errors import Problem
from dray.hub.http.api import HttpLimits
from dray.hub.http.replies import STATUS

JSON = {"Content-Type": "application/json"}
SMALL = HttpLimits(body_bytes=1000, json_depth=64)


def raw_answer(site, head, body=b""):
    """Send bytes as they are and read until the server closes."""
    with socket.create_connection(("127.0.0.1", site.port), timeout=60) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode("latin-1") + body)
        pieces = []
        while piece := connection.recv(65536):
            pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"a":', "after byte 5"),
        (b'{"a":NaN}', "byte 5"),
        (b"[Infinity]", "byte 1"),
        (b"[-Infinity]", "byte 2"),
        (b'{"a":1,}', "byte 7"),
        (b"{} {}", "trailing characters (byte 4)"),
        (b'{"a":"\xff"}', "byte 0xff"),
        (b"\xff\xfe{\x00}\x00", "byte 0"),
        (b'{"a":1e999}', "out of range - at `$[...]`"),
        (b"'", "byte 0"),
    ],
)
def test_bad_json_is_named_with_its_place(site, body, said):
    reply = site.ask("POST", "/api/v1/jobs", body, headers=JSON)
    assert (reply.status, reply.code) == (400, "invalid_input")
    assert said in reply.message
    assert site.hub.calls == []


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"3", b"null", b"true", b""])
def test_a_job_is_an_object(site, body):
    for path in ("/api/v1/jobs", "/api/v1/plan"):
        reply = site.ask("POST", path, body, headers=JSON)
        assert (reply.status, reply.code) == (400, "invalid_input")
        assert "must be one job" in reply.message


def test_a_batch_is_a_list_of_objects(make_site):
    site = make_site(limits=SMALL)
    assert "must be a list" in site.ask("POST", "/api/v1/jobs:batch", {}).message
    assert "empty" in site.ask("POST", "/api/v1/jobs:batch", []).message
    assert site.hub.calls == []
    assert site.ask("POST", "/api/v1/jobs%3Abatch", [{}] * 3).status == 201


@pytest.mark.parametrize("depth", [65, 500, 5000])
def test_depth_is_bounded(site, depth):
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        body = opening * depth + b"1" + closing * depth
        reply = site.ask("POST", "/api/v1/jobs", body, headers=JSON)
        assert (reply.status, reply.code) == (400, "invalid_input")
        assert "deeper than 64" in reply.message


def test_depth_within_the_bound_is_read(site):
    body = b'{"metadata":' * 60 + b"1" + b"}" * 60
    assert site.ask("POST", "/api/v1/jobs", body, headers=JSON).status == 201


@pytest.mark.parametrize(
    "media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_a_body_says_that_it_is_json(site, media):
    reply = site.ask("POST", "/api/v1/jobs", b"{}", headers={"Content-Type": media})
    assert (reply.status, reply.code) == (415, "unsupported_media_type")
    assert site.hub.calls == []


def test_json_by_its_other_spellings(site):
    for media in ("application/json; charset=utf-8", "Application/JSON"):
        assert site.ask("POST", "/api/v1/jobs", b"{}", headers={"Content-Type": media}).status == 201
    assert site.ask("POST", "/api/v1/jobs", b"{}").status == 201


def test_a_body_over_the_limit_is_refused_unread(make_site):
    site = make_site(limits=SMALL)
    reply = site.ask("POST", "/api/v1/jobs", b'{"a":"' + b"x" * 3_000_000 + b'"}', headers=JSON)
    assert (reply.status, reply.code) == (413, "too_large")
    assert reply.headers["connection"] == "close"
    assert "1000 bytes" in reply.message
    assert site.hub.calls == []
    assert site.ask("POST", "/api/v1/jobs", b'{"a":"' + b"x" * 992 + b'"}', headers=JSON).status == 201


def test_a_chunked_body_over_the_limit_stops_being_read(make_site, monkeypatch):
    monkeypatch.setattr("dray.hub.http.replies.LINGER_S", 0.05)
    site = make_site(limits=SMALL)
    head = (
        "POST /api/v1/jobs HTTP/1.1\nHost: 127.0.0.1\nTransfer-Encoding: chunked\n"
        f"Authorization: Bearer {site.texts['admin']}\n\n"
    )
    # The body never ends: an answer can come only if the server stops waiting for it.
    answer = raw_answer(site, head, b"7d0\r\n" + b"x" * 2000 + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer


def test_a_stranger_s_body_is_not_read(make_site, monkeypatch):
    monkeypatch.setattr("dray.hub.http.replies.LINGER_S", 0.05)
    site = make_site(limits=SMALL)
    head = "POST /api/v1/jobs HTTP/1.1\nHost: 127.0.0.1\nContent-Length: 900\n\n"
    assert raw_answer(site, head).startswith(b"HTTP/1.1 401")


def test_expecting_clients_are_refused_before_they_send(make_site):
    site = make_site(limits=SMALL)
    head = (
        "POST /api/v1/jobs HTTP/1.1\nHost: 127.0.0.1\nContent-Length: 5000\nExpect: 100-continue\n"
        f"Authorization: Bearer {site.texts['admin']}\n\n"
    )
    answer = raw_answer(site, head)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"100 Continue" not in answer


def test_calls_without_a_body_refuse_one(site):
    assert site.ask("GET", "/api/v1/jobs", {"limit": 3}).status == 400
    assert site.ask("POST", "/api/v1/workers/w/drain", {"x": 1}).status == 400
    assert site.ask("POST", "/api/v1/workers/w/drain", {}).status == 200
    assert site.ask("POST", "/api/v1/workers/w/resume").status == 200
    assert [what[1:] for name, what in site.hub.calls] == [("w", True), ("w", False)]


def test_small_bodies_are_checked_field_by_field(site):
    reply = site.ask("POST", "/api/v1/jobs/j/cancel", {"tsak": 1})
    assert reply.status == 400
    assert "did you mean 'task'?" in reply.message
    for body, where in (({"task": -1}, "task"), ({"grace_s": "x"}, "grace_s"), ({"task": 1.5}, "task")):
        reply = site.ask("POST", "/api/v1/jobs/j/cancel", body)
        assert (reply.status, reply.json["error"]["problems"][0]["where"]) == (400, where)
    assert site.ask("POST", "/api/v1/tokens", {"scopes": ["god"]}).status == 400
    assert site.ask("POST", "/api/v1/tokens", {"scopes": ["read"], "expires_s": 0}).status == 400
    assert site.ask("POST", "/api/v1/tokens", {}).status == 400
    assert site.ask("POST", "/api/v1/tokens", [1]).status == 400
    assert site.hub.calls == []


def make_error(kind):
    if issubclass(kind, errors.TooManyRequests):
        return kind("said so", 2.2)
    if issubclass(kind, errors.NotLeader):
        return kind("said so", "http://other:7373")
    return kind("said so", [Problem("a.b", "is wrong")])


KINDS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DrayError)
]


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind is not errors.DrayError], ids=lambda kind: kind.__name__
)
def test_every_error_has_its_status_and_shape(site, kind):
    fault = make_error(kind)
    site.on_loop(lambda: setattr(site.hub, "fault", fault))
    reply = site.ask("GET", "/api/v1/hub")
    expected = next((STATUS[k] for k in kind.__mro__ if k in STATUS), 500)
    assert reply.status == expected
    assert set(reply.json) == {"error"}
    more = {"retry_after_s"} if issubclass(kind, errors.TooManyRequests) else set()
    more |= {"leader"} if issubclass(kind, errors.NotLeader) else set()
    assert set(reply.json["error"]) == {"code", "message", "problems"} | more
    assert (reply.code, reply.message) == (kind.code, "said so")
    if issubclass(kind, errors.TooManyRequests):
        assert reply.headers["retry-after"] == "3"
    elif issubclass(kind, errors.NotLeader):
        assert reply.json["error"]["leader"] == "http://other:7373"
    else:
        assert reply.json["error"]["problems"] == [{"where": "a.b", "what": "is wrong"}]


def test_a_fault_nobody_foresaw_tells_nothing(site, caplog):
    site.on_loop(lambda: setattr(site.hub, "fault", RuntimeError("the password is hunter2")))
    reply = site.ask("GET", "/api/v1/hub")
    assert (reply.status, reply.code) == (500, "internal")
    assert b"hunter2" not in reply.body
    assert b"Traceback" not in reply.body
    assert "RuntimeError: the password is hunter2" in caplog.text
    assert site.on_loop(lambda: list(site.requests)) == [("show_hub", 500)]


@pytest.mark.parametrize(
    ("key", "status"),
    [
        ("k" * 128, 201),
        ("a key, spelled ~", 201),
        ("k" * 129, 400),
        ("", 400),
        ("k\xe9y", 400),
        ("a\tb", 400),
    ],
)
def test_idempotency_keys(site, key, status):
    reply = site.ask("POST", "/api/v1/jobs", {}, headers={"Idempotency-Key": key})
    assert reply.status == status
    if status == 201:
        assert site.hub.calls[0][1][2] == key
        assert site.ask("POST", "/api/v1/jobs", {}, headers={"Idempotency-Key": key}).status == 200
    else:
        assert json.loads(reply.body)["error"]["problems"][0]["where"] == "Idempotency-Key"
