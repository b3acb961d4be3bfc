"""Looks every few seconds at what attempts use, and sums it up for each: the heartbeats and its result tell the hub.

The sums lie in a file beside the agent's journal, so that the next agent counts on. What nobody measured is never
counted as idle. Surprising rule: a card counts as idle once it is busy for less than `IDLE_BELOW` of the time, and as
busy again only above `BUSY_FROM`: what lies between leaves it as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dray.agent.decide.machine import Machine
from dray.agent.tasks.aside import do_aside
from dray.agent.usage.cards import CardWatch
from dray.agent.usage.nvml import CardReading
from dray.agent.usage.processes import ProcessUse, find_owners, measure_shared, read_table

IDLE_BELOW, BUSY_FROM = 0.05, 0.10
# A gap between two looks counts as so many rounds at most: nobody knows what went on meanwhile.
MOST_ROUNDS = 3
# Reading how pages are shared takes the kernel long where a process is large: it is done again once the plain sum has
# grown by so much (a job that fills its memory is read some 200 times in all), else after so long.
SHARED_GROWTH, SHARED_EVERY_S = 1.05, 60.0
MOST_CARDS = 64


class Held(NamedTuple):
    """One attempt that runs: its first process and its cards."""

    uid: str
    pid: int
    devices: tuple[int, ...]


class Sum(msgspec.Struct, omit_defaults=True):
    """What one attempt has used up to the last look at it, `at` on the clock that starts with the machine.

    `cpu_mark`: what its processes showed then. `shared_at`, `shared_mark`: when it was last read how they share pages,
    and the plain sum then. `idle`: by card, for how long it has been idle.
    """

    at: float
    cpu_s: float = 0
    cpu_mark: float = 0
    max_rss_bytes: int = 0
    shared_at: float = 0
    shared_mark: int = 0
    gpu_s: float = 0
    gpu_seen_s: float = 0
    max_gpu_bytes: int = 0
    idle: dict[int, float] = {}


class Sampler:
    """The sums of one agent."""

    def __init__(self, file: Path, every_s: float) -> None:
        self._file, self._every_s = file, every_s
        self._sums: dict[str, Sum] = {}
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            self._sums = msgspec.json.decode(file.read_bytes(), type=dict[str, Sum])

    def look(
        self, held: Sequence[Held], cards: dict[int, CardReading], now: float
    ) -> dict[str, dict[str, Any]]:
        """Look at the process table, add it and the cards to the sums, and give each attempt's as messages tell it."""
        owned = find_owners(read_table(), {one.pid: one.uid for one in held})
        holders = Counter(index for one in held for index in one.devices)
        self._sums = {one.uid: self._sums.get(one.uid) or Sum(now) for one in held}
        told = {}
        for one in held:
            total, processes = self._sums[one.uid], owned.get(one.uid, [])
            span_s = min(max(0.0, now - total.at), MOST_ROUNDS * self._every_s)
            total.at = now
            _add_processes(total, processes, now)
            shown = _add_cards(total, one, processes, cards, holders, span_s)
            told[one.uid] = _tell(total, shown)
        self._keep()
        return told

    def _keep(self) -> None:
        """A disk that takes nothing costs no more than the sums of an agent that is killed."""
        fresh = self._file.with_suffix(".new")
        with contextlib.suppress(OSError):
            fresh.write_bytes(msgspec.json.encode(self._sums))
            os.replace(fresh, self._file)


def _add_processes(total: Sum, processes: Sequence[ProcessUse], now: float) -> None:
    cpu_s = sum(process.cpu_s for process in processes)
    # What has left the tree took its seconds with it: only what is added counts.
    total.cpu_s += max(0.0, cpu_s - total.cpu_mark)
    total.cpu_mark = cpu_s
    rss_bytes = sum(process.rss_bytes for process in processes)
    if rss_bytes <= total.max_rss_bytes:
        return
    if len(processes) > 1:
        grown = rss_bytes >= total.shared_mark * SHARED_GROWTH
        if not grown and now - total.shared_at < SHARED_EVERY_S:
            return
        total.shared_at, total.shared_mark = now, max(total.shared_mark, rss_bytes)
        rss_bytes = measure_shared(processes)
    total.max_rss_bytes = max(total.max_rss_bytes, rss_bytes)


