"""Choose which running attempts to stop so that a blocked task or gang can start.

Works on the pass's claims and proposes; nothing here stops a process. A victim must sit strictly below the task it
makes room for: with "below or equal" two equal jobs would stop each other on alternate passes. For fair share "below"
means that the victim's user still has at least as much as the preemptor's afterwards, for the shortest service first
that more of it is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from dray.core.lifecycle.holding.receipts import STALE_MS, Hit, lapses_ms, ran_ms, recent
from dray.core.lifecycle.state.events import Preemption
from dray.core.lifecycle.state.parties import cost_of, gpus_of
from dray.core.lifecycle.state.service_events import Move
from dray.core.lifecycle.state.state import NEVER, State
from dray.core.model.records.ledger import Receipt
from dray.core.model.records.records import Attempt, Job, Phase
from dray.core.model.specs.resources import WHOLE as CARD
from dray.core.model.specs.resources import Ask
from dray.core.model.specs.spec import TIERS, unpack_spec
from dray.core.scheduling.capacity.matching import CLASS_FILTERS, fits
from dray.core.scheduling.capacity.remaining import Devices, Rooms
from dray.core.scheduling.claims.moving_aside import Aside, Claim
from dray.core.scheduling.claims.moving_room import could_hold
from dray.core.scheduling.claims.reservations import MOST_ROWS, Spare, Watch
from dray.core.scheduling.turns.victim_rules import (
    BELOW,
    NO_RULE,
    Below,
    Cost,
    Given,
    cost_of_move,
    cost_of_stop,
    nobody_below,
    rule_for,
    rule_in,
    scarce_kind,
)

RETRY_MS = 5_000
MOST_VAIN = 256
MOST_TRIES = 32
# So many users of one queue and shape look for victims in vain in one pass; the others would find no more than they.
MOST_LOOKS = 4
MOVES = "moves"
GOING = (Phase.ASSIGNED, Phase.ACCEPTED, Phase.RUNNING)
Price = Callable[[State, Attempt], Cost]


class Blow(NamedTuple):
    """What stopping an attempt would cost; smaller is better: its band, the risk, work lost, run time, size."""

    cost: Cost
    attempt: Attempt


class Choice(NamedTuple):
    """The victims that would make room on one worker.

    `reach`: how much the worker could give if all were stopped that may be, where that counts.
    """

    reach: int
    cost: Cost
    row: int
    variant: int
    devices: Devices
    victims: tuple[Attempt, ...]


class Tally:
    """How often the limits' window, and this pass so far, have hit each job and user, and which tasks were moved."""

    def __init__(self, hits: Iterable[Hit]) -> None:
        self.jobs, self.users = Counter[str](), Counter[str]()
        self.moved: dict[tuple[str, int], None] = {}
        self.count = self.moves = 0
        for hit in hits:
            self.add(hit)

    def add(self, hit: Hit) -> None:
        """One more."""
        self.jobs[hit.job_id] += 1
        self.users[hit.user] += 1
        self.count += 1
        if hit.moved:
            self.moves += not hit.own
            self.moved[hit.job_id, hit.number] = None


class Found(NamedTuple):
    """Whom to stop for a task or gang, and where those of them start again who are only moved aside."""

    choices: list[Choice]
    victims: list[Attempt]
    moves: tuple[Move, ...] = ()


