"""cancel, hold, release and requeue by what jobs are: a count, a question on a terminal, one request."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.hub.asking import ask

from dray.cli.main import main
from dray.testing import RunningHub, make_spec, running_hub


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningHub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture
def hub(shared: RunningHub, speak_to: Callable[[RunningHub], RunningHub]) -> RunningHub:
    return speak_to(shared)


def submit(hub: RunningHub, count: int, **fields: Any) -> list[str]:
    return [job["id"] for job in ask(hub, "POST", "/jobs:batch", [make_spec("true", **fields)] * count)[1]]


def pending(hub: RunningHub, name: str) -> int:
    return len(ask(hub, "GET", f"/jobs?name={name}&state=pending")[1]["jobs"])


def test_without_a_terminal_it_takes_a_yes(hub, capsys):
    submit(hub, 3, name="sweep-1")
    assert main(["cancel", "--name", "sweep-*"]) == 2
    assert "cancel 3 jobs (3 pending)" in (said := capsys.readouterr().err)
    assert "Say -y" in said
    assert pending(hub, "sweep-1") == 3
    assert main(["cancel", "--name", "sweep-*", "--dry-run"]) == 0
    assert "3 jobs (3 pending) of" in (said := capsys.readouterr().out)
    assert said.endswith("would be cancelled\n")
    assert main(["cancel", "--name", "sweep-*", "-y"]) == 0
    assert capsys.readouterr().out == "3 jobs are cancelled\n"
    assert pending(hub, "sweep-1") == 0
    assert main(["cancel", "--name", "sweep-*"]) == 0, "nothing to ask about"
    assert "none that lives is meant" in capsys.readouterr().out


def test_hold_and_release_by_label(hub, capsys):
    held, *_ = submit(hub, 2, labels={"sweep": "2"})
    assert main(["hold", held]) == 0
    assert main(["hold", "--label", "sweep=2", "--state", "pending", "-y"]) == 0
    said = capsys.readouterr()
    assert "1 job is held\n" in said.out
    assert said.err == "1 left as it is: held already\n"
    assert main(["release", "--label", "sweep=2", "-y", "-o", "json"]) == 0
    assert '"count": 2' in capsys.readouterr().out


@pytest.mark.parametrize("words", [["cancel"], ["hold", "j1", "--all"], ["requeue", "--label", "x"]])
def test_what_is_neither_ids_nor_a_choice(hub, capsys, words):
    assert main(words) == 2


def test_on_a_terminal_it_asks(hub):
    submit(hub, 2, name="asked")
    for answer, left, code in (("n\n", 2, 130), ("y\n", 0, 0)):
        ours, theirs = pty.openpty()
        words = [sys.executable, "-m", "dray.cli.main", "cancel", "--name", "asked"]
        process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        said = b""
        while b"[y/N]" not in said:
            said += os.read(ours, 1024)
        assert b"cancel 2 jobs (2 pending)" in said
        os.write(ours, answer.encode())
        assert process.wait(60) == code
        os.close(ours)
        assert pending(hub, "asked") == left
