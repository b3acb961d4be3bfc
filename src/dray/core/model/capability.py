"""What a worker offers: capabilities as the protocol spells them, devices, slots.

These records travel on the wire and are reported back unchanged, so they keep the protocol's own units (`vram_gb` in
10⁹ bytes). Everything that decides works on the integers of `core.model.specs.resources`.
"""

from __future__ import annotations

import msgspec

from dray.core.model.bounds import Count


class GpuInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The long form of what the cards are; `gpu_count` of the capability decides where `count` differs."""

    gpu_type: str = ""
    count: int = 0
    devices: list[str] | None = None
    driver: str = ""
    mem_total: int = 0


class Capability(msgspec.Struct, frozen=True):
    """One machine as its worker describes it. A number that is 0 is unknown and cannot satisfy an ask for it.

    Whole numbers stay whole: what a worker said is reported back unchanged, and not every language reads 8.0 as 8.
    """

    gpu_backend: str = "cpu"
    gpu_count: int = 0
    gpu_type: str = ""
    vram_gb: int | float = 0
    cpu_count: int | float = 0
    memory_gb: int | float = 0
    hostname: str = ""
    gpu_info: GpuInfo | None = None


class Device(msgspec.Struct, frozen=True):
    """One card of a worker, in the order in which masks name it."""

    index: int
    uuid: str = ""
    model: str = ""
    vram_bytes: int = 0
    healthy: bool = True


class Slots(msgspec.Struct, frozen=True):
    """How many tasks a worker runs at once, per pool, and how many it says it runs now."""

    batch_total: Count = 0
    batch_in_use: Count = 0
    service_total: Count = 0
    service_in_use: Count = 0


BACKENDS = ("cpu", "nvidia", "metal", "vulkan")
