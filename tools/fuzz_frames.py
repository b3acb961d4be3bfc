"""Frames that nobody should send: valid messages of every kind, bent in their structure and in their bytes.

Knows how messages look and how to spoil them, in JSON and in msgpack; not who reads them. The same seed gives the same
frames: a finding can be repeated.
"""

from __future__ import annotations

import copy
import random
from typing import Any, NamedTuple

import msgspec

Tree = dict[str, Any] | list[Any]

SLOTS = {"batch_total": 4, "batch_in_use": 1, "service_total": 2, "service_in_use": 0}
CAPABILITY = {
    "gpu_backend": "nvidia",
    "gpu_count": 2,
    "gpu_type": "A100",
    "vram_gb": 160.5,
    "cpu_count": 16,
    "memory_gb": 64,
    "hostname": "höst",
    "gpu_info": {"gpu_type": "NVIDIA A100", "count": 2, "devices": ["a"], "driver": "1", "mem_total": 10**11},
}
DEVICE = {"index": 1, "uuid": "GPU-1", "model": "A100", "vram_bytes": 80 * 10**9, "healthy": True}
RESULT = {
    "task_id": "job/3",
    "state": "failed",
    "exit_code": 7,
    "error": "it broke",
    "attempt": "2-5",
    "signal": 9,
    "exit_class": "oom",
    "usage": {"wall_s": 1.5, "cpu_s": 2.0, "max_rss_bytes": 1024.0},
    "digest": "sha256:00",
}
ONE = {"task_id": "job/3", "attempt": "2-5"}
SPEC: dict[str, Any] = {
    "id": "job",
    "type": "batch",
    "job_tier": "training",
    "gpu_count": 1,
    "gpu_type": "A100",
    "min_vram_gb": 40.0,
    "node_count": 1,
    "max_runtime_hours": 1,
    "command": ["python", "train.py"],
    "env": {"A": "b"},
    "health_check": {"liveness": "/live", "readiness": "/ready", "interval_secs": 5},
    "metadata": {"deep": [1, {"a": None}]},
    "name": "train",
    "cpu_milli": 500,
    "memory_bytes": 1 << 30,
    "gpu_milli": 500,
    "device": {"kind": "gpu", "variant": "A100", "count": 1},
    "resources": {"licence": 1},
    "labels": {"team": "vision"},
    "require": ["zone=a"],
    "prefer": ["disk=ssd"],
    "priority": 5,
    "queue": "default",
    "retries": 2,
    "losses": 1,
    "at_most_once": False,
    "overlap": "fenced",
    "lost_after_s": 60,
    "array": {"first": 0, "last": 9, "step": 2, "limit": 3},
    "workdir": "/srv",
}
Message = tuple[str, dict[str, Any]]
WORKER: list[Message] = [
    (
        "register",
        {
            "id": "worker-1",
            "capabilities": CAPABILITY,
            "active_tasks": [{"task_id": "job", "state": "running", "started_at": "2026-01-02T03:04:05Z"}],
            "slots": SLOTS,
            "incarnation": "i",
            "boot_id": "b",
            "journal_id": "j",
            "max_epoch_seen": 1,
            "finished_unacked": [RESULT],
            "labels": {"zone": "a"},
            "devices": [DEVICE],
            "address": "10.0.0.1",
            "features": ["list", "job_started", "resend"],
        },
    ),
    (
        "heartbeat",
        {
            "worker_id": "worker-1",
            "slots": SLOTS,
            "capability": CAPABILITY,
            "active": ["2-5"],
            "last_acked": "2-4",
            "usage": {"cpu": 0.5},
            "devices": [DEVICE],
        },
    ),
    ("ready_for_work", {"worker_id": "worker-1", "slots": SLOTS, "reason": "polling", "credits": 2}),
    ("job_accepted", {**ONE, "ports": [8080], "address": "10.0.0.1"}),
    ("job_started", {**ONE, "pid": 12, "devices": [0]}),
    ("job_progress", {**ONE, "step": 1, "saved_step": 1, "fraction": 0.5, "note": "half"}),
    ("job_log", {**ONE, "stream": "stdout", "offset": 0, "data": "aGVsbG8K"}),
    ("job_result", RESULT),
    ("service_health", {**ONE, "healthy": True, "message": "fine", "ready": True}),
    ("metrics_request", {}),
    ("worker_list_request", {"backend": "nvidia"}),
    ("worker_show_request", {"worker_id": "worker-1"}),
]
HUB: list[Message] = [
    (
        "ack",
        {
            "re": "register",
            "session": "1",
            "epoch": 2,
            "heartbeat_s": 10.0,
            "keep": ["2-5"],
            "stop": ["2-4"],
            "results": {"2-3": "recorded"},
            "log_offsets": {"2-5": {"stdout": 12}},
        },
    ),
    (
        "job_assign",
        {
            "spec": {key: value for key, value in SPEC.items() if key != "array"},
            "remaining_time": 10**12,
            "attempt": {"no": 1, "uid": "2-5", "fence": 7},
            "devices": [0],
            "lease_s": 60,
        },
    ),
    ("no_work", {"retry_after_s": 1.5}),
    ("job_cancel", {**ONE, "reason": "user", "grace_s": 5.0}),
    ("prewarm_hint", {"task_id": "job", "snapshot_id": "s", "snapshot_sha": "00"}),
    ("error", {}),
]
CLIENT: list[Message] = [
    ("submit", {"specs": [SPEC], "key": "k-1"}),
    ("watch", {"ids": ["job"]}),
    ("unwatch", {"ids": ["job"]}),
    ("get", {"ids": ["job"]}),
    ("result", {"ids": ["job"]}),
    ("values", {"id": "job", "first": 0, "limit": 10}),
    ("cancel", {"id": "job", "task": 0, "grace_s": 1.5}),
    ("why", {"id": "job"}),
    ("plan", {"spec": SPEC}),
    (
        "jobs",
        {
            "states": ["pending"],
            "user": "u",
            "queue": "q",
            "name": "n",
            "labels": {"a": "b"},
            "limit": 5,
            "cursor": "7",
        },
    ),
    ("tasks", {"id": "job", "states": ["running"], "limit": 5, "cursor": "3"}),
    ("ping", {}),
]
UNIONS = {"worker": WORKER, "hub": HUB, "client": CLIENT}

