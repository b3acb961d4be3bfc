"""What attempts use, as their workers see it."""

from __future__ import annotations

from dray.core.lifecycle.state.effects import Effect
from dray.core.lifecycle.state.events import Clock, UsesSeen
from dray.core.lifecycle.state.state import State


def uses_seen(state: State, event: UsesSeen, clock: Clock) -> list[Effect]:
    """Keep the latest that a worker says of its own attempts that live; of others it is left unread."""
    for uid, use in event.uses.items():
        attempt = state.attempts.get(uid)
        if attempt is not None and attempt.worker == event.worker and attempt.phase.live:
            state.uses[uid] = use._replace(at_ms=clock.at_ms)
    return []
