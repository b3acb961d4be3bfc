"""Worlds under rules: the policies they draw are sound, and there is something in them for every rule to do."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from dray.core.lifecycle.holding.receipts import receipts
from dray.core.model.policies.check import check_policy
from dray.core.model.policies.policy import ORDERS, PLACERS
from dray.core.model.policies.spelling import policy_document
from dray.sim.faults.people.policies import Site, draw_policy
from dray.sim.faults.run import History
from dray.sim.faults.watches.wake_ups import find_overlooked
from dray.sim.faults.world.world import SMALL, World


def test_every_policy_that_is_drawn_could_stand_in_a_file():
    rng = random.Random(7)
    for _ in range(200):
        policy = draw_policy(rng)
        assert check_policy(policy_document(policy)) == policy


def test_every_rule_is_drawn():
    rng = random.Random(8)
    policies = [draw_policy(rng) for _ in range(300)]
    assert {queue.order for policy in policies for queue in policy.queues.values()} == set(ORDERS)
    assert {policy.placement.strategy for policy in policies} == set(PLACERS)
    assert any(quota.gpu_hours and quota.gpu_hours.hard for policy in policies for quota in policy.quotas)
    assert any(policy.pacing.starts for policy in policies)
    assert any(policy.pacing.running for policy in policies)


def test_some_worlds_have_no_rules_and_some_are_crowded():
    no_hub: Any = None  # a site asks for its hub only as time passes
    sites = [Site(World(seed, SMALL), no_hub) for seed in range(60)]
    assert 15 < sum(site.ruled for site in sites) < 50
    assert any(site.crowded and site.steady for site in sites)


def test_rules_bite():
    """Some seeds in which work is stopped for other work, lines stand behind gates, and policies change."""
    seen: Counter[str] = Counter()
    for seed in (5, 8, 28, 44):
        history = History(seed, SMALL)
        outcome = history.run()
        seen += outcome.faults
        seen["receipts"] += len(receipts(history.hub.state))
    assert seen["receipts"] > 0
    assert seen["policy applied"] > 4


def test_a_look_for_the_overlooked_leaves_no_trace():
    history = History(2, SMALL)
    for _ in range(1200):
        history.world.step()
    state = history.hub.state

    def caches() -> tuple[object, ...]:
        backlog = state.backlog
        gates = {gate: list(lines) for gate, lines in backlog.behind.items()}
        lines = list(backlog.awake), dict(backlog.parked), dict(backlog.gated), gates
        kept = dict(state.reservations), dict(state.unprotected), dict(state.watched)
        return *lines, *kept, list(state.timers), dict(state.columns.roomier)

    before = caches()
    assert find_overlooked(history.hub.now) == []
    assert caches() == before
