"""The agent's machine for calls, without any process: what is told, fed, returned and kept."""

from __future__ import annotations

from typing import Any

import pytest

from dray.agent.decide.calls.calls import Ended
from dray.agent.decide.calls.runner_pool import RECYCLE_CALLS
from dray.agent.decide.effects import (
    BindRunner,
    Effect,
    FeedRunner,
    Grant,
    Nudge,
    Recall,
    StartRunner,
    Supervise,
    Tell,
)
from dray.agent.decide.machine import Machine
from dray.core.model.specs.spec import JobSpec
from dray.wire.messages.hub import Ack, AttemptRef, CallsAck, CallsAssign, JobCancel, JobResume
from dray.wire.messages.worker import LAST_TRY

FOREVER_NS = 2**63 - 1


class Bench:
    """A machine with a hub's and a runner's part played by hand."""

    def __init__(self, ready: int = 1, slots: int = 1, incarnation: str = "i") -> None:
        self.machine = Machine("w", incarnation, slots, 0, (1000,), {}, ready)
        self.fed: dict[str, list[int]] = {}
        self.effects: list[Effect] = []
        self.now = 1000
        self.do(self.machine.acked(Ack(re="register", epoch=1), self.now))

    def do(self, effects: list[Effect]) -> list[Effect]:
        self.effects = effects
        for effect in effects:
            if isinstance(effect, FeedRunner):
                self.fed.setdefault(effect.uid, []).extend(effect.indices)
        return effects

    def start(self) -> list[str]:
        """All runners that were asked for are there."""
        waiting = [r.uid for r in self.machine.calls.pool.records.values() if r.phase == "starting"]
        for uid in waiting:
            self.do(self.machine.calls.runner_ready(uid, self.now))
        return waiting

    def assign(
        self, count: int, first: int = 0, no: int = 1, lane: str = "1-1", **given: Any
    ) -> list[Effect]:
        limit_ns = given.pop("limit_ns", FOREVER_NS)
        spec = JobSpec(id="j", function=b"f", user_id="u", **given)
        index = list(range(first, first + count))
        return self.do(
            self.machine.calls_assigned(
                CallsAssign(
                    lane, "j", AttemptRef(1, lane), index, [no] * count, [b"a"] * count, limit_ns, spec
                ),
                self.now,
            )
        )

    def end(self, uid: str, *indices: int, state: str = "succeeded", wall_us: int = 10) -> list[Effect]:
        for index in indices:
            self.fed[uid].remove(index)
        count = len(indices)
        ended = Ended(list(indices), [1] * count, [state] * count, [b"v"] * count, [wall_us] * count, {})
        return self.do(self.machine.calls.runner_ended(uid, ended, self.now))

    def exit(self, uid: str, now: dict[str, Any] | None = None, **item: Any) -> list[Effect]:
        self.fed.pop(uid, None)
        event = {"ev": "exited", "items": [{"uid": uid, "now": now, **item}]}
        return self.do(self.machine.supervised(event, self.now))

    def tick(self, later_ms: int) -> list[Effect]:
        self.now += later_ms
        return self.do(self.machine.tick(self.now))

    def pull(self, ack: bool = True) -> dict[int, tuple[str, tuple[str, str]]]:
        """What the hub hears: state and details by index."""
        ends = {}
        for told in self.machine.pull(self.now):
            payload = told.payload
            for place, index in enumerate(payload["index"]):
                state = payload["state"]
                word = state if isinstance(state, str) else state[place]
                ends[index] = (word, payload.get("details", {}).get(str(index), ("", "")))
            if ack:
                self.do(self.machine.calls_acked(CallsAck([payload["seq"]]), self.now))
        return ends

    def of(self, kind: type[Any]) -> list[Any]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def told(self, word: str) -> list[dict[str, Any]]:
        return [effect.payload for effect in self.of(Tell) if effect.type == word]


def test_runners_are_made_ready_two_at_a_time_up_to_the_slots() -> None:
    bench = Bench(ready=3, slots=3)
    assert len(bench.of(StartRunner)) == 2
    bench.start()
    bench.start()
    phases = [record.phase for record in bench.machine.calls.pool.records.values()]
    assert phases == ["idle"] * 3


