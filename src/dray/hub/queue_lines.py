"""Since when the longest has waited in a queue. Reads the backlog alone."""

from __future__ import annotations

from dray.core.lifecycle.state import State
from dray.core.model.records import Job
from dray.core.scheduling.ordering import standing


def oldest_in(state: State, queue: str) -> Job | None:
    """The job of a queue that was submitted first among those that wait."""
    parties = state.parties.all
    lines = [line for line in state.backlog.buckets if parties[line.party].queue == queue]
    heads = [found[0] for line in lines if (found := next(standing(state, line), None)) is not None]
    return min(heads, key=lambda job: job.seq, default=None)
