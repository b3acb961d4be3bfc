from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import msgspec
import pytest

from dray.agent.detect import Detected, detect, machine
from dray.agent.detect.cards import Card, Cards
from dray.core.model.capability import BACKENDS

GB = 10**9


def offer(monkeypatch: pytest.MonkeyPatch, nvidia: Cards | None = None, vulkan: Cards | None = None) -> None:
    monkeypatch.setattr(machine, "_look_at_nvidia", lambda: nvidia or Cards(notes=["nvidia: none"]))
    monkeypatch.setattr(machine, "_look_at_vulkan", lambda _: vulkan or Cards(notes=["vulkan: none"]))


def test_this_machine_as_it_is() -> None:
    found = detect()
    capability = found.capability
    assert capability.gpu_backend in BACKENDS
    assert capability.gpu_count == sum(device.healthy for device in found.devices)
    assert 0 < capability.cpu_count <= (os.cpu_count() or 1)
    assert found.usable_cores == max(1, int(capability.cpu_count))
    assert capability.memory_gb > 0.1
    assert capability.hostname == os.uname().nodename
    assert set(found.labels) == {"os", "arch", "kernel", "python"}
    topics = {note.partition(":")[0] for note in found.notes}
    assert {"cpu", "memory", "nvidia"} <= topics
    assert msgspec.json.decode(msgspec.json.encode(found), type=Detected) == found


def test_cards_become_capability_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [
        Card(index=0, name="Tesla T4", uuid="GPU-a", vram_bytes=16 * GB, driver="580"),
        Card(index=1, name="NVIDIA A100-SXM4-80GB", uuid="GPU-b", vram_bytes=80 * GB, driver="580"),
        Card(index=2, name="NVIDIA A100-SXM4-80GB", uuid="GPU-c", vram_bytes=80 * GB, driver="580"),
        Card(index=3, name="NVIDIA A100-SXM4-80GB", uuid="GPU-d", vram_bytes=80 * GB, healthy=False),
    ]
    offer(monkeypatch, nvidia=Cards(cards=cards))
    found = detect()
    capability, info = found.capability, found.capability.gpu_info
    assert (capability.gpu_backend, capability.gpu_count, capability.gpu_type) == ("nvidia", 3, "A100")
    assert capability.vram_gb == 176
    assert info is not None
    assert (info.gpu_type, info.count, info.driver, info.mem_total) == (
        "NVIDIA A100-SXM4-80GB",
        4,
        "580",
        256 * GB,
    )
    assert info.devices == [card.name for card in cards]
    assert [(d.index, d.model, d.healthy) for d in found.devices] == [
        (0, "T4", True),
        (1, "A100", True),
        (2, "A100", True),
        (3, "A100", False),
    ]


SICK = Cards(cards=[Card(index=0, name="NVIDIA H200", vram_bytes=GB, healthy=False)])
FINE = Cards(cards=[Card(index=0, name="AMD Instinct MI250X", vram_bytes=GB)])


@pytest.mark.parametrize(
    ("nvidia", "vulkan", "backend", "expected"),
    [
        (FINE, FINE, None, ("nvidia", 1)),
        (None, FINE, None, ("vulkan", 1)),
        (SICK, FINE, None, ("vulkan", 1)),
        (SICK, None, None, ("nvidia", 0)),
        (None, None, None, ("cpu", 0)),
        (FINE, FINE, "vulkan", ("vulkan", 1)),
        (FINE, FINE, "cpu", ("cpu", 0)),
        (None, FINE, "nvidia", ("cpu", 0)),
        (FINE, None, "tpu", ("nvidia", 1)),
    ],
)
def test_choice_of_the_backend(
    monkeypatch: pytest.MonkeyPatch,
    nvidia: Cards | None,
    vulkan: Cards | None,
    backend: str | None,
    expected: tuple[str, int],
) -> None:
    offer(monkeypatch, nvidia, vulkan)
    found = detect(backend=backend)
    assert (found.capability.gpu_backend, found.capability.gpu_count) == expected


def test_a_wrong_or_unserved_backend_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch)
    assert any("'tpu' is none of" in note for note in detect(backend="tpu").notes)
    assert any("nvidia was asked for and has no card" in note for note in detect(backend="nvidia").notes)


def test_probes_that_raise_leave_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object) -> Cards:
        raise RuntimeError("boom")

    for name in ("_look_at_cpu", "_look_at_memory", "_look_at_nvidia", "_look_at_vulkan", "_read_hostname"):
        monkeypatch.setattr(machine, name, explode)
    monkeypatch.setattr(machine, "read_labels", explode)
    found = detect()
    assert (found.capability.gpu_backend, found.usable_cores, found.labels) == ("cpu", 1, {})
    assert sum("RuntimeError: boom" in note for note in found.notes) == 6


def test_a_look_without_cards_loads_no_heavy_module() -> None:
    code = (
        "import sys; from dray.agent.detect import detect; detect(backend='cpu');"
        "print([m for m in ('numpy', 'pynvml', 'psutil', 'ctypes', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _has_nvidia() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0


needs_nvidia = pytest.mark.skipif(
    not _has_nvidia(), reason="no NVIDIA card with a working driver on this machine"
)


@needs_nvidia
def test_real_nvidia_cards_agree_with_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    query = "--query-gpu=index,uuid,name,memory.total,driver_version"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    smi = [[field.strip() for field in row.split(",")] for row in rows]
    found = detect()
    assert found.capability.gpu_backend == "nvidia"
    assert found.capability.gpu_info is not None
    assert found.capability.gpu_info.devices == [row[2] for row in smi]
    assert found.capability.gpu_info.driver == smi[0][4]
    assert [(str(d.index), d.uuid) for d in found.devices] == [(row[0], row[1]) for row in smi]
    assert [device.vram_bytes // 2**20 for device in found.devices] == [int(row[3]) for row in smi]


@needs_nvidia
def test_real_nvidia_cards_obey_the_agents_own_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    first = detect().devices[0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", first.uuid)
    assert detect().devices == [first]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert detect(backend="nvidia").devices == []
