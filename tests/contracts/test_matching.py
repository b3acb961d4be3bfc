"""What a hub offers to a base-only worker: backends, cards, memory of cards, cores, names of models."""

from __future__ import annotations

from typing import Any

import pytest

A100 = {
    "gpu_count": 2,
    "gpu_type": "A100",
    "vram_gb": 160,
    "cpu_count": 8,
    "memory_gb": 64,
    "gpu_info": {"gpu_type": "NVIDIA A100-SXM4-80GB", "count": 2, "devices": None},
}


@pytest.mark.parametrize(
    ("backend", "asked", "taken"),
    [
        ("nvidia", "", True),
        ("nvidia", "nvidia", True),
        ("nvidia", "metal", False),
        ("metal", "metal", True),
        ("metal", "nvidia", False),
        ("vulkan", "vulkan", True),
        ("vulkan", "cpu", False),
        ("cpu", "cpu", True),
        ("cpu", "", True),
        ("cpu", "nvidia", False),
    ],
)
def test_backend_must_be_the_one_asked_for(lab, backend: str, asked: str, taken: bool) -> None:
    worker = lab.worker(gpu_backend=backend, gpu_count=0 if backend == "cpu" else 1)
    assert lab.takes(worker, gpu_backend=asked) is taken


@pytest.mark.parametrize(
    ("spec", "taken"),
    [
        ({"gpu_count": 2}, True),
        ({"gpu_count": 3}, False),
        ({"gpu_count": 1, "min_vram_gb": 80}, True),
        ({"gpu_count": 1, "min_vram_gb": 81}, False),
        ({"gpu_count": 2, "min_vram_gb": 160}, True),
        ({"gpu_count": 2, "min_vram_gb": 161}, False),
        ({"gpu_count": 2, "vram_per_gpu_bytes": 80 * 10**9}, True),
        ({"gpu_count": 2, "vram_per_gpu_bytes": 80 * 10**9 + 1}, False),
        ({"min_vram_gb": 80}, True),
        ({"min_cpu_cores": 8}, True),
        ({"min_cpu_cores": 8.5}, False),
        ({"memory_bytes": 64 * 10**9}, True),
        ({"memory_bytes": 64 * 10**9 + 1}, False),
        ({"gpu_count": 1, "gpu_type": "auto"}, True),
        ({"gpu_count": 3, "gpu_type": "Auto"}, False),
        ({"gpu_type": "A100"}, True),
        ({"gpu_type": "a100"}, True),
        ({"gpu_type": "nvidia"}, True),
        ({"gpu_type": "SXM4"}, True),
        ({"gpu_type": "A100-SXM4-80GB"}, True),
        ({"gpu_type": "nvidia a100-sxm4-80gb"}, True),
        ({"gpu_type": "A10"}, False),
        ({"gpu_type": "100"}, False),
        ({"gpu_type": "H100"}, False),
        ({"node_count": 2}, False),
        ({"gpu_count": 1, "gpu_milli": 500}, False),
        ({"require": ["zone=a"]}, False),
        ({"type": "service"}, True),
    ],
)
def test_asks_against_a_worker_with_two_cards(lab, spec: dict[str, Any], taken: bool) -> None:
    assert lab.takes(lab.worker(**A100), **spec) is taken


@pytest.mark.parametrize(
    ("capability", "spec", "taken"),
    [
        ({"gpu_count": 1}, {"gpu_count": 1}, True),
        ({"gpu_count": 1}, {"gpu_count": 1, "min_vram_gb": 1}, False),
        ({"gpu_count": 1, "vram_gb": 0}, {"gpu_count": 1, "vram_per_gpu_bytes": 1}, False),
        ({"cpu_count": 0}, {}, True),
        ({"cpu_count": 0}, {"min_cpu_cores": 0.1}, False),
        ({"memory_gb": 0}, {}, True),
        ({"memory_gb": 0}, {"memory_bytes": 1}, False),
        ({"gpu_count": 0, "gpu_info": {"gpu_type": "T4", "count": 4}}, {"gpu_count": 1}, False),
        ({"gpu_count": 2, "gpu_info": {"gpu_type": "T4", "count": 1}}, {"gpu_count": 2}, True),
    ],
)
def test_unknown_amounts_satisfy_no_ask_and_block_no_job(lab, capability, spec, taken: bool) -> None:
    assert lab.takes(lab.worker(**capability), **spec) is taken