# Edges of every range that a reader may have: signs, 31, 32, 53, 63 and 64 bits, and what floats do at their ends.
NUMBERS: list[Any] = [
    0, -1, 1, 2, 127, 128, 255, 65535, 65536, 1 << 20, (1 << 20) + 1, 1 << 22, (1 << 22) + 1, (1 << 31) - 1, 1 << 31,
    (1 << 32) - 1, 1 << 32, 1 << 53, 1 << 60, (1 << 60) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 31) - 1,
    -(1 << 63), 0.0, -0.0, 0.5, 1e308, 5e-324, -1e308, 1e19, float(1 << 60),
]  # fmt: skip
TEXTS: list[Any] = [
    "", " ", "\0", "a\0b", "../../etc/passwd", "job/", "job/0", "job/-1", "job/999999999", "job/1000000000", "/", "a/b/c",
    "-", ".", "é" * 64, "\u202e", "\ufeff", "1-1", "0-0", "8388607-1099511627775", "9999999-9999999999999", "a" * 128,
    "a" * 129, "x" * 5000, "null", "true", "NaN", "٣", "'; drop table jobs; --", "%s%n{0}", "=", "a=b", "2026-13-45",
    "batch", "service", "cpu", "stdout", "list", "succeeded",
]  # fmt: skip
OTHERS: list[Any] = [None, True, False, [], {}, [[]], [None], {"": None}, {"a": {}}, [0] * 300, [{}] * 50]
# What no encoder writes: spelled by hand, one list per encoding.
_DEEP = 1200
RAW_JSON = [
    b"NaN", b"-Infinity", b"1e999", b"-1e999", b"1" * 5000, b"-" + b"9" * 400, b"0." + b"1" * 3000, b"01", b"+1", b"1.",
    b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xff\xfe"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b'"\\u00zz"', b'"\n"', b"'a'",
    b'{"a":1,"a":2}', b'{"task_id":"a","task_id":3}', b"[" * _DEEP + b"]" * _DEEP, b'{"a":' * _DEEP + b"1" + b"}" * _DEEP,
    b"[1,]", b'{"a"}', b"{1:2}", b"/* */1", b"tru", b'"unfinished', b'"' + b"z" * 20000 + b'"', b"\xef\xbb\xbf1",
]  # fmt: skip
RAW_MSGPACK = [
    b"\xc1", b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\xcb\xff\xf0\0\0\0\0\0\0", b"\xca\x7f\xc0\0\0", b"\xa2\xff\xfe", b"\xa3\xed\xa0\x80",
    b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\0" * 7, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xde\xff\xff",
    b"\xc6\xff\xff\xff\xff", b"\xdb\x7f\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xd6\xff\0\0\0\1", b"\xd7\xff" + b"\xff" * 8,
    b"\xc7\x0c\xff" + b"\xff" * 12, b"\xd4\x05\x00", b"\xc9\xff\xff\xff\xff\x01", b"\x82\xa1a\1\xa1a\2", b"\x81\1\2", b"\x81\x91\1\2",
    b"\x81\xc0\xc0", b"\x81\xcb\x7f\xf8\0\0\0\0\0\0\1", b"\x91" * _DEEP + b"\xc0", b"\x81\xa1a" * _DEEP + b"\xc0",
    b"\x81\x81\1\2\3", b"\xc4\x03abc", b"\xda\x4e\x20" + b"z" * 20000,
]  # fmt: skip


