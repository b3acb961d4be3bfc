"""Whether a proposal pays, and whether it may be carried out now: one rule for every strategy.

What is won by the lower quartile of what is left must come to twice what the move costs and to ten minutes of a card,
and what is left to five times the restart. Nobody is moved twice within the window. Surprising rule: what is refused is
told with its reason and stays in the plan, since "nothing pays" and "nothing was found" are two answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dray.core.lifecycle.holding.moves import move_receipts
from dray.core.lifecycle.holding.receipts import ran_ms, recent
from dray.core.lifecycle.state.parties import SwitchGate, gpus_of
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.rebalancing import RebalancePolicy
from dray.core.model.records.ledger import Receipt
from dray.core.model.records.records import Attempt
from dray.core.model.specs.resources import WHOLE
from dray.core.scheduling.rebalancing.proposals import EVACUATE, MONEY, PERSON, Proposal
from dray.core.scheduling.rebalancing.scene import Scene
from dray.core.scheduling.rebalancing.strategies import STRATEGIES

LEAST_GPU_MS = 10 * 60_000
TIMES_COST, TIMES_RESTART = 2, 5
# So many moves of one cause are looked back at: one that won less than half of what was foretold is only advice.
JUDGED, POOR = 50, 0.5
DAY_S = 86_400


class Judged(NamedTuple):
    """A proposal, and why it is not carried out; nothing where it may be."""

    proposal: Proposal
    refused: str = ""


class Outlook(NamedTuple):
    """What all strategies propose, and how much there is to gain by each (0 to 1)."""

    judged: tuple[Judged, ...]
    levels: dict[str, float]

    @property
    def chosen(self) -> tuple[Proposal, ...]:
        return tuple(one.proposal for one in self.judged if not one.refused)

    @property
    def etag(self) -> str:
        """Names what would be moved where: whoever starts a plan means this one."""
        said = [
            (one.cause, [(move.uid, move.worker, move.devices, move.variant) for move in one.moves])
            for one in self.chosen
        ]
        return hashlib.sha256(repr(said).encode()).hexdigest()[:16]


def look_ahead(state: State, cause: str = "") -> Outlook:
    """What would be better off elsewhere now, by every strategy that the policy names, or by one."""
    scene, levels = Scene(state), dict[str, float]()
    found: list[Judged] = []
    wanted = (cause,) if cause else state.policy.rebalance.strategies
    names = [name for name in STRATEGIES if not wanted or name in wanted]
    budget = Budget(state)
    for name in names:
        strategy = STRATEGIES[name]
        proposals = tuple(strategy.propose(scene))
        levels[name] = strategy.level(scene, proposals)
        for proposal in proposals:
            refused = why_not_worth(scene, proposal) or budget.refuses(proposal)
            if not refused:
                budget.take(proposal)
            found.append(Judged(proposal, refused))
    return Outlook(tuple(found), levels)


def why_not_worth(scene: Scene, proposal: Proposal) -> str:
    """Why a proposal does not pay; nothing where it does."""
    state, rules = scene.state, scene.state.policy.rebalance
    leaving = [state.attempts[move.uid] for move in proposal.moves]
    for attempt in leaving:
        if reason := scene.why_not(attempt):
            return f"{state.spell(attempt)}: {reason}"
        if ran_ms(state, attempt) < rules.min_run_s * 1000:
            return f"{state.spell(attempt)} has run for less than {rules.min_run_s:g} s"
        left = scene.left_ms(attempt)
        if not left:
            return f"nobody knows how long {state.spell(attempt)} will run"
        if left < TIMES_RESTART * scene.restart_ms(attempt):
            return f"{state.spell(attempt)} has about {left // 60_000} min left, which is not worth a restart"
    if proposal.gain < TIMES_COST * proposal.cost or proposal.gain <= 0:
        return "what it wins is less than twice what it costs"
    worth = sum(scene.cards(attempt) * scene.left_ms(attempt) for attempt in leaving)
    if (worth if proposal.unit == MONEY else proposal.gain) < LEAST_GPU_MS:
        return "it is about less than ten minutes of a card"
    return _kept_out(state, leaving)


def _kept_out(state: State, leaving: Sequence[Attempt]) -> str:
    """Whether a quota, a pace or a purse would keep it from starting again."""
    for attempt in leaving:
        for gate in state.parties.all[state.jobs[attempt.job_id].party].gates:
            shut = gate.opens_ms(state.now_ms) or (
                isinstance(gate, SwitchGate) and not gate.room(0, 0, 0, state.now_ms)
            )
            if shut:
                return f"{gate.key} would keep {state.spell(attempt)} from starting again"
    return ""


class Budget:
    """How much may be moved now: what the window, quiet hours and what is under way leave."""

    def __init__(self, state: State) -> None:
        self._state, self._rules = state, state.policy.rebalance
        since_ms = state.now_ms - round(self._rules.window_s * 1000)
        own = [
            victim
            for receipt in move_receipts(state)
            if receipt.now_ms >= since_ms and receipt.cause not in (PERSON, EVACUATE)
            for victim in receipt.victims
            if victim.asked_ms
        ]
        self._moves, self._users = len(own), dict[str, int]()
        self._workloads = dict[str, int]()
        for victim in own:
            self._users[victim.user] = self._users.get(victim.user, 0) + 1
            job = state.jobs.get(victim.job_id)
            if job is not None and job.workload:
                self._workloads[job.workload] = self._workloads.get(job.workload, 0) + 1
        self._hit = {(hit.job_id, hit.number) for hit in recent(state) if hit.moved}
        self._hit |= {(one.job_id, one.index) for one in own}
        self._taken: set[tuple[str, int]] = set()
        running = sum(_cards(state, one) for one in state.attempts.values() if one.phase.live)
        self._most = self._rules.in_flight * running
        # Both places of a move that is under way are bound.
        self._bound = sum(
            2 * _cards(state, attempt)
            for receipt in state.moving.values()
            for victim in receipt.victims
            if (attempt := state.attempts.get(victim.uid)) is not None
        )

    def refuses(self, proposal: Proposal) -> str:
        """Why it has to wait; nothing where there is budget for all of it."""
        state, rules = self._state, self._rules
        if is_quiet(rules, state.at_ms):
            return "these are quiet hours"
        if demoted := find_demotion(state, proposal.cause):
            return demoted
        leaving = [state.attempts[move.uid] for move in proposal.moves]
        for attempt in leaving:
            key, job = (attempt.job_id, attempt.index), state.jobs[attempt.job_id]
            if key in self._hit or key in self._taken:
                return f"{state.spell(attempt)} was moved within the last {rules.window_s:g} s"
            if self._users.get(job.user, 0) + len(leaving) > rules.per_user:
                return f"{rules.per_user} moves of {job.user}'s work in {rules.window_s:g} s are all that is allowed"
            if job.workload and self._workloads.get(job.workload, 0) + len(leaving) > rules.per_workload:
                return f"{rules.per_workload} moves of {job.workload} in {rules.window_s:g} s are all that is allowed"
        if self._moves + len(leaving) > rules.moves:
            return f"{rules.moves} moves in {rules.window_s:g} s are all that is allowed"
        bound = self._bound + sum(2 * _cards(state, attempt) for attempt in leaving)
        # One at a time may always go: in a small cluster a tenth of the cards is less than one.
        if self._bound and bound > self._most:
            return f"{rules.in_flight:.0%} of the cards that work are on the move already"
        return ""

    def take(self, proposal: Proposal) -> None:
        """It goes."""
        for move in proposal.moves:
            attempt = self._state.attempts[move.uid]
            job = self._state.jobs[attempt.job_id]
            self._taken.add((attempt.job_id, attempt.index))
            self._users[job.user] = self._users.get(job.user, 0) + 1
            if job.workload:
                self._workloads[job.workload] = self._workloads.get(job.workload, 0) + 1
            self._moves += 1
            self._bound += 2 * _cards(self._state, attempt)


def _cards(state: State, attempt: Attempt) -> float:
    return gpus_of(state.ask(attempt)) / WHOLE


def is_quiet(rules: RebalancePolicy, at_ms: int) -> bool:
    """Whether the policy wants nobody moved at this time of day (UTC)."""
    now_s = at_ms // 1000 % DAY_S
    return any(_lies_in(span, now_s) for span in rules.quiet_hours)


def _lies_in(span: str, now_s: int) -> bool:
    first, last = (_read_s(text) for text in span.split("-"))
    return first <= now_s < last if first <= last else now_s >= first or now_s < last


def _read_s(text: str) -> int:
    hours, _, minutes = text.partition(":")
    return int(hours) * 3600 + int(minutes) * 60


def find_demotion(state: State, cause: str) -> str:
    """Why the policy no longer carries out what one strategy proposes: its last moves won too little."""
    known = list(_settled(state, cause))[:JUDGED]
    foretold, won = sum(one.gain for one in known), sum(one.won for one in known)
    if len(known) < JUDGED or won >= POOR * foretold:
        return ""
    return (
        f"its last {JUDGED} moves won {won / foretold:.0%} of what was foretold, so that it only advises: "
        "`dray rebalance plan` shows what it would do"
    )


def _settled(state: State, cause: str) -> Iterator[Receipt]:
    for receipt in move_receipts(state):
        if receipt.cause == cause and receipt.settled and receipt.status == "done":
            yield receipt
