"""Find NVIDIA cards through NVML: name, VRAM, uuid, health, MIG slices; and which of them the agent may offer.

Owns the talk with NVML. Run as a program it prints its `Cards` as JSON, which is how the agent calls it: a card that
fell off its bus can hang NVML for minutes. The surprising rules: `index` is the position in PCI bus order, which is
what CUDA_VISIBLE_DEVICES means once CUDA_DEVICE_ORDER=PCI_BUS_ID is set beside it; a card in MIG mode is offered as
its slices only, numbered after all whole cards and named in masks by uuid. NVIDIA_VISIBLE_DEVICES is not read: the
container runtime has already acted on it, and its indexes are those of the host.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from typing import Any

import msgspec

from dray.agent.detect.cards import Card, Cards
from dray.agent.detect.child import probe_in_child

_LIBRARY = "libnvidia-ml.so.1"
_TIMEOUT_S = 30.0
# NVML says with these that it has nothing to tell, not that the card is ill: not supported, no permission, not found,
# function not found, ECC of a virtual card, version mismatch of a query, deprecated.
_NO_ANSWER = frozenset({3, 4, 6, 13, 22, 25, 26})
_NO_PERMISSION = 4


def probe_nvidia() -> Cards:
    """Ask NVML in a child process; without the driver's library there is no child and no import either."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return Cards(notes=[f"nvidia: no driver here ({_LIBRARY} cannot be loaded)"])
    return probe_in_child("dray.agent.detect.nvidia", "nvidia", _TIMEOUT_S)


