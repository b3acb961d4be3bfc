"""What each message of a worker must hold, in both encodings; values that make no sense are refused by their place."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from dray.errors import InvalidInput
from dray.wire.messages.hub import HUB_PAYLOADS, hub_codec
from dray.wire.messages.worker import (
    QUESTIONS,
    WORKER_PAYLOADS,
    Register,
    check_message,
    worker_codec,
)

SLOTS = {"batch_total": 1, "batch_in_use": 0, "service_total": 0, "service_in_use": 0}
LEAST: dict[str, dict[str, Any]] = {
    "register": {"id": "w", "capabilities": {}},
    "heartbeat": {"worker_id": "w", "slots": {}},
    "ready_for_work": {"worker_id": "w", "slots": {}},
    "job_accepted": {"task_id": "j"},
    "job_started": {"task_id": "j"},
    "job_progress": {"task_id": "j"},
    "job_log": {"task_id": "j", "stream": "stdout", "offset": 0, "data": b""},
    "job_result": {"task_id": "j", "state": "failed"},
    "job_yield": {"task_id": "j", "attempt": "1-1"},
    "job_resume": {"task_id": "j", "attempt": "1-1"},
    "calls_result": {
        "seq": 1,
        "lane": "1-1",
        "job": "j",
        "index": [0, 7],
        "no": [1, 2],
        "state": "succeeded",
        "value": [b"v", None],
        "wall_us": [10, 0],
    },
    "service_health": {"task_id": "j", "healthy": True},
    "metrics_request": {},
    "worker_list_request": {},
    "worker_show_request": {"worker_id": "w"},
}
binary = pytest.mark.parametrize("binary", [False, True], ids=["json", "msgpack"])


def read(kind: str, payload: Any, binary: bool) -> Any:
    """Take a payload the way a hub does: written, split, opened, checked."""
    codec = worker_codec(binary)
    [envelope] = codec.split(codec.encode([{"type": kind, "payload": payload}]))
    body = codec.open(envelope)
    check_message(kind, body)
    return body


def test_there_is_a_least_message_of_every_type() -> None:
    assert set(LEAST) == set(WORKER_PAYLOADS)
    assert set(QUESTIONS) < set(WORKER_PAYLOADS)


@binary
@pytest.mark.parametrize("kind", list(WORKER_PAYLOADS))
def test_the_least_message_is_enough_and_each_part_of_it_needed(kind: str, binary: bool) -> None:
    assert isinstance(read(kind, LEAST[kind], binary), WORKER_PAYLOADS[kind])
    for field in LEAST[kind]:
        short = {name: value for name, value in LEAST[kind].items() if name != field}
        with pytest.raises(InvalidInput, match=rf"^{kind}: .*`{field}`"):
            read(kind, short, binary)


@binary
@pytest.mark.parametrize("kind", list(WORKER_PAYLOADS))
def test_null_stands_for_left_out_in_every_optional_list_object_and_text(kind: str, binary: bool) -> None:
    fields = msgspec.structs.fields(WORKER_PAYLOADS[kind])
    optional = [field.encode_name for field in fields if field.default is None]
    read(kind, LEAST[kind] | dict.fromkeys(optional), binary)


@binary
@pytest.mark.parametrize("kind", [name for name, least in LEAST.items() if least])
def test_every_field_of_a_wrong_type_is_named(kind: str, binary: bool) -> None:
    class Odd(msgspec.Struct):
        """No field is of this type."""

        odd: int = 1

    for field in msgspec.structs.fields(WORKER_PAYLOADS[kind]):
        with pytest.raises(InvalidInput) as fault:
            read(kind, LEAST[kind] | {field.encode_name: [[Odd()]]}, binary)
        assert fault.value.message.startswith(f"{kind}: ")
        assert f"$.{field.encode_name}" in fault.value.message


def test_a_least_register_is_a_cpu_worker_that_knows_base_only() -> None:
    body = read("register", {"id": "w", "capabilities": {}}, False)
    assert isinstance(body, Register)
    assert body.capabilities.gpu_backend == "cpu"
    assert body.features is None
    assert body.max_epoch_seen == 0


@binary
@pytest.mark.parametrize(
    ("kind", "payload", "place"),
    [
        ("register", {"id": ""}, "$.id"),
        ("register", {"id": "-w"}, "$.id"),
        ("register", {"id": "w" * 129}, "$.id"),
        ("register", {"id": "a/b"}, "$.id"),
        ("register", {"capabilities": {"gpu_backend": ""}}, "$.capabilities.gpu_backend"),
        ("register", {"capabilities": {"gpu_count": -1}}, "$.capabilities.gpu_count"),
        ("register", {"capabilities": {"memory_gb": -0.5}}, "$.capabilities.memory_gb"),
        (
            "register",
            {"capabilities": {"gpu_info": {"mem_total": 2**61}}},
            "$.capabilities.gpu_info.mem_total",
        ),
        ("register", {"devices": [{"index": 1}, {"index": 1}]}, "$.devices[1]"),
        ("register", {"devices": [{"index": -1}]}, "$.devices[0].index"),
        ("register", {"devices": [{"index": 0, "vram_bytes": 2**63}]}, "$.devices[0].vram_bytes"),
        ("register", {"active_tasks": [{"task_id": "a"}, {"task_id": "a/01"}]}, "$.active_tasks[1].task_id"),
        ("register", {"finished_unacked": [{"task_id": "a", "state": "x"}]}, "$.finished_unacked[0].state"),
        ("register", {"max_epoch_seen": 2**23}, "$.max_epoch_seen"),
        ("register", {"slots": SLOTS | {"batch_total": -1}}, "$.slots.batch_total"),
        ("heartbeat", {"worker_id": " "}, "$.worker_id"),
        ("heartbeat", {"slots": SLOTS | {"service_total": 2**21}}, "$.slots.service_total"),
        ("heartbeat", {"capability": {"cpu_count": -1}}, "$.capability.cpu_count"),
        ("heartbeat", {"usage": {"attempts": {"1-4": {"cpu_s": -1}}}}, "$.usage.attempts[...].cpu_s"),
        ("heartbeat", {"usage": {"attempts": {"1-4": {"gpu_s": 1e13}}}}, "$.usage.attempts[...].gpu_s"),
        ("heartbeat", {"usage": {"attempts": {f"1-{n}": {} for n in range(4097)}}}, "$.usage.attempts"),
        (
            "heartbeat",
            {"usage": {"attempts": {"1-4": {"cards": [{"index": 0, "share": 1.5}]}}}},
            "$.usage.attempts[...].cards[0].share",
        ),
        ("ready_for_work", {"credits": -1}, "$.credits"),
        ("ready_for_work", {"credits": 2**32}, "$.credits"),
        ("job_accepted", {"task_id": "a/1000000000"}, "$.task_id"),
        ("job_accepted", {"ports": [65536]}, "$.ports[0]"),
        ("job_started", {"pid": -1}, "$.pid"),
        ("job_started", {"devices": [-1]}, "$.devices[0]"),
        ("job_result", {"state": "running"}, "$.state"),
        ("job_result", {"exit_code": 2**32}, "$.exit_code"),
        ("job_result", {"exit_code": -(2**31) - 1}, "$.exit_code"),
        ("job_result", {"signal": -1}, "$.signal"),
        ("job_result", {"usage": {"wall_s": 1e18}}, "$.usage.wall_s"),
        ("register", {"labels": {"a": "b" * 1025}}, "$.labels[...]"),
        ("register", {"labels": {str(number): "" for number in range(65)}}, "$.labels"),
        ("register", {"capabilities": {"hostname": "h" * 1025}}, "$.capabilities.hostname"),
        ("job_log", {"stream": "stdin"}, "$.stream"),
        ("job_log", {"offset": -1}, "$.offset"),
        ("job_log", {"offset": 2**63}, "$.offset"),
        ("job_progress", {"task_id": ""}, "$.task_id"),
        ("job_yield", {"task_id": "a b"}, "$.task_id"),
        ("job_resume", {"task_id": "a/x"}, "$.task_id"),
        ("calls_result", {"seq": -1}, "$.seq"),
        ("calls_result", {"job": "a/1"}, "$.job"),
        ("calls_result", {"index": []}, "$.index"),
        ("calls_result", {"index": [0, -1]}, "$.index[1]"),
        ("calls_result", {"index": [0, 10**7]}, "$.index[1]"),
        ("calls_result", {"index": [7, 7]}, "$.index"),
        ("calls_result", {"index": list(range(4097))}, "$.index"),
        ("calls_result", {"no": [1]}, "$.no"),
        ("calls_result", {"no": [1, 0]}, "$.no[1]"),
        ("calls_result", {"state": "preempted"}, "$.state"),
        ("calls_result", {"state": ["succeeded"]}, "$.state"),
        ("calls_result", {"state": ["succeeded", "ended"]}, "$.state[1]"),
        ("calls_result", {"value": [b"v"]}, "$.value"),
        ("calls_result", {"value": [b"v", ("0" * 63, 1)]}, "$.value[1][0]"),
        ("calls_result", {"value": [b"v", ("0" * 64, -1)]}, "$.value[1][1]"),
        ("calls_result", {"wall_us": [1, -1]}, "$.wall_us[1]"),
        ("calls_result", {"wall_us": [1]}, "$.wall_us"),
        ("calls_result", {"details": {"1": ("raised", "x")}}, "$.details"),
        ("service_health", {"task_id": "a b"}, "$.task_id"),
    ],
)
def test_values_without_sense_are_refused_by_place(kind: str, payload: Any, place: str, binary: bool) -> None:
    with pytest.raises(InvalidInput) as fault:
        read(kind, LEAST[kind] | payload, binary)
    assert fault.value.message.startswith(f"{kind}: ")
    assert f"{place}`" in fault.value.message


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none(value: float) -> None:
    for name in ("vram_gb", "cpu_count", "memory_gb"):
        with pytest.raises(InvalidInput, match=name):
            read("register", {"id": "w", "capabilities": {name: value}}, True)
    with pytest.raises(InvalidInput, match=r"usage\.wall_s"):
        read("job_result", LEAST["job_result"] | {"usage": {"wall_s": value}}, True)


@pytest.mark.parametrize("kind", ["job_result", "job_started", "register", "ready_for_work", "job_log"])
def test_numbers_beyond_every_integer_are_refused_in_json(kind: str) -> None:
    """What decodes here is stored: no number may pass that a row or a packed fact cannot hold."""
    huge = 10**40
    fields = {
        "job_result": ["exit_code", "signal"],
        "job_started": ["pid"],
        "register": ["max_epoch_seen"],
        "ready_for_work": ["credits"],
        "job_log": ["offset"],
    }[kind]
    codec = worker_codec(False)
    least = {key: "" if value == b"" else value for key, value in LEAST[kind].items()}
    for field in fields:
        [envelope] = codec.split(json.dumps({"type": kind, "payload": least | {field: huge}}))
        with pytest.raises(InvalidInput, match=field):
            check_message(kind, codec.open(envelope))


@binary
def test_hub_messages_are_a_closed_union_too(binary: bool) -> None:
    codec = hub_codec(binary)
    [envelope] = codec.split(codec.encode([{"type": "register", "payload": {}}]))
    with pytest.raises(InvalidInput, match="unknown message type 'register'"):
        codec.open(envelope)
    for kind, payload in {
        "ack": {},
        "no_work": {},
        "error": {},
        "job_cancel": {"task_id": "j"},
        "prewarm_hint": {"task_id": "j", "snapshot_id": "s"},
        "calls_ack": {"seq": [1]},
        "job_resume": {"task_id": "j", "attempt": "1-1"},
        "calls_assign": {
            "lane": "1-1",
            "job": "j",
            "attempt": {"no": 1, "uid": "1-1"},
            "index": [0, 1],
            "no": [1, 1],
            "args": [b"a", ["0" * 64, 1]],
            "remaining_time": 10**9,
        },
        "job_assign": {
            "spec": {"id": "j", "command": ["true"], "field_of_tomorrow": 1},
            "remaining_time": 2**63 - 1,
            "attempt": {"no": 1, "uid": "1-1"},
        },
    }.items():
        [envelope] = codec.split(codec.encode([{"type": kind, "payload": payload}]))
        assert isinstance(codec.open(envelope), HUB_PAYLOADS[kind])


def test_blobs_are_base64_in_json_and_bytes_in_msgpack() -> None:
    log = LEAST["job_log"] | {"data": b"\x00\xff"}
    assert b'"AP8="' in worker_codec(False).encode([{"type": "job_log", "payload": log}])
    assert b"\xc4\x02\x00\xff" in worker_codec(True).encode([{"type": "job_log", "payload": log}])
    assert read("job_log", log, False).data == read("job_log", log, True).data == b"\x00\xff"
