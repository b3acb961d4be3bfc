"""NVML logic against a stand-in with chosen cards; `test_machine` asks the real driver where there is one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from dray.agent.detect.cards import Card, Cards
from dray.agent.detect.nvidia import read_cards, restrict_cards

GIB = 2**30


class Gpu(SimpleNamespace):
    """One card of the stand-in; an attribute that is an int below zero is the NVML error of that query."""

    def __init__(self, bus: int, name: str = "NVIDIA A100-SXM4-80GB", **extra: Any) -> None:
        defaults = {
            "uuid": f"GPU-{bus:04d}",
            "memory": 80 * GIB,
            "open": 0,
            "pending": -pynvml.NVML_ERROR_NOT_SUPPORTED,
            "remapped": (0, 0, 0, 0),
            "ecc": 0,
            "mig": -pynvml.NVML_ERROR_NOT_SUPPORTED,
            "slices": [],
        }
        super().__init__(bus=bus, name=name, **{**defaults, **extra})


class FakeNvml:
    """The part of the pynvml module that the probe calls, raising the real module's errors."""

    NVMLError = pynvml.NVMLError
    NVML_FEATURE_ENABLED = pynvml.NVML_FEATURE_ENABLED
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    NVML_VOLATILE_ECC = pynvml.NVML_VOLATILE_ECC

    def __init__(self, *gpus: Gpu, init: int = 0, count: int | None = None) -> None:
        self.gpus, self.init, self.count = gpus, init, len(gpus) if count is None else count
        self.shut_down = False

    def _give(self, value: Any) -> Any:
        if isinstance(value, int) and value < 0:
            raise pynvml.NVMLError(-value)
        return value

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own name, as are all below
        self._give(self.init)

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shut_down = True

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"580.1"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return int(self._give(self.count))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:  # noqa: N802
        self._give(self.gpus[index].open)
        return self.gpus[index]

    def nvmlDeviceGetPciInfo(self, gpu: Gpu) -> Any:  # noqa: N802
        return SimpleNamespace(domain=0, bus=gpu.bus, device=0)

    def nvmlDeviceGetName(self, gpu: Gpu) -> Any:  # noqa: N802
        return self._give(gpu.name)

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> Any:  # noqa: N802
        return self._give(gpu.uuid)

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu) -> Any:  # noqa: N802
        return SimpleNamespace(total=self._give(gpu.memory))

    def nvmlDeviceGetRetiredPagesPendingStatus(self, gpu: Gpu) -> Any:  # noqa: N802
        return self._give(gpu.pending)

    def nvmlDeviceGetRemappedRows(self, gpu: Gpu) -> Any:  # noqa: N802
        return self._give(gpu.remapped)

    def nvmlDeviceGetTotalEccErrors(self, gpu: Gpu, kind: int, counter: int) -> Any:  # noqa: N802
        assert (kind, counter) == (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        return self._give(gpu.ecc)

    def nvmlDeviceGetMigMode(self, gpu: Gpu) -> Any:  # noqa: N802
        return self._give(gpu.mig)

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: Gpu) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Gpu, index: int) -> Any:  # noqa: N802
        return gpu.slices[index] if index < len(gpu.slices) else self._give(-pynvml.NVML_ERROR_NOT_FOUND)


def test_the_stand_in_has_only_functions_that_nvml_has() -> None:
    names = [name for name in vars(FakeNvml) if name.startswith("nvml")]
    assert [name for name in names if not callable(getattr(pynvml, name, None))] == []


def test_cards_are_numbered_in_pci_order() -> None:
    nvml = FakeNvml(Gpu(bus=0x41), Gpu(bus=0x01, name="Tesla T4", memory=16 * GIB))
    found = read_cards(nvml)
    assert [(card.index, card.name, card.uuid, card.vram_bytes) for card in found.cards] == [
        (0, "Tesla T4", "GPU-0001", 16 * GIB),
        (1, "NVIDIA A100-SXM4-80GB", "GPU-0065", 80 * GIB),
    ]
    assert found.cards[0].driver == "580.1"
    assert all(card.healthy for card in found.cards)
    assert nvml.shut_down


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"pending": 1}, "wait for retirement"),
        ({"remapped": (0, 1, 0, 1)}, "could not be remapped"),
        ({"ecc": 3}, "3 uncorrected memory errors"),
        ({"ecc": -pynvml.NVML_ERROR_GPU_IS_LOST}, "lost"),
        ({"memory": -pynvml.NVML_ERROR_RESET_REQUIRED}, "unhealthy"),
    ],
)
def test_a_card_with_a_fault_is_listed_as_unhealthy_with_the_reason(
    extra: dict[str, Any], words: str
) -> None:
    found = read_cards(FakeNvml(Gpu(bus=1), Gpu(bus=2, **extra)))
    assert [card.healthy for card in found.cards] == [True, False]
    assert any("card 1" in note and words in note.lower() for note in found.notes)


