"""The msgpack subprotocol: same envelopes, bytes stay bytes, lists only for a peer that named them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

SLOTS = {"batch_total": 64, "batch_in_use": 0, "service_total": 0, "service_in_use": 0}
CAPABILITY = {"gpu_backend": "cpu", "cpu_count": 4}


class BinaryPeer:
    """Speaks msgpack; `receive` gives whole frames as they came."""

    def __init__(self, lab: Any, socket: Any, worker_id: str) -> None:
        self.lab, self.socket, self.id = lab, socket, worker_id

    def send(self, *envelopes: dict[str, Any]) -> None:
        body: Any = envelopes[0] if len(envelopes) == 1 else list(envelopes)
        self.socket.send(msgspec.msgpack.encode(body))

    def receive(self) -> Any:
        frame = self.socket.recv(timeout=60)
        assert isinstance(frame, bytes)
        return msgspec.msgpack.decode(frame)

    def messages(self, count: int) -> list[dict[str, Any]]:
        """Read frames until so many messages came."""
        got: list[dict[str, Any]] = []
        while len(got) < count:
            frame = self.receive()
            got += frame if isinstance(frame, list) else [frame]
        return got

    def register(self, features: list[str] | None) -> dict[str, Any]:
        body = {"id": self.id, "capabilities": CAPABILITY, "slots": SLOTS, "features": features}
        self.send({"type": "register", "payload": body})
        [ack] = self.messages(1)
        assert ack["type"] == "ack"
        return dict(ack["payload"])

    def ready(self, credit: int) -> dict[str, Any]:
        return {
            "type": "ready_for_work",
            "payload": {"worker_id": self.id, "slots": SLOTS, "credits": credit},
        }


@pytest.fixture
def peer(lab) -> Iterator[BinaryPeer]:
    """A connection that asked for msgpack, not yet registered."""
    with ExitStack() as stack:
        dialled = connect(
            lab.hub.ws,
            additional_headers={"Authorization": f"Bearer {lab.hub.token}"},
            subprotocols=[Subprotocol("dray.v2.msgpack")],
            proxy=None,
        )
        socket = stack.enter_context(dialled)
        assert socket.subprotocol == "dray.v2.msgpack"
        yield BinaryPeer(lab, socket, lab.name())


def test_lists_go_to_a_peer_that_named_them(lab, peer) -> None:
    peer.register(["list"])
    peer.send(peer.ready(10))
    peer.messages(1)
    job_id = lab.submit(array={"last": 9})
    frame = peer.receive()
    assert isinstance(frame, list)
    assert [item["payload"]["spec"]["id"] for item in frame] == [f"{job_id}/{n}" for n in range(10)]


@pytest.mark.parametrize("features", [None, [], ["resend"]])
def test_no_lists_to_a_peer_that_did_not(lab, peer, features) -> None:
    peer.register(features)
    peer.send(peer.ready(10))
    peer.messages(1)
    lab.submit(array={"last": 9})
    frames = [peer.receive() for _ in range(10)]
    assert all(isinstance(frame, dict) and frame["type"] == "job_assign" for frame in frames)


def test_a_list_is_read_in_order_and_a_bad_member_spoils_only_itself(lab, peer) -> None:
    peer.register(["list"])
    lab.submit()
    peer.send(peer.ready(1))
    [offer] = peer.messages(1)
    task = offer["payload"]["spec"]["id"]
    peer.send(
        {"type": "job_accepted", "payload": {"task_id": task}},
        {"type": "nonsense"},
        {"type": "job_result", "payload": {"task_id": task, "state": "succeeded", "exit_code": 0}},
    )
    kinds = sorted(message["type"] for message in peer.messages(3))
    assert kinds == ["ack", "ack", "error"]
    assert lab.job(task)["state"] == "succeeded"


def test_blobs_are_bytes(lab, peer) -> None:
    peer.register(["list", "job_started"])
    peer.send(peer.ready(1))
    peer.messages(1)
    task = lab.submit()
    [offer] = peer.messages(1)
    uid = offer["payload"]["attempt"]["uid"]
    output = bytes(range(256))
    log = {"task_id": task, "attempt": uid, "stream": "stdout", "offset": 0, "data": output}
    result = {"task_id": task, "attempt": uid, "state": "succeeded", "exit_code": 0, "value": b"\x00\xff"}
    peer.send(
        {"type": "job_accepted", "payload": {"task_id": task, "attempt": uid}},
        {"type": "job_started", "payload": {"task_id": task, "attempt": uid, "pid": 7}},
        {"type": "job_log", "payload": log},
        {"type": "job_result", "payload": result},
    )
    acks = {message["payload"]["re"]: message["payload"] for message in peer.messages(4)}
    assert set(acks) == {"job_accepted", "job_started", "job_log", "job_result"}
    assert acks["job_log"]["log_offsets"] == {uid: {"stdout": 256, "stderr": 0}}
    assert acks["job_result"]["results"] == {uid: "recorded"}


def test_a_gap_of_output_longer_than_any_file_is_marked(lab, peer) -> None:
    peer.register(["list"])
    peer.send(peer.ready(1))
    peer.messages(1)
    task = lab.submit()
    [offer] = peer.messages(1)
    uid = offer["payload"]["attempt"]["uid"]
    log = {"task_id": task, "attempt": uid, "stream": "stderr", "offset": 1 << 40, "data": b"tail\n"}
    peer.send({"type": "job_log", "payload": log})
    [ack] = peer.messages(1)
    assert ack["payload"]["log_offsets"] == {uid: {"stdout": 0, "stderr": (1 << 40) + 5}}


@pytest.mark.parametrize(
    ("payload", "place"),
    [
        ({"vram_gb": float("nan")}, "vram_gb"),
        ({"cpu_count": float("inf")}, "cpu_count"),
        ({"gpu_count": 2**64 - 1}, "gpu_count"),
    ],
)
def test_numbers_that_json_has_not(peer, payload: dict[str, Any], place: str) -> None:
    peer.send({"type": "register", "payload": {"id": peer.id, "capabilities": CAPABILITY | payload}})
    [error] = peer.messages(1)
    assert place in error["error"]
    peer.register(None)


def test_usage_that_is_no_number_is_refused(lab, peer) -> None:
    peer.register(None)
    result = {"task_id": "x", "state": "failed", "usage": {"max_rss_bytes": float("nan")}}
    peer.send({"type": "job_result", "payload": result})
    [error] = peer.messages(1)
    assert "$.usage.max_rss_bytes" in error["error"]


def test_text_frames_are_not_read(peer) -> None:
    peer.socket.send('{"type": "metrics_request"}')
    [error] = peer.messages(1)
    assert "msgpack" in error["error"]


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x81", b"\x91" * 5000, b"\xdf\xff\xff\xff\xff"])
def test_broken_frames_are_answered(peer, frame: bytes) -> None:
    peer.socket.send(frame)
    [error] = peer.messages(1)
    assert "not an envelope" in error["error"]
    peer.register(None)


def test_a_frame_over_8_mib_ends_the_session(peer) -> None:
    peer.send({"type": "metrics_request", "payload": {"x": b"y" * ((8 << 20) - 64)}})
    assert peer.messages(1)[0]["type"] == "metrics_response"
    peer.send({"type": "metrics_request", "payload": {"x": b"y" * (8 << 20)}})
    with pytest.raises(ConnectionClosed) as closed:
        peer.messages(1)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4400


def test_questions_are_answered_in_msgpack(lab, peer) -> None:
    worker = lab.worker()
    peer.send({"type": "worker_show_request", "payload": {"worker_id": worker.id}})
    [answer] = peer.messages(1)
    assert answer["payload"]["worker"]["id"] == worker.id


def test_the_json_subprotocol_may_be_named_too(lab) -> None:
    headers = {"Authorization": f"Bearer {lab.hub.token}"}
    names = [Subprotocol("dray.v9.x"), Subprotocol("dray.v2.json")]
    with connect(lab.hub.ws, additional_headers=headers, subprotocols=names, proxy=None) as socket:
        assert socket.subprotocol == "dray.v2.json"
        socket.send('{"type": "metrics_request"}')
        assert "metrics_response" in str(socket.recv(timeout=60))
