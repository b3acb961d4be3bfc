"""Where tasks go among the workers that fit: one mechanism, several strategies.

Every strategy gives an integer score per worker; the best wins, among equals the earlier alternative, then the smaller
worker id. A strategy is a class in `STRATEGIES`: most replace `score` alone. The surprising rule: where a worker just
used can only have become better for the same shape (`sticky`), it is filled on without being scored again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol

import numpy as np

from dray.core.lifecycle.providers.prices import is_priced
from dray.core.lifecycle.state.columns import Numbers
from dray.core.lifecycle.state.experience import tokens_of
from dray.core.lifecycle.state.parties import Tally
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.policy import Weights
from dray.core.model.records.records import Job
from dray.core.model.specs.resources import WHOLE, Ask
from dray.core.model.specs.spec import unpack_spec
from dray.core.scheduling.capacity.memory import Floats, Mask, Stamp
from dray.core.scheduling.capacity.remaining import Devices, Rooms
from dray.core.scheduling.choosing.automatic import placement_of
from dray.core.scheduling.placement.candidates import LAST_RANK, Candidate, Spot, Walk
from dray.core.scheduling.placement.foresight import foresight_of
from dray.core.scheduling.placement.fragmentation import fragmentation, fragments_of
from dray.core.scheduling.placement.kept_keys import is_plain
from dray.core.scheduling.placement.packed_front import FEWEST_WORKERS, Front, PlainWalk
from dray.core.scheduling.placement.prospects import weights_for
from dray.core.scheduling.placement.scorers import (
    SCORERS,
    UNIT,
    Scorer,
    Sight,
    Wish,
    asked_part,
    hear,
    leftover,
    leftover_of,
    terms,
    to_integer,
    to_integers,
    weigh,
)
from dray.core.scheduling.placement.spreading import Lies, Spreading

Hints = Mapping[int, Sequence[int]]
MOST_WALKS = 256
FEW_WALKS = 4
MOST_WEIGHT = 1000.0
# Where tasks of a workload lie goes before all that the site weighs.
FIRST = 500.0


class Placer:
    """The placements of one pass; made anew for each by `make_placer`. Claims are made in `rooms`.

    `owner` is the job that asks: guards and some scorers care. `hints` names the only workers worth a look for a shape
    that had found all others full.
    """

    sticky = False
    personal = False

    def __init__(self, state: State, rooms: Rooms, hints: Hints | None = None) -> None:
        self.state, self.rooms, self.hints = state, rooms, hints or {}
        self.sight = Sight(rooms)
        self._walks: dict[tuple[int, str], Walk] = {}
        self._plain_walks: dict[tuple[int, str], PlainWalk] = {}
        self._plain_spots: dict[int, Spot] = {}
        self._inverse_rank: Numbers | None = None
        self.shunned = _shunned(state) if state.bad_providers else None

    # --- the face that a pass sees ------------------------------------------------------------------------------------

    def place(self, shape: int, count: int, owner: str = "", avoid: str = "") -> list[Spot]:
        """Claim room for up to `count` tasks; fewer means that there is no more room.

        The worker named in `avoid` is used only where no other has room.
        """
        hint = self.hints.get(shape)
        if hint is not None and not self._hint_holds(shape, hint):
            return []
        if avoid:
            return self._place_beside(self.state.columns.row_of.get(avoid, -1), shape, count, owner)
        walk: Walk | PlainWalk | None = None
        if hint is None and self.sticky and not self.rooms.guards and not self._is_special(owner):
            walk = self._plain_walk(shape, owner)
        if walk is None:
            walk = self.walk(shape, owner)
        spots = walk.take(count, owner)
        if not spots:
            return spots
        while len(spots) < count:
            more = walk.take(count - len(spots), owner)
            if not more:
                break
            spots += more
        return spots

    def _place_beside(self, row: int, shape: int, count: int, owner: str) -> list[Spot]:
        walk, spots = self.walk(shape, owner), list[Spot]()
        while len(spots) < count and (more := walk.take_beside(row, count - len(spots), owner)):
            spots += more
        return spots

    def place_gang(self, shape: int, owner: str = "", avoid: Sequence[str] = ()) -> list[Spot] | None:
        """Claim one place each on as many workers as the gang has members, or on none.

        Workers named in `avoid` are used only where it cannot be done without them.
        """
        row_of = self.state.columns.row_of
        avoided = {row_of[worker] for worker in avoid if worker in row_of}
        asks = self.state.asks(shape)
        chosen = self.walk(shape, owner).muster(owner, avoided)
        for spot in chosen or ():
            self.claim(spot, asks[spot.variant], owner)
        return chosen

    def ranking(self, shape: int, owner: str = "", most: int | None = None) -> list[Candidate]:
        """Every worker that fits now, or so many, best first, with its score: what `plan` shows. Claims nothing."""
        return self.walk(shape, owner).ranking(owner, most)

    def terms(self, shape: int, candidate: Candidate, owner: str = "") -> dict[str, float]:
        """What each scorer says of one candidate."""
        return {}

    def forget_walks(self) -> None:
        """Let go of all that was begun: walks and placer name each other, and would wait for the collector."""
        self._walks.clear()
        self._plain_walks.clear()

    # --- what strategies replace --------------------------------------------------------------------------------------

    def score(self, sight: Sight, wish: Wish) -> Numbers:
        """How good each worker in sight is for an ask, as integers; more is better, none is negative."""
        raise NotImplementedError

    def stamp(self, flavour: str) -> Stamp | None:
        """What scores hang on besides the room, make and id of a worker, the ask and the policy.

        None: on too much. Scores are then made anew in each pass; else `steady` and `score_one` must be there too.
        """
        return None

    def steady(self) -> tuple[Floats, ...]:
        """The parts of the scores given last that do not hang on room."""
        return ()

    def score_one(self, row: int, ask: Ask, steady: tuple[Floats, ...]) -> int:
        """The score of one worker for an ask without cards, as `score` would give it; `steady` as it was then."""
        raise NotImplementedError

    def chooses(self, job: Job) -> bool:
        """Whether a job is scored by other weights than everybody else."""
        return False

    def front(self, pool: str) -> Front | None:
        """The workers to look at first, where that pays and `ceiling` can tell when it is enough."""
        return None

    def ceiling(self, front: Front, reach: int, wish: Wish) -> int:
        """The most that any worker behind the first `reach` of a front can score."""
        raise NotImplementedError

    def flavour(self, job: Job | None) -> str:
        """What tells apart jobs of one shape that are scored differently; empty where nothing does."""
        return ""

    def fit(self, row: int, ask: Ask, owner: str) -> Devices | None:
        """The cards a task would get on a worker; None where it does not fit."""
        return self.rooms.fit(row, ask, owner)

    def claim(self, spot: Spot, ask: Ask, owner: str, times: int = 1) -> None:
        """Take a spot."""
        self.rooms.claim(spot.row, ask, spot.devices, times)

    def gather(self, row: int, sign: int) -> bool:
        """Follow that a gang would have a member there, or would not after all; whether others may fit for that."""
        return False

    def _hint_holds(self, shape: int, hint: Sequence[int]) -> bool:
        """Whether the few workers worth a look have anything left: mostly another shape was quicker."""
        asks, left_of = self.state.asks(shape), self.rooms.left
        return any(left_of(row).holds(ask) for row in hint for ask in asks)

    # --- machinery ----------------------------------------------------------------------------------------------------

    def walk(self, shape: int, owner: str) -> Walk:
        """The way of a shape through its candidates, begun at the first call."""
        job = self.state.jobs.get(owner)
        apart = self.personal or (job is not None and job.objective)
        key = (shape, self.flavour(job) if apart else "")
        walk = self._walks.get(key)
        if walk is None:
            if len(self._walks) >= MOST_WALKS:
                del self._walks[next(iter(self._walks))]
            walk = self._walks[key] = Walk(self, shape, job, self.hints.get(shape))
        return walk

    def _is_special(self, owner: str) -> bool:
        """Whether a job needs a walk of its own: some workers come last, or it is scored by its own weights."""
        job = self.state.jobs.get(owner)
        return self.shunned is not None or (job is not None and self.chooses(job))

    def _plain_walk(self, shape: int, owner: str) -> PlainWalk | None:
        """The same for a shape with one alternative and no cards; None where it is another kind of shape."""
        key = (shape, self.flavour(self.state.jobs.get(owner)) if self.personal else "")
        walk = self._plain_walks.get(key)
        if walk is None:
            if not is_plain(self.state.asks(shape)):
                return None
            if len(self._plain_walks) >= MOST_WALKS:
                del self._plain_walks[next(iter(self._plain_walks))]
            walk = self._plain_walks[key] = PlainWalk(self, key, self.state.jobs.get(owner))
        return walk

    def plain_spot(self, row: int) -> Spot:
        """A place without cards on a worker; one for all shapes."""
        spot = self._plain_spots.get(row)
        if spot is None:
            spot = self._plain_spots[row] = Spot(row, 0, ())
        return spot

    def inverse_rank(self) -> Numbers:
        """A number per worker that is larger the earlier its id comes: the last part of every key."""
        if self._inverse_rank is None:
            columns = self.state.columns
            columns.refresh_ranks()
            self._inverse_rank = LAST_RANK - columns.view["rank"][: columns.count]
        return self._inverse_rank


class Greedy(Placer):
    """Weighted scorers, the weights from the policy: the default."""

    def __init__(self, state: State, rooms: Rooms, hints: Hints | None = None) -> None:
        super().__init__(state, rooms, hints)
        self._weights = weights = placement_of(state).weights
        self._scorers, self._unit = _weighing(weights)
        self.sticky = not (weights.fragmentation or weights.spread)
        self._spreadings: dict[str, Spreading] = {}
        self._heard: dict[str, Floats] = {}
        self._fronts: dict[str, Front] = {}
        known = state.experience
        # What a job costs, and how long it runs, hangs on its name, and on what it says itself.
        self._by_job = bool(
            (weights.performance and (known.runtimes or known.speeds.rates))
            or (weights.cost and is_priced(state.policy.providers))
            or weights.cheapest_in_time
            or ((weights.reliability or weights.latency) and state.provider_of)
        )
        self._queues_choose = any(queue.objective for queue in state.policy.queues.values())
        self.personal = bool(
            weights.spread or (weights.warmth and known.warm) or self._by_job or self._queues_choose
        )

    def score(self, sight: Sight, wish: Wish) -> Numbers:
        weights, scorers, unit = self._weights, self._scorers, self._unit
        if wish.job is not None and self.chooses(wish.job):
            weights = weights_for(self.state, wish.job)
            scorers, unit = _weighing(weights)
        self._heard = hear(sight, wish, weights, scorers)
        scores = weigh(sight, self._heard)
        if weights.spread and wish.job is not None:
            scores = scores + self._spreading(wish.job).score(sight) * weights.spread
        return to_integers(scores, unit)

    def chooses(self, job: Job) -> bool:
        return bool(job.objective) or (
            self._queues_choose and self.state.policy.queue(job.queue).objective is not None
        )

    def stamp(self, flavour: str) -> Stamp | None:
        weights, known = self._weights, self.state.experience
        if not self.sticky or self._by_job or (weights.reliability and known.trouble):
            return None
        return (known.warm_version if flavour else 0,)

    def steady(self) -> tuple[Floats, ...]:
        return tuple(words for name, words in self._heard.items() if name != "leftover")

    def score_one(self, row: int, ask: Ask, steady: tuple[Floats, ...]) -> int:
        weight = self._weights.leftover
        total = leftover_of(self.state.columns, row, ask) * weight if weight else 0.0
        for words in steady:
            total += words.item(row)
        return to_integer(total, self._unit)

    def front(self, pool: str) -> Front | None:
        columns = self.state.columns
        few = len(self._plain_walks) < FEW_WALKS and len(self.state.backlog.awake) < FEW_WALKS
        if few or columns.count < FEWEST_WORKERS or not self._weights.leftover:
            return None
        found = self._fronts.get(pool)
        if found is None:
            found = self._fronts[pool] = Front(self, pool)
        return found

    def ceiling(self, front: Front, reach: int, wish: Wish) -> int:
        # The sums of `leftover` and `weigh` in their very order: rounding must not lift a worker above its ceiling.
        most = asked_part(wish.ask, front.steepest_cpu, front.steepest_mem)
        most += float(front.packed_behind[reach])
        total = 0.0
        for name in self._heard:
            weight = getattr(self._weights, name)
            total += (most if name == "leftover" else 1.0) * weight
        return int(total * self._unit + 0.5)

    def flavour(self, job: Job | None) -> str:
        if job is None:
            return ""
        weights, experience = self._weights, self.state.experience
        if weights.spread:
            return job.id
        token = ""
        if weights.warmth and experience.warm:
            token = " ".join(one for one in tokens_of(job) if one in experience.warm)
        if self._by_job or job.objective or self._queues_choose:
            token += self._mark(job)
        return token

    def _mark(self, job: Job) -> str:
        """What else tells jobs of one shape apart here: all that their time and money are found from."""
        if not self._by_job and not self.chooses(job):
            return ""
        told = unpack_spec(job.spec)
        limit = job.limit_ms if told.max_runtime_s or told.max_runtime_hours else 0
        asked = (
            job.queue if self._queues_choose else "",
            job.objective,
            job.expected_ms,
            limit,
            job.deadline_ms,
        )
        return f" {job.name} {asked}"

    def claim(self, spot: Spot, ask: Ask, owner: str, times: int = 1) -> None:
        super().claim(spot, ask, owner, times)
        job = self.state.jobs.get(owner) if self._weights.spread else None
        if job is not None:
            spreading = self._spreading(job)
            for _ in range(times):
                spreading.add(spot.row)
            if spreading.by_label:
                self.walk(job.shape, owner).rebuild()

    def terms(self, shape: int, candidate: Candidate, owner: str = "") -> dict[str, float]:
        wish = Wish(self.state, self.state.asks(shape)[candidate.variant], self.state.jobs.get(owner))
        sight = Sight(self.rooms, np.array([candidate.row], dtype=np.intp), claims=True)
        weights = weights_for(self.state, wish.job)
        found = terms(sight, wish, weights, _weighing(weights)[0])
        return {name: round(float(values[0]), 4) for name, values in found.items()}

    def _spreading(self, job: Job) -> Spreading:
        found = self._spreadings.get(job.id)
        if found is None:
            label = self.state.policy.placement.spread_label
            found = self._spreadings[job.id] = Spreading(self.state, job.id, label)
        return found


class Distributed(Greedy):
    """The default strategy for one workload, with one more word that goes before all others: where its tasks lie.

    Where that must be so, a place with too many of them is no place for another one. That says nothing of the room
    there: whoever is refused is not taken for one who found none.
    """

    def __init__(self, state: State, rooms: Rooms, tally: Tally) -> None:
        super().__init__(state, rooms)
        self.sticky, self.personal = False, True
        self._workload = tally.record.id
        self.lies = Lies(state, tally)
        # Somewhere there was room, and one more would have been too many.
        self.held_apart = False

    def score(self, sight: Sight, wish: Wish) -> Numbers:
        words = to_integers(self.lies.score(sight) * FIRST, self._unit)
        return super().score(sight, wish) + words

    def stamp(self, flavour: str) -> Stamp | None:
        return None

    def flavour(self, job: Job | None) -> str:
        return self._workload

    def fit(self, row: int, ask: Ask, owner: str) -> Devices | None:
        devices = super().fit(row, ask, owner)
        if devices is not None and self.lies.forbids(row):
            self.held_apart = True
            return None
        return devices

    def gather(self, row: int, sign: int) -> bool:
        self.lies.add(row, sign)
        return self.lies.terms.required

    def claim(self, spot: Spot, ask: Ask, owner: str, times: int = 1) -> None:
        self.rooms.claim(spot.row, ask, spot.devices, times)
        for _ in range(times):
            self.lies.add(spot.row)
        if (job := self.state.jobs.get(owner)) is not None:
            self.walk(job.shape, owner).rebuild()


def _shunned(state: State) -> Mask:
    """The rows of workers whose provider is bad: they come last, whatever else speaks for them."""
    columns = state.columns
    found = np.zeros(columns.count, dtype=np.bool_)
    for name in state.bad_providers:
        rows = [columns.row_of[worker] for worker in state.provided.get(name, ()) if worker in columns.row_of]
        found[rows] = True
    return found


@lru_cache(maxsize=64)
def _weighing(weights: Weights) -> tuple[Mapping[str, Scorer], int]:
    """Who is asked under these weights, and by what scores become integers: the larger their sum the smaller."""
    scorers = dict(SCORERS)
    if weights.fragmentation:
        scorers["fragmentation"] = fragmentation
    names = (*SCORERS, "fragmentation", "spread")
    heaviest = max(1.0, sum(getattr(weights, name) for name in names) / MOST_WEIGHT)
    # Left out once and for all: a pass for one task asks this often enough to notice.
    heard = {name: scorer for name, scorer in scorers.items() if getattr(weights, name)}
    return MappingProxyType(heard), round(UNIT / heaviest) or 1


class BestFit(Placer):
    """The worker on which the fewest cores and GPUs stay idle, measured against a large server."""

    CPU, GPU, SHIFT = 128_000, 8 * WHOLE, 1 << 30

    def score(self, sight: Sight, wish: Wish) -> Numbers:
        ask = wish.ask
        cpu = (sight.free_cpu - ask.cpu_milli) / self.CPU
        gpu = (sight.free_milli - ask.gpus * ask.gpu_milli) / self.GPU
        # Shifted after it was cut off: servers larger than that one score below zero, and keys must not.
        scores: Numbers = np.trunc(100 * (1 - 0.5 * cpu - 0.5 * gpu)).astype(np.int64) + self.SHIFT
        return scores


class FirstFit(Placer):
    """The first worker by id that fits."""

    sticky = True

    def score(self, sight: Sight, wish: Wish) -> Numbers:
        return np.zeros(len(sight), dtype=np.int64)

    def stamp(self, flavour: str) -> Stamp | None:
        return ()

    def score_one(self, row: int, ask: Ask, steady: tuple[Floats, ...]) -> int:
        return 0


class Spread(Placer):
    """The worker of which the largest share stays free."""

    def score(self, sight: Sight, wish: Wish) -> Numbers:
        packed = leftover(sight, wish)
        assert packed is not None  # leftover always has something to say
        return to_integers(1 - packed)


class Measure(Protocol):
    """A measure of the whole cluster's room by which workers, and cards of one worker, are compared."""

    def scores(self, sight: Sight, ask: Ask) -> Numbers:
        """How good each worker in sight is for an ask, as integers."""

    def best_card(self, sight: Sight, ask: Ask) -> int:
        """Which card a shared ask should get on the one worker in sight."""


