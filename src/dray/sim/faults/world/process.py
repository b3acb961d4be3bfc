"""A process that may be stopped for a while (SIGSTOP): what was to happen to it meanwhile happens when it goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dray.sim.faults.world.world import World


class Process:
    """Runs what is due, unless it is stopped."""

    def __init__(self, world: World) -> None:
        self.world, self.stopped = world, False
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def at(self, delay_ms: int, call: Callable[..., None], *arguments: Any) -> None:
        """Let something happen later, by a timer of this process."""
        self.world.at(delay_ms, self.run, call, *arguments)

    def run(self, call: Callable[..., None], *arguments: Any) -> None:
        """Something happens to it: a timer, or what a socket brings."""
        if self.stopped:
            self._held.append((call, arguments))
        else:
            call(*arguments)

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def go_on(self) -> None:
        """SIGCONT."""
        self.stopped = False
        held, self._held = self._held, []
        for call, arguments in held:
            self.world.at(0, self.run, call, *arguments)
