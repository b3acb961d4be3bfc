"""A terminal taken over for a while: whole frames out, keys in, everything put back at the end, whatever happens.

Knows nothing about what is drawn. A frame is written in one piece over the one before, so that nothing flickers.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import sys
import termios
import tty
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_KEYS = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x1b": "escape",
    "\x7f": "erase",
    "\x08": "erase",
}


# A key is a character, or what a terminal sends for one that has none.
_KEY = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Z])|.", re.DOTALL)


class Screen:
    """The terminal on stdin and stdout."""

    def __enter__(self) -> Self:
        self._typed: deque[str] = deque()
        self._lines = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._lines)
        tty.setcbreak(self._lines)
        self._write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write(_LEAVE)
        termios.tcsetattr(self._lines, termios.TCSADRAIN, self._before)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now."""
        size = shutil.get_terminal_size()
        return size.columns, size.lines

    def draw(self, lines: Sequence[str]) -> None:
        """Show a frame: as many of the lines as there are on the screen."""
        shown = list(lines)[: self.size[1]]
        self._write("\x1b[H" + "\x1b[K\n".join(shown) + "\x1b[K\x1b[J")

    def read_key(self, wait_s: float) -> str:
        """The next key, by name or as the character it is; empty where none came. `gone`: the terminal was closed."""
        if not self._typed:
            if not select.select([self._lines], (), (), max(0.0, wait_s))[0]:
                return ""
            try:
                text = os.read(self._lines, 1024).decode(errors="replace")
            except OSError:
                text = ""
            if not text:
                return "gone"
            self._typed.extend(_KEY.findall(text))
        key = self._typed.popleft()
        return _KEYS.get(key, key)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
