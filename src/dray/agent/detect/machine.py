"""Put the probes together into what the agent announces: one capability, its devices, and lines for people.

Owns the order of the probes and the choice of the backend: nvidia, then metal, then vulkan, then cpu. Knows no
driver: probes are loaded when their turn comes, so a machine without cards pays for none of them. The surprising
rules: nothing here raises, a probe that fails leaves a note; and a card that is ill stays in the list of devices,
marked so, but is not counted in `gpu_count` and `vram_gb`, while `gpu_info` describes every card present.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import msgspec

from dray.agent.detect.cards import Card, Cards
from dray.agent.detect.names import shorten_model
from dray.core.model.capability import BACKENDS, Capability, Device, GpuInfo
from dray.core.model.units import format_vram

_Result = TypeVar("_Result")
_PREFERENCE = ("nvidia", "metal", "vulkan")


class Detected(msgspec.Struct, frozen=True):
    """All that one look at the machine found; `usable_cores` is the default for the number of batch slots."""

    capability: Capability
    devices: list[Device]
    usable_cores: int
    notes: list[str]
    labels: dict[str, str]


def detect(allow_software_vulkan: bool = False, backend: str | None = None) -> Detected:
    """Look at this machine. `backend` asks for one kind of card alone; without such a card the answer is `cpu`."""
    notes: list[str] = []
    cores, usable_cores = _guard("cpu", _look_at_cpu, (0.0, 1), notes)
    memory_bytes = _guard("memory", _look_at_memory, 0, notes)
    chosen, cards = _find_cards(_choose_order(backend, notes), memory_bytes, allow_software_vulkan, notes)
    if backend in _PREFERENCE and chosen != backend:
        notes.append(f"machine: backend {backend} was asked for and has no card here; offered as cpu")
    capability = _describe(chosen, cards, cores, memory_bytes, _guard("hostname", _read_hostname, "", notes))
    if cards:
        notes.append(
            f"machine: offers {capability.gpu_count} × {capability.gpu_type or 'no healthy card'} by {chosen}, "
            f"{format_vram(sum(card.vram_bytes for card in cards if card.healthy))} VRAM"
        )
    devices = [_to_device(card) for card in cards]
    return Detected(
        capability, devices, usable_cores, notes, _guard("labels", lambda _: read_labels(), {}, notes)
    )


def _guard(label: str, look: Callable[[list[str]], _Result], otherwise: _Result, notes: list[str]) -> _Result:
    try:
        return look(notes)
    except Exception as error:  # noqa: BLE001 - whatever a driver or a strange system does, the agent must start
        notes.append(f"{label}: not readable: {type(error).__name__}: {error}")
        return otherwise


def _choose_order(backend: str | None, notes: list[str]) -> tuple[str, ...]:
    if backend is None:
        return _PREFERENCE
    if backend not in BACKENDS:
        notes.append(
            f"machine: backend {backend!r} is none of {', '.join(BACKENDS)}; chosen by what is found"
        )
        return _PREFERENCE
    return tuple(name for name in _PREFERENCE if name == backend)


def _find_cards(
    order: tuple[str, ...], memory_bytes: int, allow_software: bool, notes: list[str]
) -> tuple[str, list[Card]]:
    """The first backend with a healthy card, else the first with any card, else `cpu`."""
    ill: tuple[str, list[Card]] = ("cpu", [])
    looks: dict[str, Callable[[list[str]], Cards]] = {
        "nvidia": lambda _: _look_at_nvidia(),
        "metal": lambda _: _look_at_metal(memory_bytes),
        "vulkan": lambda _: _look_at_vulkan(allow_software),
    }
    for name in order:
        found = _guard(name, looks[name], Cards(), notes)
        notes += found.notes
        if any(card.healthy for card in found.cards):
            return name, found.cards
        if found.cards and not ill[1]:
            ill = (name, found.cards)
    return ill


def _describe(backend: str, cards: list[Card], cores: float, memory_bytes: int, hostname: str) -> Capability:
    healthy = [card for card in cards if card.healthy]
    leading = _pick_leading_name(healthy or cards)
    info = GpuInfo(
        gpu_type=leading,
        count=len(cards),
        devices=[card.name for card in cards],
        driver=cards[0].driver if cards else "",
        mem_total=sum(card.vram_bytes for card in cards),
    )
    return Capability(
        gpu_backend=backend,
        gpu_count=len(healthy),
        gpu_type=shorten_model(leading) if healthy else "",
        vram_gb=_to_gb(sum(card.vram_bytes for card in healthy)),
        cpu_count=cores,
        memory_gb=_to_gb(memory_bytes),
        hostname=hostname,
        gpu_info=info if cards else None,
    )


def _pick_leading_name(cards: list[Card]) -> str:
    """The name that most cards bear; of equals the one with the lowest index, so that the answer is stable."""
    counted = Counter(card.name for card in cards)
    return max(counted, key=lambda name: counted[name], default="")


def _to_device(card: Card) -> Device:
    return Device(
        index=card.index,
        uuid=card.uuid,
        model=shorten_model(card.name),
        vram_bytes=card.vram_bytes,
        healthy=card.healthy,
    )


def _to_gb(size_bytes: int) -> float:
    # Rounded down to a megabyte: more than there is must never be announced.
    return size_bytes // 10**6 / 1000


def _is_macos() -> bool:
    return os.uname().sysname == "Darwin"


def _look_at_cpu(notes: list[str]) -> tuple[float, int]:
    from dray.agent.detect.cpu import detect_cpu

    found = detect_cpu()
    notes.append(found.note)
    return found.cores, found.usable_cores


def _look_at_memory(notes: list[str]) -> int:
    from dray.agent.detect.memory import detect_memory

    found = detect_memory()
    notes.append(found.note)
    return found.memory_bytes


def _look_at_nvidia() -> Cards:
    if _is_macos():
        return Cards(notes=["nvidia: not on macOS"])
    from dray.agent.detect.nvidia import probe_nvidia, restrict_cards

    mask, order = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER")
    return restrict_cards(probe_nvidia(), mask, order)


def _look_at_metal(memory_bytes: int) -> Cards:
    if not _is_macos():
        return Cards(notes=["metal: only on macOS"])
    from dray.agent.detect.metal import probe_metal

    return probe_metal(memory_bytes)


def _look_at_vulkan(allow_software: bool) -> Cards:
    from dray.agent.detect.vulkan import probe_vulkan

    return probe_vulkan(allow_software)


def _read_hostname(_: list[str]) -> str:
    return os.uname().nodename


def read_labels() -> dict[str, str]:
    """One spelling per thing on every system, so that a condition on a label holds on Linux and macOS alike."""
    system = os.uname()
    return {
        "os": {"darwin": "macos"}.get(system.sysname.lower(), system.sysname.lower()),
        "arch": {"aarch64": "arm64", "amd64": "x86_64"}.get(system.machine, system.machine),
        "kernel": system.release,
        "python": ".".join(map(str, sys.version_info[:3])),
    }
