"""A service that others may reach: by forward, proxy and endpoints, while it is shared with them, and nothing else."""

from __future__ import annotations

import contextlib
import getpass
import http.client
import json
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.cluster import CALM, DEADLINE_S, Cluster, wait_for
from tests.e2e.test_forward import dial, make_token, read_port, serve

OWNER = getpass.getuser()
NAMED = f"board@{OWNER}"
# Answers a request, and goes on with the answer to /slow for as long as anybody reads.
BOARD = """
import os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'board')
        while self.path == '/slow':
            self.wfile.write(b'.')
            time.sleep(0.02)
    def log_message(self, *args): pass
ThreadingHTTPServer(('127.0.0.1', int(os.environ['DRAY_PORT'])), Handler).serve_forever()
"""
TCP = {"tcp": True, "interval_s": 1}


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    cluster = Cluster(CALM)
    try:
        cluster.start_hub()
        cluster.start_agent("w1", 4, "", "--service-slots", "8")
        serve(cluster, "board", code=BOARD, health_check=TCP)
        serve(cluster, "secret", code=BOARD, health_check=TCP)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def ben(site: Cluster) -> str:
    return make_token(site, "ben", "submit", "read")


@pytest.fixture(autouse=True)
def nobody(site: Cluster) -> Iterator[None]:
    """Each test begins with a service of the owner's alone."""
    yield
    site.dray("service", "unshare", "board")


@contextlib.contextmanager
def asking(site: Cluster, path: str, token: str) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=DEADLINE_S)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        yield connection.getresponse()
    finally:
        connection.close()


def status_of(site: Cluster, path: str, token: str) -> int:
    with asking(site, path, token) as answer:
        return answer.status


@contextlib.contextmanager
def forwarding(site: Cluster, name: str, token: str) -> Iterator[int]:
    process, said = site.begin("forward", name, name="forward-shared", env={"DRAY_TOKEN": token})
    try:
        yield wait_for(lambda: read_port(process, said), "the forward has its port")
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
        said.unlink()


def get(port: int, path: bytes = b"/") -> socket.socket:
    sock = dial(port)
    sock.sendall(b"GET " + path + b" HTTP/1.0\r\n\r\n")
    return sock


def shared(site: Cluster, *words: str) -> Any:
    done = site.dray("service", *words, "-o", "json")
    assert done.code == 0, done.err
    return json.loads(done.out)["share"]


def test_whom_a_service_is_shared_with_reaches_it_and_changes_nothing(site: Cluster, ben: str) -> None:
    assert status_of(site, f"/proxy/{NAMED}/", ben) == 404, "nothing is shared yet"
    assert shared(site, "share", "board", "ben", "eve") == ["ben", "eve"]
    with asking(site, f"/proxy/{NAMED}/", ben) as answer:
        assert (answer.status, answer.read()) == (200, b"board")
    with forwarding(site, NAMED, ben) as port, get(port) as sock:
        assert sock.recv(1 << 16).startswith(b"HTTP/1.0 200")
    listed = site.call("GET", "/services", token=ben).json["services"]
    assert [(row["name"], row["user"], row["command"]) for row in listed] == [("board", OWNER, [])]
    shown = site.call("GET", f"/services/{NAMED}", token=ben).json
    assert (shown["command"], shown["share"], shown["ready"]) == ([], [], 1), "not how it was started"
    found = site.call("GET", f"/services/{NAMED}/endpoints", token=ben).json["endpoints"]
    assert [(one["worker"], one["attempt"]) for one in found] == [("w1", "")]
    job_id = shown["id"]
    for path, body in (
        ("scale", {"replicas": 0}),
        ("share", {"add": ["ben"]}),
        ("restart", {}),
        ("stop", {}),
    ):
        assert site.call("POST", f"/services/{NAMED}/{path}", body, token=ben).status == 403, path
    for method, path in (
        ("GET", ""),
        ("GET", "/logs"),
        ("POST", "/cancel"),
        ("POST", "/requeue"),
        ("POST", "/hold"),
    ):
        assert site.call(method, f"/jobs/{job_id}{path}", token=ben).status == 404, path
    assert site.call("PATCH", f"/jobs/{job_id}", {"share": ["*"]}, token=ben).status == 404
    refused = site.dray("exec", f"{NAMED}/0", "--", "id", env={"DRAY_TOKEN": ben})
    assert refused.code == 125
    assert "of yours runs (" not in refused.out
    assert "no task" in refused.err
    link = site.call("POST", f"/services/{NAMED}/link", token=ben).json
    assert link["host"].startswith(f"{job_id}."), "a host by a name would be that of his own service"
    assert status_of(site, "/proxy/secret/", ben) == 404
    assert status_of(site, f"/proxy/secret@{OWNER}/", ben) == 404


def test_a_bare_name_never_leads_to_somebody_elses(site: Cluster, ben: str) -> None:
    shared(site, "share", "board", "everybody")
    assert status_of(site, "/proxy/board/", ben) == 404, (
        "whoever shares his with all could call it as he likes"
    )
    assert status_of(site, f"/proxy/{NAMED}/", ben) == 200
    stranger = make_token(site, "zoe", "submit", "read")
    assert status_of(site, f"/proxy/{NAMED}/", stranger) == 200
    own = site.submit("sleep", "1000", token=ben, type="service", name="board", min_cpu_cores=0)
    try:
        assert site.call("GET", "/services/board", token=ben).json["id"] == own
        assert site.call("GET", f"/services/{NAMED}", token=ben).json["id"] != own
        assert site.call("GET", "/services/board@ben", token=stranger).status == 404
    finally:
        site.call("POST", f"/jobs/{own}/cancel", {"grace_s": 0})


