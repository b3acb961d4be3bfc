"""A worker on which everything fails at once is taken out, and let in by a trial; others' bugs are not its fault."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster, assigned, only

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.recovery import wake_up
from dray.core.lifecycle.state.effects import Alarm, Note
from dray.core.lifecycle.state.events import WorkerDrained, pack_facts, unpack_facts
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.state.timings import Rules
from dray.core.model.records.worker import Worker

FULL = "OSError: [Errno 28] No space left on device"
MISSING = "train.py: can't open file '/data/train.py'"


def fail(
    cluster: Cluster, job: str, worker: str = "bad", user: str = "ann", last: str = "", **more: Any
) -> None:
    """A job goes to one worker and fails there after a second."""
    cluster.submit(job, user, require=[f"host={worker}"], **more)
    uid = cluster.current(job)
    cluster.run(uid)
    cluster.end(uid, "failed", exit_class="code", wall_s=1, last=last)


def succeed(cluster: Cluster, job: str, worker: str, user: str = "ann", **more: Any) -> None:
    cluster.submit(job, user, require=[f"host={worker}"], **more)
    uid = cluster.current(job)
    cluster.run(uid)
    cluster.end(uid, wall_s=1)


@pytest.fixture
def pair(cluster: Cluster) -> Cluster:
    for name in ("bad", "good"):
        cluster.join(name, credit=1 << 20, labels={"host": name})
    return cluster


def bad(cluster: Cluster) -> Worker:
    return cluster.state.workers["bad"]


def test_three_jobs_that_name_the_machine_take_it_out_and_the_reason_is_told(pair: Cluster) -> None:
    fail(pair, "one", last=FULL)
    fail(pair, "two", last=FULL)
    assert not bad(pair).draining
    fail(pair, "three", last=FULL)
    assert bad(pair).draining
    assert bad(pair).faults == 1
    told = [note for note in only(pair.effects, Note) if note.type == "worker_quarantined"]
    assert [note.worker for note in told] == ["bad"]
    assert "one, two, three" in told[0].data["reason"]
    assert FULL in told[0].data["text"]
    assert only(pair.effects, Alarm)
    assert assigned(pair.submit("next", require=["host=bad"])) == []
    ((kind, _, have),) = [found for found in pair.blockers("next") if found[0] == "draining"]
    assert (kind, have.startswith("quarantined: 3 different jobs failed there")) == ("draining", True)
    assert assigned(pair.submit("other", require=["host=good"]))


def test_one_user_takes_no_second_machine_of_a_small_site_out(pair: Cluster) -> None:
    """What a program prints is its own word: whoever may submit could say of each machine that its disk is full."""
    for worker in ("bad", "good"):
        for number in range(3):
            fail(pair, f"{worker}{number}", worker, last=FULL, command=["sh", worker])
    assert (bad(pair).draining, pair.state.workers["good"].draining) == (True, False)
    fail(pair, "of-bob", "good", user="bob", last=FULL, command=["sh", "bob"])
    assert pair.state.workers["good"].draining, "somebody else says so too"


def test_one_job_that_fails_again_and_again_is_its_own_fault(pair: Cluster) -> None:
    pair.submit("array", array={"first": 0, "last": 7}, retries=3, require=["host=bad"])
    for _ in range(3):
        for uid in pair.held("bad"):
            pair.run(uid)
            pair.end(uid, "failed", exit_class="code", wall_s=1, last=FULL)
    assert not bad(pair).draining


def test_who_mends_a_script_on_the_only_machine_keeps_it(cluster: Cluster) -> None:
    cluster.join("bad", credit=1 << 20, labels={"host": "bad"})
    for number in range(6):
        fail(cluster, f"job{number}", last=MISSING)
    assert not bad(cluster).draining
    fail(cluster, "of-bob", user="bob", last=MISSING)
    assert not bad(cluster).draining
    fail(cluster, "of-cat", user="cat", last=MISSING)
    assert bad(cluster).draining, "three users agree"


def test_work_that_goes_well_elsewhere_takes_a_machine_out_on_which_it_fails_at_once(pair: Cluster) -> None:
    command = ["python", "train.py", "--lr"]
    succeed(pair, "before", "good", command=[*command, "1"])
    for number in range(3):
        fail(pair, f"job{number}", command=[*command, str(number)], name=f"sweep-{number}", last=MISSING)
    assert bad(pair).draining


def test_what_runs_on_elsewhere_goes_well_too(pair: Cluster) -> None:
    pair.submit("long", require=["host=good"])
    pair.run(pair.current("long"))
    for number in range(3):
        fail(pair, f"early{number}")
    assert not bad(pair).draining, "nobody knows yet how it goes elsewhere"
    pair.advance(61)
    for number in range(3):
        fail(pair, f"late{number}")
    assert bad(pair).draining


def test_bugs_of_three_users_that_fail_elsewhere_too_are_theirs(pair: Cluster) -> None:
    for user in ("ann", "bob", "cat"):
        fail(pair, f"{user}-good", "good", user=user, command=["python", user], last=FULL)
        fail(pair, f"{user}-bad", "bad", user=user, command=["python", user], last=FULL)
    assert not bad(pair).draining
    assert not pair.state.workers["good"].draining


def test_a_machine_on_which_something_goes_well_meanwhile_is_not_at_fault(pair: Cluster) -> None:
    fail(pair, "one", last=FULL)
    fail(pair, "two", last=FULL)
    succeed(pair, "fine", "bad", command=["python", "other.py"])
    fail(pair, "three", last=FULL)
    fail(pair, "four", last=FULL)
    assert not bad(pair).draining


def test_failures_far_apart_or_after_a_long_run_are_not_at_once(pair: Cluster) -> None:
    succeed(pair, "before", "good")
    for number in range(4):
        fail(pair, f"rare{number}")
        pair.advance(31)
    assert not bad(pair).draining
    for number in range(4):
        pair.submit(f"slow{number}", require=["host=bad"])
        uid = pair.current(f"slow{number}")
        pair.run(uid)
        pair.end(uid, "failed", exit_class="code", wall_s=30)
    assert not bad(pair).draining


def take_out(cluster: Cluster) -> None:
    for name in ("one", "two", "three"):
        fail(cluster, name, last=FULL)
    assert bad(cluster).faults == 1


def test_after_its_time_one_trial_decides_and_a_bad_one_takes_it_out_for_longer(pair: Cluster) -> None:
    take_out(pair)
    pair.submit("array", array={"first": 0, "last": 3}, require=["host=bad"])
    pair.advance(59)
    assert pair.held("bad") == []
    pair.advance(2)
    (trial,) = pair.held("bad")
    assert bad(pair).trial == trial
    assert ("credit", "on trial after a quarantine, one attempt at a time") in {
        (kind, have) for kind, _, have in pair.blockers("array")
    }
    pair.run(trial)
    pair.end(trial, "failed", exit_class="code", wall_s=1, last=FULL)
    assert bad(pair).faults == 2
    pair.advance(119)
    assert pair.held("bad") == []
    pair.advance(2)
    (trial,) = pair.held("bad")
    pair.run(trial)
    pair.advance(5)
    assert pair.held("bad") == [trial]
    pair.advance(6)
    assert len(pair.held("bad")) == 3, "what lives for ten seconds has not failed at once"
    assert (bad(pair).faults, bad(pair).trial) == (0, "")


def test_a_trial_that_succeeds_ends_it_and_one_that_was_stopped_is_followed_by_another(pair: Cluster) -> None:
    take_out(pair)
    pair.submit("stopped", require=["host=bad"])
    pair.submit("next", require=["host=bad"])
    pair.advance(61)
    (trial,) = pair.held("bad")
    pair.run(trial)
    pair.cancel("stopped")
    pair.end(trial, "killed", exit_class="cancelled")
    assert pair.held("bad") == [pair.current("next")]
    assert bad(pair).trial == pair.current("next")
    pair.run(pair.current("next"))
    pair.end(pair.current("next"))
    assert (bad(pair).draining, bad(pair).faults) == (False, 0)


def test_a_person_ends_it_at_once(pair: Cluster) -> None:
    take_out(pair)
    pair.submit("array", array={"first": 0, "last": 3}, require=["host=bad"])
    pair.turn(WorkerDrained("bad", False, "ann"))
    assert len(pair.held("bad")) == 4
    for uid in pair.held("bad"):
        pair.run(uid)
        pair.end(uid, "failed", exit_class="code", wall_s=1, last=FULL)
    assert not bad(pair).draining, "what was known before counts no more"


def test_it_outlives_a_restart_a_registration_and_a_replay(pair: Cluster) -> None:
    take_out(pair)
    pair.register("bad", labels={"host": "bad"})
    wake_up(pair.state, pair.clock)
    for name in ("bad", "good"):
        pair.register(name, labels={"host": name})
        pair.poll(name, 9)
    assert bad(pair).faults == 1
    pair.submit("next", require=["host=bad"])
    assert not pair.held("bad")
    pair.advance(61)
    (trial,) = pair.held("bad")
    folded = State(pair.state.rules)
    for clock, fact in pair.journal:
        (read,) = unpack_facts(pack_facts([fact]))
        apply(folded, read, clock)
    assert folded.workers["bad"] == bad(pair)
    assert folded.workers["bad"].trial == trial
    pair.run(trial)
    wake_up(pair.state, pair.clock)
    pair.register("bad", active=[pair.active(trial)], labels={"host": "bad"})
    pair.advance(12)
    assert bad(pair).faults == 0


def test_a_site_may_do_without_it() -> None:
    cluster = Cluster(Rules(quarantine_failures=0))
    cluster.join("bad", credit=9, labels={"host": "bad"})
    for name in ("one", "two", "three", "four"):
        fail(cluster, name, last=FULL)
    assert not bad(cluster).draining
