"""How the cluster stood, minute by minute: taken from the board, kept in the store, given back as series.

A sample says what was so at the end of its minute, and counts what happened within it. A minute in which no hub led has
none: its place in a series is empty, and never 0. Surprising rule: counts of the first minute after a start begin with
that start.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence

import msgspec

from dray.core.lifecycle.counts.waits import stale_charges
from dray.core.lifecycle.state.effects import Note
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.errors import EpochLost, InvalidInput, NotReady, Problem, StoreError
from dray.hub.access.caller import Caller
from dray.hub.documents.records import Document, moment
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.engine.turns import Decision
from dray.hub.store.base import Store
from dray.hub.store.writer import StoreWriter
from dray.hub.views.board import STATES, Board
from dray.hub.views.headlines import Idle, find_idle_cards
from dray.hub.views.past.loads import Loads
from dray.hub.views.spans import Span

MINUTE_MS = 60_000
MOST_WAITS = 1_000
MOST_POINTS = 1_500
# A month of minutes.
MOST_SAMPLES = 45_000
MOST_CLASSES = 64
logger = logging.getLogger("dray.hub.views.past.history")


class Sample(msgspec.Struct, array_like=True):
    """One minute. `used`: how busy held cards were, of 1,000, -1 where nobody could look; waits of starts in ms, -1
    where there was none. `ends` that were no success are counted by exit class too.
    """

    here: int = 0
    away: int = 0
    gpus: int = 0
    held: int = 0
    free: int = 0
    idle_waiting: int = 0
    used: int = -1
    cpu: int = 0
    cpu_used: int = 0
    waiting: int = 0
    running: int = 0
    starts: int = 0
    ends: int = 0
    failures: dict[str, int] = {}
    wait_p50_ms: int = -1
    wait_p90_ms: int = -1


# Series by their names: what of a sample, whether it is counted or measured, and by what it is divided.
GAUGES = {
    "workers_here": ("here", 1), "workers_away": ("away", 1), "gpus": ("gpus", 1), "gpus_held": ("held", 1000),
    "gpus_free": ("free", 1), "idle_while_waiting": ("idle_waiting", 1), "used_share": ("used", 1000),
    "cores": ("cpu", 1000), "cores_held": ("cpu_used", 1000), "waiting": ("waiting", 1), "running": ("running", 1),
    "wait_p50_s": ("wait_p50_ms", 1000), "wait_p90_s": ("wait_p90_ms", 1000),
}  # fmt: skip
COUNTS = ("starts", "ends", "failures")
SERIES = (*GAUGES, *COUNTS)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Sample).decode


class History:
    """One hub's samples."""

    def __init__(
        self, engine: Engine, clock: HubClock, store: Store, writer: StoreWriter, board: Board, loads: Loads
    ) -> None:
        self._engine, self._clock, self._store, self._writer, self._board = (
            engine,
            clock,
            store,
            writer,
            board,
        )
        self._loads = loads
        self._starts = self._ends = 0
        self._waits: list[int] = []
        self._failures: Counter[str] = Counter()

    def hear(self, note: Note) -> None:
        """Count what was committed."""
        if note.type == "task_started":
            self._starts += 1
            if len(self._waits) < MOST_WAITS:
                self._waits.append(note.data["waited_ms"])
        elif note.type == "task_ended":
            self._ends += 1
            if note.data.get("state") != "succeeded":
                name = str(note.data.get("exit_class") or note.data.get("state") or "")
                known = name in self._failures or len(self._failures) < MOST_CLASSES
                self._failures[name if known else "other"] += 1

    async def run(self) -> None:
        """Take a sample at once and at the end of every minute, until cancelled."""
        while True:
            try:
                await self.take()
                await self._loads.take()
                await self._engine.change(_charge_waits, 1, "", None, "waits")
            except (NotReady, EpochLost):
                return
            except StoreError:
                logger.exception("a minute of the history could not be kept")
            at_ms = self._clock.read().at_ms
            await asyncio.sleep((MINUTE_MS - at_ms % MINUTE_MS) / 1000)

    async def take(self) -> None:
        """Keep how it stands now."""
        await self._board.refresh()
        idle = await self._engine.ask(find_idle_cards)
        sample = self._make(idle)
        at_ms = self._clock.read().at_ms // MINUTE_MS * MINUTE_MS
        packed = _encode(sample)
        await self._writer.run(lambda store: store.save_sample(at_ms, packed))

    def _make(self, idle: Idle) -> Sample:
        totals, states = self._board.totals, self._board.totals.workers
        here = sum(states[state] for state in STATES[2:])
        waits = sorted(self._waits)
        busy = [(row.used, row.held) for row in self._board.rows.values() if row.used >= 0]
        held = sum(one for _, one in busy)
        sample = Sample(
            here=here,
            away=sum(states.values()) - here,
            gpus=totals.gpus,
            held=totals.held,
            free=idle.cards,
            idle_waiting=idle.cards if idle.waiting and idle.asked else 0,
            used=round(sum(used * one for used, one in busy) / held) if held else -1,
            cpu=totals.cpu,
            cpu_used=totals.cpu_used,
            waiting=idle.waiting,
            running=totals.tasks,
            starts=self._starts,
            ends=self._ends,
            failures=dict(self._failures),
            wait_p50_ms=waits[len(waits) // 2] if waits else -1,
            wait_p90_ms=waits[min(len(waits) - 1, len(waits) * 9 // 10)] if waits else -1,
        )
        self._starts = self._ends = 0
        self._waits.clear()
        self._failures.clear()
        return sample

    async def show(self, caller: Caller, names: Sequence[str], span: Span, step_s: int) -> Document:
        """Series of a while, each value over `step_s` (0: so that there are not too many)."""
        unknown = [name for name in names if name not in SERIES]
        if unknown:
            what = f"{unknown[0][:64]!r} is none: there is {', '.join(SERIES)}"
            raise InvalidInput(f"series: {what}", [Problem("series", what)])
        least = -(-span.length_ms // MOST_POINTS)
        step_ms = max(step_s * 1000, least, MINUTE_MS)
        step_ms = -(-step_ms // MINUTE_MS) * MINUTE_MS

        def work() -> Document:
            rows = self._store.samples(span.since_ms, span.until_ms, MOST_SAMPLES)
            return spell_series(rows, names or SERIES, span, step_ms)

        # Off the loop: there may be a month of minutes.
        return await asyncio.to_thread(work)


def _charge_waits(state: State, clock: Clock) -> Decision:
    """What has been waited for since this was last written down would be lost if the hub were killed."""
    return Decision([*stale_charges(state, clock)])


def read_sample(packed: bytes) -> Sample:
    """A stored minute."""
    return _decode(packed)


def spell_series(
    rows: Sequence[tuple[int, bytes]], names: Sequence[str], span: Span, step_ms: int
) -> Document:
    """Samples as series: the mean of what is measured, the sum of what is counted."""
    first_ms = span.since_ms // step_ms * step_ms
    bins: dict[int, list[Sample]] = {}
    for at_ms, packed in rows:
        bins.setdefault((at_ms - first_ms) // step_ms, []).append(_decode(packed))
    count = -(-(span.until_ms - first_ms) // step_ms)
    classes = Counter[str]()
    for samples in bins.values():
        for sample in samples:
            classes.update(sample.failures)
    return {
        "from": moment(first_ms),
        "to": moment(span.until_ms),
        "step_s": step_ms / 1000,
        "at": [moment(first_ms + place * step_ms) for place in range(count)],
        "series": {name: [_value(name, bins.get(place, ())) for place in range(count)] for name in names},
        "failures": dict(classes.most_common(MOST_CLASSES)),
    }


def _value(name: str, samples: Sequence[Sample]) -> float | None:
    if name == "failures":
        return sum(sum(sample.failures.values()) for sample in samples) if samples else None
    if name in COUNTS:
        return float(sum(getattr(sample, name) for sample in samples)) if samples else None
    field, unit = GAUGES[name]
    known = [value for sample in samples if (value := getattr(sample, field)) >= 0]
    if not known:
        return None
    # Of waits the longest: a mean of quantiles would be none.
    value = max(known) if name.startswith("wait_") else sum(known) / len(known)
    return float(round(value / unit, 4))
