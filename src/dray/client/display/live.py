"""Pictures in a notebook that are kept up to date: drawn once where they were asked for, then again as things change.

Needs no widgets: IPython lets whoever made a display replace it. One thread looks after all of them, the older a
picture the more seldom, and only the newest few. Surprising rule: a picture holds its subject weakly, since one that
nobody has in hand any more cannot be looked at again, and a connection must not live for a picture of it.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from typing import Any, NamedTuple

from dray.client.display.html import draw_trouble

FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 10.0
# A picture of an hour is drawn every ten seconds, one of a minute every second.
AGEING = 20.0
MOST_VIEWS = 32


class Picture(NamedTuple):
    """How something looks now, and whether that may still change."""

    page: str
    lives: bool


class Shown:
    """Something that a notebook shows; in a terminal it is its own line of text."""

    def _picture(self) -> Picture:
        raise NotImplementedError

    def _ipython_display_(self) -> None:
        show(self)


class View:
    """One picture where it was asked for."""

    def __init__(self, subject: Shown, handle: Any, page: str) -> None:
        self._subject, self._handle, self._page = weakref.ref(subject), handle, page
        self._began = time.monotonic()
        self.due = self._began + FIRST_PAUSE_S

    def refresh(self) -> bool:
        """Draw it again where it has changed; whether it still lives."""
        subject = self._subject()
        if subject is None:
            return False
        picture, told = look(subject), repr(subject)
        if picture.page != self._page:
            self._page = picture.page
            self._handle.update({"text/html": picture.page, "text/plain": told}, raw=True)
        now = time.monotonic()
        self.due = now + min(LAST_PAUSE_S, FIRST_PAUSE_S + (now - self._began) / AGEING)
        return picture.lives


class _Screen:
    """All pictures that live, and the thread that draws them; it ends with the last one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._views: list[View] = []
        self._runs = False

    def add(self, view: View) -> None:
        with self._changed:
            self._views = [*self._views[1 - MOST_VIEWS :], view]
            self._changed.notify()
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._serve, name="dray-display", daemon=True).start()

    def _serve(self) -> None:
        while (view := self._next()) is not None:
            if not view.refresh():
                with self._changed:
                    self._views = [one for one in self._views if one is not view]

    def _next(self) -> View | None:
        with self._changed:
            while self._views:
                first = min(self._views, key=lambda view: view.due)
                left = first.due - time.monotonic()
                if left <= 0:
                    return first
                self._changed.wait(left)
            self._runs = False
            return None


_screen = _Screen()


def look(subject: Shown) -> Picture:
    """How it looks; where the hub cannot be asked, that."""
    try:
        return subject._picture()
    except Exception as fault:  # noqa: BLE001 - it is told in its place, and the thread has others to draw
        return Picture(draw_trouble(repr(subject), str(fault)), lives=False)


def show(subject: Shown) -> View | None:
    """Display it, live in a notebook; called by IPython for what a cell ends with."""
    # Loaded by whoever calls this: importing dray must not.
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    if getattr(get_ipython(), "kernel", None) is None:
        sys.stdout.write(f"{subject!r}\n")
        return None
    picture = look(subject)
    show_raw: Any = display  # it has no types
    handle = show_raw({"text/html": picture.page, "text/plain": repr(subject)}, raw=True, display_id=True)
    view = View(subject, handle, picture.page)
    if picture.lives:
        _screen.add(view)
    return view