def read_cards(nvml: Any) -> Cards:
    """All cards that `nvml` (the module of nvidia-ml-py) knows, whole ones first, in PCI bus order."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Cards(notes=[f"nvidia: the driver does not answer: {_describe(nvml, error)}"])
    try:
        return _Reader(nvml).read()
    except nvml.NVMLError as error:
        return Cards(notes=[f"nvidia: cards cannot be listed: {_describe(nvml, error)}"])
    finally:
        nvml.nvmlShutdown()


class _Reader:
    """One pass over the cards; collects notes as it goes."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._notes: list[str] = []
        self._driver = str(self._ask("nvmlSystemGetDriverVersion") or "")

    def read(self) -> Cards:
        handles = list_handles(self._nvml, self._notes)
        whole: list[Card] = []
        slices: list[Card] = []
        for index, handle in enumerate(handles):
            if handle is None:
                whole.append(Card(index=index, name="NVIDIA card that does not answer", healthy=False))
            elif (self._ask("nvmlDeviceGetMigMode", handle) or (0, 0))[0]:
                slices += self._read_slices(index, handle, first_index=len(handles) + len(slices))
            else:
                whole.append(self._read_card(index, handle))
        cards = whole + slices
        names = ", ".join(card.name for card in cards) or "no card"
        self._notes.append(f"nvidia: {names}; driver {self._driver or 'unknown'}")
        return Cards(cards=cards, notes=self._notes)

    def _read_card(self, index: int, handle: Any) -> Card:
        faults = self._find_faults(handle)
        name = uuid = ""
        vram_bytes = 0
        try:
            name = self._ask("nvmlDeviceGetName", handle) or ""
            uuid = self._ask("nvmlDeviceGetUUID", handle) or ""
            memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
            vram_bytes = int(memory.total) if memory is not None else 0
        except self._nvml.NVMLError as error:
            faults.append(_describe(self._nvml, error))
        if faults:
            self._notes.append(f"nvidia: card {index} ({name}) is unhealthy: {', '.join(faults)}")
        elif not vram_bytes:
            self._notes.append(f"nvidia: the memory of card {index} ({name}) is unknown")
        return Card(
            index=index,
            name=name,
            uuid=uuid,
            vram_bytes=vram_bytes,
            healthy=not faults,
            driver=self._driver,
        )

    def _read_slices(self, index: int, handle: Any, first_index: int) -> list[Card]:
        parent = self._read_card(index, handle)
        slices: list[Card] = []
        for number in range(self._ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            part = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            if part is None:
                continue
            memory = self._ask("nvmlDeviceGetMemoryInfo", part)
            slices.append(
                Card(
                    index=first_index + len(slices),
                    name=self._ask("nvmlDeviceGetName", part) or f"{parent.name} MIG",
                    uuid=self._ask("nvmlDeviceGetUUID", part) or "",
                    vram_bytes=int(memory.total) if memory is not None else 0,
                    healthy=parent.healthy,
                    driver=self._driver,
                )
            )
        self._notes.append(
            f"nvidia: card {index} ({parent.name}) is in MIG mode, {len(slices)} slices offered"
        )
        return slices

    def _find_faults(self, handle: Any) -> list[str]:
        """Why this card should get no work; a query that the card does not support says nothing about it."""
        nvml = self._nvml
        faults: list[str] = []
        try:
            if self._ask("nvmlDeviceGetRetiredPagesPendingStatus", handle) == nvml.NVML_FEATURE_ENABLED:
                faults.append("memory pages wait for retirement (reset the card)")
            remapped = self._ask("nvmlDeviceGetRemappedRows", handle)
            if remapped is not None and remapped[3]:
                faults.append("a memory row could not be remapped (replace the card)")
            kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
            errors = self._ask("nvmlDeviceGetTotalEccErrors", handle, *kinds)
            if errors:
                faults.append(f"{errors} uncorrected memory errors since the last reset")
        except nvml.NVMLError as error:
            faults.append(_describe(nvml, error))
        return faults

    def _ask(self, function: str, *arguments: Any) -> Any:
        """One query; None where the card or the driver does not support it. Other errors are the caller's."""
        try:
            answer = getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in _NO_ANSWER:
                return None
            raise
        return answer.decode() if isinstance(answer, bytes) else answer


def list_handles(nvml: Any, notes: list[str]) -> list[Any]:
    """One entry per card in PCI order; None for a card that NVML counts and cannot open, of which `notes` tell."""
    found: list[tuple[Any, Any]] = []
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            pci = nvml.nvmlDeviceGetPciInfo(handle)
            found.append(((pci.domain, pci.bus, pci.device), handle))
        except nvml.NVMLError as error:
            reason = _describe(nvml, error)
            if error.value == _NO_PERMISSION:
                notes.append(f"nvidia: card {number} is closed to this process: {reason}")
            else:
                notes.append(f"nvidia: card {number} is unhealthy: {reason}")
                found.append((None, None))
    # A card that cannot be asked for its bus has no place in the order: NVML's own order is then the best there is.
    if all(place is not None for place, _ in found):
        found.sort(key=lambda entry: entry[0])
    return [handle for _, handle in found]


def _describe(nvml: Any, error: Any) -> str:
    """NVML's own words; asking for them can fail in turn when the library is what is broken."""
    try:
        return str(error)
    except nvml.NVMLError:
        return f"NVML error {error.value}"


def restrict_cards(found: Cards, mask: str | None, order: str | None = None) -> Cards:
    """Keep the cards that the agent's own CUDA_VISIBLE_DEVICES names; `order` is its CUDA_DEVICE_ORDER.

    As in CUDA, the list ends at the first entry that names no card, so `-1` or an empty value hides all.
    """
    if mask is None or not found.cards:
        return found
    kept: list[Card] = []
    for entry in mask.split(","):
        card = _find_named(found.cards, entry.strip())
        if card is None or card in kept:
            break
        kept.append(card)
    kept.sort(key=lambda card: card.index)
    notes = [
        *found.notes,
        f"nvidia: CUDA_VISIBLE_DEVICES={mask} leaves {len(kept)} of {len(found.cards)} cards",
    ]
    by_index = any(entry.strip().isdigit() for entry in mask.split(","))
    if by_index and order != "PCI_BUS_ID" and len({card.name for card in found.cards}) > 1:
        notes.append(
            "nvidia: the cards differ, and indexes are read in PCI order: name cards by uuid to be sure"
        )
    return Cards(cards=kept, notes=notes)


def _find_named(cards: list[Card], entry: str) -> Card | None:
    if entry.isdigit():
        return next((card for card in cards if card.index == int(entry)), None)
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    # CUDA takes any beginning of a uuid that fits one card only.
    named = [card for card in cards if card.uuid.startswith(entry)]
    return named[0] if len(named) == 1 else None


if __name__ == "__main__":
    try:
        answer = read_cards(importlib.import_module("pynvml"))
    except ImportError:
        answer = Cards(notes=["nvidia: a driver is here, but the package nvidia-ml-py is not installed"])
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
