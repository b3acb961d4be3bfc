"""One turn of the core after what has come in was folded: timers, lanes, the pass, lanes again, what queues behind,
what was waited for, launchers.

The hub, forecasts, replays and tests go this one way and differ in how they fold: each event is to be folded in before
the next is asked for. A forecast and a replay, which feed lanes in their own way or not at all, take the pass alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from typing import Any, NamedTuple

from dray.core.lifecycle.counts.waits import due_charges
from dray.core.lifecycle.state.events import Clock, Event, PlanDecided
from dray.core.lifecycle.state.pass_events import PollsAnswered
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.uses import find_changes
from dray.core.lifecycle.timers import Reasons, Unread, due
from dray.core.scheduling.choosing.automatic import weigh_strategies
from dray.core.scheduling.claims.move_steps import next_steps
from dray.core.scheduling.claims.reservations import find_stale
from dray.core.scheduling.launches.decide import plan_launches
from dray.core.scheduling.passes.batches import gather
from dray.core.scheduling.passes.foreseeing import foresee
from dray.core.scheduling.passes.lane_feeding import feed, prepare
from dray.core.scheduling.passes.planning import Plan, is_due, plan, settle_plan
from dray.core.scheduling.passes.queueing_behind import line_up
from dray.core.scheduling.rebalancing.emptying import look_for_places
from dray.core.scheduling.rebalancing.watching import rebalance

Fold = Callable[[Event], Any]
TIMERS, CALLS, PASS = "timers", "calls", "pass"


class Passed(NamedTuple):
    """What a pass decided, and whether another is due at once: it was cut, or has left room to others."""

    plan: Plan
    again: bool


def take_pass(state: State, fold: Fold) -> Passed | None:
    """Decide who starts where, fold it in and remember what the next pass needs; None where nothing was to be done."""
    for change in find_changes(state) if state.using else ():
        fold(change)
    # An owner that was cancelled or held gains nobody room by itself: what was kept for it is given back first.
    if (stale := find_stale(state)) is not None:
        fold(stale)
    for found in look_for_places(state) if state.emptying else ():
        fold(found)
    for decided_moves in rebalance(state):
        fold(decided_moves)
    for stage in next_steps(state) if state.moving else ():
        fold(stage)
    if not is_due(state):
        return None
    for step in weigh_strategies(state):
        fold(step)
    for batched in gather(state):
        fold(batched)
    decided = plan(state)
    fold(decided.began)
    if decided.placements or decided.preemptions:
        fold(PlanDecided(decided.placements, decided.preemptions))
    fold(settle_plan(state, decided))
    if (stale := find_stale(state, _served(state, decided))) is not None:
        fold(stale)
    again = decided.cut or bool(state.columns.roomier)
    return Passed(decided, again)


def _served(state: State, decided: Plan) -> set[str]:
    if not state.reservations:
        return set()
    return {placement.job_id for placement in decided.placements if placement.uid in state.attempts}


def answer_polls(state: State, fold: Fold, decided: Plan | None = None) -> None:
    """Tell whoever asked for work and was given none."""
    if state.polls:
        fold(PollsAnswered(Counter(one.worker for one in decided.placements) if decided else {}))


def take_turn(
    state: State,
    clock: Clock,
    fold: Fold,
    reasons: Reasons,
    skip: Container[str] = (),
    enter: Callable[[str], None] = lambda stage: None,
    unread: Unread = frozenset,
) -> bool:
    """Timers, lanes, one pass, lanes again, what queues behind; gives whether another pass is due at once.

    `skip` names stages that are left out because they failed again and again; `enter` hears which one is under way;
    `unread` names the workers of whom something waits for a later turn.
    """
    passed = None
    enter(TIMERS)
    if TIMERS not in skip:
        for event in due(state, clock, reasons, unread):
            fold(event)
    enter(CALLS)
    if CALLS not in skip:
        for step in prepare(state):
            fold(step)
    enter(PASS)
    if PASS not in skip:
        passed = take_pass(state, fold)
    # Whoever asks for work is answered, pass or not.
    answer_polls(state, fold, passed.plan if passed else None)
    enter(CALLS)
    if CALLS not in skip:
        for step in feed(state):
            fold(step)
    enter(PASS)
    if PASS not in skip:
        for step in line_up(state):
            fold(step)
        for step in foresee(state) if state.eyed or state.prewarms else ():
            fold(step)
        for charge in due_charges(state, clock):
            fold(charge)
        if state.launch_due:
            for wanted in plan_launches(state):
                fold(wanted)
    return passed is not None and passed.again
