"""Large values as files under the hub's home, named by what is in them: `blobs/ab/abcdef…`, the SHA-256 in hex.

Owns the files; which of them are there is said by the store's list, and a file without an entry is nothing. A file is
written under another name, hashed on its way, synced, and only then given its own: whoever finds it finds all of it.
Two uploads of one digest do not disturb each other, because both would leave the same bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from dray.errors import InvalidInput, NoSpace, NotFound, NotReady, TooLarge
from dray.hub.store.base import Store
from dray.hub.store.writer import StoreWriter

DRAFTS = "drafts"
CHECK_BYTES = 64 << 20
SWEEP = 500


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

    def seal(self, digest: str) -> None:
        """Make the bytes durable, if they are what they were said to be."""
        found = self._hash.hexdigest()
        if found != digest:
            raise InvalidInput(
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
        # What an earlier hub had not finished nobody will ask for.
        shutil.rmtree(folder / DRAFTS, ignore_errors=True)

    def path(self, digest: str) -> Path:
        """Where a blob lies, or would lie."""
        return self.folder / digest[:2] / digest

    def find(self, digest: str) -> int:
        """Give the size of a blob that is there."""
        row = self._store.find_blobs([digest]).get(digest)
        if row is None or not self.path(digest).exists():
            raise NotFound(
                f"there is no blob {digest}: it was never uploaded, or the jobs that needed it are forgotten"
            )
        return row.size

    def begin(self, expected_bytes: int) -> Upload:
        """Start an upload of so many bytes (0 where that is not known)."""
        check_size(expected_bytes, self.most_bytes)
        check_space(self._has_space, expected_bytes)
        return Upload(self.folder / DRAFTS / secrets.token_hex(16), self.most_bytes, self._has_space)

    def place(self, upload: Upload, digest: str) -> None:
        """Give a sealed upload its name; in a thread of its own."""
        path = self.path(digest)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        upload.path.replace(path)
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    async def enlist(self, digest: str, size: int) -> None:
        """Enter a blob whose file is in place into the list, or note that it is wanted."""
        at_ms, path = self._clock_ms(), self.path(digest)

        def save(store: Store) -> None:
            # In the thread that sweeps: from here on its file cannot be taken away.
            if not path.exists():
                raise NotReady("this blob was being removed as it arrived: send it again")
            store.save_blob(digest, size, at_ms)

        await self._writer.run(save)

    async def keep(self, upload: Upload, digest: str) -> None:
        """File what arrived under its digest; after this it is there for everybody."""
        await asyncio.to_thread(upload.seal, digest)
        await asyncio.to_thread(self.place, upload, digest)
        await self.enlist(digest, upload.size)
        self._count(upload.size)

    async def sweep(self, idle_s: float) -> int:
        """Remove what no job refers to and nobody wanted lately; gives how many went."""
        before_ms, gone = self._clock_ms() - round(idle_s * 1000), 0

        def step(store: Store) -> int:
            found = store.sweep_blobs(before_ms, SWEEP)
            for digest in found:
                self.path(digest).unlink(missing_ok=True)
            return len(found)

        while count := await self._writer.run(step):
            gone += count
        return gone


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