def test_a_lane_is_accepted_bound_and_fed_in_portions() -> None:
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(30)
    assert [payload["attempt"] for payload in bench.told("job_accepted")] == ["1-1"]
    assert [payload["attempt"] for payload in bench.told("job_started")] == ["1-1"]
    assert len(bench.of(BindRunner)) == 1
    assert bench.fed[uid] == list(range(8))
    bench.end(uid, 0, 1)
    assert bench.fed[uid] == list(range(2, 16))
    bench.end(uid, 2)
    assert bench.fed[uid] == list(range(3, 16)), "it has enough for now"


def test_an_ack_that_was_meant_for_an_earlier_agent_takes_nothing_away() -> None:
    benches = [Bench(incarnation=incarnation) for incarnation in ("earlier", "i")]
    seqs = []
    for bench in benches:
        (uid,) = bench.start()
        bench.assign(1)
        bench.end(uid, 0)
        (told,) = bench.machine.pull(bench.now)
        seqs.append(told.payload["seq"])
    later = benches[1].machine
    later.calls_acked(CallsAck(seqs[:1]), benches[1].now)
    assert list(later.calls.results.sealed) == seqs[1:]


def test_ends_are_sealed_together_and_kept_until_acked() -> None:
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(4)
    bench.end(uid, 0)
    bench.end(uid, 1, 2)
    (told,) = bench.machine.pull(bench.now)
    assert (told.payload["index"], told.payload["state"]) == ([0, 1, 2], "succeeded")
    bench.machine.disconnected()
    assert [item["attempt"] for item in bench.machine.registration(0)["active_tasks"]] == ["1-1"]
    bench.do(bench.machine.acked(Ack(re="register", epoch=1), bench.now))
    (again,) = bench.machine.pull(bench.now)
    assert again.payload == told.payload
    bench.machine.calls_acked(CallsAck([told.payload["seq"]]), bench.now)
    assert bench.machine.pull(bench.now) == []


def test_values_that_are_large_together_go_in_several_messages() -> None:
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(40)
    while bench.fed[uid]:
        index = bench.fed[uid][0]
        bench.fed[uid].remove(index)
        ended = Ended([index], [1], ["succeeded"], [bytes(60_000)], [10], {})
        bench.do(bench.machine.calls.runner_ended(uid, ended, bench.now))
    sizes = []
    while pulled := bench.machine.pull(bench.now):
        sizes.append(sum(len(value) for told in pulled for value in told.payload["value"]))
    assert sum(sizes) == 40 * 60_000
    assert max(sizes) < 3 << 20


def test_a_call_that_comes_again_is_not_run_again_until_its_number_grows() -> None:
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(2)
    bench.end(uid, 0)
    bench.assign(2)
    assert bench.fed[uid] == [1]
    assert bench.told("job_accepted"), "the hub asks because it has not heard"
    bench.pull(ack=False)
    bench.assign(1)
    assert bench.fed[uid] == [1]
    bench.assign(1, no=2)
    assert bench.fed[uid] == [1, 0]


def test_calls_of_a_lane_that_nobody_knows_go_back() -> None:
    bench = Bench()
    message = CallsAssign("1-1", "j", AttemptRef(1, "1-1"), [0, 1], [1, 1], [b"", b""], FOREVER_NS)
    for _ in range(2):
        bench.do(bench.machine.calls_assigned(message, bench.now))
    assert bench.pull() == {0: ("returned", ("", "")), 1: ("returned", ("", ""))}


def test_careful_calls_go_one_by_one() -> None:
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(3, at_most_once=True)
    assert bench.fed[uid] == [0]
    bench.end(uid, 0)
    assert bench.fed[uid] == [1]


@pytest.mark.parametrize("careful", [True, False])
def test_the_runner_of_a_careful_call_serves_no_other_lane_until_the_hub_has_its_end(careful: bool) -> None:
    """Its record of the call is all that the next agent would know of it, and goes with the next call."""
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(1, at_most_once=careful)
    bench.assign(1, first=1, lane="1-2", at_most_once=careful)
    bench.end(uid, 0)
    assert bool(bench.of(BindRunner)) == (not careful)
    assert bench.pull() == {0: ("succeeded", ("", ""))}
    assert bench.fed[uid] == [1]


