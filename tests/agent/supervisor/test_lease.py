"""Fenced tasks: out of the hub's reach for longer than their lease they are stopped, with or without an agent."""

from __future__ import annotations

import asyncio
import time


async def test_a_lease_that_is_not_renewed_ends_the_task_as_lost(rig):
    await rig.open()
    result = await rig.result("1-1", "sleep", "60", lease_s=0.2)
    assert (result["state"], result["exit_class"]) == ("failed", "lost")
    assert "lease" in result["error"]


async def test_a_lease_runs_out_while_no_agent_is_attached(rig):
    await rig.open()
    rig.run(rig.task("1-1", "sleep", "60", lease_s=0.3))
    started = await rig.next("started")
    pid = started["items"][0]["pid"]
    await rig.close()
    await rig.wait_until(lambda: not rig.is_alive(pid), "the task is gone")
    state = await rig.open()
    assert [(item["phase"], item["exit_class"]) for item in state["attempts"]] == [("exited", "lost")]


async def test_renewals_keep_a_task_and_an_old_one_gives_no_more_time(rig):
    await rig.open()
    rig.run(rig.task("1-1", "sleep", "60", lease_s=1.0), rig.task("1-2", "sleep", "60"))
    started = await rig.next("started")
    pids = {item["uid"]: item["pid"] for item in started["items"]}
    for _ in range(30):
        rig.send({"op": "renew", "age_s": 0})
        await asyncio.sleep(0.05)
    assert rig.is_alive(pids["1-1"])
    for _ in range(3):
        rig.send({"op": "renew", "age_s": 3600})
    assert (await rig.exit_of("1-1"))["exit_class"] == "lost"
    assert rig.is_alive(pids["1-2"]), "a task without a lease is left alone"
    rig.cancel("1-2", "user", 0)
    await rig.exit_of("1-2")


async def test_a_lease_runs_from_when_the_hub_was_last_heard(rig):
    await rig.open()
    # Longer than the rig waits, and shorter than any machine that runs tests has been up: its clock began at zero then.
    result = await rig.result("1-1", "sleep", "100", lease_s=90.0, heard_at=time.monotonic() - 89.9)
    assert (result["state"], result["exit_class"]) == ("failed", "lost")
    assert "lease" in result["error"]
