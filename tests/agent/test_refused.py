"""An attempt that this worker could not take on is not started by a second copy of its assignment."""

from __future__ import annotations

from dray.agent.decide.effects import Launch, Tell
from dray.agent.decide.machine import Machine
from dray.core.model.specs.spec import JobSpec
from dray.wire.messages.hub import Ack, AttemptRef, JobAssign, JobCancel

ASSIGNMENT = JobAssign(JobSpec(id="job", command=["x"]), 1 << 62, AttemptRef(1, "1-1"))


def test_a_late_copy_of_an_assignment_does_not_start_what_was_refused() -> None:
    machine = Machine("w1", "i1", 4, 0, (1000,), {})
    machine.acked(Ack(re="register"), 0)
    assert isinstance(machine.assigned(ASSIGNMENT, 0)[0], Launch)
    machine.supervised({"ev": "refused", "uid": "1-1", "error": "no space left"}, 0)
    machine.acked(Ack(re="job_result", results={"1-1": "recorded"}), 0)
    (answer,) = machine.assigned(ASSIGNMENT, 5)
    assert isinstance(answer, Tell)
    assert (answer.type, answer.payload["exit_class"]) == ("job_result", "lost_unstarted")


def test_what_was_to_stop_and_went_with_its_supervisor_is_said_to_have_never_started() -> None:
    """A fenced attempt keeps its place until its end is confirmed: the hub would wait for its whole grace."""
    machine = Machine("w1", "i1", 4, 0, (1000,), {})
    machine.acked(Ack(re="register"), 0)
    machine.assigned(ASSIGNMENT, 0)
    machine.cancelled(JobCancel("job", "1-1", "user", 120), 1)
    machine.greeting(())
    state = {"journal_id": "j", "boot_id": "b", "max_epoch": 0, "attempts": []}
    (told,) = [effect for effect in machine.attached(state, 2) if isinstance(effect, Tell)]
    assert (told.type, told.payload["attempt"], told.payload["exit_class"]) == (
        "job_result",
        "1-1",
        "lost_unstarted",
    )
    (answer,) = machine.assigned(ASSIGNMENT, 5)
    assert isinstance(answer, Tell)
