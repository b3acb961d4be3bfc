"""A real hub as a process: found by its files, stopped cleanly, and no stranger signalled in its place."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from dray.cli.machines.daemons import DaemonFailed, read_tail, start_daemon, stop_daemon, wait_for_hub
from dray.cli.main import main
from dray.presence import describe_process, find_holder, hold
from dray.processes import look_up


def holder_pid(home, role):
    holder = find_holder(home, role)
    assert holder is not None
    return holder.pid


@pytest.fixture
def running_hub(clean_environment):
    process = start_daemon(clean_environment, "hub", ["--port", "0"], to_file=True)
    try:
        note = wait_for_hub(clean_environment, process)
        yield process, note
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_a_hub_is_found_used_and_stopped(running_hub, clean_environment, capfd):
    process, note = running_hub
    assert holder_pid(clean_environment, "hub") == process.pid
    assert main(["submit", "-J", "x", "--", "true"]) == 0
    job_id = capfd.readouterr().out.strip()
    assert main(["ps", "-o", "json"]) == 0
    assert [job["id"] for job in json.loads(capfd.readouterr().out)["jobs"]] == [job_id]
    assert main(["up"]) == 1
    assert f"a hub already runs here: {note['url']}" in capfd.readouterr().err
    # Its parent must collect it, or it would stay a zombie that looks alive to nobody but `ps`.
    assert main(["down"]) == 0
    assert f"hub stopped (process {process.pid})" in capfd.readouterr().out
    assert process.wait(60) == 0
    assert main(["down"]) == 0
    assert "nothing runs here" in capfd.readouterr().out
    assert main(["ps"]) == 1


def test_a_hub_that_cannot_start_says_why(running_hub, clean_environment):
    second = start_daemon(clean_environment, "hub", ["--port", "0"], to_file=True)
    with pytest.raises(DaemonFailed, match="ended at once") as caught:
        wait_for_hub(clean_environment, second)
    assert (
        f"a hub already runs with {clean_environment} (process {running_hub[0].pid})" in caught.value.message
    )
    assert second.returncode == 1


def test_a_pid_that_belongs_to_somebody_else_is_left_alone(clean_environment, tmp_path, capfd):
    """Its arguments may say what they like, and its pid may stand in every file of the home."""
    notes = tmp_path / "dray-notes"
    notes.write_text("dray hub --home ...\n")
    stranger = subprocess.Popen(["tail", "-f", notes], stdout=subprocess.DEVNULL)
    try:
        mark = json.dumps({"url": "http://127.0.0.1:1", **describe_process(stranger.pid)})
        for name in ("hub.json", "agent.json", "hub.lock", "agent.lock"):
            (clean_environment / name).write_text(mark)
        assert main(["down"]) == 0
        assert "nothing runs here" in capfd.readouterr().out
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_lock_whose_file_names_an_earlier_process_gets_nobody_signalled(clean_environment, capfd):
    """A daemon is killed between taking the lock and saying who it is; the pid before it belongs to another now."""
    stranger = subprocess.Popen(["sleep", "60"])
    mark = {**describe_process(stranger.pid), "start": 1}
    try:
        with hold(clean_environment, "hub"):
            (clean_environment / "hub.lock").write_text(json.dumps(mark))
            assert main(["down"]) == 1
        assert "stop it where it was started" in capfd.readouterr().err
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("copy", [["cp", "-a"], ["cp", "-al"]], ids=["copied", "hard-linked"])
def test_down_in_a_copied_home_leaves_the_originals_hub_alone(
    running_hub, clean_environment, tmp_path, capfd, copy
):
    process, _ = running_hub
    subprocess.run([*copy, clean_environment, tmp_path / "copy"], check=True)
    assert main(["down", "--home", str(tmp_path / "copy")]) == 0
    assert "nothing runs here" in capfd.readouterr().out
    # Nor does it speak to that hub, neither its user nor its agent: no hub runs here.
    assert main(["ps", "--home", str(tmp_path / "copy")]) == 1
    assert "no hub is running here" in capfd.readouterr().err
    assert process.poll() is None
    assert holder_pid(clean_environment, "hub") == process.pid


def test_up_starts_a_hub_though_its_own_pid_stands_in_the_files(clean_environment, wait_until):
    """As in a container with a persistent home, whose processes get the same few pids each time."""
    script = (
        "import json, os, sys; from pathlib import Path\n"
        "from dray.presence import describe_self; from dray.cli.main import main\n"
        "for name in ('hub.json', 'hub.lock', 'agent.lock'):\n"
        "    with open(os.path.join(os.environ['DRAY_HOME'], name), 'w') as file:\n"
        "        json.dump({'url': 'http://127.0.0.1:9', **describe_self(Path(os.environ['DRAY_HOME']))}, file)\n"
        "sys.exit(main(['up', '-d', '-o', 'json', '--port', '0']))"
    )
    try:
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        told = json.loads(ran.stdout)
        assert not told["already_running"]
        assert told["hub_pid"] == holder_pid(clean_environment, "hub") != 0
        assert told["agent_pid"] == holder_pid(clean_environment, "agent") != 0
    finally:
        assert main(["down"]) == 0
    # With nothing to run, nothing is left of the pair: the supervisor goes with its agent.
    supervisor = json.loads((clean_environment / "worker" / "supervisor.json").read_text())["pid"]
    wait_until(lambda: (info := look_up(supervisor)) is None or not info.alive)


def test_a_hub_that_is_stopped_still_runs_and_a_zombie_does_not(running_hub, clean_environment, wait_until):
    process, _ = running_hub
    process.send_signal(signal.SIGSTOP)
    try:
        assert holder_pid(clean_environment, "hub") == process.pid
    finally:
        process.send_signal(signal.SIGCONT)
    process.kill()
    # Nobody waits for it: it stays in the process table, and holds nothing.
    wait_until(lambda: (info := look_up(process.pid)) is not None and info.state == "Z")
    assert find_holder(clean_environment, "hub") is None


def test_a_second_agent_of_a_home_is_told_of_the_first(clean_environment):
    with hold(clean_environment, "agent"):
        ran = subprocess.run(
            [sys.executable, "-m", "dray.cli.main", "worker", "start"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 1
    assert f"an agent already runs with {clean_environment} (process {os.getpid()})" in ran.stderr


def test_an_agent_ends_with_its_home(clean_environment, wait_until):
    """Whatever comes to lie in its place gets an agent of its own, and the two would fight for one name."""
    agent = subprocess.Popen(
        [sys.executable, "-m", "dray.cli.main", "worker", "start"], stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until((clean_environment / "worker" / "supervisor.json").exists)
        (clean_environment / "agent.lock").unlink()
        said = agent.communicate(timeout=60)[1]
    finally:
        agent.kill()
        agent.wait()
    assert agent.returncode == 1
    assert f"the home {clean_environment} was removed or replaced" in said


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"pid": "7"}', '{"pid": 4194311, "start": 0}'])
def test_a_held_lock_with_nonsense_in_it_is_held_by_nobody_known(clean_environment, content):
    with hold(clean_environment, "agent"):
        (clean_environment / "agent.lock").write_text(content)
        assert holder_pid(clean_environment, "agent") == 0
        assert not stop_daemon(clean_environment, "agent")
    assert find_holder(clean_environment, "agent") is None
    assert stop_daemon(clean_environment, "agent")


def test_the_tail_of_a_log_goes_behind_a_message(tmp_path):
    assert read_tail(tmp_path, "hub") == ""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "hub.log").write_text("".join(f"line {number}\n" for number in range(20)))
    text = read_tail(tmp_path, "hub", lines=2)
    assert text.endswith(":\n  line 18\n  line 19")


def test_worker_detect_tells_what_this_machine_has(clean_environment, capfd):
    assert main(["worker", "detect", "-o", "json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["capability"]["cpu_count"] > 0
    assert main(["worker", "detect"]) == 0
    assert "usable" in capfd.readouterr().out


def test_worker_detect_has_one_number_for_the_memory(clean_environment, capfd):
    assert main(["worker", "detect"]) == 0
    said = capfd.readouterr().out
    (listed,) = re.findall(r"^memory +(\S+)", said, re.MULTILINE)
    (told,) = re.findall(r"^note: memory: (\S+?),? ", said, re.MULTILINE)
    assert told == listed


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["hub", "--port", "99999"], "--port"),
        (["up", "--label", "zone"], "is not a label"),
        (["worker", "start", "--label", "zone"], "is not a label"),
        (["worker", "start", "--resource", "license"], "is not a resource"),
        (["worker", "start", "--resource", "license=-1"], "is not a resource"),
        (["worker", "start", "--name", "a b"], "--name: must be 1 to 128 letters"),
        (["worker", "start", "--backend", "cuda"], "--backend: must be one of"),
    ],
)
def test_wrong_flags_start_nothing(clean_environment, capfd, arguments, part):
    assert main(arguments) in (1, 2)
    assert part in capfd.readouterr().err
    assert not list(clean_environment.iterdir())
