"""Services through the hub's own HTTP: what is passed on, who may, and what a page of a service can do."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from tests.e2e.cluster import CALM, DEADLINE_S, Answer, Cluster, wait_for
from tests.e2e.test_forward import make_token, wait_endpoints
from websockets import Subprotocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

WEB = """
import json, os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def answer(self, body, *more):
        self.send_response(200)
        for name, value in (*more, ('Content-Length', str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(body)
    def do_GET(self):
        if self.path.startswith('/big/'):
            left = int(self.path[5:])
            self.send_response(200)
            self.send_header('Content-Length', str(left))
            self.end_headers()
            while left > 0:
                left -= self.wfile.write(bytes(min(left, 1 << 16)))
        elif self.path == '/chunks':
            self.send_response(200)
            self.send_header('Transfer-Encoding', 'chunked')
            self.end_headers()
            for part in (b'one', b'two', b''):
                self.wfile.write(b'%x\\r\\n%b\\r\\n' % (len(part), part))
        elif self.path == '/cut':
            self.send_response(200)
            self.send_header('Content-Length', '1000')
            self.end_headers()
            self.wfile.write(b'not all of it')
            self.close_connection = True
        elif self.path == '/cut-chunks':
            self.send_response(200)
            self.send_header('Transfer-Encoding', 'chunked')
            self.end_headers()
            self.wfile.write(b'3\\r\\none\\r\\n')
            self.close_connection = True
        elif self.path == '/nonsense':
            self.wfile.write(b'this is no HTTP\\r\\n\\r\\n')
            self.close_connection = True
        elif self.path == '/cookies':
            self.send_response(302)
            for cookie in ('a=1; Path=/; Domain=localhost', 'b=2; Path=/x', 'dray_pass=stolen; Path=/'):
                self.send_header('Set-Cookie', cookie)
            self.send_header('Location', '/there')
            self.send_header('Clear-Site-Data', '"*"')
            self.send_header('Content-Length', '0')
            self.end_headers()
        else:
            said = {'path': self.path, 'index': os.environ['DRAY_TASK_INDEX'], 'headers': self.headers.items()}
            self.answer(json.dumps(said).encode(), ('X-Own', 'yes'))
    do_HEAD = do_GET
    def do_POST(self):
        count = 0
        while self.path == '/wait' and not os.path.exists('go'):
            time.sleep(0.02)
        if self.headers.get('Transfer-Encoding'):
            while size := int(self.rfile.readline(), 16):
                count += len(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
        else:
            left = int(self.headers['Content-Length'])
            while left:
                count += (got := len(self.rfile.read(min(left, 1 << 16))))
                left -= got
        self.answer(str(count).encode())
    def log_message(self, *args): pass
ThreadingHTTPServer(('127.0.0.1', int(os.environ['DRAY_PORT'])), Handler).serve_forever()
"""
SOCKETS = """
import os
from websockets.sync.server import serve
def talk(peer):
    peer.send(peer.request.headers.get('Cookie', '') + peer.request.path)
    for message in peer:
        if message == 'bye':
            peer.close(4321, 'enough')
        peer.send(message)
with serve(talk, '127.0.0.1', int(os.environ['DRAY_PORT']), subprotocols=['chat']) as server:
    server.serve_forever()
"""
CHAT = [Subprotocol("chat")]
TCP = {"tcp": True, "interval_s": 1}


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    cluster = Cluster(CALM)
    try:
        cluster.start_hub()
        cluster.start_agent("w1", 4, "", "--service-slots", "8")
        for name, code, replicas in (("web", WEB, 2), ("sock", SOCKETS, 1)):
            given: dict[str, Any] = {
                "type": "service",
                "name": name,
                "replicas": replicas,
                "ports": ["http"],
                "min_cpu_cores": 0,
            }
            cluster.submit(sys.executable, "-c", code, health_check=TCP, **given)
        for name, replicas in (("web", 2), ("sock", 1)):
            wait_endpoints(cluster, name, replicas)
        yield cluster
    finally:
        cluster.close()


def ask(
    site: Cluster, method: str, path: str, body: Any = None, headers: Mapping[str, str] = {}, **options: Any
) -> Answer:
    """One request as it is written here, with the owner's token unless a header says otherwise."""
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=DEADLINE_S)
    sent = {"Authorization": f"Bearer {site.token}", **headers}
    try:
        connection.request(method, path, body, {k: v for k, v in sent.items() if v}, **options)
        answer = connection.getresponse()
        assert len(answer.headers.get_all("date", ())) == 1
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def raw(site: Cluster, request: bytes) -> bytes:
    """Whatever the hub answers to these bytes."""
    with socket.create_connection(("127.0.0.1", site.port), timeout=DEADLINE_S) as sock:
        sock.sendall(request.replace(b"TOKEN", site.token.encode()))
        sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            return b"".join(iter(lambda: sock.recv(1 << 16), b""))
        return b""


def visit(site: Cluster, name: str = "web") -> tuple[str, str]:
    """Open a service as a browser does, by the link that is printed: its host, and the cookie that it got."""
    link = urlsplit(site.dray("service", "open", name).out.strip())
    answer = ask(
        site, "GET", f"{link.path}?{link.query}&x=1", headers={"Host": link.netloc, "Authorization": ""}
    )
    assert (answer.status, answer.headers["location"]) == (303, "/?x=1")
    again = ask(site, "GET", f"{link.path}?{link.query}", headers={"Host": link.netloc, "Authorization": ""})
    assert again.status == 401, "a link is good once"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "Path=/;" in cookie
    assert "Domain" not in cookie
    return link.netloc, cookie.partition(";")[0]


def test_requests_and_answers_go_through_as_they_are(site: Cluster) -> None:
    forged = {
        "X-Forwarded-For": "6.6.6.6",
        "Connection": "x-secret, close",
        "X-Secret": "1",
        "Cookie": "a=1; dray_pass=x; b=2",
    }
    answer = ask(site, "GET", "/proxy/web/some/path%20here?q=1&r=%2F", headers={**forged, "X-Mine": "kept"})
    assert (answer.status, answer.headers["x-own"]) == (200, "yes")
    said = answer.json
    assert said["path"] == "/some/path%20here?q=1&r=%2F"
    got = {name.lower(): value for name, value in said["headers"]}
    assert got["x-mine"] == "kept"
    assert "authorization" not in got, "the hub's token goes to nobody else"
    assert "x-secret" not in got, "it was for the neighbour"
    assert got["cookie"] == "a=1; b=2"
    assert got["x-forwarded-for"] == "127.0.0.1"
    assert (got["x-forwarded-prefix"], got["x-forwarded-proto"]) == ("/proxy/web", "http")
    own = ask(
        site,
        "GET",
        "/",
        headers={
            "Authorization": "Bearer of the service's",
            "Cookie": visit(site)[1],
            "Host": visit_host(site),
        },
    )
    assert dict(own.json["headers"])["authorization"] == "Bearer of the service's", (
        "what is not the hub's is passed on"
    )
    assert ask(site, "GET", "/proxy/web/chunks").body == b"onetwo"
    head = ask(site, "HEAD", "/proxy/web/x")
    assert (head.status, head.body) == (200, b"")
    assert ask(site, "POST", "/proxy/web/count", b"x" * 100_000).body == b"100000"
    assert (
        ask(site, "POST", "/proxy/web/count", iter([b"x" * 70_000] * 3), encode_chunked=True).body
        == b"210000"
    )
    slashless = ask(site, "GET", "/proxy/web?x=1")
    assert (slashless.status, slashless.headers["location"]) == (308, "/proxy/web/?x=1")
    assert {ask(site, "GET", "/proxy/web/").json["index"] for _ in range(40)} == {"0", "1"}, (
        "both replicas are asked"
    )
    records = site.call("GET", "/audit", limit=1000).json["records"]
    assert {"proxy"} <= {record["action"] for record in records}


def visit_host(site: Cluster) -> str:
    return f"web.localhost:{site.port}"


def test_what_is_not_whole_does_not_look_so(site: Cluster) -> None:
    for path in ("cut", "cut-chunks"):
        with pytest.raises(http.client.IncompleteRead):
            ask(site, "GET", f"/proxy/web/{path}")
    bad = ask(site, "GET", "/proxy/web/nonsense")
    assert (bad.status, bad.json["error"]["code"]) == (502, "unreachable")


@pytest.mark.parametrize(
    "path",
    [
        "/proxy/web/../../api/v1/jobs",
        "/proxy/web/%2e%2e/x",
        "/proxy/web/a/%2E%2E%2Fb",
        "/proxy/web/a\\..\\b",
        "/proxy/web/./x",
    ],
)
def test_paths_that_lead_elsewhere_are_refused(site: Cluster, path: str) -> None:
    answer = raw(
        site,
        b"GET %b HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer TOKEN\r\nConnection: close\r\n\r\n"
        % path.encode(),
    )
    assert answer.startswith(b"HTTP/1.1 400 "), answer[:200]
    assert b'"path"' not in answer, "no service was asked"


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length : 5\r\n",
    ],
)
def test_a_body_that_ends_in_two_ways_is_refused(site: Cluster, framing: bytes) -> None:
    head = b"POST /proxy/web/count HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer TOKEN\r\n"
    answer = raw(site, head + framing + b"\r\n0\r\n\r\nGET /proxy/web/smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 "), answer[:200]
    assert b"smuggled" not in answer


