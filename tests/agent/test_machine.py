"""What an agent decides, where two sides speak at the same time: nothing that runs is forgotten or denied."""

from __future__ import annotations

from typing import Any

from dray.agent.decide.effects import Effect, Launch, Ship, Supervise, Tell
from dray.agent.decide.machine import Machine
from dray.core.model.specs.spec import JobSpec
from dray.wire.messages.hub import Ack, AttemptRef, GangPlace, JobAssign, JobCancel

STATE = {"journal_id": "j1", "boot_id": "b1", "max_epoch": 1, "attempts": []}
EXIT: dict[str, Any] = {"state": "succeeded", "exit_code": 0, "exit_class": "ok", "out": {"stdout": 5}}


def make_machine() -> Machine:
    """An agent that is attached and registered."""
    machine = Machine("w1", "i1", 4, 0, (1000,), {})
    machine.greeting(())
    machine.attached(STATE, 0)
    machine.acked(Ack(re="register", epoch=1), 0)
    return machine


def assign(machine: Machine, uid: str, behind: str = "") -> list[Effect]:
    spec, ref = JobSpec(id=f"t{uid}", command=["true"], user_id="ann"), AttemptRef(no=1, uid=uid)
    return machine.assigned(JobAssign(spec=spec, remaining_time=10**9, attempt=ref, behind=behind), 0)


def kinds(effects: list[Effect]) -> list[str]:
    """Messages to the hub by their type, other effects by their class."""
    return [effect.type if isinstance(effect, Tell) else type(effect).__name__ for effect in effects]


def test_what_is_assigned_while_a_new_supervisor_is_asked_for_its_state_is_not_forgotten() -> None:
    machine = make_machine()
    machine.greeting(())
    assert kinds(assign(machine, "1-1")) == ["Launch"]
    machine.attached(STATE, 0)
    assert kinds(machine.supervised({"ev": "accepted", "uids": ["1-1"]}, 0)) == ["job_accepted"]
    (stop,) = machine.cancelled(JobCancel(task_id="t1-1", attempt="1-1", reason="user"))
    assert isinstance(stop, Supervise), "it runs: to say that it never started would be a lie"


def test_what_waits_to_be_sent_reaches_the_new_supervisor() -> None:
    machine = make_machine()
    assign(machine, "1-1")
    machine.greeting(["1-1"])
    machine.attached(STATE, 0)
    assert kinds(machine.supervised({"ev": "accepted", "uids": ["1-1"]}, 0)) == ["job_accepted"]


def test_what_only_the_dead_supervisor_was_asked_to_run_is_launched_when_the_hub_sends_it_again() -> None:
    machine = make_machine()
    assign(machine, "1-1")
    machine.greeting(())
    machine.attached(STATE, 0)
    assert machine.slots().batch_in_use == 0
    (launch,) = assign(machine, "1-1")
    assert isinstance(launch, Launch)


def test_output_of_an_attempt_that_a_report_could_not_name_is_shipped() -> None:
    machine = make_machine()
    assign(machine, "1-1")
    machine.disconnected()
    assert machine.registration(0)["active_tasks"] == [], "not accepted yet"
    machine.acked(Ack(re="register", epoch=1), 0)
    assert assign(machine, "1-1") == [], "the hub sends again what it does not see"
    effects = machine.supervised({"ev": "exited", "items": [{"uid": "1-1", **EXIT}]}, 0)
    assert kinds(effects) == ["Ship", "job_result", "ready_for_work"]


def unnamed(uid: str) -> Machine:
    """An agent with an attempt that its report could not name, so that the hub's answer does not either; it ends."""
    machine = make_machine()
    assign(machine, uid)
    machine.disconnected()
    machine.acked(Ack(re="register", epoch=1), 0)
    effects = machine.supervised({"ev": "exited", "items": [{"uid": uid, **EXIT}]}, 0)
    assert kinds(effects) == ["job_result", "ready_for_work"], "the hub may refuse what it printed"
    return machine


def test_output_of_an_attempt_that_ended_unnamed_is_shipped_when_the_hub_sends_it_again() -> None:
    effects = assign(unnamed("1-1"), "1-1")
    assert kinds(effects) == ["Ship", "job_result"]
    assert effects[0] == Ship("1-1", "t1-1", ended=True)


def test_output_of_an_attempt_that_ended_unnamed_is_shipped_when_the_hub_knows_it_by_its_result() -> None:
    forgotten = Supervise({"op": "acked", "uids": ["1-1"]})
    for verdict in ("recorded", "duplicate"):
        ack = Ack(re="job_result", epoch=1, results={"1-1": verdict})
        assert unnamed("1-1").acked(ack, 0) == [Ship("1-1", "t1-1", ended=True), forgotten]
    ack = Ack(re="job_result", epoch=1, results={"1-1": "superseded"})
    assert unnamed("1-1").acked(ack, 0) == [forgotten], "no hub that knows it said so"
    ack.log_offsets = {"1-1": {}}
    assert unnamed("1-1").acked(ack, 0) == [Ship("1-1", "t1-1", ended=True), forgotten]


