"""Asks NVML every few seconds how busy each NVIDIA card is and who uses it, and prints each answer as a line of JSON.
In between it prints, as it happens, which card went wrong and by which of NVIDIA's numbers (Xid).

Run as a program beside the agent, for as long as its standard input is open: a card that fell off its bus can hang
NVML for minutes, and nobody can end a process that hangs so. What NVML does not tell is left out, never 0. A card in
MIG mode tells of its slices nothing that could be believed, so nothing is said of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import select
import sys
import time
from typing import Any

import msgspec

from dray.agent.detect.nvidia import list_handles

# Driver and library may be replaced under a program that runs for weeks: from time to time it begins anew.
_ROUNDS = 4000
# For so long at a time it is listened for faults, and not to standard input.
_DEAF_S = 1.0


class ProcessUse(msgspec.Struct, omit_defaults=True):
    """How one process uses a card; None where the driver does not say."""

    pid: int
    share: float | None = None
    memory_bytes: int | None = None


class CardReading(msgspec.Struct, omit_defaults=True):
    """One card, by its index among all of this machine; None where the driver does not say.

    `share` is the part of the time since the last look in which anything ran on it.
    """

    index: int
    share: float | None = None
    memory_bytes: int | None = None
    processes: list[ProcessUse] | None = None
    total_bytes: int | None = None


class CardFault(msgspec.Struct):
    """One card went wrong just now, by which Xid."""

    index: int
    xid: int


class Reader:
    """Looks at all cards; remembers up to when it has seen what the driver keeps of each."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._seen: dict[tuple[str, int], int] = {}

    def read(self) -> list[CardReading]:
        """Look once."""
        handles = list_handles(self._nvml, [])
        return [self._read(index, handle) for index, handle in enumerate(handles) if self._is_whole(handle)]

    def _is_whole(self, handle: Any) -> bool:
        return handle is not None and not (self._ask("nvmlDeviceGetMigMode", handle) or (0, 0))[0]

    def _read(self, index: int, handle: Any) -> CardReading:
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        return CardReading(
            index,
            self._read_share(index, handle),
            None if memory is None else int(memory.used),
            self._read_processes(index, handle),
            None if memory is None else int(memory.total),
        )

    def _read_share(self, index: int, handle: Any) -> float | None:
        """The mean of what the driver has kept since the last look, else what it says of the last moment."""
        kind = self._nvml.NVML_GPU_UTILIZATION_SAMPLES
        seen = self._seen.get(("card", index), 0)
        kept = self._ask("nvmlDeviceGetSamples", handle, kind, seen)
        fresh = [sample for sample in (kept[1] if kept else ()) if sample.timeStamp > seen]
        if fresh:
            self._seen["card", index] = max(sample.timeStamp for sample in fresh)
            return _to_share(sum(sample.sampleValue.uiVal for sample in fresh) / len(fresh))
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        return None if rates is None else _to_share(rates.gpu)

    def _read_processes(self, index: int, handle: Any) -> list[ProcessUse] | None:
        running = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        if running is None:
            return None
        found = {item.pid: ProcessUse(item.pid, None, item.usedGpuMemory) for item in running}
        seen = self._seen.get(("processes", index), 0)
        kept = self._ask("nvmlDeviceGetProcessUtilization", handle, seen)
        shares: dict[int, list[float]] = {}
        for sample in kept or ():
            if sample.timeStamp > seen:
                shares.setdefault(sample.pid, []).append(_to_share(sample.smUtil))
        if kept:
            self._seen["processes", index] = max(sample.timeStamp for sample in kept)
        for pid, told in shares.items():
            found.setdefault(pid, ProcessUse(pid)).share = sum(told) / len(told)
        return list(found.values())

    def _ask(self, function: str, *arguments: Any) -> Any:
        """None for whatever the driver does not tell of a card, also where its library does not know the question."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError:
            return None


class FaultLine:
    """Hears of faults of cards as the driver tells them; of none where it tells nobody."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._events: Any = None
        self._indexes: dict[int | None, int] = {}

    def listen(self) -> None:
        """Begin to hear, where that has not begun or was broken off."""
        if self._events is not None:
            return
        nvml = self._nvml
        self._indexes = {}
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return
        for index, handle in enumerate(list_handles(nvml, [])):
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError:
                continue  # a card that tells nothing, or no longer answers
            self._indexes[_address(handle)] = index
        self._events = events
        if not self._indexes:
            self._break_off()

    def hear(self, within_s: float) -> CardFault | None:
        """The next fault; None where there is none in that time, or `hears` no more."""
        try:
            event = self._nvml.nvmlEventSetWait_v2(self._events, max(1, round(within_s * 1000)))
        except self._nvml.NVMLError as error:
            if error.value != self._nvml.NVML_ERROR_TIMEOUT:
                self._break_off()
            return None
        index = self._indexes.get(_address(event.device))
        return None if index is None else CardFault(index, int(event.eventData))

    @property
    def hears(self) -> bool:
        """Whether the driver tells of faults."""
        return self._events is not None

    def _break_off(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlEventSetFree(self._events)
        self._events = None


def _address(handle: Any) -> int | None:
    """What two handles of one card have in common: one that is lost can be asked for nothing else."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def _to_share(percent: float) -> float:
    return min(1.0, max(0.0, percent / 100))


def watch(nvml: Any, every_s: float) -> None:
    """Print a reading at once and then every so often, and faults between them, until standard input ends."""
    nvml.nvmlInit()
    try:
        reader, line = Reader(nvml), FaultLine(nvml)
        for _ in range(_ROUNDS):
            line.listen()
            _say(reader.read())
            if not _listen(line, time.monotonic() + every_s):
                return
    finally:
        nvml.nvmlShutdown()


def _listen(line: FaultLine, until: float) -> bool:
    """Say what goes wrong until then; gives whether standard input is still open."""
    while (left_s := until - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], 0 if line.hears else left_s)[0]:
            return False
        if line.hears and (fault := line.hear(min(left_s, _DEAF_S))) is not None:
            _say(fault)
    return True


def _say(what: list[CardReading] | CardFault) -> None:
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    watch(importlib.import_module("pynvml"), float(sys.argv[1]))
