"""Answers that grow: the event feed, output that is followed, long polls, and how each of them ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from typing import Any

import pytest

from dray.errors import NotFound
from dray.hub.answers.service import LogRequest
from dray.hub.documents.public_feed import FeedEvent


def open_stream(site, path, token="admin", **headers):
    connection = site.connect()
    connection.request(
        "GET", path, headers={"Authorization": f"Bearer {site.texts.get(token, token)}", **headers}
    )
    return connection, connection.getresponse()


@contextlib.contextmanager
def reading(site, path, token="admin", **headers):
    connection, answer = open_stream(site, path, token, **headers)
    try:
        yield answer
    finally:
        answer.close()
        connection.close()


def plain_get(site, path):
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {site.texts['admin']}\r\n\r\n"
    return head.encode()


def read_block(answer):
    """Read up to the next empty line."""
    lines = []
    while line := answer.readline().decode().rstrip("\n"):
        lines.append(line)
    assert lines, "the stream has ended"
    return lines


def read_event(answer):
    """Read the next event; comments are not events."""
    while (lines := read_block(answer))[0].startswith(":"):
        pass
    return lines


def publish(site, *events):
    site.on_loop(lambda: site.hub.events.extend(events))


def in_thread(call):
    """Run a call that blocks; `join` gives its result back."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(call()))
    thread.start()

    def join():
        thread.join(20)
        assert result, "the call did not return"
        return result[0]

    return join


def test_events_are_spelled_as_the_standard_says(site):
    with reading(site, "/api/v1/events", token="read") as answer:
        assert answer.status == 200
        assert answer.getheader("content-type") == "text/event-stream"
        publish(site, FeedEvent("7.1", "job_submitted", {"job_id": "j", "note": "two\nlines"}))
        lines = read_event(answer)
        assert lines[:2] == ["id: 7.1", "event: job_submitted"]
        assert json.loads(lines[2].removeprefix("data: ")) == {"job_id": "j", "note": "two\nlines"}
        publish(site, FeedEvent("7.2", "a", {}), FeedEvent("7.3", "b", {}))
        assert [read_event(answer)[0] for _ in range(2)] == ["id: 7.2", "id: 7.3"]


def test_a_reader_resumes(site):
    cases = [
        ({"Last-Event-ID": "12.3"}, "", "12.3"),
        ({}, "?since=4.0", "4.0"),
        ({"Last-Event-ID": "12.3"}, "?since=4.0", "12.3"),
        ({"Last-Event-ID": ""}, "?since=4.0", "4.0"),
        ({}, "", ""),
    ]
    for headers, query, after in cases:
        with reading(site, f"/api/v1/events{query}", **headers):
            assert site.hub.calls[-1][1][1] == after


@pytest.mark.parametrize("seen", ["x", "1", "1.2.3", "1.2;drop", "9" * 30 + ".1"])
def test_a_place_that_is_none(site, seen):
    assert site.ask("GET", "/api/v1/events", headers={"Last-Event-ID": seen}).status == 400
    assert site.ask("GET", f"/api/v1/events?since={seen}").status == 400
    assert site.hub.calls == []


def test_a_feed_that_cannot_begin_is_an_error(site):
    site.on_loop(lambda: setattr(site.hub, "fault", NotFound("event 1.1 is no longer kept")))
    reply = site.ask("GET", "/api/v1/events")
    assert (reply.status, reply.code) == (404, "not_found")


def test_silence_is_filled(site):
    site.on_loop(lambda: setattr(site.api.streams, "keep_alive_s", 0.02))
    with reading(site, "/api/v1/events") as answer:
        assert [read_block(answer) for _ in range(3)] == [[": keep-alive"]] * 3


def test_a_reader_that_leaves_is_forgotten(site, wait_until):
    with reading(site, "/api/v1/events"):
        wait_until(lambda: site.hub.open_feeds == 1)
    wait_until(lambda: site.hub.open_feeds == 0)
    assert site.on_loop(lambda: len(site.api.streams)) == 0


