"""Choose which running attempts to stop so that a blocked task or gang can start.

Works on the pass's claims and proposes; nothing here stops a process. A victim must sit strictly below the task it
makes room for: with "below or equal" two equal jobs would stop each other on alternate passes. For fair share "below"
means that the victim's user still has at least as much as the preemptor's afterwards, for the shortest service first
that more of it is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from dray.core.lifecycle.events import Move, Preemption
from dray.core.lifecycle.parties import cost_of, gpus_of
from dray.core.lifecycle.receipts import STALE_MS, Hit, lapses_ms, lost_ms, ran_ms, recent
from dray.core.lifecycle.state import NEVER, State
from dray.core.model.records import Attempt, Job, Phase
from dray.core.model.resources import Ask
from dray.core.model.spec import TIERS, unpack_spec
from dray.core.scheduling.filters import CLASS_FILTERS, fits
from dray.core.scheduling.moves import Aside, Claim
from dray.core.scheduling.reservations import MOST_ROWS, Spare, Watch
from dray.core.scheduling.rooms import Devices, Rooms

RETRY_MS = 5_000
MOST_VAIN = 256
MOST_TRIES = 16
# What a stop and a start cost at least, besides work that was not saved.
RESTART_MS = 60_000
NO_RULE, MOVES = "none", "moves"
Cost = tuple[int, int, int, int, int]
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


class Found(NamedTuple):
    """Whom to stop for a task or gang, and where those of them start again who are only moved aside."""

    choices: list[Choice]
    moves: tuple[Move, ...] = ()


class Search:
    """The preemptions of one pass: nobody is chosen twice, and limits count what the pass has decided itself."""

    def __init__(self, state: State, rooms: Rooms, watch: Watch, aside: Aside) -> None:
        self._state, self._rooms, self._watch, self._aside = state, rooms, watch, aside
        self._chosen: dict[str, None] = {}
        self._hits: list[Hit] | None = None
        self._shares: dict[str, float] = {}
        self._sought: dict[tuple[str, str, int], int] = {}
        self._given: dict[str, int] = {}
        self.vain: dict[str, None] = {}

    def give(self, user: str, cost: int) -> None:
        """The pass has given a user so much more, or less."""
        self._given[user] = self._given.get(user, 0) + cost

    @property
    def _hit(self) -> list[Hit]:
        if self._hits is None:
            self._hits = recent(self._state)
        return self._hits

    def is_new(self, job: Job) -> bool:
        """Whether nobody of the same queue, user and shape has looked in vain in this pass who might as much."""
        key = (job.queue, job.user, job.shape)
        before = self._sought.get(key)
        self._sought[key] = job.priority if before is None else max(before, job.priority)
        return before is None or before < job.priority

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
        calm = rule == "pressure" and self._share_held(kind) < state.policy.preemption.pressure_share
        if calm and not most:
            return None, state.now_ms + RETRY_MS
        is_below = _BELOW[NO_RULE if calm else rule](state, job, asks[0], self._given)
        found, spared = self._find(job, asks, is_below)
        if found is None:
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
                rule=MOVES if len(found.moves) == sum(len(one.victims) for one in found.choices) else rule,
                kind=kind,
                workers=tuple(state.columns.worker_of[choice.row] for choice in found.choices),
                devices=tuple(choice.devices for choice in found.choices),
                variant=found.choices[0].variant,
                victims=tuple(attempt.uid for choice in found.choices for attempt in choice.victims),
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
        return job.waiting_since_ms + round(state.policy.preemption.wait_s * 1000)

    def _find(self, job: Job, asks: tuple[Ask, ...], is_below: Below) -> tuple[Found | None, bool]:
        """Whom to stop, and whether anybody may not be stopped only for now.

        Who can be moved goes before who must be stopped; both together are the last resort.
        """
        moved, spared = self._by_moving(job, asks, is_below, alone=True)
        if moved is not None:
            return moved, False
        choices, barred = self._choices(job, asks, is_below, _cost, _open_rows(self._state))
        chosen = _cheapest(self._state, choices, asks)
        if chosen and self._within_limits(chosen, is_below):
            return Found(chosen), False
        found, _ = self._by_moving(job, asks, is_below, alone=False)
        return found, spared or barred or bool(chosen)

    def _by_moving(
        self, job: Job, asks: tuple[Ask, ...], is_below: Below, alone: bool
    ) -> tuple[Found | None, bool]:
        """Make room by moving others aside: `alone`, or together with stopping those who sit below."""
        state = self._state
        if self._aside.most <= sum(hit.moved for hit in self._hit):
            return None, False
        if alone and not self._aside.is_enough(asks):
            return None, False

        def may_go(attempt: Attempt, others: Sequence[Attempt]) -> bool:
            if not alone and is_below(attempt, others):
                return True
            return self._aside.may_move(attempt, job, self._hit)

        rows = self._aside.near_rows(asks, _open_rows(state))
        price = _moving_cost if alone else _cost
        choices, spared = self._choices(job, asks, may_go, price, rows)
        for _ in range(MOST_TRIES):
            chosen = _cheapest(state, choices, asks)
            if not chosen:
                break
            victims = [attempt for choice in chosen for attempt in choice.victims]
            movers = [one for one in victims if alone or not is_below(one, ())]
            if self._within_limits(chosen, may_go, len(movers)):
                claims = [Claim(one.row, asks[one.variant], one.devices, one.victims) for one in chosen]
                moves = self._aside.find(claims, movers)
                if moves is not None:
                    return Found(chosen, moves), False
            dearest = max(chosen, key=lambda choice: (choice.cost, choice.row))
            choices = [choice for choice in choices if choice.row != dearest.row]
        return None, spared

    def _note(self, job: Job, asks: tuple[Ask, ...], found: Found) -> None:
        """Count what was decided for the rest of the pass."""
        state, moved = self._state, {move.uid for move in found.moves}
        for attempt in [attempt for choice in found.choices for attempt in choice.victims]:
            user = state.jobs[attempt.job_id].user
            self._chosen[attempt.uid] = None
            self._hit.append(Hit(attempt.job_id, attempt.index, user, attempt.uid in moved))
            if attempt.uid not in moved:
                self.give(user, -cost_of(state.policy, state.ask(attempt)))
        self.give(job.user, cost_of(state.policy, asks[0]) * asks[0].nodes)
        self._sought.pop((job.queue, job.user, job.shape), None)

    def _choices(
        self, job: Job, asks: tuple[Ask, ...], may_go: Below, price: Price, rows: Sequence[int]
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
                if (attempt := state.attempts[uid]).phase in (Phase.ASSIGNED, Phase.ACCEPTED, Phase.RUNNING)
                and not attempt.cancel
                and may_go(attempt, ())
            ]
            fallible = [Blow(price(state, attempt), attempt) for attempt in going if self._may_fall(attempt)]
            spared = spared or len(fallible) < len(going)
            blows = sorted(fallible, key=lambda blow: (blow.cost, blow.attempt.fence))
            if blows or asks[0].nodes > 1:
                found += self._on_row(row, job, asks, blows, may_go)
        return found, spared

    def _may_fall(self, attempt: Attempt) -> bool:
        state = self._state
        if attempt.uid in self._chosen or attempt.phase is Phase.ASSIGNED:
            return False
        if ran_ms(state, attempt) < state.policy.preemption.min_run_s * 1000:
            return False
        if unpack_spec(state.jobs[attempt.job_id].spec).at_most_once:
            return False
        return self._spares(attempt, ())

    def _spares(self, attempt: Attempt, others: Sequence[Attempt]) -> bool:
        """Whether one more may be hit of a job and of its user's work, beside those that are to be stopped with it."""
        jobs, limits = self._state.jobs, self._state.policy.preemption.limits
        user = jobs[attempt.job_id].user
        hits = [(hit.job_id, hit.user) for hit in self._hit]
        hits += [(other.job_id, jobs[other.job_id].user) for other in others]
        of_job = sum(1 for job_id, _ in hits if job_id == attempt.job_id)
        of_user = sum(1 for _, name in hits if name == user)
        return of_job < limits.per_job and of_user < limits.per_user

    def _within_limits(self, chosen: list[Choice], is_below: Below, moved: int = 0) -> bool:
        """Whether all of them together may be stopped, and so many of them moved."""
        victims = [attempt for choice in chosen for attempt in choice.victims]
        cluster = self._state.policy.preemption.limits.cluster
        return (
            0 < len(victims) <= cluster - len(self._hit)
            and (not moved or moved <= self._aside.most - sum(hit.moved for hit in self._hit))
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
            spare = Spare(self._state, room, ask.pool)
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
    """Preemptions that are given up: victims that never went, or a worker that went with its room."""
    return [
        Preemption(receipt.job_id, receipt.index, receipt.rule, receipt.kind, (), (), 0, ())
        for receipt in state.receipts.values()
        if lapses_ms(receipt) <= state.now_ms
    ]


def scarce_kind(ask: Ask) -> str:
    """The resource that decides where a task can go, by which the policy chooses its rule."""
    if ask.gpus:
        return "gpu"
    return "memory" if ask.memory_bytes and not ask.cpu_milli else "cpu"


def rule_for(state: State, job: Job, kind: str) -> str:
    """The rule by which a job may have others stopped; `none` where it may not."""
    order = state.policy.queue(job.queue).order
    rule = state.policy.preemption.rule_for(kind)
    if rule == NO_RULE:
        return NO_RULE
    if order == "srsf":
        return "srsf"
    if rule == "fair_share":
        return rule if order == "fair_share" else NO_RULE
    ranked = job.ranked or state.policy.preemption.by_tier
    return rule if order == "priority" and ranked else NO_RULE


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


# --- who sits below -----------------------------------------------------------------------------------------------

# Whether an attempt sits below, also when these others are stopped with it.
Below = Callable[[Attempt, Sequence[Attempt]], bool]
# By how much this pass has changed what users hold.
Given = Mapping[str, int]


def _nobody(state: State, job: Job, ask: Ask, given: Given) -> Below:
    return lambda attempt, others: False


def _by_priority(state: State, job: Job, ask: Ask, given: Given) -> Below:
    def is_below(attempt: Attempt, others: Sequence[Attempt]) -> bool:
        other = state.jobs[attempt.job_id]
        return other.priority < job.priority and state.policy.queue(other.queue).order == "priority"

    return is_below


def _by_share(state: State, job: Job, ask: Ask, given: Given) -> Below:
    users, weights, margin = (
        state.parties.users,
        state.policy.fair_share.weights,
        state.policy.preemption.fair_margin,
    )
    wanted = cost_of(state.policy, ask) * ask.nodes
    mine = (users[job.user].cost + given.get(job.user, 0) + wanted) / weights.get(job.user, 1.0)

    def is_below(attempt: Attempt, others: Sequence[Attempt]) -> bool:
        other = state.jobs[attempt.job_id]
        if other.user == job.user or other.queue != job.queue:
            return False
        weight = weights.get(other.user, 1.0)
        whole = users[other.user].cost + given.get(other.user, 0)
        gone = sum(
            cost_of(state.policy, state.ask(one))
            for one in (attempt, *others)
            if state.jobs[one.job_id].user == other.user
        )
        return whole / weight > margin * mine and (whole - gone) / weight >= mine

    return is_below


def _by_service(state: State, job: Job, ask: Ask, given: Given) -> Below:
    task = state.tasks.get((job.id, 0))
    alone = task is not None and (job.gang or not job.numbered)
    mine = _service(job, ask, task.used_ms if task is not None and alone else 0)

    def is_below(attempt: Attempt, others: Sequence[Attempt]) -> bool:
        other = state.jobs[attempt.job_id]
        if other.queue != job.queue:
            return False
        used_ms = _used_before(state, attempt) + ran_ms(state, attempt)
        return _service(other, state.ask(attempt), used_ms) > mine

    return is_below


def _used_before(state: State, attempt: Attempt) -> int:
    """What earlier attempts of its task have saved; a lane is an attempt of no task."""
    return 0 if attempt.lane else state.tasks[attempt.job_id, attempt.index].used_ms


def _service(job: Job, ask: Ask, used_ms: int) -> int:
    expected_ms = job.expected_ms or job.limit_ms or NEVER
    return max(1, expected_ms - used_ms) * max(1, gpus_of(ask)) * ask.nodes


_BELOW: dict[str, Callable[[State, Job, Ask, Given], Below]] = {
    NO_RULE: _nobody,
    "priority": _by_priority,
    "pressure": _by_priority,
    "fair_share": _by_share,
    "srsf": _by_service,
}


# --- what a victim costs ------------------------------------------------------------------------------------------


def _cost(state: State, attempt: Attempt) -> Cost:
    job, task = state.jobs[attempt.job_id], state.tasks.get((attempt.job_id, attempt.index))
    risk = 2 * (task.preemptions if task is not None else 0) + (not attempt.saved_ms)
    if job.deadline_ms:
        grace_ms = TIERS[job.tier].grace_s * 1000
        risk += 2 + (attempt.limit_ms + grace_ms > job.deadline_ms - attempt.started_at_ms)
    members = job.total if job.gang else 1
    ask = state.ask(attempt)
    size = (gpus_of(ask) * 1000 + ask.cpu_milli) * members
    band = job.priority
    if state.policy.queue(job.queue).order == "srsf":
        # Who has most left to do is the least loss: what is nearly done frees its room by itself.
        band = -_service(job, ask, _used_before(state, attempt) + ran_ms(state, attempt))
    return band, risk, lost_ms(state, attempt) * members, ran_ms(state, attempt), size


def _moving_cost(state: State, attempt: Attempt) -> Cost:
    """What it costs to move an attempt: it waits for nothing, so what it does again counts, by how much it holds."""
    _, risk, lost, ran, size = _cost(state, attempt)
    return 0, (lost + RESTART_MS) * size, risk, ran, size


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


def _open_rows(state: State) -> list[int]:
    columns = state.columns
    rows = [row for row in range(columns.count) if columns.get("open", row)]
    return rows[:MOST_ROWS]
