"""What a job would come to on each worker: how long it runs there, what that costs, how surely it ends well, how soon
it begins.

Workers are told apart by what matters here, their provider and their kind of card; of those there are few, whatever
there is of workers. How long it runs is learnt by the job's name: from what its runs took on a kind of card, scaled to
other kinds by the steps a second that they tell; else it is what the job expects, its time limit, or an hour. The
surprising rule: a kind of card that nobody has tried is taken for the mean of those that were.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, cast

import numpy as np

from dray.core.lifecycle.providers import records
from dray.core.lifecycle.providers.prices import LEAST_MILLI, card_price, provider_of
from dray.core.lifecycle.state.columns import Columns, Numbers
from dray.core.lifecycle.state.experience import Experience, kind_of_work
from dray.core.lifecycle.state.state import State
from dray.core.model.objectives import CHOSEN, NOTHING, WEIGHTS, Objective, lay_over, read_objective
from dray.core.model.policies.policy import Provider, Weights
from dray.core.model.records.records import Job
from dray.core.model.specs.resources import WHOLE, Ask
from dray.core.model.specs.spec import unpack_spec
from dray.core.scheduling.capacity.memory import Floats
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.choosing.automatic import placement_of

# So many of those who wait are looked at, to know which kinds of cards they need.
MOST_LINES, MOST_ENTRIES = 32, 8
HOUR_S, DAY_S = 3600.0, 86400.0
ASSUMED_S = HOUR_S
# Starting again what was lost, until it runs as before.
RESTART_S = 60.0
MOST_OVERHEAD, MOST_SPREAD, USUAL_SPREAD = 4.0, 10.0, 1.5
ENOUGH_SPANS = 3
MEASURED, SCALED, GUESSED, EXPECTED, LIMITED, ASSUMED = (
    "measured",
    "by steps a second",
    "mean of other cards",
    "as the job expects",
    "its time limit",
    "assumed",
)


class Class(NamedTuple):
    """Workers that are alike in what matters here."""

    provider: str
    words: tuple[str, ...]

    @property
    def kind(self) -> str:
        """What they compute on."""
        return self.words[0] if self.words else "cpu"


class Prospect(NamedTuple):
    """What a job would come to on workers of one class. Money without the part that hangs on how much of a worker it
    takes, which `part_price` an hour is for.
    """

    of: Class
    run_s: float
    p90_s: float
    source: str
    known: bool
    card_price: float
    part_price: float
    priced: bool
    overhead: float
    egress: float
    success: float
    start_s: float | None
    start_p90_s: float


class Outlook:
    """Prospects of one job by class, and each worker's class by its row."""

    def __init__(self, columns: Columns, prospects: Sequence[Prospect], class_of: Numbers, ask: Ask) -> None:
        self.prospects, self._ask = prospects, ask
        self.of_row: Numbers = class_of[columns.view["offer"][: columns.count]]
        self._columns = columns

    def spread(self, values: Sequence[float]) -> Floats:
        """One number per class over all rows."""
        return np.array(values, dtype=np.float64)[self.of_row]

    def prices(self) -> Floats:
        """What an hour costs on each worker."""
        ask, columns = self._ask, self._columns
        fixed, parts = [one.card_price for one in self.prospects], [one.part_price for one in self.prospects]
        found = self.spread(fixed)
        if any(parts):
            if ask.gpus:
                held = columns.inverse("total_gpu") * (ask.gpus * ask.gpu_milli / WHOLE)
            else:
                held = columns.inverse("total_cpu") * max(ask.cpu_milli, LEAST_MILLI)
            found = found + self.spread(parts) * np.minimum(held, 1.0)
        return found

    def money(self) -> Floats:
        """What the whole run costs on each worker, with what losses are likely to make it run again."""
        hours = [one.run_s * one.overhead / HOUR_S for one in self.prospects]
        paid: Floats = self.prices() * self.spread(hours) + self.spread(
            [one.egress for one in self.prospects]
        )
        return paid


def weights_for(state: State, job: Job | None) -> Weights:
    """What counts how much for a job: what it says itself, else its queue, else the policy."""
    weights = placement_of(state).weights
    if job is None:
        return weights
    said = objective_of(state, job)
    if said == NOTHING:
        return weights
    given = {name: value for name in WEIGHTS if (value := getattr(said, name)) is not None}
    if said.cheapest_in_time is not None:
        given["cheapest_in_time"] = CHOSEN if said.cheapest_in_time else 0.0
    fields = {name: getattr(weights, name) for name in Weights.__struct_fields__}
    return Weights(**(fields | given))


def objective_of(state: State, job: Job) -> Objective:
    """What a job says of how to choose, and where it says nothing its queue."""
    return lay_over(read_objective(job.objective), state.policy.queue(job.queue).objective)


def look_out(state: State, rooms: Rooms, job: Job | None, ask: Ask) -> Outlook:
    """The prospects of a job, found once in a pass."""
    key = ("outlook", job.id if job is not None else "", ask)
    found = rooms.worths.get(key)
    if not isinstance(found, Outlook):
        found = rooms.worths[key] = find_outlook(state, job, ask)
    return found


def find_outlook(state: State, job: Job | None, ask: Ask) -> Outlook:
    """The same, found anew."""
    classes, class_of = _classes(state.columns)
    runs = _Runs(state.experience, job)
    egress_gb = objective_of(state, job).egress_gb if job is not None else 0.0
    prospects = [_prospect(state, one, ask, runs, egress_gb) for one in classes]
    return Outlook(state.columns, prospects, class_of, ask)


