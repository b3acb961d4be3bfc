"""Attempts that wait for the place of another: begun without a word when it has ended, in order, one at a time."""

from __future__ import annotations

from itertools import pairwise

WAIT_S = 60.0
# Says when it begins and when it ends; two that ran at the same time would show.
TURN = "echo begins >> log; sleep 0.02; echo ends >> log"


def behind(rig, uid, ahead, *argv, behind_s=WAIT_S):
    meta = {"pool": "batch", "devices": [], "behind": ahead}
    return rig.task(uid, *argv, behind=ahead, behind_s=behind_s, meta=meta, cwd=str(rig.home))


async def test_they_begin_one_after_the_other(rig):
    uids = [f"1-{number}" for number in range(1, 7)]
    tasks = [behind(rig, uid, ahead, "sh", "-c", TURN) for ahead, uid in pairwise(uids)]
    rig.run(rig.task(uids[0], "sh", "-c", TURN, cwd=str(rig.home)), *tasks)
    found = await rig.exits(*uids)
    assert {item["state"] for item in found.values()} == {"succeeded"}
    assert (rig.home / "log").read_text().split() == ["begins", "ends"] * 6
    told = [item["uid"] for event in rig.seen if event["ev"] == "exited" for item in event["items"]]
    assert told == uids
    accepted = [uid for event in rig.seen if event["ev"] == "accepted" for uid in event["uids"]]
    assert accepted == uids[:1], "nothing is said of one that waits but its start"


async def test_one_that_comes_after_the_end_begins_at_once(rig):
    await rig.result("1-1", "true")
    rig.run(behind(rig, "1-2", "1-1", "true"))
    assert (await rig.exit_of("1-2"))["state"] == "succeeded"


async def test_what_has_waited_too_long_is_given_back_and_the_others_move_up(rig):
    rig.run(
        rig.task("1-1", "sleep", "60"),
        behind(rig, "1-2", "1-1", "true", behind_s=0.05),
        behind(rig, "1-3", "1-2", "true"),
    )
    late = await rig.exit_of("1-2")
    assert (late["state"], late["exit_class"], late.get("host")) == ("failed", "lost_unstarted", None)
    assert "started" not in {record["k"] for record in rig.records() if record.get("uid") == "1-2"}
    rig.cancel("1-1", "user", 0.0)
    assert (await rig.exit_of("1-3"))["state"] == "succeeded"


async def test_nobody_begins_in_the_place_of_one_that_never_had_one(rig):
    rig.run(rig.task("1-1", "sleep", "60"), behind(rig, "1-2", "1-1", "true"))
    rig.cancel("1-2", "user", 0.0)
    assert (await rig.exit_of("1-2"))["exit_class"] == "cancelled"
    rig.run(behind(rig, "1-3", "1-2", "true"), behind(rig, "1-4", "never-was-here", "true"))
    found = await rig.exits("1-3", "1-4")
    assert [found[uid]["exit_class"] for uid in ("1-3", "1-4")] == ["lost_unstarted"] * 2
    rig.cancel("1-1", "user", 0.0)
    await rig.exit_of("1-1")


async def test_they_go_on_while_there_is_no_agent(rig):
    rig.run(
        rig.task("1-1", "sh", "-c", "while ! [ -e go ]; do sleep 0.01; done", cwd=str(rig.home)),
        behind(rig, "1-2", "1-1", "sh", "-c", "echo second"),
    )
    await rig.next("accepted")
    await rig.close()
    (rig.home / "go").touch()
    await rig.await_output("1-2", b"second")
    await rig.open()
    await rig.wait_until(
        lambda: {r["uid"] for r in rig.records() if r["k"] == "exit"} >= {"1-1", "1-2"}, "both have ended"
    )


async def test_with_their_supervisor_they_are_known_not_to_have_begun(rig):
    rig.run(rig.task("1-1", "sleep", "60"), behind(rig, "1-2", "1-1", "true"))
    await rig.next("started")
    await rig.kill_supervisor()
    state = await rig.open()
    assert {item["uid"]: item["exit_class"] for item in state["attempts"]} == {
        "1-1": "lost",
        "1-2": "lost_unstarted",
    }
