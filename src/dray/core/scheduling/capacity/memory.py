"""What scheduling remembers about a state between passes, so that no pass works it out anew.

One memory per state, found by the state itself: a pass, a dry run and whoever explains ask the same one, and it goes
when the state goes, which nothing in it may therefore hold on to. The state knows nothing of it.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from dray.core.lifecycle.state.columns import Numbers
from dray.core.lifecycle.state.state import State
from dray.core.scheduling.capacity.parked_needs import Needs

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
ClassKey = tuple[Any, ...]
Stamp = tuple[object, ...]


class Standing:
    """The keys of one shape as of a moment. `steady`: the parts of its scores that do not hang on room."""

    __slots__ = ("keys", "read", "stamp", "steady")

    def __init__(self, stamp: Stamp, read: int, keys: Numbers, steady: tuple[Floats, ...]) -> None:
        self.stamp, self.read, self.keys, self.steady = stamp, read, keys, steady


class Memory:
    """`classes`: which offers match which kind of ask. `standings`: the scores of shapes. `needs`: what parked shapes
    ask for. `warm`: which workers have what warm, as of a version. `measures`: what strategies keep, by their class.
    `vain`: who looked for victims in vain, and as of which change of room.
    """

    def __init__(self) -> None:
        self.classes: dict[ClassKey, Mask] = {}
        self.standings: dict[tuple[int, str], Standing] = {}
        self.needs = Needs()
        self.warm: dict[str, tuple[tuple[int, int], Floats]] = {}
        self.measures: dict[type[object], object] = {}
        self.vain: dict[str, None] = {}
        self.vain_change = 0


_MEMORIES: WeakKeyDictionary[State, Memory] = WeakKeyDictionary()


def memory_of(state: State) -> Memory:
    """The memory of a state; a new state has an empty one."""
    memory = _MEMORIES.get(state)
    if memory is None:
        memory = _MEMORIES[state] = Memory()
    return memory
