"""The site of a world: the policy it is under, who changes it, and the traits of jobs that policies speak of.

Only in a share of the worlds, and by a generator of its own: the others stay as they were under the default policy.
Every policy names the same queues, so that none is refused for work that waits.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from dray.core.model.policies.policy import (
    PLACERS,
    Budget,
    Cap,
    FairShare,
    IdlePolicy,
    Limits,
    Pace,
    Pacing,
    PlacementPolicy,
    Policy,
    PreemptionPolicy,
    Queue,
    Quota,
)
from dray.core.model.units import GB
from dray.errors import Conflict
from dray.sim.faults.nodes.hub import HubNode
from dray.sim.faults.world.market import draw_objective, draw_providers, has_providers
from dray.sim.faults.world.pending import Pending
from dray.sim.faults.world.world import World

SHARE, CROWDED, STEADY, BOUNDED, WATCHFUL = 0.6, 0.7, 0.75, 0.15, 0.15
PATIENCE_MS = 3000
QUEUES = ("default", "night", "day")
USERS = ("ann", "bob", "cy")
HOUR_S = 3600.0
_ORDERS = ("fifo", *4 * ("priority",), "sjf", "edf", "srsf", "srsf", "fair_share", "fair_share")


class Site:
    """Whoever runs the cluster: applies policies, and knows what its users are like."""

    def __init__(self, world: World, hub: HubNode) -> None:
        self._world, self._hub = world, hub
        self._rng = random.Random(f"policy {world.seed}")  # a simulation's chance, no secret
        self.ruled = self._rng.random() < SHARE
        self.crowded = self.ruled and self._rng.random() < CROWDED
        # Work that has run, or waited, for some time is what reservations and preemption are about.
        self.steady = self.crowded and self._rng.random() < STEADY
        # Drawn apart, by a number that draws none of the worlds that are kept for the bugs they showed.
        self._amounts = random.Random(f"amounts 1496 {world.seed}")
        self._bounded = self._amounts.random() < BOUNDED
        self._idle = random.Random(f"idle 7 {world.seed}")
        self._watchful = self._idle.random() < WATCHFUL
        self._market = has_providers(world.seed)
        self._prices = random.Random(f"prices {world.seed}")
        self._weighed: dict[str, None] = {}
        self._dressed: dict[str, None] = {}
        self._wanted = 0
        if self._market and not self.ruled:
            for number in range(1, 4):
                world.at(
                    self._prices.randint(0, world.size.span_ms), self._apply, number, self._bound(Policy())
                )
        if self.ruled:
            span_ms = world.size.span_ms
            changes = self._rng.choice([0, 0, 1, 3])
            moments = [0, *(self._rng.randint(1000, span_ms) for _ in range(changes))]
            policy = self._bound(draw_policy(self._rng))
            for number, at_ms in enumerate(sorted(moments), 1):
                world.at(at_ms, self._apply, number, policy)
                policy = self._draw_next(policy)

    def _draw_next(self, policy: Policy) -> Policy:
        """Another policy, or the same with other queues."""
        other = self._bound(draw_policy(self._rng))
        keeps = self._rng.random() < 0.5
        return msgspec.structs.replace(policy, queues=other.queues) if keeps else other

    def _bound(self, policy: Policy) -> Policy:
        """In some worlds quotas bound cores, memory and tasks too, in some what idles is demoted or stopped."""
        if self._watchful:
            steps = {
                name: self._idle.choice([0, 5, 15]) for name in ("grace_s", "warn_s", "demote_s", "stop_s")
            }
            policy = msgspec.structs.replace(policy, idle=IdlePolicy(**steps))
        if self._market:
            weights = msgspec.structs.replace(policy.placement.weights, cost=self._prices.choice([0, 0, 5]))
            placement = msgspec.structs.replace(policy.placement, weights=weights)
            providers = draw_providers(self._prices)
            policy = msgspec.structs.replace(policy, placement=placement, providers=providers)
        if not self._bounded:
            return policy
        return msgspec.structs.replace(policy, quotas=policy.quotas + _amounts(self._amounts))

    def _apply(self, number: int, policy: Policy) -> None:
        """Apply a policy; asked again until a hub has answered, or another one is wanted by then."""
        if number < self._wanted:
            return
        self._wanted = number

        def heard(got: Any, fault: BaseException | None) -> None:
            if isinstance(fault, Conflict):
                self._world.counts["policy refused"] += 1
            elif fault is not None:
                self._world.fail(f"a policy was answered with {fault!r}")
            self._wanted = max(self._wanted, number + 1)

        if self._hub.up:
            self._world.counts["policy applied"] += 1
            self._hub.now.apply_policy(policy, Pending(heard))
        self._world.at(PATIENCE_MS, self._apply, number, policy)

    def dress(self, key: str, spec: dict[str, Any]) -> None:
        """Give a job what policies go by, before it is handed in for the first time."""
        if self._market and key not in self._weighed:
            self._weighed[key] = None
            if self._prices.random() < 0.3:
                spec["objective"] = draw_objective(self._prices)
        if not self.ruled or key in self._dressed:
            return
        self._dressed[key] = None
        rng = self._rng
        spec["user_id"] = rng.choice(USERS)
        spec["queue"] = QUEUES[0] if rng.random() < 0.5 else rng.choice(QUEUES)
        if rng.random() < 0.8:
            spec["priority"] = rng.choice([-5, 0, 1, 5, 50])
        if rng.random() < 0.4:
            spec["plugin"] = rng.choice(["sweep", "serve"])
            # The hub of a world has no templates: it takes the name for granted.
            spec["template"] = f"{spec['plugin']}@1"
        if rng.random() < 0.5:
            spec["labels"] = {"team": rng.choice(["a", "b"])}
        if rng.random() < 0.5:
            spec["expected_runtime_s"] = rng.choice([1, 5, 30, 300])
        if rng.random() < 0.3:
            spec["deadline"] = f"2023-12-{rng.randint(10, 28)}T22:00:00Z"
        if rng.random() < 0.5:
            spec.setdefault("max_runtime_s", rng.choice([5, 20, 60, 600]))
        if self.crowded and rng.random() < 0.3:
            spec["gpu_count"] = spec.get("gpu_count", 1)
            spec.setdefault("scheduling_timeout_s", 400)
        if self.steady and rng.random() < 0.6:
            # What is idle must lie scattered for anybody to be moved aside.
            spec["cpu_milli"] = spec.get("cpu_milli", rng.choice([1000, 2000, 3000]))
        if rng.random() < 0.2:
            spec["memory_bytes"] = rng.choice([4, 8, 16]) * GB
        if rng.random() < 0.15:
            spec["resources"], spec["scheduling_timeout_s"] = {"licence": rng.choice([1, 2])}, 300

    def stretch(self, duration_ms: int) -> int:
        """How long a run takes where there is more work than room; once the faults have stopped, as elsewhere."""
        if self.crowded and self._world.faulty and self._rng.random() < 0.9:
            return self._rng.choice([10_000, 30_000, 80_000]) + duration_ms
        return duration_ms


def draw_policy(rng: random.Random) -> Policy:
    """Draw rules that every job of a world can live with, or that its scheduling timeout ends."""
    # Often one order for all: only work of queues with the same order stops each other.
    order = rng.choice(_ORDERS) if rng.random() < 0.6 else ""
    return Policy(
        queues={name: _queue(rng, order) for name in QUEUES},
        quotas=_quotas(rng),
        pacing=_pacing(rng),
        fair_share=FairShare(
            half_life_s=rng.choice([30, 600]),
            entry_charge_s=rng.choice([0, 5, 60]),
            weights=rng.choice([{}, {"ann": 2}, {"bob": 0.5}]),
        ),
        placement=PlacementPolicy(strategy=rng.choice(PLACERS)),
        preemption=_preemption(rng, order),
    )


def _queue(rng: random.Random, order: str) -> Queue:
    return Queue(
        order=order or rng.choice(_ORDERS),
        weight=rng.choice([1, 1, 2, 3]),
        ageing_s=rng.choice([0, 5, 30, HOUR_S]),
        protect_after_s=rng.choice([0, 5, 15, 60]),
    )


def _quotas(rng: random.Random) -> tuple[Quota, ...]:
    some = (
        Quota(user="*", gpus=rng.choice([1, 1.5, 2, 3])),
        Quota(user="ann", gpus=rng.choice([1, 2]), gpu_hours=_budget(rng)),
        Quota(queue="night", gpus=rng.choice([0.5, 1, 2])),
        Quota(queue="*", gpu_hours=_budget(rng)),
        Quota(plugin="sweep", gpus=rng.choice([1, 2]), gpu_hours=_budget(rng)),
    )
    drawn = [quota for quota in some if rng.random() < 0.3]
    # Jobs of a plugin are jobs by a template of its name: the same quota holds for the same jobs by either.
    return tuple(
        msgspec.structs.replace(quota, plugin="", template=quota.plugin)
        if quota.plugin and quota.gpus > 1
        else quota
        for quota in drawn
    )


def _amounts(rng: random.Random) -> tuple[Quota, ...]:
    """Bounds of cores, memory and tasks: as much as the widest gang of the largest tasks takes, at least."""
    return (
        Quota(user="bob", tasks=rng.choice([6, 8]), cpus=rng.choice([18, 20])),
        Quota(cluster="all", tasks=rng.choice([6, 7]), memory=rng.choice([96, 128]) * GB),
    )


def _budget(rng: random.Random) -> Budget:
    """A few GPU-seconds in each of many short periods."""
    soft, hard = rng.choice([(1, 0), (0, 2), (1, 2), (0, 10), (5, 10)])
    return Budget(soft=soft / HOUR_S, hard=hard / HOUR_S, per_s=rng.choice([10, 40]))


def _pacing(rng: random.Random) -> Pacing:
    starts = (
        Pace(queue=rng.choice(["default", "*"]), per_minute=rng.choice([10, 20]), burst=rng.choice([1, 3])),
        Pace(user="*", per_minute=rng.choice([10, 40]), burst=rng.choice([1, 2])),
        Pace(label=rng.choice(["team", "team=a"]), per_minute=20, burst=rng.choice([1, 4])),
    )
    caps = (Cap(label="team=a", most=rng.choice([1, 2])), Cap(label="team", most=rng.choice([2, 3])))
    return Pacing(
        starts=tuple(pace for pace in starts if rng.random() < 0.2),
        running=tuple(cap for cap in caps if rng.random() < 0.25),
    )


def _preemption(rng: random.Random, order: str) -> PreemptionPolicy:
    strategy = rng.choice(["priority", "priority", "pressure", "fair_share", "none"])
    return PreemptionPolicy(
        strategy="fair_share" if order == "fair_share" and strategy != "none" else strategy,
        by_tier=rng.random() < 0.5,
        min_run_s=rng.choice([0, 1, 5, 15]),
        wait_s=rng.choice([0, 0, 3]),
        pressure_share=rng.choice([0, 0.3]),
        fair_margin=rng.choice([1, 1.5]),
        limits=Limits(
            per_job=rng.choice([1, 2, 5]),
            per_user=rng.choice([2, 20]),
            cluster=rng.choice([3, 100]),
            window_s=rng.choice([20, 120, HOUR_S]),
        ),
        moves=rng.choice([0, 1, 3, 20]),
    )
