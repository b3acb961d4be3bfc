"""`strategy: auto`: a table of rules says which strategy holds, and why; no model.

The first rule that applies has it. Another one takes over when it has applied for ten minutes, at most once an hour,
and is written down with its reason. Looked at by passes alone, at most once a minute: while nobody is placed it does
not matter. The surprising rule: the very first choice waits for nothing, since there is none to be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import msgspec

from dray.core.lifecycle.happenings.policy import CHOICE
from dray.core.lifecycle.state.pass_events import PlacementWeighed
from dray.core.lifecycle.state.service_events import PlacementChosen
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.policy import AUTO, MIN_COST, PlacementPolicy, Weights
from dray.core.model.records.ledger import ChoiceRecord
from dray.core.scheduling.choosing.signs import NOTICED, Signs, read_signs

LOOK_MS, HELD_MS, AGAIN_MS = 60_000, 10 * 60_000, 60 * 60_000
HALF = 0.5
MANY, TIGHT = 50, 1.5
# What speed counts where it is known: more than what a card has too much of, less than keeping CPU work off cards.
SPEED = 5.0


class Rule(NamedTuple):
    """`applies` gives the reason in words where it does, else nothing."""

    number: int
    strategy: str
    applies: Callable[[Signs], str]


def _alike(signs: Signs) -> str:
    if signs.kinds > 1 or signs.fine >= NOTICED:
        return ""
    return "one kind of worker, and work takes whole cards of any model: the tightest fit is as good as any"


def _particular(signs: Signs) -> str:
    # However few of the cards are held: what is strewn over idle workers at first is there when they fill up.
    if signs.fine >= NOTICED:
        return f"{signs.fine:.0%} of card work shares cards or names models: what is left must suit the work to come"
    if signs.cards > 1 and signs.new:
        return f"{signs.cards} kinds of card, and nobody knows yet what is asked of them"
    return ""


def _uneven(signs: Signs) -> str:
    if signs.cards < 2 or signs.known < HALF:
        return ""
    return (
        f"{signs.cards} kinds of card, and speeds are known for {signs.known:.0%} of the cards that waiting work "
        "asks for: work goes where it gains most"
    )


def _together(signs: Signs) -> str:
    if signs.waiting < MANY or signs.slack >= TIGHT:
        return ""
    return (
        f"{signs.waiting:,} tasks wait that cost more on one worker than on another, and idle is "
        f"{signs.slack:.1f} times what they ask for: they are placed together"
    )


def _otherwise(signs: Signs) -> str:
    return "no other rule applies"


RULES = (
    Rule(1, "greedy", _alike),
    Rule(2, "foresight", _particular),
    Rule(3, "greedy", _uneven),
    Rule(4, MIN_COST, _together),
    Rule(0, "greedy", _otherwise),
)


def placement_of(state: State) -> PlacementPolicy:
    """How tasks are placed now: as the policy says, or as was chosen where it leaves that open."""
    placement = state.policy.placement
    if placement.strategy != AUTO:
        return placement
    record = state.ledger.get(CHOICE)
    if not isinstance(record, ChoiceRecord):
        return _carry_out(placement, 0, "greedy")
    return _carry_out(placement, record.rule, record.strategy)


@lru_cache(maxsize=64)
def _carry_out(placement: PlacementPolicy, rule: int, strategy: str) -> PlacementPolicy:
    weights = placement.weights
    if rule == 3:
        weights = _with_speed(weights)
    return msgspec.structs.replace(placement, strategy=strategy, weights=weights)


def _with_speed(weights: Weights) -> Weights:
    return msgspec.structs.replace(weights, performance=max(weights.performance, SPEED))


def weigh_strategies(state: State) -> Iterator[PlacementChosen | PlacementWeighed]:
    """What is to be folded in before a pass: another choice, or that one would be made if it stays like this."""
    if state.policy.placement.strategy != AUTO or state.now_ms < state.leaning.look_ms:
        return
    if not state.backlog.buckets:
        return  # nobody is to be placed
    if (signs := read_signs(state)) is None:
        return
    (rule, why), now_ms, leaning = find_rule(signs), state.now_ms, state.leaning
    since_ms = leaning.since_ms if leaning.rule == rule.number else now_ms
    if _takes_over(state, rule, now_ms - since_ms):
        yield PlacementChosen(rule.strategy, rule.number, why)
    yield PlacementWeighed(rule.number, since_ms, now_ms + LOOK_MS)


def _takes_over(state: State, rule: Rule, applied_ms: int) -> bool:
    record = state.ledger.get(CHOICE)
    if not isinstance(record, ChoiceRecord):
        return True
    rested = not record.times or state.now_ms - record.since_ms >= AGAIN_MS
    return record.rule != rule.number and rested and applied_ms >= HELD_MS


def find_rule(signs: Signs) -> tuple[Rule, str]:
    """The first rule that applies, and its reason."""
    return next((rule, why) for rule in RULES if (why := rule.applies(signs)))
