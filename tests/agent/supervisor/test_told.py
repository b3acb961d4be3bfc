"""Attempts that heed their session: told of a stop first, TERM only at half of the grace or when they have saved."""

from __future__ import annotations

import signal

import pytest

# Says when TERM comes, and ends only then.
PATIENT = "trap 'echo term; exit 7' TERM; echo ready; while :; do sleep 0.02; done"


async def start(rig, *argv: str, heeds: bool = True, **fields):
    rig.run(rig.task("a-1", *(argv or ("sh", "-c", PATIENT)), **fields))
    await rig.await_output("a-1", b"" if argv else b"ready")
    await rig.next("started")
    if heeds:
        rig.send({"op": "heed", "uid": "a-1"})


async def test_who_does_not_heed_gets_term_at_once_and_the_agent_is_told(rig):
    await start(rig, heeds=False)
    rig.cancel("a-1", "preempted", 1000)
    told = await rig.next("stopping")
    assert (told["uid"], told["reason"]) == ("a-1", "preempted")
    assert told["grace_s"] == pytest.approx(1000, abs=30)
    result = await rig.exit_of("a-1")
    assert (result["state"], result["exit_code"]) == ("preempted", 7)


async def test_term_waits_for_half_of_the_grace(rig):
    await start(rig)
    rig.cancel("a-1", "preempted", 2)
    await rig.next("stopping")
    assert b"term" not in rig.output("a-1")
    result = await rig.exit_of("a-1")
    assert (result["state"], result["exit_code"]) == ("preempted", 7)
    assert rig.output("a-1") == b"ready\nterm\n"


async def test_a_save_ends_the_wait(rig):
    await start(rig)
    rig.cancel("a-1", "preempted", 1000)
    await rig.next("stopping")
    rig.send({"op": "hasten", "uid": "a-1"})
    result = await rig.exit_of("a-1")
    assert (result["state"], result["exit_code"]) == ("preempted", 7)


async def test_a_save_without_a_stop_ends_nothing(rig):
    await start(rig)
    rig.send({"op": "hasten", "uid": "a-1"})
    rig.send({"op": "epoch", "value": 3})
    await rig.next("epoch")
    assert (await rig.open())["attempts"][0]["phase"] == "running"


async def test_kill_comes_at_the_end_of_the_grace_all_the_same(rig):
    await start(rig, "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.02; done")
    rig.cancel("a-1", "user", 0.3)
    result = await rig.exit_of("a-1")
    assert (result["state"], result["signal"]) == ("killed", signal.SIGKILL)


async def test_a_shorter_grace_brings_term_forward(rig):
    await start(rig)
    rig.cancel("a-1", "preempted", 1000)
    await rig.next("stopping")
    rig.cancel("a-1", "user", 0.2)
    result = await rig.exit_of("a-1")
    assert (result["state"], result["exit_code"]) == ("preempted", 7), "the first reason stands"


async def test_an_end_with_code_0_after_it_was_told_is_no_success(rig):
    """A loop that ends because it was asked to looks like one that is done: the reason decides."""
    await start(rig, "sh", "-c", f"while ! [ -e {rig.home}/flag ]; do sleep 0.02; done; exit 0")
    rig.cancel("a-1", "preempted", 1000)
    await rig.next("stopping")
    (rig.home / "flag").touch()
    result = await rig.exit_of("a-1")
    assert (result["state"], result["exit_code"], result["signal"]) == ("preempted", 0, 0)


async def test_the_time_limit_is_told_as_well(rig):
    await start(rig, limit_s=0.5, grace_s=1000.0)
    told = await rig.next("stopping")
    assert told["reason"] == "time_limit"
    assert b"term" not in rig.output("a-1")
    rig.send({"op": "hasten", "uid": "a-1"})
    result = await rig.exit_of("a-1")
    assert (result["state"], result["exit_class"]) == ("failed", "time_limit")


async def test_a_new_agent_finds_the_stop_in_the_state(rig):
    await start(rig)
    rig.cancel("a-1", "preempted", 1000)
    await rig.next("stopping")
    (item,) = (await rig.open())["attempts"]
    assert item["stop"]["reason"] == "preempted"
    assert 900 < item["stop"]["grace_s"] <= 1000
    assert b"term" not in rig.output("a-1")
    rig.send({"op": "hasten", "uid": "a-1"})
    assert (await rig.exit_of("a-1"))["state"] == "preempted"


async def test_unknown_attempts_are_nobodys_trouble(rig):
    rig.send({"op": "heed", "uid": "gone-1"})
    rig.send({"op": "hasten", "uid": "gone-1"})
    rig.send({"op": "heed", "uid": "../x"})
    assert "uid" in (await rig.next("error"))["error"]
