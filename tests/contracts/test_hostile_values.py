"""Messages bent at random: whatever a worker sends, the hub goes on for everybody else."""

from __future__ import annotations

import contextlib
import copy
import math
import random
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

SITES = ("home", "postgres")

SLOTS = {"batch_total": 8, "batch_in_use": 0, "service_total": 1, "service_in_use": 0}
RESULT = {
    "task_id": "JOB",
    "state": "failed",
    "exit_code": 1,
    "attempt": "UID",
    "signal": 9,
    "usage": {"wall_s": 1},
}
CARD = {"index": 0, "uuid": "u", "model": "m", "vram_bytes": 1, "healthy": True}
CAPABILITY = {
    "gpu_backend": "nvidia",
    "gpu_count": 1,
    "gpu_type": "T4",
    "vram_gb": 16,
    "cpu_count": 4,
    "memory_gb": 8,
    "hostname": "h",
    "gpu_info": {"gpu_type": "Tesla T4", "count": 1, "devices": ["x"], "driver": "1", "mem_total": 1},
}
MESSAGES: list[tuple[str, dict[str, Any]]] = [
    (
        "register",
        {
            "id": "ME",
            "capabilities": CAPABILITY,
            "slots": SLOTS,
            "active_tasks": [{"task_id": "JOB", "state": "running", "attempt": "UID"}],
            "finished_unacked": [RESULT],
            "labels": {"a": "b"},
            "devices": [CARD],
            "features": ["list"],
            "max_epoch_seen": 1,
            "incarnation": "i",
            "journal_id": "j",
            "boot_id": "b",
            "address": "a",
        },
    ),
    (
        "heartbeat",
        {"worker_id": "ME", "slots": SLOTS, "capability": CAPABILITY, "devices": [CARD], "usage": {"c": 1}},
    ),
    ("ready_for_work", {"worker_id": "ME", "slots": SLOTS, "reason": "r", "credits": 2}),
    ("job_accepted", {"task_id": "JOB", "attempt": "UID", "ports": [1], "address": "a"}),
    ("job_started", {"task_id": "JOB", "attempt": "UID", "pid": 1, "devices": [0]}),
    ("job_progress", {"task_id": "JOB", "attempt": "UID", "step": 1, "fraction": 0.5, "note": "n"}),
    ("job_log", {"task_id": "JOB", "attempt": "UID", "stream": "stdout", "offset": 0, "data": b"x"}),
    ("job_result", RESULT),
    ("service_health", {"task_id": "JOB", "healthy": True, "message": "m", "attempt": "UID"}),
    ("worker_list_request", {"backend": "cpu"}),
    ("worker_show_request", {"worker_id": "ME"}),
]
NASTY: list[Any] = [
    None,
    True,
    0,
    -1,
    2**31,
    2**32 - 1,
    2**53,
    2**63 - 1,
    2**64 - 1,
    -(2**63),
    0.5,
    -0.0,
    1e308,
    math.nan,
    math.inf,
    "",
    "\0",
    "x" * 5000,
    "../../etc/passwd",
    "1-1",
    "8388607-1099511627775",
    "a/0",
    "a/999999999",
    "ä\U0001f600",
    "%s{}'\"; DROP TABLE jobs",
    b"\xff",
    [],
    {},
    [[]],
    {"": ""},
    {"\0": "\0"},
    [None],
    [0] * 300,
]


def bend(chance: random.Random, value: Any) -> Any:
    """Replace one place of a payload, or drop it, or double it."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(sorted(value))
        if chance.random() < 0.1:
            del value[key]
        else:
            value[key] = bend(chance, value[key]) if chance.random() < 0.6 else chance.choice(NASTY)
        return value
    if isinstance(value, list) and value and chance.random() < 0.7:
        return [bend(chance, value[0]), *value] if chance.random() < 0.5 else value * 3
    return chance.choice(NASTY)


def name(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: name(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [name(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def storm(lab: Any, seed: int, sessions: int) -> None:
    """Open sessions that register well and then send bent messages, among a healthy one."""
    chance = random.Random(seed)
    healthy = lab.worker()
    headers = {"Authorization": f"Bearer {lab.hub.token}"}
    for _ in range(sessions):
        names = {
            "ME": lab.name(),
            "JOB": lab.submit(gpu_backend="nvidia", array={"last": 3}) + "/0",
            "UID": "1-1",
        }
        dialled = connect(
            lab.hub.ws, additional_headers=headers, subprotocols=[Subprotocol("dray.v2.msgpack")], proxy=None
        )
        with contextlib.suppress(ConnectionClosed), dialled as socket:
            bother(socket, chance, names)
        assert healthy.heartbeat() == []
    assert lab.takes(healthy)


def bother(socket: Any, chance: random.Random, names: dict[str, str]) -> None:
    for kind, payload in (MESSAGES[0], MESSAGES[2], MESSAGES[2]):
        body = {"type": kind, "payload": name({**payload, "finished_unacked": None}, names)}
        socket.send(msgspec.msgpack.encode(body))
    for _ in range(40):
        kind, payload = chance.choice(MESSAGES)
        bent = name(bend(chance, copy.deepcopy(payload)), names)
        socket.send(msgspec.msgpack.encode({"type": kind, "payload": bent}))
        if chance.random() < 0.2:  # a good one in between, so that ten bad ones in a row stay rare
            socket.send(msgspec.msgpack.encode({"type": "metrics_request"}))
        with contextlib.suppress(TimeoutError):
            socket.recv(timeout=0)


def check_invariants(lab: Any) -> None:
    status, doctor = lab.hub.ask("GET", "/api/v1/doctor")
    assert status == 200
    assert {check["name"]: check["ok"] for check in doctor["checks"]}["invariants"], doctor


@pytest.mark.parametrize("seed", range(4))
def test_bent_messages_never_end_the_hub(lab, seed: int) -> None:
    storm(lab, seed, 12)
    check_invariants(lab)


def test_what_bent_messages_left_behind_can_be_loaded_again(own_lab) -> None:
    lab = own_lab()
    storm(lab, 99, 12)
    for end in (lab.hub.kill, lab.hub.stop):
        end()
        lab.hub.start()
        check_invariants(lab)
    assert lab.takes(lab.worker())
