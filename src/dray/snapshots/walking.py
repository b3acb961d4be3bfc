"""What is in a folder, as far as it goes along: names, sizes and times, without a look into any file.

Links are never followed. What cannot travel is refused with its name, all of it at once: names that are no text, links
that lead out; sockets, pipes and devices are left at home, and told of. A folder with more in it than a snapshot may
hold is found out while it is read, not after.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from dray.errors import InvalidSnapshot, Problem
from dray.snapshots.ignoring import ALWAYS, VENV_MARK, Rules, rules_of
from dray.snapshots.manifest import MOST_FILES, link_fault, path_fault

MOST_PROBLEMS = 20


class Seen(NamedTuple):
    """One file as the folder shows it."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    runs: bool


class Tree(NamedTuple):
    """All of a folder that goes along; `left` counts what was left at home, by kind."""

    root: str
    files: list[Seen]
    links: list[tuple[str, str]]
    folders: list[str]
    left: dict[str, int]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class Walk:
    """One walk. `verdicts` remembers what earlier ones found about paths under the same rules, and is added to."""

    def __init__(self, root: str, verdicts: dict[str, dict[str, bool]], most_files: int = MOST_FILES) -> None:
        self._root, self._most = root, most_files
        self._verdicts, self.asked = verdicts, dict[str, dict[str, bool]]()
        self._tree = Tree(root, [], [], [], {})
        self._problems: list[Problem] = []
        self._count = 0

    def run(self) -> Tree:
        """Read it all; raises InvalidSnapshot with everything that stands against it."""
        if not os.path.isdir(self._root):
            raise InvalidSnapshot(f"there is no folder {self._root} to make a snapshot of")
        self._enter(self._root, "", Rules())
        if self._problems:
            first = self._problems[0]
            more = f" (and {len(self._problems) - 1} more)" if len(self._problems) > 1 else ""
            hint = Problem("", "what the job does not need is left out by a line in .drayignore")
            raise InvalidSnapshot(
                f"{self._root} cannot travel as it is: {first.where}: {first.what}{more}",
                [*self._problems, hint],
            )
        self._tree.files.sort()
        return self._tree

    def _enter(self, folder: str, prefix: str, above: Rules) -> None:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as fault:
            self._refuse(prefix or ".", f"cannot be read: {fault.strerror}")
            return
        names = {entry.name for entry in entries}
        if prefix and VENV_MARK in names:
            self._leave("environments")
            return
        rules = rules_of(folder, prefix, names, above)
        before, ruled = self._count, rules.digest.hex()
        known, asked = self._verdicts.get(ruled, {}), self.asked.setdefault(ruled, {})
        inner: list[tuple[os.DirEntry[str], str]] = []
        for entry in entries:
            path = prefix + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            name = f"{path}/" if is_folder else path
            verdict = known.get(name)
            if verdict is None:
                verdict = entry.name in ALWAYS or rules.ignores(name)
            if name.isascii() or not _text_fault(name):
                asked[name] = verdict
            if verdict:
                self._leave("ignored")
            elif is_folder:
                inner.append((entry, name))
            else:
                self._take(entry, path)
        for entry, name in inner:
            self._enter(entry.path, name, rules)
        if self._count == before and prefix:
            self._note(prefix.rstrip("/"))
            self._tree.folders.append(prefix.rstrip("/"))

    def _take(self, entry: os.DirEntry[str], path: str) -> None:
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError:
            return  # gone since
        if stat.S_ISLNK(found.st_mode):
            self._note(path)
            target = os.readlink(entry.path)
            if fault := link_fault(path, target) or _text_fault(target):
                self._refuse(path, f"is a link that {fault}")
            self._tree.links.append((path, target))
        elif stat.S_ISREG(found.st_mode):
            self._note(path)
            runs = bool(found.st_mode & 0o100)
            self._tree.files.append(
                Seen(path, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, runs)
            )
        else:
            self._leave("sockets, pipes and devices")

    def _note(self, path: str) -> None:
        self._count += 1
        if self._count > self._most:
            raise InvalidSnapshot(
                f"{self._root} holds more than {self._most} files: name what the job does not need in .drayignore, "
                "or pack it into an archive"
            )
        if fault := path_fault(path):
            self._refuse(ascii(path), fault)

    def _refuse(self, where: str, what: str) -> None:
        if len(self._problems) < MOST_PROBLEMS:
            self._problems.append(Problem(where, what))

    def _leave(self, kind: str) -> None:
        self._tree.left[kind] = self._tree.left.get(kind, 0) + 1


def _text_fault(target: str) -> str:
    try:
        target.encode()
    except UnicodeEncodeError:
        return "names no UTF-8"
    return ""
