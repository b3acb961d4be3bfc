"""One full message of every kind a worker may send: as it is written, and as the struct it must be read as."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from dray.core.model.capability import Slots
from dray.wire.messages.worker import (
    ActiveTask,
    CallsResult,
    Heartbeat,
    JobAccepted,
    JobLog,
    JobProgress,
    JobResult,
    JobResume,
    JobStarted,
    JobYield,
    MetricsRequest,
    Offered,
    OfferedCard,
    OfferedGpus,
    ReadyForWork,
    Register,
    RunningUsage,
    ServiceHealth,
    Usage,
    WorkerListRequest,
    WorkerShowRequest,
    read_cards,
)

AT = "2026-01-02T03:04:05.678Z"


class Sample(NamedTuple):
    """`written` goes through the encoder; `read` is what the decoder must give."""

    kind: str
    written: dict[str, Any]
    read: Any


CAPABILITY = {
    "gpu_backend": "nvidia",
    "gpu_count": 2,
    "gpu_type": "A100",
    "vram_gb": 160.5,
    "cpu_count": 16,
    "memory_gb": 64,
    "hostname": "höst",
    "gpu_info": {
        "gpu_type": "NVIDIA A100-SXM4-80GB",
        "count": 2,
        "devices": ["a", "b"],
        "driver": "1.2",
        "mem_total": 160_500_000_000,
    },
}
OFFER_READ = Offered(
    gpu_backend="nvidia",
    gpu_count=2,
    gpu_type="A100",
    vram_gb=160.5,
    cpu_count=16,
    memory_gb=64,
    hostname="höst",
    gpu_info=OfferedGpus(
        gpu_type="NVIDIA A100-SXM4-80GB",
        count=2,
        devices=["a", "b"],
        driver="1.2",
        mem_total=160_500_000_000,
    ),
)
CAPABILITY_READ = OFFER_READ.read()
SLOTS = {"batch_total": 4, "batch_in_use": 1, "service_total": 2, "service_in_use": 0}
SLOTS_READ = Slots(4, 1, 2, 0)
DEVICE = {"index": 1, "uuid": "GPU-1", "model": "A100", "vram_bytes": 80_000_000_000, "healthy": False}
CARD_READ = OfferedCard(1, "GPU-1", "A100", 80_000_000_000, False)
[DEVICE_READ] = read_cards([CARD_READ])
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
RESULT_READ = JobResult(
    task_id="job/3",
    state="failed",
    exit_code=7,
    error="it broke",
    attempt="2-5",
    signal=9,
    exit_class="oom",
    usage=Usage(wall_s=1.5, cpu_s=2.0, max_rss_bytes=1024.0),
    digest="sha256:00",
)

BASE = [
    Sample(
        "register",
        {
            "id": "worker-1",
            "capabilities": CAPABILITY,
            "active_tasks": [{"task_id": "job", "state": "running", "started_at": AT}],
        },
        Register("worker-1", OFFER_READ, [ActiveTask("job", "running", AT)]),
    ),
    Sample(
        "heartbeat",
        {"worker_id": "worker-1", "slots": SLOTS, "capability": CAPABILITY},
        Heartbeat("worker-1", SLOTS_READ, OFFER_READ),
    ),
    Sample(
        "ready_for_work",
        {"worker_id": "worker-1", "slots": SLOTS, "reason": "polling"},
        ReadyForWork("worker-1", SLOTS_READ, "polling", 1),
    ),
    Sample("job_accepted", {"task_id": "job"}, JobAccepted("job")),
    Sample(
        "job_result",
        {"task_id": "job", "state": "completed", "exit_code": 0},
        JobResult("job", "completed", 0),
    ),
    Sample(
        "service_health",
        {"task_id": "job", "healthy": False, "message": "no answer"},
        ServiceHealth("job", False, "no answer"),
    ),
    Sample("metrics_request", {}, MetricsRequest()),
    Sample("worker_list_request", {"backend": "metal"}, WorkerListRequest("metal")),
    Sample("worker_show_request", {"worker_id": "worker-1"}, WorkerShowRequest("worker-1")),
]

EXTENDED = [
    Sample(
        "register",
        {
            "id": "worker-1",
            "capabilities": CAPABILITY,
            "active_tasks": [{"task_id": "job/0", "state": "accepted", "attempt": "1-4"}],
            "slots": SLOTS,
            "incarnation": "i1",
            "boot_id": "b1",
            "journal_id": "j1",
            "max_epoch_seen": 3,
            "finished_unacked": [RESULT],
            "labels": {"zone": "a"},
            "devices": [DEVICE],
            "address": "10.0.0.7",
            "features": ["list", "resend"],
        },
        Register(
            id="worker-1",
            capabilities=OFFER_READ,
            active_tasks=[ActiveTask("job/0", "accepted", None, "1-4")],
            slots=SLOTS_READ,
            incarnation="i1",
            boot_id="b1",
            journal_id="j1",
            max_epoch_seen=3,
            finished_unacked=[RESULT_READ],
            labels={"zone": "a"},
            devices=[CARD_READ],
            address="10.0.0.7",
            features=["list", "resend"],
        ),
    ),
    Sample(
        "heartbeat",
        {
            "worker_id": "worker-1",
            "slots": SLOTS,
            "active": ["1-4"],
            "last_acked": "1-3",
            "usage": {"cpu": 0.5},
            "devices": [DEVICE],
        },
        Heartbeat("worker-1", SLOTS_READ, None, ["1-4"], "1-3", RunningUsage(), [CARD_READ]),
    ),
    Sample(
        "ready_for_work",
        {"worker_id": "worker-1", "slots": SLOTS, "reason": "finished", "credits": 64},
        ReadyForWork("worker-1", SLOTS_READ, "finished", 64),
    ),
    Sample(
        "job_accepted",
        {"task_id": "job/3", "attempt": "2-5", "ports": [4000, 4001], "address": "10.0.0.7"},
        JobAccepted("job/3", "2-5", [4000, 4001], "10.0.0.7"),
    ),
    Sample(
        "job_started",
        {"task_id": "job/3", "attempt": "2-5", "pid": 4711, "devices": [0, 1]},
        JobStarted("job/3", "2-5", 4711, [0, 1]),
    ),
    Sample(
        "job_progress",
        {
            "task_id": "job/3",
            "attempt": "2-5",
            "step": 100,
            "saved_step": 90,
            "fraction": 0.25,
            "note": "epoch 2",
        },
        JobProgress("job/3", "2-5", 100, 90, 0.25, "epoch 2"),
    ),
    Sample(
        "job_log",
        {"task_id": "job/3", "stream": "stderr", "offset": 10, "data": b"\x00\xffline\n", "attempt": "2-5"},
        JobLog("job/3", "stderr", 10, b"\x00\xffline\n", "2-5"),
    ),
    Sample(
        "job_result",
        {**RESULT, "value": b"\x80\x04"},
        msgspec.structs.replace(RESULT_READ, value=b"\x80\x04"),
    ),
    Sample(
        "service_health",
        {"task_id": "job", "healthy": True, "attempt": "2-5", "ready": True},
        ServiceHealth("job", True, None, "2-5", True),
    ),
    Sample("job_yield", {"task_id": "job/3", "attempt": "2-5"}, JobYield("job/3", "2-5")),
    Sample("job_resume", {"task_id": "job/3", "attempt": "2-5"}, JobResume("job/3", "2-5")),
    Sample(
        "calls_result",
        {
            "seq": 9,
            "lane": "2-5",
            "job": "job",
            "index": [3, 4, 5],
            "no": [1, 2, 1],
            "state": ["succeeded", "failed", "succeeded"],
            "value": [b"DV1\x00", None, ["ab" * 32, 70_000]],
            "wall_us": [12, 34_567, 0],
            "details": {"4": ["crashed", "signal 11"]},
        },
        CallsResult(
            seq=9,
            lane="2-5",
            job="job",
            index=[3, 4, 5],
            no=[1, 2, 1],
            state=["succeeded", "failed", "succeeded"],
            value=[b"DV1\x00", None, ("ab" * 32, 70_000)],
            wall_us=[12, 34_567, 0],
            details={"4": ("crashed", "signal 11")},
        ),
    ),
]
SAMPLES = {f"{sample.kind}.base": sample for sample in BASE} | {
    f"{sample.kind}.extended": sample for sample in EXTENDED
}
