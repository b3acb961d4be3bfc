"""Whose is what: users see and change only their own, every change is on record, and secrets stay where they belong."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.e2e.cluster import Cluster, wait_for

# Words and surroundings of every process are looked at below, as the kernel shows them.
POPEN = subprocess.Popen


class Users(NamedTuple):
    """Tokens of two users."""

    ada: str
    bob: str


@pytest.fixture(scope="module")
def users(site: Cluster) -> Users:
    def make(name: str) -> str:
        answer = site.call(
            "POST", "/tokens", {"user": name, "scopes": ["submit", "read"], "shared_account": True}
        )
        return str(answer.json["token"])

    return Users(make("ada"), make("bob"))


@contextlib.contextmanager
def feed(site: Cluster, token: str) -> Iterator[list[dict[str, Any]]]:
    """The live events as one user sees them."""
    seen: list[dict[str, Any]] = []
    connection = HTTPConnection("127.0.0.1", site.port, timeout=60)
    connection.request("GET", "/api/v1/events", headers={"Authorization": f"Bearer {token}"})
    line = connection.sock
    answer = connection.getresponse()
    assert answer.status == 200

    def read() -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            seen.extend(json.loads(line[5:]) for line in answer if line.startswith(b"data:"))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield seen
    finally:
        # To close it would wait for the thread, which waits for the next sign of life.
        line.shutdown(socket.SHUT_RDWR)
        thread.join()
        answer.close()
        connection.close()


def test_a_user_sees_only_what_is_theirs(site: Cluster, users: Users) -> None:
    mine = site.submit("sh", "-c", "echo private; sleep 300", token=users.ada, name="secret-work")
    site.wait_running(mine)
    wait_for(lambda: site.logs(mine) == b"private\n", "the output arrives")
    for path in ("", "/tasks", "/events", "/why", "/logs"):
        assert site.call("GET", f"/jobs/{mine}{path}", token=users.ada).status == 200
        answer = site.call("GET", f"/jobs/{mine}{path}", token=users.bob)
        assert answer.status == 404, path
        unknown = site.call("GET", f"/jobs/no-such-job{path}", token=users.bob)
        assert answer.body.replace(mine.encode(), b"X") == unknown.body.replace(b"no-such-job", b"X"), path
    assert site.call("POST", f"/jobs/{mine}/cancel", {}, users.bob).status == 404
    assert [job["id"] for job in site.call("GET", "/jobs", token=users.bob).json["jobs"]] == []
    assert site.call("GET", "/jobs", token=users.bob, user="ada").json["jobs"] == []
    assert mine in [job["id"] for job in site.call("GET", "/jobs", token=users.ada).json["jobs"]]
    assert mine in [job["id"] for job in site.call("GET", "/jobs", user="ada").json["jobs"]], (
        "an admin sees all"
    )
    assert site.logs(mine) == b"private\n"
    worker = site.call("GET", "/workers/w1", token=users.bob)
    assert b"secret-work" not in worker.body
    assert mine.encode() not in worker.body
    assert site.call("POST", f"/jobs/{mine}/cancel", {}, users.ada).status == 200
    site.wait_state(mine, "killed")


def test_another_users_job_can_be_no_hint(site: Cluster, users: Users) -> None:
    mine = site.submit("true", token=users.ada, id="adas-own")
    taken = site.call("POST", "/jobs", {"command": ["true"], "id": mine}, users.bob)
    assert taken.status == 409
    assert b"ada" not in taken.body.replace(b"adas-own", b"")
    key = {"Idempotency-Key": "shared-key"}
    first = site.call("POST", "/jobs", {"command": ["true"]}, users.ada, key)
    second = site.call("POST", "/jobs", {"command": ["true"]}, users.bob, key)
    assert (first.status, second.status) == (201, 201), "keys are per user"
    assert first.json["id"] != second.json["id"]


def test_the_feed_shows_only_what_is_theirs(site: Cluster, users: Users) -> None:
    with feed(site, users.bob) as bobs, feed(site, users.ada) as adas, feed(site, site.token) as all_of_it:
        mine = site.submit("true", token=users.ada, name="unheard")
        site.wait_state(mine, "succeeded")
        his = site.submit("true", token=users.bob)
        site.wait_state(his, "succeeded")

        def ended(events: list[dict[str, Any]], job_id: str) -> bool:
            return any(e.get("job_id") == job_id and e["type"] == "job_ended" for e in events)

        wait_for(lambda: ended(bobs, his), "bob hears of his")
        wait_for(lambda: ended(adas, mine), "ada hears of hers")
        wait_for(lambda: ended(all_of_it, mine) and ended(all_of_it, his), "an admin hears of both")
        assert mine not in json.dumps(bobs)
        assert "unheard" not in json.dumps(bobs)
        assert his not in json.dumps(adas)


def test_submitting_for_somebody_else_needs_admin(site: Cluster, users: Users) -> None:
    spec = {"command": ["true"], "user_id": "ada"}
    assert site.call("POST", "/jobs", spec, users.bob).status == 403
    made = site.call("POST", "/jobs", spec)
    assert made.status == 201
    assert site.call("GET", f"/jobs/{made.json['id']}", token=users.ada).status == 200
    assert site.dray("submit", "--user", "ada", "--token", users.bob, "--", "true").code != 0


def test_every_change_is_on_record(site: Cluster, users: Users) -> None:
    job_id = site.submit("sleep", "300", token=users.ada)
    site.call("POST", f"/jobs/{job_id}/cancel", {}, users.ada)
    site.wait_state(job_id, "killed")
    made = site.call("POST", "/tokens", {"user": "cy", "scopes": ["read"]}).json
    site.call("DELETE", f"/tokens/{made['id']}")
    site.call("POST", "/workers/w1/drain", {})
    site.call("POST", "/workers/w1/resume", {})
    records = site.call("GET", "/audit", limit=100).json["records"]
    seen = {(record["action"], record["target"]) for record in records}
    for action, target in (
        ("submit", job_id),
        ("cancel", job_id),
        ("create", made["id"]),
        ("revoke", made["id"]),
        ("drain", "w1"),
        ("resume", "w1"),
    ):
        assert any(action in said and target in of for said, of in seen), (action, target, seen)
    submitted = next(r for r in records if "submit" in r["action"] and job_id in r["target"])
    assert submitted["user"] == "ada"
    assert submitted["token_id"]
    assert submitted["token_id"] not in ("", users.ada)


def test_secrets_are_nowhere_to_be_seen(site: Cluster, users: Users) -> None:
    secret = "hunter2-is-no-good-password"
    env = {"API_KEY": secret}
    job_id = site.submit("sleep", "300", token=users.ada, env=env)
    once = site.submit("true", token=users.ada, env=env)
    site.wait_running(job_id)
    site.wait_state(once, "succeeded")
    admin = site.token
    hidden = [admin, users.ada, users.bob]
    for pid in site.members():
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            surroundings = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
            for text in hidden:
                assert text not in line, f"a token stands in the command line of {pid}"
                assert text not in surroundings, f"a token stands in the environment of {pid}"
            assert secret not in line
    logs = [
        site.hub_text(),
        site.agents["w1"].text(),
        *(p.read_text() for p in site.folder.glob("w1/worker/*.log")),
    ]
    for text in [*hidden, secret]:
        assert all(text not in log for log in logs), "a secret stands in a log"
    answers = [
        site.call("GET", path).body.decode()
        for path in ("/tokens", "/audit", f"/jobs/{job_id}/events", "/workers/w1", "/hub", "/doctor")
    ]
    answers.append(site.call("GET", "/metrics").body.decode())
    for text in [*hidden, secret]:
        assert all(text not in answer for answer in answers), "a secret stands in an answer"
    store = b"".join(path.read_bytes() for path in site.home.glob("hub.sqlite*"))
    for text in hidden:
        assert text.encode() not in store, "tokens are stored hashed"
    site.call("POST", f"/jobs/{job_id}/cancel", {})
    site.wait_state(job_id, "killed")
