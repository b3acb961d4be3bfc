"""The solver of batches as its hub has it: asked when the core wants a batch placed, answered by hints, or not at all.

Whatever goes wrong costs nothing but the hints: a batch that is over is placed one by one. A solver that is missing is
not asked; one that fails or is late rests for a while, longer each time. Nothing waits for it but its own answer.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections import Counter
from collections.abc import Callable

import msgspec

from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.pass_events import HintsGiven, SolverTold
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.policy import MIN_COST
from dray.core.scheduling.choosing.automatic import placement_of
from dray.core.scheduling.passes.batches import MOST
from dray.core.scheduling.passes.snapshot import pack_scene
from dray.hub.aside.process import TROUBLES, SideProcess
from dray.hub.aside.solver_answers import Solved
from dray.hub.documents.records import Document
from dray.hub.documents.why_and_plan import check_placement
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.engine.turns import Decision

OUTCOMES = ("used", "late", "failed")
# After that it is taken for stuck, and killed.
PATIENCE_S = 3.0
START_S = 30.0
LEAST_REST_S, MOST_REST_S = 1.0, 300.0
MISSING = "ortools is not installed where the hub runs: pip install 'dray[optimize]'"
logger = logging.getLogger("dray.hub.aside.solver")
_decode = msgspec.msgpack.Decoder(Solved).decode


class Solver:
    """One hub's solver. `count` hears what became of each question."""

    def __init__(self, engine: Engine, clock: HubClock, count: Callable[[str], None]) -> None:
        self._engine, self._count = engine, count
        self._side = SideProcess(engine, clock, nicer=1)
        self._wanted = 0
        self._bell = asyncio.Event()
        self._warm = False
        self._rest_s = 0.0
        self.outcomes: Counter[str] = Counter()
        self.trouble = "" if importlib.util.find_spec("ortools") else MISSING

    def want(self, number: int) -> None:
        """A batch is to be placed; one that nobody has come to yet is over."""
        self._wanted = number
        self._bell.set()

    async def run(self) -> None:
        """Answer until cancelled."""
        if self.trouble:
            return
        self._tell(ready=True)
        try:
            while True:
                await self._bell.wait()
                self._bell.clear()
                if not await self._answer(self._wanted):
                    await self._rest()
        finally:
            self._side.stop()

    async def _answer(self, number: int) -> bool:
        """Ask the process about one batch, and hand its hints to the core."""
        try:
            async with asyncio.timeout(PATIENCE_S if self._warm else START_S):
                _, packed = await self._side.ask(
                    "min_cost", lambda state, clock: pack_scene(state, clock, MOST, learned=True)
                )
            hints = _decode(packed).hints
        except (*TROUBLES, msgspec.DecodeError) as error:
            self._warm = False
            self.trouble = f"{type(error).__name__}: {error}".removeprefix("WorkFailed: ")
            logger.warning("a batch was not solved, its tasks are placed one by one: %s", self.trouble)
            self._note("failed")
            return False
        # The first answer comes from a process that had to load its solver.
        first, self._warm = not self._warm, True

        def hint(state: State, clock: Clock) -> Decision:
            in_time = _is_open(state, number)
            return Decision((HintsGiven(number, hints),), lambda after: in_time)

        in_time = await self._engine.change(hint)
        self._note("used" if in_time else "late")
        if in_time or first:
            self._rest_s, self.trouble = 0.0, ""
            return True
        self.trouble = "its answers come too late"
        return False

    async def _rest(self) -> None:
        """Leave it alone for a while; batches are placed one by one meanwhile."""
        self._rest_s = min(MOST_REST_S, max(LEAST_REST_S, 2 * self._rest_s))
        self._tell(ready=False)
        await asyncio.sleep(self._rest_s)
        self._bell.clear()
        self._tell(ready=True)

    def _tell(self, *, ready: bool) -> None:
        self._engine.post(lambda state, clock: Decision((SolverTold(ready),)))

    def _note(self, outcome: str) -> None:
        self.outcomes[outcome] += 1
        self._count(outcome)

    def check(self, state: State) -> Document:
        """For the doctor: by which strategy tasks are placed, and how the solver does where one is needed."""
        check = check_placement(state)
        if placement_of(state).strategy != MIN_COST:
            return check
        asked = ", ".join(f"{self.outcomes[name]} {name}" for name in OUTCOMES)
        trouble = f"; large batches are placed one by one: {self.trouble}" if self.trouble else ""
        return {**check, "ok": not self.trouble, "detail": f"{check['detail']}; answers: {asked}{trouble}"}


def _is_open(state: State, number: int) -> bool:
    return state.batch is not None and state.batch.number == number and bool(state.batch.shapes)
