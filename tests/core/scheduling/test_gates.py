"""Rules that hold work back whatever room there is: quotas, budgets, paces, caps."""

from __future__ import annotations

from collections import Counter

from tests.core.harness import Cluster

from dray.core.lifecycle.state.parties import GateKey, QuotaGate
from dray.core.lifecycle.timers import next_due_ms
from dray.core.model.policies.policy import Budget, Cap, Pace, Pacing, Quota


def running(cluster: Cluster, worker: str = "w1") -> Counter[str]:
    return Counter(cluster.attempt(uid).job_id for uid in cluster.held(worker))


def finish(cluster: Cluster, uid: str) -> None:
    cluster.run(uid)
    cluster.end(uid)


def test_a_quota_holds_an_array_at_its_size(cluster: Cluster) -> None:
    cluster.rule(quotas=(Quota(user="*", gpus=2),))
    cluster.join("w1", credit=100, gpus=8)
    cluster.submit("mine", user="ann", gpu_count=1, array={"last": 5})
    cluster.submit("theirs", user="bob", gpu_count=1, array={"last": 5})
    assert running(cluster) == {"mine": 2, "theirs": 2}
    finish(cluster, cluster.current("mine"))
    assert running(cluster) == {"mine": 2, "theirs": 2}


def test_shapes_of_one_user_share_a_quota_within_a_pass(cluster: Cluster) -> None:
    cluster.rule(quotas=(Quota(user="*", gpus=3),))
    cluster.submit("a", gpu_count=2)
    cluster.submit("b", gpu_count=1, cpu_milli=1000)
    cluster.submit("c", gpu_count=1, cpu_milli=2000)
    cluster.join("w1", credit=100, gpus=8)
    assert running(cluster) == {"a": 1, "b": 1}


def test_a_shared_card_counts_by_its_share(cluster: Cluster) -> None:
    cluster.rule(quotas=(Quota(user="*", gpus=1.5),))
    cluster.join("w1", credit=100, gpus=8)
    cluster.submit("parts", gpu_count=1, gpu_milli=500, array={"last": 9})
    assert running(cluster) == {"parts": 3}


def test_work_without_cards_passes_a_quota(cluster: Cluster) -> None:
    cluster.rule(quotas=(Quota(user="*", gpus=0),))
    cluster.join("w1", credit=100, gpus=1)
    cluster.submit("gpu", gpu_count=1)
    cluster.submit("cpu")
    assert running(cluster) == {"cpu": 1}


def test_a_rule_for_one_name_goes_before_the_rule_for_each(cluster: Cluster) -> None:
    cluster.rule(quotas=(Quota(user="*", gpus=1), Quota(user="ann", gpus=3)))
    cluster.join("w1", credit=100, gpus=8)
    cluster.submit("a", user="ann", gpu_count=1, array={"last": 5})
    cluster.submit("b", user="bob", gpu_count=1, array={"last": 5})
    assert running(cluster) == {"a": 3, "b": 1}


def test_quotas_of_queues_and_plugins(cluster: Cluster) -> None:
    cluster.rule(quotas=(Quota(queue="night", gpus=2), Quota(plugin="sweep", gpus=1)))
    cluster.join("w1", credit=100, gpus=8)
    cluster.submit("n", queue="night", gpu_count=1, array={"last": 5})
    cluster.submit("s", plugin="sweep", gpu_count=1, array={"last": 5})
    cluster.submit("both", queue="night", plugin="sweep", gpu_count=1)
    assert running(cluster) == {"n": 2, "s": 1}


def test_a_gang_that_a_quota_cannot_hold_whole_does_not_start(cluster: Cluster) -> None:
    cluster.rule(quotas=(Quota(user="*", gpus=3),))
    for name in ("w1", "w2"):
        cluster.join(name, credit=10, gpus=2)
    cluster.submit("gang", node_count=2, gpu_count=2)
    assert not cluster.held("w1")
    cluster.submit("pair", node_count=2, gpu_count=1)
    assert cluster.held("w1")
    assert cluster.held("w2")


def test_a_hard_budget_holds_until_the_next_period(cluster: Cluster) -> None:
    budget = Budget(hard=10 / 3600, per_s=100)
    cluster.rule(quotas=(Quota(user="*", gpu_hours=budget),))
    cluster.join("w1", credit=100, gpus=8)
    cluster.advance(100 - cluster.now_ms % 100_000 / 1000)
    cluster.submit("a", gpu_count=1)
    cluster.run(cluster.current("a"))
    cluster.advance(20)
    cluster.end(cluster.current("a"))
    cluster.submit("b", gpu_count=1)
    assert not cluster.current("b")
    cluster.advance(79)
    assert not cluster.current("b")
    cluster.advance(2)
    assert cluster.current("b")


