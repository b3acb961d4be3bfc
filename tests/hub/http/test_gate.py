"""Who is let in: Host, Origin, token and scope, on every method, on upgrades and on event streams."""

from __future__ import annotations

import http.client
import itertools
import logging

import pytest
import websockets.exceptions
import websockets.sync.client

from dray.hub.access.entrance import bare_host
from dray.hub.http.calls import ROUTES

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
PATHS = ["/api/v1/jobs", "/api/v1/events", "/healthz", "/metrics", "/nowhere"]


def dial(site, token="worker", **headers):
    sent = dict(headers)
    if token:
        sent["Authorization"] = f"Bearer {site.texts.get(token, token)}"
    host = sent.pop("Host", None)
    origin = sent.pop("Origin", None)
    url = f"ws://{host or '127.0.0.1'}:{site.port}/ws"
    return websockets.sync.client.connect(
        url, address=("127.0.0.1", site.port), additional_headers=sent, origin=origin, proxy=None
    )


def refused(site, **options):
    with pytest.raises(websockets.exceptions.InvalidStatus) as fault:
        dial(site, **options)
    return fault.value.response


@pytest.mark.parametrize("method", METHODS)
def test_a_foreign_host_is_refused_on_every_method(site, method):
    port = site.port
    hosts = (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1.evil.example",
        "hub.example@evil",
        "",
        "[::2]",
    )
    for host, path in itertools.product(hosts, PATHS):
        reply = site.ask(method, path, headers={"Host": host})
        assert reply.status == 421, (host, path)
    assert site.hub.calls == []


@pytest.mark.parametrize("method", METHODS)
def test_a_foreign_origin_is_refused_on_every_method(site, method):
    ours = f"127.0.0.1:{site.port}"
    origins = (
        "https://evil.example",
        "null",
        f"https://{ours}",
        f"http://{ours}1",
        "http://127.0.0.1",
        "",
        "http://[",
    )
    for origin, path in itertools.product(origins, PATHS):
        reply = site.ask(method, path, headers={"Origin": origin})
        assert reply.status == 403, (origin, path)
        assert not [name for name in reply.headers if name.startswith("access-control")]
    assert site.hub.calls == []


def test_known_names_are_served(site):
    for host in ("localhost", "LOCALHOST.", "127.0.0.1:99", "[::1]:80", "hub.example", "Hub.Example:443"):
        assert site.ask("GET", "/api/v1/hub", headers={"Host": host}).status == 200, host


def test_the_address_that_was_connected_to_is_served(make_site):
    site = make_site(host="0.0.0.0")
    connection = http.client.HTTPConnection("127.0.0.2", site.port, timeout=60)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()
    for host in ("127.0.0.3", "0.0.0.0", "[::]"):
        assert site.ask("GET", "/healthz", headers={"Host": host}).status == 421


def test_the_own_origin_is_served(site):
    reply = site.ask("POST", "/api/v1/jobs", {}, headers={"Origin": f"http://127.0.0.1:{site.port}"})
    assert reply.status == 201
    named = {"Host": "hub.example", "Origin": "http://hub.example"}
    assert site.ask("GET", "/api/v1/jobs", headers=named).status == 200
    named = {"Host": "hub.example:80", "Origin": "http://hub.example"}
    assert site.ask("GET", "/api/v1/jobs", headers=named).status == 200


