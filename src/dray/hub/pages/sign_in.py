"""How a browser signs in: with a token, or with a code that a program with one has asked for.

A session is a token of its own, a child of the one that signed in. Its secret leaves in two halves. One goes into a
cookie that no script can read, the other to the page, which sends it as a header that no other site and no other port
can send: cookies know no ports, so on a machine where many programs serve pages a cookie alone would speak for any of
them. Neither half opens anything by itself, and the token that signed in stays nowhere in the browser.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import NamedTuple

from dray.errors import Conflict, Unauthenticated
from dray.hub.access.caller import Caller
from dray.hub.access.entrance import SECURE_COOKIE, SESSION_COOKIE
from dray.hub.access.tokens import SESSION_S, Tokens

CODE_S = 60.0
CODES_MOST = 1000
HALF_AT = 22


class Opened(NamedTuple):
    """A session that begins: who is in, and its halves."""

    caller: Caller
    expires_at: str | None
    cookie: bytes
    half: str


class _Code(NamedTuple):
    token_id: str
    until_ms: int


class SignIn:
    """One hub's."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        # Counts a token or code that nobody knows, by where it came from; raises where there were too many.
        self.miss: Callable[[str, str], None] = lambda peer, fault: None
        self._codes: dict[str, _Code] = {}
        self._turn = asyncio.Lock()

    def make_code(self, caller: Caller) -> str:
        """A word that signs a browser in once, within a minute."""
        now_ms = self._tokens.clock_ms()
        self._tokens.recall(caller.token_id)
        self._codes = {word: code for word, code in self._codes.items() if code.until_ms > now_ms}
        if len(self._codes) >= CODES_MOST:
            del self._codes[next(iter(self._codes))]
        word = secrets.token_urlsafe(24)
        self._codes[word] = _Code(caller.token_id, now_ms + round(1000 * CODE_S))
        return word

    async def open(self, token: str, code: str, peer: str, secure: bool) -> Opened:
        """Begin a session for whoever shows a token, or a code."""
        if not token and not code:
            raise Unauthenticated("a browser signs in with a `token`, or with the `code` of `dray ui`")
        try:
            caller = self._tokens.authenticate(f"Bearer {token}") if token else self._redeem(code)
        except Unauthenticated as fault:
            self.miss(peer, fault.message)
            raise
        async with self._turn:
            text, row = await self._tokens.open_session(caller)
        secret = text.split("_", 2)[2]
        first, second = secret[:HALF_AT], secret[HALF_AT:]
        name, more = (SECURE_COOKIE, b"; Secure") if secure else (SESSION_COOKIE, b"")
        value = b"%b=%b.%b" % (name, row.id.encode(), first.encode())
        cookie = value + b"; Path=/; HttpOnly; SameSite=Strict; Max-Age=%d" % SESSION_S + more
        return Opened(self._tokens.recall(row.id), self._tokens.expires_at(row.id), cookie, second)

    async def close(self, caller: Caller) -> None:
        """End the session of a browser; other tokens are revoked by admins."""
        if not self._tokens.parent_of(caller.token_id):
            raise Conflict(
                f"token {caller.token_id} is no session of a browser: an admin ends it with "
                f"`dray token revoke {caller.token_id}`"
            )
        await self._tokens.revoke(caller, caller.token_id)

    def _redeem(self, word: str) -> Caller:
        code = self._codes.pop(word, None)
        if code is None or code.until_ms <= self._tokens.clock_ms():
            raise Unauthenticated(
                "this sign-in link is used up or too old: run `dray ui` again, or sign in with a token"
            )
        return self._tokens.recall(code.token_id)