def test_a_slow_reader_is_cut_off(site, wait_until):
    site.on_loop(lambda: setattr(site.api.streams, "slow_reader_s", 0.2))
    with socket.create_connection(("127.0.0.1", site.port), timeout=60) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(plain_get(site, "/api/v1/events"))
        wait_until(lambda: site.hub.open_feeds == 1)
        publish(site, *(FeedEvent(f"1.{at}", "noise", {"text": "x" * 10_000}) for at in range(3000)))
        wait_until(lambda: site.hub.open_feeds == 0)
    wait_until(lambda: site.on_loop(lambda: len(site.server._server.server_state.connections)) == 0)


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_token_that_ends_takes_its_stream_with_it(site, how):
    """At once, with nothing to send; what was there to be sent does not leave."""
    made = site.ask("POST", "/api/v1/tokens", {"scopes": ["read"], "expires_s": 0.1}).json
    with reading(site, "/api/v1/events", token=made["token"]) as answer:
        publish(site, FeedEvent("1.1", "seen", {}))
        assert read_event(answer)[0] == "id: 1.1"
        if how == "revoked":
            site.ask("DELETE", f"/api/v1/tokens/{made['id']}")
        else:
            site.now_ms += 1000
        with pytest.raises((ConnectionError, http.client.IncompleteRead)) as cut:
            answer.read()
        assert (
            f": token {made['id']} "
            in getattr(cut.value, "partial", b": token %s " % made["id"].encode()).decode()
        )
    assert site.on_loop(lambda: len(site.api.streams)) == 0


def test_a_followed_log_is_cut_off_with_its_token(site):
    made = site.ask("POST", "/api/v1/tokens", {"scopes": ["read"]}).json
    with reading(site, "/api/v1/jobs/j/logs?follow=1", token=made["token"]) as answer:
        assert answer.read(8) == b"one\ntwo\n"
        site.ask("DELETE", f"/api/v1/tokens/{made['id']}")
        with pytest.raises((ConnectionError, http.client.IncompleteRead)):
            answer.read()


def test_a_stopping_hub_ends_the_feed_cleanly(make_site):
    site = make_site()
    with reading(site, "/api/v1/events") as answer:
        publish(site, FeedEvent("1.1", "seen", {}))
        assert read_event(answer)[0] == "id: 1.1"
        site.on_loop(site.api.close)
        assert answer.read() == b""
    assert site.ask("GET", "/api/v1/jobs").status == 503
    assert site.ask("GET", "/readyz", token=None).status == 503


def test_output_as_it_was_written(site):
    site.on_loop(lambda: setattr(site.hub, "output", [b"\xff\x00", "ä\n".encode()]))
    reply = site.ask("GET", "/api/v1/jobs/j/logs", token="read")
    assert (reply.status, reply.body) == (200, b"\xff\x00\xc3\xa4\n")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert site.hub.calls[-1][1][1] == LogRequest("j")
    site.on_loop(lambda: setattr(site.hub, "output", []))
    assert site.ask("GET", "/api/v1/jobs/j/logs").body == b""


def test_which_output_is_wanted(site):
    site.on_loop(site.hub.ended.set)
    query = "task=3&attempt=2&stream=stderr&follow=1&tail=10&skip=4096"
    assert site.ask("GET", f"/api/v1/jobs/j/logs?{query}").body == b"one\ntwo\nlast\n"
    assert site.hub.calls[-1][1][1] == LogRequest("j", 3, 2, "stderr", True, 10, 4096)
    for wrong in ("task=-1", "task=x", "stream=out", "follow=maybe", "tail=-1", "skip=-1", "skip=1e3"):
        assert site.ask("GET", f"/api/v1/jobs/j/logs?{wrong}").status == 400


