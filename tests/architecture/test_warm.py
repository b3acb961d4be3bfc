"""A command that is forked from the server is told apart from one that is started by what the kernel shows alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests import warm

DRAY = (sys.executable, "-P", "-m", "dray.cli.main")


@pytest.mark.parametrize(
    "words",
    [("version",), ("no-such-command",), ("config", "show"), ("submit", "--file", "missing.yaml")],
    ids=lambda words: words[0],
)
def test_words_codes_and_output_are_the_same(words, tmp_path):
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "DRAY_HOME": str(tmp_path / "h"),
        "LANG": "C.UTF-8",
    }
    forked = warm.run([*DRAY, *words], 60, env=env, cwd=tmp_path)
    started = subprocess.run(
        [*DRAY, *words], env=env, cwd=tmp_path, capture_output=True, stdin=subprocess.DEVNULL, check=False
    )
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        started.returncode,
        started.stdout,
        started.stderr,
    )


def test_it_has_a_session_a_folder_and_an_end_of_its_own(tmp_path, wait_until):
    command = [*DRAY, "hub", "--home", str(tmp_path), "--port", "0"]
    with warm.Popen[bytes](
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path, start_new_session=True
    ) as hub:
        assert hub.stdout is not None
        assert hub.stdout.readline().startswith(b"ready ")
        assert os.getsid(hub.pid) == hub.pid
        assert Path(f"/proc/{hub.pid}/cwd").samefile(tmp_path)
        assert psutil.Process(hub.pid).cmdline()[: len(command)] == command
        assert hub.poll() is None
        hub.kill()
        assert hub.wait(60) == -signal.SIGKILL
        with pytest.raises(ProcessLookupError):
            os.kill(hub.pid, 0)


def test_what_a_fork_cannot_honour_is_started(tmp_path):
    done = warm.Popen([*DRAY, "version"], stdout=subprocess.DEVNULL, preexec_fn=lambda: os.nice(1))
    assert done.wait(60) == 0
    assert warm.run([sys.executable, "-c", "print(7)"], 60).stdout == b"7\n"


def test_the_command_of_a_shell_ends_as_what_it_asked_for_does(tmp_path, wait_until):
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DRAY_HOME": str(tmp_path / "h")}
    assert warm.write_command(tmp_path, env)
    dray = str(tmp_path / "dray")
    refused = subprocess.run([dray, "no-such-command"], env=env, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "no-such-command" in refused.stderr
    ready = tmp_path / "h" / "hub.json"
    for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
        with subprocess.Popen([dray, "hub", "--port", "0"], env=env, stdout=subprocess.DEVNULL) as asked:
            try:
                wait_until(ready.exists, what="the hub is ready")
                pid = json.loads(ready.read_text())["pid"]
                assert pid != asked.pid
                # It hands on what can be handed on; what cannot hits the hub, and it ends alike.
                os.kill(asked.pid if number == signal.SIGTERM else pid, number)
                assert asked.wait(60) == code
            finally:
                asked.terminate()
        ready.unlink(missing_ok=True)


def test_hubs_that_the_command_of_a_shell_starts_are_forked_too(tmp_path, short_tmp):
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DRAY_HOME": str(short_tmp / "h")}
    assert warm.write_command(tmp_path, env)
    dray = str(tmp_path / "dray")
    try:
        up = subprocess.run([dray, "up", "-d", "--port", "0"], env=env, capture_output=True, check=False)
        assert up.returncode == 0, up.stderr
        hub = psutil.Process(json.loads((short_tmp / "h" / "hub.json").read_text())["pid"])
        assert any(warm.__file__ in process.cmdline() for process in hub.parents())
    finally:
        down = subprocess.run([dray, "down"], env=env, capture_output=True, check=False)
    assert down.returncode == 0, down.stderr
