"""Strategies compared on what waits now, when somebody asks: one question at a time, in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import msgspec

from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.scheduling.passes.snapshot import pack_scene
from dray.errors import NotReady
from dray.hub.aside.comparing import Compared
from dray.hub.aside.process import TROUBLES, SideProcess
from dray.hub.documents.records import Document, moment
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine

MOST_TASKS = 1_000
PATIENCE_S = 60.0
_decode = msgspec.msgpack.Decoder(Compared).decode


class Comparison:
    """One hub's comparisons."""

    def __init__(self, engine: Engine, clock: HubClock) -> None:
        self._clock, self._side = clock, SideProcess(engine, clock)

    async def show(self, strategies: Sequence[str]) -> Document:
        """Where the first tasks in line would go by each strategy, and what that comes to. Nothing is placed."""

        def pack(state: State, clock: Clock) -> Iterator[bytes]:
            yield ",".join(strategies).encode()
            yield from pack_scene(state, clock, MOST_TASKS, learned=True)

        try:
            async with asyncio.timeout(PATIENCE_S):
                _, packed = await self._side.ask("compare", pack)
        except TROUBLES as error:
            raise NotReady(
                f"strategies could not be compared ({type(error).__name__} {error}): try again"
            ) from error
        finally:
            # Seldom asked for: it would hold its libraries for nothing.
            self._side.stop()
        found = _decode(packed)
        return {
            "at": moment(self._clock.read().at_ms),
            "tasks": found.tasks,
            "outcomes": [
                {
                    "strategy": one.strategy,
                    "placed": one.placed,
                    "cost": round(one.cost, 3),
                    "workers": one.workers,
                    "seconds": round(one.seconds, 4),
                    "trouble": one.trouble,
                }
                for one in found.outcomes
            ],
        }
