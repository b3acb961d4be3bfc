"""Tasks survive the agent; a dead supervisor's tasks are found, stopped and reported, never guessed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from dray.agent.supervisor.client import SupervisorClient, SupervisorError
from dray.agent.supervisor.records.journal import encode_record
from dray.processes import look_up

AGENT = """
import asyncio, os, sys
from dray.agent.supervisor.client import SupervisorClient
async def main():
    client = await SupervisorClient.open(sys.argv[1])
    client.send({"op": "hello"})
    env = {"PATH": os.environ["PATH"]}
    client.send({"op": "run", "tasks": [
        {"uid": "a-1", "task_id": "one", "argv": ["sh", "-c", "read x < " + sys.argv[2] + "; exit 7"], "env": env},
        {"uid": "a-2", "task_id": "two", "argv": ["sleep", "1000"], "env": env, "meta": {"fence": 3}}]})
    async for event in client.events():
        if event["ev"] == "started":
            print("started", flush=True)
asyncio.run(main())
"""


async def test_tasks_outlive_a_killed_agent(tmp_path, make_rig):
    rig = make_rig()
    os.mkfifo(tmp_path / "fifo")
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", AGENT, str(rig.home), str(tmp_path / "fifo")),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")},
    )
    assert agent.stdout is not None
    assert await agent.stdout.readline() == b"started\n"
    os.killpg(agent.pid, signal.SIGKILL)
    await agent.wait()
    (tmp_path / "fifo").write_text("go\n")
    await rig.wait_until(lambda: any(r["k"] == "exit" for r in rig.records()), "the exit is on record")
    state = await rig.open()
    one, two = state["attempts"]
    assert (one["phase"], one["exit_code"], one["task_id"]) == ("exited", 7, "one")
    assert (two["phase"], two["meta"]) == ("running", {"fence": 3})
    assert rig.is_alive(two["pid"])
    rig.send({"op": "acked", "uids": ["a-1"]})
    rig.cancel("a-2", "user", 5)
    await rig.exit_of("a-2")
    assert [item["uid"] for item in (await rig.open())["attempts"]] == ["a-2"]


async def test_the_newest_connection_wins(rig, make_rig):
    other = make_rig(rig.home)
    await other.open()
    await rig.ends()
    assert (await other.result("a-1", "true"))["state"] == "succeeded"


async def test_hello_comes_first(rig):
    client = await SupervisorClient.open(rig.home)
    client.send({"op": "stop"})
    event = await anext(client.events())
    assert "hello" in event["error"]
    await client.close()


async def test_killed_supervisor_loses_its_tasks_openly(rig, tmp_path):
    rig.run(
        rig.task("a-1", "sh", "-c", "trap '' TERM PIPE; sleep 1000 & echo $!; echo ready; wait"),
        rig.task("a-2", "sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo $!; echo ready; exec sleep 1000"),
        rig.task("a-3", "sh", "-c", "exit 3"),
    )
    await rig.exit_of("a-3")
    for uid in ("a-1", "a-2"):
        await rig.await_output(uid, b"ready")
    pids = [int(rig.output(uid).split()[0]) for uid in ("a-1", "a-2")]
    leaders = next(event["items"] for event in rig.seen if event["ev"] == "started")
    journal_id = rig.state["journal_id"]
    await rig.kill_supervisor()
    state = await rig.open()
    found = {item["uid"]: item for item in state["attempts"]}
    assert state["journal_id"] == journal_id
    assert {uid: item["exit_class"] for uid, item in found.items()} == {
        "a-1": "lost",
        "a-2": "lost",
        "a-3": "code",
    }
    assert all(item["phase"] == "exited" for item in found.values())
    assert not any(rig.is_alive(pid) for pid in [*pids, *(item["pid"] for item in leaders[:2])])
    assert found["a-1"]["out"]["stdout"] == len(rig.output("a-1"))


async def test_orphans_of_a_dead_leader_are_found_by_their_session(rig):
    rig.run(rig.task("a-1", "sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo $!; exec sleep 1000"))
    await rig.await_output("a-1", b"\n")
    leader = (await rig.next("started"))["items"][0]["pid"]
    orphan = int(rig.output("a-1"))
    born = look_up(orphan)
    lock = rig.home / "supervisor.lock"
    await rig.wait_until(
        lambda: born is not None and int(lock.read_text()) > born.start, "seen alive after the birth"
    )
    os.kill(rig.pid, signal.SIGSTOP)  # the leader's end must not be noticed
    os.kill(leader, signal.SIGKILL)
    await rig.kill_supervisor()
    await rig.wait_until(lambda: look_up(leader) is None, "the leader is reaped")
    assert rig.is_alive(orphan)
    assert (await rig.open())["attempts"][0]["exit_class"] == "lost"
    assert not rig.is_alive(orphan)


@pytest.mark.parametrize("delay_s", [0.0, 0.003, 0.01, 0.02, 0.04])
async def test_killed_under_load_what_never_started_never_ran(rig, tmp_path, delay_s):
    """Killed at any moment: every attempt is told once, and a mark is left only by those on record as started."""
    uids = [f"a-{n}" for n in range(40)]
    for uid in uids:
        rig.run(rig.task(uid, "sh", "-c", f": > {tmp_path}/{uid}; echo $$; read x < /dev/null; sleep 0.01"))
    await asyncio.sleep(delay_s)  # not to wait for anything, but to kill at another moment each time
    await rig.kill_supervisor()
    told = {uid for event in rig.seen if event["ev"] == "accepted" for uid in event["uids"]}
    ended = {item["uid"]: item for event in rig.seen if event["ev"] == "exited" for item in event["items"]}
    found = {item["uid"]: item for item in (await rig.open())["attempts"]}
    assert told <= set(found)
    assert all(item["phase"] == "exited" for item in found.values())
    assert all(found[uid]["exit_class"] == item["exit_class"] for uid, item in ended.items())
    ran = set(os.listdir(tmp_path))
    assert ran <= {uid for uid, item in found.items() if item["exit_class"] != "lost_unstarted"}
    rig.run(*[rig.task(uid, "false") for uid in found])
    assert {uid: item["exit_class"] for uid, item in (await rig.exits(*found)).items()} == {
        uid: item["exit_class"] for uid, item in found.items()
    }


async def test_accepted_but_not_started_is_told_apart(rig):
    await rig.kill_supervisor()
    with (rig.home / "journal").open("ab") as journal:
        journal.write(encode_record({"k": "spec", "uid": "a-1", "task_id": "t", "meta": {"x": 1}}))
    item = (await rig.open())["attempts"][0]
    assert (item["phase"], item["state"], item["exit_class"]) == ("exited", "failed", "lost_unstarted")
    assert (item["meta"], item["started_at"]) == ({"x": 1}, None)


async def test_children_behind_the_barrier_end_with_the_supervisor(rig, tmp_path):
    mark = tmp_path / "ran"
    program = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parents[3] / "src")!r})
from dray.agent.supervisor.processes.spawn import Barrier, Spawner
spawner, barrier = Spawner([]), Barrier()
for n in range(3):
    print(spawner.spawn(["touch", {str(mark)!r}], {{"PATH": "/usr/bin:/bin"}}, None, None, barrier).pid)
sys.stdout.flush()
time.sleep(1000)
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    pids = [int(await process.stdout.readline()) for _ in range(3)]
    assert all(map(rig.is_alive, pids))
    process.kill()
    await process.wait()
    await rig.wait_until(lambda: not any(map(rig.is_alive, pids)), "the children ended by themselves")
    assert not mark.exists()


@pytest.mark.parametrize("change", [{"start": 1}, {"boot": "another boot"}])
async def test_a_recycled_pid_is_never_killed(rig, change):
    bystander = await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
    info = look_up(bystander.pid)
    assert info is not None
    record = {
        "k": "started",
        "uid": "a-1",
        "pid": bystander.pid,
        "start": info.start,
        "boot": rig.state["boot_id"],
    }
    await rig.kill_supervisor()
    with (rig.home / "journal").open("ab") as journal:
        journal.write(encode_record({"k": "spec", "uid": "a-1", "task_id": "t", "meta": None}))
        journal.write(encode_record({**record, "at": 1.0, "stage": "command", **change}))
    assert (await rig.open())["attempts"][0]["exit_class"] == "lost"
    assert rig.is_alive(bystander.pid)
    bystander.kill()
    await bystander.wait()


async def test_a_second_supervisor_on_one_home_is_refused(rig):
    source = str(Path(__file__).parents[3] / "src")
    second = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dray.agent.supervisor", "--home", str(rig.home)),
        env={**os.environ, "PYTHONPATH": source},
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await second.communicate()
    assert second.returncode == 3
    assert str(rig.home) in errors.decode()
    assert (await rig.result("a-1", "true"))["state"] == "succeeded"


async def test_racing_agents_share_one_supervisor(make_rig):
    home = make_rig().home
    clients = await asyncio.gather(*[SupervisorClient.open(home) for _ in range(4)])
    for client in clients:
        await client.close()
    assert (home / "supervisor.log").read_text().count(" serves, ") == 1


async def test_a_home_may_have_a_longer_path_than_a_socket(tmp_path, make_rig):
    home = tmp_path / ("x" * 120)
    rig = make_rig(home)
    await rig.open()
    assert os.stat(home / "supervisor.sock").st_mode & 0o777 == 0o600
    assert (await rig.result("a-1", "true"))["state"] == "succeeded"
    await rig.stop()
    assert not (home / "supervisor.sock").exists()


async def test_a_home_that_cannot_be_used_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SupervisorError, match="cannot start"):
        await SupervisorClient.open(tmp_path / "file")


async def test_epoch_is_kept(rig):
    for value in (5, 3):
        rig.send({"op": "epoch", "value": value})
        assert (await rig.next("epoch"))["value"] == 5
    await rig.kill_supervisor()
    assert (await rig.open())["max_epoch"] == 5


def read_environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_the_supervisor_keeps_none_of_the_agents_secrets(make_rig, monkeypatch):
    monkeypatch.setenv("DRAY_TOKEN", "do-not-tell")
    rig = make_rig()
    await rig.open()
    assert b"do-not-tell" not in read_environment(rig.pid)
    await rig.result("a-1", "true", env={"PATH": os.environ["PATH"], "SECRET": "do-not-tell"})
    assert b"do-not-tell" not in (rig.home / "journal").read_bytes()


async def test_an_unused_supervisor_leaves_and_nothing_is_lost(rig):
    await rig.stop()
    rig.options = ["--idle-exit-s", "0.1"]
    await rig.open()
    await rig.result("a-1", "sh", "-c", "exit 4")
    await rig.close()
    await rig.wait_until(lambda: not rig.is_alive(rig.pid), "it left")
    assert (await rig.open())["attempts"][0]["exit_code"] == 4


async def test_hello_and_run_in_one_breath(rig):
    rig.run(rig.task("a-0", "sleep", "1000"))
    await rig.next("started")
    rig.send({"op": "hello"})
    rig.run(rig.task("a-1", "true"))
    state = await rig.next("state")
    assert [item["uid"] for item in state["attempts"]] == ["a-0"]
    assert (await rig.next("accepted"))["uids"] == ["a-1"]
    assert (await rig.exit_of("a-1"))["state"] == "succeeded"
