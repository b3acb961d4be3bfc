"""A hub's folder of blobs as the programs of a machine share it: `ab/abcdef…`, the SHA-256 in hex, whole or not there.

Who may write to the home of a hub on this machine hands a large value over as a file instead of sending it: written
under another name, synced, renamed. `terms.json`, which the hub writes when it starts, says on which machine that holds
and what the hub would refuse. Surprising rule: files come under a shared lock of the folder and go under an exclusive
one, and none goes that is young; so whoever finds a blob, or has put it there, has time to refer to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import re
import secrets

from dray.errors import NoSpace, TooLarge

TYPE_CHECKING = False  # as in `dray/__init__.py`: `typing` is loaded by whoever needs it
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

DRAFTS, TERMS = "drafts", "terms.json"
# As many pieces as one call of the system takes.
_PIECES = 1024
_DIGEST = re.compile(r"[0-9a-f]{64}")


class BlobFolder:
    """One such folder."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._terms: tuple[int, dict[str, Any]] = (0, {})

    def path(self, digest: str) -> str:
        """Where a blob lies, or would lie."""
        return f"{self.root}/{check_digest(digest)[:2]}/{digest}"

    # --- terms --------------------------------------------------------------------------------------------------------

    def offer(self, most_bytes: int, min_free_bytes: int) -> None:
        """Say to the programs of this machine that they may put blobs here, and what would be refused."""
        os.makedirs(self.root, 0o700, exist_ok=True)
        terms = {"machine": name_machine(), "most_bytes": most_bytes, "min_free_bytes": min_free_bytes}
        fresh = f"{self.root}/{TERMS}.{secrets.token_hex(4)}"
        with open(fresh, "w", encoding="ascii") as file:
            json.dump(terms, file)
        os.replace(fresh, f"{self.root}/{TERMS}")

    def is_near(self) -> bool:
        """Whether this is the folder of a hub on this machine, and this program may write to it."""
        terms = self._read_terms()
        return terms.get("machine") == name_machine() and os.access(self.root, os.R_OK | os.W_OK | os.X_OK)

    def check(self, size: int) -> None:
        """Raise what the hub would refuse a blob of this size with."""
        terms = self._read_terms()
        check_size(size, int(terms.get("most_bytes", 0)))
        if self.free_bytes() - size < int(terms.get("min_free_bytes", 0)):
            raise no_space(size)

    def free_bytes(self) -> int:
        status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize

    def _read_terms(self) -> dict[str, Any]:
        """Read again only when a hub has written them anew."""
        try:
            written_ns = os.stat(f"{self.root}/{TERMS}").st_mtime_ns
            if written_ns != self._terms[0]:
                with open(f"{self.root}/{TERMS}", "rb") as file:
                    terms = json.load(file)
                self._terms = (written_ns, terms if isinstance(terms, dict) else {})
        except (OSError, ValueError):
            return {}
        return self._terms[1]

    # --- in -----------------------------------------------------------------------------------------------------------

    def draft(self) -> str:
        """Give the path of a new draft: where a blob is written before it has its name."""
        os.makedirs(f"{self.root}/{DRAFTS}", 0o700, exist_ok=True)
        return f"{self.root}/{DRAFTS}/{secrets.token_hex(16)}"

    def renew(self, digest: str) -> bool:
        """Whether a blob is there; if so it counts as put there now."""
        with self._locked(fcntl.LOCK_SH):
            try:
                os.utime(self.path(digest))
            except FileNotFoundError:
                return False
        return True

    def place(self, draft: str, digest: str, drop: bool = False) -> None:
        """Make a finished draft durable under its name. Blocks for as long as the disk takes.

        With `drop` it leaves the memory then: it will be long before anybody reads it.
        """
        _sync(draft, os.O_RDWR, drop)
        folder = os.path.dirname(self.path(digest))
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
            _sync(self.root)
        with self._locked(fcntl.LOCK_SH):
            os.rename(draft, f"{folder}/{digest}")
        _sync(folder)

    # --- out ----------------------------------------------------------------------------------------------------------

    def read(self, digest: str, size: int) -> bytearray:
        """Read a blob into memory that may be written to; its own memory is free then, as most are read once."""
        data = bytearray(size)
        view, at = memoryview(data), 0
        with open(self.path(digest), "rb", buffering=0) as file:
            while at < size:
                got = file.readinto(view[at:])
                if not got:
                    raise ConnectionError(f"a blob of {size} bytes broke off after {at}")
                at += got
            _drop(file.fileno())
        return data

    def drop(self, digest: str) -> None:
        """Let a blob that has been used leave the memory, though not the disk: on most machines memory is dearer."""
        with contextlib.suppress(FileNotFoundError), open(self.path(digest), "rb", buffering=0) as file:
            _drop(file.fileno())

    def remove(self, digest: str, before_s: float) -> bool:
        """Remove a blob unless it was put there, or renewed, since; False if so."""
        with self._locked(fcntl.LOCK_EX), contextlib.suppress(FileNotFoundError):
            if os.stat(self.path(digest)).st_mtime >= before_s:
                return False
            os.unlink(self.path(digest))
        return True

    def remove_drafts(self, before_s: float) -> None:
        """Remove drafts that nobody has written to since: whoever wrote them is gone."""
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(f"{self.root}/{DRAFTS}"):
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat().st_mtime < before_s:
                        os.unlink(entry.path)

    @contextlib.contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        descriptor = os.open(self.root, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, kind)
            yield
        finally:
            os.close(descriptor)


def write_parts(path: str, parts: Iterable[bytes | bytearray | memoryview]) -> None:
    """Write a new file from the parts of a value, without joining them first."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        left = [view for view in (memoryview(part).cast("B") for part in parts) if view.nbytes]
        while left:
            written = os.writev(descriptor, left[:_PIECES])
            while left and written >= left[0].nbytes:
                written -= left.pop(0).nbytes
            if written:
                left[0] = left[0][written:]
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def is_digest(text: str) -> bool:
    """Whether this can be the name of a blob: a name from outside is never a path before this was asked."""
    return _DIGEST.fullmatch(text) is not None


def check_digest(text: str) -> str:
    """The same text; raises ValueError where it cannot be the name of a blob."""
    if _DIGEST.fullmatch(text) is None:
        raise ValueError(f"{text[:100]!r} is not the SHA-256 of a value: 64 digits of 0-9 a-f")
    return text


@functools.cache
def name_machine() -> str:
    """This machine since it was started: programs of which this is the same share files and their locks."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return os.uname().nodename


def check_size(size: int, most_bytes: int) -> None:
    """Refuse what is over the limit, and name it."""
    if size > most_bytes:
        raise TooLarge(
            f"a value of {size} bytes is over the limit of {most_bytes}: pass a path to shared storage instead, "
            "or raise max_blob_bytes of [hub]"
        )


def no_space(size: int) -> NoSpace:
    """What a value is refused with that would fill the disk."""
    return NoSpace(
        f"the hub's disk has no room for {size} more bytes: free some, or wait until old jobs are gone"
    )


def _sync(path: str, flags: int = os.O_RDONLY, drop: bool = False) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        if drop:
            _drop(descriptor)
    finally:
        os.close(descriptor)


def _drop(descriptor: int) -> None:
    if hasattr(os, "posix_fadvise"):  # not everywhere
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
