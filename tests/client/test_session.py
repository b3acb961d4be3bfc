"""`dray.session()` outside of a task, and in processes that fork, end at once or have no agent."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import dray
from dray.client.session import Session

HEAVY = ("asyncio", "msgspec", "numpy", "websockets", "click", "typing")


def test_outside_of_a_task_nothing_happens(capfd: pytest.CaptureFixture[str]) -> None:
    session = Session({})
    session.progress(step=1, fraction=0.5, note="x")
    session.saved(3)
    session.finished()
    assert (session.should_stop(), session.stop_reason, session.wait_stop()) == (False, "", False)
    assert (session.task_id, session.attempt, session.rank, session.world_size) == ("", 0, 0, 1)
    assert (session.devices, session.active, session.close()) == ((), False, True)
    assert capfd.readouterr() == ("", "")


def test_one_process_has_one_session() -> None:
    assert dray.session() is dray.session()


def test_nonsense_in_the_environment_is_no_trouble() -> None:
    session = Session({"DRAY_ATTEMPT": "x", "RANK": "", "WORLD_SIZE": "many", "DRAY_DEVICES": "a,,2"})
    assert (session.attempt, session.rank, session.world_size, session.devices) == (0, 0, 1, (2,))


@pytest.mark.parametrize("call", ["saved('x')", "progress(step='x')", "progress(fraction='x')"])
def test_arguments_that_make_no_sense_are_the_callers_mistake_anywhere(call: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        eval(f"Session({{}}).{call}")  # noqa: S307 - three fixed calls


def test_an_agent_that_is_not_there_costs_nothing(tmp_path) -> None:
    session = Session({"DRAY_SESSION": str(tmp_path / "none.sock"), "DRAY_ATTEMPT_UID": "1-1"})
    for step in range(1000):
        session.progress(step=step)
        assert session.should_stop() is False
    assert session.close(0.05) is False


def test_importing_it_loads_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules); import dray; dray.session();"
        f"print(*sorted(({{*sys.modules}} - before) & {{{', '.join(map(repr, HEAVY))}}}))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.split() == []


def shell(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
    command = [sys.executable, "-m", "dray.cli.task_session", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**clean, **env})


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["progress", "--fraction", "0.5", "--note", "epoch 3"], 0),
        (["saved", "5"], 0),
        (["finished"], 0),
        (["should-stop"], 1),
        (["wait-stop"], 1),
    ],
)
def test_the_shell_command_is_harmless_outside_of_a_task(words: list[str], code: int) -> None:
    done = shell(*words)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize(
    "words", [[], ["saved"], ["saved", "-1"], ["saved", "x"], ["progress", "--fraction", "x"]]
)
def test_the_shell_command_says_how_it_is_used(words: list[str]) -> None:
    done = shell(*words)
    assert done.returncode == 2
    assert "usage: dray-session" in done.stderr


def test_the_shell_command_says_when_nobody_is_there(tmp_path) -> None:
    done = shell("progress", "--step", "1", DRAY_SESSION=str(tmp_path / "none"), DRAY_ATTEMPT_UID="1-1")
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr
