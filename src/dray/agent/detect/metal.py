"""Find the cards that Metal offers on macOS, from what `system_profiler` prints.

Owns the reading of that report. The surprising rule: an Apple chip has no memory of its own and shares the machine's;
75 % of it is offered as VRAM, the share that the system by default lets one process keep resident for the GPU.
"""

from __future__ import annotations

import re
import subprocess
from typing import Any

import msgspec

from dray.agent.detect.cards import Card, Cards

UNIFIED_SHARE_PERCENT = 75
_TIMEOUT_S = 20.0
_COMMAND = ("system_profiler", "-json", "SPDisplaysDataType")
_UNIT_BYTES = {"KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}
_VRAM_KEYS = ("spdisplays_vram", "_spdisplays_vram", "spdisplays_vram_shared")
_METAL_KEYS = ("spdisplays_mtlgpufamilysupport", "spdisplays_metal", "spdisplays_metalfamily")


def probe_metal(memory_bytes: int) -> Cards:
    try:
        done = subprocess.run(_COMMAND, capture_output=True, timeout=_TIMEOUT_S, check=True)
    except FileNotFoundError:
        return Cards(notes=["metal: system_profiler is not there"])
    except subprocess.TimeoutExpired:
        return Cards(notes=[f"metal: system_profiler did not answer within {_TIMEOUT_S:g} s"])
    except subprocess.CalledProcessError as error:
        return Cards(notes=[f"metal: system_profiler failed with exit code {error.returncode}"])
    return parse_displays(done.stdout, memory_bytes)


def parse_displays(report: bytes, memory_bytes: int) -> Cards:
    """Cards with Metal support in a `system_profiler -json SPDisplaysDataType` report, in its order."""
    try:
        entries = msgspec.json.decode(report, type=dict[str, Any]).get("SPDisplaysDataType", [])
    except msgspec.DecodeError as error:
        return Cards(notes=[f"metal: the report of system_profiler cannot be read: {error}"])
    cards: list[Card] = []
    notes: list[str] = []
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict):
            continue
        name = str(entry.get("sppci_model") or entry.get("_name") or "unnamed card")
        if not _supports_metal(entry):
            notes.append(f"metal: {name} does not support Metal")
            continue
        vram_bytes = _read_vram_bytes(entry, name, memory_bytes)
        if not vram_bytes:
            notes.append(f"metal: the memory of {name} is unknown; jobs that ask for VRAM will not come here")
        cards.append(Card(index=len(cards), name=name, vram_bytes=vram_bytes))
    names = ", ".join(card.name for card in cards)
    notes.append(f"metal: {names}" if cards else "metal: no card with Metal support in the report")
    return Cards(cards=cards, notes=notes)


def _supports_metal(entry: dict[str, Any]) -> bool:
    values = [str(entry[key]) for key in _METAL_KEYS if entry.get(key)]
    return any("notsupported" not in value.lower().replace("_", "") for value in values)


def _read_vram_bytes(entry: dict[str, Any], name: str, memory_bytes: int) -> int:
    if name.startswith("Apple ") or "apple" in str(entry.get("spdisplays_vendor", "")).lower():
        return memory_bytes * UNIFIED_SHARE_PERCENT // 100
    for key in _VRAM_KEYS:
        found = re.fullmatch(r"\s*(\d+)\s*([KMGT]B)\s*", str(entry.get(key, "")))
        if found:
            return int(found[1]) * _UNIT_BYTES[found[2]]
    return 0