def test_a_later_try_waits_for_the_end_of_the_one_that_runs_here() -> None:
    """A result is that of its own try: after a restore the hub may mean another call by the same number."""
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(1)
    bench.assign(1, no=2)
    assert bench.fed[uid] == [0]
    bench.end(uid, 0)
    assert bench.fed[uid] == [0]
    (told,) = bench.machine.pull(bench.now)
    assert (told.payload["index"], told.payload["no"]) == ([0], [1])
    bench.end(uid, 0)
    (told,) = bench.machine.pull(bench.now)
    assert (told.payload["index"], told.payload["no"]) == ([0], [2])


def test_a_later_try_that_waits_is_cancelled_with_its_call() -> None:
    bench = Bench()
    bench.start()
    bench.assign(1)
    bench.assign(1, no=2)
    bench.do(bench.machine.cancelled(JobCancel("j/0", attempt="1-1", reason="user", grace_s=0.0), bench.now))
    (told,) = bench.machine.pull(bench.now)
    assert (told.payload["no"], told.payload["state"]) == ([2], "killed")


def test_what_waits_behind_a_long_call_is_asked_for_and_goes_back() -> None:
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(20)
    assert bench.tick(10) == []
    assert [type(effect) for effect in bench.tick(15)] == [Nudge]
    bench.tick(30)
    assert bench.of(Recall) == [Recall(uid)]
    bench.do(bench.machine.calls.runner_returned(uid, list(range(1, 8)), bench.now))
    assert {state for state, _ in bench.pull().values()} == {"returned"}
    assert list(bench.machine.calls.lanes["1-1"].calls) == [0]


def test_a_runner_that_has_not_read_its_calls_yet_is_asked_for_them_again() -> None:
    """One that is slow to begin has nothing to give back when it is first asked."""
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(20)
    asked_ms = []
    for age_ms in range(10, 1000, 10):
        bench.tick(10)
        if bench.of(Recall):
            asked_ms.append(age_ms)
            bench.do(bench.machine.calls.runner_returned(uid, [], bench.now))
    assert asked_ms == [50, 100, 200, 400, 800]
    bench.do(bench.machine.calls.runner_returned(uid, list(range(1, 8)), bench.now))
    bench.tick(10_000)
    assert not bench.of(Recall), "there is nothing left to ask for"


def test_calls_that_usually_take_long_are_waited_for() -> None:
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(8)
    bench.end(uid, 0, wall_us=60_000)
    bench.tick(100)
    assert bench.of(Recall) == []
    bench.tick(200)
    assert bench.of(Recall) == [Recall(uid)]


def test_a_time_limit_ends_the_runner_and_names_the_limit() -> None:
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(2, limit_ns=2 * 10**9)
    bench.tick(1999)
    assert not [effect for effect in bench.of(Supervise) if effect.request["op"] == "cancel"]
    bench.tick(2)
    (asked,) = [effect.request for effect in bench.of(Supervise)]
    assert (asked["op"], asked["uid"], asked["reason"]) == ("cancel", uid, "time_limit")
    bench.exit(uid, {"lane": "1-1", "job": "j", "index": 0, "no": 1}, signal=15, exit_code=143)
    assert bench.pull()[0] == ("failed", ("time_limit", "stopped at its time limit of 2 s"))
    (fresh,) = bench.start()
    assert bench.fed[fresh] == [1]