def test_hosts_are_spelled_in_one_way():
    assert bare_host("[::0001]") == "::1"
    assert bare_host("Hub.Example.") == "hub.example"
    assert bare_host("127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_route_needs_a_token_and_its_scope(site, route):
    path = route.path.replace("{id}", "x").replace("{name}", "x").replace("{digest}", "ab" * 32)
    if not route.scopes:
        # Who signs in shows a token in the body: strangers are answered, and let in by nothing.
        expected = 401 if route.name == "open_session" else 200
        assert site.ask(route.method, path, token=None).status == expected
        return
    for token in (None, "dray_00000000_wrong", "nonsense"):
        reply = site.ask(route.method, path, token=token)
        assert (reply.status, reply.code) == (401, "unauthenticated")
        assert reply.headers["www-authenticate"] == 'Bearer realm="dray"'
    for scope in ("submit", "read", "worker"):
        if scope not in route.scopes:
            reply = site.ask(route.method, path, token=scope)
            assert (reply.status, reply.code) == (403, "forbidden"), scope
    assert site.hub.calls == []


def test_only_health_and_signing_in_are_free():
    free = {(route.method, route.path) for route in ROUTES if not route.scopes}
    assert free == {("GET", "/healthz"), ("GET", "/readyz"), ("POST", "/api/v1/session")}


# Questions that take a while, and whoever asked calls them off.
STUDIES = ("ask_what_if", "replay_past", "advise_capacity", "cancel_study")


def test_what_changes_things_needs_more_than_read():
    changing = {
        route.name: route.scopes
        for route in ROUTES
        if route.method != "GET"
        and route.name not in ("plan_job", "rank_providers", "render_template", *STUDIES)
        # Nothing of the cluster: whoever may look may look with a browser.
        if not route.path.startswith("/api/v1/session")
    }
    # A worker brings the values that its calls left; a blob by itself changes nothing for anybody.
    assert changing.pop("put_blob") == ("submit", "worker")
    assert all("read" not in scopes and "worker" not in scopes for scopes in changing.values())


def test_strangers_do_not_learn_which_paths_exist(site):
    assert site.ask("GET", "/api/v1/nowhere", token=None).status == 401
    assert site.ask("PUT", "/api/v1/jobs", token=None).status == 401
    assert site.ask("GET", "/api/v1/nowhere", token="read").status == 404


def test_expired_and_revoked_tokens(site):
    made = site.ask("POST", "/api/v1/tokens", {"scopes": ["read"], "expires_s": 60}).json
    assert site.ask("GET", "/api/v1/jobs", token=made["token"]).status == 200
    site.now_ms += 61_000
    late = site.ask("GET", "/api/v1/jobs", token=made["token"])
    assert (late.status, "expired" in late.message) == (401, True)
    made = site.ask("POST", "/api/v1/tokens", {"scopes": ["read"], "user": "bob"}).json
    assert site.ask("DELETE", f"/api/v1/tokens/{made['id']}").json["revoked"] is True
    gone = site.ask("GET", "/api/v1/jobs", token=made["token"])
    assert (gone.status, "revoked" in gone.message) == (401, True)
    assert [record.action for _, record in site.saved] == ["token.create", "token.create", "token.revoke"]


def test_headers_that_decide_come_once(site):
    connection = site.connect()
    for name in ("Authorization", "Origin", "Idempotency-Key", "Content-Type"):
        connection.putrequest("GET", "/api/v1/jobs")
        connection.putheader("Authorization", f"Bearer {site.texts['admin']}")
        connection.putheader(name, "x")
        connection.putheader(name, "y")
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status == 400, name
        assert b"came twice" in answer.read()
    connection.putrequest("GET", "/api/v1/jobs", skip_host=True)
    connection.putheader("Host", "127.0.0.1")
    connection.putheader("Host", "evil.example")
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 400
    answer.read()
    connection.close()


def test_a_socket_opens_for_its_scope(site):
    for scope in ("worker", "admin"):
        with dial(site, scope) as socket:
            socket.send("hello")
            assert socket.recv(timeout=60) == f"{scope}-user:hello"


def test_a_socket_is_refused_before_the_upgrade(site):
    response = refused(site, token=None)
    assert (response.status_code, response.headers["www-authenticate"]) == (401, 'Bearer realm="dray"')
    assert b'"unauthenticated"' in response.body
    assert refused(site, token="dray_00000000_wrong").status_code == 401
    assert refused(site, token="read").status_code == 403
    assert refused(site, token="submit").status_code == 403
    assert refused(site, Host="evil.example").status_code == 421
    assert refused(site, Origin="https://evil.example").status_code == 403
    assert refused(site, Origin="null").status_code == 403
    site.on_loop(lambda: setattr(site.hub, "ready", False))
    assert refused(site).status_code == 503


def test_a_socket_nobody_serves(site):
    with pytest.raises(websockets.exceptions.InvalidStatus) as fault:
        websockets.sync.client.connect(
            f"ws://127.0.0.1:{site.port}/ws/none",
            additional_headers={"Authorization": f"Bearer {site.texts['worker']}"},
            proxy=None,
        )
    assert fault.value.response.status_code == 404


def test_a_peer_that_leaves_is_no_failure(site, caplog, wait_until):
    with dial(site) as socket:
        socket.send("flood")
        socket.recv(timeout=60)
        socket.socket.close()
    wait_until(lambda: site.on_loop(lambda: not site.server._server.server_state.tasks))
    # The peer's own library has its say about the socket that was taken from it.
    assert not [record for record in caplog.records if not record.name.startswith("websockets.client")]


def test_a_socket_whose_handler_breaks_is_closed_and_logged(site, caplog):
    with dial(site) as socket:
        socket.send("fail")
        with pytest.raises(websockets.exceptions.ConnectionClosedError) as closed:
            socket.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1011, "the hub failed")
    assert "the handler broke" in caplog.text


