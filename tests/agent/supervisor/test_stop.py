"""Cancel and time limit: TERM to the group, a grace, then KILL to all of it."""

from __future__ import annotations

import json
import os
import signal

# Ignores TERM, with a grandchild in the same group and one that left for a session of its own; prints their pids.
STUBBORN = "trap '' TERM; sleep 1000 & echo $!; setsid sleep 1000 & echo $!; echo ready; while :; do sleep 1000; done"
# Dies of TERM at once while its child uses the grace: `wait` keeps the shell as the leader.
WRAPPED = "sh -c 'trap \"echo saved; exit 0\" TERM; echo ready; while :; do sleep 0.02; done' & wait"


async def test_cancel_with_grace(rig):
    rig.run(
        rig.task("a-1", "sh", "-c", "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.02; done")
    )
    await rig.await_output("a-1", b"ready")
    rig.cancel("a-1", "user", 30)
    result = await rig.exit_of("a-1")
    assert (result["state"], result["exit_code"], result["exit_class"]) == ("killed", 0, "cancelled")
    assert rig.output("a-1") == b"ready\nbye\n"


async def test_preempted(rig):
    rig.run(rig.task("a-1", "sleep", "1000"))
    await rig.next("started")
    rig.cancel("a-1", "preempted", 30)
    result = await rig.exit_of("a-1")
    assert (result["state"], result["signal"], result["exit_class"]) == (
        "preempted",
        signal.SIGTERM,
        "cancelled",
    )


async def test_a_cancel_right_at_the_start_is_not_lost(rig):
    """A child may not even have made its own group when the signal comes."""
    uids = [f"a-{n}" for n in range(60)]
    for uid in uids:
        rig.run(rig.task(uid, "sleep", "1000"))
        await rig.next("started")
        rig.cancel(uid, "user", 1000)
    found = await rig.exits(*uids)
    assert {found[uid]["signal"] for uid in uids} == {signal.SIGTERM}


async def test_kill_reaches_the_whole_group_and_its_descendants(rig):
    rig.run(rig.task("a-1", "sh", "-c", STUBBORN))
    await rig.await_output("a-1", b"ready")
    pids = [int(word) for word in rig.output("a-1").split()[:2]]
    rig.cancel("a-1", "user", 0.1)
    result = await rig.exit_of("a-1")
    assert (result["state"], result["signal"]) == ("killed", signal.SIGKILL)
    await rig.wait_until(lambda: not any(map(rig.is_alive, pids)), "grandchildren are gone")


async def test_the_grace_belongs_to_the_whole_group(rig):
    rig.run(rig.task("a-1", "sh", "-c", WRAPPED))
    await rig.await_output("a-1", b"ready")
    rig.cancel("a-1", "preempted", 30)
    result = await rig.exit_of("a-1")
    assert result["state"] == "preempted"
    assert rig.output("a-1") == b"ready\nsaved\n"


async def test_a_second_cancel_shortens_the_grace_and_never_lengthens_it(rig):
    for uid, first, second in [("a-1", 1000, 0.05), ("a-2", 0.3, 1000)]:
        rig.run(rig.task(uid, "sh", "-c", STUBBORN))
        await rig.await_output(uid, b"ready")
        rig.cancel(uid, "user", first)
        rig.cancel(uid, "preempted", second)
        result = await rig.exit_of(uid)
        assert (result["state"], result["signal"]) == ("killed", signal.SIGKILL)


async def test_a_reason_of_a_newer_agent_stops_too_and_is_told_again(rig):
    for uid, reason in (("a-1", "moonlight"), ("a-2", "x" * 1000)):
        rig.run(rig.task(uid, "sh", "-c", STUBBORN))
        await rig.await_output(uid, b"ready")
        rig.cancel(uid, reason, 0)
        result = await rig.exit_of(uid)
        assert (result["state"], result["exit_class"]) == ("killed", "cancelled")
        assert result["error"] == f"cancelled ({reason[:64]})"


async def test_cancel_of_what_has_not_started_never_starts_it(rig, tmp_path):
    mark = tmp_path / "ran"
    run = {"op": "run", "tasks": [rig.task("a-1", "touch", str(mark))]}
    cancel = {"op": "cancel", "uid": "a-1", "reason": "revoked", "grace_s": 5}
    # One write, so that both arrive in one turn of the loop.
    rig.client._writer.write(f"{json.dumps(run)}\n{json.dumps(cancel)}\n".encode())
    result = await rig.exit_of("a-1")
    assert (result["state"], result["exit_class"], result["exit_code"]) == ("killed", "cancelled", -1)
    assert not mark.exists()
    assert "started" not in [record["k"] for record in rig.records()]


