"""What a snapshot is: the list of all that is in a tree, and of the chunks that its contents are cut into.

A manifest is a blob, and its digest is the snapshot's id; `sha` names what is in the tree and nothing else, so that one
tree has one, however it was cut. Contents have no places of their own: all chunks one behind another are all files one
behind another, in the order of the manifest. Surprising rule: nothing in it is believed. Whoever reads one checks it
here first, since it came from somebody else: names that lead out of the tree, links that do, sums that do not add up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec

from dray.errors import InvalidSnapshot

MAGIC = "dray-snapshot-1"
MOST_FILES = 100_000
MOST_BYTES = 64 << 30
# Of the manifest itself, and of one chunk.
MOST_MANIFEST_BYTES = 48 << 20
MOST_CHUNK_BYTES = 4 << 20
MOST_CHUNKS = 200_000
MOST_DEPTH = 64
MOST_PATH_BYTES, MOST_NAME_BYTES = 2048, 255
DIGEST_BYTES = 32
_FILES = msgspec.Meta(max_length=MOST_FILES)


class File(NamedTuple):
    """One file: its path from the root of the tree, what is in it, and whether it may be executed."""

    path: str
    size: int
    sha: bytes
    runs: bool = False


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """One tree. `links` are (path, target), `folders` those in which nothing is, `chunks` (digest, size)."""

    magic: str
    sha: str
    files: Annotated[list[File], _FILES]
    links: Annotated[list[tuple[str, str]], _FILES]
    folders: Annotated[list[str], _FILES]
    chunks: Annotated[list[tuple[bytes, int]], msgspec.Meta(max_length=MOST_CHUNKS)]

    @property
    def size(self) -> int:
        """How many bytes all files have."""
        return sum(file.size for file in self.files)


PREFIX = "snap-"


def id_of(packed: bytes) -> str:
    """The id of the snapshot that has this manifest."""
    return PREFIX + hashlib.sha256(packed).hexdigest()


def digest_of(snapshot_id: str) -> str:
    """The digest of the manifest that an id names; empty where it is no id of ours."""
    digest = snapshot_id.removeprefix(PREFIX)
    hexadecimal = len(digest) == 2 * DIGEST_BYTES and not set(digest) - set("0123456789abcdef")
    return digest if hexadecimal and digest != snapshot_id else ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Manifest).decode


def make_manifest(
    files: list[File], links: list[tuple[str, str]], folders: list[str], chunks: list[tuple[bytes, int]]
) -> Manifest:
    """Put a manifest together, with the sum of what is in it."""
    links, folders = sorted(links), sorted(folders)
    return Manifest(MAGIC, sum_tree(files, links, folders), files, links, folders, chunks)


def pack_manifest(manifest: Manifest) -> bytes:
    """The blob of a manifest: equal ones have equal bytes."""
    return _encode(manifest)


def read_manifest(packed: bytes) -> Manifest:
    """Undo `pack_manifest`; raises InvalidSnapshot for whatever may not be unpacked."""
    try:
        manifest = _decode(packed)
    except (msgspec.MsgspecError, RecursionError) as fault:
        raise InvalidSnapshot(f"this is not the manifest of a snapshot: {fault}") from None
    if manifest.magic != MAGIC:
        raise InvalidSnapshot(
            f"this is no manifest that this version reads: {manifest.magic[:40]!r}, not {MAGIC}"
        )
    _check(manifest)
    return manifest


def sum_tree(files: Iterable[File], links: Iterable[tuple[str, str]], folders: Iterable[str]) -> str:
    """The SHA-256 of a tree: of a line for each entry in the order of paths, `KIND SHA-256 PATH` and a zero byte."""
    lines = [(file.path, "exec" if file.runs else "file", file.sha.hex()) for file in files]
    lines += [(path, "link", hashlib.sha256(target.encode()).hexdigest()) for path, target in links]
    lines += [(path, "folder", "-") for path in folders]
    text = "".join(f"{kind} {sha} {path}\0" for path, kind, sha in sorted(lines))
    return hashlib.sha256(text.encode()).hexdigest()


def link_fault(path: str, target: str) -> str:
    """Why a link may not be in a tree; empty where it may.

    Only `../` at its beginning may lead up: behind a name, which may be another link, nobody could say where it leads.
    """
    if not target or target.startswith("/") or "\0" in target:
        return f"leads out of the tree, to {target!r}"
    steps = [step for step in target.split("/") if step not in ("", ".")]
    up = 0
    while up < len(steps) and steps[up] == "..":
        up += 1
    if up > path.count("/"):
        return f"leads out of the tree, to {target!r}"
    if ".." in steps[up:]:
        return f"leads down and up again, to {target!r}: nobody can say where that is"
    return ""


def _check(manifest: Manifest) -> None:
    entries = len(manifest.files) + len(manifest.links) + len(manifest.folders)
    if entries > MOST_FILES:
        raise InvalidSnapshot(f"a snapshot holds at most {MOST_FILES} files, this one {entries}")
    for file in manifest.files:
        if len(file.sha) != DIGEST_BYTES or not 0 <= file.size <= MOST_BYTES:
            raise InvalidSnapshot(f"{file.path[:100]!r} has a size or a digest that no file has")
    for digest, size in manifest.chunks:
        if len(digest) != DIGEST_BYTES or not 0 < size <= MOST_CHUNK_BYTES:
            raise InvalidSnapshot("a chunk has a size or a digest that none has")
    size, cut = manifest.size, sum(size for _, size in manifest.chunks)
    if size != cut:
        raise InvalidSnapshot(f"its files have {size} bytes and its chunks {cut}")
    if size > MOST_BYTES:
        raise InvalidSnapshot(f"a snapshot holds at most {MOST_BYTES} bytes, this one {size}")
    _check_names(manifest)
    for path, target in manifest.links:
        if fault := link_fault(path, target):
            raise InvalidSnapshot(f"the link {path!r} {fault}")
    found = sum_tree(manifest.files, manifest.links, manifest.folders)
    if found != manifest.sha:
        raise InvalidSnapshot(f"its files come to the SHA-256 {found}, and it says {manifest.sha[:80]!r}")


def _check_names(manifest: Manifest) -> None:
    leaves = [file.path for file in manifest.files] + [path for path, _ in manifest.links]
    taken: set[str] = set()
    folders: set[str] = set()
    for path in [*leaves, *manifest.folders]:
        if fault := path_fault(path):
            raise InvalidSnapshot(f"{path[:100]!r} {fault}")
        if path in taken:
            raise InvalidSnapshot(f"{path!r} is in it twice")
        taken.add(path)
        parent = path.rpartition("/")[0]
        while parent and parent not in folders:
            folders.add(parent)
            parent = parent.rpartition("/")[0]
    # What lies below a link would lie wherever that leads.
    if through := sorted(folders & {*leaves})[:1]:
        raise InvalidSnapshot(f"{through[0]!r} is both a folder and none")


def path_fault(path: str) -> str:
    """Why a path may not be in a tree; empty where it may."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "is no UTF-8"
    steps = path.split("/")
    if not path or "\0" in path or any(step in ("", ".", "..") for step in steps):
        return "is not a path below the root of a tree"
    if len(steps) > MOST_DEPTH:
        return f"lies deeper than {MOST_DEPTH} folders"
    if len(encoded) > MOST_PATH_BYTES or any(len(step.encode()) > MOST_NAME_BYTES for step in steps):
        return "is longer than a name may be"
    return ""
