"""What parked shapes need, as columns: one freed worker is held against all of them at once.

A cache of the least that any alternative of a shape asks for, indexed by the shape's number. It only leaves shapes out:
whoever is left is asked properly. Rows of shapes that no longer wait stay behind and do no harm.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from dray.core.model.specs.resources import WHOLE, Ask, Asks

NAMES = ("cpu", "mem", "gpus", "milli", "batch", "service")
MOST_CLASSES = 10_000
Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Needs:
    """One row per shape that was parked."""

    def __init__(self) -> None:
        self._asks: list[Asks | None] = []
        self._data = {name: array("q") for name in NAMES}
        self._class_ids: dict[tuple[Any, ...], int] = {}
        self.class_asks: list[Ask] = []
        self._class_of = array("q")

    def note(self, shape: int, asks: Asks, class_key: tuple[Any, ...] | None) -> None:
        """Remember what a shape needs; `class_key` names the class part where all alternatives share it."""
        while len(self._asks) <= shape:
            self._asks.append(None)
            self._class_of.append(-1)
            for column in self._data.values():
                column.append(-1)
        if self._asks[shape] is asks:
            return
        self._asks[shape] = asks
        data = self._data
        data["cpu"][shape] = min(ask.cpu_milli for ask in asks)
        data["mem"][shape] = min(ask.memory_bytes for ask in asks)
        data["gpus"][shape] = min(ask.gpus if ask.gpu_milli == WHOLE else 0 for ask in asks)
        data["milli"][shape] = min(ask.gpu_milli if ask.gpus else 0 for ask in asks)
        data["batch"][shape] = int(any(ask.pool == "batch" for ask in asks))
        data["service"][shape] = int(any(ask.pool == "service" for ask in asks))
        self._class_of[shape] = -1 if class_key is None else self._class(class_key, asks[0])

    def knows(self, shape: int, asks: Asks) -> bool:
        """Whether this very shape was noted under its number."""
        return shape < len(self._asks) and self._asks[shape] is asks

    def within(self, room: dict[str, int], classes: Mask) -> list[int]:
        """Numbers of shapes that ask for no more than `room` has; `classes` says which classes match there.

        A shape that asks for none of something is not held back by there being less than none of it.
        """
        if not self._asks:
            return []
        views = {name: np.frombuffer(column, dtype=np.int64) for name, column in self._data.items()}
        mask = views["gpus"] >= 0
        for name in ("cpu", "mem", "gpus", "milli"):
            mask &= views[name] <= max(room[name], 0)
        mask &= ((views["batch"] > 0) & (room["batch"] > 0)) | (
            (views["service"] > 0) & (room["service"] > 0)
        )
        class_of = np.frombuffer(self._class_of, dtype=np.int64)
        verdicts = np.append(classes, True)  # the last one, reached by -1: alternatives of several classes
        return np.flatnonzero(mask & verdicts[class_of]).tolist()

    def _class(self, key: tuple[Any, ...], ask: Ask) -> int:
        number = self._class_ids.get(key)
        if number is None:
            if len(self.class_asks) >= MOST_CLASSES:
                return -1  # held back by its numbers alone: more looks, never one too few
            number = self._class_ids[key] = len(self.class_asks)
            self.class_asks.append(ask)
        return number
