"""Why work may be better off elsewhere: one strategy for each gain that has a name, and the index that it watches.

A strategy reads a scene and proposes, the best first; it decides nothing and knows no budget. To add one: a function
that proposes, one that says from the scene and these proposals how much there is to gain (0: nothing, 1: all there is),
and a line in `STRATEGIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from dray.core.lifecycle.providers.prices import HOUR_MS, cost_of_span, rate_of
from dray.core.lifecycle.state.service_events import Move
from dray.core.model.records.records import Attempt
from dray.core.scheduling.rebalancing.performance import faster_places, performance_level
from dray.core.scheduling.rebalancing.proposals import COST, MONEY, PERFORMANCE, Proposal
from dray.core.scheduling.rebalancing.scene import Scene


class Strategy(NamedTuple):
    """By which moves something is to be gained, and how much by all that were proposed, between 0 and 1."""

    propose: Callable[[Scene], Iterable[Proposal]]
    level: Callable[[Scene, Sequence[Proposal]], float]


def rate_at(scene: Scene, attempt: Attempt, move: Move) -> int:
    """What an hour of it would cost at its new place, in millionths."""
    state, columns = scene.state, scene.state.columns
    row = columns.row_of[move.worker]
    offer, ask = columns.offers[columns.get("offer", row)], state.asks(attempt.shape)[move.variant]
    return rate_of(state.policy, offer, ask, columns.get("total_gpu", row), columns.get("total_cpu", row))


def cheaper_places(scene: Scene) -> Iterable[Proposal]:
    """Work that pays where it runs, into idle room that costs less: the dearest hour first."""
    for attempt in sorted(scene.movers, key=lambda one: (-one.rate, one.fence)):
        if not attempt.rate:
            return

        def is_cheaper(row: int, attempt: Attempt = attempt) -> bool:
            there = Move("", scene.state.columns.worker_of[row], (), attempt.variant)
            return rate_at(scene, attempt, there) < attempt.rate

        move = scene.find_place(attempt, is_cheaper)
        if move is None:
            continue
        rate = rate_at(scene, attempt, move)
        gain = cost_of_span(attempt.rate - rate, scene.left_ms(attempt))
        scene.take((move,))
        yield Proposal(
            COST,
            (move,),
            gain,
            rate * scene.down_ms(attempt) // HOUR_MS,
            f"an hour there costs {rate / 1e6:g} instead of {attempt.rate / 1e6:g}",
            MONEY,
        )


def cost_level(scene: Scene, found: Sequence[Proposal]) -> float:
    """The share of what is paid an hour that would not be paid if work went where idle room is cheaper."""
    attempts, paid = scene.state.attempts, sum(attempt.rate for attempt in scene.movers)
    moves = [(attempts[move.uid], move) for proposal in found for move in proposal.moves]
    spared = sum(attempt.rate - rate_at(scene, attempt, move) for attempt, move in moves)
    return min(1.0, spared / paid) if paid else 0.0


STRATEGIES: dict[str, Strategy] = {
    PERFORMANCE: Strategy(faster_places, performance_level),
    COST: Strategy(cheaper_places, cost_level),
}
