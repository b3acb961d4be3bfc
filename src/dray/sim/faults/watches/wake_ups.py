"""Whether anybody was overlooked: after a pass, fitting work and free credit never coexist.

Plans anew for all who wait, whether or not anybody would look at them, and throws the plan away: a look that mended
what it found would hide it from those who wait.
"""

from __future__ import annotations

from dray.core.scheduling.passes.planning import plan
from dray.sim.faults.nodes.hub_life import HubLife


def find_overlooked(life: HubLife) -> list[str]:
    """Name work that would start now if anybody looked at it."""
    if life.conductor.cut:
        return []
    decided = plan(life.state, tuple(life.state.backlog.buckets))
    return [
        f"lost wake-up: {placement.job_id}/{placement.index} fits {placement.worker} and was left waiting"
        for placement in decided.placements
    ]