class Search:
    """The preemptions of one pass: nobody is chosen twice, and limits count what the pass has decided itself."""

    def __init__(self, state: State, rooms: Rooms, watch: Watch, aside: Aside) -> None:
        self._state, self._rooms, self._watch, self._aside = state, rooms, watch, aside
        self._chosen: dict[str, None] = {}
        self._tally: Tally | None = None
        self._once: dict[str, bool] = {}
        self._shares: dict[str, float] = {}
        self._sought: dict[tuple[str, str, int], int] = {}
        self._given = Given({}, {})
        # The policy's; who explains what withholds a preemption asks under others.
        self.terms = state.policy.preemption
        self.vain: dict[str, None] = {}
        self._hopeless: dict[tuple[str, int], int] = {}
        self._tries: dict[tuple[str, int], int] = {}

    def give(self, user: str, cost: int) -> None:
        """The pass has given a user so much more, or less."""
        self._given.held[user] = self._given.held.get(user, 0) + cost

    @property
    def _hit(self) -> Tally:
        if self._tally is None:
            self._tally = Tally(recent(self._state))
        return self._tally

    def is_new(self, job: Job) -> bool:
        """Whether nobody of the same queue, user and shape has looked in vain in this pass who might as much."""
        key = (job.queue, job.user, job.shape)
        before = self._sought.get(key)
        self._sought[key] = job.priority if before is None else max(before, job.priority)
        if job.priority <= self._hopeless.get((job.queue, job.shape), -NEVER):
            return False
        return before is None or before < job.priority

    def hopeless(self, queue: str, shape: int, ranked: bool) -> int:
        """Up to which priority nobody of a queue and shape who is yet to come will find anybody; NEVER: all of them.

        `ranked`: whether any of them has a priority that was given.
        """
        if not self._aside.most:
            kind = scarce_kind(self._state.asks(shape)[0])
            if not self._state.backlog.eager or rule_in(self._state, queue, kind, ranked) == NO_RULE:
                return NEVER
        return self._hopeless.get((queue, shape), -NEVER)

    def _give_up(self, job: Job, rule: str) -> None:
        """Several have looked in vain: so will all those of their queue and shape who may do no more than they."""
        key, priority = (job.queue, job.shape), job.priority
        self._tries[key] = self._tries.get(key, 0) + 1
        if self._tries[key] < MOST_LOOKS:
            return
        if rule == "fair_share":
            users, weights = self._state.parties.users, self._state.policy.fair_share.weights
            given = self._given
            has = users[job.user].cost + given.held.get(job.user, 0) + given.promised.get(job.user, 0)
            if has > 0 or weights.get(job.user, 1.0) < max(weights.values(), default=1.0):
                return
        if rule in ("fair_share", "srsf") and not self._aside.most:
            # Whoever comes later in turn has had no less, or has no less left to do.
            priority = NEVER
        self._hopeless[key] = max(priority, self._hopeless.get(key, -NEVER))

    def seek(self, job: Job, index: int) -> tuple[Preemption | None, int]:
        """Whom to stop for a task that found no room; else when it is worth another look (0: not by itself)."""
        state, most = self._state, self._aside.most
        asks = state.asks(job.shape)
        kind = scarce_kind(asks[0])
        rule = rule_for(state, job, kind)
        if rule == NO_RULE and not most:
            return None, 0
        later_ms = self._not_before_ms(job, index)
        if later_ms > state.now_ms:
            return None, later_ms
        calm = rule == "pressure" and self._share_held(kind) < self.terms.pressure_share
        if calm and not most:
            self._give_up(job, rule)
            return None, state.now_ms + RETRY_MS
        is_below = BELOW[NO_RULE if calm else rule](state, job, asks[0], self._given)
        found, spared = self._find(job, asks, is_below)
        if found is None:
            self._give_up(job, rule)
            if spared or calm:
                return None, state.now_ms + RETRY_MS
            if len(self.vain) < MOST_VAIN:
                self.vain[job.id] = None
            return None, 0
        self._note(job, asks, found)
        return (
            Preemption(
                job_id=job.id,
                index=index,
                rule=MOVES if len(found.moves) == len(found.victims) else rule,
                kind=kind,
                workers=tuple(state.columns.worker_of[choice.row] for choice in found.choices),
                devices=tuple(choice.devices for choice in found.choices),
                variant=found.choices[0].variant,
                victims=tuple(attempt.uid for attempt in found.victims),
                moves=found.moves,
            ),
            0,
        )

    def _not_before_ms(self, job: Job, index: int) -> int:
        """Before when a job may not ask for victims: others leave for it, it was moved itself, or it came just now."""
        state = self._state
        if (move := state.moves.get((job.id, index))) is not None:
            return move.until_ms
        receipt = state.receipts.get(job.id)
        if receipt is not None and (stale_ms := lapses_ms(receipt)) > state.now_ms:
            return stale_ms
        return job.waiting_since_ms + round(self.terms.wait_s * 1000)

    def _find(self, job: Job, asks: tuple[Ask, ...], is_below: Below) -> tuple[Found | None, bool]:
        """Whom to stop, and whether anybody may not be stopped only for now.

        Who can be moved goes before who must be stopped; both together are the last resort.
        """
        moved, spared = self._by_moving(job, asks, is_below, alone=True)
        if moved is not None or is_below is nobody_below:
            return moved, spared
        choices, barred = self._choices(job, asks, is_below, cost_of_stop, _open_rows(self._state))
        chosen = _cheapest(self._state, choices, asks)
        victims = _victims_of(chosen)
        if chosen and self._within_limits(victims, is_below):
            return Found(chosen, victims), False
        found, _ = self._by_moving(job, asks, is_below, alone=False)
        return found, spared or barred or bool(chosen)

    def _by_moving(
        self, job: Job, asks: tuple[Ask, ...], is_below: Below, alone: bool
    ) -> tuple[Found | None, bool]:
        """Make room by moving others aside: `alone`, or together with stopping those who sit below."""
        state = self._state
        if self._aside.most <= self._hit.moves:
            return None, False
        if alone and not self._aside.is_enough(asks):
            return None, False

        def may_go(attempt: Attempt, others: Sequence[Attempt]) -> bool:
            if not alone and is_below(attempt, others):
                return True
            return self._aside.may_move(attempt, job, self._hit.moved)

        def may_follow(attempt: Attempt) -> bool:
            going = attempt.phase in GOING and not attempt.cancel and not self._is_let_be(attempt, job)
            return going and self._aside.may_move(attempt, job, self._hit.moved) and self._may_fall(attempt)

        rows = self._aside.near_rows(asks, _open_rows(state))
        choices, spared = self._choices(
            job, asks, may_go, cost_of_move if alone else cost_of_stop, rows, alone
        )
        for chosen in _options(state, choices, asks):
            victims = _victims_of(chosen)
            movers = victims if alone else _who_stays(victims, is_below)
            if not self._within_limits(victims, may_go, len(movers)):
                continue
            claims = [Claim(one.row, asks[one.variant], one.devices, one.victims) for one in chosen]
            moves = self._aside.find(claims, movers, may_follow)
            if moves is None:
                continue
            known = {attempt.uid for attempt in victims}
            victims += [state.attempts[move.uid] for move in moves if move.uid not in known]
            if self._within_limits(victims, may_go, len(moves)):
                return Found(chosen, victims, moves), False
        return None, spared

    def _note(self, job: Job, asks: tuple[Ask, ...], found: Found) -> None:
        """Count what was decided for the rest of the pass."""
        state, moved = self._state, {move.uid for move in found.moves}
        for attempt in found.victims:
            user = state.jobs[attempt.job_id].user
            self._chosen[attempt.uid] = None
            self._hit.add(Hit(attempt.job_id, attempt.index, user, attempt.uid in moved))
            if attempt.uid not in moved:
                self.give(user, -cost_of(state.policy, state.ask(attempt)))
        promised = self._given.promised
        promised[job.user] = promised.get(job.user, 0) + cost_of(state.policy, asks[0]) * asks[0].nodes
        self._sought.pop((job.queue, job.user, job.shape), None)

    def _choices(
        self,
        job: Job,
        asks: tuple[Ask, ...],
        may_go: Below,
        price: Price,
        rows: Sequence[int],
        alone: bool = False,
    ) -> tuple[list[Choice], bool]:
        """What each worker would cost, and whether anybody is there who may not be stopped only for now."""
        state = self._state
        found: list[Choice] = []
        spared = False
        for row in rows:
            worker = state.columns.worker_of[row]
            going = [
                attempt
                for uid in state.held.get(worker, ())
                if (attempt := state.attempts[uid]).phase in GOING
                and not attempt.cancel
                and not self._is_let_be(attempt, job)
                and may_go(attempt, ())
            ]
            fallible = [Blow(price(state, attempt), attempt) for attempt in going if self._may_fall(attempt)]
            spared = spared or len(fallible) < len(going)
            blows = sorted(fallible, key=lambda blow: (blow.cost, blow.attempt.fence))
            single: list[Choice] = []
            if alone and asks[0].nodes == 1:
                # One by one first: what is best to move is not always what is cheapest to stop.
                for blow in self._enough(row, asks, blows):
                    single += self._on_row(row, job, asks, [blow], may_go)
            found += single
            if not single and (blows or asks[0].nodes > 1):
                found += self._on_row(row, job, asks, blows, may_go)
        return found, spared

    def _is_let_be(self, attempt: Attempt, job: Job) -> bool:
        """Whether it is a service's, which goes on for whoever needs it: batch work stops it only by the policy."""
        service = self._state.jobs[attempt.job_id].service
        return service and not job.service and not self.terms.services

    def _may_fall(self, attempt: Attempt) -> bool:
        state = self._state
        if attempt.uid in self._chosen or attempt.phase is Phase.ASSIGNED:
            return False
        if ran_ms(state, attempt) < self.terms.min_run_s * 1000:
            return False
        return not self._starts_once(attempt.job_id) and self._spares(attempt, ())

    def _starts_once(self, job_id: str) -> bool:
        found = self._once.get(job_id)
        if found is None:
            found = self._once[job_id] = unpack_spec(self._state.jobs[job_id].spec).at_most_once
        return found

    def _spares(self, attempt: Attempt, others: Sequence[Attempt]) -> bool:
        """Whether one more may be hit of a job and of its user's work, beside those that are to be stopped with it."""
        jobs, limits = self._state.jobs, self.terms.limits
        user = jobs[attempt.job_id].user
        of_job = self._hit.jobs[attempt.job_id] + sum(1 for one in others if one.job_id == attempt.job_id)
        of_user = self._hit.users[user] + sum(1 for one in others if jobs[one.job_id].user == user)
        return of_job < limits.per_job and of_user < limits.per_user

    def _within_limits(self, victims: list[Attempt], is_below: Below, moved: int = 0) -> bool:
        """Whether all of them together may be stopped, and so many of them moved."""
        cluster = self.terms.limits.cluster
        return (
            0 < len(victims) <= cluster - self._hit.count
            and (not moved or moved <= self._aside.most - self._hit.moves)
            and all(self._spares(attempt, victims[:place]) for place, attempt in enumerate(victims))
            and all(is_below(attempt, victims[:place]) for place, attempt in enumerate(victims))
        )

    def _on_row(
        self, row: int, job: Job, asks: tuple[Ask, ...], blows: list[Blow], is_below: Below
    ) -> list[Choice]:
        """What it takes to make room on one worker; a gang may also find a member's room there as it is."""
        found = []
        for variant, ask in enumerate(asks):
            room = self._rooms.room(row, ask.pool)
            if not fits(ask, room, CLASS_FILTERS):
                continue
            spare = Spare(self._state, room, ask.pool, (), self._rooms.owed.get(row, ()))
            if (keepers := self._watch.of_row.get(row)) is not None:
                keepers.withhold(spare, job.id)
            taken: list[Blow] = []
            for blow in blows:
                if spare.cards_for(ask) is not None:
                    break
                others = [one.attempt for one in taken]
                if self._spares(blow.attempt, others) and is_below(blow.attempt, others):
                    spare.give_back(blow.attempt)
                    taken.append(blow)
            if (taken or ask.nodes > 1) and spare.cards_for(ask) is not None:
                choice = self._sharpen(row, variant, ask, spare, taken)
                found.append(choice._replace(reach=self._reach(row, job, blows)))
        return found

    def _enough(self, row: int, asks: tuple[Ask, ...], blows: list[Blow]) -> Iterator[Blow]:
        """Those who would leave enough if they alone left, as far as sums tell: the cheap half of the question."""
        left = self._rooms.left(row)
        idle = {card.index: CARD - left.used.get(card.index, 0) for card in left.cards}
        for blow in blows:
            his, devices = self._state.ask(blow.attempt), blow.attempt.devices
            cpu, memory = left.cpu + his.cpu_milli, left.memory + his.memory_bytes
            cards = [free + his.gpu_milli if index in devices else free for index, free in idle.items()]
            for ask in asks:
                if ask.cpu_milli > cpu or ask.memory_bytes > memory:
                    continue
                if not ask.gpus or sum(free >= ask.gpu_milli for free in cards) >= ask.gpus:
                    yield blow
                    break

    def _reach(self, row: int, job: Job, blows: list[Blow]) -> int:
        """What a worker could give to work of this service: the less, the more of it is held by what goes before.

        Short work is put together so that wide work finds whole workers, which nobody moves aside for it.
        """
        if self._state.policy.queue(job.queue).order != "srsf":
            return 0
        free = self._state.columns.get("free_milli", row)
        return free + sum(gpus_of(self._state.ask(blow.attempt)) for blow in blows)

    def _sharpen(self, row: int, variant: int, ask: Ask, spare: Spare, taken: list[Blow]) -> Choice:
        """Let go again of victims that are not needed, the dearest first."""
        state = self._state
        needed = list(taken)
        for blow in reversed(taken):
            ask_of_victim = state.ask(blow.attempt)
            spare.take(ask_of_victim, blow.attempt.devices)
            if spare.cards_for(ask) is not None:
                needed.remove(blow)
            else:
                spare.give_back(blow.attempt)
        devices = spare.cards_for(ask) or ()
        worst = max((blow.cost[0] for blow in needed), default=-NEVER)
        sums = [sum(blow.cost[place] for blow in needed) for place in range(1, 5)]
        cost = (worst, sums[0], sums[1], sums[2], sums[3])
        return Choice(0, cost, row, variant, devices, tuple(blow.attempt for blow in needed))

    def _share_held(self, kind: str) -> float:
        """How much of a resource kind is held in the whole cluster."""
        share = self._shares.get(kind)
        if share is None:
            share = self._shares[kind] = share_held(self._state, kind)
        return share


