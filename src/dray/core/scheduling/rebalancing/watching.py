"""The rebalancer: once a minute it looks how much there is to gain, and moves work where that stays so.

Off unless the policy says `on`. A look costs a scene, and there is none while nothing runs. Surprising rule: after it
has acted for a cause it waits until there is little to gain by it, or a window has passed, before it acts again: what
swings moves nobody back and forth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from dray.core.lifecycle.state.pass_events import RebalanceLooked
from dray.core.lifecycle.state.service_events import MovesDecided
from dray.core.lifecycle.state.state import State, Swing, Watching
from dray.core.scheduling.rebalancing.worth import look_ahead

LOOK_MS = 60_000
MOST_SAMPLES, LOOKS = 60, 3
AHEAD_MS = 30 * 60_000


def rebalance(state: State) -> Iterator[MovesDecided | RebalanceLooked]:
    """What is to be moved now, and what is remembered until the next look."""
    rules = state.policy.rebalance
    if rules.mode != "on" or state.now_ms < state.outlook.look_ms:
        return
    swings: list[tuple[str, Swing]] = []
    if state.held:
        outlook, known = look_ahead(state), dict(state.outlook.swings)
        for cause, level in outlook.levels.items():
            before = known.get(cause, Swing())
            if not before.armed and state.now_ms >= before.acted_ms + round(rules.window_s * 1000):
                before = before._replace(armed=True)
            swing = follow(before, state.now_ms, level, rules.high, rules.low)
            if swing.armed and swing.streak >= LOOKS:
                chosen = [proposal for proposal in outlook.chosen if proposal.cause == cause]
                for proposal in chosen:
                    yield MovesDecided(
                        proposal.moves,
                        cause,
                        gain=proposal.gain,
                        cost=proposal.cost,
                        unit=proposal.unit,
                        why=proposal.why,
                    )
                if chosen:
                    swing = swing._replace(armed=False, streak=0, acted_ms=state.now_ms)
            swings.append((cause, swing))
    yield RebalanceLooked(Watching(state.now_ms + LOOK_MS, tuple(swings)))


def follow(swing: Swing, now_ms: int, level: float, high: float, low: float) -> Swing:
    """One more look at how much there is to gain."""
    samples = (*swing.samples, (now_ms, level))[-MOST_SAMPLES:]
    foreseen = level + slope_of(samples) * AHEAD_MS
    streak = swing.streak + 1 if level > high and foreseen > high else 0
    return Swing(samples, streak, swing.armed or level < low, swing.acted_ms)


def slope_of(samples: Sequence[tuple[int, float]]) -> float:
    """By how much it grows in a millisecond: the median over all pairs, which single outliers do not bend."""
    slopes = [
        (later - level) / (then - at)
        for place, (at, level) in enumerate(samples)
        for then, later in samples[place + 1 :]
        if then > at
    ]
    return median(slopes) if slopes else 0.0
