"""Tasks that wait on others: what their agent tells the hub, and what it keeps."""

from __future__ import annotations

from dray.agent.decide.attempts import Running
from dray.agent.decide.effects import Grant, Tell
from dray.agent.decide.machine import Machine
from dray.wire.messages.hub import Ack, JobResume


def machine_with(uid: str) -> Machine:
    machine = Machine("w1", "i1", 2, 0, (1000,), {})
    machine.running[uid] = Running(uid=uid, task_id="job", pool="batch", phase="running")
    machine.registered = True
    return machine


def words(effects: list[object]) -> list[str]:
    return [effect.type if isinstance(effect, Tell) else type(effect).__name__ for effect in effects]


def test_a_task_that_waits_holds_no_slot_until_it_is_granted_one() -> None:
    machine = machine_with("1-1")
    assert words([*machine.task_said("1-1", {"yield": {}}, 0)]) == ["job_yield"]
    assert machine.slots().batch_in_use == 0
    assert machine.task_said("1-1", {"yield": {}}, 0) == [], "once is enough"
    assert words([*machine.task_said("1-1", {"resume": {}}, 10)]) == ["job_resume"]
    assert machine.resumed(JobResume("job", "1-1"), 20) == [Grant("1-1")]
    assert machine.slots().batch_in_use == 1
    assert machine.resumed(JobResume("job", "1-1"), 30) == [], "a grant that comes twice"


def test_both_words_are_told_again_in_a_new_session() -> None:
    machine = machine_with("1-1")
    machine.task_said("1-1", {"yield": {}}, 0)
    machine.task_said("1-1", {"resume": {}}, 10)
    machine.disconnected()
    effects = machine.acked(Ack(re="register", epoch=1, keep=["1-1"]), 50)
    assert [word for word in words([*effects]) if word.startswith("job_")] == ["job_yield", "job_resume"]


def test_a_grant_that_nobody_asked_for_changes_nothing() -> None:
    machine = machine_with("1-1")
    machine.task_said("1-1", {"yield": {}}, 0)
    assert machine.resumed(JobResume("job", "1-1"), 10) == []
    assert machine.slots().batch_in_use == 0


def test_one_that_ends_while_it_waits_is_forgotten() -> None:
    machine = machine_with("1-1")
    machine.task_said("1-1", {"yield": {}}, 0)
    machine.task_said("1-1", {"resume": {}}, 0)
    item = {"uid": "1-1", "state": "succeeded", "exit_code": 0}
    machine.supervised({"ev": "exited", "items": [item]}, 10)
    assert [word for word in words([*machine.resend(9000)]) if word == "job_resume"] == []
