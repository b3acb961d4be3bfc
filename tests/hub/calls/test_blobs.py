"""Large values over real HTTP against a real hub: filed under their digest, whole or not at all, gone when unneeded."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.hub.calls_desk import DEADLINE_S, SPEC, client_of, lanes_of, new_job

from dray.errors import NotFound
from dray.hub.calls.blobs import Blobs
from dray.hub.files.local import LocalBlobs
from dray.hub.store.base import BlobRef, Turn
from dray.hub.store.sqlite.store import SqliteStore
from dray.hub.store.writer import StoreWriter
from dray.testing import RunningHub, running_hub
from dray.wire.messages import client as wire

MOST = 3 << 20


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub(max_blob_bytes=MOST) as running:
        yield running


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def ask(hub: RunningHub, method: str, path: str, body: Any = None, token: str = "") -> tuple[int, Any, Any]:
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        connection.request(method, f"/api/v1{path}", body, {"Authorization": f"Bearer {token or hub.token}"})
        answer = connection.getresponse()
        raw = answer.read()
        is_json = answer.headers["content-type"].startswith("application/json")
        return answer.status, json.loads(raw) if is_json and raw else raw, answer.headers


def put(hub: RunningHub, body: bytes, digest: str = "", token: str = "") -> tuple[int, Any]:
    return ask(hub, "PUT", f"/blobs/{digest or digest_of(body)}", body, token)[:2]


def drafts(hub: RunningHub) -> list[Path]:
    return list((hub.home / "blobs" / "drafts").glob("*"))


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("size", [0, 1, 70_000, 1 << 20, MOST])
def test_a_blob_comes_back_as_it_went(hub: RunningHub, size: int) -> None:
    body = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    digest = digest_of(body)
    assert put(hub, body) == (201, {"digest": digest, "size": size})
    assert put(hub, body)[0] == 201
    status, got, headers = ask(hub, "GET", f"/blobs/{digest}")
    assert (status, got, headers["content-length"]) == (200, body, str(size))
    status, got, headers = ask(hub, "HEAD", f"/blobs/{digest}")
    assert (status, got, headers["content-length"]) == (200, b"", str(size))
    path = hub.home / "blobs" / digest[:2] / digest
    assert path.read_bytes() == body
    assert drafts(hub) == []


def test_what_is_not_what_it_says_is_not_kept(hub: RunningHub) -> None:
    body = b"x" * 100_000
    wrong = digest_of(b"something else")
    status, said = put(hub, body, wrong)
    assert (status, said["error"]["code"]) == (409, "conflict")
    assert digest_of(body) in said["error"]["message"]
    assert ask(hub, "GET", f"/blobs/{wrong}")[0] == 404
    for bad in ("ab", "AB" * 32, "zz" * 32):
        assert put(hub, body, bad)[0] == 400
    eventually(lambda: drafts(hub) == [])


def test_an_upload_that_breaks_off_leaves_nothing(hub: RunningHub) -> None:
    body = b"y" * 200_000
    host = urlsplit(hub.url)
    for head in (b"Content-Length: 300000\r\n", b"Transfer-Encoding: chunked\r\n"):
        with socket.create_connection((host.hostname or "", host.port or 0)) as raw:
            line = f"PUT /api/v1/blobs/{digest_of(body)} HTTP/1.1\r\nHost: {host.netloc}\r\n".encode()
            raw.sendall(line + f"Authorization: Bearer {hub.token}\r\n".encode() + head + b"\r\n")
            raw.sendall(b"%x\r\n" % len(body) * head.startswith(b"T") + body)
            eventually(lambda: drafts(hub) != [])
        eventually(lambda: drafts(hub) == [])
    assert ask(hub, "GET", f"/blobs/{digest_of(body)}")[0] == 404


def test_over_the_cap_is_refused_with_the_limit(hub: RunningHub) -> None:
    body = b"z" * (MOST + 1)
    status, said = put(hub, body)
    assert (status, said["error"]["code"], str(MOST) in said["error"]["message"]) == (413, "too_large", True)
    # Said before a byte of it was sent, and also where nobody said how much would come.
    host = urlsplit(hub.url)
    connection = http.client.HTTPConnection(host.netloc, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        connection.putrequest("PUT", f"/api/v1/blobs/{digest_of(body)}")
        connection.putheader("Authorization", f"Bearer {hub.token}")
        connection.putheader("Content-Length", str(10 << 30))
        connection.endheaders()
        assert connection.getresponse().status == 413
    connection = http.client.HTTPConnection(host.netloc, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        pieces = (body[start : start + 65536] for start in range(0, len(body), 65536))
        headers = {"Authorization": f"Bearer {hub.token}"}
        connection.request("PUT", f"/api/v1/blobs/{digest_of(body)}", pieces, headers, encode_chunked=True)
        assert connection.getresponse().status == 413
    eventually(lambda: drafts(hub) == [])


def test_uploads_of_one_digest_at_once_all_end_well(hub: RunningHub) -> None:
    body = b"same" * 250_000
    answers: list[tuple[int, Any]] = []
    threads = [threading.Thread(target=lambda: answers.append(put(hub, body))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [status for status, _ in answers] == [201] * 8
    assert ask(hub, "GET", f"/blobs/{digest_of(body)}")[1] == body
    assert drafts(hub) == []


def test_scopes(hub: RunningHub) -> None:
    body = b"scoped" * 20_000
    tokens = {scope: hub.make_token("ana", [scope]) for scope in ("read", "submit", "worker")}
    assert put(hub, body, token=tokens["read"])[0] == 403
    assert put(hub, body, token=tokens["worker"])[0] == 201
    assert put(hub, body, token=tokens["submit"])[0] == 201
    for scope in ("read", "submit"):
        assert ask(hub, "GET", f"/blobs/{digest_of(body)}", token=tokens[scope])[1] == body
    assert ask(hub, "GET", f"/blobs/{digest_of(body)}", token=tokens["worker"])[0] == 404
    assert ask(hub, "GET", f"/blobs/{digest_of(body)}", token="nobody")[0] == 401


async def test_a_blob_is_given_to_those_who_may_see_a_job_that_uses_it(hub: RunningHub) -> None:
    """Knowing a digest opens nothing: not by reading it, not by asking for it, not by a job of one's own."""
    body, nobodys = b"ann's own" * 20_000, "0" * 64
    digest, job = digest_of(body), new_job()
    ann, bob = hub.make_token("ann"), hub.make_token("bob")
    holder, other = (hub.make_token("ops", ["worker"]) for _ in range(2))

    async def look(token: str, method: str = "GET", name: str = digest) -> Any:
        return (await asyncio.to_thread(ask, hub, method, f"/blobs/{name}", None, token))[:2]

    def unknown(name: str) -> Any:
        return {"job": new_job(), "spec": SPEC, "args": [[name, len(body)]]}

    assert (await asyncio.to_thread(put, hub, body, "", ann))[0] == 201
    async with client_of(hub, ann) as client, client_of(hub, bob) as thief:
        await client.add(job, [[digest, len(body)]], close=True)
        assert await look(ann) == (200, body)
        assert await look(ann, "HEAD") == (200, b"")
        status, refusal = await look(bob)
        assert (status, refusal["error"]["message"].replace(digest, nobodys)) == (
            404,
            (await look(bob, name=nobodys))[1]["error"]["message"],
        )
        assert await look(bob, "HEAD") == await look(bob, "HEAD", nobodys)
        refused = (
            await thief.refused("calls", unknown(digest)),
            await thief.refused("calls", unknown(nobodys)),
        )
        assert str(refused[0]).replace(digest, nobodys) == str(refused[1])
        assert (await look(holder))[0] == (await look(other))[0] == 404
        async with lanes_of(hub, "holder", token=holder) as lanes, lanes_of(hub, "other", 0, token=other):
            await lanes.take()
            assert await look(holder) == (200, body)
            assert (await look(other))[0] == 404
            await lanes.end()
            await client.results(job, 1)
        # Whoever knows what is in it may bring it, and have it.
        assert (await asyncio.to_thread(put, hub, body, "", bob))[0] == 201
        assert await look(bob) == (200, body)
        taken = await thief.ask("calls", unknown(digest))
        assert taken.type == wire.ANSWER
        assert (await thief.ask("cancel", {"id": taken.payload["job"]})).type == wire.ANSWER
    assert await look(ann) == (200, body)


