from __future__ import annotations

import json
from typing import Any

import pytest

from dray.agent.detect.metal import parse_displays

MEMORY_BYTES = 64 * 2**30

APPLE = {
    "_name": "Apple M2 Max",
    "spdisplays_mtlgpufamilysupport": "spdisplays_metal3",
    "spdisplays_ndrvs": [{"_name": "Color LCD", "spdisplays_resolution": "3456x2234Retina"}],
    "spdisplays_vendor": "sppci_vendor_Apple",
    "sppci_bus": "spdisplays_builtin",
    "sppci_cores": "38",
    "sppci_device_type": "spdisplays_gpu",
    "sppci_model": "Apple M2 Max",
}
INTEL = {
    "_name": "kHW_IntelUHDGraphics630Item",
    "spdisplays_device-id": "0x3e9b",
    "spdisplays_metal": "spdisplays_supported",
    "spdisplays_vendor": "Intel",
    "spdisplays_vram_shared": "1536 MB",
    "sppci_bus": "spdisplays_builtin",
    "sppci_model": "Intel UHD Graphics 630",
}
RADEON = {
    "_name": "kHW_AMDRadeonPro5500MItem",
    "spdisplays_mtlgpufamilysupport": "spdisplays_metal3",
    "spdisplays_vendor": "sppci_vendor_amd",
    "spdisplays_vram": "8 GB",
    "sppci_bus": "spdisplays_pcie_device",
    "sppci_model": "AMD Radeon Pro 5500M",
}
OLD = {"_name": "NVIDIA GeForce 9400M", "spdisplays_vram": "256 MB", "sppci_model": "NVIDIA GeForce 9400M"}
REFUSED = {**RADEON, "spdisplays_mtlgpufamilysupport": "", "spdisplays_metal": "spdisplays_not_supported"}


def report(*entries: Any) -> bytes:
    return json.dumps({"SPDisplaysDataType": list(entries)}).encode()


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([APPLE], [(0, "Apple M2 Max", 48 * 2**30)]),
        ([RADEON], [(0, "AMD Radeon Pro 5500M", 8 * 2**30)]),
        (
            [INTEL, RADEON],
            [(0, "Intel UHD Graphics 630", 1536 * 2**20), (1, "AMD Radeon Pro 5500M", 8 * 2**30)],
        ),
        ([OLD], []),
        ([REFUSED], []),
        ([OLD, APPLE], [(0, "Apple M2 Max", 48 * 2**30)]),
        ([{**RADEON, "spdisplays_vram": "lots"}], [(0, "AMD Radeon Pro 5500M", 0)]),
        (["text", 7], []),
        ([], []),
    ],
)
def test_cards_in_the_report(entries: list[Any], found: list[tuple[int, str, int]]) -> None:
    answer = parse_displays(report(*entries), MEMORY_BYTES)
    assert [(card.index, card.name, card.vram_bytes) for card in answer.cards] == found
    assert answer.notes


def test_card_without_metal_is_named_in_a_note() -> None:
    assert (
        "metal: NVIDIA GeForce 9400M does not support Metal"
        in parse_displays(report(OLD), MEMORY_BYTES).notes
    )


@pytest.mark.parametrize("text", [b"", b"not json", b"[]", b'{"SPDisplaysDataType": 5}', b"{}"])
def test_a_strange_report_is_a_note(text: bytes) -> None:
    answer = parse_displays(text, MEMORY_BYTES)
    assert answer.cards == []
    assert len(answer.notes) == 1