def test_cards_of_an_unaccepted_assignment_are_not_free(lab) -> None:
    worker = lab.worker(gpu_count=2, vram_gb=48)
    worker.ready()
    first = lab.offers(worker, gpu_count=2)
    assert first is not None
    assert worker.ready()["type"] == "no_work"
    assert lab.offers(worker, gpu_count=1) is None
    worker.accept(first["spec"]["id"])
    assert worker.heartbeat() == []
    worker.finish(first["spec"]["id"])
    assert worker.expect("job_assign")["spec"]["gpu_count"] == 1


def test_cores_are_held_by_what_asked_for_them(lab) -> None:
    worker = lab.worker(cpu_count=4)
    worker.ready()
    assert lab.offers(worker, min_cpu_cores=3) is not None
    worker.ready()
    assert lab.offers(worker, min_cpu_cores=2) is None
    assert lab.offers(worker) is not None


def test_capability_follows_the_heartbeat_both_ways(lab) -> None:
    worker = lab.worker(gpu_count=0)
    worker.ready()
    assert lab.offers(worker, gpu_count=2) is None
    worker.capabilities |= {"gpu_backend": "nvidia", "gpu_count": 2}
    got = worker.heartbeat()
    if not got:
        got = [worker.receive()]
    job_id = got[0]["payload"]["spec"]["id"]
    worker.accept(job_id)
    worker.finish(job_id)
    worker.capabilities |= {"gpu_count": 1}
    worker.heartbeat()
    assert not lab.takes(worker, gpu_count=2)


@pytest.mark.parametrize(
    ("slots", "kinds"),
    [
        ({"batch_total": 2, "batch_in_use": 0, "service_total": 0, "service_in_use": 0}, ["batch", "batch"]),
        ({"batch_total": 2, "batch_in_use": 1, "service_total": 0, "service_in_use": 0}, ["batch", "batch"]),
        ({"batch_total": 1, "batch_in_use": 1, "service_total": 0, "service_in_use": 0}, []),
        ({"batch_total": 0, "batch_in_use": 0, "service_total": 1, "service_in_use": 0}, []),
    ],
)
def test_free_slots_are_total_less_the_larger_of_in_use_and_live(lab, slots, kinds: list[str]) -> None:
    worker = lab.worker(slots=slots)
    given = []
    for _ in range(3):
        worker.ready()
        offer = lab.offers(worker)
        if offer is not None:
            given.append(offer["spec"]["type"])
            worker.accept(offer["spec"]["id"])
    assert given == kinds


def test_a_live_attempt_is_counted_once_beside_the_same_one_in_use(lab) -> None:
    worker = lab.worker(slots={"batch_total": 2, "batch_in_use": 0, "service_total": 0, "service_in_use": 0})
    worker.ready()
    first = lab.offers(worker)
    worker.accept(first["spec"]["id"])
    worker.slots["batch_in_use"] = 1
    worker.ready()
    assert lab.offers(worker) is not None


def test_a_service_slot_is_no_batch_slot(lab) -> None:
    worker = lab.worker(slots={"batch_total": 0, "batch_in_use": 0, "service_total": 1, "service_in_use": 0})
    assert not lab.takes(worker)
    assert lab.takes(worker, type="service")
    assert lab.takes(worker, slot_pool="service")


def test_drained_workers_get_nothing_until_they_are_resumed(lab) -> None:
    worker = lab.worker()
    worker.ready()
    lab.hub.ask("POST", f"/api/v1/workers/{worker.id}/drain")
    assert lab.offers(worker) is None
    lab.hub.ask("POST", f"/api/v1/workers/{worker.id}/resume")
    assert [message["type"] for message in worker.heartbeat()] == ["job_assign"]
