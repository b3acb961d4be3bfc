"""Turns that are kept from pass to pass are those that ordering everybody anew would give, whatever has happened."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.core.harness import Cluster

from dray.core.lifecycle.state.events import PolicyChanged
from dray.core.model.policies.policy import (
    Budget,
    Cap,
    FairShare,
    Pace,
    Pacing,
    Policy,
    PreemptionPolicy,
    Queue,
    Quota,
    pack_policy,
)
from dray.core.scheduling.capacity.memory import memory_of
from dray.core.scheduling.passes.planning import Plan, plan
from dray.core.scheduling.turns.rosters import Rosters
from dray.core.scheduling.turns.unprotected import Unprotected
from dray.sim.faults.watches.kept_orders import find_misplaced, find_misprotected

BUDGETS = (
    Quota(user="*", gpus=2, gpu_hours=Budget(soft=0.001, hard=0.01, per_s=100)),
    Quota(queue="night", tasks=2),
)
KEPT: tuple[type[object], ...] = (Rosters, Unprotected)
POLICIES = (
    Policy(),
    Policy(quotas=BUDGETS, queues={"default": Queue(protect_after_s=3)}),
    Policy(
        queues={
            "default": Queue(order="priority", ageing_s=7.3, protect_after_s=4),
            "night": Queue(order="edf", weight=3),
        }
    ),
    Policy(
        queues={"default": Queue(order="sjf", protect_after_s=5)},
        pacing=Pacing(starts=(Pace(user="*", per_minute=6, burst=2),)),
    ),
    Policy(
        queues={
            "default": Queue(order="fair_share", protect_after_s=4),
            "night": Queue(order="fair_share", weight=0.5, protect_after_s=20),
        },
        fair_share=FairShare(half_life_s=20, entry_charge_s=0, weights={"u1": 2, "u4": 0.3}),
    ),
    Policy(
        queues={"default": Queue(order="fair_share", protect_after_s=10), "night": Queue(protect_after_s=10)},
        fair_share=FairShare(half_life_s=0.05, entry_charge_s=1),
        quotas=BUDGETS,
        pacing=Pacing(running=(Cap(label="team", most=2),)),
    ),
    Policy(
        queues={"default": Queue(order="priority", ageing_s=0), "night": Queue(order="srsf")},
        preemption=PreemptionPolicy(min_run_s=0, by_tier=True),
    ),
    Policy(
        queues={"default": Queue(order="fair_share")},
        preemption=PreemptionPolicy(strategy="fair_share", min_run_s=0, moves=3),
        pacing=Pacing(running=(Cap(label="team", most=3),)),
    ),
)
NUMBERS = st.integers(0, 40)
SPECS = st.fixed_dictionaries(
    {
        "cpu_milli": st.sampled_from([1000, 1000, 1000, 2500]),
        "gpu_count": st.sampled_from([0, 0, 0, 1]),
        "priority": st.sampled_from([0, 0, 0, 1, 30]),
        "queue": st.sampled_from(["default", "default", "default", "night"]),
        "labels": st.sampled_from([{}, {}, {"team": "a"}]),
        "max_runtime_s": st.sampled_from([0, 0, 50, 900]),
        "array": st.sampled_from([None, None, {"last": 3}, {"last": 4, "limit": 1}]),
    }
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), NUMBERS, SPECS),
        st.tuples(st.just("submit"), NUMBERS, SPECS),
        st.tuples(st.sampled_from(["end", "end", "end", "poll", "lose"]), NUMBERS, st.just(None)),
        st.tuples(
            st.sampled_from(["hold", "release", "cancel", "promote", "requeue"]), NUMBERS, st.just(None)
        ),
        st.tuples(st.sampled_from(["wait", "wait", "sleep"]), NUMBERS, st.just(None)),
        st.tuples(st.just("govern"), NUMBERS, st.just(None)),
    ),
    min_size=15,
    max_size=45,
)


class Site(Cluster):
    """A cluster with one or two workers that are always full, and very many users; its steps are numbers."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._number = 0
        self.turn(PolicyChanged(pack_policy(policy)))
        self.join("w1", cpus=6, gpus=2, batch=4, credit=4)
        self.join("w2", cpus=3, batch=2, credit=2)
        for user in range(9):
            self.submit_one(user, {"cpu_milli": 1000})

    def submit_one(self, number: int, spec: dict[str, Any]) -> None:
        self._number += 1
        given = {key: value for key, value in spec.items() if value}
        self.submit(f"j{self._number:03d}", f"u{number % 9}", **given)

    def step(self, what: str, number: int, spec: Any) -> None:
        state, worker = self.state, f"w{1 + number % 2}"
        live = [uid for uid, attempt in state.attempts.items() if attempt.phase.live]
        waiting = [job.id for job in state.jobs.values() if not job.state.final]
        if what == "submit":
            self.submit_one(number, spec)
        elif what == "govern":
            self.turn(PolicyChanged(pack_policy(POLICIES[number % len(POLICIES)])))
        elif what == "poll":
            self.poll(worker, number % 4)
        elif what in ("wait", "sleep"):
            self.advance(number / 7 if what == "wait" else 9 * number)
        elif what in ("end", "lose") and live:
            uid = live[number % len(live)]
            if what == "end":
                self.run(uid)
                self.end(uid)
            self.poll(state.attempts[uid].worker if uid in state.attempts else worker, 1)
        elif waiting:
            job_id = waiting[number % len(waiting)]
            if what in ("hold", "release"):
                self.hold(job_id, what == "hold")
            elif what == "cancel":
                self.cancel(job_id)
            elif what == "requeue":
                self.ask_again(job_id)
            elif what == "promote" and not state.jobs[job_id].started_at_ms:
                self.edit(job_id, priority=number)


def decide(site: Site, kept: bool) -> tuple[Any, ...]:
    """What a pass would decide now, with what is kept or with everybody in order anew."""
    measures = memory_of(site.state).measures
    known: dict[type[object], object] = {}
    if not kept:
        known = {kind: measures.pop(kind) for kind in KEPT if kind in measures}
    with pytest.MonkeyPatch.context() as patch:
        if not kept:
            patch.setattr("dray.core.scheduling.turns.rosters.FEW_LINES", 10**9)
        decided: Plan = plan(site.state)
    measures.update(known)
    began = decided.began
    reserved = began.kept, sorted(began.answered), began.due, sorted(began.watches)
    return decided.placements, decided.preemptions, sorted(decided.parked), decided.cut, reserved


@given(policy=st.integers(0, len(POLICIES) - 1), steps=STEPS)
def test_kept_turns_are_those_of_everybody_in_order_anew(policy: int, steps: list[tuple[Any, ...]]) -> None:
    site = Site(POLICIES[policy])
    for what, number, spec in steps:
        site.step(what, number, spec)
        assert not find_misplaced(site.state)
        assert not find_misprotected(site.state)
        # Room from nowhere: who would have it, if every shape were looked at now?
        for shape in list(site.state.backlog.parked):
            site.state.backlog.wake(shape)
        site.state.columns.roomier.update(dict.fromkeys(site.state.columns.row_of.values()))
        assert decide(site, kept=True) == decide(site, kept=False)