def _add_cards(
    total: Sum,
    one: Held,
    processes: Sequence[ProcessUse],
    cards: dict[int, CardReading],
    holders: Counter[int],
    span_s: float,
) -> list[dict[str, Any]]:
    pids = {process.pid for process in processes}
    idle, shown = {}, []
    memory_bytes = 0
    for index in one.devices[:MOST_CARDS]:
        card = cards.get(index)
        share = None if card is None else find_share(card, pids, alone=holders[index] == 1)
        if card is None or share is None:
            continue
        before = total.idle.get(index, 0.0)
        idles = share < (BUSY_FROM if before else IDLE_BELOW)
        idle[index] = before + span_s if idles else 0.0
        total.gpu_s += share * span_s
        total.gpu_seen_s += span_s
        used_bytes = find_memory(card, pids, alone=holders[index] == 1)
        memory_bytes += used_bytes
        shown.append(
            {
                "index": index,
                "share": round(share, 3),
                "memory_bytes": used_bytes,
                "idle_s": round(idle[index], 1),
            }
        )
    total.idle, total.max_gpu_bytes = idle, max(total.max_gpu_bytes, memory_bytes)
    return shown


def find_share(card: CardReading, pids: set[int], alone: bool) -> float | None:
    """How busy an attempt keeps a card; None where the driver does not tell. A shared one is asked by process."""
    if alone or not card.share:
        return card.share
    told = [process.share for process in card.processes or () if process.share is not None]
    if not told:
        return None
    own = (process.share or 0.0 for process in card.processes or () if process.pid in pids)
    return min(1.0, sum(own))


def find_memory(card: CardReading, pids: set[int], alone: bool) -> int:
    """What an attempt has of a card's memory: that of its processes, else all that is used where it has it alone."""
    own = [process.memory_bytes or 0 for process in card.processes or () if process.pid in pids]
    if own or not alone:
        return sum(own)
    return card.memory_bytes or 0


def _tell(total: Sum, cards: list[dict[str, Any]]) -> dict[str, Any]:
    told: dict[str, Any] = {"cpu_s": round(total.cpu_s, 3), "max_rss_bytes": total.max_rss_bytes}
    if total.gpu_seen_s:
        told |= {"gpu_s": round(total.gpu_s, 3), "gpu_seen_s": round(total.gpu_seen_s, 3)}
        told["max_gpu_bytes"] = total.max_gpu_bytes
    return told | ({"cards": cards} if cards else {})


def find_held(machine: Machine) -> list[Held]:
    """The attempts that run here, lanes with a runner among them."""
    held = [
        Held(attempt.uid, attempt.pid, attempt.devices)
        for attempt in machine.running.values()
        if attempt.phase == "running" and attempt.pid
    ]
    runners = machine.calls.pool.records
    for lane in machine.calls.lanes.values():
        runner = runners.get(lane.runner)
        if runner is not None and runner.pid:
            held.append(Held(lane.uid, runner.pid, lane.devices))
    return held


async def keep_sampling(machine: Machine, home: Path, every_s: float, watch: CardWatch, real: bool) -> None:
    """Look every few seconds, until cancelled. Cards that are made up (not `real`) are never looked at.

    Cards are watched from the first, since one that is broken fails each task long before the next look.
    """
    sampler = Sampler(home / "usage.json", every_s)
    watching = None
    try:
        while True:
            if watching is None and real and machine.capability.gpu_backend == "nvidia":
                watching = asyncio.create_task(watch.run())
            await asyncio.sleep(every_s)
            held = find_held(machine)
            if not held:
                machine.uses = {}
                continue
            machine.uses = await do_aside(sampler.look, held, watch.latest(), time.monotonic())
    finally:
        if watching is not None:
            watching.cancel()
