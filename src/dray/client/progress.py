"""A bar with rate and time left for a map, on a terminal; nothing at all elsewhere.

It appears only after a while: a bar for what takes a blink is noise.
"""

from __future__ import annotations

import sys
import time
from typing import Any

APPEAR_S = 0.5
REDRAW_S = 0.1


class Progress:
    """How far one map is. `total` is None where the input does not say how long it is."""

    def __init__(self, name: str, total: int | None) -> None:
        self._name, self._total = name, total
        self._draw_at = time.monotonic() + APPEAR_S
        self._bar: Any = None
        self._task: Any = None

    def update(self, done: int, put: int) -> None:
        """Show that `done` of the calls have ended; costs nothing between two moments of drawing."""
        now = time.monotonic()
        if now < self._draw_at:
            return
        self._draw_at = now + REDRAW_S
        if self._bar is None:
            self._open()
        self._bar.update(self._task, completed=done, total=self._total or None)

    def close(self) -> None:
        """Leave the last picture and let the terminal go."""
        if self._bar is not None:
            bar, self._bar = self._bar, None
            if self._total:
                bar.update(self._task, total=self._total)
            bar.stop()
        self._draw_at = float("inf")

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=False,
        )
        self._task = self._bar.add_task(self._name, total=self._total, rate="")
        self._bar.start()


def make_progress(name: str, total: int | None, wanted: bool | None) -> Progress | None:
    """A bar where one is wanted: by default on a terminal."""
    if wanted is None:
        wanted = sys.stderr is not None and sys.stderr.isatty()
    return Progress(name, total) if wanted else None
