"""Which workers fail when: drawn from a seed before the replay begins, so that every policy meets the same ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from dray.sim.traces.workload import Node

HOUR_MS = 3_600_000


class Failure(NamedTuple):
    """A worker is gone from `at_ms` until `back_ms`; for good where that is 0."""

    at_ms: int
    back_ms: int
    node: str


def draw_failures(
    nodes: Sequence[Node], until_ms: int, *, every_h: float, repair_h: float, seed: int
) -> list[Failure]:
    """Each worker fails on average once in `every_h` hours of being up and takes about `repair_h` hours to return."""
    found: list[Failure] = []
    for node in nodes:
        draw = random.Random(f"{seed} {node.name}")
        at_ms = 0
        while True:
            at_ms += max(1, round(draw.expovariate(1 / every_h) * HOUR_MS))
            if at_ms > until_ms:
                break
            back_ms = at_ms + max(1000, round(draw.expovariate(1 / repair_h) * HOUR_MS))
            found.append(Failure(at_ms, back_ms, node.name))
            at_ms = back_ms
    return sorted(found)
