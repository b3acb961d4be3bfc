"""What a program did is what is reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dray.agent.supervisor.processes.marks import VARIABLE
from dray.processes import read_boot_id

WAYS = ["at once", "behind a barrier"]


async def test_success_goes_through_all_phases(rig):
    result = await rig.result("a-1", "true", meta={"fence": 7})
    assert (result["state"], result["exit_code"], result["signal"], result["exit_class"]) == (
        "succeeded",
        0,
        0,
        "ok",
    )
    assert result["error"] == ""
    assert result["usage"]["wall_s"] > 0
    assert result["usage"]["max_rss_bytes"] > 0
    kinds = [event["ev"] for event in rig.seen]
    assert kinds == ["state", "accepted", "started", "exited"]
    started = rig.seen[2]["items"][0]
    assert started["uid"] == "a-1"
    assert [record["k"] for record in rig.records()] == ["journal", "spec", "starting", "started", "exit"]
    assert rig.records()[3]["pid"] == started["pid"]
    assert rig.records()[2]["boot"] == rig.records()[3]["boot"] == read_boot_id()


async def test_a_batch_is_accepted_and_started_as_one(rig):
    rig.run(*[rig.task(f"b-{n}", "sh", "-c", f"exit {n}") for n in range(8)])
    found = await rig.exits(*[f"b-{n}" for n in range(8)])
    assert [found[f"b-{n}"]["exit_code"] for n in range(8)] == list(range(8))
    assert rig.seen[1] == {"ev": "accepted", "uids": [f"b-{n}" for n in range(8)]}
    assert len(rig.seen[2]["items"]) == 8


@pytest.mark.parametrize("rig", WAYS, indirect=True)
async def test_exit_code_and_signal(rig):
    code = await rig.result("a-1", "sh", "-c", "exit 42")
    assert (code["state"], code["exit_code"], code["signal"], code["exit_class"]) == ("failed", 42, 0, "code")
    killed = await rig.result("a-2", "sh", "-c", "kill -SEGV $$")
    assert (killed["exit_code"], killed["signal"], killed["exit_class"]) == (139, 11, "signal")
    assert "SIGSEGV" in killed["error"]


@pytest.mark.parametrize("rig", WAYS, indirect=True)
async def test_a_missing_program_is_told_from_exit_127(rig):
    missing = await rig.result("a-1", "no-such-program")
    assert (missing["state"], missing["exit_code"], missing["exit_class"]) == ("failed", 127, "not_found")
    assert missing["error"] == (
        f"program 'no-such-program' was not found on this worker (PATH={os.environ['PATH']})"
    )
    own = await rig.result("a-2", "sh", "-c", "exit 127")
    assert (own["exit_code"], own["exit_class"]) == (127, "code")


@pytest.mark.parametrize("rig", WAYS, indirect=True)
async def test_a_program_that_cannot_be_executed(rig, tmp_path):
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    plain = await rig.result("a-1", str(tmp_path / "plain"))
    assert (plain["exit_code"], plain["exit_class"]) == (126, "not_executable")
    (tmp_path / "bare").write_text("echo hi\n")
    (tmp_path / "bare").chmod(0o755)
    bare = await rig.result("a-2", str(tmp_path / "bare"))
    assert bare["exit_class"] == "not_executable"
    assert "#!" in bare["error"]


@pytest.mark.parametrize("rig", WAYS, indirect=True)
async def test_a_missing_working_directory_is_named(rig, tmp_path):
    result = await rig.result("a-1", "true", cwd=str(tmp_path / "gone"))
    assert (result["state"], result["exit_class"]) == ("failed", "workdir")
    assert str(tmp_path / "gone") in result["error"]


@pytest.mark.parametrize("rig", WAYS, indirect=True)
async def test_folders_of_one_batch_do_not_mix(rig, tmp_path):
    (tmp_path / "usr").mkdir()
    folders = {"a-1": str(tmp_path), "a-2": "usr", "a-3": None, "a-4": str(tmp_path / "gone")}
    rig.run(*[rig.task(uid, "sh", "-c", "/bin/pwd -P", cwd=cwd) for uid, cwd in folders.items()])
    found = await rig.exits(*folders)
    assert {uid: item["exit_class"] for uid, item in found.items() if uid in folders} == {
        uid: "workdir" if uid == "a-4" else "ok" for uid in folders
    }
    assert [rig.output(uid).strip() for uid in ("a-1", "a-2", "a-3")] == [
        os.fsencode(tmp_path),
        b"/usr",
        b"/",
    ]
    assert os.readlink(f"/proc/{rig.pid}/cwd") == "/"


@pytest.mark.parametrize("rig", WAYS, indirect=True)
async def test_environment_directory_and_session_are_as_given(rig, tmp_path):
    program = (
        "import os,json,sys,signal; print(json.dumps([dict(os.environ), os.getcwd(), os.getsid(0)==os.getpid(), \
sorted(os.listdir('/proc/self/fd')), os.readlink('/proc/self/fd/0'), \
[int(s) for s in signal.valid_signals() if signal.getsignal(s) == signal.SIG_IGN], \
[int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])]]))"
    )
    env = {"A": "1", "B": "zwei", "C": "\udcff", "LC_CTYPE": "C.UTF-8"}
    result = await rig.result("a-1", sys.executable, "-SIc", program, env=env, cwd=str(tmp_path))
    assert result["state"] == "succeeded"
    found, cwd, leads, fds, stdin, ignored, blocked = json.loads(rig.output("a-1"))
    assert found.pop(VARIABLE, "").endswith(".a-1")
    assert found == env
    assert cwd == str(tmp_path)
    assert leads
    assert fds == ["0", "1", "2", "3"]  # the last is the listing itself
    assert stdin == "/dev/null"
    assert set(ignored) <= {13, 25}  # Python's own: SIGPIPE and SIGXFSZ
    assert blocked == []


@pytest.mark.parametrize("rig", WAYS, indirect=True)
async def test_ignored_signals_are_not_inherited(rig):
    result = await rig.result("a-1", "grep", "SigIgn", "/proc/self/status")
    assert result["state"] == "succeeded"
    of_the_c_library = (
        1 << 31 | 1 << 32
    )  # signals 32 and 33, which no program can use: posix_spawn leaves them ignored
    assert int(rig.output("a-1").split()[1], 16) & ~of_the_c_library == 0


@pytest.mark.parametrize("rig", WAYS, indirect=True)
async def test_a_failing_prolog_keeps_the_command_from_running(rig, tmp_path):
    mark = tmp_path / "ran"
    failed = await rig.result("a-1", "touch", str(mark), prolog=["sh", "-c", "echo no; exit 3"])
    assert (failed["state"], failed["exit_code"], failed["exit_class"]) == ("failed", 3, "prolog")
    assert rig.output("a-1") == b"no\n"
    missing = await rig.result(
        "a-2", "touch", str(mark), prolog=["no-such-program"], epilog=["touch", str(mark)]
    )
    assert missing["exit_class"] == "prolog"
    assert "no-such-program" in missing["error"]
    assert not mark.exists()


async def test_prolog_command_and_epilog_share_the_streams(rig):
    argv = {"prolog": ["echo", "first"], "epilog": ["sh", "-c", "echo last; exit 9"]}
    result = await rig.result("a-1", "sh", "-c", "echo middle; exit 4", **argv)
    assert (result["state"], result["exit_code"], result["exit_class"]) == ("failed", 4, "code")
    assert rig.output("a-1") == b"first\nmiddle\nlast\n"
    assert result["out"] == {"stdout": 18, "stderr": 0}
    assert [event["ev"] for event in rig.seen].count("started") == 1
    stages = [record["stage"] for record in rig.records() if record["k"] == "started"]
    assert stages == ["prolog", "command", "epilog"]


async def test_an_epilog_that_hangs_is_cut(rig):
    result = await rig.result("a-1", "true", epilog=["sleep", "1000"], grace_s=0.1)
    assert (result["state"], result["exit_class"]) == ("succeeded", "ok")


async def test_a_resent_uid_is_not_started_twice(rig, tmp_path):
    count = tmp_path / "count"
    task = rig.task("a-1", "sh", "-c", f"echo x >> {count}; read line < {tmp_path}/fifo")
    os.mkfifo(tmp_path / "fifo")
    rig.run(task)
    pid = (await rig.next("started"))["items"][0]["pid"]
    rig.run(task)
    assert (await rig.next("started"))["items"][0]["pid"] == pid
    (tmp_path / "fifo").write_text("go\n")
    await rig.exit_of("a-1")
    rig.run(task)
    assert (await rig.next("exited"))["items"][0]["exit_code"] == 0
    rig.send({"op": "acked", "uids": ["a-1"]})
    rig.run(task)
    assert (await rig.next("exited"))["items"][0]["state"] == "succeeded"
    assert count.read_text() == "x\n"


async def test_bad_input_is_answered_and_the_loop_lives(rig):
    bad = [b"nonsense", b"[]", b'{"op":"dance"}', b'{"op":"run"}', b'{"op":"acked","uids":3}', b"[" * 100_000]
    for line in bad:
        rig.client._writer.write(line + b"\n")
        assert (await rig.next("error"))["error"]
    for broken in [
        {"uid": "../etc"},
        rig.task("a-1"),
        rig.task("a-2", "x\0y"),
        rig.task("a-3", "x", limit_s=-1),
    ]:
        rig.run(broken)
        refused = await rig.next("refused")
        assert refused["uid"] == broken["uid"]
        assert refused["error"]
    assert (await rig.result("a-4", "true"))["state"] == "succeeded"
    rig.cancel("nobody", "user", 1)
    assert (await rig.next("error"))["uid"] == "nobody"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run a task as another user")
async def test_a_task_runs_as_the_user_that_it_names(rig):
    result = await rig.result("a-1", "id", "-un", user="nobody")
    assert (result["state"], rig.output("a-1")) == ("succeeded", b"nobody\n")
    unknown = await rig.result("a-2", "id", user="no-such-user")
    assert (unknown["state"], unknown["exit_class"]) == ("failed", "not_executable")
    assert "no-such-user" in unknown["error"]


def test_it_imports_the_standard_library_only():
    source = Path(__file__).parents[3] / "src"
    program = "import sys, dray.agent.supervisor.__main__ as m; print('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    roots = (
        {name.split(".")[0] for name in done.stdout.split()}
        - set(sys.stdlib_module_names)
        - {"__main__", "dray"}
    )
    assert roots == set()
    inner = {name for name in done.stdout.split() if name.startswith("dray.")}
    allowed = {"dray.agent", "dray.agent.supervisor", "dray.processes"}
    assert all(name in allowed or name.startswith("dray.agent.supervisor.") for name in inner)
    assert not {"asyncio", "threading", "subprocess"} & set(done.stdout.split())
