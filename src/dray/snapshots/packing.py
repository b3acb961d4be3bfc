"""From a folder to a manifest and the chunks it names, each of which can be read again from the folder.

Nothing is copied: a chunk is where its bytes are. Large files are cut by what is in them; small ones lie together in a
chunk, in the order of their paths, and where one chunk of them ends is said by what is in the last, so that one more
file or one fewer moves no more than its own. Surprising rule: a file that is written to meanwhile is read again, and
what cannot be read twice alike is refused, since nobody could say later what had run.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from dray.core.model.units import format_bytes
from dray.errors import InvalidSnapshot, TooLarge
from dray.snapshots.manifest import File, Manifest, make_manifest
from dray.snapshots.memory import MOST_BUNDLES, Known, Memory, memory_path, recall, remember
from dray.snapshots.walking import Seen, Tree, Walk

SMALL_BYTES = 128 << 10
LEAST_BUNDLE, MOST_BUNDLE = 64 << 10, 512 << 10
# One small file in four may end a bundle.
_ENDS_BELOW = 64
MOST_BYTES = 4 << 30
TRIES = 3
LARGEST = 5
_THREADS = 4
_READ = 1 << 20


class Part(NamedTuple):
    """So many bytes of a file of the folder."""

    path: str
    offset: int
    size: int


class Packed(NamedTuple):
    """A folder that is ready to travel. `read_bytes`: how much of it had to be read for that."""

    tree: Tree
    manifest: Manifest
    places: dict[bytes, list[Part]]
    read_bytes: int

    def read(self, digest: bytes) -> bytes:
        """The bytes of a chunk; raises Changed where they are no longer there."""
        pieces = [_read_part(self.tree.root, part) for part in self.places[digest]]
        data = b"".join(pieces)
        if hashlib.sha256(data).digest() != digest:
            raise Changed(self.places[digest][0].path)
        return data


class Changed(Exception):
    """A file is not what it was a moment ago."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def pack(root: str, most_bytes: int = MOST_BYTES) -> Packed:
    """Pack a folder; raises InvalidSnapshot or TooLarge, in words that say what to do."""
    place = memory_path(root)
    memory = recall(place)
    walk = Walk(root, memory.verdicts)
    tree = walk.run()
    _check_size(tree, most_bytes)
    for left in range(TRIES - 1, -1, -1):
        packer = _Packer(root, memory, walk.asked)
        try:
            packed = packer.pack(tree)
        except Changed as fault:
            if not left:
                raise changing(fault.path) from None
        else:
            remember(place, packer.fresh)
            return packed
    raise AssertionError(root)


def largest(tree: Tree, count: int = LARGEST) -> list[tuple[str, int]]:
    """What takes most: entries of the root, files by themselves and folders with all that is in them."""
    sizes: dict[str, int] = {}
    for file in tree.files:
        name, mark, _ = file.path.partition("/")
        sizes[name + mark] = sizes.get(name + mark, 0) + file.size
    return sorted(sizes.items(), key=lambda item: -item[1])[:count]


def _check_size(tree: Tree, most_bytes: int) -> None:
    if tree.size > most_bytes:
        shown = ", ".join(f"{path} {format_bytes(size)}" for path, size in largest(tree))
        raise TooLarge(
            f"{tree.root} has {format_bytes(tree.size)} in {len(tree.files)} files, and a snapshot takes at most "
            f"{format_bytes(most_bytes)} (largest: {shown}): name what the job does not need in .drayignore, pass "
            "data as a path to shared storage, or give a higher --snapshot-limit"
        )


