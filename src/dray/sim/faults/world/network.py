"""The wire between one agent and the hub: in order and late on good days, one-way, doubled, shuffled on bad ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dray.sim.faults.world.world import World

Message = dict[str, Any]
# No copy of these can be told from a new one, and no socket makes any; an ack that overtook calls which were sent again
# before it would make them new ones too.
PLAIN = ("calls_assign", "calls_ack", "job_yield", "job_resume")


class Weather:
    """What is wrong with one worker's network at the moment. `ordered`: a plain socket, which never doubles or
    shuffles: a base-only peer has nothing to tell copies apart with.
    """

    def __init__(self, ordered: bool = False) -> None:
        self.ordered = ordered
        self.up_lost = self.down_lost = False
        self.slow = self.doubled = self.shuffled = False
        self.rough_ms = -1

    @property
    def calm(self) -> bool:
        """Whether everything gets through, once and in order."""
        return not (self.up_lost or self.down_lost or self.slow or self.doubled or self.shuffled)

    @property
    def cut(self) -> bool:
        """Whether no new connection gets through."""
        return self.up_lost or self.down_lost


FAIR = Weather()


class Connection:
    """One socket to one `hub`. Each end hears of the break by itself, late; a one-way loss is heard of by nobody."""

    def __init__(self, world: World, weather: Weather, number: int, owner: str) -> None:
        self.world, self._weather = world, weather
        # What is wrong at the other end, where that has a network of its own.
        self.far = FAIR
        self.number, self.owner, self.hub = number, owner, 0
        self.began_ms = world.now_ms
        self.alive = True
        # The most that was asked for on it at once.
        self.asked = 0
        self.to_hub: Callable[[Connection, Message], None] = _nobody
        self.to_agent: Callable[[Connection, Message], None] = _nobody
        self.hub_hears_end: Callable[[Connection, int], None] = _nobody_ends
        self.agent_hears_end: Callable[[Connection, int], None] = _nobody_ends
        self._last = {"up": 0, "down": 0}
        self._stalled = {"up": False, "down": False}

    @property
    def plain(self) -> bool:
        """Whether it is that of somebody else's worker."""
        return self._weather.ordered

    def send_up(self, message: Message) -> None:
        """From the agent to the hub."""
        if not self._drops("up", self._weather.up_lost or self.far.up_lost):
            self._carry("up", self._arrive_up, message)

    def send_down(self, message: Message) -> None:
        """From the hub to the agent."""
        if not self._drops("down", self._weather.down_lost or self.far.down_lost):
            self._carry("down", self._arrive_down, message)

    def _drops(self, way: str, lost: bool) -> bool:
        """A plain socket never goes on after a gap: what follows a lost message waits for it, in vain."""
        if lost and self._weather.ordered:
            self._stalled[way] = True
        return lost or self._stalled[way]

    def _carry(self, way: str, arrive: Callable[[Message], None], message: Message) -> None:
        if not self.alive:
            return
        world, weather = self.world, self._weather
        delay = world.rng.randint(200, 3000) if weather.slow else world.rng.randint(0, 8)
        when = world.now_ms + delay
        plain = weather.ordered or message["type"] in PLAIN
        if plain or not weather.shuffled:
            when = max(when, self._last[way])
            self._last[way] = when
        world.at(when - world.now_ms, arrive, message)
        if weather.doubled and not plain and world.chance(0.3):
            world.counts["doubled message"] += 1
            world.at(when - world.now_ms + world.rng.randint(0, 500), arrive, message)

    def _arrive_up(self, message: Message) -> None:
        if self.alive:
            self.to_hub(self, message)

    def _arrive_down(self, message: Message) -> None:
        if self.alive:
            self.to_agent(self, message)

    def undisturbed(self, for_ms: int) -> bool:
        """Whether everything got through here for so long; of a socket that waits for what was lost nothing does."""
        since = max(self.began_ms, self._weather.rough_ms, self.far.rough_ms)
        flows = self.alive and not any(self._stalled.values())
        return flows and self._weather.calm and self.far.calm and self.world.now_ms - since > for_ms

    def desert(self, after_ms: int) -> None:
        """The agent's end is gone, and it knows; the hub hears so after this long."""
        if self.alive:
            self.alive = False
            self.world.at(0, self.agent_hears_end, self, 1006)
            self.world.at(after_ms, self.hub_hears_end, self, 1006)

    def break_off(self, code: int = 1006) -> None:
        """The socket dies; both ends hear of it some time later, much later where the network says nothing."""
        if self.alive:
            self.alive = False
            rng = self.world.rng
            up_ms = (
                rng.randint(5000, 60_000) if self._weather.up_lost or self.far.up_lost else rng.randint(0, 50)
            )
            down_ms = (
                rng.randint(5000, 60_000)
                if self._weather.down_lost or self.far.down_lost
                else rng.randint(0, 50)
            )
            self.world.at(up_ms, self.hub_hears_end, self, code)
            self.world.at(down_ms, self.agent_hears_end, self, code)


def _nobody(connection: Connection, message: Message) -> None:
    """Nobody listens at this end."""


def _nobody_ends(connection: Connection, code: int) -> None:
    """Nobody listens at this end."""
