"""A private hub is started where none is found, and ends with its program, however that ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dray.client.reach.discovery import find_silent
from dray.testing import running_hub

PROGRAM = """
import dray, os, sys, time
hub = dray.connect()
again = dray.connect()
assert again.config.home == hub.config.home
print(hub.config.home, hub.submit(lambda x: x + 1, 1).result(60), flush=True)
service = hub.serve(["sleep", "600"], cpus=0)
long = hub.submit(time.sleep, 600)
while not hub.endpoints(service):
    time.sleep(0.02)
while long.state != "running":
    time.sleep(0.02)
ending = sys.argv[1]
if ending == "killed":
    os.kill(os.getpid(), 9)
if ending == "raises":
    raise SystemExit(3)
"""


def processes_of(home: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if any(home in word for word in process.cmdline()) or home in process.environ().get(
                "DRAY_HOME", ""
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize(("ending", "code"), [("ends", 0), ("raises", 3), ("killed", -signal.SIGKILL)])
def test_it_ends_with_the_program(ending: str, code: int, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, ending],
        env={**env, "DRAY_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (code, "")
    home, value = ran.stdout.split()
    assert value == "2"
    deadline = time.monotonic() + 60
    while os.path.exists(home) or processes_of(home):
        assert time.monotonic() < deadline, processes_of(home)
        time.sleep(0.05)


TWICE = """
import dray
assert dray.connect().config.home == dray.connect().config.home
print(dray.connect().submit(abs, -2).result(60))
"""


def test_a_hub_that_was_expected_and_does_not_answer_is_told_of_once(tmp_path: Path) -> None:
    with running_hub(tmp_path / "h") as running:
        running.kill()
        address = json.loads((running.home / "hub.json").read_text())["url"]
        env = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
        ran = subprocess.run(
            [sys.executable, "-c", TWICE],
            env={**env, "DRAY_HOME": str(running.home)},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert (ran.returncode, ran.stdout) == (0, "2\n"), ran.stderr
    assert ran.stderr.count("does not answer") == 1
    assert f"{address} (named by {running.home / 'hub.json'})" in ran.stderr
    assert "`dray up`" in ran.stderr


def test_a_hub_of_another_machine_or_container_is_found_by_its_answer(tmp_path: Path) -> None:
    with running_hub(tmp_path / "h") as running:
        note = json.loads((running.home / "hub.json").read_text())
        assert find_silent(running.home) is None
        (running.home / "hub.json").write_text(json.dumps({**note, "pid": 2**22 + 1}))
        assert find_silent(running.home) is None
    (running.home / "hub.json").write_text(json.dumps({**note, "pid": 2**22 + 1}))
    assert find_silent(running.home) == note["url"]
    assert find_silent(tmp_path) == ""
