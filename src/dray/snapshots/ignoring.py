"""What of a folder stays at home: by `.gitignore`, then `.drayignore`, of each folder for what is below it.

The patterns are git's, and read by a library that has git's own tests. In `.drayignore` a `!` takes back what
`.gitignore` leaves out: data that is in no repository, and that a job needs. Surprising rule: what nobody ever wants to
send (the history of a repository, byte code, an environment) is left out without being named.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from dray.errors import InvalidSnapshot

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

FILES = (".gitignore", ".drayignore")
ALWAYS = frozenset((".git", ".hg", ".svn", "__pycache__"))
# By which an environment of Python's is known.
VENV_MARK = "pyvenv.cfg"
MOST_BYTES = 1 << 20


class Rules:
    """The rules that hold in one folder: its own, and behind them those of the folders above."""

    __slots__ = ("_above", "_own", "_start", "digest")

    def __init__(self, prefix: str = "", own: bytes = b"", above: Rules | None = None) -> None:
        self._start = len(prefix)
        self._above = above
        # Parsed when somebody asks: mostly it was all asked before.
        self._own: GitIgnoreSpec | bytes = own
        before: bytes = above.digest if above is not None else b""
        named = prefix.encode(errors="surrogateescape") + b"\0"
        self.digest: bytes = hashlib.sha256(before + named + own).digest()

    def ignores(self, path: str) -> bool:
        """Whether a path from the root is left out; that of a folder ends in `/`."""
        rules: Rules | None = self
        while rules is not None:
            verdict = rules._spec().check_file(path[rules._start :]).include
            if verdict is not None:
                return verdict
            rules = rules._above
        return False

    def _spec(self) -> GitIgnoreSpec:
        if isinstance(self._own, bytes):
            from pathspec import GitIgnoreSpec

            self._own = GitIgnoreSpec.from_lines(self._own.decode(errors="replace").splitlines())
        return self._own


def rules_of(folder: str, prefix: str, names: set[str], above: Rules) -> Rules:
    """The rules of a folder in which these names are."""
    own = [_read(os.path.join(folder, name)) for name in FILES if name in names]
    return Rules(prefix, b"\n".join(own), above) if own else above


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise InvalidSnapshot(
            f"{path} has more than {MOST_BYTES} bytes: these are no rules that anybody wrote"
        )
    return text
