"""Ctrl-C on real processes: it cancels a run, leaves a wait, and a second one leaves at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

DRAY = [sys.executable, "-m", "dray.cli.main"]


@pytest.fixture
def start(clean_environment):
    started: list[subprocess.Popen[str]] = []

    def launch(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*DRAY, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "DRAY_HOME": str(clean_environment)},
        )
        started.append(process)
        return process

    yield launch
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_ctrl_c_cancels_a_run(hub, start):
    hub.on_submit = lambda spec: {"state": "running"}
    process = start("run", "--", "sleep", "60")
    hub.wait_asked("GET", "/jobs/j1", 2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "dray: cancelling j1; Ctrl-C again leaves at once" in said
    assert "j1 has ended" in said
    assert hub.jobs["j1"]["cancel_requested"]
    assert "Traceback" not in said


def test_a_second_ctrl_c_leaves_at_once(hub, start, job):
    hub.on_submit = lambda spec: {"state": "running"}
    hub.canned["POST", "/jobs/j1/cancel"] = (200, job("j1", cancel_requested=True))
    process = start("run", "--", "sleep", "60")
    hub.wait_asked("GET", "/jobs/j1", 2)
    asked = len(hub.asked("GET", "/jobs/j1"))
    process.send_signal(signal.SIGINT)
    hub.wait_asked("POST", "/jobs/j1/cancel")
    hub.wait_asked("GET", "/jobs/j1", asked + 2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "left: j1 may still run" in said
    assert "Traceback" not in said


def test_ctrl_c_while_the_hub_is_away_says_that_the_job_may_still_run(hub, start):
    hub.on_submit = lambda spec: {"state": "running"}
    process = start("run", "--", "sleep", "60")
    hub.wait_asked("GET", "/jobs/j1", 2)
    hub.stop()
    assert process.stderr is not None
    first = process.stderr.readline()
    assert "trying again for up to 10 min" in first
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the hub is away, so j1 could not be cancelled and may still run: `dray cancel j1`" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("arguments", [["wait", "a"], ["logs", "-f", "a"], ["events", "-f"]])
def test_ctrl_c_leaves_what_only_looks(hub, start, arguments):
    hub.set("a", state="running")
    process = start(*arguments)
    path = {"wait": "/jobs/a", "logs": "/jobs/a/logs", "events": "/events"}[arguments[0]]
    hub.wait_asked("GET", path, 2 if arguments[0] == "wait" else 1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert not hub.asked("POST", "/jobs/a/cancel")


def test_a_reader_that_leaves_ends_the_command_quietly(hub, start):
    hub.set("a", state="running")
    hub.output["a"] = b"line\n" * 10
    process = start("logs", "-f", "a")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    for _ in range(200):
        hub.write("a", b"line\n" * 100)
        if process.poll() is not None:
            break
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    assert process.returncode == 141
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stdout = None


def test_a_run_whose_reader_leaves_still_exits_as_the_job_did(hub, start):
    hub.on_submit = lambda spec: {"state": "running"}
    process = start("run", "--", "true")
    hub.wait_asked("GET", "/jobs/j1/logs")
    assert process.stdout is not None
    process.stdout.close()
    hub.write("j1", b"line\n" * 1000)
    hub.wait_asked("GET", "/jobs/j1", 2)
    hub.set("j1", state="failed", exit_code=6, exit_class="code")
    assert process.wait(60) == 6
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stdout = None


def test_output_nobody_reads_is_no_error(hub, clean_environment):
    hub.set("a")
    env = {**os.environ, "DRAY_HOME": str(clean_environment)}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*DRAY, "show", "a"], stdout=writing, stderr=subprocess.PIPE, env=env, timeout=30, check=False
    )
    os.close(writing)
    assert done.returncode == 141
    assert done.stderr == b""
