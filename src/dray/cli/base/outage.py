"""Outlast a hub that is away: say so once, ask again with growing pauses, say when it is back.

Knows nothing about what is asked. The surprising rule: a hub that was never reached counts as away only if there is an
address for it; with no address at all (`NoHub` on the first call) waiting would be for nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from dray.cli.base.hub import HubAway, HubDead
from dray.client.reach.discovery import NoHub
from dray.core.model.units import format_seconds
from dray.errors import HubUnavailable

FIRST_PAUSE_S = 0.2
LAST_PAUSE_S = 5.0
T = TypeVar("T")


class GaveUp(HubUnavailable):
    """The hub stayed away for too long; the work it keeps is not harmed by that."""

    exit_code = 125


def say(text: str) -> None:
    """Write one line for the person at the terminal, apart from the output."""
    print(f"dray: {text}", file=sys.stderr, flush=True)


class Outage:
    """One follower's view of the hub's absence; two threads may share it, and only one of them speaks."""

    def __init__(self, limit_s: float, goes_on: str = "", needs_process: bool = False) -> None:
        self.limit_s = limit_s
        self.goes_on = goes_on
        # For work that has yet to be handed over: a hub whose process is gone is no hub to wait for.
        self._needs_process = needs_process
        self._lock = threading.Lock()
        self._away_since: float | None = None
        self._reached = False

    @property
    def is_away(self) -> bool:
        return self._away_since is not None

    def ride_out(self, ask: Callable[[], T]) -> T:
        """Ask until there is an answer; give up after `limit_s` without one."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                answer = ask()
            except (HubAway, NoHub) as error:
                if isinstance(error, HubAway) and error.sent:
                    self._reached = True  # it was there and went away in the middle of an answer
                hopeless = isinstance(error, (NoHub, HubDead) if self._needs_process else NoHub)
                if hopeless and not self._reached:
                    raise
                self._note_absence(error)
            else:
                self.note_presence()
                return answer
            time.sleep(pause_s)
            pause_s = min(LAST_PAUSE_S, pause_s * 1.6)

    def note_presence(self) -> None:
        """The hub answered: end the absence, if there was one."""
        with self._lock:
            self._reached = True
            since, self._away_since = self._away_since, None
        if since is not None:
            say(f"the hub is back after {format_seconds(time.monotonic() - since)}")

    def _note_absence(self, error: HubUnavailable) -> None:
        now = time.monotonic()
        with self._lock:
            first = self._away_since is None
            if self._away_since is None:
                self._away_since = now
            away_s = now - self._away_since
        if first:
            say(f"{error.message}; trying again for up to {format_seconds(self.limit_s)}")
        if away_s >= self.limit_s:
            tail = f"; {self.goes_on}" if self.goes_on else ""
            raise GaveUp(f"the hub has not answered for {format_seconds(away_s)}{tail}")