def gives_up_ms(state: State, preemption: Preemption) -> int:
    """When a preemption that is decided now will have led nowhere."""
    jobs = [state.jobs[state.attempts[uid].job_id] for uid in preemption.victims]
    return state.now_ms + max(TIERS[job.tier].grace_s for job in jobs) * 1000 + STALE_MS


def lapsed(state: State) -> list[Preemption]:
    """Preemptions that are given up: victims that never went, or a worker that came back as one without the room."""
    return [
        Preemption(receipt.job_id, receipt.index, receipt.rule, receipt.kind, (), (), 0, ())
        for receipt in state.receipts.values()
        if lapses_ms(receipt) <= state.now_ms or not _could_be_served(state, receipt)
    ]


def _could_be_served(state: State, receipt: Receipt) -> bool:
    job, row_of = state.jobs.get(receipt.job_id), state.columns.row_of
    if job is None:
        return True
    ask = state.asks(job.shape)[receipt.variant]
    rows = [row_of[worker] for worker in receipt.workers if worker in row_of]
    return all(could_hold(state, row, ask) for row in rows if state.columns.get("open", row))


def share_held(state: State, kind: str) -> float:
    """The held share of one resource kind over all open workers."""
    view, count = state.columns.view, state.columns.count
    is_open = view["open"][:count] > 0
    if kind == "gpu":
        total = int(view["total_gpu"][:count][is_open].sum())
        held = total - int(view["free_gpu"][:count][is_open].sum())
    else:
        name = "cpu" if kind == "cpu" else "mem"
        total = int(view[f"total_{name}"][:count][is_open].sum())
        held = int(view[f"used_{name}"][:count][is_open].sum())
    return held / total if total else 0.0


