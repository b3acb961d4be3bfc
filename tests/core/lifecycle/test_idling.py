"""Work that holds cards and leaves them idle: warned of, demoted and stopped as the policy says, and nobody else."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.core.harness import Cluster, only

from dray.core.lifecycle.happenings.idling import find_steps
from dray.core.lifecycle.state.effects import Cancel, Effect, Note
from dray.core.lifecycle.state.events import PolicyChanged, UsesSeen
from dray.core.model.policies.policy import IdlePolicy, Policy, pack_policy
from dray.core.model.records.records import JobState, Phase
from dray.core.model.records.worker import CardUse, Use
from dray.core.model.verdicts import judge
from dray.core.scheduling.turns.victim_rules import cost_of_stop

RULES = IdlePolicy(grace_s=60, warn_s=100, demote_s=200, stop_s=300)


@pytest.fixture
def uid(cluster: Cluster) -> str:
    """A task that holds two cards of w1 and has run for long."""
    cluster.turn(PolicyChanged(pack_policy(Policy(idle=RULES))))
    cluster.join("w1", credit=4, gpus=4)
    cluster.submit(gpu_count=2, priority=3)
    cluster.run(cluster.current())
    cluster.advance(10_000)
    return cluster.current()


def see(cluster: Cluster, uid: str, *idle_s: float, worker: str = "w1") -> list[str]:
    """A worker says for how long each card of an attempt idles; gives what was noted of it."""
    cards = cluster.attempt(uid).devices
    used = (CardUse(card, 0.0, 0, span) for card, span in zip(cards, idle_s, strict=False))
    effects = cluster.turn(UsesSeen(worker, {uid: Use(cards=tuple(used))}))
    for event in list(find_steps(cluster.state, worker, uid)):
        effects += cluster.turn(event)
    return [str(note.data.get("step")) for note in noted(effects)]


def noted(effects: Iterable[Effect]) -> list[Note]:
    return [note for note in only(effects, Note) if note.type in ("task_idle", "task_busy")]


def test_each_step_is_taken_once_and_undone_by_work(cluster: Cluster, uid: str) -> None:
    assert see(cluster, uid, 99, 99) == []
    assert see(cluster, uid, 100, 150) == ["warn"]
    assert see(cluster, uid, 110, 160) == []
    assert see(cluster, uid, 210, 260) == ["demote"]
    assert see(cluster, uid, 0, 290) == [""]
    assert cluster.attempt(uid).idling == ""
    assert see(cluster, uid, 100, 400) == ["warn"]


def test_what_idles_for_too_long_is_stopped_with_a_reason(cluster: Cluster, uid: str) -> None:
    assert see(cluster, uid, 301, 301) == ["stop"]
    task = cluster.state.tasks["job", 0]
    assert (task.state, task.exit_class) == (JobState.KILLED, "idle")
    assert task.error == "its GPUs have been idle for 5 min 1 s: stopped by the policy"
    attempt = cluster.attempt(uid)
    assert (attempt.phase, attempt.cancel) == (Phase.STOPPING, "idle")
    verdict = judge(task.exit_class, task.error)
    assert verdict.kind == "idle"
    assert "{again}" in verdict.step


@pytest.mark.parametrize("idle_s", [(500.0,), (500.0, 0.0), ()])
def test_a_card_that_works_or_that_nobody_can_see_makes_it_busy(
    cluster: Cluster, uid: str, idle_s: tuple[float, ...]
) -> None:
    assert see(cluster, uid, *idle_s) == []
    assert cluster.attempt(uid).phase is Phase.RUNNING


def test_the_first_while_and_the_word_of_others_do_not_count(cluster: Cluster, uid: str) -> None:
    cluster.join("w2", credit=1, gpus=1)
    assert see(cluster, uid, 500, 500, worker="w2") == []
    cluster.submit("young", gpu_count=1)
    young = cluster.current("young")
    cluster.run(young)
    cluster.advance(150)
    assert see(cluster, young, 150, worker=cluster.attempt(young).worker) == []
    cluster.advance(20)
    assert see(cluster, young, 170, worker=cluster.attempt(young).worker) == ["warn"]


def test_without_a_rule_nothing_follows(cluster: Cluster, uid: str) -> None:
    cluster.turn(PolicyChanged(pack_policy(Policy())))
    assert see(cluster, uid, 9_000, 9_000) == []


def test_who_was_demoted_is_the_cheapest_to_stop(cluster: Cluster, uid: str) -> None:
    cluster.submit("low", gpu_count=1, priority=-5)
    cluster.run(cluster.current("low"))
    low, idle = cluster.attempt(cluster.current("low")), cluster.attempt(uid)
    assert cost_of_stop(cluster.state, low) < cost_of_stop(cluster.state, idle)
    see(cluster, uid, 250, 250)
    assert cost_of_stop(cluster.state, idle) < cost_of_stop(cluster.state, low)


def test_a_gang_idles_only_as_a_whole(cluster: Cluster, uid: str) -> None:
    cluster.join("w2", credit=4, gpus=4)
    cluster.submit("gang", gpu_count=1, node_count=2)
    uids = list(cluster.state.live_of["gang"])
    for member in uids:
        cluster.accept(member)
    for member in uids:
        cluster.start(member)
    cluster.advance(1_000)
    first, second = (cluster.attempt(member) for member in uids)
    assert see(cluster, first.uid, 400, worker=first.worker) == []
    assert see(cluster, second.uid, 0, worker=second.worker) == []
    assert see(cluster, first.uid, 400, worker=first.worker) == []
    assert see(cluster, second.uid, 350, worker=second.worker) == ["stop"]
    assert cluster.job("gang").state is JobState.KILLED
    assert {cluster.attempt(member).cancel for member in uids} == {"idle"}
    assert len(only(cluster.effects, Cancel)) <= 2
