"""What the agent makes of its tasks' words: told to the hub, passed to the supervisor, kept over reconnects."""

from __future__ import annotations

from typing import Any

import pytest

from dray.agent.decide.effects import Supervise, Tell, Warn
from dray.agent.decide.machine import Machine
from dray.core.model.specs.spec import JobSpec
from dray.wire.messages.hub import Ack, AttemptRef, JobAssign

NO_LIMIT = 1 << 62


@pytest.fixture
def machine() -> Machine:
    """An agent that runs attempt 1-1 of `job` and is registered."""
    made = Machine("w1", "i1", 4, 0, (1000,), {})
    made.attached({"journal_id": "j", "boot_id": "b", "max_epoch": 0, "attempts": []}, 0)
    made.acked(Ack(re="register"), 0)
    made.assigned(JobAssign(JobSpec(id="job", command=["x"]), NO_LIMIT, AttemptRef(1, "1-1")), 0)
    made.supervised({"ev": "accepted", "uids": ["1-1"]}, 0)
    made.supervised({"ev": "started", "items": [{"uid": "1-1", "pid": 7, "started_at": 1.0}]}, 0)
    return made


def told(effects: list[Any]) -> list[dict[str, Any]]:
    return [
        effect.payload for effect in effects if isinstance(effect, Tell) and effect.type == "job_progress"
    ]


def asked(effects: list[Any]) -> list[str]:
    return [effect.request["op"] for effect in effects if isinstance(effect, Supervise)]


def stop(machine: Machine, now_ms: int = 0) -> list[Any]:
    return machine.supervised({"ev": "stopping", "uid": "1-1", "reason": "preempted", "grace_s": 30}, now_ms)


def ended(machine: Machine, **item: Any) -> dict[str, Any]:
    said = {
        "uid": "1-1",
        "state": "preempted",
        "exit_code": 0,
        "exit_class": "cancelled",
        "error": "e",
        **item,
    }
    effects = machine.supervised({"ev": "exited", "items": [said]}, 0)
    (result,) = [e.payload for e in effects if isinstance(e, Tell) and e.type == "job_result"]
    return result


def test_the_latest_word_is_told_once_a_second(machine):
    assert told(machine.task_said("1-1", {"progress": {"step": 1}}, 0)) == [
        {"task_id": "job", "attempt": "1-1", "step": 1}
    ]
    for step in range(2, 100):
        assert told(machine.task_said("1-1", {"progress": {"step": step}}, step)) == []
    assert [payload["step"] for payload in told(machine.resend(1000))] == [99]
    assert told(machine.resend(2000)) == []


def test_the_agent_does_not_expect_an_answer(machine):
    (message,) = machine.task_said("1-1", {"saved": {"step": 1}}, 0)
    assert message.acked is False


def test_listening_is_passed_on_once(machine):
    assert asked(machine.task_said("1-1", {"watch": {}}, 0)) == ["heed"]
    assert asked(machine.task_said("1-1", {"watch": {}}, 0)) == []


def test_a_stop_is_told_to_the_task_and_a_save_then_ends_it(machine):
    assert asked(machine.task_said("1-1", {"saved": {"step": 1}}, 0)) == []
    assert stop(machine) == [Warn("1-1", {"reason": "preempted", "grace_s": 30.0})]
    assert machine.greeted("1-1", 10_000)["stop"] == {"reason": "preempted", "grace_s": 20.0}
    effects = machine.task_said("1-1", {"saved": {"step": 2}}, 100)
    assert asked(effects) == ["hasten"]
    assert [payload["saved_step"] for payload in told(effects)] == [2], "it cannot wait: there is no later"


def test_an_end_after_a_preemption_is_a_preemption_unless_the_work_is_whole(machine):
    stop(machine)
    assert ended(machine)["state"] == "preempted"


def test_work_that_is_whole_has_succeeded(machine):
    stop(machine)
    machine.task_said("1-1", {"finished": {}}, 0)
    result = ended(machine)
    assert (result["state"], result["exit_class"], result.get("error")) == ("succeeded", "ok", None)


def test_a_bad_end_is_none_whatever_was_said(machine):
    stop(machine)
    machine.task_said("1-1", {"finished": {}}, 0)
    assert ended(machine, exit_code=1)["state"] == "preempted"


@pytest.mark.parametrize("state", ["killed", "failed"])
def test_other_ends_stay_what_they_are(machine, state):
    machine.task_said("1-1", {"finished": {}}, 0)
    assert ended(machine, state=state)["state"] == state


def test_without_a_hub_the_last_words_are_kept(machine):
    machine.disconnected()
    assert told(machine.task_said("1-1", {"saved": {"step": 1}, "progress": {"note": "a"}}, 0)) == []
    assert told(machine.resend(5000)) == []
    machine.acked(Ack(re="register", keep=["1-1"]), 6000)
    (payload,) = told(machine.resend(6000))
    assert (payload["saved_step"], payload["saved_age_s"], payload["note"]) == (1, 6.0, "a")


def test_a_hub_that_does_not_know_the_attempt_hears_nothing_of_it(machine):
    machine.task_said("1-1", {"saved": {"step": 1}}, 0)
    machine.disconnected()
    machine.acked(Ack(re="register"), 0)
    assert told(machine.resend(5000)) == []


def test_a_new_agent_takes_over_the_stop(machine):
    again = Machine("w1", "i2", 4, 0, (1000,), {})
    item = {"uid": "1-1", "task_id": "job", "phase": "running", "stop": {"reason": "user", "grace_s": 9.0}}
    again.attached({"journal_id": "j", "boot_id": "b", "max_epoch": 0, "attempts": [item]}, 1000)
    assert again.greeted("1-1", 2000) == {"task_id": "job", "stop": {"reason": "user", "grace_s": 8.0}}


def test_who_is_not_here_is_not_heard(machine):
    assert machine.greeted("9-9", 0) == {}
    assert machine.task_said("9-9", {"saved": {"step": 1}}, 0) == []
    ended(machine, state="succeeded")
    assert machine.task_said("1-1", {"saved": {"step": 1}}, 0) == []


def test_many_tasks_are_told_of_in_turns():
    machine = Machine("w1", "i1", 200, 0, (1000,), {})
    machine.acked(Ack(re="register"), 0)
    uids = [f"1-{number}" for number in range(1, 121)]
    for uid in uids:
        machine.assigned(JobAssign(JobSpec(id=f"job-{uid}", command=["x"]), NO_LIMIT, AttemptRef(1, uid)), 0)
    machine.registered = False
    for uid in uids:
        machine.task_said(uid, {"progress": {"step": 1}}, 0)
    machine.registered = True
    seen = [{payload["attempt"] for payload in told(machine.resend(now))} for now in (500, 900, 1000, 2000)]
    assert [len(batch) for batch in seen] == [100, 0, 20, 0]
    assert set().union(*seen) == {*uids}
