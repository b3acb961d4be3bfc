"""A snapshot brought back from the hub: what is in it, and all of it into a folder. Blocking."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator

from dray.client.reach.blob_line import BlobLine
from dray.client.reach.discovery import Target
from dray.errors import Conflict, HubUnavailable, InvalidInput
from dray.snapshots.manifest import Manifest, digest_of, read_manifest
from dray.wire.reach.http_line import BROKEN


def fetch_manifest(find: Callable[[], Target], snapshot_id: str) -> Manifest:
    """What is in a snapshot."""
    digest = digest_of(snapshot_id)
    if not digest:
        raise InvalidInput(f"{snapshot_id[:80]!r} is not the id of a snapshot: snap- and 64 of 0-9 a-f")
    with _line(find) as line:
        return read_manifest(_checked(digest, line.read(digest)))


def fetch_tree(find: Callable[[], Target], snapshot_id: str, folder: str) -> Manifest:
    """Write a snapshot into a folder that is new, or empty; what breaks off leaves what has come by then."""
    manifest = fetch_manifest(find, snapshot_id)
    os.makedirs(folder, exist_ok=True)
    if os.listdir(folder):
        raise Conflict(f"{folder} is not empty: name a new folder")
    for path in manifest.folders:
        os.makedirs(f"{folder}/{path}", exist_ok=True)
    chunks = iter(manifest.chunks)
    held = b""
    with _line(find) as line:
        for file in manifest.files:
            place = f"{folder}/{file.path}"
            os.makedirs(os.path.dirname(place), exist_ok=True)
            left, found = file.size, hashlib.sha256()
            mode = 0o777 if file.runs else 0o666
            with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as out:
                while left:
                    if not held:
                        digest = next(chunks)[0].hex()
                        held = _checked(digest, line.read(digest))
                    piece, held = held[:left], held[left:]
                    found.update(piece)
                    out.write(piece)
                    left -= len(piece)
            if found.digest() != file.sha:
                raise Conflict(
                    f"{file.path} came to {found.hexdigest()}, and the manifest says {file.sha.hex()}"
                )
    for path, target in manifest.links:
        os.makedirs(os.path.dirname(f"{folder}/{path}"), exist_ok=True)
        os.symlink(target, f"{folder}/{path}")
    return manifest


@contextlib.contextmanager
def _line(find: Callable[[], Target]) -> Iterator[BlobLine]:
    line = BlobLine(find())
    try:
        yield line
    except BROKEN as fault:
        raise HubUnavailable(f"the snapshot broke off: {fault}") from fault
    finally:
        line.close()


def _checked(digest: str, data: bytes) -> bytes:
    if hashlib.sha256(data).hexdigest() != digest:
        raise HubUnavailable(f"what came as {digest[:12]} is something else: ask again")
    return data
