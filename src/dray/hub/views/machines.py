"""Workers by the page: filtered, sorted, counted; and one worker with who holds which of its cards.

A cursor names where its page ended, by the key of its order, and which question it belongs to: with another filter or
another order it is refused, for a page that goes on in the middle of another list would look whole.
"""

from __future__ import annotations

import base64
import binascii
import heapq
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from dray.core.lifecycle.state.state import NEVER, State
from dray.core.model.records.worker import Worker
from dray.core.scheduling.claims.reservations import end_ms
from dray.errors import InvalidInput, NotFound, Problem
from dray.hub.access.caller import Caller
from dray.hub.answers.slices import portions, work_off
from dray.hub.documents.records import Document, moment, worker_document, worker_tasks
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.views.board import SLICE_S, STATES, Board, Row
from dray.hub.views.sight import Sight, sight_of

SORTS = ("name", "state", "kind", "gpus", "held", "tasks", "free", "used", "idle", "cpu")
STEP_ROWS = 512
PORTION = 16
_FIELDS = {"name": "id", "free": "free_ms"}


class ListWorkers(NamedTuple):
    """Which workers are wanted; empty fields do not filter, no `limit` means all. A sort with `-` is the other way
    round; `all`: also those that have been away for a day.
    """

    backend: str = ""
    all: bool = False
    limit: int | None = None
    cursor: str = ""
    states: tuple[str, ...] = ()
    kind: str = ""
    labels: frozenset[tuple[str, str]] = frozenset()
    q: str = ""
    sort: str = "name"

    @property
    def digest(self) -> int:
        """What a cursor remembers of the question."""
        return zlib.crc32(
            repr((*self._replace(limit=None, cursor="", labels=frozenset()), sorted(self.labels))).encode()
        )


class _Key(NamedTuple):
    value: Any
    id: str


class MachinesView:
    """One hub's workers."""

    def __init__(self, engine: Engine, clock: HubClock, board: Board, stale_ms: int) -> None:
        self._engine, self._clock, self._board, self._stale_ms = engine, clock, board, stale_ms

    async def page(self, caller: Caller, ask: ListWorkers) -> Document:
        after = _read_cursor(ask)
        await self._board.refresh()
        found, matched, stale = await work_off(
            self._engine, lambda state: self._choose(state, ask, after), SLICE_S
        )
        more = ask.limit is not None and len(found) > ask.limit
        keys = found[: ask.limit] if more else found

        def look(state: State, some: Sequence[_Key]) -> list[Document]:
            return [worker_document(state, key.id) for key in some if key.id in state.workers]

        shown: list[Document] = []
        async for documents in portions(self._engine, keys, look, PORTION):
            shown += documents
        return {
            "workers": shown,
            "stale": stale,
            "matched": matched,
            "next_cursor": _write_cursor(ask, keys[-1]) if more else None,
        }

    def _choose(
        self, state: State, ask: ListWorkers, after: _Key | None
    ) -> Iterator[tuple[list[_Key], int, int]]:
        """The first that match after the cursor, one more than asked for; how many match, how many are stale."""
        best: list[_Key] = []
        matched = stale = 0
        down = ask.sort.startswith("-")
        choose = heapq.nlargest if down else heapq.nsmallest
        most = ask.limit + 1 if ask.limit is not None else len(self._board.rows)
        sort = ask.sort.lstrip("-")
        field, at_ms = _FIELDS.get(sort, sort), self._clock.read().at_ms
        rows = list(self._board.rows.values())
        for first in range(0, len(rows), STEP_ROWS):
            yield best, matched, stale
            some: list[_Key] = []
            for row in rows[first : first + STEP_ROWS]:
                worker = state.workers.get(row.id)
                if worker is None or not _matches(ask, row, worker):
                    continue
                if not ask.all and worker.is_stale(at_ms, self._stale_ms):
                    stale += 1
                    continue
                matched += 1
                key = _Key(getattr(row, field), row.id)
                if after is None or (key < after if down else key > after):
                    some.append(key)
            best = choose(most, best + some) if some else best
        yield best, matched, stale

    async def show(self, caller: Caller, worker_id: str) -> Document:
        """One worker with what runs there, and each of its cards with its holders."""

        def look(state: State) -> Document:
            if worker_id not in state.workers:
                raise NotFound(f"there is no worker {worker_id!r}: see `dray worker ls`")
            jobs = [line for line in worker_tasks(state, worker_id) if caller.sees(line["user"])]
            cards = _cards(state, worker_id, sight_of(state, caller), self._clock)
            return worker_document(state, worker_id) | {"jobs": jobs, "cards": cards}

        return await self._engine.ask(look)


def _matches(ask: ListWorkers, row: Row, worker: Worker) -> bool:
    if ask.backend and ask.backend != (worker.capability.gpu_backend or "cpu"):
        return False
    if ask.states and STATES[row.state] not in ask.states:
        return False
    if ask.kind and ask.kind not in (row.kind, worker.capability.gpu_type or "cpu"):
        return False
    if ask.q and ask.q not in row.id and ask.q not in worker.capability.hostname:
        return False
    return not ask.labels or ask.labels <= worker.all_labels.items()


def _cards(state: State, worker_id: str, sight: Sight, clock: HubClock) -> list[Document]:
    now = clock.read()
    row = state.columns.row_of[worker_id]
    holders: dict[int, list[Document]] = {}
    for uid in state.held.get(worker_id, ()):
        attempt = state.attempts[uid]
        job, ends_ms = state.jobs[attempt.job_id], end_ms(state, attempt)
        own, use = sight.sees(job.user), state.uses.get(uid)
        seen = {card.card: card for card in use.cards} if use is not None else {}
        for card in attempt.devices:
            measured = seen.get(card)
            holders.setdefault(card, []).append(
                {
                    "user": sight.name(job.user),
                    "task_id": state.spell(attempt) if own else "",
                    "job_name": job.name if own else "",
                    "queue": job.queue,
                    "held_milli": state.ask(attempt).gpu_milli,
                    "since": moment(attempt.started_at_ms or attempt.assigned_at_ms),
                    "until": moment(now.at_ms + ends_ms - now.now_ms) if ends_ms < NEVER else None,
                    "used": round(measured.share, 4) if measured is not None else None,
                    "memory_bytes": measured.memory_bytes if measured is not None else None,
                    "idle_s": measured.idle_s if measured is not None else None,
                }
            )
    return [
        {
            "index": card.index,
            "model": card.model,
            "vram_bytes": card.vram_bytes,
            "healthy": card.healthy,
            "held_milli": state.columns.card_used[row].get(card.index, 0),
            "holders": holders.get(card.index, []),
        }
        for card in state.columns.cards[row]
    ]


def _write_cursor(ask: ListWorkers, key: _Key) -> str:
    packed = msgspec.json.encode([ask.digest, key.value, key.id])
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def _read_cursor(ask: ListWorkers) -> _Key | None:
    if not ask.cursor:
        return None
    try:
        padded = ask.cursor + "=" * (-len(ask.cursor) % 4)
        digest, value, worker_id = msgspec.json.decode(
            base64.b64decode(padded, altchars=b"-_", validate=True), type=tuple[int, int | str, str]
        )
    except (ValueError, binascii.Error, msgspec.DecodeError):
        digest, value, worker_id = -1, "", ""
    kind = str if ask.sort.lstrip("-") in ("name", "kind") else int
    if digest != ask.digest or not isinstance(value, kind):
        what = "is not of this list: a cursor goes with the filters and the order that gave it"
        raise InvalidInput(f"cursor {what}", [Problem("cursor", what)])
    return _Key(value, worker_id)
