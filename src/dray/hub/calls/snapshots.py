"""Snapshots at the hub: trees that jobs run in, kept as blobs for as long as a job uses them.

A job refers to the manifest alone, however many chunks there are: what the manifest names is held by it, under a name
that no job can have, from the first job on that uses it until the manifest goes. Surprising rule: an id that does not
begin like those made here is somebody else's (a foreign worker may know what to do with it), and is passed on unread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dray.errors import InvalidInput, MissingBlobs, Problem, TooLarge
from dray.hub.access.caller import Caller
from dray.hub.calls.blob_access import BlobAccess
from dray.hub.calls.blobs import Blobs
from dray.hub.store.base import HOLDS, BlobRef
from dray.snapshots.environments import environment_digest
from dray.snapshots.manifest import MOST_MANIFEST_BYTES, Manifest, digest_of, read_manifest

# So many are known to be whole without a look.
KNOWN = 4096
# So many missing chunks are named at once: who sends those asks again.
MOST_NAMED = 20_000
Holds = Mapping[str, Sequence[str]]
logger = logging.getLogger("dray.hub.calls.snapshots")


class Snapshots:
    """Those of one hub."""

    def __init__(self, blobs: Blobs, access: BlobAccess, most_bytes: int) -> None:
        self._blobs, self._access, self._most = blobs, access, most_bytes
        self._known: OrderedDict[str, None] = OrderedDict()
        blobs.on_gone.append(self.forget)

    async def check(self, caller: Caller, snapshot_id: str) -> dict[str, Any]:
        """Say what is in a snapshot whose manifest is here, and which of its chunks are not."""
        digest = digest_of(snapshot_id)
        if not digest:
            raise InvalidInput(f"{snapshot_id[:80]!r} is not the id of a snapshot: snap- and 64 of 0-9 a-f")
        self._require(caller, snapshot_id, digest)
        manifest = await self._read(digest)
        missing = await self._missing(caller, manifest)
        return describe(snapshot_id, manifest) | {"missing": missing[:MOST_NAMED]}

    async def settle(self, caller: Caller, snapshot_ids: Iterable[str]) -> Holds:
        """See that what jobs are to run in is here, whole, and theirs to use. Gives what each manifest is to hold from
        now on; nothing where it does already. Raises MissingBlobs.
        """
        wanted = {snapshot_id: digest_of(snapshot_id) for snapshot_id in snapshot_ids}
        holds: dict[str, Sequence[str]] = {}
        for snapshot_id, digest in wanted.items():
            if environment := environment_digest(snapshot_id):
                self._require(caller, snapshot_id, environment)
                holds[environment] = ()
            if not digest:
                continue
            self._require(caller, snapshot_id, digest)
            holds[digest] = () if digest in self._known else await self._open(caller, snapshot_id, digest)
        return holds

    def recorded(self, holds: Holds) -> None:
        """Note what is held now, after the commit that says so."""
        for digest in holds:
            self._known[digest] = None
            self._known.move_to_end(digest)
        while len(self._known) > KNOWN:
            self._known.popitem(last=False)

    def forget(self, digests: Sequence[str]) -> None:
        """Some blobs are gone: what those of them held that are manifests is held no longer."""
        for digest in digests:
            self._known.pop(digest, None)

    async def _open(self, caller: Caller, snapshot_id: str, digest: str) -> Sequence[str]:
        manifest = await self._read(digest)
        if missing := await self._missing(caller, manifest):
            raise MissingBlobs(
                f"{len(missing)} of the {len(manifest.chunks)} chunks of snapshot {snapshot_id} are not here: upload "
                "them, then submit again",
                [Problem(one, "is not here") for one in missing[:MOST_NAMED]],
            )
        return _chunks(manifest)

    def _require(self, caller: Caller, snapshot_id: str, digest: str) -> None:
        if self._access.missing(caller, [digest]):
            raise MissingBlobs(
                f"there is no {snapshot_id} here: it was never uploaded, is not yours, or went with the last job that "
                "used it: submit again with the folder or file that it was made of",
                [Problem(digest, "is not here")],
            )

    async def _read(self, digest: str) -> Manifest:
        size = await self._blobs.look_up(digest, renewed=True)
        if size > MOST_MANIFEST_BYTES:
            raise TooLarge(
                f"the manifest of a snapshot has at most {MOST_MANIFEST_BYTES} bytes, this one {size}"
            )
        manifest = await asyncio.to_thread(self._read_now, digest)
        if manifest.size > self._most:
            raise TooLarge(
                f"a snapshot of {manifest.size} bytes is over the limit of {self._most}: leave out what the job does "
                "not need (.drayignore), or raise max_snapshot_bytes of [hub]"
            )
        return manifest

    def _read_now(self, digest: str) -> Manifest:
        file = self._blobs.files.open(digest)
        try:
            pieces = []
            while piece := file.read(1 << 20):
                pieces.append(piece)
        finally:
            file.close()
        return read_manifest(b"".join(pieces))

    async def _missing(self, caller: Caller, manifest: Manifest) -> list[str]:
        return await self._access.lacking(caller, _chunks(manifest))


def refs_of(job_id: str, snapshot_id: str, environment: str, holds: Holds) -> Iterable[BlobRef]:
    """What a new job refers to: its environment, its snapshot, and with that what it is the first to hold."""
    if built := environment_digest(environment):
        yield BlobRef(built, job_id)
    digest = digest_of(snapshot_id)
    if digest:
        yield BlobRef(digest, job_id)
        for chunk in holds.get(digest, ()):
            yield BlobRef(chunk, HOLDS + digest)


def describe(snapshot_id: str, manifest: Manifest) -> dict[str, Any]:
    """A snapshot as people are told of it."""
    return {
        "id": snapshot_id,
        "sha": manifest.sha,
        "files": len(manifest.files),
        "bytes": manifest.size,
        "chunks": len(manifest.chunks),
    }


def _chunks(manifest: Manifest) -> list[str]:
    return list(dict.fromkeys(digest.hex() for digest, _ in manifest.chunks))