@pytest.mark.parametrize(
    "extra",
    [
        {"pending": 0},
        {"remapped": (5, 0, 0, 0)},
        {"remapped": -pynvml.NVML_ERROR_NOT_SUPPORTED},
        {"ecc": -pynvml.NVML_ERROR_NOT_SUPPORTED},
        {"ecc": -pynvml.NVML_ERROR_FUNCTION_NOT_FOUND},
        {"memory": -pynvml.NVML_ERROR_NOT_SUPPORTED},
    ],
)
def test_what_a_card_does_not_support_says_nothing_about_its_health(extra: dict[str, Any]) -> None:
    assert [card.healthy for card in read_cards(FakeNvml(Gpu(bus=1, **extra))).cards] == [True]


def test_a_lost_card_keeps_its_place_and_a_closed_one_has_none() -> None:
    lost = Gpu(bus=1, open=-pynvml.NVML_ERROR_GPU_IS_LOST)
    closed = Gpu(bus=2, open=-pynvml.NVML_ERROR_NO_PERMISSION)
    found = read_cards(FakeNvml(lost, closed, Gpu(bus=3)))
    assert [(card.index, card.healthy) for card in found.cards] == [(0, False), (1, True)]
    assert any("card 1 is closed" in note for note in found.notes)


def test_mig_slices_stand_in_for_their_card_and_come_after_whole_cards() -> None:
    name = "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
    slices = [Gpu(bus=1, name=name, uuid=f"MIG-{number}", memory=40 * GIB) for number in range(2)]
    found = read_cards(FakeNvml(Gpu(bus=1, mig=(1, 1), slices=slices), Gpu(bus=2, mig=(0, 0))))
    assert [(card.index, card.uuid, card.vram_bytes) for card in found.cards] == [
        (1, "GPU-0002", 80 * GIB),
        (2, "MIG-0", 40 * GIB),
        (3, "MIG-1", 40 * GIB),
    ]


@pytest.mark.parametrize("fake", [{"init": -pynvml.NVML_ERROR_DRIVER_NOT_LOADED}, {"count": -999}])
def test_a_driver_that_does_not_answer_is_a_note(fake: dict[str, int]) -> None:
    found = read_cards(FakeNvml(**fake))
    assert found.cards == []
    assert found.notes[-1].startswith("nvidia: ")


CARDS = Cards(cards=[Card(index=n, name="Tesla T4", uuid=f"GPU-{n}a{n}") for n in range(4)])


@pytest.mark.parametrize(
    ("mask", "kept"),
    [
        (None, [0, 1, 2, 3]),
        ("2", [2]),
        ("3, 1", [1, 3]),
        ("GPU-2a2,0", [0, 2]),
        ("GPU-1", [1]),
        ("GPU-", []),
        ("", []),
        ("-1", []),
        ("1,9,2", [1]),
        ("NoDevFiles", []),
        ("1,1", [1]),
    ],
)
def test_the_agents_own_mask_limits_what_it_offers(mask: str | None, kept: list[int]) -> None:
    found = restrict_cards(CARDS, mask)
    assert [card.index for card in found.cards] == kept
    assert any("CUDA_VISIBLE_DEVICES" in note for note in found.notes) == (mask is not None)


def test_indexes_over_unlike_cards_are_warned_about_unless_the_order_is_fixed() -> None:
    mixed = Cards(cards=[Card(index=0, name="Tesla T4"), Card(index=1, name="NVIDIA L4")])
    assert any("by uuid" in note for note in restrict_cards(mixed, "0").notes)
    assert not any("by uuid" in note for note in restrict_cards(mixed, "0", "PCI_BUS_ID").notes)
    assert not any("by uuid" in note for note in restrict_cards(CARDS, "0").notes)
