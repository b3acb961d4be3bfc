"""The socket between two hubs: in order; while one of them is cut off, what was sent waits, as TCP has it.

Each end asks now and then whether the other is there, and gives up where nothing is answered: the gateway sooner.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from dray.sim.faults.world.process import Process

KEEPALIVE_MS = 5000
GATEWAY_ASKS, LEADER_ASKS = 2, 6
BROKEN = 1006


class WireEnd:
    """One end of it; `over`: it has ended here."""

    def __init__(self, wire: Wire, process: Process) -> None:
        self._wire, self.process = wire, process
        self.other: WireEnd = self
        self.take: Callable[[bytes], None] = lambda frame: None
        self.hears_end: Callable[[int], None] = lambda code: None
        self.flows: Callable[[], None] = lambda: None
        self.over = self._told = False
        self._last_ms = 0
        self._held: deque[bytes | int] = deque()

    @property
    def writable(self) -> bool:
        """Whether what is sent leaves this machine."""
        return not self._held

    def send(self, frame: bytes) -> None:
        """Send one message."""
        if not self.over:
            self._send(frame)

    def close(self, code: int) -> None:
        """End it after all that was sent."""
        if not self.over:
            self._send(code)
            self.over = True

    def _send(self, what: bytes | int) -> None:
        world, rng = self._wire.world, self._wire.rng
        when = max(world.now_ms + rng.randint(0, 3), self._last_ms)
        self._last_ms = when
        world.at(when - world.now_ms, self._arrive, what)

    def _arrive(self, what: bytes | int) -> None:
        if self._wire.is_cut() or self._held:
            self._held.append(what)
        else:
            self._deliver(what)

    def _deliver(self, what: bytes | int) -> None:
        if isinstance(what, int):
            self.other.end_soon(what, 0)
        elif not self.other.over:
            self.other.run(what)

    def run(self, frame: bytes) -> None:
        """A message has come."""
        self.process.run(lambda: None if self.over else self.take(frame))

    def mend(self) -> None:
        """What waited arrives."""
        had = bool(self._held)
        while self._held:
            self._deliver(self._held.popleft())
        if had:
            self.process.run(lambda: None if self.over else self.flows())

    def break_off(self) -> None:
        """End it here and now; what is on its way is lost, and the other end hears so when it can."""
        if not self.over:
            self.over = True
            self._held.clear()
            rng = self._wire.rng
            self.other.end_soon(
                BROKEN, rng.randint(5000, 20_000) if self._wire.is_cut() else rng.randint(0, 50)
            )

    def end_soon(self, code: int, delay_ms: int) -> None:
        """The other end is gone."""
        self.process.at(delay_ms, self._end, code)

    def _end(self, code: int) -> None:
        if not self._told:
            self.over = self._told = True
            self.hears_end(code)

    def give_up(self) -> None:
        """Nobody answers."""
        if not self.over and not self.process.stopped:
            self.over = True
            self._end(BROKEN)
            self.other.end_soon(BROKEN, self._wire.rng.randint(0, 20_000))

    @property
    def answers(self) -> bool:
        """Whether this process would."""
        return not self.process.stopped


class Wire:
    """Both ends."""

    def __init__(
        self, rng: random.Random, gateway: Process, leader: Process, is_cut: Callable[[], bool]
    ) -> None:
        self.world, self.rng, self.is_cut = gateway.world, rng, is_cut
        self.gateway, self.leader = WireEnd(self, gateway), WireEnd(self, leader)
        self.gateway.other, self.leader.other = self.leader, self.gateway
        self._unanswered = 0
        self.rough_ms = self.world.now_ms
        self.world.at(KEEPALIVE_MS, self._keep_alive)

    @property
    def over(self) -> bool:
        """Whether it has ended at both ends."""
        return self.gateway.over and self.leader.over

    def mend(self) -> None:
        """Nothing is in the way any more."""
        self.rough_ms = self.world.now_ms
        self.gateway.mend()
        self.leader.mend()

    def break_off(self, process: Process) -> None:
        """End it if it is a process's; both ends hear so."""
        for end in (self.gateway, self.leader):
            if end.process is process:
                end.break_off()
                end.end_soon(BROKEN, 0)

    def _keep_alive(self) -> None:
        if self.over:
            return
        sound = self.gateway.answers and self.leader.answers and not self.is_cut()
        self._unanswered = 0 if sound else self._unanswered + 1
        if self._unanswered >= GATEWAY_ASKS:
            self.gateway.give_up()
        if self._unanswered >= LEADER_ASKS:
            self.leader.give_up()
        self.world.at(KEEPALIVE_MS, self._keep_alive)
