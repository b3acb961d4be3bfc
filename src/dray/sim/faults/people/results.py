"""Who reads the results of workloads, by the product's own reports: each is told once, and none is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.errors import NotFound
from dray.hub.access.caller import Caller
from dray.hub.documents.public_feed import Feed
from dray.hub.rows import RowKey
from dray.hub.workloads.reports import WorkloadReports
from dray.sim.faults.gateways.loop import ProcessLoop
from dray.sim.faults.nodes.hub import HubNode
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.world.world import World

WHO = Caller("sim", "sim", ("admin",))
FEW = 3


class Desk:
    """What the reports ask of an engine and of the documents of a hub."""

    def __init__(self, life: HubLife) -> None:
        self._life, self.documents = life, self

    async def ask(self, look: Callable[[State], Any]) -> Any:
        """As of the last commit."""
        return look(self._life.state)

    async def read(self, look: Callable[[State], Any], *wanted: RowKey) -> Any:
        """The same, with rows."""
        self._life.rows.read(self._life.rows.missing(wanted))
        return look(self._life.state)

    def find(self, job_id: str) -> Job | None:
        """A job, wherever it is."""
        return self._life.rows.job(job_id)


class Place:
    """How far the results of one workload were read, and which."""

    def __init__(self) -> None:
        self.after = ""
        self.told: dict[str, str] = {}
        self.done = False


class Reader:
    """Reads now and then, a few at a time, from whichever hub leads."""

    def __init__(self, world: World, hub: HubNode) -> None:
        self._world, self._hub = world, hub
        self._places: dict[str, Place] = {}

    def follow(self, name: str, every_ms: int) -> None:
        """Read one from here on."""
        self._places[name] = Place()
        self._world.at(every_ms, self._look, name, every_ms)

    def _look(self, name: str, every_ms: int) -> None:
        hub = self._hub
        if hub.up and not hub.now.astray and not hub.now.busy and hub.now.trusts_its_lead:
            life, place = hub.now, self._places[name]
            ProcessLoop(life.process).begin(lambda: self._read(life, name, place))
        self._world.at(every_ms, self._look, name, every_ms)

    async def _read(self, life: HubLife, name: str, place: Place) -> None:
        desk: Any = Desk(life)
        feed = Feed(life.store)
        feed.start(life.told)
        reports = WorkloadReports(desk, desk, feed)
        try:
            found = await reports.results(WHO, name, place.after, FEW)
        except NotFound:
            return
        if place is not self._places[name]:
            return  # turns were lost meanwhile
        place.after, place.done = found["next"], found["done"]
        for line in found["results"]:
            if line["task"] and line["task"] in place.told:
                self._world.fail(f"workload {name} tells of {line['task']} twice: {line}")
            place.told[line["task"]] = line["state"]

    def has_all(self) -> bool:
        """Whether all of them were read to the end."""
        workloads = self._hub.state.workloads
        return all(place.done for name, place in self._places.items() if name in workloads)

    def settle(self, job: Job, states: dict[str, str]) -> None:
        """Every task of a job was told of as it ended, by its own name."""
        place = self._places.get(job.workload)
        if place is None or job.workload not in self._hub.state.workloads:
            return
        for task, state in states.items():
            if place.told.get(task) != state:
                self._world.fail(
                    f"workload {job.workload} told of {task} as {place.told.get(task)}, it is {state}"
                )

    def rewind(self) -> None:
        """Turns were lost: whoever reads on begins anew."""
        for name in self._places:
            self._places[name] = Place()
