"""Choose which running attempts to stop so that a blocked task or gang can start.

Works on the pass's claims and proposes; nothing here stops a process. A victim must sit strictly below the task it
makes room for: with "below or equal" two equal jobs would stop each other on alternate passes. For fair share "below"
means that the victim's user still has at least as much as the preemptor's afterwards, for the shortest service first
that more of it is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from dray.core.lifecycle.events import Preemption
from dray.core.lifecycle.parties import cost_of, gpus_of
from dray.core.lifecycle.receipts import lost_ms, ran_ms, recent
from dray.core.lifecycle.state import NEVER, State
from dray.core.model.ledger import Receipt
from dray.core.model.records import Attempt, Job, Phase
from dray.core.model.resources import Ask
from dray.core.model.spec import TIERS, unpack_spec
from dray.core.scheduling.filters import CLASS_FILTERS, fits
from dray.core.scheduling.reservations import MOST_ROWS, Spare, Watch
from dray.core.scheduling.rooms import Devices, Rooms

RETRY_MS = 5_000
STALE_MS = 60_000
MOST_VAIN = 256
NO_RULE = "none"
Cost = tuple[int, int, int, int, int]


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


class Search:
    """The preemptions of one pass: nobody is chosen twice, and limits count what the pass has decided itself."""

    def __init__(self, state: State, rooms: Rooms, watch: Watch) -> None:
        self._state, self._rooms, self._watch = state, rooms, watch
        self._chosen: dict[str, None] = {}
        self._hits: list[tuple[str, str]] | None = None
        self._shares: dict[str, float] = {}
        self._sought: dict[tuple[str, str, int], int] = {}
        self._given: dict[str, int] = {}
        self.vain: dict[str, None] = {}

    def give(self, user: str, cost: int) -> None:
        """The pass has given a user so much more, or less."""
        self._given[user] = self._given.get(user, 0) + cost

    @property
    def _hit(self) -> list[tuple[str, str]]:
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
        state = self._state
        asks = state.asks(job.shape)
        kind = scarce_kind(asks[0])
        rule = rule_for(state, job, kind)
        if rule == NO_RULE:
            return None, 0
        receipt = state.receipts.get(job.id)
        if receipt is not None and (stale_ms := lapses_ms(receipt)) > state.now_ms:
            return None, stale_ms
        ready_ms = job.waiting_since_ms + round(state.policy.preemption.wait_s * 1000)
        if ready_ms > state.now_ms:
            return None, ready_ms
        if rule == "pressure" and self._share_held(kind) < state.policy.preemption.pressure_share:
            return None, state.now_ms + RETRY_MS
        is_below = _BELOW[rule](state, job, asks[0], self._given)
        choices, spared = self._choices(job, is_below, asks)
        nodes = asks[0].nodes
        chosen = _cheapest(state, choices, asks, nodes)
        if len(chosen) < nodes or not self._within_limits(chosen, is_below):
            if spared or len(chosen) == nodes:
                return None, state.now_ms + RETRY_MS
            if len(self.vain) < MOST_VAIN:
                self.vain[job.id] = None
            return None, 0
        for choice in chosen:
            self._chosen.update(dict.fromkeys(attempt.uid for attempt in choice.victims))
            for attempt in choice.victims:
                user = state.jobs[attempt.job_id].user
                self._hit.append((attempt.job_id, user))
                self.give(user, -cost_of(state.policy, state.ask(attempt)))
        self.give(job.user, cost_of(state.policy, asks[0]) * nodes)
        self._sought.pop((job.queue, job.user, job.shape), None)
        return (
            Preemption(
                job_id=job.id,
                index=index,
                rule=rule,
                kind=kind,
                workers=tuple(state.columns.worker_of[choice.row] for choice in chosen),
                devices=tuple(choice.devices for choice in chosen),
                variant=chosen[0].variant,
                victims=tuple(attempt.uid for choice in chosen for attempt in choice.victims),
            ),
            0,
        )

    def _choices(self, job: Job, is_below: Below, asks: tuple[Ask, ...]) -> tuple[list[Choice], bool]:
        """What each worker would cost, and whether anybody sits below who may not be stopped only for now."""
        state = self._state
        found: list[Choice] = []
        spared = False
        for row in _open_rows(state):
            worker = state.columns.worker_of[row]
            lower = [
                attempt
                for uid in state.held.get(worker, ())
                if (attempt := state.attempts[uid]).phase in (Phase.ASSIGNED, Phase.ACCEPTED, Phase.RUNNING)
                and not attempt.cancel
                and is_below(attempt, ())
            ]
            fallible = [Blow(_cost(state, attempt), attempt) for attempt in lower if self._may_fall(attempt)]
            spared = spared or len(fallible) < len(lower)
            blows = sorted(fallible, key=lambda blow: (blow.cost, blow.attempt.fence))
            if blows or asks[0].nodes > 1:
                found += self._on_row(row, job, asks, blows, is_below)
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
        hits = [*self._hit, *((other.job_id, jobs[other.job_id].user) for other in others)]
        of_job = sum(1 for job_id, _ in hits if job_id == attempt.job_id)
        of_user = sum(1 for _, name in hits if name == user)
        return of_job < limits.per_job and of_user < limits.per_user

    def _within_limits(self, chosen: list[Choice], is_below: Below) -> bool:
        """Whether all of them together may be stopped."""
        victims = [attempt for choice in chosen for attempt in choice.victims]
        cluster = self._state.policy.preemption.limits.cluster
        return (
            0 < len(victims) <= cluster - len(self._hit)
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


def lapses_ms(receipt: Receipt) -> int:
    """When a preemption that has led nowhere is given up."""
    grace_ms = max((round(victim.grace_s * 1000) for victim in receipt.victims), default=0)
    return receipt.now_ms + grace_ms + STALE_MS


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


def _cheapest(state: State, choices: Iterable[Choice], asks: tuple[Ask, ...], nodes: int) -> list[Choice]:
    """The cheapest worker, or for a gang the cheapest workers of one backend, each once."""
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
