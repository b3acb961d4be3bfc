"""Bad input is answered with what and where, costs nobody else anything, and ends a session only when it goes on."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

SLOTS = {"batch_total": 1, "batch_in_use": 0, "service_total": 0, "service_in_use": 0}
CAPABILITY = {"gpu_backend": "cpu", "cpu_count": 4}
HUGE = 10**30


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ("{", ["not an envelope"]),
        ("", ["not an envelope"]),
        ("[1, 2]", ["not an envelope", "$[0]"]),
        ('[{"type": "metrics_request"}]', ["is a list", "feature 'list'"]),
        ("[]", ["is a list"]),
        ('"text"', ["not an envelope"]),
        ('{"payload": {}}', ["type"]),
        ('{"type": 7}', ["$.type"]),
        ('{"type": "no_such_thing"}', ["no_such_thing", "job_result"]),
        ('{"type": "job_assign"}', ["unknown message type", "job_assign"]),
        ('{"type": "heartbeat"}', ["heartbeat", "worker_id"]),
        ('{"type": "heartbeat", "payload": []}', ["heartbeat", "object"]),
        ('{"type": "job_accepted", "payload": {"task_id": 3}}', ["job_accepted", "$.task_id"]),
        ('{"type": "job_accepted", "payload": {"task_id": "a/b/c"}}', ["job_accepted", "$.task_id"]),
        ('{"type": "job_accepted", "payload": {"task_id": "../etc"}}', ["$.task_id"]),
        (
            '{"type": "job_result", "payload": {"task_id": "a", "state": "great"}}',
            ["job_result", "$.state", "great"],
        ),
        (
            '{"type": "job_result", "payload": {"task_id": "a", "state": "failed", "exit_code": "1"}}',
            ["$.exit_code"],
        ),
        ('{"type": "metrics_request", "payload": ' + "[" * 5000 + "]" * 5000 + "}", ["deep"]),
        ("[" * 100_000, ["not an envelope"]),
        ('{"type": "job_accepted", "payload": {"task_id": "\\ud800"}}', ["not an envelope"]),
        ('{"type": "job_accepted", "payload": {"task_id": "\\ud800\\u0041"}}', ["surrogate"]),
    ],
)
def test_a_bad_message_is_named_and_the_session_lives(lab, frame: str, words: list[str]) -> None:
    worker = lab.worker()
    worker.socket.send(frame)
    error = worker.expect("error")
    assert "payload" not in error
    for word in words:
        assert word in error["error"], error
    assert worker.heartbeat() == []


@pytest.mark.parametrize(
    ("kind", "payload", "place"),
    [
        ("register", {"id": "../x", "capabilities": CAPABILITY}, "$.id"),
        ("register", {"id": "x", "capabilities": {"gpu_backend": "abacus"}}, "$.capabilities.gpu_backend"),
        ("register", {"id": "x", "capabilities": {"gpu_count": -1}}, "$.capabilities.gpu_count"),
        ("register", {"id": "x", "capabilities": {"gpu_count": HUGE}}, "$.capabilities.gpu_count"),
        ("register", {"id": "x", "capabilities": {"vram_gb": 1e300}}, "$.capabilities.vram_gb"),
        ("register", {"id": "x", "capabilities": {"gpu_info": {"count": HUGE}}}, "gpu_info.count"),
        ("register", {"id": "x", "capabilities": {"gpu_info": {"mem_total": HUGE}}}, "gpu_info.mem_total"),
        ("register", {"id": "x", "capabilities": {"hostname": 4}}, "$.capabilities.hostname"),
        ("register", {"id": "x", "capabilities": CAPABILITY, "active_tasks": [{}]}, "active_tasks[0]"),
        (
            "register",
            {"id": "x", "capabilities": CAPABILITY, "active_tasks": [{"task_id": "/"}]},
            "$.active_tasks[0].task_id",
        ),
        (
            "register",
            {
                "id": "x",
                "capabilities": CAPABILITY,
                "finished_unacked": [{"task_id": "a", "state": "failed", "exit_code": HUGE}],
            },
            "$.finished_unacked[0].exit_code",
        ),
        ("register", {"id": "x", "capabilities": CAPABILITY, "max_epoch_seen": 2**40}, "$.max_epoch_seen"),
        ("register", {"id": "x", "capabilities": CAPABILITY, "max_epoch_seen": -1}, "$.max_epoch_seen"),
        (
            "register",
            {"id": "x", "capabilities": CAPABILITY, "devices": [{"index": 0, "vram_bytes": HUGE}]},
            "$.devices[0]",
        ),
        ("heartbeat", {"worker_id": "ME", "slots": {**SLOTS, "batch_total": -1}}, "$.slots.batch_total"),
        (
            "heartbeat",
            {"worker_id": "ME", "slots": {**SLOTS, "service_in_use": HUGE}},
            "slots.service_in_use",
        ),
        ("ready_for_work", {"worker_id": "ME", "slots": SLOTS, "credits": -1}, "$.credits"),
        ("ready_for_work", {"worker_id": "ME", "slots": SLOTS, "credits": HUGE}, "$.credits"),
        ("ready_for_work", {"worker_id": "ME"}, "slots"),
        ("job_result", {"task_id": "JOB", "state": "failed", "exit_code": HUGE}, "$.exit_code"),
        ("job_result", {"task_id": "JOB", "state": "failed", "exit_code": 2**63}, "$.exit_code"),
        ("job_result", {"task_id": "JOB", "state": "failed", "signal": HUGE}, "$.signal"),
        ("job_result", {"task_id": "JOB", "state": "failed", "usage": {"max_rss_bytes": 1e300}}, "$.usage"),
        ("job_result", {"task_id": "JOB", "state": "failed", "usage": {"stdout_bytes": -1}}, "$.usage"),
        ("job_started", {"task_id": "JOB", "pid": HUGE}, "$.pid"),
        ("job_accepted", {"task_id": "JOB", "ports": [HUGE]}, "$.ports[0]"),
        ("job_log", {"task_id": "JOB", "stream": "stdlog", "offset": 0, "data": ""}, "$.stream"),
        ("job_log", {"task_id": "JOB", "stream": "stdout", "offset": -1, "data": ""}, "$.offset"),
    ],
)
def test_values_without_sense_are_refused_where_they_stand(lab, kind: str, payload: Any, place: str) -> None:
    """Numbers that no store can hold would otherwise be found out after the turn has begun."""
    worker = lab.worker()
    worker.ready()
    job_id = lab.offers(worker)["spec"]["id"]
    text = json.dumps(payload).replace('"ME"', json.dumps(worker.id)).replace('"JOB"', json.dumps(job_id))
    worker.send(kind, json.loads(text))
    error = worker.expect("error")["error"]
    assert place in error
    assert kind in error
    worker.accept(job_id)
    worker.finish(job_id)
    assert lab.job(job_id)["state"] == "succeeded"


@pytest.mark.parametrize(
    "uid", ["99999999999999999999-1", "1-99999999999999999999", "²-1", "-", "x", "1-1\0", "../.."]
)
def test_attempts_that_cannot_be_are_like_any_unknown_one(lab, uid: str) -> None:
    worker = lab.worker()
    worker.ready()
    job_id = lab.offers(worker)["spec"]["id"]
    worker.send("job_result", {"task_id": job_id, "state": "failed", "exit_code": 1, "attempt": uid})
    assert worker.expect("ack")["results"] == {uid: "superseded"}
    for kind in ("job_accepted", "job_started"):
        worker.send(kind, {"task_id": job_id, "attempt": uid})
        assert f"{kind}: this worker has no attempt" in worker.expect("error")["error"]
    worker.send("job_log", {"task_id": job_id, "stream": "stdout", "offset": 0, "data": "", "attempt": uid})
    worker.expect("error")
    twin = lab.worker(register=False)
    body = {"id": twin.id, "capabilities": twin.capabilities}
    active = [{"task_id": job_id, "state": "running", "attempt": uid}]
    finished = [{"task_id": job_id, "state": "failed", "attempt": uid}]
    twin.send("register", body | {"active_tasks": active, "finished_unacked": finished})
    assert twin.expect("ack")["results"] == {uid: "superseded"}
    assert twin.heartbeat() == []
    assert worker.heartbeat() == []


def test_ten_bad_messages_in_a_row_end_the_session(lab) -> None:
    worker = lab.worker()
    for _ in range(9):
        worker.socket.send("{")
        worker.expect("error")
    assert worker.heartbeat() == []
    for _ in range(10):
        worker.socket.send("{")
    code, reason = worker.closed()
    assert code == 4400
    assert "10 bad messages in a row" in reason
    assert [message["type"] for message in worker.inbox] == ["error"] * 10


def test_a_frame_over_the_limit_ends_the_session(lab) -> None:
    worker = lab.worker()
    worker.socket.send(json.dumps({"type": "metrics_request", "payload": {"x": "y" * (1 << 20)}}))
    code, reason = worker.closed()
    assert code == 4400
    assert "1048576" in reason


def test_a_frame_within_the_limit_is_read(lab) -> None:
    worker = lab.worker()
    worker.send("metrics_request", {"x": "y" * ((1 << 20) - 100)})
    worker.expect("metrics_response")


def test_frames_far_over_every_limit_end_the_session_too(lab) -> None:
    worker, other = lab.worker(), lab.worker()
    with contextlib.suppress(ConnectionClosed, OSError):
        worker.socket.send("x" * (64 << 20))
    with pytest.raises((ConnectionClosed, OSError)):
        worker.receive()
    assert other.heartbeat() == []


def test_binary_frames_are_not_read_as_json(lab) -> None:
    worker = lab.worker()
    worker.socket.send(b'{"type": "metrics_request"}')
    assert "JSON" in worker.expect("error")["error"]


def test_unknown_fields_are_ignored_and_null_stands_for_left_out(lab) -> None:
    worker = lab.worker(register=False, gpu_info=None)
    body = {
        "id": worker.id,
        "capabilities": {**worker.capabilities, "colour": "red"},
        "active_tasks": None,
        "finished_unacked": None,
        "features": None,
        "labels": None,
        "devices": None,
        "mood": {"deep": [1, {"x": None}]},
    }
    worker.send("register", body)
    worker.expect("ack")
    worker.socket.send('{"type": "metrics_request", "payload": null, "trace": "t"}')
    worker.expect("metrics_response")


def test_nothing_but_register_and_questions_before_register(lab) -> None:
    stranger = lab.worker(register=False)
    for kind, payload in (
        ("heartbeat", {"worker_id": stranger.id, "slots": SLOTS}),
        ("ready_for_work", {"worker_id": stranger.id, "slots": SLOTS}),
        ("job_accepted", {"task_id": "a"}),
        ("job_result", {"task_id": "a", "state": "failed"}),
        ("service_health", {"task_id": "a", "healthy": True}),
    ):
        stranger.send(kind, payload)
        assert stranger.expect("error")["error"] == f"{kind}: register first"
    stranger.send("metrics_request")
    stranger.expect("metrics_response")
    stranger.register()


def test_a_worker_speaks_for_its_own_id_only(lab) -> None:
    one, other = lab.worker(), lab.worker()
    for kind in ("heartbeat", "ready_for_work"):
        one.send(kind, {"worker_id": other.id, "slots": SLOTS})
        error = one.expect("error")["error"]
        assert other.id in error
        assert one.id in error
    one.send("register", {"id": other.id, "capabilities": CAPABILITY})
    assert one.id in one.expect("error")["error"]
    assert other.heartbeat() == []


@pytest.mark.parametrize("offered", ["dray.v3.msgpack", "dray.v1", "chat"])
def test_an_unknown_subprotocol_is_closed_with_a_reason(lab, offered: str) -> None:
    with connect(
        lab.hub.ws,
        additional_headers={"Authorization": f"Bearer {lab.hub.token}"},
        subprotocols=[offered],  # type: ignore[list-item]  # a plain text is what a foreign peer has
        proxy=None,
    ) as socket:
        with pytest.raises(Exception, match="4400") as closed:
            socket.recv(timeout=60)
        assert "dray.v2.msgpack" in str(closed.value)


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), ({"Authorization": "Bearer wrong"}, 401), ({"Authorization": "Basic x"}, 401)],
)
def test_no_upgrade_without_a_good_token(lab, headers: dict[str, str], status: int) -> None:
    with (
        pytest.raises(InvalidStatus) as refusal,
        connect(lab.hub.ws, additional_headers=headers, proxy=None),
    ):
        pass
    assert refusal.value.response.status_code == status


def test_no_upgrade_without_the_scope(lab) -> None:
    headers = {"Authorization": f"Bearer {lab.token('submit')}"}
    with (
        pytest.raises(InvalidStatus) as refusal,
        connect(lab.hub.ws, additional_headers=headers, proxy=None),
    ):
        pass
    assert refusal.value.response.status_code == 403


def test_no_upgrade_for_a_foreign_origin(lab) -> None:
    headers = {"Authorization": f"Bearer {lab.hub.token}", "Origin": "https://evil.example"}
    with (
        pytest.raises(InvalidStatus) as refusal,
        connect(lab.hub.ws, additional_headers=headers, proxy=None),
    ):
        pass
    assert refusal.value.response.status_code == 403


def test_lists_in_json_are_for_those_who_named_them_and_never_empty(lab) -> None:
    worker = lab.worker(register=False)
    base = {"id": lab.name(), "capabilities": CAPABILITY, "slots": SLOTS}
    worker.send("register", base)
    worker.expect("ack")
    worker.socket.send('[{"type": "metrics_request"}]')
    assert "name the feature 'list'" in worker.expect("error")["error"]
    worker.send("register", base | {"features": ["list"]})
    worker.expect("ack")
    worker.socket.send("[]")
    assert "empty list" in worker.expect("error")["error"]
    worker.socket.send('[{"type": "metrics_request"}, {"type": "metrics_request"}]')
    assert worker.expect("metrics_response")
    assert worker.expect("metrics_response")


def test_a_run_of_thirty_thousand_million_years_is_a_bad_message(own_lab) -> None:
    """The hub that took this one never came up again: no row holds so many milliseconds."""
    lab = own_lab()
    worker = lab.worker()
    worker.ready()
    job = lab.offers(worker)["spec"]["id"]
    worker.accept(job)
    for number in (1e18, 1e300, -1):
        worker.send("job_result", {"task_id": job, "state": "succeeded", "usage": {"wall_s": number}})
        assert "$.usage.wall_s" in worker.expect("error")["error"]
    worker.send("job_result", {"task_id": job, "state": "succeeded", "usage": {"wall_s": 1}})
    worker.expect("ack")
    lab.hub.stop()
    lab.hub.start()
    assert lab.job(job)["state"] == "succeeded"
