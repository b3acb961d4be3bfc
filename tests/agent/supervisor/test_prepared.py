"""A member of a gang is held ready until the word comes, survives its agent and dies with its supervisor."""

from __future__ import annotations

META = {"pool": "batch", "devices": [], "gang": {"generation": 1, "rank": 0, "size": 2, "ports": [4711]}}


def prepare(rig, uid="1-1", **more):
    task = rig.task(uid, "sh", "-c", "echo $MASTER_ADDR", meta=META, **more)
    rig.send({"op": "prepare", "tasks": [task]})


async def test_it_starts_on_the_word_and_not_before(rig):
    prepare(rig)
    prepared = await rig.next("prepared")
    assert prepared["items"] == [{"uid": "1-1", "meta": META}]
    state = await rig.open()
    assert [item["phase"] for item in state["attempts"]] == ["accepted"]
    rig.send({"op": "go", "uid": "1-1", "env": {"MASTER_ADDR": "node-7"}})
    ended = await rig.next("exited")
    assert ended["items"][0]["state"] == "succeeded"
    assert rig.output("1-1", "stdout") == b"node-7\n"


async def test_a_second_word_starts_nothing(rig):
    prepare(rig)
    await rig.next("prepared")
    for _ in range(2):
        rig.send({"op": "go", "uid": "1-1", "env": {}})
    await rig.next("exited")
    rig.send({"op": "go", "uid": "1-1", "env": {}})
    await rig.next("exited")
    assert [event["ev"] for event in rig.seen].count("started") <= 2
    assert len(rig.output("1-1", "stdout").splitlines()) == 1


async def test_asking_again_is_answered_again(rig):
    prepare(rig)
    await rig.next("prepared")
    prepare(rig)
    await rig.next("prepared")


async def test_it_is_cancelled_without_ever_running(rig):
    prepare(rig)
    await rig.next("prepared")
    rig.send({"op": "cancel", "uid": "1-1", "reason": "gang", "grace_s": 600})
    (ended,) = (await rig.next("exited"))["items"]
    assert (ended["state"], ended["exit_class"]) == ("killed", "cancelled")
    rig.send({"op": "go", "uid": "1-1", "env": {}})
    (again,) = (await rig.next("exited"))["items"]
    assert again["state"] == "killed"
    assert rig.output("1-1", "stdout") == b""


async def test_it_goes_with_its_supervisor_and_never_ran(rig):
    prepare(rig)
    await rig.next("prepared")
    await rig.kill_supervisor()
    state = await rig.open()
    (item,) = state["attempts"]
    assert (item["phase"], item["exit_class"]) == ("exited", "lost_unstarted")


async def test_a_word_that_comes_after_the_lease_starts_nothing(rig):
    prepare(rig, lease_s=0.0)
    await rig.next("prepared")
    rig.send({"op": "go", "uid": "1-1", "env": {}})
    (ended,) = (await rig.next("exited"))["items"]
    assert ended["exit_class"] == "lost_unstarted"
    prepare(rig, "1-3", lease_s=60.0)
    await rig.next("prepared")
    rig.send({"op": "renew", "age_s": 0})
    rig.send({"op": "go", "uid": "1-3", "env": {}})
    (ended,) = (await rig.next("exited"))["items"]
    assert ended["state"] == "succeeded"


async def test_the_word_for_what_is_not_here_is_an_error(rig):
    rig.send({"op": "go", "uid": "1-9", "env": {}})
    assert "not known here" in (await rig.next("error"))["error"]
    prepare(rig, "1-1")
    await rig.next("prepared")
    rig.send({"op": "go", "uid": "1-1", "env": {"A": 1}})
    assert "environment" in (await rig.next("error"))["error"]


async def test_a_member_is_let_go_only_while_it_is_held(rig):
    prepare(rig)
    await rig.next("prepared")
    prepare(rig, "1-2", argv=["sleep", "60"])
    await rig.next("prepared")
    rig.send({"op": "go", "uid": "1-2", "env": {}})
    await rig.next("started")
    rig.send({"op": "cancel", "uid": "1-2", "reason": "superseded", "held": True})
    rig.send({"op": "cancel", "uid": "1-1", "reason": "superseded", "held": True})
    (ended,) = (await rig.next("exited"))["items"]
    assert ended["uid"] == "1-1"
    rig.send({"op": "cancel", "uid": "1-2", "reason": "user", "grace_s": 0.0})
    (ended,) = (await rig.next("exited"))["items"]
    assert (ended["uid"], ended["state"]) == ("1-2", "killed")
