"""Which cards a task gets where several would do: the smallest that suffice, or those of the first alternative."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster

from dray.core.model.capability import Device
from dray.core.model.units import GB


def add(cluster: Cluster, name: str, model: str, *sizes_gb: int) -> None:
    cards = tuple(
        Device(index=place, uuid=f"{name}-{place}", model=model, vram_bytes=size * GB)
        for place, size in enumerate(sizes_gb)
    )
    cluster.join(
        name, credit=8, gpus=len(cards), vram_gb=sum(sizes_gb), gpu_type=model, devices=cards, cpus=16
    )


@pytest.mark.parametrize("ask", [{"vram_per_gpu_bytes": 10 * GB}, {"min_vram_gb": 10}])
def test_the_smallest_card_that_suffices_is_taken_and_the_large_one_stays_free(
    cluster: Cluster, ask: dict[str, Any]
) -> None:
    # Named so that among equals the large one would be first.
    add(cluster, "a-large", "H100", 80)
    add(cluster, "b-middle", "A6000", 48)
    add(cluster, "c-small", "A4000", 16)
    add(cluster, "d-tiny", "T600", 4)
    for job, worker in (("one", "c-small"), ("two", "b-middle"), ("three", "a-large")):
        cluster.submit(job, gpu_count=1, **ask)
        assert cluster.attempt(cluster.current(job)).worker == worker


def test_of_the_cards_of_one_machine_the_smallest_is_taken_too(cluster: Cluster) -> None:
    add(cluster, "mixed", "mixed", 80, 16, 48)
    for job, card in (("one", 1), ("two", 2), ("three", 0)):
        cluster.submit(job, gpu_count=1, vram_per_gpu_bytes=10 * GB)
        assert cluster.attempt(cluster.current(job)).devices == (card,)


def test_alternatives_may_be_asked_for_in_their_order(cluster: Cluster) -> None:
    add(cluster, "a-small", "A4000", 16)
    add(cluster, "b-large", "H100", 80, 80)
    either = [
        {"name": "best", "gpu_type": "H100", "vram_per_gpu_bytes": 40 * GB},
        {"name": "good", "gpu_type": "A4000", "vram_per_gpu_bytes": 10 * GB},
    ]
    cluster.submit("free", gpu_count=1, variants=either)
    assert cluster.attempt(cluster.current("free")).variant == 1, "by score"
    cluster.end(cluster.current("free"))
    cluster.poll("a-small", 8)
    for job, variant in (("one", 0), ("two", 0), ("three", 1)):
        cluster.submit(job, gpu_count=1, variants=either, prefer=["order"])
        assert cluster.attempt(cluster.current(job)).variant == variant


def test_a_gang_takes_the_first_alternative_that_all_of_it_fits(cluster: Cluster) -> None:
    for name, model, size in (("a1", "H100", 80), ("b1", "A4000", 16), ("b2", "A4000", 16)):
        add(cluster, name, model, size)
    either = [{"gpu_type": "H100"}, {"gpu_type": "A4000"}]
    cluster.submit("gang", gpu_count=1, node_count=2, variants=either, prefer=["order"])
    assert sorted(cluster.attempt(cluster.current("gang", index)).worker for index in (0, 1)) == ["b1", "b2"]