async def test_arguments_and_values_that_are_blobs(hub: RunningHub) -> None:
    job, body = new_job(), b"large" * 30_000
    reference = [digest_of(body), len(body)]
    async with client_of(hub) as client, lanes_of(hub) as lanes:
        sent = {"job": job, "spec": SPEC, "args": [reference, b"small"], "close": True}
        refused = await client.refused("calls", sent)
        assert [problem["where"] for problem in refused["problems"]] == [reference[0]]
        assert (await asyncio.to_thread(put, hub, body))[0] == 201
        assert (await client.ask("calls", sent)).type == wire.ANSWER
        await lanes.serve(2)
        found = await client.results(job, 2)
        assert found == {0: ("succeeded", reference), 1: ("succeeded", b"llams")}
        values = (await client.ask("values", {"id": job})).payload["values"]
        assert values == [reference, b"llams"]
    status, got, headers = await asyncio.to_thread(ask, hub, "GET", f"/jobs/{job}/value?task=0")
    assert (status, got, headers["x-dray-state"]) == (200, body, "succeeded")
    assert (await asyncio.to_thread(ask, hub, "GET", f"/jobs/{job}/value?task=1"))[1] == b"llams"
    assert (await asyncio.to_thread(ask, hub, "GET", f"/jobs/{job}/value"))[0] == 409
    assert (await asyncio.to_thread(ask, hub, "GET", f"/jobs/{job}/value?task=2"))[0] == 404
    with sqlite3.connect(hub.home / "hub.sqlite") as connection:
        query = "SELECT count(*) FROM blob_refs WHERE digest = ? AND job_id = ?"
        assert connection.execute(query, (reference[0], job)).fetchone() == (1,)


