"""`dray result` against a real hub and runner: values shown on the user's side, long after the client has gone."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dray
from dray.cli.main import main
from dray.client.faces.private_hub import PrivateHub
from dray.client.reach.discovery import find_target
from dray.client.reach.http import connect
from dray.config import ClientConfig
from dray.errors import DrayError
from dray.functions.failures import RemoteError
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


class Trap:
    """Opened where it was not made, it leaves a file behind."""

    def __init__(self, path: str) -> None:
        self._made_in, self._path = os.getpid(), path

    def __reduce__(self) -> Any:
        # On the way to the worker it stays what it is: only what the worker sends back does something.
        return (
            (_rebuild, (self._path,)) if os.environ.get("DRAY_IN_CALL") is None else (_touch, (self._path,))
        )


class Sprung(Exception):
    def __reduce__(self) -> Any:
        return _touch_for_exception, (self.args[0],)


def _rebuild(path: str) -> Trap:
    return Trap(path)


def _touch(path: str) -> str:
    Path(path).touch()
    return path


def _touch_for_exception(path: str) -> Exception:
    if not os.environ.get("DRAY_IN_CALL"):
        _touch(path)
    return Sprung(path)


def spring(path: str) -> None:
    raise Sprung(path)


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


def count_requests(cluster: PrivateHub) -> int:
    """How many HTTP requests the hub has answered."""
    target = find_target(ClientConfig(home=cluster.home))
    connection = connect(target, LIMIT_S)
    lines = connection.ask("GET", "/metrics").read().decode().splitlines()
    connection.close()
    return round(
        sum(float(line.split()[-1]) for line in lines if line.startswith("dray_http_requests_total"))
    )


def test_text_and_bytes_come_as_they_are_the_rest_as_python_writes_it(hub: dray.Hub, run: Any) -> None:
    assert run(ended(hub, greet, "ada"))[:2] == (0, b"hello ada\n")
    assert run(ended(hub, give, b"\x00\xff"))[:2] == (0, b"\x00\xff")
    assert run(ended(hub, give, {"a": (1, 2)}))[:2] == (0, b"{'a': (1, 2)}\n")
    assert run(ended(hub, give, None))[:2] == (0, b"None\n")
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
    assert run(f"{job}/3")[:2] == (0, b"1.5\n")
    assert json.loads(run(f"{job}/1", "-o", "json").out)["value"] == 0.5
    assert run(f"{job}/9").code != 0


def test_results_are_read_in_pages(cluster: PrivateHub, hub: dray.Hub, run: Any) -> None:
    results = hub.map(halves, range(10, 1210))
    assert len(list(results)) == 1200
    before = count_requests(cluster)
    assert len(run(results.job).out.splitlines()) == 1200
    assert count_requests(cluster) - before < 10


def test_type_size_and_origin_are_said_first(hub: dray.Hub, run: Any) -> None:
    (worker,) = [worker["id"] for worker in hub.workers()]
    user = hub.ping()["user"]
    job = ended(hub, greet, "ada")
    assert run(job).err == f"dray: str, 40 bytes, made by {worker} for {user}\n"
    shown = json.loads(run(job, "-o", "json").out)
    assert {name: shown[name] for name in ("type", "worker", "user")} == {
        "type": "str",
        "worker": worker,
        "user": user,
    }
    assert "pickle of pathlib." in run(ended(hub, give, Path("/"))).err


def test_values_of_others_stay_closed_without_trust(
    cluster: PrivateHub, hub: dray.Hub, run: Any, tmp_path: Path
) -> None:
    """An admin sees everybody's jobs; what is in their values would run with the admin's rights."""
    path = tmp_path / "ran"
    job = hub.submit(functools.partial(give, Trap(str(path))), user="mallory").id
    hub.wait(job, LIMIT_S)
    said = run(job)
    assert (said.code, said.out) == (1, b"")
    assert "pickle of " in said.err
    assert "for mallory" in said.err
    assert "--trust" in said.err
    assert json.loads(run(job, "-o", "json").out)["user"] == "mallory"
    results = hub.map(give, [Trap(str(path))] * 2, user="mallory")
    results.await_recorded()
    hub.wait(results.job, LIMIT_S)
    listed = run(results.job)
    assert listed.code == 1
    assert [line.split(b"\t")[0] for line in listed.out.splitlines()] == [b"0", b"1"]
    with pytest.raises(DrayError, match="trust=True"):
        hub.job(job).result(LIMIT_S)
    assert not path.exists()
    assert run(job, "--trust").code == 0
    assert path.exists()
    path.unlink()
    hub.job(job).result(LIMIT_S, trust=True)
    assert path.exists()


def test_results_that_are_not_plain_data_are_refused_where_that_is_asked_for(
    cluster: PrivateHub, tmp_path: Path
) -> None:
    path = tmp_path / "ran"
    with dray.connect(home=cluster.home, safe_results="json") as safe:
        plain = {"a": [1, 2.5, None, "x"], "b": (b"y", {3})}
        assert safe.submit(give, plain).result(LIMIT_S) == plain
        assert list(safe.map(give, range(3))) == [0, 1, 2]
        large = "x" * 200_000
        assert list(safe.map(give, [large])) == [large]
        with pytest.raises(DrayError, match="only plain data"):
            safe.submit(give, Trap(str(path))).result(LIMIT_S)
        with pytest.raises(DrayError, match="only plain data"):
            list(safe.map(give, [Trap(str(path))]))
        with pytest.raises(DrayError, match="only plain data"):
            list(safe.map(give, [[Trap(str(path)), large]]))
        with pytest.raises(RemoteError, match="ValueError: not so"):
            safe.submit(complain, "not so").result(LIMIT_S)
        with pytest.raises(RemoteError, match="Sprung"):
            safe.submit(spring, str(path)).result(LIMIT_S)
    assert not path.exists()


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
