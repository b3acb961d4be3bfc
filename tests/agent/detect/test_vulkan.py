from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

import pytest

from dray.agent.detect import vulkan_api as vk
from dray.agent.detect.cards import Card, Cards
from dray.agent.detect.vulkan import choose_cards, load_library, probe_vulkan

BIG = Card(index=0, name="AMD Radeon RX 7900 XTX (RADV NAVI31)", kind="discrete", bus="0000:03:00.0")
TWIN = Card(index=1, name="AMD Radeon RX 7900 XTX", kind="discrete", bus="0000:03:00.0")
SMALL = Card(index=2, name="Intel(R) UHD Graphics 770", kind="integrated", bus="0000:00:02.0")
SOFT = Card(index=3, name="llvmpipe (LLVM 15.0.6, 256 bits)", kind="software")


@pytest.mark.parametrize(
    ("seen", "allow_software", "kept"),
    [
        ([BIG, TWIN, SMALL, SOFT], False, [BIG]),
        ([BIG, SMALL, SOFT], True, [BIG]),
        ([SMALL, SOFT], False, [SMALL]),
        ([SMALL, SOFT], True, [SMALL, SOFT]),
        ([SOFT], False, []),
        ([SOFT], True, [SOFT]),
        ([], True, []),
    ],
)
def test_which_devices_count_as_cards(seen: list[Card], allow_software: bool, kept: list[Card]) -> None:
    answer = choose_cards(Cards(cards=seen), allow_software)
    assert answer.cards == kept
    assert len(answer.notes) == len(seen) - len(kept) + 1


def test_record_layouts_are_those_of_the_c_interface() -> None:
    assert ctypes.sizeof(vk.ApplicationInfo) == 48
    assert ctypes.sizeof(vk.InstanceCreateInfo) == 64
    assert ctypes.sizeof(vk.IdProperties) == 64
    assert ctypes.sizeof(vk.MemoryProperties) == 520
    assert vk.MemoryProperties.heaps.offset == 264
    assert vk.DeviceProperties.limits_and_sparse.offset == 296
    assert vk.DeviceProperties2.properties.offset == 16
    assert ctypes.sizeof(vk.DeviceProperties) > 824


needs_loader = pytest.mark.skipif(load_library() is None, reason="no Vulkan loader library on this machine")


@needs_loader
def test_real_devices_of_this_machine() -> None:
    answer = probe_vulkan(allow_software=True)
    if not answer.cards:
        pytest.skip(f"a loader, but no driver: {'; '.join(answer.notes)}")
    for card in answer.cards:
        assert card.name
        assert card.kind in vk.DEVICE_TYPES.values()
        assert 2**28 <= card.vram_bytes < 2**44
    hidden = [card for card in answer.cards if card.kind == "software"]
    assert not any(card in probe_vulkan(allow_software=False).cards for card in hidden)


@needs_loader
def test_loader_without_any_driver_is_a_note() -> None:
    # Both names of the variable: loaders before and after 1.3.207.
    env = {**os.environ, "VK_ICD_FILENAMES": "/nowhere.json", "VK_DRIVER_FILES": "/nowhere.json"}
    command = [sys.executable, "-m", "dray.agent.detect.vulkan"]
    done = subprocess.run(command, env=env, capture_output=True, check=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer.get("cards", []) == []
