from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.agent.detect.names import mask_name, shorten_model
from dray.core.model.capability import Device

MODELS = {
    "NVIDIA A100-SXM4-80GB": "A100",
    "NVIDIA A100 80GB PCIe": "A100",
    "A100-PCIE-40GB": "A100",
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA H100 PCIe": "H100",
    "NVIDIA H100 NVL": "H100",
    "NVIDIA H200": "H200",
    "NVIDIA H200 NVL": "H200",
    "NVIDIA GH200 480GB": "GH200",
    "NVIDIA GH200 144G HBM3e": "GH200",
    "NVIDIA B200": "B200",
    "NVIDIA GB200": "GB200",
    "NVIDIA A10G": "A10G",
    "NVIDIA A800 40GB Active": "A800",
    "NVIDIA L4": "L4",
    "NVIDIA L40S": "L40S",
    "Tesla V100-SXM2-32GB": "V100",
    "Tesla V100-DGXS-32GB": "V100",
    "Tesla P100-PCIE-16GB": "P100",
    "Tesla T4": "T4",
    "Tesla K80": "K80",
    "Tesla M60": "M60",
    "GRID T4-16Q": "T4",
    "NVIDIA A40-48Q": "A40",
    "GRID A100-1-5C": "A100",
    "NVIDIA RTX6000-Ada-48Q": "RTX6000Ada",
    "NVIDIA GeForce RTX 4090": "RTX4090",
    "NVIDIA GeForce RTX 4090 D": "RTX4090D",
    "NVIDIA GeForce RTX 4070 Ti SUPER": "RTX4070TiSUPER",
    "NVIDIA GeForce RTX 3080 Laptop GPU": "RTX3080Laptop",
    "NVIDIA GeForce RTX 2080 with Max-Q Design": "RTX2080MaxQ",
    "GeForce GTX 1080 Ti": "GTX1080Ti",
    "NVIDIA GeForce GTX 1060 6GB": "GTX1060",
    "NVIDIA GeForce MX450": "MX450",
    "NVIDIA RTX A6000": "A6000",
    "NVIDIA RTX A2000 12GB": "A2000",
    "NVIDIA RTX 6000 Ada Generation": "RTX6000Ada",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTXPRO6000",
    "Quadro RTX 6000": "RTX6000",
    "Quadro P6000": "P6000",
    "NVIDIA TITAN V": "TITANV",
    "NVIDIA TITAN RTX": "TITANRTX",
    "GeForce GTX TITAN X": "TITANX",
    "Orin (nvgpu)": "Orin",
    "NVIDIA Graphics Device": "GraphicsDevice",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb": "A100-1g.5gb",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me": "H100-1g.10gb+me",
    "AMD Radeon RX 7900 XTX (RADV NAVI31)": "RX7900XTX",
    "AMD Instinct MI250X": "MI250X",
    "AMD Radeon Graphics (RADV RENOIR)": "Radeon",
    "AMD Radeon Pro 5500M": "Pro5500M",
    "Intel(R) Arc(tm) A770 Graphics (DG2)": "A770",
    "Intel(R) UHD Graphics 630 (CFL GT2)": "UHD630",
    "Intel(R) Iris(R) Xe Graphics (TGL GT2)": "IrisXe",
    "llvmpipe (LLVM 15.0.6, 256 bits)": "llvmpipe",
    "Apple M1": "M1",
    "Apple M2 Max": "M2Max",
    "": "",
}


@pytest.mark.parametrize(("full_name", "short"), MODELS.items())
def test_short_model_of_real_product_names(full_name: str, short: str) -> None:
    assert shorten_model(full_name) == short


@pytest.mark.parametrize(
    ("full_name", "asks"),
    [
        ("NVIDIA GeForce RTX 4090", ["RTX4090", "4090", "rtx4090"]),
        ("NVIDIA RTX A6000", ["A6000", "a6000"]),
        ("NVIDIA A100-SXM4-80GB", ["A100", "SXM4"]),
        ("Tesla V100-SXM2-32GB", ["V100", "Tesla"]),
        ("NVIDIA GH200 480GB", ["GH200"]),
    ],
)
def test_what_people_write_matches_the_short_model_or_a_word(full_name: str, asks: list[str]) -> None:
    words = {shorten_model(full_name).lower(), *re.findall(r"\w+", full_name.lower())}
    assert {ask.lower() for ask in asks} <= words


def test_different_chips_never_share_a_short_model() -> None:
    pairs = [
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090 Laptop GPU"),
        ("NVIDIA GeForce GTX 1080", "NVIDIA GeForce GTX 1080 Ti"),
        ("Quadro RTX 6000", "NVIDIA RTX 6000 Ada Generation"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB MIG 3g.20gb"),
        ("NVIDIA L40", "NVIDIA L40S"),
    ]
    assert [pair for pair in pairs if shorten_model(pair[0]) == shorten_model(pair[1])] == []


def test_mask_names_whole_cards_by_index_and_slices_by_uuid() -> None:
    assert mask_name(Device(index=3, uuid="GPU-11")) == "3"
    assert mask_name(Device(index=9, uuid="MIG-22")) == "MIG-22"


@given(
    st.text()
    | st.lists(st.sampled_from(["NVIDIA", "RTX", "GTX", "MIG", "80GB", "GPU", "-", "("])).map(" ".join)
)
def test_any_name_has_a_short_model(full_name: str) -> None:
    assert bool(shorten_model(full_name)) == bool(full_name.strip())
