"""What a stranger, and one user of another, can find out: bad tokens, others' ids, a home that was open before."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hub.asking import ask
from tests.hub.calls_desk import client_of
from tests.hub.workers.test_owners import make

from dray.hub.access.bad_tokens import BURST, Knocks, TooManyKnocks
from dray.hub.access.tokens import make_token
from dray.hub.http.calls import ROUTES
from dray.presence import keep_private
from dray.testing import RunningHub, running_hub


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub() as made:
        yield made


# --- bad tokens -------------------------------------------------------------------------------------------------------


def test_a_flood_of_bad_tokens_is_held_back_and_told_without_them() -> None:
    with running_hub() as hub:
        guesses = [make_token("eve", ("admin",), 1)[0] for _ in range(2 * int(BURST))]
        seen = [ask(hub, "GET", "/hub", token=guess)[0] for guess in guesses]
        assert (seen[0], seen[-1], set(seen)) == (401, 429, {401, 429})
        assert ask(hub, "GET", "/hub")[0] == 200, "a good token from the same address is let in"
        said = (hub.home / "hub.err").read_text()
        assert 1 <= said.count("a bad token from this machine") <= 3
        assert not any(guess.split("_", 2)[2] in said for guess in guesses)
        (check,) = [c for c in ask(hub, "GET", "/doctor")[1]["checks"] if c["name"] == "bad tokens"]
        assert (check["ok"], "from this machine" in check["detail"]) == (False, True)


def test_each_peer_is_counted_by_itself_and_forgiven_with_time() -> None:
    now = 0.0
    knocks = Knocks(lambda: now)
    for _ in range(int(BURST)):
        knocks.miss("10.0.0.1", "no")
    with pytest.raises(TooManyKnocks):
        knocks.miss("10.0.0.1", "no")
    knocks.miss("10.0.0.2", "no")
    now += 2 * BURST
    knocks.miss("10.0.0.1", "no")
    for number in range(int(BURST)):
        knocks.miss(f"2001:db8::{number:x}", "no")
    with pytest.raises(TooManyKnocks):
        knocks.miss("2001:db8::ffff", "no")


# --- somebody else's ids ----------------------------------------------------------------------------------------------

JOB_ROUTES = [
    route for route in ROUTES if "/jobs/{id}" in route.path and set(route.scopes) & {"submit", "read"}
]


@pytest.mark.parametrize("route", JOB_ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_an_id_of_another_user_answers_like_an_unknown_one(hub: RunningHub, route: Any) -> None:
    eve = make(hub, "submit", "read", user="eve")["token"]
    _, job = ask(hub, "POST", "/jobs", {"command": ["true"], "name": "private"})
    body: Any = {"priority": 3} if route.method == "PATCH" else None

    def answer_to(job_id: str) -> tuple[int, str]:
        status, answer = ask(
            hub, route.method, route.path.removeprefix("/api/v1").replace("{id}", job_id), body, token=eve
        )
        return status, str(answer).replace(job_id, "ID")

    assert answer_to(job["id"]) == answer_to("no-such-job")
    assert answer_to(job["id"])[0] == 404


async def test_the_same_over_the_channel_and_by_reference(hub: RunningHub) -> None:
    eve = make(hub, "submit", "read", user="eve")["token"]
    _, job = ask(hub, "POST", "/jobs", {"command": ["true"]})

    def spell(reply: Any, job_id: str) -> str:
        return f"{reply.type} {reply.payload} {reply.error}".replace(job_id, "ID")

    async with client_of(hub, eve) as client:
        asked: list[tuple[str, Any]] = [
            *(
                (kind, lambda i: {"id": i})
                for kind in ("cancel", "hold", "release", "requeue", "why", "tasks", "values")
            ),
            *((kind, lambda i: {"ids": [i]}) for kind in ("get", "result", "watch", "unwatch")),
            ("edit", lambda i: {"id": i, "changes": {"priority": 2}}),
            ("collect", lambda i: {"job": i, "first": 0, "limit": 1}),
            ("calls", lambda i: {"job": i, "first": 5, "args": [b"x"]}),
            ("submit", lambda i: {"specs": [{"command": ["true"], "after": [f"ok:{i}"]}]}),
            ("plan", lambda i: {"spec": {"command": ["true"], "after": [f"ok:{i}"]}}),
            ("preemptions", lambda i: {"job": i}),
        ]
        for kind, make_payload in asked:
            there = await client.ask(kind, make_payload(job["id"]))
            unknown = await client.ask(kind, make_payload("no-such-job"))
            assert spell(there, job["id"]) == spell(unknown, "no-such-job"), kind


# --- a home that was there before -------------------------------------------------------------------------------------


def test_a_home_that_stood_open_is_closed_at_the_next_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running_hub(home=home):
        pass
    for path, mode in ((home, 0o755), (home / "token", 0o644), (home / "task_secret", 0o640)):
        path.chmod(mode)
    (home / "config.toml").write_text('[worker]\ntoken = "x"\n')
    (home / "config.toml").chmod(0o644)
    with running_hub(home=home) as hub:
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (home, *home.iterdir())}
        said = (hub.home / "hub.err").read_text()
    assert modes["home"] == 0o700
    assert {
        name: oct(mode) for name, mode in modes.items() if name in ("token", "task_secret", "config.toml")
    } == dict.fromkeys(("token", "task_secret", "config.toml"), "0o600")
    assert f"{home} had the mode 0755, which let others in: it is 0700 now" in said
    assert f"{home / 'token'} had the mode 0644" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="gives folders to another user")
def test_what_is_not_ours_alone_is_told_and_left(tmp_path: Path) -> None:
    shared, foreign = tmp_path / "shared", tmp_path / "foreign"
    for folder in (shared, foreign):
        folder.mkdir()
    shared.chmod(0o1777)
    shutil.chown(foreign, 65534)
    foreign.chmod(0o755)
    for folder, mode in ((shared, 0o1777), (foreign, 0o755)):
        (said,) = keep_private(folder)
        assert "is not this account's alone" in said
        assert stat.S_IMODE(folder.stat().st_mode) == mode
