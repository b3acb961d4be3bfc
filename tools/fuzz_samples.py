"""Valid messages of every kind, and the atoms that spoil them: edges of ranges, odd texts, bytes no encoder writes.

Only data. The messages are complete, so that every field of every type is a place where something can be wrong.
"""

from __future__ import annotations

from typing import Any

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
    0, -1, 1, 2, 127, 128, 255, 65535, 65536, 1 << 20, (1 << 20) + 1, 1 << 22, (1 << 22) + 1, (1 << 31) - 1,
    1 << 31, (1 << 32) - 1, 1 << 32, 1 << 53, 1 << 60, (1 << 60) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
    -(1 << 31) - 1, -(1 << 63), 0.0, -0.0, 0.5, 1e308, 5e-324, -1e308, 1e19, float(1 << 60),
]  # fmt: skip
TEXTS: list[Any] = [
    "", " ", "\0", "a\0b", "../../etc/passwd", "job/", "job/0", "job/-1", "job/999999999", "job/1000000000",
    "/", "a/b/c", "-", ".", "é" * 64, "\u202e", "\ufeff", "1-1", "0-0", "8388607-1099511627775",
    "9999999-9999999999999", "a" * 128, "a" * 129, "x" * 5000, "null", "true", "NaN", "٣",
    "'; drop table jobs; --", "%s%n{0}", "=", "a=b", "2026-13-45", "batch", "service", "cpu", "stdout",
    "list", "succeeded",
]  # fmt: skip
OTHERS: list[Any] = [None, True, False, [], {}, [[]], [None], {"": None}, {"a": {}}, [0] * 300, [{}] * 50]
# What no encoder writes: spelled by hand, one list per encoding.
_DEEP = 1200
RAW_JSON = [
    b"NaN", b"-Infinity", b"1e999", b"-1e999", b"1" * 5000, b"-" + b"9" * 400, b"0." + b"1" * 3000, b"01",
    b"+1", b"1.", b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xff\xfe"', b'"\xc0\x80"', b'"\xed\xa0\x80"',
    b'"\\u00zz"', b'"\n"', b"'a'", b'{"a":1,"a":2}', b'{"task_id":"a","task_id":3}',
    b"[" * _DEEP + b"]" * _DEEP, b'{"a":' * _DEEP + b"1" + b"}" * _DEEP, b"[1,]", b'{"a"}', b"{1:2}",
    b"/* */1", b"tru", b'"unfinished', b'"' + b"z" * 20000 + b'"', b"\xef\xbb\xbf1",
]  # fmt: skip
RAW_MSGPACK = [
    b"\xc1", b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\xcb\xff\xf0\0\0\0\0\0\0", b"\xca\x7f\xc0\0\0", b"\xa2\xff\xfe",
    b"\xa3\xed\xa0\x80", b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\0" * 7, b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xde\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"\xdb\x7f\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xd6\xff\0\0\0\1", b"\xd7\xff" + b"\xff" * 8,
    b"\xc7\x0c\xff" + b"\xff" * 12, b"\xd4\x05\x00", b"\xc9\xff\xff\xff\xff\x01", b"\x82\xa1a\1\xa1a\2",
    b"\x81\1\2", b"\x81\x91\1\2", b"\x81\xc0\xc0", b"\x81\xcb\x7f\xf8\0\0\0\0\0\0\1",
    b"\x91" * _DEEP + b"\xc0", b"\x81\xa1a" * _DEEP + b"\xc0", b"\x81\x81\1\2\3", b"\xc4\x03abc",
    b"\xda\x4e\x20" + b"z" * 20000,
]  # fmt: skip
