"""Several addresses of one site: which of them to dial next. Knows no socket, and proves nothing.

Hubs of one site share one store, and one of them leads. Whoever asks another is told where that one is, and dials there
next, by the very rules that hold for any address: what cannot prove itself gets no token. An address where nobody
answers is left for the next one. The surprising rule: where to dial is remembered in the process, so that all who talk
to one site move together.
"""

from __future__ import annotations

from collections.abc import Sequence

from dray.errors import DrayError, HubUnavailable
from dray.wire.reach.dialling import check_url


class Elsewhere(HubUnavailable):
    """The hub that answers only stands by; `leader` is where the one that leads said to be."""

    def __init__(self, message: str, leader: str) -> None:
        super().__init__(message)
        self.leader = leader


def split_addresses(text: str) -> list[str]:
    """Read `https://one:7373,https://two:7373`."""
    return [part for word in text.split(",") if (part := word.strip().rstrip("/"))]


class Addresses:
    """Where one site was last found."""

    def __init__(self) -> None:
        self._at = self._tries = 0
        self._told = ""
        self.is_plural = False

    @property
    def told(self) -> str:
        """The address that a hub which stands by gave away; empty while one of those known is dialled."""
        return self._told

    def choose(self, urls: Sequence[str]) -> str:
        """The one to dial now."""
        self.is_plural = self.is_plural or len(urls) > 1
        return self._told or urls[self._at % len(urls)]

    def order(self, urls: Sequence[str]) -> list[str]:
        """All that are known, the one in use first."""
        return list(dict.fromkeys([self.choose(urls), *urls]))

    def reached(self) -> None:
        """Somebody who leads is there."""
        self._tries = 0

    def tell(self, leader: str, known: int) -> bool:
        """A hub that stands by says where the leader is. Gives whether to dial there at once."""
        try:
            check_url(leader)
        except DrayError:
            return self.miss(known)
        self.is_plural, self._told = True, leader
        return self._again(known)

    def miss(self, known: int) -> bool:
        """Nobody who leads is there. Gives whether another address is to be dialled at once, or all were just now."""
        if not self._told:
            self._at += 1
        self._told = ""
        return self.is_plural and self._again(known)

    def _again(self, known: int) -> bool:
        self._tries += 1
        if self._tries <= 2 * known + 1:
            return True
        self._tries = 0
        return False