def test_strangers_and_other_users_get_nothing(site: Cluster) -> None:
    mallory = make_token(site, "mallory", "submit", "read")
    reader = make_token(site, "ada", "read")
    for given, status in (
        ("", 401),
        ("Bearer dray_nobody_x", 401),
        (f"Bearer {mallory}", 404),
        (f"Bearer {reader}", 403),
    ):
        answer = ask(site, "GET", "/proxy/web/", headers={"Authorization": given})
        assert answer.status == status, answer
        assert b'"path"' not in answer.body
    assert ask(site, "GET", "/proxy/nosuch/").status == 404
    assert ask(site, "GET", "/proxy/a%2fb/").status == 404


def test_a_page_of_a_service_can_do_nothing_with_the_hub(site: Cluster) -> None:
    host, cookie = visit(site)
    assert host == visit_host(site)
    anonymous = {"Authorization": "", "Cookie": cookie}
    page = ask(site, "GET", "/index", headers={**anonymous, "Host": host})
    assert page.json["path"] == "/index"
    assert "dray_pass" not in json.dumps(page.json), "the service does not see the pass"
    assert "content-security-policy" not in page.headers
    # The hub itself reads no cookie, and a host of a service never leads to its API.
    for path in ("/api/v1/jobs", "/api/v1/tokens", "/metrics", "/api/v1/services/web/link"):
        for method in ("GET", "POST"):
            there = ask(site, method, path, headers={**anonymous, "Origin": f"http://{host}"})
            assert there.status in (401, 403, 405), (path, there)
            assert ask(site, method, path, headers=anonymous).status in (401, 403, 405)
    inside = ask(site, "GET", "/api/v1/jobs", headers={**anonymous, "Host": host})
    assert inside.json["path"] == "/api/v1/jobs", "that is the service's own path"
    for path in ("/ws", "/ws/client", "/ws/forward", "/ws/tunnel"):
        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws://127.0.0.1:{site.port}{path}", additional_headers={"Cookie": cookie}, proxy=None)
        assert refused.value.response.status_code in (401, 403)
    # A pass is for one service, and other pages may not use it.
    assert ask(site, "GET", "/", headers={**anonymous, "Host": f"sock.localhost:{site.port}"}).status == 401
    for origin in ("http://evil.example", f"http://sock.localhost:{site.port}", "null"):
        assert (
            ask(site, "POST", "/count", b"x", headers={**anonymous, "Host": host, "Origin": origin}).status
            == 403
        )
    fetched = {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}
    assert ask(site, "GET", "/", headers={**anonymous, "Host": host, **fetched}).status == 403
    tampered = cookie[:-3] + ("AAA" if not cookie.endswith("AAA") else "BBB")
    assert (
        ask(site, "GET", "/", headers={"Authorization": "", "Cookie": tampered, "Host": host}).status == 401
    )


