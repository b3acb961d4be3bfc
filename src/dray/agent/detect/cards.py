"""What a probe brings back: cards with their full names, the driver, and lines for people.

Knows no driver and no protocol. The surprising rule: these records cross a process boundary as JSON, because the
probes that load drivers run in a child process (see `child`).
"""

from __future__ import annotations

import msgspec


class Card(msgspec.Struct, frozen=True, omit_defaults=True):
    """One card as its driver describes it; `index` is the number by which that driver's masks name it."""

    index: int
    name: str
    uuid: str = ""
    vram_bytes: int = 0
    healthy: bool = True
    driver: str = ""
    kind: str = ""
    """`discrete`, `integrated`, `virtual`, `software` or `other`, where the driver tells."""
    bus: str = ""
    """PCI address, where the driver tells: two drivers may show one card twice."""


class Cards(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of one probe. No cards and a note is an ordinary answer, not an error."""

    cards: list[Card] = []
    notes: list[str] = []
