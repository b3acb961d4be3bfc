"""From a folder to a snapshot that the hub has: packed, the manifest first, then what the hub says it lacks.

A few lines side by side, each chunk read from the folder when it is its turn, so that nothing large is in memory. What
has arrived has arrived: an upload that breaks off goes on where it was, also in another program. Surprising rule: what
is sent is looked at again, byte for byte, since a file may have changed between the packing and its turn; then all of
it is packed anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from dray.client.reach.blob_line import BlobLine
from dray.client.reach.discovery import Target
from dray.core.model.specs.asks import environment_of, folder_of, label_for
from dray.core.model.units import format_bytes
from dray.errors import DrayError, HubUnavailable, MissingBlobs
from dray.snapshots.environments import environment_id, pack_environment
from dray.snapshots.manifest import id_of, pack_manifest
from dray.snapshots.packing import MOST_BYTES, Changed, Packed, changing, largest, pack
from dray.wire.reach.http_line import BROKEN

THREADS = 4
TRIES = 3
PATIENCE_S = 60.0
RETRY_S = 0.5


class Sent(NamedTuple):
    """A snapshot that the hub has now, and what that cost."""

    id: str
    sha: str
    packed: Packed
    sent_bytes: int
    sent_chunks: int
    took_s: float

    def describe(self) -> str:
        """One line for people."""
        tree = self.packed.tree
        left = "".join(f", {count} {kind} left out" for kind, count in sorted(tree.left.items()))
        files = "1 file" if len(tree.files) == 1 else f"{len(tree.files)} files"
        return (
            f"snapshot {self.id[:17]}: {format_bytes(tree.size)} in {files}{left}; sent "
            f"{format_bytes(self.sent_bytes)} in {self.took_s:.2f} s"
        )

    @property
    def largest(self) -> list[tuple[str, int]]:
        """What takes most of it."""
        return largest(self.packed.tree)


def send_snapshot(find: Callable[[], Target], folder: str, most_bytes: int = MOST_BYTES) -> Sent:
    """Make a snapshot of a folder and bring it to the hub; raises DrayError in words for people."""
    began, root = time.monotonic(), os.path.abspath(folder)
    for left in range(TRIES - 1, -1, -1):
        packed = pack(root, most_bytes)
        try:
            return _Sender(find, packed).send(began)
        except Changed as fault:
            if not left:
                raise changing(fault.path) from None
    raise AssertionError(root)


def bring_all(
    find: Callable[[], Target],
    specs: Sequence[dict[str, Any]],
    most_bytes: int = 0,
    told: Callable[[Sent], None] = lambda sent: None,
) -> list[dict[str, Any]]:
    """Send along the folders and environments that specs name, each once; gives the specs as the hub takes them."""
    brought: dict[str, dict[str, str]] = {}
    for folder in dict.fromkeys(filter(None, map(folder_of, specs))):
        sent = send_snapshot(find, folder, most_bytes or MOST_BYTES)
        told(sent)
        brought[folder] = {"snapshot_id": sent.id, "snapshot_sha": sent.sha}
    for files in dict.fromkeys(filter(None, map(environment_of, specs))):
        packed = pack_environment(json.loads(files))
        digest = hashlib.sha256(packed).hexdigest()
        with contextlib.closing(BlobLine(find())) as line:
            line.put(digest, [packed], len(packed), True)
        brought[files] = {"environment": environment_id(packed)}
    named = {"": {}, **brought}
    return [
        {**spec, **named[folder_of(spec)], **named[environment_of(spec)], **_needing(spec)} for spec in specs
    ]


def _needing(spec: dict[str, Any]) -> dict[str, Any]:
    """Not every worker can make each environment: that is asked for as any label is, and so explained by `why`."""
    wanted, label = spec.get("require") or [], label_for(spec)
    return {"require": [*wanted, label]} if label and label not in wanted else {}


class _Sender:
    def __init__(self, find: Callable[[], Target], packed: Packed) -> None:
        self._find, self._packed = find, packed
        self._own = threading.local()
        self._lines: list[BlobLine] = []
        self._bytes = self._chunks = 0
        self._lock = threading.Lock()

    def send(self, began: float) -> Sent:
        manifest = pack_manifest(self._packed.manifest)
        snapshot_id = id_of(manifest)
        try:
            missing = self._check(snapshot_id)
            if missing is None:
                self._put(hashlib.sha256(manifest).hexdigest(), manifest)
                missing = self._check(snapshot_id) or []
            while missing:
                self._put_all([bytes.fromhex(digest) for digest in missing])
                missing = self._check(snapshot_id) or []
        finally:
            for line in self._lines:
                line.close()
        took_s = time.monotonic() - began
        return Sent(snapshot_id, self._packed.manifest.sha, self._packed, self._bytes, self._chunks, took_s)

    def _check(self, snapshot_id: str) -> list[str] | None:
        """What of it is missing; None where even its manifest is."""
        try:
            answer = self._insist(lambda line: line.ask("POST", f"/api/v1/snapshots/{snapshot_id}/check"))
        except MissingBlobs:
            return None
        return [str(digest) for digest in answer["missing"]]

    def _put_all(self, digests: list[bytes]) -> None:
        with ThreadPoolExecutor(min(THREADS, len(digests)), "dray-snapshot") as pool:
            futures = [pool.submit(self._put_chunk, digest) for digest in digests]
            done, waiting = wait(futures, return_when=FIRST_EXCEPTION)
            for future in waiting:
                future.cancel()
            for future in done:
                future.result()

    def _put_chunk(self, digest: bytes) -> None:
        self._put(digest.hex(), self._packed.read(digest))

    def _put(self, digest: str, data: bytes) -> None:
        self._insist(lambda line: line.put(digest, [data], len(data), False))
        with self._lock:
            self._bytes += len(data)
            self._chunks += 1

    def _insist(self, work: Callable[[BlobLine], Any]) -> Any:
        """Do something over this thread's line; a hub that restarts is waited for."""
        until = time.monotonic() + PATIENCE_S
        while True:
            line: BlobLine | None = getattr(self._own, "line", None)
            try:
                if line is None:
                    line = self._own.line = BlobLine(self._find())
                    self._lines.append(line)
                return work(line)
            except (*BROKEN, HubUnavailable) as fault:
                self._own.line = None
                if line is not None:
                    line.close()
                if time.monotonic() > until:
                    raise (
                        fault
                        if isinstance(fault, DrayError)
                        else HubUnavailable(
                            f"a snapshot did not get through: {fault}; what has arrived is kept: submit again to go on"
                        )
                    ) from fault
                time.sleep(RETRY_S)
