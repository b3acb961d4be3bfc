"""What of a request by the proxy reaches a worker, and when it is sent again: frames spelled by hand on the worker's
side, HTTP on the caller's.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
from websockets.sync.client import ClientConnection

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
FEATURES = ("job_started", "ports", "tunnel")


class Asking:
    """One request of a caller, under way in a thread."""

    def __init__(self, lab: Any, name: str, method: str = "GET", body: Any = None, path: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", lab.hub.port, timeout=WAIT_S)
        self._ask = method, f"/proxy/{name}/{path}", body, {"Authorization": f"Bearer {lab.hub.token}"}
        self.status, self.body = 0, b""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self._connection.request(*self._ask)
        answer = self._connection.getresponse()
        self.status, self.body = answer.status, answer.read()
        self._connection.close()

    def end(self) -> int:
        """Its status, once it is answered."""
        self._thread.join(WAIT_S)
        return self.status

    def leave(self) -> None:
        """Hang up."""
        self._connection.close()


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
