"""Rules that hold work back whatever room there is (quota, pace, cap), seen through one pass.

What the pass has given out so far counts; nothing here changes the gates themselves.
"""

from __future__ import annotations

from dray.core.lifecycle.state.parties import ENDLESS, Gate, PaceGate, gpus_of
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.core.scheduling.turns.order import Head


class Gates:
    """The gates of one pass."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._taken: dict[str, tuple[int, int]] = {}

    def room(self, head: Head) -> tuple[int, str]:
        """How many tasks of this line may start now, and the gate that allows no more. A gang starts whole or waits."""
        return self.room_for(head.job)

    def room_for(self, job: Job) -> tuple[int, str]:
        """The same for a job, in a line or not."""
        gates = self._state.parties.all[job.party].gates
        if not gates:
            return ENDLESS, ""
        least, least_key = ENDLESS, ""
        for gate in gates:
            room = self.room_at(gate, job)
            if room < least:
                least, least_key = room, gate.key
        return least, least_key

    def room_at(self, gate: Gate, job: Job) -> int:
        """How many tasks of a job one gate lets through now."""
        asked = most_of(gate, self._state, job.shape)
        room = gate.room(asked, *self._taken.get(gate.key, (0, 0)), self._state.now_ms)
        if job.gang:
            # More members of a group than a pace ever saves up start when it is full, and it goes into debt for them.
            size = job.group_size
            needed = min(size, gate.rule.burst) if isinstance(gate, PaceGate) else size
            room = room if room >= needed else 0
        return room

    def take(self, head: Head, count: int) -> None:
        """Count what was placed."""
        for gate in self._state.parties.all[head.line.party].gates:
            taken, milli = self._taken.get(gate.key, (0, 0))
            more = count * most_of(gate, self._state, head.line.shape)
            self._taken[gate.key] = (taken + count, milli + more)


def most_of(gate: Gate, state: State, shape: int) -> int:
    """The most of what a gate counts that one task of a shape may take, whichever alternative it runs by."""
    return max(gate.measure(ask) for ask in state.asks(shape))


def most_gpus(state: State, shape: int) -> int:
    """The most milli-GPUs that one task of a shape may take, whichever alternative it runs by."""
    return max(gpus_of(ask) for ask in state.asks(shape))
