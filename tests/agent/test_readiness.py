"""A worker that cannot start anything says so, gives back what it was given, tries ever more rarely, and recovers."""

from __future__ import annotations

from typing import Any

from dray.agent.decide.effects import Effect, Launch, Probe, StartRunner, Supervise, Tell
from dray.agent.decide.machine import Machine
from dray.agent.decide.readiness import UNLIMITED_CREDIT
from dray.core.model.specs.spec import FOREVER_NS, JobSpec
from dray.wire.messages.hub import Ack, AttemptRef, CallsAssign, JobAssign

FULL = "no space left"


class Worker:
    """A machine whose clock and supervisor are this test's."""

    def __init__(self, ready: int = 0) -> None:
        self.machine = Machine("w", "i", 4, 0, (1000,), {}, ready)
        self.now = 1000
        self.did: list[Effect] = []
        self.do(self.machine.acked(Ack(re="register"), self.now))

    def do(self, effects: list[Effect]) -> list[Effect]:
        self.did += effects
        return effects

    def assign(self, uid: str, **spec: Any) -> list[Effect]:
        job = JobSpec(id="job", command=["x"], **spec)
        return self.do(self.machine.assigned(JobAssign(job, 1 << 62, AttemptRef(1, uid)), self.now))

    def hear(self, kind: str, **more: Any) -> list[Effect]:
        return self.do(self.machine.supervised({"ev": kind, **more}, self.now))

    def pass_time(self, seconds: float) -> list[Effect]:
        """Half a second at a time, as the driver does; pings are answered."""
        done: list[Effect] = []
        for _ in range(round(seconds * 2)):
            self.now += 500
            fresh = self.do(self.machine.resend(self.now))
            if Supervise({"op": "ping"}) in fresh:
                fresh += self.hear("pong", refusal="")
            done += fresh
        return done

    def asked(self) -> list[tuple[int, str | None]]:
        """Credits and reason of each `ready_for_work` so far."""
        told = [e.payload for e in self.did if isinstance(e, Tell) and e.type == "ready_for_work"]
        return [(payload["credits"], payload.get("not_ready")) for payload in told]


def results(effects: list[Effect]) -> list[tuple[str, str]]:
    told = [e.payload for e in effects if isinstance(e, Tell) and e.type == "job_result"]
    return [(payload["attempt"], payload["exit_class"]) for payload in told]


def probes(effects: list[Effect]) -> list[Probe]:
    return [effect for effect in effects if isinstance(effect, Probe)]


def test_a_refusal_is_handed_back_and_nothing_more_is_taken_on_until_a_trial_goes_well() -> None:
    worker = Worker()
    worker.assign("1-1")
    assert results(worker.hear("refused", uid="1-1", error=FULL, host=True)) == [("1-1", "lost_unstarted")]
    assert worker.asked()[-1] == (0, FULL)
    answer = worker.assign("1-2")
    assert results(answer) == [("1-2", "lost_unstarted")]
    assert worker.asked()[-2:] == [(0, FULL)] * 2, "said again: who sends something has not heard it"
    assert not any(isinstance(effect, Launch) for effect in answer)
    (probe,) = probes(worker.pass_time(1))
    worker.hear("exited", items=[{"uid": probe.uid, "state": "succeeded", "exit_class": "ok"}])
    assert worker.asked()[-1] == (1, None), "one task at first"
    assert isinstance(worker.assign("1-3")[0], Launch)
    worker.hear("started", items=[{"uid": "1-3", "pid": 1, "started_at": 1.0}])
    assert worker.asked()[-1] == (UNLIMITED_CREDIT, None)


def test_the_fault_of_a_task_stays_its_own() -> None:
    worker = Worker()
    worker.assign("1-1")
    assert results(worker.hear("refused", uid="1-1", error="argv is empty", host=False)) == [
        ("1-1", "refused")
    ]
    assert worker.asked()[-1][0] == UNLIMITED_CREDIT


