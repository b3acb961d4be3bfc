"""Who asks."""

from __future__ import annotations

from typing import NamedTuple


class Caller(NamedTuple):
    """Who asks: the token behind a request. `admin` includes every scope. `local`: by the socket of the hub's home."""

    token_id: str
    user: str
    scopes: tuple[str, ...]
    local: bool = False

    def may(self, scope: str) -> bool:
        return scope in self.scopes or "admin" in self.scopes

    def sees(self, user: str) -> bool:
        """Whether something of `user` may be shown to this caller at all."""
        return user == self.user or "admin" in self.scopes
