"""Files by what is in them, kept between tasks so that a tree is laid out without copying it.

A file is named by its SHA-256, never written to again, and of a fixed time, so that a look tells whether somebody has:
then it is made anew. The oldest go when there is too much; whoever runs in a tree keeps what is in it, since a name
that goes here takes nothing from the names elsewhere. Surprising rule: after a restart of the machine none is believed
before it was read, because what was written last may not have reached the disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable

from dray.snapshots.manifest import File, Manifest
from dray.wire.local.blob_folder import name_machine

# The first second of 2000: of no meaning, and taken by every format.
MARK_S = 946_684_800
_MARK_NS = MARK_S * 10**9
_READ = 1 << 20


class FileCache:
    """The files of one worker, below one folder that no task can enter. Used by one thread at a time."""

    def __init__(self, folder: str, most_bytes: int) -> None:
        self._folder, self._most = folder, most_bytes
        self._held: dict[str, int] = {}
        self._bytes = 0
        self._trusted: set[str] = set()
        os.makedirs(folder, 0o700, exist_ok=True)
        self._scan()

    @property
    def size(self) -> int:
        """How many bytes are held."""
        return self._bytes

    def path(self, name: str) -> str:
        return f"{self._folder}/{name[:2]}/{name}"

    def find_missing(self, files: Iterable[File]) -> list[File]:
        """Those that have to be made; the others are young from now on."""
        return [file for file in files if not self._has(file)]

    def has_all(self, manifest: Manifest) -> bool:
        """Whether all files of a tree are here, as far as is known without a look."""
        return all(name_of(file) in self._held for file in manifest.files)

    def _has(self, file: File) -> bool:
        name = name_of(file)
        if name not in self._held:
            return False
        self._held[name] = self._held.pop(name)
        try:
            found = os.lstat(self.path(name))
        except OSError:
            return self._lose(name)
        if found.st_size != file.size or found.st_mtime_ns != _MARK_NS:
            return self._lose(name)
        if name not in self._trusted:
            if _sum(self.path(name)) != file.sha:
                return self._lose(name)
            self._trusted.add(name)
        return True

    def _lose(self, name: str) -> bool:
        self._bytes -= self._held.pop(name)
        self._trusted.discard(name)
        with contextlib.suppress(OSError):
            os.unlink(self.path(name))
        return False

    def make(self, manifest: Manifest, wanted: set[str], chunk: Callable[[bytes], str]) -> None:
        """Make files of the chunks they are in; `chunk` gives where one lies. Raises OSError, ValueError for what is
        not what the manifest says.
        """
        for file, parts in spread(manifest):
            if name_of(file) in wanted:
                self._make(file, parts, chunk)

    def _make(self, file: File, parts: list[tuple[bytes, int, int]], chunk: Callable[[bytes], str]) -> None:
        name = name_of(file)
        path = self.path(name)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        fresh = f"{path}.{secrets.token_hex(4)}"
        found = hashlib.sha256()
        try:
            with open(
                os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
            ) as out:
                for digest, offset, size in parts:
                    with open(chunk(digest), "rb", buffering=0) as source:
                        source.seek(offset)
                        while size and (piece := source.read(min(size, _READ))):
                            found.update(piece)
                            out.write(piece)
                            size -= len(piece)
            if found.digest() != file.sha:
                raise ValueError(
                    f"{file.path} came to {found.hexdigest()}, and the manifest says {file.sha.hex()}"
                )
            os.chmod(fresh, 0o555 if file.runs else 0o444)
            os.utime(fresh, (MARK_S, MARK_S))
            os.rename(fresh, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            raise
        self._bytes += file.size - self._held.pop(name, 0)
        self._held[name] = file.size
        self._trusted.add(name)

    def trim(self, kept: set[str]) -> None:
        """Let the oldest go until there is no more than there may be; not those that are about to be used."""
        for name in [name for name in self._held if name not in kept]:
            if self._bytes <= self._most:
                return
            self._lose(name)

    def _scan(self) -> None:
        """Find what an earlier agent has left, oldest first; remove what it had not finished."""
        found = []
        for start in os.scandir(self._folder):
            for entry in os.scandir(start.path) if start.is_dir(follow_symlinks=False) else ():
                status = entry.stat(follow_symlinks=False)
                if "." in entry.name or status.st_mtime_ns != _MARK_NS:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)
                else:
                    found.append((status.st_ctime_ns, entry.name, status.st_size))
        self._held = {name: size for _, name, size in sorted(found)}
        self._bytes = sum(self._held.values())
        marker, machine = f"{self._folder}/machine", name_machine()
        with contextlib.suppress(OSError), open(marker, encoding="ascii") as file:
            if file.read() == machine:
                self._trusted = {*self._held}
                return
        with open(marker, "w", encoding="ascii") as file:
            file.write(machine)


def name_of(file: File) -> str:
    """What a file is called here: one that may be executed is another than one that may not."""
    return file.sha.hex() + ("-x" if file.runs else "")


def spread(manifest: Manifest) -> Iterable[tuple[File, list[tuple[bytes, int, int]]]]:
    """Each file with the parts of chunks that it is made of: (digest, offset, size)."""
    chunks = iter(manifest.chunks)
    digest, size, at = b"", 0, 0
    for file in manifest.files:
        parts, left = [], file.size
        while left:
            if at == size:
                (digest, size), at = next(chunks), 0
            taken = min(left, size - at)
            parts.append((digest, at, taken))
            at += taken
            left -= taken
        yield file, parts


def _sum(path: str) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
