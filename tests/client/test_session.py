"""`dray.session()` outside of a task, and in processes that fork, end at once or have no agent."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import dray
from dray.client.futures.task_session import Session

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


class OneTasksAgent:
    """The other end of one task's line, by hand."""

    def __init__(self, path: str) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen()
        self._server.settimeout(20)
        self._line: socket.socket | None = None
        self._heard: list[str] = []

    def hear(self) -> str:
        """The next word that the task says."""
        if self._line is None:
            self._line = self._server.accept()[0]
            self._line.settimeout(20)
        while not self._heard:
            words = [next(iter(json.loads(line))) for line in self._line.recv(4096).splitlines()]
            self._heard += [word for word in words if word != "hello"]
        return self._heard.pop(0)

    def grant(self) -> None:
        assert self._line is not None
        self._line.sendall(b'{"resumed": {}}\n')

    def close(self) -> None:
        self._server.close()
        if self._line is not None:
            self._line.close()


@pytest.fixture
def task() -> Iterator[tuple[Session, OneTasksAgent]]:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "s")
        agent = OneTasksAgent(path)
        session = Session({"DRAY_SESSION": path, "DRAY_ATTEMPT_UID": "1-1"})
        yield session, agent
        session.close(0)
        agent.close()


def test_a_wait_that_begins_while_another_takes_the_slot_back_gives_it_up_again(
    task: tuple[Session, OneTasksAgent],
) -> None:
    session, agent = task
    session.yield_slot()
    assert agent.hear() == "yield"
    first = threading.Thread(target=session.resume_slot)
    first.start()
    assert agent.hear() == "resume"
    session.yield_slot()  # there is none at this moment: nothing to say, and nothing to wait for
    agent.grant()
    assert agent.hear() == "yield"
    first.join(20)
    assert not first.is_alive()
    last = threading.Thread(target=session.resume_slot)
    last.start()
    assert agent.hear() == "resume"
    agent.grant()
    last.join(20)
    assert not last.is_alive()


def test_a_slot_that_was_not_had_in_time_is_taken_before_it_is_given_up_again(
    task: tuple[Session, OneTasksAgent],
) -> None:
    session, agent = task
    session.yield_slot()
    assert agent.hear() == "yield"
    assert session.resume_slot(0.01) is False
    assert agent.hear() == "resume"
    again = threading.Thread(target=session.yield_slot)
    again.start()
    agent.grant()
    assert agent.hear() == "yield"
    again.join(20)
    assert not again.is_alive()


def shell(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
    command = [sys.executable, "-m", "dray.cli.dray_session", *words]
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
