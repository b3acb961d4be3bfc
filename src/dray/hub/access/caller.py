"""Who asks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dray.errors import Forbidden

# Of a task that reaches the services that its job uses.
USE_ONLY = ("use",)


class Caller(NamedTuple):
    """Who asks: the token behind a request. `admin` includes every scope. `local`: by the socket of the hub's home."""

    token_id: str
    user: str
    scopes: tuple[str, ...]
    local: bool = False

    def may(self, scope: str) -> bool:
        return scope in self.scopes or "admin" in self.scopes

    def sees(self, user: str) -> bool:
        """Whether something of `user` may be shown to this caller at all; to one that may only use services nothing."""
        return (user == self.user and self.scopes != USE_ONLY) or "admin" in self.scopes

    def check(self, scopes: Iterable[str]) -> None:
        """Refuse what takes one of these scopes to a token that has none of them."""
        if "admin" in self.scopes or any(scope in self.scopes for scope in scopes):
            return
        if self.scopes == ("join",):
            raise Forbidden(
                f"token {self.token_id} is a join token: all it does is to get a worker a token of its own, "
                "with POST /api/v1/workers/NAME/token (`dray worker start` does that by itself)"
            )
        has = ", ".join(self.scopes)
        raise Forbidden(
            f"this call needs the scope {' or '.join(scopes)} and token {self.token_id} has {has}: "
            "ask an admin for a token with it"
        )
