"""How busy cards are, by NVML: the reading against a stand-in, and the program that the agent keeps, as a process."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from dray.agent.usage.cards import CardWatch
from dray.agent.usage.nvml import CardFault, CardReading, FaultLine, ProcessUse, Reader
from dray.core.model.verdicts import judge


class FakeNvml:
    """The part of the pynvml module that the reading calls; what is an int below zero is the error of that query."""

    NVMLError = pynvml.NVMLError
    NVML_GPU_UTILIZATION_SAMPLES = pynvml.NVML_GPU_UTILIZATION_SAMPLES
    NVML_ERROR_TIMEOUT = pynvml.NVML_ERROR_TIMEOUT
    nvmlEventTypeXidCriticalError = pynvml.nvmlEventTypeXidCriticalError  # noqa: N815 - NVML's own name

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {"MigMode": (0, 0), "cards": 1, **answers}

    def _give(self, name: str) -> Any:
        answer = self.answers.get(name, -pynvml.NVML_ERROR_NOT_SUPPORTED)
        if isinstance(answer, int) and answer < 0:
            raise pynvml.NVMLError(-answer)
        return answer

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVML's own name, as are all below
        return int(self._give("cards"))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(domain=0, bus=handle, device=0)

    def nvmlDeviceGetMigMode(self, handle: int) -> Any:  # noqa: N802
        return self._give("MigMode")

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=self._give("MemoryInfo"), total=80 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=self._give("UtilizationRates"))

    def nvmlDeviceGetSamples(self, handle: int, kind: int, since: int) -> Any:  # noqa: N802
        assert kind == pynvml.NVML_GPU_UTILIZATION_SAMPLES
        kept = [sample for sample in self._give("Samples") if sample[0] > since]
        if not kept:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return 1, [
            SimpleNamespace(timeStamp=at, sampleValue=SimpleNamespace(uiVal=value)) for at, value in kept
        ]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:  # noqa: N802
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=memory)
            for pid, memory in self._give("ComputeRunningProcesses")
        ]

    def nvmlDeviceGetProcessUtilization(self, handle: int, since: int) -> Any:  # noqa: N802
        return [
            SimpleNamespace(pid=pid, timeStamp=at, smUtil=share)
            for pid, at, share in self._give("ProcessUtilization")
        ]

    def nvmlEventSetCreate(self) -> list[int]:  # noqa: N802
        self._give("events")
        return []

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: list[int]) -> None:  # noqa: N802
        assert kinds == pynvml.nvmlEventTypeXidCriticalError
        if handle in self.answers.get("silent", ()):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        events.append(handle)

    def nvmlEventSetWait_v2(self, events: list[int], timeout_ms: int) -> Any:  # noqa: N802
        assert timeout_ms >= 1
        told = self._give("events")
        if not told:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        handle, xid = told.pop(0)
        assert handle in events
        return SimpleNamespace(device=handle, eventData=xid)

    def nvmlEventSetFree(self, events: list[int]) -> None:  # noqa: N802
        events.clear()


def test_the_stand_in_has_only_functions_that_nvml_has() -> None:
    names = [name for name, own in vars(FakeNvml).items() if name.startswith("nvml") and callable(own)]
    assert [name for name in names if not callable(getattr(pynvml, name, None))] == []
    event = pynvml.c_nvmlEventData_t()
    assert (event.eventData, bool(event.device)) == (0, False)


def test_what_a_driver_keeps_since_the_last_look_is_averaged() -> None:
    nvml = FakeNvml(Samples=[(1, 0), (2, 100), (3, 50)], MemoryInfo=1 << 30, UtilizationRates=7)
    reader = Reader(nvml)
    assert reader.read() == [CardReading(0, 0.5, 1 << 30, None, 80 << 30)]
    nvml.answers["Samples"] += [(4, 100)]
    assert reader.read()[0].share == 1.0
    # Nothing new is kept: what it says of this moment is better than nothing.
    assert reader.read()[0].share == 0.07


def test_what_a_driver_does_not_tell_is_unknown_and_not_zero() -> None:
    assert Reader(FakeNvml()).read() == [CardReading(0)]
    lost = -pynvml.NVML_ERROR_GPU_IS_LOST
    assert Reader(FakeNvml(Samples=lost, UtilizationRates=lost, MemoryInfo=lost)).read() == [CardReading(0)]


def test_slices_of_a_card_tell_nothing() -> None:
    assert Reader(FakeNvml(MigMode=(1, 1), UtilizationRates=0)).read() == []


def test_processes_are_told_with_what_each_uses() -> None:
    nvml = FakeNvml(
        UtilizationRates=90,
        ComputeRunningProcesses=[(7, 5 << 20), (8, None)],
        ProcessUtilization=[(7, 10, 40), (7, 20, 60)],
    )
    assert Reader(nvml).read()[0].processes == [ProcessUse(7, 0.5, 5 << 20), ProcessUse(8)]


def test_faults_are_heard_of_cards_that_tell_them_and_again_after_an_error() -> None:
    nvml = FakeNvml(cards=3, silent=[1], events=[(2, 79), (0, 31)])
    line = FaultLine(nvml)
    line.listen()
    assert [line.hear(0.01) for _ in range(3)] == [CardFault(2, 79), CardFault(0, 31), None]
    nvml.answers["events"] = -pynvml.NVML_ERROR_GPU_IS_LOST
    assert line.hears
    assert line.hear(0.01) is None
    assert not line.hears
    line.listen()
    assert not line.hears
    nvml.answers["events"] = [(0, 48)]
    line.listen()
    assert line.hear(0.01) == CardFault(0, 48)


def test_where_no_card_tells_of_faults_nothing_is_waited_for() -> None:
    for nvml in (FakeNvml(cards=1, silent=[0], events=[]), FakeNvml()):
        line = FaultLine(nvml)
        line.listen()
        assert not line.hears


def test_what_a_card_was_told_of_counts_for_who_had_it_then() -> None:
    watch = CardWatch(10)
    before = time.time()
    watch._take(b'{"index":1,"xid":119}\n')
    watch._take(b'{"index":0,"xid":31}\n')
    (line,) = watch.testify([0, 1], before, "RuntimeError: unspecified launch failure")
    assert judge("code", "", line).kind == "node"
    assert "Xid 119 on GPU 1" in line
    # Neither a fault of before, nor one of somebody else's card, nor a mistake of the program on it.
    assert watch.testify([1], time.time() + 1, "") == watch.testify([0], before, "") == []
    # So short that its start was not heard of.
    assert watch.testify([1], 0, "") == [line]


def test_a_full_card_counts_where_the_program_named_no_error() -> None:
    watch = CardWatch(10)
    watch._take(
        b'[{"index":0,"memory_bytes":79000000000,"total_bytes":80000000000},{"index":1,"memory_bytes":1}]\n'
    )
    (line,) = watch.testify([1, 0], 1, "epoch 3")
    assert judge("signal", "", line).kind == "gpu_memory"
    assert "79G of 80G" in line
    assert watch.testify([0], 1, "ValueError: negative rate") == watch.testify([1], 1, "") == []


PRETENDED = """
import os
NVML_GPU_UTILIZATION_SAMPLES = 1
class NVMLError(Exception): pass
class Memory:
    used, total = 1 << 30, 80 << 30
