"""How a browser gets to a service: by a link that is good once, for a pass that is good for that service alone.

A pass is a cookie's worth: it names a token and a service, is signed by the hub and ends with either. It opens
nothing of the hub itself, which reads no cookies at all. Signed and not stored, so that a browser stays in over a
restart of the hub; a link is kept in memory until it is used, for minutes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import NamedTuple

from dray.errors import Unauthenticated
from dray.hub.access.caller import Caller
from dray.hub.access.task_tokens import is_task_id
from dray.hub.access.tokens import Tokens

LINK_S = 300.0
LINK_FIELD = "dray_link"
PASS_S = 12 * 3600.0
LINKS_MOST = 1000


class Pass(NamedTuple):
    """Who may pass to which service, and the text that proves it."""

    caller: Caller
    job_id: str
    text: str


class _Link(NamedTuple):
    token_id: str
    job_id: str
    until_ms: int


class Passes:
    """One hub's. `secret` is that of its home."""

    def __init__(self, secret: bytes, tokens: Tokens) -> None:
        self._key = hmac.new(secret, b"passes to services", hashlib.sha256).digest()
        self._tokens = tokens
        self._links: dict[str, _Link] = {}

    @property
    def _clock_ms(self) -> Callable[[], int]:
        return self._tokens.clock_ms

    def make_link(self, caller: Caller, job_id: str) -> str:
        """A word that may be exchanged once for a pass."""
        if is_task_id(caller.token_id):
            raise Unauthenticated("a token of a task makes no links: use one of a person")
        now_ms = self._clock_ms()
        self._links = {word: link for word, link in self._links.items() if link.until_ms > now_ms}
        if len(self._links) >= LINKS_MOST:
            del self._links[next(iter(self._links))]
        word = secrets.token_urlsafe(24)
        self._links[word] = _Link(caller.token_id, job_id, now_ms + round(1000 * LINK_S))
        return word

    def redeem(self, word: str) -> Pass:
        """Exchange a link for a pass to its service; it is used up by that."""
        link = self._links.pop(word, None)
        if link is None or link.until_ms <= self._clock_ms():
            raise Unauthenticated("this link is used up or too old: `dray service open` prints another")
        until_ms = self._clock_ms() + round(1000 * PASS_S)
        said = f"{link.token_id}\n{link.job_id}\n{until_ms}".encode()
        text = f"{_spell(said)}.{_spell(self._sign(said))}"
        return Pass(self._tokens.recall(link.token_id), link.job_id, text)

    def read(self, text: str) -> Pass:
        """Whose a pass is, and to which service."""
        body, _, signature = text.partition(".")
        said = _read(body)
        if not hmac.compare_digest(self._sign(said), _read(signature)):
            raise Unauthenticated("this is no pass of this hub: `dray service open` prints a link to another")
        token_id, job_id, until_ms = said.decode().split("\n")
        if int(until_ms) <= self._clock_ms():
            raise Unauthenticated("this pass is too old: `dray service open` prints a new link")
        return Pass(self._tokens.recall(token_id), job_id, text)

    def _sign(self, said: bytes) -> bytes:
        return hmac.new(self._key, said, hashlib.sha256).digest()


def _spell(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _read(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text.encode("latin-1", "replace") + b"=" * (-len(text) % 4))
    except ValueError:
        return b""
