"""Who clients at a gateway are, by the leader's word alone: asked once per token, good until the leader takes it back.

Nothing outlives the link by which it was said. Holds no token: callers are found by the digest of what they showed.
"""

from __future__ import annotations

import hashlib
from typing import Any

from dray.errors import Unauthenticated
from dray.hub.access.caller import Caller
from dray.hub.access.entrance import Headers, Scope
from dray.hub.gateways.gateway import Gateway

MOST_KNOWN = 10_000


class KnownCallers:
    """The callers of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._known: dict[bytes, Caller] = {}
        self._shown: dict[str, set[bytes]] = {}

    async def know(self, scope: Scope, headers: Headers) -> Caller:
        """Tell who asks; raises as the leader's own door does, and `NotReady` while there is none."""
        if (given := headers.get(b"authorization")) is None:
            raise Unauthenticated("this call needs a token: send `Authorization: Bearer <token>`")
        header = given.decode("latin-1")
        if (caller := self._known.get(_digest(header))) is not None:
            return caller
        return _read(await self._gateway.know(header, str((scope.get("client") or ("",))[0])))

    # --- what the leader says -----------------------------------------------------------------------------------------

    def heard(self, header: str, payload: dict[str, Any]) -> None:
        if not payload.get("held"):
            return
        if len(self._known) >= MOST_KNOWN:
            self.relinked()
        caller, digest = _read(payload), _digest(header)
        self._known[digest] = caller
        self._shown.setdefault(caller.token_id, set()).add(digest)

    def ended(self, token_id: str) -> None:
        for digest in self._shown.pop(token_id, ()):
            self._known.pop(digest, None)

    def relinked(self) -> None:
        self._known.clear()
        self._shown.clear()


def _digest(header: str) -> bytes:
    return hashlib.sha256(header.encode("latin-1", "replace")).digest()


def _read(payload: dict[str, Any]) -> Caller:
    token_id, user, scopes = payload["caller"]
    return Caller(str(token_id), str(user), tuple(map(str, scopes)))