class Bench(NamedTuple):
    """One encoding: how to write it, and what only bytes written by hand can hold."""

    binary: bool
    encode: Any
    raw: list[bytes]


BENCHES = {
    True: Bench(True, msgspec.msgpack.Encoder().encode, RAW_MSGPACK),
    False: Bench(False, msgspec.json.Encoder().encode, RAW_JSON),
}


class Spoiler:
    """Draws spoilt frames of one union in one encoding. `facts` are ids that exist: they lead deeper into a live hub."""

    def __init__(self, union: str, binary: bool, rng: random.Random, facts: list[Any] | None = None) -> None:
        self._bench, self._rng = BENCHES[binary], rng
        # Reading packed bytes again is the fastest deep copy there is.
        self._messages = [(kind, msgspec.msgpack.encode(payload)) for kind, payload in UNIONS[union]]
        self._has_ids = union == "client"
        self.facts: list[Any] = facts if facts is not None else []

    def draw(self) -> bytes:
        """One frame: mostly a message with a few faults in its tree, often with faults in its bytes too."""
        rng = self._rng
        dice = rng.random()
        if dice < 0.05:
            return rng.randbytes(rng.randrange(64))
        trees = [self.draw_tree() for _ in range(rng.choice((2, 3, 8)) if dice < 0.15 else 1)]
        frame: bytes = self._bench.encode(trees if dice < 0.15 else trees[0])
        if dice > 0.6:
            frame = self.bend(frame)
        return frame

    def draw_tree(self) -> dict[str, Any]:
        """A message with its tree spoilt in up to four places; sometimes left whole."""
        rng = self._rng
        kind, payload = rng.choice(self._messages)
        tree: dict[str, Any] = {"type": kind, "payload": msgspec.msgpack.decode(payload)}
        if self._has_ids:
            tree["id"] = rng.randrange(1000)
        for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
            spoil_once(tree, rng, self.atom)
        return tree

    def atom(self) -> Any:
        """Something that may stand where it should not."""
        rng = self._rng
        dice = rng.random()
        if self.facts and dice < 0.3:
            return rng.choice(self.facts)
        if dice < 0.5:
            return rng.choice(NUMBERS)
        if dice < 0.75:
            return rng.choice(TEXTS)
        if dice < 0.9:
            return copy_tree(rng.choice(OTHERS))
        return msgspec.Raw(rng.choice(self._bench.raw))

    def bend(self, frame: bytes) -> bytes:
        """Spoil bytes: flip, cut, insert, repeat, or splice two frames."""
        rng = self._rng
        for _ in range(rng.choice((1, 1, 2, 8))):
            if not frame:
                return b"\0"
            at = rng.randrange(len(frame))
            dice = rng.randrange(6)
            if dice == 0:
                frame = frame[:at] + bytes((frame[at] ^ (1 << rng.randrange(8)),)) + frame[at + 1 :]
            elif dice == 1:
                frame = frame[:at]
            elif dice == 2:
                frame = frame[:at] + rng.randbytes(rng.randrange(1, 9)) + frame[at:]
            elif dice == 3:
                frame = frame[:at] + frame[max(0, at - rng.randrange(1, 40)) :]
            elif dice == 4:
                frame = frame[:at] + rng.choice(self._bench.raw) + frame[at + 1 :]
            else:
                other: bytes = self._bench.encode(self.draw_tree())
                frame = frame[:at] + other[rng.randrange(len(other)) :]
        return frame


def spoil_once(tree: Tree, rng: random.Random, atom: Any) -> None:
    """Change one place of a tree, drawn by walking down from the top."""
    if not tree:
        return
    holder, key = _draw_place(tree, rng)
    dice = rng.randrange(10)
    if dice < 5:
        holder[key] = atom()
    elif dice == 5:
        del holder[key]
    elif dice == 6:
        holder[key] = _nest(holder[key], rng)
    elif dice == 7 and isinstance(holder, dict):
        holder[rng.choice(("", "unknown", str(key).upper(), f"{key}_", "type"))] = holder.pop(key)
    elif dice == 8 and isinstance(holder, list):
        holder *= rng.choice((2, 50))
    elif isinstance(holder, dict):
        holder[rng.choice(("extra", "id", "a" * 300))] = atom()


def copy_tree(value: Any) -> Any:
    """Copy what will be changed; atoms stay."""
    if isinstance(value, dict):
        return {key: copy_tree(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy_tree(item) for item in value]
    return value if isinstance(value, (str, int, float, bytes, type(None))) else copy.copy(value)


def _draw_place(tree: Tree, rng: random.Random) -> tuple[Any, Any]:
    holder: Any = tree
    while True:
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        below = holder[key]
        if not isinstance(below, (dict, list)) or not below or rng.random() < 0.1:
            return holder, key
        holder = below


def _nest(value: Any, rng: random.Random) -> Any:
    for _ in range(rng.choice((1, 3, 40, 70, 150))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value
