"""Asks and offers in integers: what a spec asks for, which cards a worker has, which of them a task gets."""

from __future__ import annotations

from typing import Any

import pytest

from dray.core.lifecycle.state.columns import offer_of, pick_cards
from dray.core.model.capability import Capability, Device, GpuInfo
from dray.core.model.records.worker import Worker, card_table
from dray.core.model.specs.check import check_spec
from dray.core.model.specs.resources import WHOLE, Ask, ask_of
from dray.core.model.units import GB


def ask(**fields: Any) -> Ask:
    return ask_of(check_spec({"command": ["true"], **fields}))


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (
            {},
            {
                "pool": "batch",
                "cpu_milli": 0,
                "memory_bytes": 0,
                "gpus": 0,
                "gpu_milli": WHOLE,
                "features": (),
            },
        ),
        ({"min_cpu_cores": 1.5}, {"cpu_milli": 1500}),
        ({"min_cpu_cores": 1.5, "cpu_milli": 200}, {"cpu_milli": 200}),
        ({"min_vram_gb": 40.5}, {"vram_total_bytes": 40_500_000_000, "gpus": 1}),
        ({"gpu_milli": 250}, {"gpus": 1, "gpu_milli": 250, "features": ("shared_gpu",)}),
        ({"node_count": 2}, {"nodes": 2, "features": ("gang",)}),
        ({"command": [], "function": b"f"}, {"features": ("calls",)}),
        ({"gpu_type": "A100", "gpu_backend": "nvidia"}, {"gpu_type": "a100", "backend": "nvidia"}),
        ({"device": {"kind": "gpu", "variant": "AUTO"}}, {"device_kind": "gpu", "device_variant": ""}),
        ({"device": {"kind": "gpu", "variant": "H100"}}, {"device_variant": "h100"}),
        ({"type": "service"}, {"pool": "service", "limit_bucket": 0}),
        ({"require": ["b", "a=1"]}, {"require": ("a=1", "b")}),
        ({"resources": {"z": 1, "a": 2}}, {"resources": (("a", 2), ("z", 1))}),
    ],
)
def test_asks(fields: dict[str, Any], wanted: dict[str, Any]) -> None:
    got = ask(**fields)
    assert {name: getattr(got, name) for name in wanted} == wanted


def test_what_differs_from_job_to_job_is_no_part_of_the_shape() -> None:
    other = {
        "name": "x",
        "deadline": "2100-01-01T00:00:00Z",
        "expected_runtime_s": 5,
        "priority": 9,
        "env": {"A": "1"},
    }
    assert ask(max_runtime_s=100) == ask(max_runtime_s=101, **other)
    assert ask(max_runtime_s=100) != ask(max_runtime_s=1000)
    assert hash(ask(require=["a", "b"])) == hash(ask(require=["b", "a"]))


def test_a_base_only_worker_is_equal_anonymous_cards() -> None:
    cards = card_table(Capability("nvidia", 4, "A100", 160), ())
    assert [(card.index, card.model, card.vram_bytes) for card in cards] == [
        (i, "A100", 40 * GB) for i in range(4)
    ]


@pytest.mark.parametrize(
    ("count", "devices", "indices"),
    [
        (0, (Device(0),), []),
        (2, (Device(5), Device(7)), [5, 7]),
        (1, (Device(0), Device(1)), [0]),
        (2, (), [0, 1]),
    ],
)
def test_the_count_decides_how_many_cards_there_are(
    count: int, devices: tuple[Device, ...], indices: list[int]
) -> None:
    assert [card.index for card in card_table(Capability("nvidia", count), devices)] == indices


def cards(*vram_gb: float) -> tuple[Device, ...]:
    return tuple(Device(index, vram_bytes=round(size * GB)) for index, size in enumerate(vram_gb))


@pytest.mark.parametrize(
    ("fields", "offer", "used", "chosen"),
    [
        ({}, (40,), {}, ()),
        ({"gpu_count": 1}, (80, 40, 24), {}, (2,)),
        ({"gpu_count": 2}, (80, 40, 24), {}, (1, 2)),
        ({"gpu_count": 2}, (80, 40, 24), {1: 1000}, (0, 2)),
        ({"gpu_count": 3}, (80, 40), {}, None),
        ({"gpu_count": 1, "min_vram_gb": 30}, (80, 40, 24), {}, (1,)),
        ({"gpu_count": 2, "min_vram_gb": 100}, (80, 40, 24), {}, (0, 1)),
        ({"gpu_count": 2, "min_vram_gb": 120}, (80, 40, 24), {}, (0, 1)),
        ({"gpu_count": 2, "min_vram_gb": 121}, (80, 40, 24), {}, None),
        ({"gpu_count": 2, "vram_per_gpu_bytes": 30 * GB}, (80, 40, 24), {}, (0, 1)),
        ({"gpu_count": 2, "vram_per_gpu_bytes": 50 * GB}, (80, 40, 24), {}, None),
        ({"gpu_milli": 500}, (40, 40), {}, (0,)),
        ({"gpu_milli": 500}, (40, 40), {1: 500}, (1,)),
        ({"gpu_milli": 500}, (40, 40), {0: 600, 1: 500}, (1,)),
        ({"gpu_milli": 500}, (40, 40), {0: 600, 1: 600}, None),
        ({"gpu_milli": 300, "min_vram_gb": 50}, (40, 80), {0: 500}, (1,)),
        ({"gpu_milli": 300}, (80, 40), {0: 300, 1: 300}, (1,)),
        ({"gpu_count": 1}, (40, 40), {0: 1}, (1,)),
        ({"gpu_count": 1}, (40,), {0: 1}, None),
    ],
)
def test_the_smallest_cards_that_suffice_are_picked(
    fields: dict[str, Any], offer: tuple[float, ...], used: dict[int, int], chosen: tuple[int, ...] | None
) -> None:
    assert pick_cards(ask(**fields), cards(*offer), used) == chosen


def test_sick_cards_are_left_out() -> None:
    sick = (Device(0, vram_bytes=1, healthy=False), Device(3, vram_bytes=2))
    assert pick_cards(ask(gpu_count=1), sick, {}) == (3,)
    assert pick_cards(ask(gpu_count=2), sick, {}) is None


def test_a_worker_is_called_by_every_name_of_its_cards() -> None:
    info = GpuInfo(gpu_type="NVIDIA A100-SXM4-80GB", count=8)
    worker = Worker(id="w", capability=Capability("nvidia", 1, "A100", gpu_info=info), features=("b", "a"))
    offer = offer_of(worker, card_table(worker.capability, ()))
    assert {"a100", "sxm4", "80gb", "nvidia", "nvidia a100-sxm4-80gb"} <= set(offer.gpu_words)
    assert (offer.backend, offer.kinds, offer.features) == ("nvidia", ("cpu", "gpu"), ("a", "b"))


def test_a_worker_without_cards_has_no_gpu_names() -> None:
    offer = offer_of(Worker(id="w", capability=Capability("cpu", 0, "A100")), ())
    assert (offer.gpu_words, offer.kinds) == ((), ("cpu",))