def test_output_of_nothing_is_not_found(site):
    site.on_loop(lambda: setattr(site.hub, "fault", NotFound("no job has the id 'j'")))
    reply = site.ask("GET", "/api/v1/jobs/j/logs?follow=1")
    assert (reply.status, reply.code) == (404, "not_found")
    assert reply.headers["content-type"] == "application/json"


def test_output_is_sent_as_it_comes(site):
    with reading(site, "/api/v1/jobs/j/logs?follow=1") as answer:
        assert answer.readline() == b"one\n"
        assert answer.readline() == b"two\n"
        site.on_loop(site.hub.ended.set)
        assert answer.read() == b"last\n"


def test_following_a_silent_task_answers_at_once(site):
    site.on_loop(lambda: setattr(site.hub, "output", []))
    with reading(site, "/api/v1/jobs/j/logs?follow=1") as answer:
        assert answer.status == 200
        site.on_loop(site.hub.ended.set)
        assert answer.read() == b"last\n"


def test_output_cut_by_a_stop_does_not_look_whole(site):
    with reading(site, "/api/v1/jobs/j/logs?follow=1") as answer:
        assert answer.readline() == b"one\n"
        assert answer.readline() == b"two\n"
        site.on_loop(site.api.close)
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            answer.read()


def test_a_source_that_breaks_does_not_look_whole(site, caplog):
    async def broken(caller, request):
        yield b"one\n"
        await site.hub.ended.wait()
        raise RuntimeError("the disk is gone")

    site.on_loop(lambda: setattr(site.hub, "logs", broken))
    with reading(site, "/api/v1/jobs/j/logs?follow=1") as answer:
        assert answer.readline() == b"one\n"
        site.on_loop(site.hub.ended.set)
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            answer.read()
    assert "the disk is gone" in caplog.text


def test_a_long_poll_answers_when_the_job_ends(site, wait_until):
    site.ask("POST", "/api/v1/jobs", {"id": "j"})
    join = in_thread(lambda: site.ask("GET", "/api/v1/jobs/j?wait_s=60"))
    wait_until(lambda: site.hub.calls[-1][0] == "job")
    assert site.hub.calls[-1][1][1:] == ("j", 60)
    site.on_loop(site.hub.ended.set)
    assert join().json["state"] == "succeeded"


def test_a_long_poll_ends_with_its_time(site):
    site.ask("POST", "/api/v1/jobs", {"id": "j"})
    assert site.ask("GET", "/api/v1/jobs/j?wait_s=0.05").json["state"] == "pending"
    assert site.ask("GET", "/api/v1/jobs/none?wait_s=5").status == 404
    for wrong in ("-1", "301", "nan", "inf", "x"):
        assert site.ask("GET", f"/api/v1/jobs/j?wait_s={wrong}").status == 400


def test_a_long_poll_answers_when_the_hub_stops(site, wait_until):
    site.ask("POST", "/api/v1/jobs", {"id": "j"})
    join = in_thread(lambda: site.ask("GET", "/api/v1/jobs/j?wait_s=60"))
    wait_until(lambda: site.hub.calls[-1][0] == "job")
    site.on_loop(site.api.close)
    reply = join()
    assert (reply.status, reply.json["state"]) == (200, "pending")


@pytest.mark.parametrize("behind", [0, 2])
def test_a_long_poll_that_nobody_reads_is_dropped(site, wait_until, behind):
    cancelled = threading.Event()

    async def wait_long(caller, job_id, wait_s=0):
        try:
            await site.hub.ended.wait()
        finally:
            cancelled.set()

    site.on_loop(lambda: setattr(site.hub, "job", wait_long))
    with socket.create_connection(("127.0.0.1", site.port), timeout=60) as connection:
        connection.sendall(
            plain_get(site, "/api/v1/jobs/j?wait_s=60") + behind * plain_get(site, "/api/v1/jobs")
        )
        wait_until(lambda: site.on_loop(lambda: len(site.server._server.server_state.tasks)) == 1)
    assert cancelled.wait(60)
