"""Whether work that ran out of GPU memory goes on with larger cards: counted anew from what each turn has committed.

Reads the words that an attempt ended with and the cards that it had, and nothing of what the hub has learned from them.
What is remembered goes with the account, since a hub that is put back knows nothing of what came after its backup.
"""

from __future__ import annotations

from collections.abc import Sequence

from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job, Phase
from dray.core.model.records.worker import card_table
from dray.core.model.specs.spec import unpack_spec
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.nodes.runs import OUTGROWN
from dray.sim.faults.world.world import World

SHARED_NAME = "shared-"


def find_tried(state: State, attempt: Attempt) -> int:
    """The largest card of an attempt, in bytes."""
    worker = state.workers.get(attempt.worker)
    if worker is None:
        return 0  # removed in the same turn
    cards = card_table(worker.capability, worker.devices)
    return max((card.vram_bytes for card in cards if card.index in attempt.devices), default=0)


def is_outgrown(job: Job, attempt: Attempt) -> bool:
    """Whether an attempt ended because its cards were too small, and its job has a rule for that."""
    ended = attempt.phase is Phase.FAILED and not attempt.cancel and attempt.error == OUTGROWN
    return ended and bool(unpack_spec(job.spec).rules.oom)


class LargerCardWatch:
    """No further attempt of a job that ran out of memory runs on a card that is not larger."""

    def __init__(self, world: World) -> None:
        self._world = world

    def committed(
        self, life: HubLife, touched: Sequence[Attempt], fresh: Sequence[Attempt], outgrown: dict[str, int]
    ) -> None:
        """Look at all that ended and was placed in a turn; `outgrown` is kept by job."""
        state = life.state
        for attempt in touched:
            job = state.jobs[attempt.job_id]
            if not is_outgrown(job, attempt) or state.tasks[job.id, attempt.index].state.final:
                # Where no card is larger it ends, and others of its array may take less.
                continue
            if (tried := find_tried(state, attempt)) > outgrown.get(job.id, 0):
                outgrown[job.id] = tried
                self._world.counts["ran out of GPU memory"] += 1
        for attempt in fresh:
            least = outgrown.get(attempt.job_id, 0)
            if attempt.devices and least and find_tried(state, attempt) <= least:
                self._world.fail(
                    f"{attempt} follows one that ran out of GPU memory on a card of {least} bytes"
                )
            if least:
                self._world.counts["got a larger card"] += 1
