"""Blobs in a folder that several hubs mount: `blobs/ab/DIGEST/EPOCH`, whole or not there.

Who renews a blob takes it into its own epoch by a rename, so that a hub that was taken over before cannot remove it any
more, however late what it asked for is carried out.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import cast

from dray.hub.files.base import Draft, Reading
from dray.hub.files.folder import FileDraft
from dray.wire.local.blob_folder import DRAFTS, check_digest, is_digest

TRIES = 20


def make_folder(path: Path) -> None:
    """Make a folder and those above it, for this user and its group."""
    if not path.is_dir():
        make_folder(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o750)
            sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _LateDraft:
    """A draft whose file is made with its first byte: to begin one asks nothing of a disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._draft: FileDraft | None = None
        self._over = False

    def open(self) -> FileDraft:
        """The file."""
        if self._draft is None:
            if self._over:
                raise ValueError("this upload was given up")
            make_folder(self._folder)
            self._draft = FileDraft(f"{self._folder}/{secrets.token_hex(16)}", 0o640)
        return self._draft

    def write(self, piece: bytes) -> None:
        """Add a piece."""
        self.open().write(piece)

    def discard(self) -> None:
        """Leave nothing behind."""
        self._over = True
        if self._draft is not None:
            self._draft.discard()


class SharedBlobs:
    """The folder `blobs`."""

    near = False

    def __init__(self, folder: Path, epoch: Callable[[], int]) -> None:
        self.folder, self._epoch = folder, epoch

    def _place_of(self, digest: str) -> Path:
        return self.folder / check_digest(digest)[:2] / digest

    def _held(self, digest: str) -> list[int]:
        """Under which epochs a blob lies, newest first; nearly always one."""
        try:
            names = os.listdir(self._place_of(digest))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    def _find(self, digest: str) -> Path | None:
        return next((self._place_of(digest) / str(epoch) for epoch in self._held(digest)), None)

    def size_of(self, digest: str) -> int | None:
        """Give the size of a blob."""
        for _ in range(TRIES):
            path = self._find(digest)
            if path is None:
                return None
            with contextlib.suppress(FileNotFoundError):
                return path.stat().st_size
        return None

    def renew(self, digest: str) -> int | None:
        """Take a blob into one's own epoch, as put there now."""
        for _ in range(TRIES):
            path, own = self._find(digest), self._place_of(digest) / str(self._epoch())
            if path is None:
                return None
            with contextlib.suppress(FileNotFoundError):
                if path != own:
                    path.rename(own)
                os.utime(own)
                return own.stat().st_size
        return None

    def begin(self) -> _LateDraft:
        """A new draft."""
        return _LateDraft(self.folder / DRAFTS)

    def place(self, draft: Draft, digest: str) -> None:
        """Make it durable under its name."""
        file = cast("_LateDraft", draft).open()
        file.finish()
        handle = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        folder = self._place_of(digest)
        for left in reversed(range(TRIES)):
            make_folder(folder)
            try:
                os.rename(file.path, folder / str(self._epoch()))
                break
            except FileNotFoundError:
                # Whoever removed the last one has taken the empty folder along.
                if not left:
                    raise
        sync_folder(folder)

    def open(self, digest: str) -> Reading:
        """Read a blob."""
        for _ in range(TRIES):
            path = self._find(digest)
            if path is None:
                break
            with contextlib.suppress(FileNotFoundError):
                return path.open("rb")
        raise FileNotFoundError(digest)

    def remove(self, digest: str, before_s: float) -> bool:
        """Remove it unless it is young, or a later hub's."""
        folder, mine = self._place_of(digest), self._epoch()
        for epoch in self._held(digest):
            path = folder / str(epoch)
            with contextlib.suppress(FileNotFoundError):
                if epoch > mine or path.stat().st_mtime >= before_s:
                    return False
                path.unlink()
        with contextlib.suppress(OSError):
            folder.rmdir()
        return True

    def remove_drafts(self, before_s: float) -> None:
        """Remove drafts that nobody has written to since."""
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.folder / DRAFTS):
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat().st_mtime < before_s:
                        os.unlink(entry.path)

    def sizes(self, first: int) -> dict[str, int]:
        """Give the blobs whose digest begins with this byte."""
        found: dict[str, int] = {}
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.folder / f"{first:02x}"):
                if is_digest(name) and (size := self.size_of(name)) is not None:
                    found[name] = size
        return found
