"""A bar with rate and time left for a map, on a terminal; nothing at all elsewhere.

It appears only after a while: a bar for what takes a blink is noise. There is no thread: it is drawn by whoever takes
results. Surprising rule: where somebody types, it is taken away before they get their prompt back, since the two would
write over each other; as long as results are taken one right after the other it stays.
"""

from __future__ import annotations

import sys
import time
import weakref
from typing import Any

APPEAR_S = 0.5
REDRAW_S = 0.1
STREAM_S = 0.02
# Whoever draws at present: there is one terminal, and two bars on one line are none.
_drawing: list[weakref.ref[Progress]] = []


class Progress:
    """How far one map is. `total` is None where the input does not say how long it is."""

    def __init__(self, name: str, total: int | None) -> None:
        self._name, self._total = name, total
        self._began = time.monotonic()
        self._draw_at = self._began + APPEAR_S
        self._is_typed = hasattr(sys, "ps1") or bool(sys.flags.interactive)
        self._bar: Any = None
        self._task: Any = None
        self._shown = self._streams = False
        self._rested_at = 0.0

    def update(self, done: int) -> None:
        """Show that `done` of the calls have ended; costs nothing between two moments of drawing."""
        now = time.monotonic()
        if now >= self._draw_at:
            self._draw_at = now + REDRAW_S
            if self._is_free():
                self._draw(done)

    def wake(self) -> None:
        """The caller comes for a result."""
        if self._is_typed:
            self._streams = time.monotonic() - self._rested_at < STREAM_S

    def rest(self) -> None:
        """The caller goes on with something else."""
        if self._is_typed:
            self._rested_at = time.monotonic()
            if self._shown and not self._streams:
                self._shown = False
                self._bar.stop()

    def close(self, done: int | None = None) -> None:
        """Leave the last picture and let the terminal go."""
        self._draw_at = float("inf")
        if self._bar is not None:
            if done is not None:
                self._draw(done)
            bar, self._bar = self._bar, None
            bar.live.transient = False
            bar.stop()
            self._shown = False
            _drawing.clear()

    def _is_free(self) -> bool:
        other = _drawing[0]() if _drawing else None
        return other is None or other is self

    def _draw(self, done: int) -> None:
        if self._bar is None:
            self._open()
            _drawing[:] = [weakref.ref(self)]
        rate = done / max(time.monotonic() - self._began, 1e-6)
        self._bar.update(self._task, completed=done, total=self._total, rate=tell_rate(rate) if done else "")
        if self._shown:
            self._bar.refresh()
        else:
            self._shown = True
            self._bar.start()

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=self._is_typed,
        )
        self._task = self._bar.add_task(self._name, total=self._total, rate="")


def tell_rate(per_second: float) -> str:
    """A rate in three figures: `0.25/s`, `9.8/s`, `1,230/s`."""
    return f"{per_second:,.0f}/s" if per_second >= 100 else f"{per_second:.3g}/s"


def make_progress(name: str, total: int | None, wanted: bool | None) -> Progress | None:
    """A bar where one is wanted: by default on a terminal."""
    if wanted is None:
        wanted = sys.stderr is not None and sys.stderr.isatty()
    return Progress(name, total) if wanted else None
