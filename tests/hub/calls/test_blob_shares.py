"""What one user's large values may take: unused ones go first, then uploads are refused, and others are not asked."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from dray.errors import NoSpace
from dray.hub.calls.blob_quotas import SWEEP_S, BlobShares
from dray.hub.calls.blobs import RECENT_MS, Blobs
from dray.hub.files.local import LocalBlobs
from dray.hub.store.base import BlobRow, Store
from dray.hub.store.sqlite.store import SqliteStore
from dray.hub.store.writer import StoreWriter
from dray.testing.hub_process import RunningHub, running_hub
from dray.wire.schemas.jobs import TokenRequest

MOST, BLOB = 1 << 20, 300_000


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub(max_user_blob_bytes=MOST) as started:
        yield started


def ask(
    hub: RunningHub, method: str, path: str, body: bytes, token: str = ""
) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", int(hub.url.rpartition(":")[2]), timeout=30)
    headers = {"Authorization": f"Bearer {token or hub.token}", "Content-Type": "application/json"}
    connection.request(method, f"/api/v1{path}", body, headers)
    answer = connection.getresponse()
    document = json.loads(answer.read())
    connection.close()
    return answer.status, document


def put(hub: RunningHub, body: bytes, token: str = "") -> tuple[int, str]:
    digest = hashlib.sha256(body).hexdigest()
    status, answer = ask(hub, "PUT", f"/blobs/{digest}", body, token)
    error = answer.get("error")
    return status, str(error["message"]) if isinstance(error, dict) else digest


def test_a_full_share_refuses_uploads_of_its_user_alone_until_unused_ones_have_gone(hub: RunningHub) -> None:
    made = [put(hub, os.urandom(BLOB)) for _ in range(3)]
    assert [status for status, _ in made] == [201] * 3
    status, words = put(hub, os.urandom(BLOB))
    assert status == 507
    assert "max_user_blob_bytes" in words
    wanted = {"scopes": ["submit"], "user": "ada", "expires_s": 600}
    if "shared_account" in TokenRequest.__struct_fields__:
        wanted["shared_account"] = True
    status, other = ask(hub, "POST", "/tokens", json.dumps(wanted).encode())
    assert status == 201, other
    assert put(hub, os.urandom(BLOB), str(other["token"]))[0] == 201


def list_blob(digest: str, at_ms: int, store: Store) -> None:
    store.save_blobs({digest: BlobRow(BLOB, at_ms)})


async def test_unused_ones_go_before_an_upload_is_refused(tmp_path: Path) -> None:
    """Nobody wanted these for longer than a client takes to refer to one; what a job uses stays."""
    store = SqliteStore.open(tmp_path / "hub.sqlite", reserve_bytes=0)
    writer, now_ms, clock = StoreWriter(store), [10 * RECENT_MS], [0.0]
    writer.start()
    try:
        files = LocalBlobs(tmp_path / "blobs")
        blobs = Blobs(files, store, writer, 1 << 20, lambda size: True, lambda: now_ms[0])
        shares = BlobShares(blobs, store, MOST, lambda: clock[0])
        for number in range(3):
            body = bytes([number]) * BLOB
            digest = hashlib.sha256(body).hexdigest()
            await blobs.keep(blobs.begin(BLOB), [body], digest)
            await writer.run(partial(list_blob, digest, now_ms[0]))
            os.utime(files.path(digest), (now_ms[0] / 1000, now_ms[0] / 1000))
            shares.add("ada", digest, BLOB)
        with pytest.raises(NoSpace, match="no job uses 3 of them"):
            await shares.make_room("ada", BLOB)
        await shares.make_room("bob", BLOB)
        now_ms[0] += 2 * RECENT_MS
        clock[0] += SWEEP_S
        await shares.make_room("ada", BLOB)
        assert store.count_user_blobs("ada", []) == (0, [])
    finally:
        await writer.close()
        store.close(clean=True)
