"""The wire between one agent and the hub: in order and late on good days, one-way, doubled, shuffled on bad ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dray.sim.faults.world import World

Message = dict[str, Any]


class Weather:
    """What is wrong with one worker's network at the moment."""

    def __init__(self) -> None:
        self.up_lost = self.down_lost = False
        self.slow = self.doubled = self.shuffled = False

    @property
    def cut(self) -> bool:
        """Whether no new connection gets through."""
        return self.up_lost or self.down_lost


class Connection:
    """One socket. Each end hears of the break by itself, late; a one-way loss is heard of by nobody."""

    def __init__(self, world: World, weather: Weather, number: int) -> None:
        self._world, self._weather = world, weather
        self.number = number
        self.alive = True
        self.to_hub: Callable[[Connection, Message], None] = _nobody
        self.to_agent: Callable[[Connection, Message], None] = _nobody
        self.hub_hears_end: Callable[[Connection, int], None] = _nobody_ends
        self.agent_hears_end: Callable[[Connection, int], None] = _nobody_ends
        self._last = {"up": 0, "down": 0}

    def send_up(self, message: Message) -> None:
        """From the agent to the hub."""
        if not self._weather.up_lost:
            self._carry("up", self._arrive_up, message)

    def send_down(self, message: Message) -> None:
        """From the hub to the agent."""
        if not self._weather.down_lost:
            self._carry("down", self._arrive_down, message)

    def _carry(self, way: str, arrive: Callable[[Message], None], message: Message) -> None:
        if not self.alive:
            return
        world, weather = self._world, self._weather
        delay = world.rng.randint(200, 3000) if weather.slow else world.rng.randint(0, 8)
        when = world.now_ms + delay
        if not weather.shuffled:
            when = max(when, self._last[way])
            self._last[way] = when
        world.at(when - world.now_ms, arrive, message)
        if weather.doubled and world.chance(0.3):
            world.counts["doubled message"] += 1
            world.at(when - world.now_ms + world.rng.randint(0, 500), arrive, message)

    def _arrive_up(self, message: Message) -> None:
        if self.alive:
            self.to_hub(self, message)

    def _arrive_down(self, message: Message) -> None:
        if self.alive:
            self.to_agent(self, message)

    def break_off(self, code: int = 1006) -> None:
        """The socket dies; both ends hear of it some time later."""
        if self.alive:
            self.alive = False
            self._world.at(self._world.rng.randint(0, 50), self.hub_hears_end, self, code)
            self._world.at(self._world.rng.randint(0, 50), self.agent_hears_end, self, code)


def _nobody(connection: Connection, message: Message) -> None:
    """Nobody listens at this end."""


def _nobody_ends(connection: Connection, code: int) -> None:
    """Nobody listens at this end."""
