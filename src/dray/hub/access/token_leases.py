"""What stays open under a token, and ends with it: sockets, streams, uploads, waits.

Owns who is to be told; knows neither tokens nor sockets. Whoever serves longer than one answer takes holds a lease for
as long. The surprising rule: a lease that is taken too late, after its token has ended, ends at once, so that nobody
has to ask between the gate and here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

# Expiry is wall time, which may be set: a lease looks again after so long, however far off its end is.
LOOK_S = 30.0
End = Callable[[str], None]
Hold = Callable[[str, End], AbstractContextManager[None]]


class Leases:
    """`fault_of` says why a token is no longer good, "" while it is; `left_s` how long it has, None for no end."""

    def __init__(self, fault_of: Callable[[str], str], left_s: Callable[[str], float | None]) -> None:
        self._fault_of, self._left_s = fault_of, left_s
        self._held: dict[str, dict[object, End]] = {}

    @contextlib.contextmanager
    def hold(self, token_id: str, end: End) -> Iterator[None]:
        """Have `end` called with the reason as soon as the token is no longer good."""
        held, key = self._held.setdefault(token_id, {}), object()
        held[key] = end
        timer = _Timer(self, token_id)
        try:
            if fault := self._fault_of(token_id):
                end(fault)
            else:
                timer.wind()
            yield
        finally:
            timer.stop()
            del held[key]
            if not held:
                self._held.pop(token_id, None)

    def look(self, token_id: str) -> None:
        """End all that is held under a token which is no longer good."""
        held = self._held.get(token_id)
        if held and (fault := self._fault_of(token_id)):
            for end in list(held.values()):
                end(fault)

    def left_s(self, token_id: str) -> float | None:
        return self._left_s(token_id)


class _Timer:
    """Looks when a token expires; one without an expiry has none."""

    def __init__(self, leases: Leases, token_id: str) -> None:
        self._leases, self._token_id = leases, token_id
        self._handle: asyncio.TimerHandle | None = None

    def wind(self) -> None:
        left_s = self._leases.left_s(self._token_id)
        if left_s is not None:
            delay_s = min(max(left_s, 0.0), LOOK_S)
            self._handle = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        self._handle = None
        left_s = self._leases.left_s(self._token_id)
        if left_s is not None and left_s <= 0:
            self._leases.look(self._token_id)
        else:
            self.wind()
