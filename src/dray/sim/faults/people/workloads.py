"""The people with campaigns: they make workloads, switch and change them, hand jobs in under them, and read results.

Only in a share of the worlds, and by a generator of their own: the others stay as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from dray.core.lifecycle.state.workload_events import ARCHIVE, CANCEL, PAUSE, SEAL, START
from dray.core.model.workloads.check import check_terms
from dray.errors import Closed, Conflict, InvalidSpec, NotFound
from dray.sim.faults.nodes.hub import HubNode
from dray.sim.faults.people.results import Reader
from dray.sim.faults.watches.checker import Checker
from dray.sim.faults.world.market import has_providers
from dray.sim.faults.world.pending import Pending
from dray.sim.faults.world.shares import has_workloads
from dray.sim.faults.world.world import World

PATIENCE_MS, TIDY_MS = 3000, 4000
JOINING, CARDS, CALLING = 0.7, 0.4, 0.6
HOUR_S = 3600
REFUSED = (Conflict, InvalidSpec, NotFound)
Ask = Callable[[Pending], None]


class Organisers:
    """Draws the workloads of a world, and what is done to them."""

    def __init__(self, world: World, hub: HubNode, checker: Checker) -> None:
        self._world, self._hub, self._checker = world, hub, checker
        self._rng = random.Random(f"workloads {world.seed}")  # a simulation's chance, no secret
        self.on = has_workloads(world.seed)
        self._terms: dict[str, dict[str, Any]] = {}
        self._dressed: set[str] = set()
        # What they have asked to be closed to more, heard of or not.
        self._closed: set[str] = set()
        self.reader = Reader(world, hub)
        if not self.on:
            return
        rng = self._rng
        for number in range(rng.choice([1, 2, 2, 3])):
            name = f"load-{number}"
            self._terms[name] = self._draw_terms()
            world.at(rng.randint(0, world.size.span_ms // 8), self._make, name)
            self._plan_verbs(name)
            self.reader.follow(name, rng.randint(2000, 15_000))
        world.at(TIDY_MS, self._tidy)

    # --- what they are like -----------------------------------------------------------------------------------------

    def _draw_terms(self) -> dict[str, Any]:
        rng = self._rng
        terms: dict[str, Any] = {"failures": rng.choice([0, 0.2, 0.9])}
        if rng.random() < 0.4:
            terms["width"] = rng.choice([1, 2, 3])
        if rng.random() < 0.5:
            terms["budget"] = self._draw_budget()
        if rng.random() < 0.5:
            terms["distribution"] = self._draw_distribution()
        if rng.random() < 0.3:
            terms["priority"] = rng.choice([-5, 5])
        return terms

    def _draw_budget(self) -> dict[str, Any]:
        rng = self._rng
        budget: dict[str, Any] = {"when_spent": rng.choice(["hold", "hold", "stop", "tell"])}
        if has_providers(self._world.seed) and rng.random() < 0.5:
            return budget | {"money": rng.choice([0.001, 0.01, 0.1])}
        return budget | {"gpu_hours": rng.choice([1, 10, 40, 200]) / HOUR_S}

    def _draw_distribution(self) -> dict[str, Any]:
        rng = self._rng
        drawn: dict[str, Any] = {"mode": rng.choice(["spread", "spread", "pack", "capacity"])}
        if drawn["mode"] != "pack":
            drawn |= {"required": rng.random() < 0.6, "max_skew": rng.choice([1, 1, 2])}
        if has_providers(self._world.seed) and rng.random() < 0.5:
            drawn["by"] = "provider"
        return drawn

    def _plan_verbs(self, name: str) -> None:
        rng, span_ms = self._rng, self._world.size.span_ms
        if rng.random() < 0.85:
            self._world.at(rng.randint(0, span_ms // 4), self._start, name)
        for _ in range(rng.randint(2, 8)):
            what = rng.choices(["pause", "stop", "start", "set", "seal", "cancel"], [4, 3, 6, 4, 0.5, 0.4])[0]
            self._world.at(rng.randint(1000, span_ms), self._do, name, what)

    def dress(self, key: str, spec: dict[str, Any], share: float = JOINING) -> None:
        """Put a job into a workload before it is handed in for the first time, if there is one to put it into."""
        if not self.on or key in self._dressed:
            return
        self._dressed.add(key)
        rng = self._rng
        known = [name for name in self._checker.account.workloads if name not in self._closed]
        if not known or rng.random() > share:
            return
        spec["workload"] = rng.choice(known)
        if "node_count" not in spec and "gpu_count" not in spec and rng.random() < CARDS:
            # A world may have no such cards: then it ends as unschedulable.
            spec["gpu_count"] = 1
            spec.setdefault("scheduling_timeout_s", 400)

    def excused(self, spec: dict[str, Any], name: str, fault: BaseException | None) -> bool:
        """Whether a submit was refused because the workload that it named takes no more, or is gone with the past of a
        restored hub; it is handed in without it from here on.
        """
        gone = isinstance(fault, InvalidSpec) and name not in self._checker.account.workloads
        closed = isinstance(fault, Closed) and name in self._closed
        if name and (gone or closed):
            self._world.counts["workload takes no more"] += 1
            spec.pop("workload", None)
            return True
        return False

    # --- what they do -----------------------------------------------------------------------------------------------

    def _make(self, name: str) -> None:
        """Make it; asked again until it is answered."""
        if name in self._checker.account.workloads:
            return

        def heard(got: Any, fault: BaseException | None) -> None:
            if isinstance(fault, Conflict):
                # It was changed before anybody heard that it is there.
                fault = None
            if fault is not None:
                self._world.fail(f"workload {name} was refused: {fault!r}")
            self._checker.account.workloads[name] = None

        if self._hub.up:
            self._world.counts["workload made"] += 1
            self._hub.now.make_workload(name, check_terms(self._terms[name]), Pending(heard))
        self._world.at(PATIENCE_MS, self._make, name)

    def _start(self, name: str) -> None:
        """Switch it on; asked again while it is not there."""
        if name not in self._checker.account.workloads:
            self._world.at(PATIENCE_MS, self._start, name)
        else:
            self._do(name, "start")

    def _do(self, name: str, what: str) -> None:
        if not self._hub.up or not self._world.faulty:
            return
        if what == "set":
            self._set(name, self._draw_change())
        else:
            verb = {"pause": PAUSE, "stop": PAUSE, "start": START, "seal": SEAL, "cancel": CANCEL}[what]
            self._switch(name, verb, what == "stop")

    def _draw_change(self) -> dict[str, Any]:
        rng = self._rng
        return rng.choice(
            [
                {"width": rng.choice([0, 1, 2, 4])},
                {"budget": self._draw_budget()},
                {"budget": None},
                {"distribution": self._draw_distribution()},
                {"failures": rng.choice([0, 0.5])},
            ]
        )

    def _switch(self, name: str, verb: str, stop: bool = False) -> None:
        if verb in (SEAL, CANCEL):
            self._closed.add(name)
        self._ask(
            f"workload: {verb}{' and stop' if stop else ''}",
            lambda done: self._hub.now.switch_workload(name, verb, stop, done),
        )

    def _set(self, name: str, changes: dict[str, Any]) -> None:
        self._ask("workload: set", lambda done: self._hub.now.set_workload(name, changes, done))

    def _ask(self, what: str, ask: Ask) -> None:
        """Ask once; a refusal is an answer too."""

        def heard(got: Any, fault: BaseException | None) -> None:
            if isinstance(fault, REFUSED):
                self._world.counts[f"{what} refused"] += 1
            elif fault is not None:
                self._world.fail(f"{what} was answered with {fault!r}")

        self._world.counts[what] += 1
        ask(Pending(heard))

    # --- the end ----------------------------------------------------------------------------------------------------

    def _tidy(self) -> None:
        """Once the faults have stopped whatever holds work back goes, and when all is handed in they are closed."""
        if not self._world.faulty and self._hub.up:
            for name, tally in list(self._hub.state.workloads.items()):
                record = tally.record
                if record.state.ended:
                    if not record.is_archived and name.endswith("1"):
                        self._switch(name, ARCHIVE)
                    continue
                if record.is_off:
                    self._switch(name, START)
                if record.terms.bounds_starts:
                    self._set(name, {"budget": None, "distribution": None, "width": 0})
                if not record.is_sealed and all(
                    job.state.final for job in self._hub.state.jobs.values() if job.workload == name
                ):
                    self._switch(name, SEAL)
        self._world.at(TIDY_MS, self._tidy)

    @property
    def unsettled(self) -> bool:
        """Whether a workload has yet to end, or its results to be read."""
        tallies = self._hub.state.workloads.values()
        return self.on and (
            any(not tally.record.state.ended for tally in tallies) or not self.reader.has_all()
        )

    def rewind(self) -> None:
        """The hub was restored from a backup: what was made since is made again."""
        self.reader.rewind()
        for name in self._terms:
            if name not in self._checker.account.workloads:
                self._world.at(1000, self._make, name)
                self._world.at(1500, self._start, name)
