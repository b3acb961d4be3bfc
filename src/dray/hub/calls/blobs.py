"""Large values, named by what is in them; where they lie is `hub.files`' to know.

Owns the list of blobs, and what comes over HTTP: hashed on its way, so that it is what it says, and only then given its
name; two uploads of one digest do not disturb each other, because both would leave the same bytes. Programs of its
machine may put files there themselves. A blob is there when its file is; the store lists blobs for one reason alone, to
know which nobody needs any more. The list may follow a little later, and a file that it lacks is entered when it is
referred to, or after the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Sequence

from dray.errors import Conflict, DrayError, NotFound
from dray.hub.files.base import BlobFiles
from dray.hub.store.base import BlobRow, Store
from dray.hub.store.writer import StoreWriter
from dray.wire.local.blob_folder import check_size, no_space

CHECK_BYTES = 64 << 20
SWEEP = 500
# So long blobs are gathered before they are listed together.
LIST_S = 0.5
# A blob that was wanted within this time needs no new entry to be safe from the sweep.
RECENT_MS = 600_000
logger = logging.getLogger("dray.hub.calls.blobs")


class Upload:
    """One blob on its way in; `write`, `seal` and `discard` belong in a thread of their own."""

    def __init__(self, files: BlobFiles, most_bytes: int, has_space: Callable[[int], bool]) -> None:
        self.size, self.draft = 0, files.begin()
        self._most, self._has_space, self._checked = most_bytes, has_space, 0
        self._hash = hashlib.sha256()

    def write(self, pieces: Sequence[bytes]) -> None:
        """Add what came; a blob that is too large or finds no room is refused as soon as that is known."""
        size = self.size + sum(map(len, pieces))
        check_size(size, self._most)
        if size - self._checked > CHECK_BYTES:
            check_space(self._has_space, size - self.size)
            self._checked = size
        for piece in pieces:
            self._hash.update(piece)
            self.draft.write(piece)
        self.size = size

    def seal(self, pieces: Sequence[bytes], digest: str) -> None:
        """Add the last of it, if all of it is what it was said to be."""
        self.write(pieces)
        found = self._hash.hexdigest()
        if found != digest:
            raise Conflict(
                f"the {self.size} bytes that arrived have the digest {found}, not {digest}: send them again whole"
            )

    def discard(self) -> None:
        """Leave nothing behind."""
        self.draft.discard()


class Blobs:
    """The blobs of one hub."""

    def __init__(
        self,
        files: BlobFiles,
        store: Store,
        writer: StoreWriter,
        most_bytes: int,
        has_space: Callable[[int], bool],
        clock_ms: Callable[[], int],
        count: Callable[[float], None] | None = None,
    ) -> None:
        self.files, self.most_bytes = files, most_bytes
        self._store, self._writer, self._has_space, self._clock_ms = store, writer, has_space, clock_ms
        self._count = count or (lambda size: None)
        # Blobs that the list does not show yet, and those that are just being looked for in it.
        self._young: dict[str, BlobRow] = {}
        self._asked: set[str] = set()
        self._listing: asyncio.Task[None] | None = None
        # Told of blobs that a sweep has removed.
        self.on_gone: list[Callable[[Sequence[str]], None]] = []

    def find(self, digest: str) -> int:
        """Give the size of a blob that is there."""
        size = self.files.size_of(digest)
        if size is None:
            raise unknown_blob(digest)
        return size

    async def look_up(self, digest: str, renewed: bool = False) -> int:
        """The same without holding anybody up; with `renewed` it is kept for a while."""
        ask = self.files.renew if renewed else self.files.size_of
        size = ask(digest) if self.files.near else await asyncio.to_thread(ask, digest)
        if size is None:
            raise unknown_blob(digest)
        if renewed:
            self.note(digest, size)
        return size

    def missing(self, digests: Sequence[str]) -> list[str]:
        """Give those that are not there; the others are wanted from now on, though no job may refer to them yet."""
        unknown = [digest for digest in digests if digest not in self._young]
        if not self.files.near:
            return self._unlisted(unknown)
        listed = self._store.find_blobs(unknown) if unknown else {}
        missing = []
        for digest in unknown:
            if digest in listed and self._clock_ms() - listed[digest].at_ms < RECENT_MS:
                continue
            if self.renew(digest) is None:
                missing.append(digest)
        return missing

    def _unlisted(self, digests: Sequence[str]) -> list[str]:
        """Where a look would be a journey, what the list lacks is not there; what it has, a sweep leaves alone."""
        self._asked.update(digests)
        try:
            listed = self._store.find_blobs(digests) if digests else {}
            for digest, row in listed.items():
                if self._clock_ms() - row.at_ms >= RECENT_MS / 2:
                    self.note(digest, row.size)
        finally:
            self._asked.difference_update(digests)
        return [digest for digest in digests if digest not in listed]

    def gone(self, digests: Sequence[str]) -> list[str]:
        """Give those that are not there; on a thread."""
        if self.files.near:
            return [digest for digest in digests if self.files.size_of(digest) is None]
        listed = self._store.find_blobs(digests)
        return [digest for digest in digests if digest not in listed and digest not in self._young]

    def renew(self, digest: str) -> int | None:
        """Keep a blob for a while: somebody is about to refer to it. Gives its size; None where it is not there."""
        size = self.files.renew(digest)
        if size is not None:
            self.note(digest, size)
        return size

    def begin(self, expected_bytes: int) -> Upload:
        """Start an upload of so many bytes (0 where that is not known)."""
        check_size(expected_bytes, self.most_bytes)
        check_space(self._has_space, expected_bytes)
        return Upload(self.files, self.most_bytes, self._has_space)

    async def keep(self, upload: Upload, last: Sequence[bytes], digest: str) -> None:
        """File what arrived, `last` being the end of it, under its digest; after this it is there for everybody."""
        await asyncio.to_thread(self._place, upload, last, digest)
        self.note(digest, upload.size)
        self._count(upload.size)

    def _place(self, upload: Upload, last: Sequence[bytes], digest: str) -> None:
        upload.seal(last, digest)
        self.files.place(upload.draft, digest)

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

        def step(store: Store) -> tuple[list[str], list[str]]:
            found = store.sweep_blobs(before_ms, SWEEP)
            kept = [one for one in found if self._is_wanted(one) or not remove(one)]
            left = {*kept}
            lost = [one for one in found if one not in left]
            if lost:
                # What they held goes with the next portion.
                store.drop_holds(lost)
            return lost, kept

        def remove(digest: str) -> bool:
            return self.files.remove(digest, before_ms / 1000)

        await asyncio.to_thread(self.files.remove_drafts, before_ms / 1000)
        while True:
            lost, kept = await self._writer.run(step)
            gone += len(lost)
            for hear in self.on_gone:
                hear(lost)
            for digest in kept:
                # Put there anew, by a program that is about to refer to it.
                with contextlib.suppress(NotFound):
                    await self.look_up(digest, renewed=True)
            if not lost:
                return gone

    def _is_wanted(self, digest: str) -> bool:
        return not self.files.near and (digest in self._young or digest in self._asked)

    async def list_strays(self) -> int:
        """Enter files that the list lacks since a crash; once after a start is enough. Gives how many there were.

        Not removed: a job may refer to them, which the sweep knows and this does not.
        """
        strays = 0
        for number in range(256):
            sizes = await asyncio.to_thread(self.files.sizes, number)
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


def check_space(has_space: Callable[[int], bool], size: int) -> None:
    """Refuse what would fill the disk."""
    if not has_space(size):
        raise no_space(size)
