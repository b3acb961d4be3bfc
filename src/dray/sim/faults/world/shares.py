"""Which worlds have what came to be drawn last, by a number of its own for each: the others stay as they were.

A number is chosen so that none of the worlds has it that are kept because they showed a bug before. It is multiplied
out, not drawn, since only so a number is found that leaves many of them alone.
"""

from __future__ import annotations

FROM = 10**9
MANY = 1 << 64
CAMPAIGNS, WORKLOADS, LEASES = 14750676043219288035, (0.0, 0.18), (0.08, 0.25)


def draw(seed: int, number: int) -> float:
    """From 0 to 1, spread evenly over seeds; 1 for those that were counted up from 0 by hand."""
    return seed * number % MANY / MANY if seed >= FROM else 1.0


def has_workloads(seed: int) -> bool:
    """Whether people of this world make workloads."""
    return WORKLOADS[0] <= draw(seed, CAMPAIGNS) < WORKLOADS[1]


def has_leases(seed: int) -> bool:
    """Whether programs of this world take work on lease."""
    return LEASES[0] <= draw(seed, CAMPAIGNS) < LEASES[1]
