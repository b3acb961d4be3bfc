"""Who gets which port: none that another attempt holds, fixed ones as asked, the others round the range."""

from __future__ import annotations

from typing import Any

import pytest

from dray.agent.decide.effects import Launch, Tell
from dray.agent.decide.leases import wanted
from dray.agent.decide.machine import Machine
from dray.core.model.specs.check import check_spec
from dray.core.model.specs.ports import LEASED
from dray.core.model.specs.resources import ask_of
from dray.core.model.specs.spec import JobSpec
from dray.wire.messages.hub import Ack, AttemptRef, GangPlace, JobAssign


def make_machine(span: range) -> Machine:
    machine = Machine("w1", "i1", 4, 0, (1000,), {})
    machine.leases.span = span
    machine.acked(Ack(re="register"), 0)
    return machine


def assign(machine: Machine, number: int, ports: list[str]) -> Launch:
    spec = JobSpec(id=f"job-{number}", command=["x"], ports=ports)
    (launch,) = machine.assigned(JobAssign(spec, 1 << 62, AttemptRef(1, f"1-{number}")), 0)
    assert isinstance(launch, Launch)
    return launch


def test_every_port_has_one_holder_and_comes_back_when_it_is_gone() -> None:
    machine = make_machine(range(20_000, 20_003))
    one, two, three = (assign(machine, number, ["a", "b"]) for number in range(3))
    first = machine.leases.take(machine.running, one, lambda port: True)
    assert len({*first.ports}) == 2
    second = machine.leases.take(machine.running, two, lambda port: True)
    assert "no port is free for 'b'" in second.fault
    assert "20000-20002" in second.fault
    assert second.ports == []
    machine.supervised({"ev": "exited", "items": [{"uid": "1-0", "state": "succeeded", "exit_code": 0}]}, 5)
    third = machine.leases.take(machine.running, three, lambda port: True)
    assert len({*third.ports}) == 2


def test_a_port_that_a_stranger_has_is_passed_over_and_a_fixed_one_is_not_replaced() -> None:
    machine = make_machine(range(20_000, 20_004))
    lease = machine.leases.take(
        machine.running, assign(machine, 1, ["a", "fixed=20003"]), lambda port: port in (20_001, 20_003)
    )
    assert lease.ports == [20_001, 20_003]
    held = machine.leases.take(machine.running, assign(machine, 2, ["c=20003"]), lambda port: True)
    assert "port 20003, asked for as 'c', is held by task job-1" in held.fault
    strange = machine.leases.take(machine.running, assign(machine, 3, ["c=20002"]), lambda port: False)
    assert "held by a program that is no task" in strange.fault


def test_a_lease_is_claimed_again_from_the_journal_and_told_anew() -> None:
    machine = make_machine(range(20_000, 20_002))
    meta = {"pool": "service", "ports": [20_000]}
    item = {"uid": "1-7", "task_id": "job-7", "phase": "running", "pid": 9, "started_at": 1.0, "meta": meta}
    machine.attached({"journal_id": "j", "boot_id": "b", "max_epoch": 0, "attempts": [item]}, 0)
    lease = machine.leases.take(machine.running, assign(machine, 1, ["a"]), lambda port: True)
    assert lease.ports == [20_001]
    told = [e for e in machine.acked(Ack(re="register", keep=["1-7"]), 1) if isinstance(e, Tell)]
    assert [e.payload["ports"] for e in told if e.type == "job_accepted"] == [[20_000]]


def test_what_gets_no_port_goes_elsewhere_and_the_worker_stays_ready() -> None:
    machine = make_machine(range(20_000, 20_001))
    assign(machine, 1, ["a"])
    refusal = {"ev": "refused", "uid": "1-1", "error": "no port is free", "elsewhere": True}
    told = [e for e in machine.supervised(refusal, 1) if isinstance(e, Tell)]
    assert [(e.type, e.payload.get("exit_class")) for e in told] == [("job_result", "lost_unstarted")]
    assert not machine.readiness.reason


@pytest.mark.parametrize(
    ("spec", "leased"),
    [
        ({"ports": ["a", "b"]}, 2),
        ({"ports": ["a=8080"]}, 0),
        ({"health_check": {"tcp": True}}, 1),
        ({"health_check": {"command": ["true"]}}, 0),
        ({"ports": ["a"], "health_check": {"tcp": True}}, 1),
        ({"node_count": 2}, 1),
        ({"node_count": 2, "ports": ["a", "b=8080"]}, 2),
    ],
)
def test_as_many_ports_are_counted_as_an_agent_leases(spec: dict[str, Any], leased: int) -> None:
    read = check_spec({"command": ["true"], **spec})
    assert dict(ask_of(read).resources).get(LEASED, 0) == leased
    gang = GangPlace(0, 2, 1) if read.node_count > 1 else None
    asks = wanted(Launch("1-1", read, None, 0, (), 1, gang=gang))
    assert [ask.number for ask in asks].count(0) == leased