class _Packer:
    def __init__(self, root: str, memory: Memory, verdicts: dict[str, dict[str, bool]]) -> None:
        self._root, self._memory = root, memory
        self.fresh = Memory(verdicts=verdicts)
        self._read_bytes = 0

    def pack(self, tree: Tree) -> Packed:
        known = dict(self._know(tree.files))
        small = [seen for seen in tree.files if not known[seen.path].chunks]
        large = [seen for seen in tree.files if known[seen.path].chunks]
        chunks: list[tuple[bytes, int]] = []
        places: dict[bytes, list[Part]] = {}
        for bundle in _bundles(small, known):
            digest, size = self._bundle(bundle, known)
            chunks.append((digest, size))
            places.setdefault(digest, [Part(seen.path, 0, known[seen.path].size) for seen in bundle])
        for seen in large:
            offset = 0
            for digest, size in known[seen.path].chunks:
                chunks.append((digest, size))
                places.setdefault(digest, [Part(seen.path, offset, size)])
                offset += size
        files = [
            File(seen.path, known[seen.path].size, known[seen.path].sha, seen.runs)
            for seen in [*small, *large]
        ]
        self.fresh.files = known
        manifest = make_manifest(files, tree.links, tree.folders, chunks)
        return Packed(tree, manifest, places, self._read_bytes)

    def _know(self, files: list[Seen]) -> Iterator[tuple[str, Known]]:
        unknown: list[Seen] = []
        for seen in files:
            known = self._memory.files.get(seen.path)
            if known is not None and known.is_still(seen):
                yield seen.path, known
            else:
                unknown.append(seen)
        self._read_bytes += sum(seen.size for seen in unknown)
        if len(unknown) < _THREADS:
            yield from ((seen.path, _read_file(self._root, seen)) for seen in unknown)
            return
        with ThreadPoolExecutor(_THREADS) as pool:
            found = pool.map(lambda seen: _read_file(self._root, seen), unknown)
            yield from zip((seen.path for seen in unknown), found, strict=True)

    def _bundle(self, bundle: list[Seen], known: dict[str, Known]) -> tuple[bytes, int]:
        key = hashlib.sha256(b"".join(known[seen.path].sha for seen in bundle)).digest()[:16]
        found = self._memory.bundles.get(key)
        if found is None:
            found = self._read_bundle(bundle, known)
        if len(self.fresh.bundles) < MOST_BUNDLES:
            self.fresh.bundles[key] = found
        return found

    def _read_bundle(self, bundle: list[Seen], known: dict[str, Known]) -> tuple[bytes, int]:
        total, size = hashlib.sha256(), 0
        for seen in bundle:
            data = _read_part(self._root, Part(seen.path, 0, known[seen.path].size))
            if hashlib.sha256(data).digest() != known[seen.path].sha:
                raise Changed(seen.path)
            total.update(data)
            size += len(data)
        return total.digest(), size


def _bundles(small: list[Seen], known: dict[str, Known]) -> Iterator[list[Seen]]:
    bundle: list[Seen] = []
    size = 0
    for seen in small:
        file = known[seen.path]
        if not file.size:
            # In no chunk at all, and so in any: it stands between its neighbours.
            bundle.append(seen)
            continue
        if size and size + file.size > MOST_BUNDLE:
            yield bundle
            bundle, size = [], 0
        bundle.append(seen)
        size += file.size
        if size >= LEAST_BUNDLE and file.sha[0] < _ENDS_BELOW:
            yield bundle
            bundle, size = [], 0
    if size:
        yield bundle


def _read_file(root: str, seen: Seen) -> Known:
    """Read a file as it is now, and say what it was then; raises where it does not hold still."""
    for _ in range(TRIES):
        known = _read_once(root, seen)
        if known is not None:
            return known
    raise changing(seen.path)


def _read_once(root: str, seen: Seen) -> Known | None:
    from dray.snapshots.cutting import (
        cut_file,  # here: numpy takes its time, and mostly nothing large has changed
    )

    total, chunks = hashlib.sha256(), list[tuple[bytes, int]]()
    try:
        with _open(root, seen.path) as file:
            before = os.fstat(file.fileno())
            if before.st_size < SMALL_BYTES:
                total.update(file.read(SMALL_BYTES))
            else:
                for piece in cut_file(file):
                    total.update(piece)
                    chunks.append((hashlib.sha256(piece).digest(), len(piece)))
            after = os.fstat(file.fileno())
    except FileNotFoundError:
        raise InvalidSnapshot(f"{root}/{seen.path} went away while it was packed: submit again") from None
    except OSError as fault:
        raise InvalidSnapshot(
            f"{root}/{seen.path} cannot be read: {fault.strerror}; name it in .drayignore if the job does not need it"
        ) from None
    if (before.st_size, before.st_mtime_ns, before.st_ctime_ns) != (
        after.st_size,
        after.st_mtime_ns,
        after.st_ctime_ns,
    ):
        return None
    if chunks and sum(size for _, size in chunks) != before.st_size:
        return None
    times = (before.st_mtime_ns, before.st_ctime_ns, before.st_ino, time.time_ns())
    return Known(before.st_size, *times, total.digest(), chunks)


def _open(root: str, path: str):  # type: ignore[no-untyped-def]  # a BufferedReader, whatever typing calls it
    # A file that has become a link since would be read wherever that leads.
    handle = os.open(f"{root}/{path}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    return open(handle, "rb", buffering=0)


def _read_part(root: str, part: Part) -> bytes:
    try:
        with _open(root, part.path) as file:
            file.seek(part.offset)
            pieces, left = [], part.size
            while left and (piece := file.read(min(left, _READ))):
                pieces.append(piece)
                left -= len(piece)
            return b"".join(pieces)
    except OSError:
        raise Changed(part.path) from None


def changing(path: str) -> InvalidSnapshot:
    """What a file is refused with that does not hold still."""
    return InvalidSnapshot(
        f"{path} is written to while it is packed: stop what writes it, or name it in .drayignore where the job does "
        "not need it"
    )
