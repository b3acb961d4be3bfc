"""What tells one strategy from another: kinds of workers, what is asked of their cards, how full they are.

Read from columns and from the heads of lines, so many of them at most: the cost is in what there are kinds of, not in
what waits.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

import numpy as np

from dray.core.lifecycle.happenings.policy import CHOICE
from dray.core.lifecycle.providers.prices import is_priced, provider_of
from dray.core.lifecycle.state.columns import Offer
from dray.core.lifecycle.state.experience import Experience
from dray.core.lifecycle.state.lines import RANGE
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.core.model.specs.resources import WHOLE, Asks

MOST_SHAPES, MOST_LINES, MOST_JOBS = 500, 500, 2_000
# Of what is usually asked for, so much must share or name cards before that counts.
NOTICED = 0.05
# After so many placements it is known what is usually asked for.
FEW = 64


class Signs(NamedTuple):
    """`kinds`: how many kinds of worker there are, told apart by provider and card; `cards`: how many kinds of card;
    `fine`: the share of card work that shares a card or names a model; `new`: hardly anything was placed so far, and
    nothing was chosen; `known`: of the cards that waiting work asks for, the share whose speed is known on two kinds
    at least; `waiting`: how many tasks wait whose costs differ from worker to worker, where somebody can place them
    together; `slack`: the idle room by what they ask for.
    """

    kinds: int
    cards: int
    fine: float
    known: float
    new: bool = False
    waiting: int = 0
    slack: float = 0.0


def read_signs(state: State) -> Signs | None:
    """How things stand; None while no worker is there."""
    columns = state.columns
    here = np.flatnonzero(columns.view["open"][: columns.count])
    if not len(here):
        return None
    offers = [columns.offers[number] for number in np.unique(columns.view["offer"][here]).tolist()]
    known, cards, choosy, cores = _waiting(state)
    free = int(columns.view["free_milli"][here].sum())
    idle = int((columns.view["total_cpu"][here] - columns.view["used_cpu"][here]).sum())
    return Signs(
        len({(provider_of(offer), offer.gpu_words) for offer in offers}),
        len({_card(offer) for offer in offers if offer.gpu_words}),
        _fine(state),
        known,
        CHOICE not in state.ledger and state.experience.placed_ever < FEW,
        choosy if state.solver else 0,
        free / cards if cards else idle / max(1, cores),
    )


def _card(offer: Offer) -> str:
    return offer.gpu_words[0]


def _fine(state: State) -> float:
    """Of what is usually asked for and what waits, both by their number: the larger share that is particular."""
    usual = [(asks, weight) for asks, weight in state.experience.typical() if asks[0].gpus]
    shapes = state.shapes
    waiting: list[tuple[Asks, int]] = [
        (shapes.asks[shape], shapes.refs[shape])
        for shape in islice(state.backlog.of_shape, MOST_SHAPES)
        if shapes.asks[shape][0].gpus
    ]
    return max(_particular(usual), _particular(waiting))


def _particular(weighed: list[tuple[Asks, int]]) -> float:
    total = sum(weight for _, weight in weighed)
    fine = sum(
        weight for asks, weight in weighed if any(ask.gpu_milli < WHOLE or ask.gpu_type for ask in asks)
    )
    return fine / total if total else 0.0


def _waiting(state: State) -> tuple[float, int, int, int]:
    """Of the cards that the first jobs in line ask for, the share of those whose speed somebody knows; how many
    milli-cards they ask for; how many of their tasks cost more on one worker than on another; and how many millicores
    they ask for.
    """
    names, weights = _compared(state.experience), state.policy.placement.weights
    priced = bool((weights.cost or weights.cheapest_in_time) and is_priced(state.policy.providers))
    known = cards = cores = choosy = 0
    for job in _first_jobs(state):
        ask, tasks = state.asks(job.shape)[0], max(1, job.waiting)
        asked = ask.gpus * ask.gpu_milli * ask.nodes * tasks
        cards += asked
        cores += ask.cpu_milli * ask.nodes * tasks
        known += asked if job.name in names else 0
        choosy += tasks if priced or ask.prefer or (weights.performance and job.name in names) else 0
    return (known / cards if cards else 0.0), cards, choosy, cores


def _compared(experience: Experience) -> set[str]:
    """Names of jobs whose speed is known on more than one kind of card."""
    found: set[str] = set()
    for table in (experience.runtimes, experience.speeds.rates):
        once: set[str] = set()
        for name, kind in table:
            if name and kind:
                (found if name in once else once).add(name)
    return found


def _first_jobs(state: State) -> list[Job]:
    found: dict[str, Job] = {}
    for line in islice(state.backlog.buckets, MOST_LINES):
        for entry in islice(state.backlog.entries(line), MOST_JOBS // 4):
            job = state.jobs.get(entry.job_id)
            if job is not None and job.waiting and (entry.position == RANGE or job.requeued):
                found[job.id] = job
        if len(found) >= MOST_JOBS:
            break
    return list(found.values())