@pytest.mark.parametrize(
    ("item", "exit_class", "word"),
    [
        ({"signal": 11, "exit_code": 139, "error": "SIGSEGV"}, "crashed", "signal 11: SIGSEGV"),
        (
            {"signal": 11, "exit_code": 139, "error": "the command was killed by signal 11 (SIGSEGV)"},
            "crashed",
            "the process that ran it was killed in the middle of it by signal 11 (SIGSEGV)",
        ),
        ({"signal": 0, "exit_code": 3}, "crashed", "exit code 3"),
        ({"signal": 9, "exit_code": 137, "exit_class": "oom", "error": "too much"}, "oom", "too much"),
        ({"exit_code": -1, "error": "lost"}, "crashed", "lost"),
    ],
)
def test_a_runner_that_dies_fails_the_call_it_was_in(
    item: dict[str, Any], exit_class: str, word: str
) -> None:
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(3)
    bench.end(uid, 0)
    bench.exit(uid, {"lane": "1-1", "job": "j", "index": 1, "no": 1}, **item)
    ends = bench.pull()
    assert set(ends) == {0, 1}
    assert ends[1][0] == "failed"
    assert ends[1][1][0] == exit_class
    assert word in ends[1][1][1]
    (fresh,) = bench.start()
    assert bench.fed[fresh] == [2]


def test_runners_that_die_before_any_call_begins_do_not_die_for_ever() -> None:
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(2)
    for _ in range(3):
        assert bench.pull() == {}
        bench.exit(uid, None, signal=11, exit_code=139)
        (uid,) = bench.start()
    assert bench.pull()[0][0] == "failed"
    assert bench.fed[uid] == [1]


def test_an_environment_that_never_comes_up_fails_its_calls() -> None:
    bench = Bench(ready=0)
    bench.assign(2, env={"VIRTUAL_ENV": "gone"})
    for _ in range(3):
        (uid,) = [r.uid for r in bench.machine.calls.pool.records.values() if r.phase == "starting"]
        bench.exit(uid, None, exit_code=127, error="program 'gone/bin/python' was not found")
        assert len(bench.machine.calls.pool.records) == 0, "the next start waits a moment"
        bench.now += 1000
        bench.do(bench.machine.resend(bench.now))
    ends = bench.pull()
    assert {state for state, _ in ends.values()} == {"failed"}
    assert ends[0][1][0] == "environment"
    assert "gone/bin/python" in ends[0][1][1]


def test_a_lane_that_is_stopped_tells_its_end_last() -> None:
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(10)
    bench.end(uid, 0)
    bench.do(bench.machine.cancelled(JobCancel("j", "1-1", "user", 5), bench.now))
    assert not bench.told("job_result")
    assert bench.of(Recall) == [Recall(uid)]
    bench.do(bench.machine.calls.runner_returned(uid, list(range(2, 9)), bench.now))
    bench.exit(uid, {"lane": "1-1", "job": "j", "index": 1, "no": 1}, signal=15, exit_code=143)
    assert not bench.told("job_result"), "the end of call 0 is not acked"
    assert bench.machine.registration(0)["finished_unacked"] == []
    assert bench.pull() == {0: ("succeeded", ("", ""))}
    (result,) = bench.told("job_result")
    assert (result["task_id"], result["attempt"], result["state"]) == ("j", "1-1", "killed")
    assert bench.machine.registration(0)["finished_unacked"] == [result]
    bench.do(bench.machine.acked(Ack(re="job_result", results={"1-1": "recorded"}), bench.now))
    assert bench.machine.calls.lanes == {}


@pytest.mark.parametrize(("reason", "state"), [("user", "killed"), ("preempted", "preempted")])
def test_a_lane_without_a_call_in_hand_ends_at_once(reason: str, state: str) -> None:
    bench = Bench(ready=0)
    bench.assign(3)
    bench.do(bench.machine.cancelled(JobCancel("j", "1-1", reason, 5), bench.now))
    assert [result["state"] for result in bench.told("job_result")] == [state]
    bench.do(bench.machine.cancelled(JobCancel("j", "1-1", reason, 5), bench.now))
    assert bench.told("job_result"), "said again where it was not heard"


def test_one_call_is_cancelled_wherever_it_is() -> None:
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(12)
    for index in (11, 5, 99, 99):
        bench.do(bench.machine.cancelled(JobCancel(f"j/{index}", "1-1", "user", 5), bench.now))
    assert bench.pull() == {11: ("killed", ("cancelled", "cancelled (user)")), 99: ("killed", ("", ""))}
    bench.do(bench.machine.calls.runner_returned(uid, [4, 5, 6, 7], bench.now))
    ends = bench.pull()
    assert ends[5] == ("killed", ("cancelled", "cancelled (user)"))
    assert ends[4][0] == "returned"
    bench.do(bench.machine.cancelled(JobCancel("j/0", "1-1", "user", 5), bench.now))
    assert [effect.request["uid"] for effect in bench.of(Supervise)] == [uid]
    bench.exit(uid, {"lane": "1-1", "job": "j", "index": 0, "no": 1}, signal=15)
    assert bench.pull()[0] == ("killed", ("cancelled", "cancelled (user)"))


