"""By what hubs of one database know each other: a secret that lies there, and that is never sent.

A hub shows its own id, signed together with the name that the leader signs with there. So what one has shown is good
for one reign of one hub, and tells nobody the secret. Whoever can read the database could do all that a hub can anyway.
"""

from __future__ import annotations

import hmac
import re

from dray.errors import Unauthenticated
from dray.hub.access.caller import Caller

SECRET_NAME, SECRET_BYTES = "hub_secret", 32
PREFIX = "dray_hub_"
# What no operation takes: one who has it may hold sockets for the leader, and ask nothing else.
GATEWAY = ("gateway",)
_TOKEN = re.compile(rf"{PREFIX}([A-Za-z0-9-]{{1,64}})_([0-9a-f]{{64}})")


def make_hub_token(secret: bytes, hub_id: str, leader: str) -> str:
    """What a hub shows to the one that signs as `leader`."""
    return f"{PREFIX}{hub_id}_{_sign(secret, hub_id, leader)}"


def hub_of(caller: Caller) -> str:
    """The hub that asks; empty where it is none."""
    return caller.token_id.removeprefix("hub:") if caller.scopes == GATEWAY else ""


class HubTokens:
    """Read by the one that leads, which signs as `leader`."""

    def __init__(self, secret: bytes, leader: str) -> None:
        self._secret, self._leader = secret, leader

    def knows(self, text: str) -> bool:
        """Tell it from others."""
        return text.startswith(PREFIX)

    def authenticate(self, text: str) -> Caller:
        """Tell which hub it is."""
        match = _TOKEN.fullmatch(text)
        wanted = _sign(self._secret, match[1] if match else "", self._leader)
        if match is None or not hmac.compare_digest(wanted, match[2]):
            raise Unauthenticated(
                "this is no hub of the database that this one leads, or it takes this one for another"
            )
        return Caller(f"hub:{match[1]}", "", GATEWAY)


def _sign(secret: bytes, hub_id: str, leader: str) -> str:
    # No id holds a blank.
    return hmac.digest(secret, f"gateway {hub_id} {leader}".encode(), "sha256").hex()