def test_messages_are_not_compressed(site):
    with dial(site) as socket:
        assert "Sec-WebSocket-Extensions" not in socket.response.headers


def test_a_hub_that_is_not_ready_does_no_work(site):
    site.on_loop(lambda: setattr(site.hub, "ready", False))
    reply = site.ask("POST", "/api/v1/jobs", {})
    assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "not_ready", "1")
    assert site.ask("GET", "/readyz", token=None).status == 503
    assert site.ask("GET", "/healthz", token=None).json == {"status": "ok"}
    assert site.hub.calls == []
    site.on_loop(lambda: setattr(site.hub, "ready", True))
    assert site.ask("GET", "/readyz", token=None).json == {"status": "ready"}


def test_no_cors_no_cookies_no_server_name(site):
    for method in ("GET", "OPTIONS"):
        reply = site.ask(method, "/api/v1/jobs")
        names = set(reply.headers)
        assert not {name for name in names if name.startswith("access-control")}
        assert names.isdisjoint({"set-cookie", "server"})
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["x-content-type-options"] == "nosniff"


def test_a_cookie_or_a_query_is_no_token(site):
    text = site.texts["admin"]
    assert site.ask("GET", "/api/v1/jobs", token=None, headers={"Cookie": f"token={text}"}).status == 401
    assert site.ask("GET", f"/api/v1/jobs?token={text}", token=None).status == 401


def test_secrets_stay_out_of_answers_and_logs(site, caplog):
    caplog.set_level(logging.DEBUG)
    secret = site.texts["admin"].split("_", 2)[2]
    wrong = site.texts["admin"] + "x"
    site.on_loop(lambda: setattr(site.hub, "fault", RuntimeError("boom")))
    replies = [
        site.ask("GET", "/api/v1/jobs", token=wrong),
        site.ask("GET", "/api/v1/jobs"),
        site.ask("POST", "/api/v1/jobs", {"env": {"KEY": "hunter2"}}),
        site.ask(
            "POST", "/api/v1/jobs", b'{"env": {"KEY": "hunter2"', headers={"Content-Type": "application/json"}
        ),
        site.ask("GET", "/api/v1/tokens"),
        site.ask("GET", "/api/v1/jobs?token=hunter2"),
    ]
    assert [reply.status for reply in replies] == [401, 500, 500, 400, 200, 400]
    said = b"".join(reply.body for reply in replies) + caplog.text.encode()
    assert b"boom" in caplog.text.encode()
    assert secret.encode() not in said
    assert b"hunter2" not in said
