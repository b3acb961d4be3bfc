"""What is remembered of a folder between two snapshots of it, so that only what was touched is read again.

By path, size, times and inode, as git does it. Surprising rule: what was written less than two seconds before it was
read is not believed, since a second change in the same tick of the file system's clock would not show. A memory that is
damaged, or of another version, is none: it costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path

import msgspec

from dray.snapshots.walking import Seen

VERSION = 1
YOUNG_NS = 2_000_000_000
MOST_MEMORIES = 64
MOST_BUNDLES = 20_000


class Known(msgspec.Struct, array_like=True):
    """One file as it was when it was read; `chunks` where it was cut."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    read_ns: int
    sha: bytes
    chunks: list[tuple[bytes, int]] = []

    def is_still(self, seen: Seen) -> bool:
        """Whether nobody can have written to it since."""
        same = (self.size, self.mtime_ns, self.ctime_ns, self.inode) == seen[1:5]
        return same and max(self.mtime_ns, self.ctime_ns) + YOUNG_NS < self.read_ns


class Memory(msgspec.Struct):
    """Of one folder. `bundles`: digests of several small files together, by those of each; `verdicts`: what is ignored,
    by the rules that say so.
    """

    version: int = VERSION
    files: dict[str, Known] = {}
    bundles: dict[bytes, tuple[bytes, int]] = {}
    verdicts: dict[str, dict[str, bool]] = {}


_decode = msgspec.msgpack.Decoder(Memory).decode
_encode = msgspec.msgpack.Encoder().encode


def memory_path(root: str) -> Path:
    """Where the memory of a folder is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(os.path.realpath(root).encode(errors="surrogateescape")).hexdigest()[:32]
    return Path(base) / "dray" / "snapshots" / name


def recall(path: Path) -> Memory:
    """What is remembered."""
    try:
        memory = _decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return Memory()
    return memory if memory.version == VERSION else Memory()


def remember(path: Path, memory: Memory) -> None:
    """Keep it for the next time; where that cannot be, the next time takes longer."""
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(_encode(memory))
        os.replace(fresh, path)
        _forget_oldest(path.parent)


def _forget_oldest(folder: Path) -> None:
    found = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[MOST_MEMORIES:]:
        path.unlink(missing_ok=True)
