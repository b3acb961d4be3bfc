"""A real hub as a process: found by its files, stopped cleanly, and no stranger signalled in its place."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from dray.cli.daemons import (
    DaemonFailed,
    forget_agent,
    note_agent,
    read_pid,
    read_tail,
    start_daemon,
    stop_daemon,
    wait_for_hub,
)
from dray.cli.main import main


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
    assert read_pid(clean_environment, "hub") == process.pid
    assert main(["submit", "-J", "x", "--", "true"]) == 0
    job_id = capfd.readouterr().out.strip()
    assert main(["ps", "-o", "json"]) == 0
    assert [job["id"] for job in json.loads(capfd.readouterr().out)["jobs"]] == [job_id]
    assert main(["up"]) == 1
    assert f"a hub already runs here: {note['url']}" in capfd.readouterr().err
    # Its parent must collect it, or it would stay a zombie that looks alive to nobody but `ps`.
    assert main(["down"]) == 0
    assert f"hub stopped (process {process.pid})" in capfd.readouterr().out
    assert process.wait(10) == 0
    assert main(["down"]) == 0
    assert "nothing runs here" in capfd.readouterr().out
    assert main(["ps"]) == 1


def test_a_hub_that_cannot_start_says_why(running_hub, clean_environment):
    second = start_daemon(clean_environment, "hub", ["--port", "0"], to_file=True)
    with pytest.raises(DaemonFailed, match="ended at once") as caught:
        wait_for_hub(clean_environment, second)
    assert "another hub holds" in caught.value.message
    assert second.returncode == 1


def test_a_pid_that_belongs_to_somebody_else_is_left_alone(clean_environment, capfd):
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        (clean_environment / "hub.json").write_text(
            json.dumps({"url": "http://127.0.0.1:1", "pid": stranger.pid})
        )
        assert read_pid(clean_environment, "hub") == 0
        assert main(["down"]) == 0
        assert "nothing runs here" in capfd.readouterr().out
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"pid": "7"}', '{"pid": 4194311}'])
def test_nonsense_in_a_pid_file_is_nobody(clean_environment, content):
    (clean_environment / "agent.json").write_text(content)
    assert read_pid(clean_environment, "agent") == 0


def test_an_agent_forgets_only_itself(clean_environment):
    path = note_agent(clean_environment, "w1")
    assert json.loads(path.read_text()) == {"pid": os.getpid(), "name": "w1"}
    path.write_text(json.dumps({"pid": 1, "name": "w1"}))
    forget_agent(path)
    assert path.exists()
    note_agent(clean_environment, "w1")
    forget_agent(path)
    assert not path.exists()


def test_a_daemon_that_is_gone_counts_as_stopped():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert stop_daemon(process.pid)


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
