"""Ids that do not lie: what is there already is never taken for what was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.hub.asking import ask

from dray.cli.main import main
from dray.testing import RunningHub, make_spec, running_hub

PIPELINE = """
- {id: prep, command: [echo, prep]}
- {id: train, command: [echo, train], after: [ok:prep]}
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningHub]:
    """A hub without a worker: whatever waits, waits on."""
    with running_hub() as hub:
        yield hub


@pytest.fixture
def hub(shared: RunningHub, speak_to: Callable[[RunningHub], RunningHub]) -> RunningHub:
    return speak_to(shared)


def job(hub: RunningHub, job_id: str) -> Any:
    return ask(hub, "GET", f"/jobs/{job_id}")[1]


def test_a_repeated_id_is_refused_with_since_when_and_which_difference(hub, capsys):
    assert main(["submit", "--id", "one", "--", "true"]) == 0
    assert capsys.readouterr().out == "one\n"
    assert main(["submit", "--id", "one", "--", "true"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "exists since 20" in said.err
    assert "UTC (pending), with the same spec" in said.err
    assert main(["submit", "--id", "one", "--priority", "7", "--label", "a=b", "--", "false"]) == 2
    err = capsys.readouterr().err
    assert "which differs: command false, was true" in err
    assert "priority 7, was not given" in err
    assert "--if-absent leaves it as it is" in err
    assert main(["run", "--id", "one", "--", "true"]) == 125, "nor is it watched as if it were this one"


def test_the_same_file_again_is_refused_left_alone_or_submitted_anew(hub, capsys, tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text(PIPELINE)
    assert main(["submit", str(path)]) == 0
    assert capsys.readouterr().out.split() == ["prep", "train"]
    assert main(["submit", str(path)]) == 2
    err = capsys.readouterr().err
    assert "prep exists since" in err
    assert "train exists since" in err

    assert main(["submit", "--if-absent", str(path)]) == 0
    said = capsys.readouterr()
    assert said.out.split() == ["prep", "train"]
    assert said.err.count("with the same spec: left as it is") == 2

    path.write_text(PIPELINE + "- {id: test, command: [echo, test], after: [ok:train]}\n")
    assert main(["submit", "--if-absent", str(path), "-o", "json"]) == 0
    notes = [made.get("note", "") for made in json.loads(capsys.readouterr().out)["jobs"]]
    assert [bool(note) for note in notes] == [True, True, False], "what is new is submitted"

    assert main(["submit", "--new", str(path)]) == 0
    assert capsys.readouterr().out.split() == ["prep.2", "train.2", "test.2"]
    assert job(hub, "train.2")["spec"]["after"] == ["ok:prep.2"], "ids of a file are those of its submission"
    assert job(hub, "prep")["state"] == "pending"

    assert main(["submit", "--replace", str(path)]) == 0
    assert capsys.readouterr().out.split() == ["prep.3", "train.3", "test.3"]
    assert [job(hub, name)["state"] for name in ("prep", "prep.2", "prep.3")] == [
        "killed",
        "killed",
        "pending",
    ]


def test_what_is_refused_replaces_nothing(hub, capsys):
    assert main(["submit", "--id", "kept", "--", "true"]) == 0
    assert main(["submit", "--id", "kept", "--replace", "--queue", "none such", "--", "true"]) != 0
    assert job(hub, "kept")["state"] == "pending"
    assert main(["submit", "--id", "kept", "--replace", "--new", "--", "true"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_a_key_stays_a_retry_of_the_same_request(hub, capsys):
    words = ["submit", "--id", "keyed", "--key", "k1", "--", "true"]
    assert main(words) == 0
    assert main(words) == 0
    assert capsys.readouterr().out == "keyed\nkeyed\n"
    for mode, status in (("same", 200), ("refuse", 200), ("keep", 200)):
        headers = {"Idempotency-Key": "k2"}
        spec = make_spec("true", id="again")
        first, _ = ask(hub, "POST", "/jobs", spec, headers)
        assert first in (200, 201)
        assert ask(hub, "POST", f"/jobs?exists={mode}", spec, headers)[0] == status
    assert ask(hub, "POST", "/jobs", make_spec("true", id="again"))[0] == 200
    assert ask(hub, "POST", "/jobs?exists=refuse", make_spec("true", id="again"))[0] == 409
    bob = hub.make_token("bob")
    answer = ask(hub, "POST", "/jobs?exists=keep", make_spec("x", id="again"), token=bob)
    assert (answer[0], "since" in str(answer[1])) == (409, False), "nobody is told of others' jobs"