def test_a_read_token_reaches_nothing_that_is_shared(site: Cluster) -> None:
    shared(site, "share", "board", "ben")
    reader = make_token(site, "ben", "read")
    assert status_of(site, f"/proxy/{NAMED}/", reader) == 403
    assert site.call("POST", f"/services/{NAMED}/link", token=reader).status == 403
    assert site.dray("forward", NAMED, env={"DRAY_TOKEN": reader}).code == 1
    assert site.call("GET", f"/services/{NAMED}/endpoints", token=reader).status == 200


def test_what_is_open_ends_with_the_share_and_only_that(site: Cluster, ben: str) -> None:
    eve = make_token(site, "eve", "submit", "read")
    shared(site, "share", "board", "ben", "eve")
    with contextlib.ExitStack() as stack:
        answer = stack.enter_context(asking(site, f"/proxy/{NAMED}/slow", ben))
        kept = stack.enter_context(asking(site, f"/proxy/{NAMED}/slow", eve))
        own = stack.enter_context(asking(site, "/proxy/board/slow", site.token))
        port = stack.enter_context(forwarding(site, NAMED, ben))
        sock = stack.enter_context(get(port, b"/slow"))
        assert sock.recv(1), "it stands"
        for each in (answer, kept, own):
            assert each.read(5) == b"board"
        link = site.call("POST", f"/services/{NAMED}/link", token=ben).json
        assert shared(site, "unshare", "board", "ben") == ["eve"]
        with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
            while answer.read(1):
                pass
        with contextlib.suppress(ConnectionError):
            while sock.recv(1 << 16):
                pass
        with contextlib.suppress(ConnectionError), get(port) as again:
            assert again.recv(1) == b""
        assert kept.read(3) == b"..."
        assert own.read(3) == b"..."
    assert status_of(site, f"/proxy/{NAMED}/", ben) == 404
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=DEADLINE_S)
    connection.request("GET", link["path"], headers={"Host": link["host"]})
    assert connection.getresponse().status == 404, "a link of before"
    connection.close()


def test_a_pass_of_a_browser_ends_with_the_share(site: Cluster, ben: str) -> None:
    shared(site, "share", "board", "ben")
    link = site.call("POST", f"/services/{NAMED}/link", token=ben).json
    host = {"Host": link["host"]}
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=DEADLINE_S)
    connection.request("GET", link["path"], headers=host)
    came = connection.getresponse()
    came.read()
    assert came.status == 303
    cookie = str(came.headers["Set-Cookie"]).partition(";")[0]

    def visit() -> int:
        connection.request("GET", "/", headers={**host, "Cookie": cookie})
        answer = connection.getresponse()
        answer.read()
        return answer.status

    assert visit() == 200
    assert shared(site, "unshare", "board") == []
    assert visit() == 404
    connection.close()


def test_a_share_that_was_taken_back_does_not_come_back_with_an_earlier_revision(
    site: Cluster, ben: str
) -> None:
    quick = {"settle_s": 0.1, "drain_s": 0.1}
    serve(site, "versions", code=BOARD, health_check=TCP, share=["ben"], update=quick)
    named = f"versions@{OWNER}"

    def wait_revision(number: int) -> None:
        def there() -> bool:
            shown = site.call("GET", "/services/versions").json
            return bool(shown["revision"] == number and not shown["update"] and shown["ready"] == 1)

        wait_for(there, f"revision {number} is whole")

    assert site.call("POST", "/services/versions/update", {"changes": {"env": {"A": "1"}}}).status == 200
    wait_revision(2)
    assert status_of(site, f"/proxy/{named}/", ben) == 200, "an update takes nothing away"
    told = site.call("GET", f"/services/{named}", token=ben).json
    assert (told["revisions"], told["update"]) == ([], ""), "nor what became of updates, and why"
    assert shared(site, "unshare", "versions") == []
    assert site.call("POST", "/services/versions/rollback", {}).status == 200
    wait_revision(1)
    assert status_of(site, f"/proxy/{named}/", ben) == 404
    refused = site.call("POST", "/services/versions/update", {"changes": {"share": ["ben"]}})
    assert refused.status == 400
    shared(site, "share", "versions", "ben")
    for path, body in (("update", {"changes": {"env": {"A": "2"}}}), ("rollback", {})):
        assert site.call("POST", f"/services/{named}/{path}", body, token=ben).status == 403, path


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (["two words"], "is no name of a user"),
        (["../x"], "is no name of a user"),
        ("ben", "must be a list"),
        ([7], "must be text"),
    ],
)
def test_bad_shares_are_refused(site: Cluster, share: Any, said: str) -> None:
    spec = {"command": ["true"], "type": "service", "share": share}
    answer = site.call("POST", "/jobs", spec)
    assert answer.status == 400
    assert said in str(answer.json)
    batch = site.call("POST", "/jobs", {"command": ["true"], "share": ["ben"]})
    assert batch.status == 400
    assert "is for a service" in str(batch.json)
