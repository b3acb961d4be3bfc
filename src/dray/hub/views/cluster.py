"""The cluster as columns: what a picture of ten thousand workers is made of, in one answer of bounded size.

Columns and not documents: a worker is a number in each. What repeats (kinds, states, users, queues) is told once and
named by its place. What may have changed meanwhile is told by `views.live`, by the `id` of this answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from dray.core.lifecycle.state.state import State
from dray.hub.access.caller import Caller
from dray.hub.answers.slices import work_off
from dray.hub.documents.records import Document
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.views.board import SLICE_S, STATES, Board, Row, Totals
from dray.hub.views.headlines import find_idle_cards, say_cluster
from dray.hub.views.sight import Sight, sight_of

STEP_ROWS = 256
NAMES = (
    "id",
    "kind",
    "state",
    "gpus",
    "held",
    "cpu",
    "cpu_used",
    "tasks",
    "free_s",
    "used",
    "idle",
    "user",
    "queue",
)


class Words:
    """Texts by their place in a list, each told once."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        return self._places.setdefault(text, len(self._places))

    def list(self) -> list[str]:
        return list(self._places)


class ClusterView:
    """One hub's columns."""

    def __init__(self, engine: Engine, clock: HubClock, board: Board) -> None:
        self._engine, self._clock, self._board = engine, clock, board

    async def show(self, caller: Caller, group: str = "") -> Document:
        """All workers. `group`: the label by which they are grouped too."""
        await self._board.refresh()
        return await work_off(self._engine, lambda state: self._steps(state, caller, group), SLICE_S)

    def _steps(self, state: State, caller: Caller, group: str) -> Iterator[Document]:
        sight, now_ms = sight_of(state, caller), self._clock.read().now_ms
        rows = sorted(self._board.rows.values())
        # A slice ends where the cells of so many rows are spelled.
        columns: dict[str, list[Any]] = {name: [] for name in NAMES}
        words = {name: Words() for name in ("kind", "user", "queue", "group")}
        answer: Document = {}
        for first in range(0, len(rows), STEP_ROWS):
            yield answer
            some = rows[first : first + STEP_ROWS]
            for name, spell in _CELLS.items():
                columns[name] += map(spell, some)
            columns["free_s"] += [_span(row.free_ms, now_ms) for row in some]
            columns["kind"] += [words["kind"].place(row.kind) for row in some]
            columns["user"] += [words["user"].place(sight.name(row.user)) for row in some]
            columns["queue"] += [words["queue"].place(row.queue) for row in some]
            if group:
                found = (state.workers.get(row.id) for row in some)
                labels = (worker.all_labels.get(group, "") if worker is not None else "" for worker in found)
                columns.setdefault("group", []).extend(map(words["group"].place, labels))
        yield {
            "id": f"{self._engine.seq}.{state.counters.epoch}",
            **head(state, self._board),
            "states": list(STATES),
            "kinds": words["kind"].list(),
            "users": words["user"].list(),
            "queues": words["queue"].list(),
            "groups": words["group"].list(),
            "columns": columns,
        }


def head(state: State, board: Board) -> Document:
    """What the page of the cluster says above the fold."""
    totals, idle = totals_of(board.totals), find_idle_cards(state)
    return {
        "headline": say_cluster(board.totals.workers, totals, idle),
        "workers": dict(board.totals.workers),
        "totals": totals
        | {"waiting": idle.waiting, "free_gpus": idle.cards, "asked_gpus": idle.asked, "pieces": idle.pieces},
    }


def totals_of(totals: Totals) -> dict[str, int]:
    """Sums over those that are here."""
    names = ("gpus", "held", "cpu", "cpu_used", "tasks", "idle")
    return {name: getattr(totals, name) for name in names}


def spell_row(row: Row, sight: Sight, now_ms: int) -> list[Any]:
    """One row, in the order of `NAMES`, with its words."""
    return [
        row.id, row.kind, row.state, row.gpus, row.held, row.cpu, row.cpu_used, row.tasks,
        _span(row.free_ms, now_ms), row.used, row.idle, sight.name(row.user), row.queue,
    ]  # fmt: skip


def _span(free_ms: int, now_ms: int) -> int:
    return max(0, (free_ms - now_ms) // 1000) if free_ms > 0 else free_ms


_CELLS: dict[str, Callable[[Row], Any]] = {
    name: attrgetter(name)
    for name in ("id", "state", "gpus", "held", "cpu", "cpu_used", "tasks", "used", "idle")
}
