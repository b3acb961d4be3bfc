"""`dray exec`, `dray attach` and `dray run -it` through a hub, with real processes and terminals, and their deaths."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cluster import DEADLINE_S, DRAY, Cluster, is_alive, wait_dead, wait_for
from tests.e2e.terminals import Terminal

STAYS = "trap '' HUP; sleep 1000 & echo $$ $! .; wait"
SHELL = "PS1='ready> ' sh -i"


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    """A hub and an agent that takes services too."""
    cluster = Cluster()
    try:
        cluster.start_hub()
        cluster.start_agent("w1", 4, "", "--service-slots", "2")
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def task(site: Cluster) -> Iterator[str]:
    """A task that runs."""
    job_id = site.submit("sleep", "1000", env={"OF_THE_TASK": "seven", "PATH": os.environ["PATH"]})
    site.wait_running(job_id)
    yield job_id
    site.call("POST", f"/jobs/{job_id}/cancel", {"grace_s": 0})
    site.wait_state(job_id)


def begin(site: Cluster, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    """A command with pipes of its own."""
    pipes: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    return subprocess.Popen([*DRAY, *words], env=site.env, cwd=site.folder, **{**pipes, **options})


def sit_at(site: Cluster, *words: str) -> Terminal:
    return Terminal([sys.executable, *DRAY[1:], *words], site.env, 31, 97)


def pids_of(process: subprocess.Popen[bytes]) -> list[int]:
    """What a command of STAYS has printed."""
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()[:2]]
    assert all(is_alive(pid) for pid in pids)
    return pids


def test_a_command_has_what_the_task_has_and_is_on_record(site: Cluster, task: str) -> None:
    script = 'echo "$OF_THE_TASK $MORE $DRAY_TASK_ID $(pwd)"; echo apart >&2; exit 5'
    done = site.dray("exec", task, "-e", "MORE=x", "--", "sh", "-c", script)
    assert (done.code, done.out, done.err) == (5, f"seven x {task} {site.folder}\n", "apart\n")
    fed = subprocess.run(
        [*DRAY, "exec", "-i", task, "--", "sh", "-c", "cat; kill -9 $$"],
        env=site.env,
        input=b"line\n" * 100_000,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (fed.returncode, fed.stdout) == (137, b"line\n" * 100_000)
    missing = site.dray("exec", task, "--", "no-such-program")
    assert missing.code == 127
    assert "program 'no-such-program' was not found on this worker" in missing.err
    assert site.logs(task) == b"", "its output is not the task's"
    records = site.call("GET", "/audit", limit=20).json["records"]
    noted = [record["detail"] for record in records if (record["action"], record["target"]) == ("exec", task)]
    assert "on w1: no-such-program" in noted[0]
    assert site.job(task)["state"] == "running"


def test_tasks_of_arrays_and_replicas_are_named_one_by_one(site: Cluster) -> None:
    array = site.submit("sleep", "1000", array={"last": 1})
    service = site.submit("sleep", "1000", type="service", name="web")
    try:
        for task, name in ((f"{array}/1", f"{array}/1"), ("web", service), ("web/0", service)):
            wait_for(lambda: site.dray("exec", task, "--", "true").code == 0, f"{task} runs")  # noqa: B023 - at once
            assert site.dray("exec", task, "--", "printenv", "DRAY_TASK_ID").out.strip() == name
        several = site.dray("exec", array, "--", "true")
        assert several.code == 125
        assert f"{array} has 2 tasks that run: say which by its id ({array}/0, {array}/1)" in several.err
    finally:
        for job_id in (array, service):
            site.call("POST", f"/jobs/{job_id}/cancel", {"grace_s": 0})
            site.wait_state(job_id)
    ended = site.dray("exec", f"{array}/0", "--", "true")
    assert ended.code == 125
    assert f"no task '{array}/0' of yours runs" in ended.err


def test_output_and_terminals_of_services_go_by_their_names_as_well(site: Cluster) -> None:
    service = site.submit("sh", "-c", "echo begun; echo on; exec sleep 1000", type="service", name="named")
    try:
        site.wait_logs(service, 2)
        for words in (("logs", "named"), ("logs", "named/0"), ("logs", "--stream", "stdout", "named")):
            assert site.dray(*words).out == "begun\non\n", words
        followed, end = site.begin("logs", "-f", "-n", "1", "named/0", name="followed")
        attached, shown = site.begin("attach", "named", name="attached")
        wait_for(lambda: end.read_text() and "on\n" in shown.read_text(), "what there is, is shown")
        for name in ("nosuch", "named/7"):
            missing = site.dray("logs", name)
            assert (missing.code, "not_found" in missing.err) == (1, True), missing
    finally:
        site.call("POST", f"/jobs/{service}/cancel", {"grace_s": 0})
        site.wait_state(service)
    assert (followed.wait(DEADLINE_S), attached.wait(DEADLINE_S)) == (0, 0), end.read_text()
    assert end.read_text() == "on\n", "the last line, also by a name"


def test_only_its_owner_and_admins_get_in(site: Cluster, task: str) -> None:
    made = {
        name: site.call("POST", "/tokens", {"user": user, "scopes": [scope], "shared_account": True}).json[
            "token"
        ]
        for name, user, scope in (("other", "eve", "submit"), ("reader", "eve", "read"))
    }
    other = site.dray("exec", task, "--", "true", env={"DRAY_TOKEN": made["other"]})
    assert other.code == 125
    assert f"no task {task!r} of yours runs" in other.err
    assert "(not_found)" in other.err
    reader = site.dray("exec", task, "--", "true", env={"DRAY_TOKEN": made["reader"]})
    assert reader.code == 125
    assert "needs the scope submit" in reader.err
    own = site.submit("sleep", "1000", token=made["other"])
    try:
        site.wait_running(own)
        assert site.dray("exec", own, "--", "true").code == 0, "an admin"
        assert site.dray("exec", own, "--", "true", env={"DRAY_TOKEN": made["other"]}).code == 0
    finally:
        site.call("POST", f"/jobs/{own}/cancel", {"grace_s": 0})
        site.wait_state(own)


def test_a_terminal_is_lent_resized_and_given_back(site: Cluster, task: str) -> None:
    with sit_at(site, "exec", "-it", task, "--", "sh", "-c", SHELL) as terminal:
        before = terminal.modes
        terminal.wait(b"ready> ")
        assert terminal.modes != before, "each key is for the other side"
        terminal.type(b"stty size\r")
        terminal.wait(b"31 97")
        terminal.resize(40, 120)
        os.kill(terminal.process.pid, signal.SIGWINCH)
        terminal.type(b"until stty size | grep '^40 120'; do sleep 0.1; done\r")
        terminal.wait(b"40 120\r\n")
        terminal.type(b"cat\r")
        terminal.type(b"word\r")
        terminal.wait(b"word\r\n")
        terminal.wait(b"word\r\n")
        terminal.type(b"\x03")
        terminal.wait(b"ready> ")
        terminal.type(b"exit 9\r")
        assert terminal.end() == 9
        assert terminal.modes == before
    with sit_at(site, "exec", "-it", task, "--", "sh", "-c", SHELL) as terminal:
        terminal.wait(b"ready> ")
        terminal.type(b"echo pid=$$=\r")
        terminal.wait(b"\npid=")
        pid = int(terminal.wait(b"=").rstrip(b"="))
        terminal.type(b"\r~.")
        assert terminal.end() == 0
        assert b"left: what ran there was hung up" in terminal.shown
        assert terminal.modes == before
        wait_dead([pid])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_the_command_ends_what_runs_there(site: Cluster, task: str, number: int) -> None:
    with begin(site, "exec", task, "--", "sh", "-c", STAYS) as process:
        pids = pids_of(process)
        process.send_signal(number)
        assert process.wait(60) == (-number if number == signal.SIGKILL else 128 + number)
    wait_dead(pids)
    assert site.job(task)["state"] == "running"


def test_ctrl_c_without_a_terminal_is_a_signal_there(site: Cluster, task: str) -> None:
    script = "trap 'echo caught; exit 3' INT; echo on; while :; do sleep 0.05; done"
    with begin(site, "exec", task, "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"caught\n"
        assert process.wait(60) == 3


def test_a_flood_that_nobody_reads_stands_still(site: Cluster, task: str) -> None:
    """What is on its way fills windows and pipes, and no memory beyond them: the program waits."""
    script = "echo $$ $$ .; exec yes 0123456789012345678901234567890123456789"
    with begin(site, "exec", task, "--", "sh", "-c", script) as process:
        try:
            pid = pids_of(process)[0]
            written: list[int] = []

            def stands_still() -> bool:
                lines = Path(f"/proc/{pid}/io").read_text().splitlines()
                written.append(int(lines[1].split()[1]))
                return len(written) > 50 and len({*written[-50:]}) == 1

            wait_for(stands_still, "the flood stands still")
            assert written[-1] < 8 << 20
            assert site.dray("exec", task, "--", "echo", "others go on").out == "others go on\n"
        finally:
            process.kill()
    wait_dead([pid])


def test_deaths_of_agent_and_hub_end_it_and_not_the_task(make_cluster: Callable[..., Cluster]) -> None:
    site = make_cluster()
    site.start_hub()
    agent = site.start_agent("w1")
    task = site.submit("sh", "-c", "echo $$; exec sleep 1000")
    leader = int(site.wait_logs(task, 1)[0])
    with begin(site, "exec", task, "--", "sh", "-c", STAYS) as process:
        pids = pids_of(process)
        agent.kill()
        assert process.wait(60) == 255
        assert process.stderr is not None
        assert b"the connection was cut" in process.stderr.read()
    wait_dead(pids)
    assert is_alive(leader)
    site.start_agent("w1")
    with begin(site, "exec", task, "--", "sh", "-c", STAYS) as process:
        pids = pids_of(process)
        site.kill_hub()
        assert process.wait(60) == 255
    wait_dead(pids)
    assert is_alive(leader)
    site.start_hub()
    site.wait_worker("w1")
    assert site.dray("exec", task, "--", "echo", "again").out == "again\n"
    with begin(site, "exec", task, "--", "sh", "-c", STAYS) as process:
        pids = pids_of(process)
        site.call("POST", f"/jobs/{task}/cancel", {"grace_s": 0})
        assert process.wait(60) == 137
    wait_dead([*pids, leader])


def test_an_interactive_job_is_left_and_come_back_to(site: Cluster) -> None:
    with sit_at(site, "run", "-it", "--id", "talk", "--", "sh", "-c", SHELL) as terminal:
        before = terminal.modes
        terminal.wait(b"ready> ")
        terminal.type(b"kept=here; stty size; echo $TERM\r")
        terminal.wait(b"31 97\r\nxterm")
        terminal.type(b"\r~.")
        assert terminal.end() == 0
        assert b"left: talk goes on, `dray attach talk` comes back" in terminal.shown
        assert terminal.modes == before
    site.agents["w1"].kill()
    site.start_agent("w1")
    with sit_at(site, "attach", "talk") as terminal:
        terminal.wait(b"31 97")  # what was shown before
        terminal.type(b"echo still $kept\r")
        terminal.wait(b"still here")
        terminal.type(b"cat\r")
        terminal.type(b"word\r")
        terminal.wait(b"word\r\n")
        terminal.wait(b"word\r\n")
        terminal.type(b"\x03")
        terminal.wait(b"ready> ")
        terminal.type(b"exit 6\r")
        assert terminal.end() == 6
    assert site.job("talk")["exit_code"] == 6
    assert b"still here" in site.logs("talk")


def test_an_interactive_job_takes_what_is_piped_in(site: Cluster) -> None:
    done = subprocess.run(
        [*DRAY, "run", "-it", "--", "sh", "-c", "while read word; do echo got $word; done; exit 4"],
        env=site.env,
        input=b"one\ntwo\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 4, done
    assert b"got one" in done.stdout
    assert b"got two" in done.stdout
    several = site.dray("run", "-it", "-a", "0-1", "--", "true")
    assert (several.code, "-it is for one task" in several.err) == (2, True)


def test_of_several_terminals_one_is_named(site: Cluster) -> None:
    array = site.submit("sh", "-c", "read code; exit $code", array={"last": 1}, interactive=True)
    try:
        unnamed = site.dray("attach", array)
        assert (unnamed.code, f"say which, as {array}/0" in unnamed.err) == (2, True)
        done = subprocess.run(
            [*DRAY, "attach", f"{array}/1"],
            env=site.env,
            input=b"5\n",
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 5, done
        tasks = site.call("GET", f"/jobs/{array}/tasks").json["tasks"]
        assert [task["state"] for task in tasks] == ["running", "failed"]
    finally:
        site.call("POST", f"/jobs/{array}/cancel", {"grace_s": 0})
        site.wait_state(array)
    plain = site.submit("echo", "hello")
    told = site.dray("attach", plain)
    assert (told.code, told.out) == (0, "hello\n")
    assert "has no terminal: this is its output" in told.err