class Measured(Placer):
    """The worker that a measure likes best, and of its cards the one that it likes best."""

    def measure(self) -> Measure:
        """The measure in force."""
        raise NotImplementedError

    def score(self, sight: Sight, wish: Wish) -> Numbers:
        return self.measure().scores(sight, wish.ask)

    def fit(self, row: int, ask: Ask, owner: str) -> Devices | None:
        devices = self.rooms.fit(row, ask, owner)
        if devices is None or not ask.gpus or ask.gpu_milli == WHOLE or row in self.rooms.guards:
            return devices  # a guard has agreed to these very cards
        sight = Sight(self.rooms, np.array([row], dtype=np.intp), claims=True)
        return (self.rooms.left(row).cards[self.measure().best_card(sight, ask)].index,)


class FewestFragments(Measured):
    """The worker where the placement loses the least idle GPU to the usual work (fragmentation gradient descent)."""

    def measure(self) -> Measure:
        return fragments_of(self.state)


class Foresighted(Measured):
    """The worker that could take the most of the usual work afterwards."""

    def measure(self) -> Measure:
        return foresight_of(self.state)


class MinCost(Greedy):
    """One by one as the default does: what makes it another strategy are the hints that passes have for tasks which are
    placed together.
    """


STRATEGIES: dict[str, type[Placer]] = {
    "greedy": Greedy,
    "best_fit": BestFit,
    "first_fit": FirstFit,
    "spread": Spread,
    "fgd": FewestFragments,
    "foresight": Foresighted,
    "min_cost": MinCost,
}


def make_placer(state: State, rooms: Rooms, hints: Hints | None = None) -> Placer:
    """The placer of the policy in force, for one pass."""
    return STRATEGIES[placement_of(state).strategy](state, rooms, hints)