def test_a_call_that_was_cancelled_before_it_came_is_not_run_whichever_try_it_is() -> None:
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(1)
    bench.end(uid, 0)
    bench.do(bench.machine.cancelled(JobCancel("j/0", "1-1", "user", 5), bench.now))
    (frame,) = [told.payload for told in bench.machine.pull(bench.now)][-1:]
    assert (frame["index"][-1], frame["no"][-1]) == (0, LAST_TRY)
    bench.assign(1, no=2)
    assert not bench.machine.calls.lanes["1-1"].calls


def test_a_worn_runner_works_on_until_another_is_ready() -> None:
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(RECYCLE_CALLS + 100)
    while len(bench.machine.calls.lanes["1-1"].calls) > 60:
        bench.end(uid, *bench.fed[uid][:8])
    (fresh,) = bench.start()
    assert uid in bench.fed
    while bench.fed.get(uid):
        bench.end(uid, bench.fed[uid][0])
    assert bench.machine.calls.pool.records[uid].phase == "ending"
    assert bench.fed[fresh], "the other one has taken over"
    bench.exit(uid)
    while bench.fed[fresh]:
        bench.end(fresh, bench.fed[fresh][0])
    assert bench.machine.calls.lanes["1-1"].calls == {}


def test_runners_of_an_earlier_agent_are_ended_and_their_call_is_lost() -> None:
    machine = Machine("w", "new", 1, 0, (1000,), {}, 0)
    now = {"lane": "1-1", "job": "j", "index": 4, "no": 2}
    idle = {"lane": "1-2", "job": "j", "index": -1, "no": 0}
    state = {
        "journal_id": "x",
        "boot_id": "b",
        "max_epoch": 1,
        "attempts": [
            {"uid": "runner-old-1", "task_id": "runner-old-1", "phase": "running", "now": now},
            {"uid": "runner-old-2", "task_id": "runner-old-2", "phase": "running", "now": idle},
            {
                "uid": "runner-old-3",
                "task_id": "runner-old-3",
                "phase": "exited",
                "now": None,
                "state": "failed",
            },
        ],
    }
    effects = machine.attached(state, 0)
    asked = [effect.request for effect in effects if isinstance(effect, Supervise)]
    assert [(a["op"], a.get("uid") or a["uids"][0]) for a in asked] == [
        ("cancel", "runner-old-1"),
        ("cancel", "runner-old-2"),
        ("acked", "runner-old-3"),
    ]
    assert {item["attempt"] for item in machine.registration(0)["active_tasks"]} == {"1-1", "1-2"}
    machine.acked(Ack(re="register", epoch=1), 0)
    assert machine.pull(0) == [], "not before it is certain that it runs no more"
    machine.supervised({"ev": "exited", "items": [{"uid": "runner-old-1", "now": now, "state": "failed"}]}, 0)
    (told,) = machine.pull(0)
    assert (told.payload["index"], told.payload["no"], told.payload["state"]) == ([4], [2], "lost")


def test_a_runner_is_kept_until_the_hub_has_the_end_of_the_call_it_was_in() -> None:
    now = {"lane": "1-1", "job": "j", "index": 4, "no": 2}
    gone = {
        "uid": "runner-old-1",
        "task_id": "runner-old-1",
        "phase": "exited",
        "now": now,
        "state": "failed",
    }
    state = {"journal_id": "x", "boot_id": "b", "max_epoch": 1, "attempts": [gone]}
    machine = Machine("w", "new", 1, 0, (1000,), {}, 0)
    assert machine.attached(state, 0) == [], "or nobody could tell the next agent that the call has begun"
    machine.acked(Ack(re="register", epoch=1), 0)
    (told,) = machine.pull(0)
    assert (told.payload["index"], told.payload["no"], told.payload["state"]) == ([4], [2], "lost")
    machine.greeting(())
    assert machine.attached(state, 0) == [], "another supervisor says it again"
    assert machine.pull(0) == []
    assert [effect for effect in machine.resend(0) if "acked" in str(effect)] == []
    machine.calls_acked(CallsAck([told.payload["seq"]]), 0)
    assert Supervise({"op": "acked", "uids": ["runner-old-1"]}) in machine.resend(0)
    assert [effect for effect in machine.resend(0) if "acked" in str(effect)] == []