def test_what_still_runs_counts_for_a_budget(cluster: Cluster) -> None:
    cluster.rule(quotas=(Quota(user="*", gpu_hours=Budget(hard=10 / 3600, per_s=1000)),))
    cluster.join("w1", credit=100, gpus=8)
    cluster.submit("a", gpu_count=1)
    cluster.run(cluster.current("a"))
    cluster.advance(11)
    cluster.submit("b", gpu_count=1)
    assert not cluster.current("b")


def test_beginnings_that_are_read_late_leave_ends_to_the_periods_that_they_came_in() -> None:
    """A hub that starts reads rows at the time its store tells, and folds earlier turns on them."""
    for begins_ms in ([10_000, 120_000, 130_000], [130_000, 120_000, 10_000]):
        gate = QuotaGate(GateKey("quota", "user", "ann"), Quota(gpu_hours=Budget(hard=1, per_s=100)), {})
        for begin_ms in begins_ms:
            gate.hold(1, 1000, begin_ms, now_ms=250_000)
        assert gate.used_ms(140_000) == (40_000 + 20_000 + 10_000) * 1000
        assert gate.hold(-1, 1000, 10_000, now_ms=150_000) == 50_000 * 1000
        assert gate.hold(-1, 1000, 120_000, now_ms=160_000) == 40_000 * 1000
        assert gate.hold(-1, 1000, 130_000, now_ms=210_000) == 10_000 * 1000
        assert gate.used_ms(220_000) == 0


def test_a_pace_lets_a_burst_through_and_then_one_by_one(cluster: Cluster) -> None:
    cluster.rule(pacing=Pacing(starts=(Pace(user="*", per_minute=6, burst=2),)))
    cluster.join("w1", credit=100)
    cluster.submit("a", array={"last": 5})
    assert len(cluster.held("w1")) == 2
    cluster.advance(9.9)
    assert len(cluster.held("w1")) == 2
    cluster.advance(0.2)
    assert len(cluster.held("w1")) == 3
    cluster.accept_all("w1")
    cluster.advance(20)
    assert len(cluster.held("w1")) == 5


def test_a_pace_never_saves_up_more_than_its_burst(cluster: Cluster) -> None:
    cluster.rule(pacing=Pacing(starts=(Pace(queue="default", per_minute=60, burst=2),)))
    cluster.join("w1", credit=100)
    cluster.advance(300)
    cluster.submit("a", array={"last": 5})
    assert len(cluster.held("w1")) == 2


def test_a_pace_whose_timer_found_nobody_times_the_next(cluster: Cluster) -> None:
    """Who waited for a token was cancelled before it came: whoever waits later is looked at in time all the same."""
    cluster.rule(pacing=Pacing(starts=(Pace(user="*", per_minute=6, burst=1),)))
    cluster.join("w1", credit=100)
    cluster.submit("a")
    cluster.submit("b")
    cluster.cancel("b")
    # Its line is pruned, and nobody stands behind the gate any more, when a pass looks at the shape for another user.
    cluster.submit("c", user="bob")
    cluster.accept_all("w1")
    cluster.advance(11)
    cluster.submit("d")
    cluster.submit("e")
    assert cluster.current("d")
    assert not cluster.current("e")
    cluster.advance(11)
    assert cluster.current("e")


def test_a_gang_waits_for_several_tokens_without_a_look_at_every_moment(cluster: Cluster) -> None:
    cluster.rule(pacing=Pacing(starts=(Pace(user="*", per_minute=6, burst=3),)))
    for name in ("w1", "w2", "w3"):
        cluster.join(name, credit=10)
    cluster.submit("single", array={"last": 1})
    cluster.submit("gang", node_count=3)
    due_ms = next_due_ms(cluster.state)
    assert due_ms is not None
    assert due_ms - cluster.now_ms > 1000
    cluster.advance(15)
    assert not cluster.current("gang")
    cluster.advance(6)
    assert cluster.current("gang")


def test_a_cap_per_label(cluster: Cluster) -> None:
    cluster.rule(pacing=Pacing(running=(Cap(label="team=a", most=2),)))
    cluster.join("w1", credit=100)
    cluster.submit("a", labels={"team": "a"}, array={"last": 4})
    cluster.submit("b", labels={"team": "b"}, array={"last": 2})
    assert running(cluster) == {"a": 2, "b": 3}
    finish(cluster, cluster.current("a"))
    assert running(cluster) == {"a": 2, "b": 3}


