"""Which ports the attempts of this agent hold, and which a new one gets. Pure: whether the machine has one free is
asked of the caller, who can try.

A lease begins before its attempt does: it is in the supervisor's journal by then, where the next agent finds it. The
surprising rule: there is no list of leases. What is held is what the attempts have that are not confirmed gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from dray.agent.decide.attempts import Running
from dray.agent.decide.effects import Launch
from dray.core.model.specs.health import port_names
from dray.core.model.specs.ports import PortAsk, port_variables, read_port

# Where the members of a gang meet: the last of their ports, after those that the job has named.
MEETING = PortAsk("meet")
DEFAULT_SPAN = range(20_000, 30_000)


class Lease(NamedTuple):
    """The ports of one attempt in the order of its spec; or why it gets none, `fault`."""

    ports: list[int]
    fault: str = ""


class Leases:
    """Gives ports of `span` one after the other, so that one which was just given back is the last to be used again."""

    def __init__(self, span: range, first: int) -> None:
        self.span = span
        self._next = first

    def take(self, running: Mapping[str, Running], launch: Launch, is_free: Callable[[int], bool]) -> Lease:
        """Give a launch the ports that it asks for, before anything of it is written down or started."""
        asks = wanted(launch)
        if not asks:
            return Lease([])
        held = {port: other for other in running.values() if other.phase != "exited" for port in other.ports}
        chosen: list[int] = []
        fixed = {ask.number for ask in asks}
        for ask in asks:
            number = ask.number or self._find({*held, *chosen, *fixed}, is_free)
            if not number:
                free = f"{self.span.start}-{self.span.stop - 1}"
                return Lease([], f"no port is free for {ask.name!r}: this worker gives those of {free}")
            if ask.number and (number in held or not is_free(number)):
                holder = f"task {held[number].task_id}" if number in held else "a program that is no task"
                return Lease([], f"port {number}, asked for as {ask.name!r}, is held by {holder} here")
            chosen.append(number)
        if (attempt := running.get(launch.uid)) is not None:
            attempt.ports = chosen
        return Lease(chosen)

    def _find(self, taken: Collection[int], is_free: Callable[[int], bool]) -> int:
        count = len(self.span)
        for step in range(count):
            number = self.span[(self._next + step) % count]
            if number not in taken and is_free(number):
                self._next += step + 1
                return number
        return 0


def wanted(launch: Launch) -> list[PortAsk]:
    """The ports that a launch asks for, in order."""
    spec = launch.spec
    asks = [read_port(text) for text in spec.ports] or [
        PortAsk(name) for name in port_names((), spec.health_check)
    ]
    return asks if launch.gang is None else [*asks, MEETING]


def variables_of(launch: Launch, ports: Sequence[int]) -> dict[str, str]:
    """What a task finds in its environment of the ports that it has named."""
    names = port_names(launch.spec.ports, launch.spec.health_check)
    return port_variables(names, ports[: len(names)])