class Place: domain = bus = device = 0
def nvmlInit(): print("banner of a driver")
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return "card"
def nvmlDeviceGetPciInfo(card): return Place
def nvmlDeviceGetMigMode(card): return (0, 0)
def nvmlDeviceGetMemoryInfo(card): return Memory
def fail(*_): raise NVMLError
nvmlDeviceGetSamples = nvmlDeviceGetComputeRunningProcesses = nvmlDeviceGetProcessUtilization = fail
nvmlEventSetCreate = fail
def nvmlDeviceGetUtilizationRates(card):
    class Rates: gpu = int(open(os.environ["SHARE_FILE"]).read())
    return Rates
"""


def children() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if "dray.agent.usage.nvml" in " ".join(one.cmdline())]


async def test_the_program_beside_the_agent_says_what_the_driver_says_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_until_async: Any
) -> None:
    (tmp_path / "pynvml.py").write_text(PRETENDED)
    share = tmp_path / "share"
    share.write_text("30")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SHARE_FILE", str(share))
    watch = CardWatch(0.2)
    assert watch.latest() == {}
    running = asyncio.create_task(watch.run())
    try:
        await wait_until_async(watch.latest)
        assert watch.latest() == {0: CardReading(0, 0.3, 1 << 30, None, 80 << 30)}
        share.write_text("80")
        await wait_until_async(lambda: watch.latest().get(0) == CardReading(0, 0.8, 1 << 30, None, 80 << 30))
        # A program that dies leaves nothing known that is old.
        share.write_text("no number")
        await wait_until_async(lambda: not watch.latest())
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await wait_until_async(lambda: not children())
