"""Work goes where its kind of card serves it best: single moves into idle room, and exchanges of two.

Everything is reckoned in relative speed, how fast a job of this name runs on a kind of card against the fastest kind it
is known on, so that no guess about one job outweighs the room of another. Of two that change places one may well run
slower: what counts is what both win together, for as long as the one that ends first still runs. Bounded by counts: the
few that win most between each two kinds are looked at. The surprising rule: a kind that a name was never seen on is
taken for its fastest, but only in a trial, of which few run at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from dray.core.lifecycle.state.columns import kind_of
from dray.core.model.records.records import Attempt
from dray.core.scheduling.rebalancing.proposals import PERFORMANCE, Proposal
from dray.core.scheduling.rebalancing.scene import Scene

# So many of those that win most between two kinds are held against each other, and so many places are asked for.
MOST_PEERS, MOST_VAIN, MOST_FOUND = 12, 4, 256
# What is decided must be so much more than what records were wrong by, and so much dearer than the move.
ERROR_SHARE, PAYS = 0.5, 2
TRIAL_SHARE, TRIAL_LEFT_MS = 0.05, 30 * 60_000
LEAST_GAIN = 0.02


class Mover(NamedTuple):
    """Somebody who may go elsewhere. `work_ms`: how long it would still run on its best kind of card, `cost`: what a
    move costs, in milliseconds of one card; `like`: those who ask for as many cards change places.
    """

    attempt: Attempt
    kind: str
    speeds: dict[str, float]
    cards: float
    work_ms: float
    cost: int
    like: tuple[int, int]

    def gain(self, kind: str) -> float:
        """How much more of its best speed it has on another kind, times its cards."""
        return self.cards * (self.speed_on(kind) - self.speeds[self.kind])

    def speed_on(self, kind: str) -> float:
        """Its speed there; where nobody knows it might be the best."""
        return self.speeds.get(kind, 1.0)

    def left_ms(self, kind: str) -> float:
        """How long it would still run there."""
        return self.work_ms / self.speed_on(kind)


class Change(NamedTuple):
    """Movers who would go to these kinds, what all of them win a second together, and in all."""

    worth: float
    gain: float
    goes: tuple[tuple[Mover, str], ...]


def faster_places(scene: Scene) -> Iterable[Proposal]:
    """Whole changes by which work runs faster together, those that win most a second first."""
    kinds = _kinds_of_rows(scene)
    movers = list(_find_movers(scene, kinds))
    trials = _Trials(scene, kinds)
    used: set[str] = set()
    vain: dict[str, int] = defaultdict(int)
    found = 0
    for change in sorted(_changes(movers, sorted(set(kinds))), key=_order):
        if found >= MOST_FOUND:
            return
        uids = [mover.attempt.uid for mover, _ in change.goes]
        if used.intersection(uids) or not trials.allow(change):
            continue
        proposal = _propose(scene, change, kinds, vain)
        if proposal is None:
            continue
        used.update(uids)
        trials.take(change)
        found += 1
        yield proposal


def performance_level(scene: Scene, found: Sequence[Proposal]) -> float:
    """The share of the speed of all cards in sight that would be won if work changed places."""
    kinds = _kinds_of_rows(scene)
    movers = {mover.attempt.uid: mover for mover in _find_movers(scene, kinds)}
    row_of, cards = scene.state.columns.row_of, sum(mover.cards for mover in movers.values())
    won = sum(
        movers[move.uid].gain(kinds[row_of[move.worker]])
        for proposal in found
        for move in proposal.moves
        if move.uid in movers
    )
    return max(0.0, min(1.0, won / cards)) if cards else 0.0


def _kinds_of_rows(scene: Scene) -> list[str]:
    columns = scene.state.columns
    of_offer = [kind_of(offer) for offer in columns.offers]
    return [of_offer[offer] for offer in columns.view["offer"][: columns.count].tolist()]


def _find_movers(scene: Scene, kinds: Sequence[str]) -> Iterator[Mover]:
    """Those of whom it is known how fast they run where they are, and that another kind might serve them better."""
    state, speeds = scene.state, scene.state.experience.speeds
    row_of = state.columns.row_of
    known: dict[str, dict[str, float]] = {}
    there = len(set(kinds))
    for attempt in scene.movers:
        name = state.jobs[attempt.job_id].name
        relative = known.get(name)
        if relative is None:
            relative = known[name] = speeds.relative(name)
        kind = kinds[row_of[attempt.worker]]
        ask = state.ask(attempt)
        if kind not in relative or not ask.gpus or there < 2:
            continue
        left_ms = scene.left_ms(attempt)
        if left_ms:
            cards, cost = scene.cards(attempt), scene.price_ms((attempt,))
            like = ask.gpus, ask.gpu_milli
            yield Mover(attempt, kind, relative, cards, left_ms * relative[kind], cost, like)


def _changes(movers: Sequence[Mover], kinds: Sequence[str]) -> Iterator[Change]:
    """The best of what might be done between each two kinds."""
    lines: dict[tuple[str, str, tuple[int, int]], list[Mover]] = defaultdict(list)
    for mover in movers:
        for kind in kinds:
            if kind != mover.kind:
                lines[mover.kind, kind, mover.like].append(mover)
    for (_, to, _), line in lines.items():
        line.sort(key=lambda mover: (-mover.gain(to), mover.attempt.fence))
        del line[MOST_PEERS:]
        for mover in line:
            if (change := _change(mover.gain(to), ((mover, to),))) is not None:
                yield change
    for like in sorted({mover.like for mover in movers}):
        for one, other in combinations(kinds, 2):
            yield from _exchanges(
                lines.get((one, other, like), ()), lines.get((other, one, like), ()), one, other
            )


def _exchanges(movers: Sequence[Mover], peers: Sequence[Mover], one: str, other: str) -> Iterator[Change]:
    back = [(peer.gain(one), peer) for peer in peers]
    for mover in movers:
        there = mover.gain(other)
        for here, peer in back:
            if there + here < LEAST_GAIN * mover.cards:
                break
            if (change := _change(there + here, ((mover, other), (peer, one)))) is not None:
                yield change


def _change(worth: float, goes: tuple[tuple[Mover, str], ...]) -> Change | None:
    """What is won for as long as all of them run, if that pays."""
    if worth < LEAST_GAIN * goes[0][0].cards:
        return None
    gain = worth * min(mover.left_ms(kind) for mover, kind in goes)
    return Change(worth, gain, goes) if gain >= PAYS * sum(mover.cost for mover, _ in goes) else None


def _order(change: Change) -> tuple[float, int, int]:
    return -change.worth, len(change.goes), change.goes[0][0].attempt.fence


class _Trials:
    """How many run on a kind of card that nobody of their name was seen on: all of them together on few cards."""

    def __init__(self, scene: Scene, kinds: Sequence[str]) -> None:
        state = scene.state
        columns, self._speeds = state.columns, state.experience.speeds
        self._most = max(1.0, TRIAL_SHARE * int(columns.view["total_gpu"][: columns.count].sum()))
        self._on: set[tuple[str, str]] = set()
        self._cards, self._jobs = 0.0, state.jobs
        for attempt in scene.movers:
            name, kind = state.jobs[attempt.job_id].name, kinds[columns.row_of[attempt.worker]]
            if kind not in self._speeds.of_name.get(name, {}):
                self._on.add((name, kind))
                self._cards += scene.cards(attempt)

    def allow(self, change: Change) -> bool:
        """Whether what is known bears a decision of this size, and what is not known may be tried."""
        for mover, kind in change.goes:
            name = self._jobs[mover.attempt.job_id].name
            bears = ERROR_SHARE * change.worth / mover.cards
            if self._speeds.error_of(name, (mover.kind, kind)) >= bears:
                return False
            if kind not in mover.speeds and (
                (name, kind) in self._on
                or self._cards + mover.cards > self._most
                or mover.left_ms(mover.kind) < TRIAL_LEFT_MS
            ):
                return False
        return True

    def take(self, change: Change) -> None:
        """It is tried there."""
        for mover, kind in change.goes:
            if kind not in mover.speeds:
                self._on.add((self._jobs[mover.attempt.job_id].name, kind))
                self._cards += mover.cards


def _propose(scene: Scene, change: Change, kinds: Sequence[str], vain: dict[str, int]) -> Proposal | None:
    """What comes of it, where it pays and there is room."""
    gain, cost = round(change.gain), sum(mover.cost for mover, _ in change.goes)
    if len(change.goes) == 1:
        ((mover, kind),) = change.goes
        if vain[kind] >= MOST_VAIN or not _has_idle(scene, kinds, kind, mover.like):
            return None
        move = scene.find_place(mover.attempt, lambda row: kinds[row] == kind)
        if move is None:
            vain[kind] += 1
            return None
        scene.take((move,))
        why = f"on {kind} instead of {mover.kind} it runs {_times(mover, kind)}"
        return Proposal(PERFORMANCE, (move,), gain, cost, why)
    (one, _), (other, _) = change.goes
    moves = scene.find_exchange(one.attempt, other.attempt)
    if moves is None:
        return None
    why = (
        f"in each other's places one runs {_times(one, other.kind)} on {other.kind} and the other "
        f"{_times(other, one.kind)} on {one.kind}"
    )
    return Proposal(PERFORMANCE, moves, gain, cost, why)


def _has_idle(scene: Scene, kinds: Sequence[str], kind: str, like: tuple[int, int]) -> bool:
    """Whether any worker of a kind has idle cards at all: a look for a place costs more."""
    gpus, milli = like
    free = scene.state.columns.view["free_milli"][: len(kinds)]
    return any(kinds[row] == kind for row in (free >= gpus * milli).nonzero()[0].tolist())


def _times(mover: Mover, kind: str) -> str:
    if kind not in mover.speeds:
        return "perhaps faster (nobody of its name was seen there)"
    ratio = mover.speeds[kind] / mover.speeds[mover.kind]
    return f"{ratio:.2g} times as fast" if ratio >= 1 else f"{1 / ratio:.2g} times slower"