def test_a_revoked_assignment_gives_its_place_back(cluster: Cluster) -> None:
    cluster.rule(pacing=Pacing(running=(Cap(label="team", most=1),)))
    cluster.join("w1", credit=100, features=())
    cluster.submit("a", labels={"team": "x"})
    cluster.submit("b", labels={"team": "x"})
    cluster.leave("w1")
    cluster.join("w2", credit=100)
    assert running(cluster, "w2") == {"a": 1}


def test_an_adopted_attempt_counts_once(cluster: Cluster) -> None:
    """Given up and taken back: what it used before is in the meters already."""
    cluster.rule(quotas=(Quota(user="*", gpu_hours=Budget(hard=1, per_s=100_000)),))
    cluster.join("w1", credit=100, gpus=1)
    cluster.submit("a", gpu_count=1)
    uid = cluster.current("a")
    cluster.run(uid)
    began_ms = cluster.now_ms
    cluster.break_socket("w1")
    cluster.advance(300)
    assert cluster.attempt(uid).phase == "lost"
    cluster.register("w1", active=[cluster.active(uid)])
    assert cluster.current("a") == uid
    gate = cluster.state.parties.gates["quota user ann each"]
    used_s = gate.used_ms(cluster.now_ms) / 1_000_000  # type: ignore[attr-defined]  # a quota's gate
    assert 100 < used_s <= (cluster.now_ms - began_ms) / 1000


def test_an_assignment_that_is_sent_again_is_counted_from_then_on(cluster: Cluster) -> None:
    cluster.join("w1", credit=100)
    cluster.submit("a")
    cluster.advance(5)
    cluster.register("w1")  # it has not got it: it is sent again, and the sums still agree
    uid = cluster.current("a")
    cluster.run(uid)
    cluster.end(uid)
    holding = cluster.state.parties.users["ann"]
    assert (holding.cost, holding.cost_starts) == (0, 0)


def test_a_new_policy_counts_what_runs(cluster: Cluster) -> None:
    cluster.join("w1", credit=100, gpus=8)
    cluster.submit("a", gpu_count=1, array={"last": 9})
    assert len(cluster.held("w1")) == 8
    for uid in cluster.held("w1")[:7]:
        finish(cluster, uid)
    assert len(cluster.held("w1")) == 3
    cluster.rule(quotas=(Quota(user="*", gpus=3),))
    cluster.submit("b", gpu_count=1)
    assert not cluster.current("b")
    finish(cluster, cluster.held("w1")[0])
    assert cluster.current("b")


def test_a_policy_without_a_rule_lets_go_what_it_held_back(cluster: Cluster) -> None:
    cluster.rule(quotas=(Quota(user="*", gpus=0),))
    cluster.join("w1", credit=100, gpus=8)
    cluster.submit("a", gpu_count=1)
    assert not cluster.current("a")
    cluster.rule()
    assert cluster.current("a")


def test_a_pace_that_stays_keeps_its_tokens_when_the_policy_changes(cluster: Cluster) -> None:
    pacing = Pacing(starts=(Pace(user="*", per_minute=6, burst=2),))
    cluster.rule(pacing=pacing)
    cluster.join("w1", credit=100)
    cluster.submit("a", array={"last": 5})
    assert len(cluster.held("w1")) == 2
    cluster.rule(pacing=pacing, quotas=(Quota(user="*", gpus=1),))
    assert len(cluster.held("w1")) == 2
    cluster.rule(pacing=Pacing(starts=(Pace(user="*", per_minute=6, burst=3),)))
    assert len(cluster.held("w1")) == 5


def test_a_line_that_waits_for_a_moment_is_not_forgotten_behind_one_that_waits_for_an_end(
    cluster: Cluster,
) -> None:
    """One gate holds a gang back by its size, for good, and another line until the next period."""
    budget = Budget(hard=10 / 3600, per_s=100)
    cluster.rule(quotas=(Quota(user="*", gpus=2, gpu_hours=budget),))
    for name in ("w1", "w2", "w3"):
        cluster.join(name, credit=100, gpus=2)
    cluster.advance(100 - cluster.now_ms % 100_000 / 1000)
    cluster.submit("never", gpu_count=1, node_count=3)
    cluster.submit("a", gpu_count=1)
    cluster.run(cluster.current("a"))
    cluster.advance(20)
    cluster.submit("b", gpu_count=1, cpu_milli=1000)
    assert not cluster.current("b")
    cluster.advance(81)
    assert cluster.current("b")
