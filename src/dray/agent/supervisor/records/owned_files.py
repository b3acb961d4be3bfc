"""Files in folders that somebody else may write to, as a program with more rights may touch them.

A task may run as another user than its agent, and put anything where the agent looks next: a link to a file that only
root can read, a pipe that nobody fills, a folder of somebody else's. So nothing is reached by a path here. A folder is
opened in the one above it without following a link and must be its owner's; a file is opened in its folder without
following a link and without waiting, and counts only if it is a plain one of that owner's with no second name. What is
used afterwards is what was opened and checked, whatever happens to the names. Surprising rule: the first folder is
reached by its path, so all that is above it must be out of the owner's hands.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

ANYBODY = -1
# More than anybody has there who plays fair: looking through them must not hold everybody up.
MOST_ENTRIES = 4096
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotTheirs(OSError):
    """What stands there is no plain file, or no folder, of the one who should own it."""


class Place(NamedTuple):
    """A folder, or the one called `name` in it. `owner` is whose all of it must be, ANYBODY where that is ourselves."""

    path: str
    name: str = ""
    owner: int = ANYBODY

    def open(self) -> int:
        """A descriptor of the folder, which the caller closes. Raises OSError where there is no such folder."""
        folder = self._open_first()
        if not self.name:
            return folder
        try:
            return _open_in(folder, self.name, self.owner)
        finally:
            os.close(folder)

    def _open_first(self) -> int:
        return _checked(os.open(self.path, _FOLDER), self.owner, stat.S_ISDIR)

    def empty(self) -> None:
        """Remove files in it, at most so many; and the folder itself where it lies in another and nothing is left."""
        try:
            folder = self.open()
        except OSError:
            return
        try:
            with os.scandir(folder) as entries:
                for entry in itertools.islice(entries, MOST_ENTRIES):
                    _remove(os.unlink, entry.name, folder)
        finally:
            os.close(folder)
        if self.name:
            above = self._open_first()
            try:
                _remove(os.rmdir, self.name, above)
            finally:
                os.close(above)


def open_file(name: str, folder: int, owner: int, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a plain file in an open folder; raises OSError where there is none that counts."""
    descriptor = _checked(os.open(_plain(name), flags | _FILE, dir_fd=folder), owner, stat.S_ISREG)
    if owner != ANYBODY and (names := os.fstat(descriptor).st_nlink) != 1:
        os.close(descriptor)
        raise NotTheirs(f"{name!r} is a file of {names} names")
    return descriptor


def _open_in(folder: int, name: str, owner: int) -> int:
    return _checked(os.open(_plain(name), _FOLDER, dir_fd=folder), owner, stat.S_ISDIR)


def _plain(name: str) -> str:
    if "/" in name or name in ("", ".", ".."):
        raise NotTheirs(f"{name!r} is not the name of a file")
    return name


def _checked(descriptor: int, owner: int, is_kind: Callable[[int], bool]) -> int:
    found = os.fstat(descriptor)
    if is_kind(found.st_mode) and owner in (ANYBODY, found.st_uid):
        return descriptor
    os.close(descriptor)
    raise NotTheirs("what stands there is of another kind, or somebody else's")


def _remove(how: Callable[..., None], name: str, folder: int) -> None:
    with contextlib.suppress(OSError):
        how(name, dir_fd=folder)