def test_under_the_hubs_own_origin_cookies_and_scripts_are_fenced(site: Cluster) -> None:
    fenced = ask(site, "GET", "/proxy/web/cookies")
    assert fenced.status == 302
    assert fenced.headers["location"] == "/proxy/web/there"
    assert re.match(r"sandbox (?!.*allow-same-origin)", fenced.headers["content-security-policy"])
    assert "clear-site-data" not in fenced.headers
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        connection.request("GET", "/proxy/web/cookies", headers={"Authorization": f"Bearer {site.token}"})
        cookies = connection.getresponse().headers.get_all("Set-Cookie")
    assert cookies == ["a=1; Path=/proxy/web/", "b=2; Path=/proxy/web/x"]


def test_websockets_go_through_with_their_kinds_and_their_ends(site: Cluster) -> None:
    _, cookie = visit(site, "sock")
    url, host = f"ws://127.0.0.1:{site.port}", f"sock.localhost:{site.port}"
    token = {"Authorization": f"Bearer {site.token}"}
    with connect(
        f"{url}/proxy/sock/kernel?x=1", additional_headers=token, subprotocols=CHAT, proxy=None
    ) as peer:
        assert peer.subprotocol == "chat"
        assert peer.recv(DEADLINE_S) == "/kernel?x=1"
        for message in ("text ä", b"\0binary", "x" * 300_000, bytes(1 << 20)):
            peer.send(message)
            assert peer.recv(DEADLINE_S) == message
        peer.send("bye")
        with pytest.raises(ConnectionClosed) as ended:
            peer.recv(DEADLINE_S)
        assert ended.value.rcvd is not None
        assert (ended.value.rcvd.code, ended.value.rcvd.reason) == (4321, "enough")
    own = socket.create_connection(("127.0.0.1", site.port), DEADLINE_S)
    cookies = {"Cookie": f"own=1; {cookie}", "Origin": f"http://{host}"}
    with connect(
        f"ws://{host}/x", sock=own, additional_headers=cookies, subprotocols=CHAT, proxy=None
    ) as peer:
        assert peer.recv(DEADLINE_S) == "own=1/x", "a browser's, without the pass"
    for origin in ("http://evil.example", "null"):
        foreign = socket.create_connection(("127.0.0.1", site.port), DEADLINE_S)
        with pytest.raises(InvalidStatus) as refused:
            connect(
                f"ws://{host}/x", sock=foreign, additional_headers={**cookies, "Origin": origin}, proxy=None
            )
        assert refused.value.response.status_code == 403