def test_output_of_what_a_new_supervisor_says_has_ended_is_shipped_before_its_result() -> None:
    """The one before died with the word of its end, or of its start too: nobody else says that there is output."""
    machine = make_machine()
    assign(machine, "1-1")
    assign(machine, "1-2")
    machine.supervised({"ev": "started", "items": [{"uid": "1-1", "pid": 7, "started_at": 1.0}]}, 0)
    machine.greeting(())
    ended = [{"uid": uid, "task_id": f"t{uid}", "phase": "exited", **EXIT} for uid in ("1-1", "1-2")]
    machine.attached({**STATE, "attempts": ended}, 0)
    effects = machine.report(0)
    assert kinds(effects) == ["Ship", "job_result", "Ship", "job_result"]
    assert effects[::2] == [Ship(uid, f"t{uid}", ended=True) for uid in ("1-1", "1-2")]


def test_output_of_what_ended_under_another_agent_is_shipped_though_its_result_is_answered_first() -> None:
    """The agent before was killed as the hub was about to record what it said: the answer comes to the next one."""
    machine = Machine("w1", "i2", 4, 0, (1000,), {})
    machine.greeting(())
    machine.attached({**STATE, "attempts": [{"uid": "1-1", "task_id": "t1-1", "phase": "exited", **EXIT}]}, 0)
    machine.registration(0)
    effects = machine.acked(Ack(re="job_result", epoch=1, results={"1-1": "recorded"}), 0)
    assert effects == [Ship("1-1", "t1-1", ended=True), Supervise({"op": "acked", "uids": ["1-1"]})]


def test_output_that_the_hub_refuses_is_not_shipped_by_a_new_supervisor_either() -> None:
    machine = make_machine()
    assign(machine, "1-1")
    machine.disconnected()
    machine.acked(Ack(re="register", epoch=1), 0)
    machine.greeting(())
    machine.attached({**STATE, "attempts": [{"uid": "1-1", "task_id": "t1-1", "phase": "exited", **EXIT}]}, 0)
    assert kinds(machine.report(0)) == ["job_result"]


def test_output_of_a_superseded_result_is_shipped_where_the_hub_has_it_on_record() -> None:
    for offsets, shipped in (({"1-1": dict[str, int]()}, [Ship("1-1", "t1-1", ended=True)]), ({}, [])):
        machine = make_machine()
        assign(machine, "1-1")
        machine.disconnected()
        machine.supervised({"ev": "exited", "items": [{"uid": "1-1", **EXIT}]}, 0)
        ack = Ack(re="register", epoch=1, results={"1-1": "superseded"}, log_offsets=offsets)
        effects = machine.acked(ack, 0)
        assert [effect for effect in effects if isinstance(effect, Ship)] == shipped
        assert Supervise({"op": "acked", "uids": ["1-1"]}) in effects
        assert machine.running == {}


def test_one_that_waits_for_anothers_place_takes_no_slot_and_is_not_called_active() -> None:
    machine = make_machine()
    assign(machine, "1-1")
    (launch,) = assign(machine, "1-2", behind="1-1")
    assert isinstance(launch, Launch)
    assert launch.behind == "1-1"
    assert machine.slots().batch_in_use == 1
    began = {"ev": "started", "items": [{"uid": "1-1", "pid": 7, "started_at": 1.0}]}
    machine.supervised(began, 0)
    assert [task["attempt"] for task in machine.registration(0)["active_tasks"]] == ["1-1"]
    ended = machine.supervised({"ev": "exited", "items": [{"uid": "1-1", **EXIT}]}, 0)
    assert kinds(ended) == ["Ship", "job_result"], "more is not asked for while something waits here"
    machine.supervised({"ev": "started", "items": [{"uid": "1-2", "pid": 8, "started_at": 1.0}]}, 0)
    assert machine.slots().batch_in_use == 1
    assert [task["attempt"] for task in machine.registration(0)["active_tasks"]] == ["1-2"]


def test_a_new_agent_knows_who_waits() -> None:
    machine = Machine("w1", "i2", 4, 0, (1000,), {})
    machine.greeting(())
    item = {"uid": "1-2", "task_id": "t1-2", "phase": "accepted", "meta": {"pool": "batch", "behind": "1-1"}}
    machine.attached({**STATE, "attempts": [item]}, 0)
    assert machine.slots().batch_in_use == 0
    assert machine.registration(0)["active_tasks"] == []
    assert assign(machine, "1-2", behind="1-1") == [], "the hub sends again what it does not see"


