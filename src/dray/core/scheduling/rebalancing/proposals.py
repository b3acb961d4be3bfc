"""What a strategy proposes: work that runs goes elsewhere, with what that wins and what it costs.

A proposal is advice and goes whole: a single move, an exchange of places, or a chain of which each takes the place that
the next one leaves. Whether it pays is not the strategy's to say (`worth`), nor how it is carried out
(`core.lifecycle.holding.moves`).
"""

from __future__ import annotations

from typing import NamedTuple

from dray.core.lifecycle.state.service_events import Move

ROOM, PERFORMANCE, COST, SPREAD, EVACUATE = "room", "performance", "cost", "spread", "evacuate"
# Of no strategy: somebody ordered it.
PERSON = "person"
CAUSES = (ROOM, PERFORMANCE, COST, SPREAD, EVACUATE, PERSON)
GPU_MS, MONEY = "gpu_ms", "money"


class Proposal(NamedTuple):
    """One whole: these attempts start again at these places.

    `gain` and `cost` are in one `unit`: milliseconds of one card, or millionths of money. `gain` is what is won from
    now until the work has ended, by the lower quartile of what is left, before any cost is taken off; `cost` what is
    done twice and what stands still meanwhile. `why`: in words, for people.
    """

    cause: str
    moves: tuple[Move, ...]
    gain: int
    cost: int
    why: str
    unit: str = GPU_MS