BULK_BYTES = 192 << 20
BOUND_BYTES = 48 << 20


def test_large_bodies_and_slow_readers_hold_little_memory(site: Cluster) -> None:
    assert site.hub is not None
    daemons = [psutil.Process(site.hub.pid), psutil.Process(site.agents["w1"].pid)]
    ask(site, "GET", f"/proxy/web/big/{1 << 20}")
    before = [daemon.memory_info().rss for daemon in daemons]
    slow = [http.client.HTTPConnection("127.0.0.1", site.port, timeout=DEADLINE_S) for _ in range(4)]
    try:
        for connection in slow:
            connection.request(
                "GET", f"/proxy/web/big/{BULK_BYTES}", headers={"Authorization": f"Bearer {site.token}"}
            )
            assert connection.getresponse().read(1) == b"\0", "it reads a byte and then no more"
        sent = ask(
            site,
            "POST",
            "/proxy/web/count",
            (bytes(1 << 20) for _ in range(BULK_BYTES >> 20)),
            {"Content-Length": str(BULK_BYTES)},
        )
        assert sent.body == str(BULK_BYTES).encode()
        assert len(ask(site, "GET", f"/proxy/web/big/{BULK_BYTES}").body) == BULK_BYTES
        for daemon, held in zip(daemons, before, strict=True):
            assert daemon.memory_info().rss - held < BOUND_BYTES
    finally:
        for connection in slow:
            connection.close()


def test_of_a_body_that_the_service_does_not_read_little_is_taken(site: Cluster) -> None:
    head = f"POST /proxy/web/wait HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {site.token}\r\n"
    with socket.create_connection(("127.0.0.1", site.port), timeout=DEADLINE_S) as sock:
        sock.sendall(f"{head}Content-Length: {BULK_BYTES}\r\n\r\n".encode())
        piece, sent = bytes(1 << 16), 0
        # Until nothing more goes for a second: a slower machine stops earlier, which is no fault.
        sock.settimeout(1)
        with contextlib.suppress(TimeoutError):
            while sent < BULK_BYTES:
                sent += sock.send(piece[: BULK_BYTES - sent])
        assert sent < BOUND_BYTES
        (site.folder / "go").touch()
        sock.settimeout(DEADLINE_S)
        while sent < BULK_BYTES:
            sent += sock.send(piece[: BULK_BYTES - sent])
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_an_answer_breaks_with_its_replica_and_the_next_request_goes_on(site: Cluster) -> None:
    agent = site.agents["w1"]
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        connection.request(
            "GET", f"/proxy/web/big/{1 << 30}", headers={"Authorization": f"Bearer {site.token}"}
        )
        answer = connection.getresponse()
        assert answer.read(1) == b"\0"
        agent.kill()
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            answer.read()
    site.start_agent("w1")
    wait_for(lambda: ask(site, "GET", "/proxy/web/").status == 200, "it answers again")
