"""How good a worker would be, each scorer from 0 to 1 over many workers at once; the policy weighs them.

Owns no rule about who fits: that is `capacity.matching`. Scorers see workers through a `Sight`: all of them as the
pass found them, or a few as they stand after its claims. A scorer that has nothing to say answers None and costs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from dray.core.lifecycle.providers.prices import is_priced
from dray.core.lifecycle.state.columns import Columns, Numbers, Offer
from dray.core.lifecycle.state.experience import tokens_of
from dray.core.lifecycle.state.state import State
from dray.core.model.labels import holds
from dray.core.model.policies.policy import Weights
from dray.core.model.records.records import Job
from dray.core.model.specs.resources import IN_ORDER, WHOLE, Ask
from dray.core.scheduling.capacity.memory import Floats, Mask
from dray.core.scheduling.capacity.remaining import Rooms, Rows
from dray.core.scheduling.placement.prospects import Outlook, look_out, others_lose

# Of one worker or of many: the same rule for both.
Share = TypeVar("Share", float, Floats)
UNIT = 1_000_000
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

    def pick(self, whole: Floats) -> Floats:
        """Of numbers for all workers a copy of those in sight: whoever weighs them multiplies in place."""
        return whole.copy() if self.rows is None else whole[self.rows]

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
    """Where the same snapshot, environment, function or job is, or ran before."""
    experience = wish.state.experience
    if not experience.warm or wish.job is None:
        return None
    tokens = tokens_of(wish.job)
    found = [_marks(sight, wish.state, token) for token in tokens if experience.warm.get(token)]
    if not found:
        return None
    # A snapshot and an environment are worth as much: whoever has one of them has half of it.
    marks = found[0] if len(tokens) == 1 else sum(found[1:], found[0]) / len(tokens)
    # A copy in any case: whoever weighs it multiplies in place.
    return marks.copy() if sight.rows is None else marks[sight.rows]


def _marks(sight: Sight, state: State, token: str) -> Floats:
    """One for workers that have a thing warm; kept until that changes."""
    when = state.experience.warm_version, state.columns.roster
    known = sight.rooms.memory.warm
    kept = known.get(token)
    if kept is None or kept[0] != when:
        if len(known) >= MOST_MARKS:
            known.clear()
        kept = known[token] = when, sight.among(state.experience.warm[token])
    return kept[1]


def reliability(sight: Sight, wish: Wish) -> Floats | None:
    """A worker that failed or was lost of late comes after one that was not, as does one of a provider that spoils or
    loses much.
    """
    experience, tracked = wish.state.experience, wish.state.provider_of
    if not experience.trouble and not tracked:
        return None
    marks = {worker: 1 / (1 + experience.trouble_of(worker)) for worker in experience.trouble}
    found = sight.by_worker(marks, 1.0) if marks else np.ones(len(sight), dtype=np.float64)
    return found * sight.pick(_kept(sight, wish, _success)) if tracked else found


def cost(sight: Sight, wish: Wish) -> Floats | None:
    """The less a job costs there from its beginning to its end the better; where nobody is paid it costs nothing."""
    if not is_priced(wish.state.policy.providers):
        return None
    return sight.pick(_kept(sight, wish, _cheapness))


def performance(sight: Sight, wish: Wish) -> Floats | None:
    """How fast jobs of this name ran on this kind of card, against the fastest kind, less what others who wait would
    lose by being kept from that kind; unknown ones lie between.
    """
    experience = wish.state.experience
    if wish.job is None or not (experience.runtimes or experience.speeds.rates):
        return None
    found = sight.pick(_kept(sight, wish, _quickness))
    return found if found.any() else None


def latency(sight: Sight, wish: Wish) -> Floats | None:
    """The sooner work begins at a provider, once it was given out, the better; where nobody knows it is in between."""
    return sight.pick(_kept(sight, wish, _promptness)) if wish.state.provider_of else None


def cheapest_in_time(sight: Sight, wish: Wish) -> Floats | None:
    """The least money among those on which it is likely to end before its deadline; where there is none, the fastest.

    Of workers that have room as the pass found them.
    """
    return sight.pick(_kept(sight, wish, _choice)) if wish.job is not None else None


def _kept(sight: Sight, wish: Wish, find: Callable[[Sight, Wish, Outlook], Floats]) -> Floats:
    """Words on all workers, found once in a pass: nothing of them hangs on what it claims."""
    key = (find, wish.job.id if wish.job is not None else "", wish.ask)
    found = sight.rooms.worths.get(key)
    if found is None:
        outlook = look_out(wish.state, sight.rooms, wish.job, wish.ask)
        found = sight.rooms.worths[key] = find(sight, wish, outlook)
    return cast("Floats", found)


def _success(sight: Sight, wish: Wish, outlook: Outlook) -> Floats:
    return outlook.spread([one.success for one in outlook.prospects])


def _cheapness(sight: Sight, wish: Wish, outlook: Outlook) -> Floats:
    return _against_least(outlook.money())


def _against_least(money: Floats) -> Floats:
    """Least divided by each. Where some cost nothing they are the best, and the cheapest other is half as good."""
    paid = money[money > 0]
    if not len(paid):
        return np.ones(len(money), dtype=np.float64)
    share = paid.min() / np.maximum(money, paid.min())
    found: Floats = share if len(paid) == len(money) else np.where(money > 0, share / 2, 1.0)
    return found


def _quickness(sight: Sight, wish: Wish, outlook: Outlook) -> Floats:
    times = [one.run_s if one.known else 0.0 for one in outlook.prospects]
    best = min((time for time in times if time > 0), default=0.0)
    speeds = [best / time if time else (0.5 if best else 0.0) for time in times]
    wanted = others_lose(wish.state, sight.rooms, wish.job)
    if wanted:
        speeds = [
            max(0.0, speed - wanted.get(one.of.kind, 0.0))
            for speed, one in zip(speeds, outlook.prospects, strict=True)
        ]
    return outlook.spread(speeds)


def _promptness(sight: Sight, wish: Wish, outlook: Outlook) -> Floats:
    # Differences of less than a second are nobody's reason to go elsewhere.
    waits = [None if one.start_s is None else one.start_s + 1.0 for one in outlook.prospects]
    best = min((wait for wait in waits if wait is not None), default=1.0)
    return outlook.spread([0.5 if wait is None else best / wait for wait in waits])


def _choice(sight: Sight, wish: Wish, outlook: Outlook) -> Floats:
    in_time, ends = who_is_in_time(wish, outlook)
    fits = sight.rooms.mask(wish.ask)
    money = outlook.money()
    if (in_time & fits).any():
        chosen = np.zeros(len(money), dtype=np.float64)
        chosen[in_time] = 0.5 + _against_least(money[in_time]) / 2
        return chosen
    return ends.min(initial=np.inf) / np.maximum(ends, 1e-3) / 2 if len(ends) else ends


def who_is_in_time(wish: Wish, outlook: Outlook) -> tuple[Mask, Floats]:
    """On which workers a job that starts now is likely to end before its deadline, and after how many seconds."""
    ends = outlook.spread([one.start_p90_s + one.p90_s * one.overhead for one in outlook.prospects])
    if wish.job is None or not wish.job.deadline_ms:
        return np.ones(len(ends), dtype=np.bool_), ends
    left_s = (wish.job.deadline_ms - wish.state.at_ms) / 1000
    return ends <= left_s, ends


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
    "latency": latency,
    "cheapest_in_time": cheapest_in_time,
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