@pytest.mark.parametrize(("careful", "kept"), [(True, True), (False, False)])
def test_of_a_call_that_must_not_run_twice_the_dead_runner_is_kept(careful: bool, kept: bool) -> None:
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(1, at_most_once=careful)
    bench.exit(uid, {"lane": "1-1", "job": "j", "index": 0, "no": 1}, signal=9)
    acked = Supervise({"op": "acked", "uids": [uid]})
    assert (acked not in bench.effects) == kept
    assert bench.pull()[0][0] == "failed"
    assert (acked in bench.machine.resend(bench.now)) == kept


def test_a_lane_whose_call_waits_gives_the_others_back_and_is_not_fed() -> None:
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(12)
    bench.do(bench.machine.task_said("1-1", {"yield": {}}, bench.now))
    assert [payload["attempt"] for payload in bench.told("job_yield")] == ["1-1"]
    assert bench.of(Recall) == [Recall(uid)]
    bench.do(bench.machine.calls.runner_returned(uid, list(range(1, 8)), bench.now))
    assert set(bench.pull()) == set(range(1, 12))
    bench.assign(1, first=20)
    assert bench.pull() == {20: ("returned", ("", ""))}
    bench.do(bench.machine.task_said("1-1", {"resume": {}}, bench.now))
    assert bench.told("job_resume")
    bench.now += 1500
    bench.do(bench.machine.resend(bench.now))
    assert bench.told("job_resume"), "asked for until it is granted"
    bench.do(bench.machine.resumed(JobResume("j", "1-1"), bench.now))
    assert bench.of(Grant) == [Grant("1-1")]
    bench.assign(1, first=30)
    assert bench.fed[uid][-1] == 30


def test_a_call_that_ends_while_it_waits_leaves_its_lane_in_order() -> None:
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(1)
    bench.do(bench.machine.task_said("1-1", {"yield": {}}, bench.now))
    bench.end(uid, 0)
    bench.now += 5000
    assert bench.machine.yields.repeat_late(bench.now) == []
    bench.assign(1, first=1)
    assert bench.fed[uid] == [1]


def test_lanes_that_hold_nothing_do_not_pile_up() -> None:
    bench = Bench()
    (uid,) = bench.start()
    for number in range(200):
        bench.assign(1, lane=f"2-{number}")
        bench.end(uid, 0)
        bench.pull()
    assert len(bench.machine.calls.lanes) < 80


def test_a_lane_that_ended_while_it_held_nothing_is_not_looked_for_again() -> None:
    bench = Bench()
    (uid,) = bench.start()
    for number in range(100):
        lane = f"2-{number}"
        bench.assign(1, lane=lane)
        bench.end(uid, 0)
        bench.pull()
        if number < 10:
            bench.do(bench.machine.cancelled(JobCancel("j", lane, "user", 5), bench.now))
            bench.do(bench.machine.acked(Ack(re="job_result", results={lane: "recorded"}), bench.now))
            assert lane not in bench.machine.calls.lanes
    assert len(bench.machine.calls.lanes) < 80


def test_an_agent_that_stops_hands_its_lanes_back() -> None:
    bench = Bench()
    (uid,) = bench.start()
    bench.assign(3)
    bench.do(bench.machine.calls.drain(bench.now))
    bench.exit(uid, {"lane": "1-1", "job": "j", "index": 0, "no": 1}, signal=9)
    (result,) = bench.told("job_result")
    assert (result["state"], result["error"]) == ("preempted", "drain")
    assert bench.of(StartRunner) == []