async def test_what_nobody_refers_to_is_swept_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.hub.calls.blobs.LIST_S", 0.0)
    store = SqliteStore.open(tmp_path / "hub.sqlite", reserve_bytes=4096, wal_bytes=1 << 17)
    store.begin_epoch()
    writer, now = StoreWriter(store), [10_000]
    writer.start()
    try:
        files = LocalBlobs(tmp_path / "blobs")
        blobs = Blobs(files, store, writer, 1 << 20, lambda size: True, lambda: now[0])
        left = tmp_path / "blobs" / "drafts" / "left"
        files.folder.draft()
        left.write_bytes(b"of an earlier hub")
        age(left, 10)
        digests = []
        for body in (b"needed", b"idle", b"young"):
            upload = blobs.begin(0)
            await blobs.keep(upload, [body], digest_of(body))
            digests.append(digest_of(body))
            age(files.path(digests[-1]), 10)
        await refer(writer, Turn(1, 1, 1, b"", b"", chunks=[BlobRef(digests[0], "j1")]))
        await listed(store, digests)
        now[0] = 20_000
        assert blobs.renew(digests[2]) == 5
        age(files.path(digests[2]), 20)
        await listed(store, digests[2:], 20_000)
        now[0] = 25_000
        assert await blobs.sweep(10.0) == 1
        assert [files.path(digest).exists() for digest in digests] == [True, False, True]
        assert os.listdir(tmp_path / "blobs" / "drafts") == []
        assert blobs.find(digests[0]) == 6
        with pytest.raises(NotFound, match="no blob"):
            blobs.find(digests[1])
        assert blobs.missing(digests) == [digests[1]]
        # A file that the list lacks since a crash is there all the same, until it has been idle for long.
        stray = files.path("ab" * 32)
        stray.parent.mkdir()
        stray.write_bytes(b"stray")
        assert blobs.missing(["ab" * 32]) == []
        await listed(store, ["ab" * 32])
        other = files.path("cd" * 32)
        other.parent.mkdir()
        other.write_bytes(b"other")
        await refer(writer, Turn(2, 1, 1, b"", b"", chunks=[BlobRef("ab" * 32, "j1")]))
        assert await blobs.list_strays() == 1
        await listed(store, ["cd" * 32])
        for path in (files.path(digests[2]), stray, other):
            age(path, 25)
        now[0] = 99_000
        assert await blobs.sweep(10.0) == 2
        assert (stray.exists(), other.exists()) == (True, False)
    finally:
        await writer.close()
        store.close(clean=True)


async def refer(writer: StoreWriter, turn: Turn) -> None:
    """Commit where everything is written: a store has one writer, and the list of blobs is entered beside us."""
    await writer.run(lambda store: store.commit(turn))


def age(path: Path, at_s: float) -> None:
    """Date a file by the clock of the test."""
    os.utime(path, (at_s, at_s))


async def listed(store: SqliteStore, digests: list[str], at_ms: int = 0) -> None:
    """Wait until the list shows these blobs, wanted since a time."""
    async with asyncio.timeout(DEADLINE_S):
        while any(  # noqa: ASYNC110 - a database rings no bell
            digest not in (found := store.find_blobs(digests)) or found[digest].at_ms < at_ms
            for digest in digests
        ):
            await asyncio.sleep(0.01)


async def test_a_blob_that_comes_back_while_it_is_swept_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.hub.calls.blobs.LIST_S", 0.0)
    store = SqliteStore.open(tmp_path / "hub.sqlite", reserve_bytes=4096, wal_bytes=1 << 17)
    store.begin_epoch()
    writer, now = StoreWriter(store), [10_000]
    writer.start()
    try:
        files = LocalBlobs(tmp_path / "blobs")
        blobs = Blobs(files, store, writer, 1 << 20, lambda size: True, lambda: now[0])
        body, digest = b"again", digest_of(b"again")
        for turn in range(20):
            await blobs.keep(blobs.begin(0), [body], digest)
            await listed(store, [digest], now[0])
            age(files.path(digest), now[0] / 1000)
            now[0] += 100_000
            await asyncio.gather(blobs.sweep(1.0), blobs.keep(blobs.begin(0), [body], digest))
            assert files.path(digest).read_bytes() == body, turn
            assert blobs.missing([digest]) == []
    finally:
        await writer.close()
        store.close(clean=True)
