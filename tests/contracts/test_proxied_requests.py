"""What of a request by the proxy reaches a worker, and when it is sent again: frames spelled by hand on the worker's
side, HTTP on the caller's.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.contracts.test_tunnels import (
    DATA,
    EOF,
    OPEN,
    OPENED,
    REFUSED,
    RESET,
    WAIT_S,
    dial,
    frame,
    read,
)
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
FEATURES = ("job_started", "ports", "tunnel")
KEEP = 10


class Asking:
    """One request of a caller, under way in a thread."""

    def __init__(self, lab: Any, name: str, method: str = "GET", body: Any = None, token: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", lab.hub.port, timeout=WAIT_S)
        self._ask = method, f"/proxy/{name}/", body, {"Authorization": f"Bearer {token or lab.hub.token}"}
        self.status, self.body = 0, b""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.closing(self._connection), contextlib.suppress(http.client.HTTPException, OSError):
            self._connection.request(*self._ask)
            answer = self._connection.getresponse()
            self.body = answer.read()
            self.status = answer.status

    def end(self) -> int:
        """Its status, once it is answered; 0 where it broke."""
        self._thread.join(WAIT_S)
        return self.status


def serve(lab: Any, replicas: int = 1, features: tuple[str, ...] = FEATURES) -> tuple[Any, str, list[str]]:
    """A worker that runs all replicas of a service and says so: the worker, the service, the uids of the attempts."""
    worker = lab.worker(register=False, slots={"batch_total": 1, "batch_in_use": 0, "service_total": 4})
    told = {"id": worker.id, "capabilities": worker.capabilities, "features": list(features)}
    worker.send("register", told)
    worker.expect("ack")
    worker.ready()
    given = {"type": "service", "ports": ["http"], "replicas": replicas, "min_cpu_cores": 0}
    job_id = lab.submit(**given)
    uids = []
    for number in range(replicas):
        assigned = worker.expect("job_assign")
        task, uid = assigned["spec"]["id"], assigned["attempt"]["uid"]
        uids.append(uid)
        for kind, more in (
            ("job_accepted", {"ports": [20100 + number], "address": "192.0.2.9"}),
            ("job_started", {}),
        ):
            worker.send(kind, {"task_id": task, "attempt": uid, **more})
            worker.expect("ack")
        if number + 1 < replicas:
            worker.send(
                "ready_for_work", {"worker_id": worker.id, "slots": worker.slots, "reason": "polling"}
            )
    return worker, job_id, uids


@contextmanager
def tunnel_of(lab: Any, worker: Any) -> Iterator[ClientConnection]:
    ticket = worker.expect("tunnel_dial")["ticket"]
    with dial(lab, "/ws/tunnel", **{"Dray-Ticket": ticket}) as tunnel:
        yield tunnel


def read_opening(tunnel: ClientConnection) -> tuple[int, str]:
    """The next frame, which opens a stream: its number, and which attempt it is for."""
    number, kind, payload = read(tunnel)
    assert kind == OPEN
    return number, json.loads(payload)["attempt"]


def read_request(tunnel: ClientConnection, number: int, until: bytes = b"\r\n\r\n") -> bytes:
    """What comes of a request, up to its end."""
    got = b""
    while not got.endswith(until):
        stream, kind, payload = read(tunnel)
        assert (stream, kind) == (number, DATA), (stream, kind, payload)
        got += payload
    return got


def answer(tunnel: ClientConnection, number: int, text: bytes = ANSWER) -> None:
    tunnel.send(frame(number, OPENED))
    tunnel.send(frame(number, DATA, text))


def test_a_request_comes_with_its_stream_and_goes_elsewhere_whole_where_that_is_refused(lab: Any) -> None:
    worker, job_id, uids = serve(lab, replicas=2)
    body = b"x" * 200_000 + b"the end"
    asking = Asking(lab, job_id, "POST", body)
    with tunnel_of(lab, worker) as tunnel:
        number, first = read_opening(tunnel)
        begun = read_request(tunnel, number)
        assert begun.startswith(b"POST / HTTP/1.1\r\n"), "nobody has said yet that the stream stands"
        # Of the body no more comes than the hub would have to keep.
        early = 0
        while early < 64 << 10:
            got = read(tunnel)
            assert got[:2] == (number, DATA)
            early += len(got[2])
        tunnel.send(frame(number, REFUSED, b"nothing listens"))
        while (got := read(tunnel))[1] != OPEN:
            assert got[0] == number
            early += len(got[2])
        assert early < len(body)
        assert {first, json.loads(got[2])["attempt"]} == set(uids)
        tunnel.send(frame(got[0], OPENED))
        assert read_request(tunnel, got[0], b"the end") == begun + body
        tunnel.send(frame(got[0], DATA, ANSWER))
        assert (asking.end(), asking.body) == (200, b"hello")


def test_what_may_have_been_taken_is_not_sent_again(lab: Any) -> None:
    worker, job_id, _ = serve(lab, replicas=2)
    asking = Asking(lab, job_id)
    with tunnel_of(lab, worker) as tunnel:
        number, _ = read_opening(tunnel)
        read_request(tunnel, number)
    assert asking.end() == 502, "the tunnel broke before anybody said whether the stream stands"
    for broken in (frame(2, RESET, b"it broke"), frame(2, EOF)):
        again = Asking(lab, job_id)
        with tunnel_of(lab, worker) as tunnel:
            number, _ = read_opening(tunnel)
            read_request(tunnel, number)
            answer(tunnel, number)
            assert again.end() == 200
            assert read(tunnel)[:2] == (number, EOF)
            asked = Asking(lab, job_id)
            number, _ = read_opening(tunnel)
            assert number == 2
            read_request(tunnel, number)
            tunnel.send(frame(number, OPENED))
            tunnel.send(broken)
            assert asked.end() == 502
    assert worker.heartbeat() == [], "no other tunnel was asked for"


def test_where_all_refuse_each_of_them_is_quoted(lab: Any) -> None:
    worker, job_id, _ = serve(lab, replicas=2)
    asking = Asking(lab, job_id)
    with tunnel_of(lab, worker) as tunnel:
        for words in (b"nothing listens", b"nor here"):
            number, _ = read_opening(tunnel)
            read_request(tunnel, number)
            tunnel.send(frame(number, REFUSED, words))
        assert asking.end() == 502
    said = json.loads(asking.body)["error"]["message"]
    assert "nothing listens; " in said
    assert "nor here. " in said


def test_a_worker_of_which_nothing_was_heard_is_asked_before_it_gets_a_request(lab: Any) -> None:
    worker, job_id, _ = serve(lab)
    asking = Asking(lab, job_id)
    with tunnel_of(lab, worker) as tunnel:
        number, _ = read_opening(tunnel)
        read_request(tunnel, number)
        answer(tunnel, number)
        assert asking.end() == 200
        assert read(tunnel)[:2] == (number, EOF)
        time.sleep(1.1)  # the hub takes it for quiet after a second
        later = Asking(lab, job_id)
        number, _ = read_opening(tunnel)
        worker.heartbeat()
        tunnel.send(frame(number, OPENED))
        read_request(tunnel, number)
        tunnel.send(frame(number, DATA, ANSWER))
        assert later.end() == 200


def read_end(tunnel: ClientConnection, number: int) -> tuple[int, bytes]:
    """How the hub ends a stream."""
    while True:
        stream, kind, payload = read(tunnel)
        if stream == number:
            return kind, payload


def test_a_connection_is_kept_for_one_caller_and_no_other(lab: Any) -> None:
    worker, job_id, _ = serve(lab, features=(*FEATURES, "keep"))
    other = lab.token("submit", "read")
    words: list[str] = []
    asking = Asking(lab, job_id)
    with tunnel_of(lab, worker) as tunnel:
        for token in ("", other, ""):
            if words:
                asking = Asking(lab, job_id, token=token)
            number, kind, payload = read(tunnel)
            assert kind == OPEN
            words.append(json.loads(payload)["keep_for"])
            assert b"connection:" not in read_request(tunnel, number).lower()
            answer(tunnel, number)
            assert asking.end() == 200
            assert read_end(tunnel, number) == (KEEP, struct.pack(">Q", len(ANSWER)))
    assert words[0] == words[2] != words[1]
    assert not any(part in word for word in words for part in (lab.hub.token, other, "dray_"))


LENGTH, CHUNKED = b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"
FIVE, OK = b"\r\nhello", b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("text", "keeps"),
    [
        (OK + LENGTH + FIVE, True),
        (OK + LENGTH + b"Keep-Alive: timeout=5, max=100\r\n" + FIVE, True),
        (OK + b"Content-Length: 0\r\n\r\n", True),
        (OK + CHUNKED + b"\r\n5\r\nhello\r\n0\r\n\r\n", True),
        (OK + CHUNKED + b"Trailer: X-T\r\n\r\n5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n", True),
        (b"HTTP/1.1 404 Not Found\r\n" + LENGTH + FIVE, True),
        (OK + LENGTH + b"Connection: close\r\n" + FIVE, False),
        (OK + LENGTH + b"Connection: Keep-Alive, Close\r\n" + FIVE, False),
        (OK + LENGTH + b"Keep-Alive: timeout=1\r\n" + FIVE, False),
        (OK.replace(b"1.1", b"1.0") + LENGTH + FIVE, False),
        (OK.replace(b"1.1", b"1.0") + LENGTH + b"Connection: keep-alive\r\n" + FIVE, False),
        (OK + LENGTH + FIVE + b"and more", False),
        (OK + LENGTH + FIVE + OK + LENGTH + FIVE, False),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK + LENGTH + FIVE, False),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + LENGTH + FIVE, False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", False),
        (b"HTTP/1.1 304 Not Modified\r\n" + LENGTH + b"\r\n", False),
    ],
)
def test_a_connection_is_kept_after_an_answer_that_has_one_end_and_nothing_behind_it(
    lab: Any, text: bytes, keeps: bool
) -> None:
    worker, job_id, _ = serve(lab, features=(*FEATURES, "keep"))
    asking = Asking(lab, job_id)
    with tunnel_of(lab, worker) as tunnel:
        number, _ = read_opening(tunnel)
        read_request(tunnel, number)
        answer(tunnel, number, text)
        assert asking.end() in (200, 204, 304, 404)
        kind, payload = read_end(tunnel, number)
        assert kind == (KEEP if keeps else EOF)
        assert payload == (struct.pack(">Q", len(text)) if keeps else b"")


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_an_answer_without_a_body_may_name_a_length_and_the_caller_goes_on(lab: Any, status: bytes) -> None:
    worker, job_id, _ = serve(lab)
    asked = (
        f"GET /proxy/{job_id}/ HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {lab.hub.token}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", lab.hub.port), WAIT_S) as sock, sock.makefile("rb") as got:
        sock.sendall(asked.encode())
        with tunnel_of(lab, worker) as tunnel:
            for _ in range(2):
                number, _ = read_opening(tunnel)
                read_request(tunnel, number)
                answer(tunnel, number, b"HTTP/1.1 " + status + b"\r\n" + LENGTH + b"\r\n")
                lines = list(iter(got.readline, b"\r\n"))
                assert lines[0] == b"HTTP/1.1 " + status + b"\r\n"
                assert not any(line.lower().startswith((b"content-length", b"transfer")) for line in lines)
                assert read_end(tunnel, number)[0] == EOF
                sock.sendall(asked.encode())


@pytest.mark.parametrize("text", [OK + FIVE, OK + CHUNKED + LENGTH + FIVE, OK + LENGTH + b"\r\nhel"])
def test_a_connection_is_not_kept_after_an_answer_that_is_not_whole(lab: Any, text: bytes) -> None:
    worker, job_id, _ = serve(lab, features=(*FEATURES, "keep"))
    asking = Asking(lab, job_id)
    with tunnel_of(lab, worker) as tunnel:
        number, _ = read_opening(tunnel)
        read_request(tunnel, number)
        answer(tunnel, number, text)
        tunnel.send(frame(number, EOF))
        asking.end()
        assert read_end(tunnel, number)[0] in (EOF, RESET)


@pytest.mark.parametrize(
    ("method", "body", "features"),
    [("POST", b"a body", ("keep",)), ("GET", b"a body", ("keep",)), ("GET", None, ())],
)
def test_what_has_a_body_and_what_is_for_an_older_worker_has_a_connection_of_its_own(
    lab: Any, method: str, body: bytes | None, features: tuple[str, ...]
) -> None:
    worker, job_id, uids = serve(lab, features=(*FEATURES, *features))
    asking = Asking(lab, job_id, method, body)
    with tunnel_of(lab, worker) as tunnel:
        number, kind, payload = read(tunnel)
        assert (kind, json.loads(payload)) == (OPEN, {"type": "port", "attempt": uids[0], "port": 20100})
        assert b"\r\nconnection: close\r\n" in read_request(tunnel, number, body or b"\r\n\r\n")
        answer(tunnel, number)
        assert asking.end() == 200
        assert read_end(tunnel, number)[0] == EOF


def test_the_connection_of_a_caller_who_left_is_not_kept(lab: Any) -> None:
    worker, job_id, _ = serve(lab, features=(*FEATURES, "keep"))
    with socket.create_connection(("127.0.0.1", lab.hub.port), WAIT_S) as sock:
        head = f"GET /proxy/{job_id}/ HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {lab.hub.token}"
        sock.sendall(f"{head}\r\n\r\n".encode())
        with tunnel_of(lab, worker) as tunnel:
            number, _ = read_opening(tunnel)
            read_request(tunnel, number)
            sock.close()
            assert read_end(tunnel, number)[0] == RESET


def test_a_worker_that_keeps_a_stream_of_the_hub_is_cut_off(lab: Any) -> None:
    worker, job_id, _ = serve(lab, features=(*FEATURES, "keep"))
    asking = Asking(lab, job_id)
    with tunnel_of(lab, worker) as tunnel:
        number, _ = read_opening(tunnel)
        tunnel.send(frame(number, OPENED))
        tunnel.send(frame(number, KEEP, bytes(8)))
        with pytest.raises(ConnectionClosed) as ended:
            read_end(tunnel, number + 1)
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == 4400
    assert asking.end() == 502
