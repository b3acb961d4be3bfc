"""The table of an attempt's phases over the full product of phases and triggers."""

from __future__ import annotations

import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.holding.attempts import ADOPT, TRANSITIONS, TRIGGERS, hold, move
from dray.core.lifecycle.state.state import Touched
from dray.core.model.records.records import LIVE_PHASES, Phase

PRODUCT = [(phase, trigger) for phase in Phase for trigger in TRIGGERS]


def test_the_table_speaks_of_known_phases_and_triggers_only() -> None:
    assert set(TRANSITIONS) <= set(PRODUCT)
    assert {phase for phase in Phase if phase.live} == set(LIVE_PHASES)


def test_nothing_leaves_a_final_phase_but_a_lost_attempt_that_is_adopted() -> None:
    leaving = [(phase, trigger) for phase, trigger in TRANSITIONS if not phase.live]
    assert leaving == [(Phase.LOST, ADOPT)]


def test_every_phase_can_be_reached_and_every_live_one_can_end() -> None:
    reached, grew = {Phase.ASSIGNED}, True
    while grew:
        more = {after for (before, _), after in TRANSITIONS.items() if before in reached} - reached
        reached, grew = reached | more, bool(more)
    assert reached == set(Phase)
    for phase in LIVE_PHASES:
        ends = {after for (before, _), after in TRANSITIONS.items() if before is phase and not after.live}
        assert {Phase.SUCCEEDED, Phase.FAILED, Phase.KILLED, Phase.PREEMPTED, Phase.LOST} <= ends


def test_every_trigger_moves_something() -> None:
    assert {trigger for _, trigger in TRANSITIONS} == set(TRIGGERS)


@pytest.mark.parametrize(("phase", "trigger"), PRODUCT)
def test_a_move_follows_the_table_and_keeps_the_books(cluster: Cluster, phase: Phase, trigger: str) -> None:
    cluster.join("w1", credit=1, gpus=1, vram_gb=40)
    cluster.submit(gpu_count=1)
    state, attempt = cluster.state, cluster.attempt(cluster.current())
    attempt.phase = phase
    if not phase.live:
        hold(state, attempt, -1)
    state.touched = Touched()
    after = TRANSITIONS.get((phase, trigger))
    assert move(state, attempt, trigger) is (after is not None)
    assert attempt.phase is (after or phase)
    assert (attempt.uid in state.held["w1"]) is attempt.phase.live
    assert (attempt.uid in state.live_of.get("job", ())) is attempt.phase.live
    assert cluster.job().live == int(attempt.phase.live)
    assert cluster.free_cards("w1") == int(not attempt.phase.live)
    assert list(state.touched.attempts) == ([attempt.uid] if after else []), (
        "a change is written, nothing else is"
    )
