"""A worker that takes work and does not start it gets none for a while, longer each time: it would eat the queue.

What never began is charged to nobody, so nothing else bounds how often it is tried there. Made of signals: a hub that
starts again has counted nothing. Surprising rule: however much was given to a worker before it is paused, and comes
back, is one refusal.
"""

from __future__ import annotations

from dray.core.lifecycle.holding import lanes
from dray.core.lifecycle.state.effects import Effect
from dray.core.lifecycle.state.events import Clock, PauseOver
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt

# Given to a worker and never begun there, by that worker's word.
NEVER_BEGAN = "lost_unstarted"
MOST_CHARS = 200


def refused(state: State, attempt: Attempt, clock: Clock) -> None:
    """A worker did not start what it was given, and nobody had asked for it back.

    What was to wait for another's end is given back whenever that takes long: no refusal.
    """
    presence, rules = state.presence[attempt.worker], state.rules
    if attempt.fed_ms and not attempt.lane:
        return
    if attempt.cancel or attempt.started or attempt.assigned_ms < presence.paused_until_ms:
        return
    pause_ms = min(rules.pause_ms << min(presence.refusals, 30), rules.longest_pause_ms)
    presence.refusals += 1
    presence.refused_for = attempt.error[:MOST_CHARS]
    presence.paused, presence.paused_until_ms = True, clock.now_ms + pause_ms
    state.set_timer(presence.paused_until_ms, "pause", attempt.worker)
    state.touch_worker(attempt.worker)


def began(state: State, worker_id: str) -> None:
    """A worker has started something: what it refused before is forgotten; a pause runs to its end."""
    presence = state.presence[worker_id]
    if presence.refusals:
        presence.refusals = 0


def pause_over(state: State, event: PauseOver, clock: Clock) -> list[Effect]:
    """A worker is given work again; the first refusal pauses it for longer."""
    resume(state, event.worker)
    return []


def resume(state: State, worker_id: str) -> None:
    """Let a worker have work again; what it is given from now on may pause it anew."""
    presence = state.presence[worker_id]
    presence.paused, presence.paused_until_ms = False, min(presence.paused_until_ms, state.now_ms)
    state.touch_worker(worker_id)
    lanes.wake_worker(state, worker_id)