def test_trials_become_ever_rarer_and_a_word_that_got_lost_is_said_again() -> None:
    worker = Worker()
    worker.assign("1-1")
    worker.hear("refused", uid="1-1", error=FULL, host=True)
    made = 0
    told = len(worker.asked())
    for _ in range(600):
        for probe in probes(worker.pass_time(1)):
            made += 1
            worker.hear("refused", uid=probe.uid, error=FULL, host=True)
    assert 5 < made <= 26, f"{made} trials in ten minutes"
    assert 50 <= len(worker.asked()) - told <= 70


def test_what_the_supervisor_does_not_start_in_time_goes_back_and_is_stopped_should_it_start_after_all() -> (
    None
):
    worker = Worker()
    worker.assign("1-1")
    worker.assign("careful", at_most_once=True)
    done: list[Effect] = []
    for _ in range(22):
        worker.now += 500
        done += worker.do(worker.machine.resend(worker.now))
    assert results(done) == [("1-1", "lost_unstarted")], "of the other one only the supervisor's word counts"
    assert worker.asked()[-1] == (0, "its supervisor does not answer")
    started = worker.hear("started", items=[{"uid": "1-1", "pid": 7, "started_at": 1.0}])
    assert started == [Supervise({"op": "cancel", "uid": "1-1", "reason": "superseded", "grace_s": 0.0})]


def test_an_agent_that_was_stopped_itself_blames_nobody() -> None:
    worker = Worker()
    worker.pass_time(1)
    worker.assign("1-1")
    worker.now += 60_000
    assert results(worker.do(worker.machine.resend(worker.now))) == []
    worker.hear("started", items=[{"uid": "1-1", "pid": 7, "started_at": 1.0}])
    assert results(worker.pass_time(20)) == []


def test_a_supervisor_that_is_gone_gets_nothing() -> None:
    worker = Worker()
    worker.do(worker.machine.supervisor_gone(worker.now))
    assert worker.asked()[-1][0] == 0
    assert results(worker.assign("1-1")) == [("1-1", "lost_unstarted")]
    state = {"journal_id": "j", "boot_id": "b", "max_epoch": 0, "attempts": []}
    worker.machine.greeting([])
    worker.do(worker.machine.attached(state, worker.now))
    assert probes(worker.pass_time(0.5)), "the next one is tried at once"


def test_calls_go_back_while_no_runner_can_be_started() -> None:
    worker = Worker()
    spec = JobSpec(id="f", function=b"x")
    message = CallsAssign("1-1", "f", AttemptRef(1, "1-1"), [0, 1], [1, 1], [b"", b""], FOREVER_NS, spec)
    given = worker.do(worker.machine.calls_assigned(message, worker.now))
    (start,) = [effect for effect in given if isinstance(effect, StartRunner)]
    worker.hear("refused", uid=start.uid, error=FULL, host=True)
    (told,) = worker.machine.pull(worker.now)
    assert (told.payload["index"], told.payload["state"]) == ([0, 1], "returned")
    assert not [e for e in worker.pass_time(0.5) if isinstance(e, StartRunner)]


def test_runners_that_do_not_come_up_are_started_ever_more_rarely() -> None:
    worker = Worker(ready=2)
    done = starts = [effect for effect in worker.did if isinstance(effect, StartRunner)]
    for _ in range(600):
        again: list[Effect] = []
        for start in starts:
            again += worker.hear("exited", items=[{"uid": start.uid, "exit_code": 1, "state": "failed"}])
        for probe in probes(again + worker.pass_time(0.5)):
            worker.hear("exited", items=[{"uid": probe.uid, "state": "succeeded", "exit_class": "ok"}])
        done = [effect for effect in worker.did if isinstance(effect, StartRunner)]
        starts = [one for one in done if one.uid in worker.machine.calls.pool.records]
    assert len(done) < 60, f"{len(done)} starts in five minutes"
