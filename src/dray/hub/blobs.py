"""Large values as files under the hub's home, named by what is in them: `blobs/ab/abcdef…`, the SHA-256 in hex.

Owns the files: a blob is there when its file is. A file is written under another name, hashed on its way, synced, and
only then given its own, so that whoever finds it finds all of it; two uploads of one digest do not disturb each other,
because both would leave the same bytes. The store lists blobs for one reason alone, to know which nobody needs any
more; the list may follow a little later, and a file that it lacks after a crash is entered when it is asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from dray.errors import Conflict, DrayError, NoSpace, NotFound, TooLarge
from dray.hub.store.base import BlobRow, Store
from dray.hub.store.writer import StoreWriter

DRAFTS = "drafts"
CHECK_BYTES = 64 << 20
SWEEP = 500
# A blob that was wanted within this time needs no new entry to be safe from the sweep.
RECENT_MS = 600_000
logger = logging.getLogger("dray.hub.blobs")


class Upload:
    """One blob on its way in; `write` and `seal` belong in a thread of their own."""

    def __init__(self, path: Path, most_bytes: int, has_space: Callable[[int], bool]) -> None:
        self.path, self.size = path, 0
        self._most, self._has_space, self._checked = most_bytes, has_space, 0
        self._hash = hashlib.sha256()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = path.open("xb")

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
        """Add the last of it and make the bytes durable, if they are what they were said to be."""
        self.write(pieces)
        found = self._hash.hexdigest()
        if found != digest:
            raise Conflict(
                f"the {self.size} bytes that arrived have the digest {found}, not {digest}: send them again whole"
            )
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def discard(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        self.path.unlink(missing_ok=True)


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
        self.folder, self.most_bytes = folder, most_bytes
        self._store, self._writer, self._has_space, self._clock_ms = store, writer, has_space, clock_ms
        self._count = count or (lambda size: None)
        # Blobs that the list does not show yet, and those whose files are being put into place.
        self._young: dict[str, BlobRow] = {}
        self._arriving: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._listing: asyncio.Task[None] | None = None
        # What an earlier hub had not finished nobody will ask for.
        shutil.rmtree(folder / DRAFTS, ignore_errors=True)

    def path(self, digest: str) -> Path:
        """Where a blob lies, or would lie."""
        return self.folder / digest[:2] / digest

    def find(self, digest: str) -> int:
        """Give the size of a blob that is there."""
        try:
            return self.path(digest).stat().st_size
        except OSError:
            raise NotFound(
                f"there is no blob {digest}: it was never uploaded, or the jobs that needed it are forgotten"
            ) from None

    def missing(self, digests: Sequence[str]) -> list[str]:
        """Give those that are not there; the others are wanted from now on, though no job may refer to them yet."""
        unknown = [digest for digest in digests if digest not in self._young]
        listed = self._store.find_blobs(unknown) if unknown else {}
        missing = []
        for digest in unknown:
            if digest in listed and self._clock_ms() - listed[digest].at_ms < RECENT_MS:
                continue
            try:
                self.want(digest, self.find(digest))
            except NotFound:
                missing.append(digest)
        return missing

    def begin(self, expected_bytes: int) -> Upload:
        """Start an upload of so many bytes (0 where that is not known)."""
        check_size(expected_bytes, self.most_bytes)
        check_space(self._has_space, expected_bytes)
        return Upload(self.folder / DRAFTS / secrets.token_hex(16), self.most_bytes, self._has_space)

    async def keep(self, upload: Upload, last: Sequence[bytes], digest: str) -> None:
        """File what arrived, `last` being the end of it, under its digest; after this it is there for everybody."""
        self._arriving[digest] += 1
        try:
            await asyncio.to_thread(self._place, upload, last, digest)
            self.want(digest, upload.size)
        finally:
            self._arriving[digest] -= 1
            self._arriving += Counter()
        self._count(upload.size)

    def _place(self, upload: Upload, last: Sequence[bytes], digest: str) -> None:
        upload.seal(last, digest)
        path = self.path(digest)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._lock:
            upload.path.replace(path)
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def want(self, digest: str, size: int) -> None:
        """Keep a blob for a while, though no job refers to it: somebody is about to."""
        self._young[digest] = BlobRow(size, self._clock_ms())
        if self._listing is None or self._listing.done():
            self._listing = asyncio.get_running_loop().create_task(self._list())

    async def _list(self) -> None:
        """Enter what is young into the list, many at a time; what cannot be entered now is entered later."""
        while self._young:
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

        def step(store: Store) -> tuple[int, int]:
            found = store.sweep_blobs(before_ms, SWEEP)
            return len(found), sum(map(self._remove, found))

        while True:
            struck, removed = await self._writer.run(step)
            gone += removed
            if struck < SWEEP:
                return gone

    def _remove(self, digest: str) -> bool:
        with self._lock:
            if digest in self._arriving or digest in self._young:
                return False
            self.path(digest).unlink(missing_ok=True)
            return True

    async def list_strays(self) -> int:
        """Enter files that the list lacks since a crash; once after a start is enough. Gives how many there were.

        Not removed: a job may refer to them, which the sweep knows and this does not.
        """
        strays = 0
        for folder in sorted(self.folder.glob("[0-9a-f][0-9a-f]")):
            sizes = await asyncio.to_thread(_sizes, folder)
            listed = self._store.find_blobs(list(sizes))
            for digest in sizes.keys() - listed.keys() - self._young.keys():
                self.want(digest, sizes[digest])
                strays += 1
        return strays


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def check_size(size: int, most_bytes: int) -> None:
    """Refuse what is over the limit, and name it."""
    if size > most_bytes:
        raise TooLarge(
            f"a value of {size} bytes is over the limit of {most_bytes}: pass a path to shared storage instead, "
            "or raise max_blob_bytes of [hub]"
        )


def check_space(has_space: Callable[[int], bool], size: int) -> None:
    """Refuse what would fill the disk."""
    if not has_space(size):
        raise NoSpace(
            f"the hub's disk has no room for {size} more bytes: free some, or wait until old jobs are gone"
        )
