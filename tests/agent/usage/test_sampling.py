"""What attempts use: real processes looked at through the process table, cards as their driver told of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dray.agent.usage.nvml import CardReading, ProcessUse
from dray.agent.usage.sampling import Held, Sampler

EVERY_S = 10.0
# A parent whose child works, and which holds memory that both of its children share.
BUSY = """
import os, signal, sys
held = bytearray(b"x" * (96 << 20))
children = []
while len(sys.argv) > 1 and len(children) < 2 and 0 not in children:
    children.append(os.fork())
if 0 not in children:
    sys.stdout.write("ready\\n"); sys.stdout.flush()
    if not children and os.fork() == 0:
        while os.getppid() != 1: sum(range(10000))
    for line in sys.stdin:
        held += b"x" * (int(line) << 20)
        sys.stdout.write("ready\\n"); sys.stdout.flush()
# The parent's killer ends the others too: only it may read what is written to them all.
signal.pause()
"""


@pytest.fixture
def start() -> Iterator[Any]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(*words: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        one = subprocess.Popen(
            [sys.executable, "-c", BUSY, *words], stdin=pipe, stdout=pipe, start_new_session=True
        )
        started.append(one)
        assert one.stdout is not None
        assert one.stdout.readline() == b"ready\n"
        return one

    yield begin
    for one in started:
        os.killpg(one.pid, signal.SIGKILL)
        one.wait(60)
        for pipe in (one.stdin, one.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def sampler(tmp_path: Path) -> Sampler:
    return Sampler(tmp_path / "usage.json", EVERY_S)


def test_cores_and_memory_of_all_processes_of_an_attempt_are_summed(start, sampler, tmp_path, wait_until):
    process = start()
    held = [Held("1-1", process.pid, ())]

    def worked(by_s: float) -> Any:
        told = sampler.look(held, {}, 0.0)["1-1"]
        return told if told["cpu_s"] >= by_s else None

    first = wait_until(lambda: worked(0.2))
    assert first["max_rss_bytes"] > 96 << 20
    assert "gpu_s" not in first
    assert "cards" not in first
    # The next agent counts on from where this one was.
    sampler = Sampler(tmp_path / "usage.json", EVERY_S)
    assert sampler.look(held, {}, 1.0)["1-1"]["cpu_s"] >= first["cpu_s"]
    assert sampler.look([], {}, 2.0) == {}


def test_memory_that_processes_share_is_counted_once(start, sampler):
    told = sampler.look([Held("1-1", start("children").pid, ())], {}, 0.0)["1-1"]
    assert 96 << 20 < told["max_rss_bytes"] < 2 * (96 << 20)


def test_memory_that_several_processes_take_between_two_looks_is_seen_at_the_next(start, sampler):
    process = start("children")
    held = [Held("1-1", process.pid, ())]
    before = sampler.look(held, {}, 0.0)["1-1"]["max_rss_bytes"]
    process.stdin.write(b"64\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"ready\n"
    assert sampler.look(held, {}, 0.1)["1-1"]["max_rss_bytes"] > before + (48 << 20)


def cards(*readings: CardReading) -> dict[int, CardReading]:
    return {reading.index: reading for reading in readings}


def test_busy_and_idle_cards_are_told_apart_with_two_thresholds(sampler):
    held = [Held("1-1", 0, (0, 1))]
    busy = CardReading(0, 0.5, 4 << 30)
    idle_s: list[float] = []
    told: dict[str, Any] = {}
    for number, share in enumerate((0.0, 0.04, 0.07, 0.10, 0.07)):
        readings = cards(busy, CardReading(1, share, 1 << 30))
        told = sampler.look(held, readings, number * EVERY_S)["1-1"]
        idle_s.append(told["cards"][1]["idle_s"])
    # What lies between the two leaves it as it was: idle for the third look, busy for the fifth.
    assert idle_s == [0.0, 10.0, 20.0, 0.0, 0.0]
    assert told["gpu_seen_s"] == 2 * 4 * EVERY_S
    assert told["gpu_s"] == pytest.approx(10 * (4 * 0.5 + 0.04 + 0.07 + 0.10 + 0.07))
    assert told["max_gpu_bytes"] == 5 << 30
    assert told["cards"][0] == {"index": 0, "share": 0.5, "memory_bytes": 4 << 30, "idle_s": 0.0}


def test_a_card_of_which_nothing_is_known_is_neither_busy_nor_idle(sampler):
    held = [Held("1-1", 0, (0,))]
    sampler.look(held, cards(CardReading(0, 0.0)), 0.0)
    assert sampler.look(held, cards(CardReading(0, 0.0)), 10.0)["1-1"]["cards"][0]["idle_s"] == 10.0
    unknown = sampler.look(held, cards(CardReading(0, None)), 20.0)["1-1"]
    assert (unknown["gpu_seen_s"], "cards" in unknown) == (10.0, False)
    # It starts anew: nobody knows what it did meanwhile.
    assert sampler.look(held, cards(CardReading(0, 0.0)), 30.0)["1-1"]["cards"][0]["idle_s"] == 10.0


def test_a_gap_is_not_counted_as_if_somebody_had_looked(sampler):
    held = [Held("1-1", 0, (0,))]
    sampler.look(held, cards(CardReading(0, 1.0)), 0.0)
    assert sampler.look(held, cards(CardReading(0, 1.0)), 86_400.0)["1-1"]["gpu_seen_s"] == 3 * EVERY_S


def test_of_a_shared_card_each_is_told_what_its_own_processes_use(start, sampler):
    process = start()
    held = [Held("1-1", process.pid, (0,)), Held("1-2", 1 << 22, (0,))]
    using = [ProcessUse(process.pid, 0.6, 3 << 30), ProcessUse(999_999_999, 0.1, 1 << 30)]
    sampler.look(held, cards(CardReading(0, 0.7, 5 << 30, using)), 0.0)
    told = sampler.look(held, cards(CardReading(0, 0.7, 5 << 30, using)), 10.0)
    assert [told[uid]["gpu_s"] for uid in ("1-1", "1-2")] == [6.0, 0.0]
    assert [told[uid]["max_gpu_bytes"] for uid in ("1-1", "1-2")] == [3 << 30, 0]
    # Where the driver does not say whose the work is, nobody is called idle.
    told = sampler.look(held, cards(CardReading(0, 0.7, 5 << 30)), 20.0)
    assert ["cards" in told[uid] for uid in ("1-1", "1-2")] == [False, False]
    # Where nothing runs on it, everybody is.
    told = sampler.look(held, cards(CardReading(0, 0.0, 5 << 30)), 30.0)
    assert [told[uid]["cards"][0]["idle_s"] for uid in ("1-1", "1-2")] == [10.0, 10.0]
