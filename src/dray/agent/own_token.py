"""The token of this very worker: kept in its home, got from the hub for one that only lets it join.

Owns the file `worker/token` and the order in which tokens are looked for; knows nothing about sessions. A join token,
or the admin's in the hub's own home, is exchanged once: from then on this machine has a token that speaks for it alone,
and can be revoked without a word to the others. The surprising rule: what was exchanged is remembered with it, so that
a new join token, or another hub in this home, leads to a new exchange, and a revoked token does not.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from typing import NamedTuple
from urllib.parse import quote

from dray.agent.tasks.aside import do_aside
from dray.config import AgentConfig
from dray.errors import HubUnavailable, NotLeader, Unauthenticated
from dray.wire.reach.addresses import Elsewhere
from dray.wire.reach.dialling import Trust, Way
from dray.wire.reach.http_line import BROKEN, HubConnection
from dray.wire.reach.refusals import read_refusal

JOIN_PREFIX = "drayjoin_"
TIMEOUT_S = 10.0
# The token at hand may not join anybody, or the hub is too old to know the call: it is used as it is.
_AS_IT_IS = (403, 404, 405)


class TokenRefused(HubUnavailable):
    """The hub does not want this token, or no longer: asking again soon changes nothing."""


class Kept(NamedTuple):
    """What the file holds: a token, and where it was got in exchange, the worker it is for and what for."""

    text: str = ""
    worker: str = ""
    source: str = ""


class OwnToken:
    """Finds the token to dial with."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._path = config.folder / "worker" / "token"

    async def settle(self, way: Way, trust: Trust) -> str:
        """The token to dial with; one that only lets a worker join is exchanged first."""
        text, source = self._choose()
        if not source:
            return text
        made = await do_aside(_exchange, way, trust, text, self._config.name)
        if not made:
            return text
        self._keep(Kept(made, self._config.name, source))
        return made

    def check_given(self) -> None:
        """Tell a person what to do who starts a worker of a hub elsewhere without any token."""
        if self._config.hub and not self._choose()[0]:
            raise Unauthenticated(
                f"this machine has no token of the hub at {self._config.hub}: where you are admin of that hub, run "
                "`dray token create --scope join`, and paste here the line that it prints"
            )

    def _choose(self) -> tuple[str, str]:
        """A token, and under which name to remember what it is exchanged for; an empty one: it is used as it is."""
        given, kept, name = self._config.token, self._read(), self._config.name
        if given and not given.startswith(JOIN_PREFIX):
            return given, ""
        if not given and kept.text.startswith(JOIN_PREFIX):
            given = kept.text
        if given:
            source = _id_of(given)
            return (kept.text, "") if (kept.worker, kept.source) == (name, source) else (given, source)
        if kept.text and not kept.source:
            return kept.text, ""
        home = self._read_home()
        is_old = kept.worker != name or (
            kept.source.startswith("home:") and kept.source != f"home:{_id_of(home)}"
        )
        if home and (not kept.text or is_old):
            return home, f"home:{_id_of(home)}"
        return kept.text, ""

    def _read(self) -> Kept:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return Kept(*self._path.read_text().split()[:3])
        return Kept()

    def _read_home(self) -> str:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return (self._config.home / "token").read_text().strip()
        return ""

    def _keep(self, kept: Kept) -> None:
        """Write the file, whole or not at all, for nobody else to read."""
        draft = self._path.with_name(f".token.{secrets.token_hex(4)}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(" ".join(kept) + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)


def _id_of(token: str) -> str:
    """The part of a token that is no secret."""
    return token.split("_", 2)[1] if token.count("_") >= 2 else ""


def _exchange(way: Way, trust: Trust, token: str, name: str) -> str:
    """Ask the hub for this worker's own token; empty where the one at hand is to be used as it is."""
    with contextlib.closing(HubConnection(way, token, TIMEOUT_S, trust)) as connection:
        try:
            response = connection.ask("POST", f"/api/v1/workers/{quote(name, safe='')}/token")
            status, body = response.status, response.read()
        except BROKEN as fault:
            raise HubUnavailable(f"no hub answers at {way.url}: {fault!r}") from None
    if status == 201:
        return str(json.loads(body)["token"])
    if status in _AS_IT_IS and not token.startswith(JOIN_PREFIX):
        return ""
    raise_elsewhere(body)
    kind = TokenRefused if status in (401, 403, 404, 409) else HubUnavailable
    raise kind(f"the hub gives this worker no token ({status}): {refusal_text(body)}")


def raise_elsewhere(body: bytes | bytearray | None) -> None:
    """Raise where the hub that answered only stands by."""
    refusal = read_refusal(body)
    if isinstance(refusal, NotLeader):
        raise Elsewhere(refusal.message, refusal.leader)


def refusal_text(body: bytes | bytearray | None) -> str:
    """What the hub said when it said no."""
    refusal = read_refusal(body)
    return refusal.message if refusal is not None else "no reason given"