def _who_stays(victims: Sequence[Attempt], is_below: Below) -> list[Attempt]:
    """Those who may only be moved: who sits below alone may not when others are stopped too."""
    stopped: list[Attempt] = []
    stays: list[Attempt] = []
    for attempt in victims:
        (stopped if is_below(attempt, stopped) else stays).append(attempt)
    return stays


def _cheapest(state: State, choices: Iterable[Choice], asks: tuple[Ask, ...]) -> list[Choice]:
    """The cheapest worker, or for a gang the cheapest workers of one backend, each once; empty where there are none."""
    nodes = asks[0].nodes
    groups: dict[object, list[Choice]] = {}
    for choice in sorted(
        choices, key=lambda item: (item.reach, item.cost, item.variant, state.columns.worker_of[item.row])
    ):
        key: object = choice.variant
        if nodes > 1 and not asks[choice.variant].mixed_backends:
            offer = state.columns.offers[state.columns.get("offer", choice.row)]
            key = (choice.variant, offer.backend)
        group = groups.setdefault(key, [])
        if len(group) < nodes and choice.row not in [other.row for other in group]:
            group.append(choice)
    whole = [group for group in groups.values() if len(group) == nodes]
    return min(whole, key=lambda group: [(choice.reach, choice.cost) for choice in group], default=[])


def _options(state: State, choices: list[Choice], asks: tuple[Ask, ...]) -> Iterator[list[Choice]]:
    """What may be tried, the cheapest first, and not for ever; of a gang's the dearest worker is left out each time."""
    if asks[0].nodes == 1:
        order = sorted(choices, key=lambda item: (item.reach, item.cost, item.variant, item.row))
        yield from ([choice] for choice in order[:MOST_TRIES])
        return
    for _ in range(MOST_TRIES):
        chosen = _cheapest(state, choices, asks)
        if not chosen:
            return
        yield chosen
        dearest = max(chosen, key=lambda choice: (choice.cost, choice.row))
        choices = [choice for choice in choices if choice.row != dearest.row]


def _victims_of(chosen: Sequence[Choice]) -> list[Attempt]:
    return [attempt for choice in chosen for attempt in choice.victims]


def _open_rows(state: State) -> list[int]:
    columns = state.columns
    rows = [row for row in range(columns.count) if columns.get("open", row)]
    return rows[:MOST_ROWS]
