"""A command that is forked from the server is told apart from one that is started by what the kernel shows alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

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
        assert hub.poll() is None
        hub.kill()
        assert hub.wait(60) == -signal.SIGKILL
        with pytest.raises(ProcessLookupError):
            os.kill(hub.pid, 0)


def test_what_a_fork_cannot_honour_is_started(tmp_path):
    done = warm.Popen([*DRAY, "version"], stdout=subprocess.DEVNULL, preexec_fn=lambda: os.nice(1))
    assert done.wait(60) == 0
    assert warm.run([sys.executable, "-c", "print(7)"], 60).stdout == b"7\n"
