"""Large values as files under the hub's home, named by what is in them; `wire/local/blob_folder.py` says how they lie.

Owns the list of blobs, and what comes over HTTP: hashed on its way, so that it is what it says, and only then given its
name; two uploads of one digest do not disturb each other, because both would leave the same bytes. Programs of this
machine put files there themselves. A blob is there when its file is; the store lists blobs for one reason alone, to
know which nobody needs any more. The list may follow a little later, and a file that it lacks is entered when it is
referred to, or after the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from dray.errors import Conflict, DrayError, NotFound
from dray.hub.store.base import BlobRow, Store
from dray.hub.store.writer import StoreWriter
from dray.wire.local.blob_folder import BlobFolder, check_size, no_space

CHECK_BYTES = 64 << 20
SWEEP = 500
# So long blobs are gathered before they are listed together.
LIST_S = 0.5
# A blob that was wanted within this time needs no new entry to be safe from the sweep.
RECENT_MS = 600_000
logger = logging.getLogger("dray.hub.calls.blobs")


class Upload:
    """One blob on its way in; `write` and `seal` belong in a thread of their own."""

    def __init__(self, path: str, most_bytes: int, has_space: Callable[[int], bool]) -> None:
        self.path, self.size = path, 0
        self._most, self._has_space, self._checked = most_bytes, has_space, 0
        self._hash = hashlib.sha256()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.fdopen(os.open(path, flags, 0o600), "wb")  # closed by `seal` or `discard`

    def write(self, pieces: Sequence[bytes]) -> None:
        """Add what came; a blob that is too large or finds no room is refused as soon as that is known."""
        size = self.size + sum(map(len, pieces))
        check_size(size, self._most)
        if size - self._checked > CHECK_BYTES:
            check_space(self._has_space, size - self.size)
            self._checked = size
        for piece in pieces:
            self._hash.update(piece)
            self._file.write(piece)
        self.size = size

    def seal(self, pieces: Sequence[bytes], digest: str) -> None:
        """Add the last of it, if all of it is what it was said to be."""
        self.write(pieces)
        found = self._hash.hexdigest()
        if found != digest:
            raise Conflict(
                f"the {self.size} bytes that arrived have the digest {found}, not {digest}: send them again whole"
            )
        self._file.close()

    def discard(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        Path(self.path).unlink(missing_ok=True)


class Blobs:
    """The blobs of one hub."""

    def __init__(
        self,
        folder: Path,
        store: Store,
        writer: StoreWriter,
        most_bytes: int,
        has_space: Callable[[int], bool],
        clock_ms: Callable[[], int],
        count: Callable[[float], None] | None = None,
    ) -> None:
        self.folder, self.most_bytes = BlobFolder(str(folder)), most_bytes
        self._store, self._writer, self._has_space, self._clock_ms = store, writer, has_space, clock_ms
        self._count = count or (lambda size: None)
        # Blobs that the list does not show yet.
        self._young: dict[str, BlobRow] = {}
        self._listing: asyncio.Task[None] | None = None

    def path(self, digest: str) -> Path:
        """Where a blob lies, or would lie."""
        return Path(self.folder.path(digest))

    def find(self, digest: str) -> int:
        """Give the size of a blob that is there."""
        try:
            return self.path(digest).stat().st_size
        except OSError:
            raise unknown_blob(digest) from None

    def missing(self, digests: Sequence[str]) -> list[str]:
        """Give those that are not there; the others are wanted from now on, though no job may refer to them yet."""
        unknown = [digest for digest in digests if digest not in self._young]
        listed = self._store.find_blobs(unknown) if unknown else {}
        missing = []
        for digest in unknown:
            if digest in listed and self._clock_ms() - listed[digest].at_ms < RECENT_MS:
                continue
            if self.renew(digest) is None:
                missing.append(digest)
        return missing

    def renew(self, digest: str) -> int | None:
        """Keep a blob for a while: somebody is about to refer to it. Gives its size; None where it is not there."""
        if not self.folder.renew(digest):
            return None
        size = self.find(digest)
        self.note(digest, size)
        return size

    def begin(self, expected_bytes: int) -> Upload:
        """Start an upload of so many bytes (0 where that is not known)."""
        check_size(expected_bytes, self.most_bytes)
        check_space(self._has_space, expected_bytes)
        return Upload(self.folder.draft(), self.most_bytes, self._has_space)

    async def keep(self, upload: Upload, last: Sequence[bytes], digest: str) -> None:
        """File what arrived, `last` being the end of it, under its digest; after this it is there for everybody."""
        await asyncio.to_thread(self._place, upload, last, digest)
        self.note(digest, upload.size)
        self._count(upload.size)

    def _place(self, upload: Upload, last: Sequence[bytes], digest: str) -> None:
        upload.seal(last, digest)
        self.folder.place(upload.path, digest)

    def note(self, digest: str, size: int) -> None:
        """Enter a blob that is there into the list, as wanted now."""
        self._young[digest] = BlobRow(size, self._clock_ms())
        if self._listing is None or self._listing.done():
            self._listing = asyncio.get_running_loop().create_task(self._list())

    async def _list(self) -> None:
        """Enter what is young into the list, many at a time; what cannot be entered now is entered later."""
        while self._young:
            await asyncio.sleep(LIST_S)
            rows = dict(self._young)
            try:
                await self._writer.run(lambda store, rows=rows: store.save_blobs(rows))  # type: ignore[misc]  # bound now
            except DrayError as fault:
                logger.warning("blobs could not be listed: %s", fault)
                return
            for digest, row in rows.items():
                if self._young.get(digest) is row:
                    del self._young[digest]

    async def sweep(self, idle_s: float) -> int:
        """Remove what no job refers to and nobody wanted lately; gives how many went."""
        before_ms, gone = self._clock_ms() - round(idle_s * 1000), 0

        def step(store: Store) -> tuple[int, list[str]]:
            found = store.sweep_blobs(before_ms, SWEEP)
            return len(found), [one for one in found if not self.folder.remove(one, before_ms / 1000)]

        await asyncio.to_thread(self.folder.remove_drafts, before_ms / 1000)
        while True:
            struck, kept = await self._writer.run(step)
            gone += struck - len(kept)
            for digest in kept:
                # Put there anew, by a program that is about to refer to it.
                self.renew(digest)
            if struck < SWEEP:
                return gone

    async def list_strays(self) -> int:
        """Enter files that the list lacks since a crash; once after a start is enough. Gives how many there were.

        Not removed: a job may refer to them, which the sweep knows and this does not.
        """
        strays = 0
        for number in range(256):
            sizes = await asyncio.to_thread(_sizes, Path(self.folder.root) / f"{number:02x}")
            listed = await asyncio.to_thread(self._store.find_blobs, list(sizes))
            for digest in sizes.keys() - listed.keys() - self._young.keys():
                self.note(digest, sizes[digest])
                strays += 1
        return strays


def unknown_blob(digest: str) -> NotFound:
    """What one is answered who asks for a blob that is not there, or not his."""
    return NotFound(
        f"there is no blob {digest}: it was never uploaded, no job of yours uses it, or those that did are forgotten"
    )


def _sizes(folder: Path) -> dict[str, int]:
    with contextlib.suppress(FileNotFoundError):
        return {path.name: path.stat().st_size for path in folder.iterdir()}
    return {}


def check_space(has_space: Callable[[int], bool], size: int) -> None:
    """Refuse what would fill the disk."""
    if not has_space(size):
        raise no_space(size)
