"""Turns that a leader tells to hubs that stand by: they are there at once, and what gets lost is found in the store."""

from __future__ import annotations

import itertools
import os
import signal
from typing import Any

import pytest
from tests.hub.asking import ask, look, wait_until
from tests.hub.several_hubs import Hubs, Standby, hubs, stand_by

from dray.testing.hub_process import RunningHub

__all__ = ["hubs"]
# Of a spec that has this in its environment a few turns are more than a link holds for one who does not read.
LARGE = {"env": {"BALLAST": "x" * 60_000}}


def status_of(hub: Standby) -> dict[str, Any]:
    return dict(look(hub.address, "/api/v1/hub/status"))


# Of jobs that no two turns share.
NUMBERS = itertools.count()


def submit(hub: RunningHub, job_id: str, **spec: Any) -> None:
    assert ask(hub, "POST", "/jobs", {"id": job_id, "command": ["true"], **spec})[0] == 201


def is_told(hub: Standby, leader: RunningHub, name: str) -> bool:
    """Whether a turn that is committed now comes from the leader itself."""
    before = status_of(hub)["told_turns"]
    submit(leader, f"{name}-{next(NUMBERS)}")
    wait_until(lambda: status_of(hub)["lag"] == 0)
    return bool(status_of(hub)["told_turns"] > before)


def test_a_hub_that_stands_by_is_told_of_turns_by_the_leader(hubs: Hubs) -> None:
    leader, standby = hubs(), stand_by(hubs)
    wait_until(lambda: is_told(standby, leader, "a"))
    before = status_of(standby)["told_turns"]
    for number in range(20):
        submit(leader, f"b{number}")
    wait_until(lambda: status_of(standby)["told_turns"] >= before + 20)
    wait_until(lambda: status_of(standby)["lag"] == 0)
    leader.kill()
    standby.wait()
    assert ask(standby, "GET", "/jobs/b19")[1]["state"] == "pending"
    assert "took over with a warm state" in standby.said


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_next_leader_tells_of_its_turns_too(hubs: Hubs, how: signal.Signals) -> None:
    leader, first, second = hubs(), stand_by(hubs), stand_by(hubs, store_lease_s=9)
    wait_until(lambda: is_told(second, leader, "a"))
    os.kill(leader.pid, how)
    first.wait()
    wait_until(lambda: is_told(second, first, "b"))
    assert "went back" not in second.said
    if how is signal.SIGSTOP:
        os.kill(leader.pid, signal.SIGCONT)
        # It knows by now that it does not lead, and is told itself.
        wait_until(lambda: "stands by" in (leader.home / "hub.err").read_text())
        wait_until(lambda: is_told(second, first, "c"))


def test_one_that_does_not_read_is_left_out_and_finds_turns_in_the_store(hubs: Hubs) -> None:
    leader, standby = hubs(), stand_by(hubs, store_lease_s=9)
    wait_until(lambda: is_told(standby, leader, "a"))
    os.kill(standby.pid, signal.SIGSTOP)
    # Beyond what the leader holds for it, and what sockets hold.
    count = 300
    for number in range(count):
        submit(leader, f"b{number}", **LARGE)
    os.kill(standby.pid, signal.SIGCONT)
    wait_until(lambda: status_of(standby)["lag"] == 0)
    wait_until(lambda: is_told(standby, leader, "c"))
    leader.kill()
    standby.wait()
    assert ask(standby, "GET", f"/jobs/b{count - 1}")[1]["state"] == "pending"
