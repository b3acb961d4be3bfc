"""Runners, agents, supervisors and connections that die while calls run; calls that are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.agent.calls.call_hub import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.calls.call_hub import CallHub


def note_and_wait(folder: Path) -> Callable[[int], int]:
    """A function that notes each run in a file, and waits there while a file `gate` is missing."""
    place = str(folder)

    def work(number: int) -> int:
        with open(f"{place}/ran", "a") as file:
            file.write(f"{number} {os.getpid()}\n")
        while number == 0 and not os.path.exists(f"{place}/gate"):
            time.sleep(0.005)
        return number

    return work


def runs(folder: Path) -> list[tuple[int, int]]:
    """What ran so far: (number, pid)."""
    path = folder / "ran"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(line.split()[0]), int(line.split()[1])) for line in lines if len(line.split()) == 2]


def test_a_runner_killed_in_a_batch_costs_the_call_it_was_in(hub: CallHub, tmp_path: Path) -> None:
    hub.start_agent(1)
    hub.refeeds = False
    hub.assign("1-1", "j", note_and_wait(tmp_path), [(0,), (1,), (2,)])
    (ran,) = wait_for(lambda: runs(tmp_path), "the first call runs")
    os.kill(ran[1], signal.SIGKILL)
    state, value, (exit_class, error) = hub.end("j", 0)
    assert (state, value, exit_class) == ("failed", None, "crashed")
    assert "signal 9" in error
    for index in (1, 2):
        if hub.end("j", index)[0] == "returned":  # it waited for too long behind the first
            assert all(number != index for number, _ in runs(tmp_path))
        else:
            assert hub.end("j", index)[:2] == ("succeeded", index)
    assert len(runs(tmp_path)) == len({number for number, _ in runs(tmp_path)})


def test_calls_behind_a_long_one_go_back(hub: CallHub, tmp_path: Path) -> None:
    hub.start_agent(1)
    hub.refeeds = False
    hub.assign("1-1", "j", note_and_wait(tmp_path), [(n,) for n in range(20)])
    assert {hub.end("j", n)[0] for n in range(1, 20)} == {"returned"}
    (tmp_path / "gate").touch()
    assert hub.end("j", 0)[:2] == ("succeeded", 0)
    assert [number for number, _ in runs(tmp_path)] == [0]


def test_what_a_call_leaves_behind_ends_with_its_runner(hub: CallHub) -> None:
    def leave() -> tuple[int, int]:
        script = "sleep 1000 >/dev/null 2>&1 & echo $!"
        left = subprocess.run(["setsid", "sh", "-c", script], capture_output=True, text=True, check=True)
        return os.getpid(), int(left.stdout)

    hub.start_agent(2)
    runner, left = hub.call(leave)[1]
    wait_for(lambda: not os.path.exists(f"/proc/{left}"), "what it left has ended")
    wait_for(lambda: runner not in hub.runner_pids() and len(hub.runner_pids()) == 2, "another has its place")


def test_an_agent_that_is_killed_loses_exactly_the_call_in_flight(hub: CallHub, tmp_path: Path) -> None:
    hub.start_agent(1)
    hub.assign("1-1", "j", note_and_wait(tmp_path), [(0,)])
    (ran,) = wait_for(lambda: runs(tmp_path), "the call runs")
    hub.kill_agent()
    wait_for(lambda: not os.path.exists(f"/proc/{ran[1]}"), "the runner has ended with its agent")
    hub.start_agent(1)
    active = hub.registrations[-1]["active_tasks"]
    assert [(item["task_id"], item["attempt"]) for item in active] == [("j", "1-1")]
    assert hub.end("j", 0)[::2] == ("lost", ("lost", "its agent was restarted while it ran"))
    hub.assign("1-1", "j", note_and_wait(tmp_path), [(1,)], first=1)
    assert hub.end("j", 1)[:2] == ("succeeded", 1)


def test_an_agent_killed_in_a_map_of_short_calls_runs_the_rest(hub: CallHub, tmp_path: Path) -> None:
    """What the hub does not know to have ended is sent again, and ends."""
    hub.start_agent(2)
    hub.assign("1-1", "j", lambda x: x, [(n,) for n in range(2000)])
    wait_for(lambda: len(hub.ends) > 50, "some have ended")
    hub.kill_agent()
    known = {index for _, index in hub.ends}
    hub.start_agent(2)
    wait_for(lambda: hub.session is not None, "it is back")
    missing = sorted(set(range(2000)) - known)
    for start in range(0, len(missing), 200):
        piece = missing[start : start + 200]
        for index in piece:
            hub.assign("1-1", "j", lambda x: x, [(index,)], first=index)
    wait_for(lambda: {index for _, index in hub.ends} == set(range(2000)), "all have ended")
    assert {hub.end("j", n)[0] for n in range(2000)} <= {"succeeded", "lost"}
    assert sum(hub.end("j", n)[0] == "lost" for n in range(2000)) <= 2


def test_a_supervisor_that_is_killed_is_replaced_and_calls_go_on(hub: CallHub, tmp_path: Path) -> None:
    hub.start_agent(1)
    assert hub.call(lambda: 1)[:2] == ("succeeded", 1)
    old = hub.supervisor_pid()
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: hub.supervisor_pid() != old, "another supervisor serves")
    assert hub.call(lambda: 2)[:2] == ("succeeded", 2)


def test_results_are_sent_again_until_they_are_acked(hub: CallHub) -> None:
    hub.start_agent(1)
    hub.acks = False
    assert hub.call(lambda: 1)[:2] == ("succeeded", 1)
    hub.ends.clear()
    known = len(hub.registrations)
    assert hub.session is not None
    hub.session.cut()
    wait_for(lambda: len(hub.registrations) > known, "it has come back")
    assert [item["attempt"] for item in hub.registrations[-1]["active_tasks"]] == ["9-1"]
    hub.acks = True
    assert hub.end(hub.last_job)[:2] == ("succeeded", 1)


def test_a_call_that_came_twice_runs_once(hub: CallHub, tmp_path: Path) -> None:
    hub.start_agent(1)
    work = note_and_wait(tmp_path)
    hub.assign("1-1", "j", work, [(0,)])
    wait_for(lambda: runs(tmp_path), "it runs")
    hub.numbers.clear()
    hub.assign("1-1", "j", work, [(0,)])
    (tmp_path / "gate").touch()
    assert hub.end("j", 0)[:2] == ("succeeded", 0)
    hub.assign("1-1", "j", work, [(1,)], first=1)
    assert hub.end("j", 1)[:2] == ("succeeded", 1)
    assert [number for number, _ in runs(tmp_path)] == [0, 1]


def test_a_time_limit_ends_the_call_and_not_the_lane(hub: CallHub, tmp_path: Path) -> None:
    hub.start_agent(1)
    hub.refeeds = False
    hub.assign("1-1", "j", note_and_wait(tmp_path), [(0,), (1,)], limit_ns=1_500_000_000)
    state, _, (exit_class, error) = hub.end("j", 0)
    assert (state, exit_class, error) == ("failed", "time_limit", "stopped at its time limit of 1.5 s")
    hub.assign("1-1", "j", note_and_wait(tmp_path), [(2,)], first=2)
    assert hub.end("j", 2)[:2] == ("succeeded", 2)


def test_one_call_is_cancelled_while_it_runs_or_waits(hub: CallHub, tmp_path: Path) -> None:
    hub.start_agent(1)
    hub.assign("1-1", "j", note_and_wait(tmp_path), [(0,), (1,), (2,)], spec={"at_most_once": True})
    wait_for(lambda: runs(tmp_path), "the first runs")
    hub.send("job_cancel", {"task_id": "j/1", "attempt": "1-1", "reason": "user", "grace_s": 1})
    hub.send("job_cancel", {"task_id": "j/0", "attempt": "1-1", "reason": "user", "grace_s": 1})
    assert hub.end("j", 1)[::2] == ("killed", ("cancelled", "cancelled (user)"))
    assert hub.end("j", 0)[::2] == ("killed", ("cancelled", "cancelled (user)"))
    assert hub.end("j", 2)[0] in ("succeeded", "returned")
    assert 1 not in [number for number, _ in runs(tmp_path)]


def test_a_lane_is_cancelled_whole(hub: CallHub, tmp_path: Path) -> None:
    hub.start_agent(1)
    hub.assign("1-1", "j", note_and_wait(tmp_path), [(0,), (1,)])
    (ran,) = wait_for(lambda: runs(tmp_path), "the first runs")
    hub.send("job_cancel", {"task_id": "j", "attempt": "1-1", "reason": "user", "grace_s": 1})
    (result,) = hub.wait_told("job_result")
    assert (result["task_id"], result["attempt"], result["state"]) == ("j", "1-1", "killed")
    assert not os.path.exists(f"/proc/{ran[1]}")
    assert hub.call(lambda: "next")[:2] == ("succeeded", "next")


def test_a_lane_that_is_unknown_is_said_to_have_never_started(hub: CallHub) -> None:
    hub.start_agent(1)
    hub.send("job_cancel", {"task_id": "j", "attempt": "5-5", "reason": "user", "grace_s": 1})
    (result,) = hub.wait_told("job_result")
    assert (result["attempt"], result["exit_class"]) == ("5-5", "lost_unstarted")
    hub.assign("5-5", "j", lambda: 1, [()])
    assert hub.wait_told("job_result", 2)[1]["attempt"] == "5-5"


def test_an_agent_that_is_told_to_stop_gives_its_lanes_back(hub: CallHub, tmp_path: Path) -> None:
    hub.start_agent(1)
    hub.assign("1-1", "j", note_and_wait(tmp_path), [(0,)])
    wait_for(lambda: runs(tmp_path), "it runs")
    assert hub.agent is not None
    hub.agent.terminate()
    assert hub.agent.wait(60) == 0
    (result,) = hub.wait_told("job_result")
    assert (result["attempt"], result["state"], result["error"]) == ("1-1", "preempted", "drain")
    wait_for(lambda: not hub.runner_pids(), "its runners are gone")
