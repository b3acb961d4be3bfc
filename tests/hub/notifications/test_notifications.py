"""A real hub tells real receivers what became of jobs: webhooks, mail, commands, and the record of it."""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import sqlite3
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message as MailHandler
from tests.hub.asking import ask, wait_until

from dray.core.lifecycle.state.effects import Note
from dray.core.model.specs.notifying import read_url
from dray.hub.notifications.addresses import is_public
from dray.hub.notifications.notifier import MOST_HEARD, MOST_WAITING, Notifier, bound
from dray.hub.notifications.outbox import Told
from dray.testing import MockWorker, RunningHub, make_spec, running_hub
from dray.wire.schemas.site import NotificationList

SECRET = "correct horse battery staple"
WITHIN_S = 60.0


class Listener:
    """A real HTTP server that keeps what it is told; it answers what `answers` holds, then 200."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append(({name.lower(): text for name, text in self.headers.items()}, body))
                self.send_response(outer.answers.pop(0) if outer.answers else 200)
                self.send_header("Location", outer.url)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook/deep"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]


class Letters(MailHandler):
    def __init__(self) -> None:
        super().__init__()
        self.got: list[Any] = []

    def handle_message(self, message: Any) -> None:
        self.got.append(message)


class Site:
    """A hub, a worker that does as it is told, and everybody who may be told something."""

    def __init__(self, hub: RunningHub, worker: MockWorker, listener: Listener, mail: Controller) -> None:
        self.hub, self.worker, self.listener, self.mail = hub, worker, listener, mail

    def apply(self, **notifications: Any) -> None:
        status, answer = ask(self.hub, "PUT", "/policy", {"notifications": notifications})
        assert status == 200, answer

    def submit(self, job_id: str, token: str = "", **fields: Any) -> tuple[int, Any]:
        return ask(self.hub, "POST", "/jobs", make_spec(id=job_id, **fields), token=token)

    def run(self, job_id: str, state: str = "succeeded", token: str = "", **fields: Any) -> None:
        status, answer = self.submit(job_id, token, **fields)
        assert status == 201, answer
        self.worker.run_one(state)

    def told(self, job_id: str = "", token: str = "") -> list[dict[str, Any]]:
        path = f"/notifications?job={job_id}" if job_id else "/notifications"
        status, answer = ask(self.hub, "GET", path, token=token)
        assert status == 200, answer
        msgspec.convert(answer, NotificationList)
        found: list[dict[str, Any]] = answer["notifications"]
        return found

    def wait(self, job_id: str, state: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = self.told(job_id)
            return found[0] if found and found[0]["state"] == state else None

        found: dict[str, Any] = wait_until(look, WITHIN_S)
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("notify")
    with contextlib.ExitStack() as stack:
        listener = Listener()
        stack.callback(listener.close)
        mail = Controller(Letters(), hostname="127.0.0.1", port=free_port())
        mail.start()
        stack.callback(mail.stop)
        hub = stack.enter_context(running_hub(home, notify_retry_s="0.05,0.1"))
        (home / "secrets").mkdir(mode=0o700)
        (home / "secrets" / "ops").write_text(SECRET + "\n")
        (home / "secrets" / "ops").chmod(0o600)
        worker = stack.enter_context(hub.worker("w1"))
        worker.register()
        yield Site(hub, worker, listener, mail)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(autouse=True)
def quiet(request: pytest.FixtureRequest) -> None:
    if "site" in request.fixturenames:
        listener = request.getfixturevalue("site").listener
        listener.got.clear()
        listener.answers.clear()


def test_a_webhook_is_signed_and_the_secret_is_shown_nowhere(site: Site) -> None:
    site.apply(receivers={"ops": {"webhook": site.listener.url, "secret": "ops"}}, jobs={"to": ["ops"]})
    site.run("signed", "failed", name="train", notify=["done", "failed"])
    row = site.wait("signed", "sent")
    ((headers, body),) = site.listener.got
    expected = hmac.new(SECRET.encode(), headers["x-dray-time"].encode() + b"." + body, "sha256").hexdigest()
    assert headers["x-dray-signature"] == f"v1={expected}"
    told = json.loads(body)
    assert (told["event"], told["job"]["id"], told["job"]["state"]) == ("failed", "signed", "failed")
    assert told["text"].startswith("job train (signed) of ")
    assert told["id"] == headers["x-dray-id"] == row["id"]
    assert (row["to"], row["way"], row["tries"], row["detail"]) == ("ops", "webhook", 1, "answered 200")
    shown = json.dumps([site.told(), *(ask(site.hub, "GET", path)[1] for path in ("/policy", "/audit"))])
    assert SECRET not in shown + (site.hub.home / "hub.err").read_text()


def test_only_what_was_asked_for_is_told(site: Site) -> None:
    site.apply(
        receivers={"ops": {"webhook": site.listener.url}},
        rules=[{"on": ["failed"], "to": ["ops"], "label": "team=vision"}],
        jobs={"to": ["ops"]},
    )
    site.run("quiet", "failed")
    site.run("good", "succeeded", labels={"team": "vision"})
    site.run("bad", "failed", labels={"team": "vision"})
    site.run("began", "succeeded", notify=["started", "ended"])
    site.wait("began", "sent")
    wait_until(lambda: len(site.listener.got) == 3, WITHIN_S)
    events = sorted((told["job"]["id"], told["event"]) for told in site.listener.bodies())
    assert events == [("bad", "failed"), ("began", "done"), ("began", "started")]


def test_a_receiver_that_fails_is_asked_again_under_the_same_id(site: Site) -> None:
    site.apply(receivers={"ops": {"webhook": site.listener.url}}, jobs={"to": ["ops"]})
    site.listener.answers += [503, 429]
    site.run("again", notify=["done"])
    row = site.wait("again", "sent")
    assert row["tries"] == 3
    assert {headers["x-dray-id"] for headers, _ in site.listener.got} == {row["id"]}
    assert len(site.listener.got) == 3


@pytest.mark.parametrize(("status", "words"), [(302, "redirects are not followed"), (410, "answered 410")])
def test_what_never_helps_is_not_tried_again(site: Site, status: int, words: str) -> None:
    site.apply(receivers={"ops": {"webhook": site.listener.url}}, jobs={"to": ["ops"]})
    site.listener.answers += [status]
    site.run(f"moved{status}", notify=["done"])
    row = site.wait(f"moved{status}", "failed")
    assert row["tries"] == 1
    assert words in row["detail"]
    assert len(site.listener.got) == 1


def test_a_receiver_that_never_answers_keeps_nobody_waiting(site: Site) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(8)
        silent = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        site.apply(
            receivers={"deaf": {"webhook": silent}, "ops": {"webhook": site.listener.url}},
            rules=[{"on": ["done"], "to": ["deaf", "ops"]}],
        )
        for number in range(3):
            site.run(f"deaf{number}")
        wait_until(lambda: len(site.listener.got) == 3, WITHIN_S)
        states = {(row["to"], row["state"]) for row in site.told()[:6]}
        assert {("deaf", "waiting"), ("ops", "sent")} == states
    # Whoever is no longer in the policy is not asked again.
    site.apply()
    wait_until(lambda: all(row["state"] != "waiting" for row in site.told()), WITHIN_S)


def test_mail_goes_out_as_one_message_and_a_name_adds_no_header(site: Site) -> None:
    letters = site.mail.handler
    site.apply(
        receivers={"team": {"mail": ["ada@example.org", "ben@example.org"]}},
        rules=[{"on": ["failed"], "to": ["team"]}],
        smtp={"host": "127.0.0.1", "port": site.mail.port, "sender": "dray@example.org", "tls": "none"},
        jobs={"mail_domains": ["example.com"]},
    )
    site.run("mailed", "failed", name="x\nBcc: evil@example.net")
    row = site.wait("mailed", "sent")
    (letter,) = letters.got
    assert letter["To"] == "ada@example.org, ben@example.org"
    assert letter["Bcc"] is None
    assert "evil" not in letter["X-RcptTo"]
    assert letter["X-Dray-Id"] == row["id"]
    assert "mailed" in letter["Subject"]
    refused = site.submit("spam", notify=["done"], notify_to=["someone@elsewhere.net"])
    assert refused[0] == 400
    assert "example.com" in refused[1]["error"]["message"]
    site.run("own", notify=["done"], notify_to=["cleo@example.com"])
    site.wait("own", "sent")
    assert letters.got[-1]["To"] == "cleo@example.com"


def test_a_command_of_the_policy_hears_of_it_on_its_standard_input(site: Site, tmp_path: Path) -> None:
    heard, script = tmp_path / "heard", tmp_path / "tell"
    # Fails the first time, and says why.
    script.write_text(
        f"#!/bin/sh\ncat > {heard}.part\n"
        f"if [ -e {heard}.no ]; then rm {heard}.no; echo no >&2; exit 3; fi\nexec mv {heard}.part {heard}\n"
    )
    script.chmod(0o700)
    Path(f"{heard}.no").touch()
    site.apply(
        receivers={"page": {"command": [str(script), "--loud"]}}, rules=[{"on": ["killed"], "to": ["page"]}]
    )
    assert site.submit("stopped")[0] == 201
    assert ask(site.hub, "POST", "/jobs/stopped/cancel")[0] == 200
    row = site.wait("stopped", "sent")
    assert row["tries"] == 2
    assert json.loads(heard.read_text())["job"]["id"] == "stopped"


def test_a_job_cannot_send_the_hub_into_its_own_network(site: Site) -> None:
    plain = site.listener.url
    token = site.hub.make_token("ana")
    site.apply()
    status, answer = site.submit("ssrf0", token, notify=["done"], notify_to=[plain])
    assert (status, "not https" in answer["error"]["message"]) == (400, True)
    site.run("ssrf", token=token, notify=["done"], notify_to=[plain.replace("http:", "https:")])
    row = site.wait("ssrf", "failed")
    assert "network of its own" in row["detail"]
    assert row["to"].endswith("/…")
    assert "deep" not in row["to"]
    site.apply(jobs={"networks": ["127.0.0.0/8"]})
    site.run("inside", token=token, notify=["done"], notify_to=[plain])
    site.wait("inside", "sent")
    assert [told["job"]["id"] for told in site.listener.bodies()] == ["inside"]
    # Its owner and admins see it, nobody else does.
    assert [row["job_id"] for row in site.told("inside", token)] == ["inside"]
    assert site.told("inside", site.hub.make_token("ben")) == []
    site.apply(jobs={"webhooks": "none"})
    status, answer = site.submit("none", token, notify=["done"], notify_to=["https://example.org/x"])
    assert (status, "no addresses" in answer["error"]["message"]) == (400, True)


def test_who_cannot_be_told_is_refused_with_what_there_is(site: Site) -> None:
    site.apply(receivers={"ops": {"webhook": site.listener.url}})
    asked: tuple[tuple[dict[str, Any], str], ...] = (
        ({"notify": ["done"]}, "notifications.jobs.to"),
        ({"notify": ["done"], "notify_to": ["opps"]}, "there is ops"),
        ({"notify": ["finished"]}, "knows started, done"),
        ({"notify_to": ["ops"]}, "say of what to tell"),
        ({"notify": ["done"], "notify_to": ["https://user:pw@example.org/"]}, "without a user"),
        ({"notify": ["done"], "notify_to": ["https://example.org/\r\nX: y"]}, "without a user"),
    )
    for fields, words in asked:
        status, answer = site.submit("never", **fields)
        assert status == 400, fields
        assert words in answer["error"]["message"], (fields, answer)


def test_what_waits_when_the_hub_dies_is_told_after_it(tmp_path: Path) -> None:
    port = free_port()
    with running_hub(tmp_path, notify_retry_s="0.05") as hub, hub.worker("w1") as worker:
        rules = [{"on": ["done"], "to": ["ops"]}]
        receivers = {"ops": {"webhook": f"http://127.0.0.1:{port}/"}}
        assert (
            ask(hub, "PUT", "/policy", {"notifications": {"receivers": receivers, "rules": rules}})[0] == 200
        )
        worker.register()
        assert ask(hub, "POST", "/jobs", make_spec(id="kept"))[0] == 201
        worker.run_one()
        wait_until(lambda: ask(hub, "GET", "/notifications")[1]["notifications"], WITHIN_S)
        hub.kill()
        listener = Listener()
        receivers["ops"]["webhook"] = listener.url
        try:
            hub.start()
            assert (
                ask(hub, "PUT", "/policy", {"notifications": {"receivers": receivers, "rules": rules}})[0]
                == 200
            )
            wait_until(lambda: listener.got, WITHIN_S)
            hub.kill()
            first = listener.bodies()[0]["id"]
            # As if the hub had died before it could record anything: the log tells it again, under the same id.
            with contextlib.closing(sqlite3.connect(tmp_path / "notifications.sqlite")) as base, base:
                base.execute("DELETE FROM told")
                base.execute("UPDATE progress SET upto = 0")
            listener.got.clear()
            hub.start()
            wait_until(lambda: listener.got, WITHIN_S)
            assert listener.bodies()[0]["id"] == first
        finally:
            listener.close()


def test_what_is_too_much_is_dropped_and_counted() -> None:
    def row(number: int, target: str = "ops") -> Told:
        return Told(
            f"{number}-{target}", "done", "j", "ada", "webhook", target, False, "waiting", 0, 1, 1, 0, "", b""
        )

    kept, dropped = bound(
        [row(number) for number in range(5)] + [row(9, "other")], {"ops": MOST_WAITING - 2}, 7
    )
    assert [one.id for one in kept] == ["0-ops", "1-ops", "9-other"]
    assert [(one.id, one.state, one.detail) for one in dropped] == [
        ("2-ops", "dropped", f"3 dropped: {MOST_WAITING} wait already")
    ]


def test_what_is_heard_before_it_is_recorded_is_bounded_too(tmp_path: Path) -> None:
    engine: Any = SimpleNamespace(state=SimpleNamespace(jobs={}), seq=1)
    nobody: Any = None  # nothing is recorded here: whoever records does not run
    notifier = Notifier(tmp_path, engine, nobody, nobody, nobody, ())
    for number in range(MOST_HEARD + 3):
        notifier.hear(Note("job_ended", f"j{number}", "", "", {"state": "failed"}))
    assert (len(notifier._heard), notifier._lost) == (MOST_HEARD, 3)


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("10.0.0.1", False),
        ("127.0.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fd00::1", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::a00:1", False),
        ("2002:a00:1::1", False),
    ],
)
def test_addresses_of_the_internet(text: str, public: bool) -> None:
    import ipaddress

    assert is_public(ipaddress.ip_address(text)) is public


@pytest.mark.parametrize(
    "text",
    [
        "https://good.org\\@evil.org/",
        "https://a b/",
        "https://u@host/",
        "https://host/#x",
        "ftp://host/",
        "https://host:0/",
        "https://host:70000/",
        "https://-host/",
        "https:///path",
        "https://host/ä",
    ],
)
def test_addresses_that_two_readers_might_read_differently_are_none(text: str) -> None:
    assert read_url(text) is None
