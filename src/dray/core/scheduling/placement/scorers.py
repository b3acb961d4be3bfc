"""How good a worker would be, each scorer from 0 to 1 over many workers at once; the policy weighs them.

Owns no rule about who fits: that is `capacity.matching`. Scorers see workers through a `Sight`: all of them as the
pass found them, or a few as they stand after its claims. A scorer that has nothing to say answers None and costs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dray.core.lifecycle.state.columns import Columns, Numbers, Offer, kind_of
from dray.core.lifecycle.state.experience import token_of
from dray.core.lifecycle.state.state import State
from dray.core.model.labels import holds
from dray.core.model.policies.policy import Weights
from dray.core.model.records.records import Job
from dray.core.model.specs.resources import IN_ORDER, WHOLE, Ask
from dray.core.scheduling.capacity.memory import Floats
from dray.core.scheduling.capacity.remaining import Rooms, Rows

# Of one worker or of many: the same rule for both.
Share = TypeVar("Share", float, Floats)
UNIT = 1_000_000
PROVIDER = "provider"
MOST_MARKS = 64
MOST = (1 << 63) - 1


class Sight:
    """Columns of all workers (`rows` None) or of some, as the pass found them or, with `claims`, as it left them."""

    def __init__(self, rooms: Rooms, rows: Rows | None = None, claims: bool = False) -> None:
        self.rooms, self.rows, self.claims = rooms, rows, claims and rows is not None
        self._columns = rooms.columns
        self._kept: dict[str, Any] = {}
        self._lefts = [rooms.left(row) for row in rows.tolist()] if self.claims and rows is not None else None

    def __len__(self) -> int:
        return self._columns.count if self.rows is None else len(self.rows)

    def column(self, name: str) -> Numbers:
        """A column as it stands in the state."""
        return self._pick(self._columns.view[name])

    def _keep(self, what: str) -> Numbers:
        found: Numbers | None = self._kept.get(f"free {what}")
        if found is None:
            found = self._kept[f"free {what}"] = self._pick(self.rooms.free(what))
        return found

    def _pick(self, column: Numbers) -> Numbers:
        return column[: self._columns.count] if self.rows is None else column[self.rows]

    @property
    def free_cpu(self) -> Numbers:
        if self._lefts is None:
            return self._keep("cpu")
        return np.array([left.cpu for left in self._lefts], dtype=np.int64)

    @property
    def free_mem(self) -> Numbers:
        if self._lefts is None:
            return self._keep("mem")
        return np.array([left.memory for left in self._lefts], dtype=np.int64)

    @property
    def free_milli(self) -> Numbers:
        """Idle GPU share of all healthy cards together."""
        if self._lefts is None:
            return self.column("free_milli")
        total: Numbers = self.devices.sum(axis=1)
        return total

    @property
    def devices(self) -> Numbers:
        """Idle share of each card; 0 for one that is not there."""
        if self._lefts is None:
            return self._pick(self._columns.device_free)
        free = np.zeros((len(self._lefts), self._columns.device_free.shape[1]), dtype=np.int64)
        for place, left in enumerate(self._lefts):
            for card, device in enumerate(left.cards):
                free[place, card] = WHOLE - left.used.get(device.index, 0) if device.healthy else 0
        return free

    @property
    def vram(self) -> Numbers:
        return self._pick(self._columns.device_vram)

    def least(self, what: str) -> int:
        """The least cpu or memory that is free on any worker in sight, as the pass found them."""
        found: int | None = self._kept.get(f"least {what}")
        if found is None:
            found = self._kept[f"least {what}"] = int(self._keep(what).min(initial=MOST))
        return found

    def inverse(self, name: str) -> Floats:
        """One divided by a total; 0 where there is none, so that an unknown total leaves nothing over."""
        if self.rows is None:
            return self._columns.inverse(name)
        found: Floats | None = self._kept.get(name)
        if found is None:
            found = self._kept[name] = self._columns.inverse(name)[self.rows]
        return found

    def free_gpu_share(self) -> Floats:
        """A third of the free part of all cards: found once for all shapes that ask in this pass."""
        found = self._kept.get("gpu")
        if found is None:
            found = self._kept["gpu"] = self.free_milli * (self.inverse("total_gpu") / (3 * WHOLE))
        return found

    def packed_share(self) -> Floats:
        """One less the free parts of cpu and memory."""
        found: Floats | None = self._kept.get("packed")
        if found is None:
            cpu, mem = self.inverse("total_cpu"), self.inverse("total_mem")
            found = self._kept["packed"] = packed_part(self.free_cpu * (cpu / 3), self.free_mem * (mem / 3))
        return found

    def by_offer(self, values: list[float]) -> Floats:
        """Spread one number per class of worker over the rows."""
        return np.array(values, dtype=np.float64)[self.column("offer")]

    def by_worker(self, values: dict[str, float], otherwise: float) -> Floats:
        """Numbers of some workers over the rows."""
        row_of = self._columns.row_of
        spread = np.full(self._columns.count, otherwise, dtype=np.float64)
        for worker, value in values.items():
            if worker in row_of:
                spread[row_of[worker]] = value
        return spread if self.rows is None else spread[self.rows]

    def among(self, workers: Iterable[str]) -> Floats:
        """One for these workers, zero for the others."""
        row_of = self._columns.row_of
        spread = np.zeros(self._columns.count, dtype=np.float64)
        spread[[row_of[worker] for worker in workers if worker in row_of]] = 1.0
        return spread


class Wish(NamedTuple):
    """Who asks: the ask and, where a scorer cares for more than it, the job."""

    state: State
    ask: Ask
    job: Job | None = None


Scorer = Callable[[Sight, Wish], "Floats | None"]


def leftover(sight: Sight, wish: Wish) -> Floats | None:
    """The less of a worker stays free the better: large holes stay whole."""
    ask = wish.ask
    packed = asked_part(ask, sight.inverse("total_cpu"), sight.inverse("total_mem"))
    if ask.gpus:
        packed += sight.inverse("total_gpu") * (ask.gpus * ask.gpu_milli / (3 * WHOLE))
        packed -= sight.free_gpu_share()
    packed += sight.packed_share()
    return packed


def leftover_of(columns: Columns, row: int, ask: Ask) -> float:
    """The same of one worker for an ask without cards, to the last bit: as the columns stand, no claims taken off."""
    of = columns.cells
    cpu, mem = columns.inverse("total_cpu").item(row), columns.inverse("total_mem").item(row)
    free_cpu = of["total_cpu"][row] - of["used_cpu"][row]
    free_mem = of["total_mem"][row] - of["used_mem"][row]
    return asked_part(ask, cpu, mem) + packed_part(free_cpu * (cpu / 3), free_mem * (mem / 3))


def asked_part(ask: Ask, inverse_cpu: Share, inverse_mem: Share) -> Share:
    """A third each of the parts of cpu and memory that an ask takes."""
    return inverse_cpu * (ask.cpu_milli / 3) + inverse_mem * (ask.memory_bytes / 3)


def packed_part(free_cpu: Share, free_mem: Share) -> Share:
    """One less the free parts."""
    return 1 - free_cpu - free_mem


def gpu_avoidance(sight: Sight, wish: Wish) -> Floats | None:
    """Work without a GPU goes to workers with GPUs last."""
    if not any("gpu" in offer.kinds or "tpu" in offer.kinds for offer in _offers(wish)):
        return None
    if wish.ask.gpus:
        return np.ones(len(sight), dtype=np.float64)  # an alternative that needs the GPUs does not waste them
    without: Floats = (sight.column("total_gpu") == 0).astype(np.float64)
    return without


def warmth(sight: Sight, wish: Wish) -> Floats | None:
    """Where the same snapshot, function or job ran before."""
    experience = wish.state.experience
    if not experience.warm or wish.job is None:
        return None
    token = token_of(wish.job)
    workers = experience.warm.get(token)
    if not workers:
        return None
    when = experience.warm_version, wish.state.columns.roster
    known = sight.rooms.memory.warm
    kept = known.get(token)
    if kept is None or kept[0] != when:
        if len(known) >= MOST_MARKS:
            known.clear()
        kept = known[token] = when, sight.among(workers)
    marks = kept[1]
    # A copy in any case: whoever weighs it multiplies in place.
    return marks.copy() if sight.rows is None else marks[sight.rows]


def reliability(sight: Sight, wish: Wish) -> Floats | None:
    """A worker that failed or was lost of late comes after one that was not."""
    experience = wish.state.experience
    if not experience.trouble:
        return None
    marks = {worker: 1 / (1 + experience.trouble_of(worker)) for worker in experience.trouble}
    return sight.by_worker(marks, 1.0)


def cost(sight: Sight, wish: Wish) -> Floats | None:
    """The cheaper the provider of a worker the better; one without a price costs nothing."""
    prices = {name: provider.price_per_hour for name, provider in wish.state.policy.providers.items()}
    dearest = max(prices.values(), default=0)
    if dearest <= 0:
        return None
    named = [dict(offer.labels).get(PROVIDER, "") for offer in _offers(wish)]
    return sight.by_offer([1 - prices.get(name, 0) / dearest for name in named])


def performance(sight: Sight, wish: Wish) -> Floats | None:
    """How fast jobs of this name ran on this kind of card, against the fastest kind; unknown ones lie between."""
    experience = wish.state.experience
    if wish.job is None or not experience.runtimes:
        return None
    times = [experience.runtime_of(wish.job.name, kind_of(offer)) for offer in _offers(wish)]
    best = min((time for time in times if time > 0), default=0)
    return sight.by_offer([best / time if time else 0.5 for time in times]) if best else None


def card_size(sight: Sight, wish: Wish) -> Floats | None:
    """Where VRAM is asked for: the smaller the smallest card that has it, the better: large ones stay free.

    Against the largest card of all, not of those in sight: scores of some must compare with those of others.
    """
    ask = wish.ask
    if not ask.gpus or not (ask.vram_each_bytes or ask.vram_total_bytes):
        return None
    largest = int(wish.state.columns.device_vram.max(initial=0))
    if largest <= 0:
        return None
    least = max(ask.vram_each_bytes, -(-ask.vram_total_bytes // ask.gpus))
    sizes = sight.vram
    good = (sight.devices >= ask.gpu_milli) & (sizes >= least)
    smallest: Numbers = np.where(good, sizes, largest).min(axis=1, initial=largest)
    return 1.0 - smallest / largest


def prefer(sight: Sight, wish: Wish) -> Floats | None:
    """The share of the labels asked for that a worker has."""
    wanted = [item for item in wish.ask.prefer if item != IN_ORDER]
    if not wanted:
        return None
    labels = [dict(offer.labels) for offer in _offers(wish)]
    return sight.by_offer([sum(holds(item, given) for item in wanted) / len(wanted) for given in labels])


def _offers(wish: Wish) -> list[Offer]:
    return wish.state.columns.offers


SCORERS: dict[str, Scorer] = {
    "leftover": leftover,
    "gpu_avoidance": gpu_avoidance,
    "warmth": warmth,
    "reliability": reliability,
    "cost": cost,
    "performance": performance,
    "card_size": card_size,
    "prefer": prefer,
}


def hear(sight: Sight, wish: Wish, weights: Weights, scorers: Mapping[str, Scorer]) -> dict[str, Floats]:
    """The weighted words of all scorers that have a weight and something to say."""
    heard: dict[str, Floats] = {}
    for name, scorer in scorers.items():
        weight = getattr(weights, name)
        found = scorer(sight, wish) if weight else None
        if found is not None:
            if weight != 1:
                found *= weight
            heard[name] = found
    return heard


def weigh(sight: Sight, heard: dict[str, Floats]) -> Floats:
    """The sum of weighted words, in their order."""
    total: Floats | None = None
    for found in heard.values():
        total = found if total is None else total + found
    return np.zeros(len(sight), dtype=np.float64) if total is None else total


def terms(sight: Sight, wish: Wish, weights: Weights, scorers: Mapping[str, Scorer]) -> dict[str, Floats]:
    """Every scorer's own word, unweighted, for `plan` to show."""
    found = {name: scorer(sight, wish) for name, scorer in scorers.items() if getattr(weights, name)}
    return {name: values for name, values in found.items() if values is not None}


def to_integer(score: float, unit: int = UNIT) -> int:
    """The same of one score."""
    return int(score * unit + 0.5)


def to_integers(scores: Floats, unit: int = UNIT) -> Numbers:
    """Scores become integers before they are compared, so that two runs decide alike."""
    scores = scores * unit
    scores += 0.5
    return scores.astype(np.int64)