async def test_cancel_in_the_prolog_keeps_the_command_from_running(rig, tmp_path):
    mark = tmp_path / "ran"
    rig.run(
        rig.task(
            "a-1",
            "touch",
            str(mark),
            prolog=["sh", "-c", "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"],
        )
    )
    await rig.await_output("a-1", b"up")
    rig.cancel("a-1", "user", 30)
    assert (await rig.exit_of("a-1"))["state"] == "killed"
    assert not mark.exists()


async def test_cancel_during_the_epilog_leaves_the_result(rig):
    rig.run(
        rig.task("a-1", "sh", "-c", "exit 3", epilog=["sh", "-c", "echo cleaning; sleep 1000"], grace_s=1000)
    )
    await rig.await_output("a-1", b"cleaning")
    rig.cancel("a-1", "user", 0.05)
    result = await rig.exit_of("a-1")
    assert (result["state"], result["exit_code"], result["exit_class"]) == ("failed", 3, "code")


async def test_cancel_after_the_end_tells_the_end(rig):
    await rig.result("a-1", "sh", "-c", "exit 5")
    rig.cancel("a-1", "user", 5)
    again = (await rig.next("exited"))["items"][0]
    assert (again["state"], again["exit_code"]) == ("failed", 5)


async def test_time_limit(rig):
    result = await rig.result("a-1", "sleep", "1000", limit_s=0.05)
    assert (result["state"], result["exit_class"], result["signal"]) == (
        "failed",
        "time_limit",
        signal.SIGTERM,
    )
    assert "0.05 s" in result["error"]
    stubborn = await rig.result("a-2", "sh", "-c", STUBBORN, limit_s=0.2, grace_s=0.1)
    assert (stubborn["exit_class"], stubborn["signal"]) == ("time_limit", signal.SIGKILL)


async def test_limit_and_grace_hold_without_an_agent(rig):
    rig.run(rig.task("a-1", "sh", "-c", STUBBORN, limit_s=0.3, grace_s=0.1))
    pid = (await rig.next("started"))["items"][0]["pid"]
    await rig.close()
    await rig.wait_until(lambda: not rig.is_alive(pid), "the limit was enforced")
    await rig.wait_until(lambda: any(r["k"] == "exit" for r in rig.records()), "the exit is on record")
    state = await rig.open()
    assert state["attempts"][0]["exit_class"] == "time_limit"


async def test_a_stopped_process_still_gets_its_term(rig):
    rig.run(rig.task("a-1", "sh", "-c", "echo ready; kill -STOP $$; sleep 1000"))
    await rig.await_output("a-1", b"ready")
    rig.cancel("a-1", "user", 1000)
    assert (await rig.exit_of("a-1"))["signal"] == signal.SIGTERM


async def test_leftovers_of_an_ended_command_do_not_hold_it_up(rig):
    rig.run(rig.task("a-1", "sh", "-c", "sleep 1000 & echo $!; exit 0"))
    result = await rig.exit_of("a-1")
    assert (result["state"], result["exit_class"]) == ("succeeded", "ok")
    leftover = int(rig.output("a-1"))
    await rig.wait_until(lambda: not rig.is_alive(leftover), "the leftover is gone")


async def test_the_supervisor_ignores_term_while_it_has_work(rig):
    rig.run(rig.task("a-1", "sleep", "1000"))
    await rig.next("started")
    os.kill(rig.pid, signal.SIGTERM)
    await rig.wait_until(lambda: "SIGTERM ignored" in (rig.home / "supervisor.log").read_text(), "logged")
    rig.send({"op": "stop"})
    assert await rig.next("busy") == {"ev": "busy", "running": 1}
    rig.cancel("a-1", "user", 5)
    await rig.exit_of("a-1")
    os.kill(rig.pid, signal.SIGTERM)
    await rig.ends()
    await rig.wait_until(lambda: not rig.is_alive(rig.pid), "idle, it obeys")
    assert not (rig.home / "supervisor.sock").exists()