def others_lose(state: State, rooms: Rooms, job: Job | None) -> dict[str, float]:
    """What the next who waits would lose of its best speed, without each kind of card, against the kind it needs least.

    The mean over the names of a few of those who wait, but for the job's own; all of it where more wait than cards are
    idle, and nothing where nobody else does.
    """
    wanted = rooms.worths.get("wanted")
    if wanted is None:
        wanted = rooms.worths["wanted"] = _names_that_wait(state)
    names = [name for name in cast("dict[str, None]", wanted) if job is None or name != job.name]
    relative = [speeds for name in names if (speeds := state.experience.speeds.relative(name))]
    if not relative:
        return {}
    columns = state.columns
    idle = int(columns.view["free_gpu"][: columns.count].sum())
    share = min(1.0, (sum(state.backlog.depth.values()) - 1) / max(1, idle))
    means = {
        kind: sum(speeds.get(kind, 0.0) for speeds in relative) / len(relative)
        for kind in {kind for speeds in relative for kind in speeds}
    }
    least = min(means.values())
    return {kind: share * (mean - least) for kind, mean in means.items()}


def _names_that_wait(state: State) -> dict[str, None]:
    """The names of the first of a few lines, whose speeds are known."""
    names: dict[str, None] = {}
    for line in islice(state.backlog.buckets, MOST_LINES):
        for entry in islice(state.backlog.entries(line), MOST_ENTRIES):
            waiting = state.jobs.get(entry.job_id)
            if waiting is not None and waiting.waiting and waiting.name in state.experience.speeds.of_name:
                names[waiting.name] = None
    return names


def _classes(columns: Columns) -> tuple[list[Class], Numbers]:
    places: dict[Class, int] = {}
    of_offer = [
        places.setdefault(Class(provider_of(one), one.gpu_words), len(places)) for one in columns.offers
    ]
    return list(places), np.array(of_offer, dtype=np.int64)


def _prospect(state: State, one: Class, ask: Ask, runs: _Runs, egress_gb: float) -> Prospect:
    provider = state.policy.providers.get(one.provider, Provider())
    run_s, p90_s, source, known = runs.on(one.kind)
    price, priced = card_price(provider, one.words)
    by_card = bool(ask.gpus and provider.price_per_gpu_hour)
    lost_s, success, start, late = 0.0, 1.0, None, 0.0
    if one.provider and one.provider in state.provided:
        record = records.read(state, one.provider, state.now_ms)
        lost_s = records.loss_rate(record, provider.spot) / DAY_S
        success = records.success_share(record)
        start = records.start_ms(record, 0.5)
        late = (records.start_ms(record, 0.9) or 0.0) / 1000
    return Prospect(
        one,
        run_s,
        p90_s,
        source,
        known,
        price * ask.gpus * ask.gpu_milli / WHOLE if by_card else 0.0,
        0.0 if by_card else provider.price_per_hour,
        priced or not by_card,
        min(MOST_OVERHEAD, 1 + lost_s * (run_s / 2 + RESTART_S)),
        provider.egress_per_gb * egress_gb,
        success / (1 + lost_s * run_s),
        None if start is None else start / 1000,
        late,
    )


class _Runs:
    """How long a job runs on each kind of card, as far as anybody knows."""

    def __init__(self, known: Experience, job: Job | None) -> None:
        name = job.name if job is not None else ""
        self._took = {
            kind: mean for (whose, kind), (mean, _) in known.runtimes.items() if name and whose == name
        }
        self._rates = {
            kind: rate for (whose, kind), (rate, _) in known.speeds.rates.items() if name and whose == name
        }
        self._base_s, self._source, self._limit_s = _told(job)
        both = [self._took[kind] * rate for kind, rate in self._rates.items() if kind in self._took]
        steps = sum(both) / len(both) if both else self._base_s * max(self._rates.values(), default=0.0)
        self._scaled = {kind: steps / rate for kind, rate in self._rates.items()}
        times = self._scaled | self._took
        self._mean = sum(times.values()) / len(times) if times else 0.0
        # Of runs on several kinds of cards together their spread says more of the cards than of the job.
        self._spread = _spread(known, job) if len(self._took) == 1 else USUAL_SPREAD

    def on(self, kind: str) -> tuple[float, float, str, bool]:
        """Half of its runs are over by the first and nine of ten by the second; where that is known from."""
        if kind in self._scaled:
            found, source = self._scaled[kind], MEASURED if kind in self._took else SCALED
        elif kind in self._took:
            found, source = self._took[kind], MEASURED
        elif self._mean:
            found, source = self._mean, GUESSED
        else:
            return self._base_s, self._limit_s or self._base_s, self._source, False
        if self._limit_s:
            found = min(found, self._limit_s)
        late = found * self._spread
        return found, min(late, self._limit_s) if self._limit_s else late, source, source != GUESSED


def _told(job: Job | None) -> tuple[float, str, float]:
    """How long a job says it runs, how that is known, and its limit, 0 where nobody chose one."""
    if job is None:
        return ASSUMED_S, ASSUMED, 0.0
    spec = unpack_spec(job.spec)
    limit_s = job.limit_ms / 1000 if spec.max_runtime_s or spec.max_runtime_hours else 0.0
    if job.expected_ms:
        return job.expected_ms / 1000, EXPECTED, limit_s
    return (limit_s, LIMITED, limit_s) if limit_s else (ASSUMED_S, ASSUMED, 0.0)


def _spread(known: Experience, job: Job | None) -> float:
    """How much longer than usual one of ten runs takes."""
    spans = sorted(known.spans.by_name.get(kind_of_work(job), ())) if job is not None and job.name else []
    if len(spans) < ENOUGH_SPANS:
        return USUAL_SPREAD
    usual, late = spans[len(spans) // 2], spans[min(len(spans) - 1, len(spans) * 9 // 10)]
    return min(MOST_SPREAD, max(1.0, late / max(1, usual)))
