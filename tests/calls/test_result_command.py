"""`dray result` against a real hub and runner: values shown on the user's side, long after the client has gone."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dray
from dray.cli.main import main
from dray.client.private import PrivateHub
from dray.functions.values import unpack

LIMIT_S = 60.0


class Said(NamedTuple):
    code: int
    out: bytes
    err: str


def greet(name: str) -> str:
    return f"hello {name}"


def give(value: Any) -> Any:
    return value


def complain(text: str) -> None:
    raise ValueError(text)


def halves(number: int) -> float:
    if number == 2:
        raise ZeroDivisionError("no two")
    return number / 2


@pytest.fixture
def run(cluster: PrivateHub, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("DRAY_HOME", str(cluster.home))

    def call(*words: str) -> Said:
        out, err = io.TextIOWrapper(io.BytesIO(), write_through=True), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["result", *words])
            sys.stdout.flush()
        return Said(code, out.buffer.getvalue(), err.getvalue())

    return call


def ended(hub: dray.Hub, function: Any, *args: Any) -> str:
    job = hub.submit(function, *args)
    job.exception(LIMIT_S)
    return str(job.id)


def test_text_and_bytes_come_as_they_are_the_rest_as_python_writes_it(hub: dray.Hub, run: Any) -> None:
    assert run(ended(hub, greet, "ada")) == Said(0, b"hello ada\n", "")
    assert run(ended(hub, give, b"\x00\xff")) == Said(0, b"\x00\xff", "")
    assert run(ended(hub, give, {"a": (1, 2)})) == Said(0, b"{'a': (1, 2)}\n", "")
    assert run(ended(hub, give, None)) == Said(0, b"None\n", "")
    large = ended(hub, give, "x" * 200_000)
    assert run(large).out == b"x" * 200_000 + b"\n"


def test_what_was_raised_goes_to_stderr(hub: dray.Hub, run: Any) -> None:
    failed = ended(hub, complain, "not so")
    said = run(failed)
    assert (said.code, said.out) == (1, b"")
    assert "ValueError: not so" in said.err
    assert "complain" in said.err
    shown = json.loads(run(failed, "-o", "json").out)
    assert (shown["state"], shown["error"]) == ("failed", "ValueError: not so")


def test_a_map_is_shown_line_by_line_or_one_by_one(hub: dray.Hub, run: Any) -> None:
    results = hub.map(halves, range(4), return_exceptions=True)
    job = results.job
    assert len(list(results)) == 4
    said = run(job)
    assert (said.code, said.out) == (1, b"0\t0.0\n1\t0.5\n3\t1.5\n")
    assert "2: ZeroDivisionError: no two" in said.err
    assert run(f"{job}/3") == Said(0, b"1.5\n", "")
    assert json.loads(run(f"{job}/1", "-o", "json").out)["value"] == 0.5
    assert run(f"{job}/9").code != 0


def test_bytes_are_taken_away_unopened(hub: dray.Hub, run: Any, tmp_path: Path) -> None:
    path = tmp_path / "value"
    assert run(ended(hub, give, [1, 2, 3]), "--file", str(path)).code == 0
    assert unpack(path.read_bytes()) == [1, 2, 3]


def test_there_is_nothing_to_show(hub: dray.Hub, run: Any) -> None:
    said = run("nobody")
    assert said.code != 0
    assert "no job" in said.err
    command = hub.submit(["true"])
    command.wait(LIMIT_S)
    said = run(command.id)
    assert said.code != 0
    assert "command" in said.err
