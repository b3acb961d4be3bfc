"""What matters when a worker is chosen for a job: money, speed, that it goes well, that it begins soon.

A value that a job, its queue or the policy gives; what one leaves out is what the next one says. In records it is one
line of text, so that equal ones are equal, and nothing has to be unpacked where work is placed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

# What `cheapest_in_time` weighs where a job asks for it: more than all that is weighed by default.
CHOSEN = 20.0
WEIGHTS = ("cost", "performance", "reliability", "latency")
MOST_WEIGHT = 1000.0
MOST_GB = 10**9


class Objective(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How much each of them counts for a job, and how many GB a task sends out of where it runs.

    `cheapest_in_time`: the least money among workers on which it ends before its deadline, else the fastest.
    """

    cost: float | None = None
    performance: float | None = None
    reliability: float | None = None
    latency: float | None = None
    cheapest_in_time: bool | None = None
    egress_gb: float = 0


NOTHING = Objective()


def pack_objective(objective: Objective | None) -> str:
    """One line for a record; empty where nothing was said."""
    if objective is None or objective == NOTHING:
        return ""
    given = msgspec.to_builtins(objective)
    return " ".join(
        f"{name}={given[name]!r}" for name in Objective.__struct_fields__ if given.get(name) is not None
    )


@lru_cache(maxsize=1024)
def read_objective(packed: str) -> Objective:
    """Undo `pack_objective`; what a later version wrote and this one does not know is left out."""
    given: dict[str, Any] = {}
    for word in packed.split():
        name, _, value = word.partition("=")
        if name in Objective.__struct_fields__:
            given[name] = value == "True" if value in ("True", "False") else float(value)
    return Objective(**given)


def lay_over(first: Objective, second: Objective | None) -> Objective:
    """What the first says, and where it says nothing what the second does."""
    if second is None:
        return first
    if first == NOTHING:
        return second
    said = {
        name: mine if (mine := getattr(first, name)) is not None else getattr(second, name)
        for name in (*WEIGHTS, "cheapest_in_time")
    }
    return Objective(**said, egress_gb=first.egress_gb or second.egress_gb)
