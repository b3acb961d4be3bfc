"""What one token with the scope `read` may cost the hub: attacks that once stopped it, in small."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from dray.hub.access.request_budgets import HEAVY_AT_ONCE, HEAVY_QUEUED
from dray.hub.answers.answers import BRIEF_JOBS
from dray.hub.answers.pages import PAGE_BYTES
from dray.testing.hub_process import RunningHub, running_hub

JOBS, ENV_BYTES = 120, 100_000
# How many rows a page may read past its end.
SLACK_BYTES = 40 * ENV_BYTES


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub() as started:
        spec = {"command": ["true"], "hold": True, "env": {"A": "x" * ENV_BYTES}}
        for _ in range(2):
            status, made = ask(started, "POST", "/api/v1/jobs:batch", [spec] * (JOBS // 2))
            assert status == 201, made
        yield started


def port_of(hub: RunningHub) -> int:
    return int(hub.url.rpartition(":")[2])


def ask(hub: RunningHub, method: str, path: str, body: Any = None, token: str = "") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(hub), timeout=60)
    text = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token or hub.token}", "Content-Type": "application/json"}
    connection.request(method, path, text, headers)
    answer = connection.getresponse()
    document = json.loads(answer.read())
    connection.close()
    if answer.status == 429:
        assert int(answer.headers["Retry-After"]) >= 1
    return answer.status, document


@pytest.fixture
def reader(hub: RunningHub) -> str:
    status, made = ask(hub, "POST", "/api/v1/tokens", {"scopes": ["read"]})
    assert status == 201
    return str(made["token"])


def test_a_page_ends_at_a_size_and_the_next_goes_on(hub: RunningHub, reader: str) -> None:
    seen: list[str] = []
    cursor, pages = "", 0
    while pages == 0 or cursor:
        after = f"&cursor={cursor}" if cursor else ""
        status, page = ask(hub, "GET", f"/api/v1/jobs?limit=1000{after}", token=reader)
        assert status == 200
        assert len(json.dumps(page)) <= PAGE_BYTES + SLACK_BYTES
        seen += [job["id"] for job in page["jobs"]]
        cursor, pages = page["next_cursor"], pages + 1
    assert len(seen) == len(set(seen)) == JOBS
    assert pages > 1


def test_a_flood_of_lists_is_refused_and_others_are_served(hub: RunningHub, reader: str) -> None:
    count = 2 * (HEAVY_AT_ONCE + HEAVY_QUEUED)
    answers: Counter[int] = Counter()
    codes: Counter[str] = Counter()
    begun = threading.Barrier(count + 1)

    def flood() -> None:
        begun.wait()
        status, document = ask(hub, "GET", "/api/v1/jobs?limit=1000", token=reader)
        answers[status] += 1
        codes[document.get("error", {}).get("code", "")] += 1

    threads = [threading.Thread(target=flood) for _ in range(count)]
    for thread in threads:
        thread.start()
    begun.wait()
    # While it lasts: the admin's questions, small and large, and other tokens'.
    assert ask(hub, "GET", "/api/v1/hub")[0] == 200
    assert ask(hub, "GET", "/api/v1/jobs?limit=5")[0] == 200
    for thread in threads:
        thread.join()
    assert set(answers) == {200, 429}
    assert codes["overloaded"] == answers[429] > 0
    assert ask(hub, "GET", "/api/v1/hub", token=reader)[0] == 200, "small questions are not refused"


def test_readers_that_do_not_read_hold_little(hub: RunningHub) -> None:
    status, made = ask(hub, "POST", "/api/v1/tokens", {"scopes": ["read"]})
    assert status == 201
    process = psutil.Process(hub.pid)
    before = process.memory_info().rss
    head = (
        f"GET /api/v1/jobs?limit=1000 HTTP/1.1\r\nHost: 127.0.0.1:{port_of(hub)}\r\n"
        f"Authorization: Bearer {made['token']}\r\n\r\n"
    ).encode()
    sockets = []
    for _ in range(12):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port_of(hub)))
        connection.sendall(head * 4)
        sockets.append(connection)
    # Its own caller's budget is full of them by now, and everybody else's is not.
    for _ in range(8):
        assert ask(hub, "GET", "/api/v1/jobs?limit=1000")[0] in (200, 429)
    assert process.memory_info().rss - before < 12 * PAGE_BYTES + (64 << 20)
    for connection in sockets:
        connection.close()


@pytest.mark.parametrize("field", ["", "command", "metadata", "priority"])
def test_a_body_of_a_million_lists_is_refused_unopened(hub: RunningHub, reader: str, field: str) -> None:
    lists = b"[" + b"[]," * 1_000_000 + b"[]]"
    body = b'{"%b":%b}' % (field.encode(), lists) if field else lists
    status, answer = ask(hub, "POST", "/api/v1/plan", body, token=reader)
    assert (status, answer["error"]["code"]) == (413, "too_large")


def test_commas_inside_texts_are_no_values(hub: RunningHub) -> None:
    spec = {"command": ["python", "-c", "x = [" + "1," * 120_000 + "]"], "hold": True}
    status, answer = ask(hub, "POST", "/api/v1/jobs", spec)
    assert status == 201, answer


def test_members_of_a_batch_are_named_by_their_place(hub: RunningHub) -> None:
    status, answer = ask(hub, "POST", "/api/v1/jobs:batch", [{"command": ["true"]}, 3, []])
    assert status == 400
    assert [problem["where"] for problem in answer["error"]["problems"]] == ["[1]", "[2]"]
    many = [[[]] * 40_000, *[{"metadata": {"a": [[]] * 40_000}}] * 3]
    status, answer = ask(hub, "POST", "/api/v1/jobs:batch", many)
    assert status == 400
    assert "metadata" in answer["error"]["problems"][1]["where"]


def test_a_batch_is_answered_job_by_job_in_its_order(hub: RunningHub) -> None:
    """The documents of all but the first are made in slices, behind the turn that made the jobs."""
    names = [f"n{number}" for number in range(BRIEF_JOBS + 20)]
    body = [{"command": ["true"], "hold": True, "name": name} for name in names]
    status, made = ask(hub, "POST", "/api/v1/jobs:batch", body)
    assert status == 201
    assert [job["name"] for job in made] == names
