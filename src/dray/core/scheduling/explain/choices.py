"""What a job could choose between: each kind of worker of each provider, with its money and time, and which it takes.

The words of the very scorers that place it, summed up by class of worker. Claims nothing and changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dray.core.lifecycle.providers.prices import provider_of
from dray.core.lifecycle.state.columns import kind_of
from dray.core.lifecycle.state.state import State
from dray.core.model.objectives import NOTHING, Objective
from dray.core.model.policies.policy import Weights
from dray.core.model.records.records import Job
from dray.core.scheduling.capacity.memory import Floats, Mask
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.placement.prospects import (
    Prospect,
    find_outlook,
    objective_of,
    weights_for,
)
from dray.core.scheduling.placement.scorers import SCORERS, Sight, Wish, who_is_in_time

ABOUT_JOBS = ("cost", "performance", "reliability", "latency", "cheapest_in_time")
MOST_CHOICES = 20


class Choice(NamedTuple):
    """Workers of one class for one alternative: of those that have room the cheapest, else of all that could."""

    variant: int
    prospect: Prospect
    fitting: int
    could: int
    price: float
    money: float
    ends_s: float
    in_time: bool
    score: float
    health: str


class Choices(NamedTuple):
    """All of them, the best by what the job counts first; `weights` and `objective` say what that is."""

    found: list[Choice]
    weights: Weights
    objective: Objective
    deadline_s: float | None

    @property
    def is_about_money(self) -> bool:
        """Whether anything is to be chosen by what it costs or by how well it goes, so that people want to see it."""
        return self.objective != NOTHING or any(one.price or one.prospect.of.provider for one in self.found)


def list_choices(state: State, rooms: Rooms, job: Job) -> Choices:
    """What a job could choose between, as the pass found the room."""
    weights, found = weights_for(state, job), list[Choice]()
    for variant, ask in enumerate(state.asks(job.shape)):
        wish, sight = Wish(state, ask, job), Sight(rooms)
        outlook, could = find_outlook(state, job, ask), _could(state, rooms, wish)
        fits = rooms.mask(ask) & could
        score = _scores(sight, wish, weights)
        in_time, ends = who_is_in_time(wish, outlook)
        money, prices = outlook.money(), outlook.prices()
        for number, prospect in enumerate(outlook.prospects):
            mine = outlook.of_row == number
            rows = np.flatnonzero(fits & mine)
            able = np.flatnonzero(could & mine)
            if not len(able):
                continue
            among = rows if len(rows) else able
            best = int(among[np.lexsort((money[among], -score[among]))[0]])
            found.append(
                Choice(
                    variant,
                    prospect,
                    len(rows),
                    len(able),
                    float(prices[best]),
                    float(money[best]),
                    float(ends[best]),
                    bool(in_time[best]),
                    round(float(score[best]), 6),
                    _health(state, prospect.of.provider),
                )
            )
    found.sort(key=lambda one: (not one.fitting, one.health == "bad", -one.score, one.money, one.prospect.of))
    left_s = (job.deadline_ms - state.at_ms) / 1000 if job.deadline_ms else None
    return Choices(found[:MOST_CHOICES], weights, objective_of(state, job), left_s)


def _could(state: State, rooms: Rooms, wish: Wish) -> Mask:
    """Workers of classes that could take it when they are empty."""
    columns, ask = state.columns, wish.ask
    matching = rooms.class_mask(ask)[columns.view["offer"][: columns.count]]
    totals = [
        (columns.view[name][: columns.count] >= amount)
        for name, amount in (
            ("total_cpu", ask.cpu_milli),
            ("total_mem", ask.memory_bytes),
            ("total_gpu", ask.gpus),
        )
        if amount
    ]
    here = np.array([bool(name) for name in columns.worker_of[: columns.count]], dtype=np.bool_)
    found: Mask = here & matching
    for enough in totals:
        found &= enough
    return found


def _scores(sight: Sight, wish: Wish, weights: Weights) -> Floats:
    total = np.zeros(len(sight), dtype=np.float64)
    for name in ABOUT_JOBS:
        words = SCORERS[name](sight, wish) if getattr(weights, name) else None
        if words is not None:
            total += words * getattr(weights, name)
    return total


def _health(state: State, name: str) -> str:
    record = state.ledger.get(("provider", name))
    return str(getattr(record, "health", "ok"))


def tell_choice(choices: Choices, taken: tuple[str, str] | None) -> str:
    """Why the one that is taken is, in a sentence; `taken` names its provider and kind where a worker was found."""
    if taken is None:
        return "no worker has room now: which one it takes is decided when one has"
    one = next((each for each in choices.found if _name(each.prospect) == taken and each.fitting), None)
    if one is None:
        return ""
    rivals = [each for each in choices.found if each.fitting]
    where = f"{one.prospect.of.kind} of {one.prospect.of.provider or 'no provider'}"
    if len(rivals) == 1:
        return f"{where}: nothing else that fits has room now"
    if choices.weights.cheapest_in_time:
        timely = [each for each in rivals if each.in_time]
        if not timely:
            return f"{where}: nowhere is it likely to end before its deadline, and it is the fastest"
        until = "" if choices.deadline_s is None else " on which it is likely to end before its deadline"
        return f"{where}: the least money of {len(timely)}{until}"
    weighed = [name for name in ABOUT_JOBS if getattr(choices.weights, name)]
    return f"{where}: weighed by {', '.join(weighed) or 'how well it fits'}, and by how it fills the workers"


def _name(prospect: Prospect) -> tuple[str, str]:
    return prospect.of.provider, prospect.of.kind


def place_of(state: State, worker_id: str) -> tuple[str, str]:
    """The provider and kind of a worker, as choices name them."""
    columns = state.columns
    offer = columns.offers[columns.get("offer", columns.row_of[worker_id])]
    return provider_of(offer), kind_of(offer)
