"""What was asked for, held and used, in hours of cards and cores; and which cards are held and idle now. Pure.

GPU-hours used are those that somebody measured, and stand beside how many were: where nobody could look at a card its
use is unknown, and never 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from dray.core.lifecycle.providers.prices import spell_money
from dray.core.lifecycle.state.state import State
from dray.core.model.ids import attempt_number
from dray.core.model.records.worker import Use
from dray.core.model.specs.resources import WHOLE
from dray.hub.documents.records import Document, moment
from dray.hub.store.base import UseQuery, UseRow

HOUR_MS, HOUR_S = 3_600_000, 3600
# A worker that has said nothing for so long says nothing of now either.
FRESH_MS = 60_000
_AMOUNT = re.compile(r"(?:^| )(gpus|gpu_milli|cpu_milli)=(\d+)(?= |$)")


class Amounts(NamedTuple):
    """What one attempt of a shape holds, in cards and cores."""

    gpus: float
    cores: float


@lru_cache(maxsize=4096)
def read_shape(shape: str) -> Amounts:
    """Read what a shape's name says of cards and cores."""
    told = {name: int(value) for name, value in _AMOUNT.findall(shape)}
    cards = told.get("gpus", 0) * told.get("gpu_milli", WHOLE) / WHOLE
    return Amounts(cards, told.get("cpu_milli", 0) / 1000)


class _Sum:
    def __init__(self) -> None:
        self.attempts = 0
        self.money = 0.0
        self.gpus, self.cores = [0.0] * 4, [0.0] * 3

    def add(self, row: UseRow, uses: Mapping[int, Use]) -> None:
        held = read_shape(row.shape)
        use = uses.get(row.number)
        used = (row.cpu_s, row.gpu_s, row.gpu_seen_s)
        if use is not None:
            used = (use.cpu_s * row.part, use.gpu_s * row.part, use.gpu_seen_s * row.part)
        spans = (row.asked_ms / HOUR_MS, row.held_ms / HOUR_MS)
        cards = (*(held.gpus * span for span in spans), used[2] / HOUR_S, used[1] / HOUR_S)
        cores = (*(held.cores * span for span in spans), used[0] / HOUR_S)
        self.attempts += row.attempts
        self.money += row.money
        self.gpus = [mine + more for mine, more in zip(self.gpus, cards, strict=True)]
        self.cores = [mine + more for mine, more in zip(self.cores, cores, strict=True)]

    def document(self) -> Document:
        asked, held, seen, used = (round(hours, 4) for hours in self.gpus)
        known = self.gpus[2] > 0 or not self.gpus[1]
        gpus = {"asked": asked, "held": held, "measured": seen, "used": used if known else None}
        cores = dict(zip(("asked", "held", "used"), (round(hours, 4) for hours in self.cores), strict=True))
        document = {"attempts": self.attempts, "gpu_hours": gpus, "core_hours": cores}
        return document | {"money": spell_money(self.money)}


def usage_document(asked: UseQuery, rows: Iterable[UseRow], uses: Mapping[str, Use], limit: int) -> Document:
    """The answer: one entry each, those that held most cards first, and all of them together."""
    by_number = {attempt_number(uid): use for uid, use in uses.items()}
    sums: dict[str, _Sum] = {}
    total = _Sum()
    for row in rows:
        sums.setdefault(row.key, _Sum()).add(row, by_number)
        total.add(row, by_number)
    ranked = sorted(sums.items(), key=lambda item: (-item[1].gpus[1], -item[1].cores[1], item[0]))
    return {
        "by": asked.by,
        "window_s": (asked.until_ms - asked.since_ms) / 1000,
        "usage": [{"name": name, **one.document()} for name, one in ranked[:limit]],
        "left_out": max(0, len(ranked) - limit),
        "total": total.document(),
    }


def find_idle(uses: Mapping[str, Use], at_ms: int) -> list[tuple[float, str, int]]:
    """The cards that their worker has just seen idle: for how long, whose attempt, which; longest first."""
    found = [
        (card.idle_s, uid, card.card)
        for uid, use in uses.items()
        if at_ms - use.at_ms <= FRESH_MS
        for card in use.cards
        if card.idle_s > 0
    ]
    return sorted(found, reverse=True)


def idle_document(state: State, idle_s: float, uid: str, card: int) -> Document | None:
    """One idle card, with who holds it; None where it no longer does."""
    attempt, use = state.attempts.get(uid), state.uses.get(uid)
    if attempt is None or use is None:
        return None
    job, worker = state.jobs[attempt.job_id], state.workers.get(attempt.worker)
    seen: dict[int, Any] = {one.card: one for one in use.cards}
    return {
        "worker": attempt.worker,
        "gpu": card,
        "gpu_type": worker.capability.gpu_type if worker is not None else "",
        "idle_s": idle_s,
        "since": moment(use.at_ms - round(idle_s * 1000)),
        "memory_bytes": seen[card].memory_bytes if card in seen else 0,
        "user": job.user,
        "job_id": job.id,
        "task_id": state.spell(attempt),
        "name": job.name,
        "queue": job.queue,
    }
