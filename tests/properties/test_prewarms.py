"""Whatever happens, hints are few, go to workers that are there, are each judged once, and change no placement."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.harness import AGENT, Cluster

from dray.core.lifecycle.state.effects import Effect, GetReady
from dray.core.lifecycle.state.pass_events import WarmSeen
from dray.core.model.records.records import Phase
from dray.core.scheduling.passes.foreseeing import MOST_OF_WORKER, MOST_TOLD

WORKERS = ("w1", "w2", "w3")


class Walk:
    """One random walk over a small cluster; `told` is what workers were told and not yet told to forget."""

    def __init__(self, seed: int, features: tuple[str, ...]) -> None:
        self.rng, self.cluster = random.Random(seed), Cluster()
        self.told: dict[tuple[str, str], int] = {}
        self.placed: list[tuple[str, int, str]] = []
        self.count = 0
        self.features = features
        for worker in WORKERS:
            self.cluster.join(worker, credit=10_000, batch=self.rng.randint(1, 2), features=features)

    def step(self) -> None:
        rng, cluster = self.rng, self.cluster
        kind = rng.choice(["submit", "submit", "run", "end", "end", "end", "wait", "cancel", "leave", "warm"])
        live = [one for one in cluster.state.attempts.values() if one.phase.live]
        waiting = [job.id for job in cluster.state.jobs.values() if job.waiting]
        # Drawn in any case, so that two walks stay beside each other.
        place, seconds, tree = rng.random(), rng.randint(1, 90), rng.randint(0, 5)
        effects: list[Effect] = []
        if kind == "submit":
            self.count += 1
            effects = cluster.submit(f"j{self.count}", **self._spec(tree, seconds))
        elif kind == "run" and live:
            cluster.accept_all(live[int(place * len(live))].worker)
        elif kind == "end" and live:
            attempt = live[int(place * len(live))]
            if attempt.phase is Phase.ASSIGNED:
                cluster.run(attempt.uid)
            effects = cluster.end(attempt.uid)
        elif kind == "wait":
            effects = cluster.advance(seconds / 3)
        elif kind == "cancel" and waiting:
            effects = cluster.cancel(waiting[int(place * len(waiting))])
        elif kind == "leave" and place < 0.3:
            worker = WORKERS[tree % len(WORKERS)]
            cluster.leave(worker)
            effects = cluster.register(worker, incarnation=f"again-{self.count}-{seconds}")
            effects += cluster.poll(worker, 10_000)
            cluster.beating[worker] = None
        elif kind == "warm" and "prewarm" in self.features and self.features[-1] == "warms":
            effects = cluster.turn(WarmSeen(WORKERS[tree % 3], (f"snapshot {tree:064x}",)))
        self._look(effects)

    def _spec(self, tree: int, seconds: int) -> dict[str, Any]:
        needs = {} if tree == 0 else {"snapshot_id": f"snap-{tree}", "snapshot_sha": f"{tree:064x}"}
        return {
            "name": f"n{tree}",
            "expected_runtime_s": seconds,
            "node_count": 2 if tree == 5 else 1,
            **needs,
        }

    def _look(self, effects: list[Effect]) -> None:
        state = self.cluster.state
        for effect in effects:
            if isinstance(effect, GetReady):
                assert state.presence[effect.worker].session, "nobody is told who is not there"
        prewarms = state.prewarms
        assert all(0 < len(mine) <= MOST_OF_WORKER for mine in prewarms.values())
        assert sum(map(len, prewarms.values())) <= MOST_TOLD
        ends = state.prewarm_ends
        judged = sum(ends.get(how, 0) for how in ("used", "wasted", "lost"))
        assert ends.get("sent", 0) == judged + sum(map(len, prewarms.values())), "each is judged once"
        assert sum(kind == "foresee" for _, kind, _ in state.timers) <= 2, "one look is due at most"
        self.placed = [(one.job_id, one.index, one.worker) for one in state.attempts.values()]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 30))
def test_hints_are_bounded_and_judged_and_change_no_placement(seed: int) -> None:
    plain, told = Walk(seed, AGENT), Walk(seed, (*AGENT, "prewarm"))
    for _ in range(60):
        plain.step()
        told.step()
        assert plain.placed == told.placed
    assert not plain.cluster.state.prewarm_ends
    # When nobody waits any more, nobody is told anything and nothing is looked at.
    for job in list(told.cluster.state.jobs):
        told.cluster.cancel(job)
    told.cluster.advance(5)
    assert (told.cluster.state.prewarms, told.cluster.state.eyed) == ({}, {})


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 30))
def test_what_workers_say_that_they_have_breaks_nothing(seed: int) -> None:
    walk = Walk(seed, (*AGENT, "prewarm", "warms"))
    for _ in range(60):
        walk.step()


def test_the_walks_come_to_hints_that_are_used() -> None:
    seen: dict[str, int] = {}
    for seed in range(6):
        walk = Walk(seed, (*AGENT, "prewarm"))
        for _ in range(60):
            walk.step()
        for how, count in walk.cluster.state.prewarm_ends.items():
            seen[how] = seen.get(how, 0) + count
    assert {"sent", "used"} <= {*seen}, seen
