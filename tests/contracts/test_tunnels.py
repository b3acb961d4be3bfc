"""Tunnels and forwards by the protocol's text alone: frames `stream u32 | kind u8 | payload`, spelled by hand."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets import Subprotocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

OPEN, OPENED, REFUSED, DATA, WINDOW, EOF, RESET = range(7)
WAIT_S = 60.0
UNREACHED = "does not answer: "


def frame(stream: int, kind: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IB", stream, kind) + payload


def read(socket: ClientConnection) -> tuple[int, int, bytes]:
    raw = socket.recv(timeout=WAIT_S)
    assert isinstance(raw, bytes)
    return (*struct.unpack(">IB", raw[:5]), raw[5:])


@contextmanager
def dial(lab: Any, path: str, **headers: str) -> Iterator[ClientConnection]:
    more = {"Authorization": f"Bearer {lab.hub.token}", **headers}
    url, speaks = f"ws://127.0.0.1:{lab.hub.port}{path}", [Subprotocol("dray.v2.streams")]
    with connect(url, additional_headers=more, subprotocols=speaks, proxy=None, close_timeout=2) as socket:
        assert socket.subprotocol == "dray.v2.streams"
        yield socket


def serve(lab: Any, *features: str) -> tuple[Any, str, str]:
    """A worker that runs a service with a port and says so: the worker, the service, the uid of its attempt."""
    worker = lab.worker(register=False)
    worker.send(
        "register", {"id": worker.id, "capabilities": worker.capabilities, "features": list(features)}
    )
    worker.expect("ack")
    worker.ready()
    assigned = lab.offers(worker, type="service", ports=["http"])
    job_id, uid = assigned["spec"]["id"], assigned["attempt"]["uid"]
    worker.send("job_accepted", {"task_id": job_id, "attempt": uid, "ports": [20123], "address": "192.0.2.9"})
    worker.expect("ack")
    worker.send("job_started", {"task_id": job_id, "attempt": uid})
    worker.expect("ack")
    return worker, job_id, uid


def ask(socket: ClientConnection, name: str) -> None:
    socket.send(frame(1, OPEN, json.dumps({"type": "service", "name": name, "port": "http"}).encode()))


def test_a_stream_from_a_client_to_a_worker_and_back(lab: Any) -> None:
    worker, job_id, uid = serve(lab, "job_started", "ports", "tunnel")
    with dial(lab, "/ws/forward") as client:
        ask(client, job_id)
        client.send(frame(1, DATA, b"hello"))
        ticket = worker.expect("tunnel_dial")["ticket"]
        with dial(lab, "/ws/tunnel", **{"Dray-Ticket": ticket}) as tunnel:
            number, kind, payload = read(tunnel)
            assert (kind, json.loads(payload)) == (OPEN, {"type": "port", "attempt": uid, "port": 20123})
            tunnel.send(frame(number, OPENED))
            assert read(tunnel) == (number, DATA, b"hello")
            _, kind, payload = read(client)
            assert kind == OPENED
            reached = {"task": job_id, "worker": worker.id, "port": 20123, "notes": []}
            assert json.loads(payload) == reached
            tunnel.send(frame(number, DATA, b"and back"))
            tunnel.send(frame(number, EOF))
            assert read(client) == (1, DATA, b"and back")
            assert read(client) == (1, EOF, b"")
            client.send(frame(1, EOF))
            assert read(tunnel) == (number, EOF, b"")
            # The hub keeps the tunnel for the next one.
            with dial(lab, "/ws/forward") as another:
                ask(another, job_id)
                assert read(tunnel)[:2] == (number + 1, OPEN)
                tunnel.send(frame(number + 1, REFUSED, b"nothing listens"))
                _, kind, payload = read(another)
                code, _, words = payload.decode().partition("\n")
                assert (kind, code) == (REFUSED, "unreachable")
                assert words.startswith(f"{job_id} on {worker.id} {UNREACHED}nothing listens. ")


@pytest.mark.parametrize(
    "rude",
    [frame(9, OPEN, b'{"type":"port","attempt":"x","port":1}'), frame(1, DATA, b"unasked"), b"nonsense", b""],
)
def test_a_worker_that_opens_streams_or_talks_nonsense_is_cut_off(lab: Any, rude: bytes) -> None:
    worker, job_id, _ = serve(lab, "job_started", "ports", "tunnel")
    with dial(lab, "/ws/forward") as client:
        ask(client, job_id)
        ticket = worker.expect("tunnel_dial")["ticket"]
        with dial(lab, "/ws/tunnel", **{"Dray-Ticket": ticket}) as tunnel:
            assert read(tunnel)[1] == OPEN
            tunnel.send(rude)
            with pytest.raises(ConnectionClosed) as ended:
                read(tunnel)
            assert ended.value.rcvd is not None
            assert ended.value.rcvd.code == 4400
        assert read(client)[1] == REFUSED
    assert worker.heartbeat() == [], "its session goes on"


def test_a_ticket_is_good_once_and_no_tunnel_comes_without(lab: Any) -> None:
    worker, job_id, _ = serve(lab, "job_started", "ports", "tunnel")
    with pytest.raises(InvalidStatus), dial(lab, "/ws/tunnel"):
        pass
    with dial(lab, "/ws/forward") as client:
        ask(client, job_id)
        ticket = worker.expect("tunnel_dial")["ticket"]
        with dial(lab, "/ws/tunnel", **{"Dray-Ticket": ticket}) as tunnel:
            assert read(tunnel)[1] == OPEN
            with pytest.raises(InvalidStatus), dial(lab, "/ws/tunnel", **{"Dray-Ticket": ticket}):
                pass


def test_a_worker_without_tunnels_is_asked_for_none(lab: Any) -> None:
    worker, job_id, _ = serve(lab, "job_started", "ports")
    with dial(lab, "/ws/forward") as client:
        ask(client, job_id)
        _, kind, payload = read(client)
    assert kind == REFUSED
    code, _, words = payload.decode().partition("\n")
    assert code == "unreachable"
    assert words.startswith(
        f"{job_id} on {worker.id} {UNREACHED}worker {worker.id} speaks the protocol without tunnels: "
        "what runs there is reached at its address alone"
    )
    assert worker.heartbeat() == []
    base = lab.worker()
    base.ready()
    plain = lab.offers(base, type="service")["spec"]["id"]
    base.accept(plain)
    with dial(lab, "/ws/forward") as client:
        ask(client, plain)
        _, kind, payload = read(client)
    assert (kind, b"has no ports" in payload) == (REFUSED, True)
    assert base.heartbeat() == []