def test_an_answer_that_is_lost_does_not_shift_those_that_follow() -> None:
    machine = make_machine()
    beat = [machine.heartbeat(at_ms).payload["beat"] for at_ms in (5_000, 15_000, 25_000)][-1]
    [renew] = machine.acked(Ack(re="heartbeat", epoch=1, beat=beat), 25_500)
    assert renew == Supervise({"op": "renew", "age_s": 0.5})
    assert machine.acked(Ack(re="heartbeat", epoch=1, beat=beat - 1), 26_000) == [], "it came late"
    machine.heartbeat(35_000)
    assert machine.acked(Ack(re="heartbeat", epoch=1), 36_000) == [Supervise({"op": "renew", "age_s": 1.0})]


def test_the_number_of_a_heartbeat_is_not_that_of_an_earlier_agent() -> None:
    """Its ack may still come, and proves nothing of what this one has said."""
    earlier, machine = Machine("w1", "i0", 4, 0, (1000,), {}), make_machine()
    beat = earlier.heartbeat(5_000).payload["beat"]
    machine.heartbeat(15_000)
    assert machine.acked(Ack(re="heartbeat", epoch=1, beat=beat), 15_500) == []


def test_what_runs_is_not_let_go_by_an_ack_of_a_result_that_it_never_gave() -> None:
    machine = make_machine()
    assign(machine, "1-1")
    machine.supervised({"ev": "started", "items": [{"uid": "1-1", "pid": 7, "started_at": 1.0}]}, 0)
    assert machine.acked(Ack(re="job_result", epoch=1, results={"1-1": "superseded"}), 0) == []
    (stop,) = machine.cancelled(JobCancel(task_id="t1-1", attempt="1-1", reason="superseded"))
    assert isinstance(stop, Supervise)


def test_a_lease_runs_from_the_last_that_the_hub_has_answered() -> None:
    """From then on the hub counts as well; words that go one way only prove nothing."""
    machine = make_machine()
    machine.heartbeat(5_000)
    machine.acked(Ack(re="heartbeat", epoch=1), 6_000)
    machine.heartbeat(30_000)
    for uid, now_ms, kind in (("1-1", 49_999, "Launch"), ("1-2", 50_000, "job_result")):
        spec, ref = (
            JobSpec(id=uid, command=["true"], user_id="ann", overlap="fenced"),
            AttemptRef(no=1, uid=uid),
        )
        effects = machine.assigned(
            JobAssign(spec=spec, remaining_time=10**9, attempt=ref, lease_s=60), now_ms
        )
        assert kinds(effects) == [kind]
        if isinstance(effects[0], Launch):
            assert (effects[0].lease_s, effects[0].heard_ms) == (45, 5_000)
    machine.disconnected()
    machine.registration(70_000)
    machine.acked(Ack(re="register", epoch=1), 71_000)
    spec, ref = (
        JobSpec(id="t3", command=["true"], user_id="ann", overlap="fenced"),
        AttemptRef(no=1, uid="1-3"),
    )
    (launch,) = machine.assigned(JobAssign(spec=spec, remaining_time=10**9, attempt=ref, lease_s=60), 72_000)
    assert isinstance(launch, Launch)
    assert launch.heard_ms == 70_000


def hold_member(machine: Machine, uid: str) -> None:
    spec, ref = (
        JobSpec(id=f"t{uid}", command=["true"], user_id="ann", node_count=2),
        AttemptRef(no=1, uid=uid),
    )
    place = GangPlace(1, 0, 2)
    machine.assigned(JobAssign(spec=spec, remaining_time=10**9, attempt=ref, gang=place), 0)
    meta = {"ports": [20000], "gang": {"generation": 1, "rank": 0, "size": 2}}
    machine.supervised({"ev": "prepared", "items": [{"uid": uid, "meta": meta}]}, 0)


def test_a_member_that_waits_for_a_hub_which_has_forgotten_it_is_let_go() -> None:
    machine = make_machine()
    hold_member(machine, "1-1")
    hold_member(machine, "1-2")
    machine.registration(0)
    effects = machine.acked(Ack(re="register", epoch=2, keep=["1-2"]), 0)
    (stop,) = [one for one in effects if isinstance(one, Supervise) and one.request["op"] == "cancel"]
    assert stop.request["uid"] == "1-1"
    assert stop.request["held"], "what runs by now goes on, as all unknown work does"


def test_a_member_that_came_after_a_registration_is_none_that_its_answer_forgot() -> None:
    machine = make_machine()
    machine.registration(0)
    hold_member(machine, "2-1")
    effects = machine.acked(Ack(re="register", epoch=2), 0)
    assert not [one for one in effects if isinstance(one, Supervise) and one.request["op"] == "cancel"]
