"""Tokens that are none: who comes with them, how often, and when that is enough.

Owns the count per peer and what the log and the doctor say of it; never sees a token. The surprising rule: a good token
is never refused here, however many bad ones came from the same address: on one machine all users share one, and a
guess at 256 bits needs no wall in front of it. What is kept small is the hub's work and the log.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from dray.core.lifecycle.state.state import State
from dray.errors import TooManyRequests

BURST, PER_S = 50.0, 1.0
PEERS = 1024
SAY_EVERY_S = 60.0
DAY_S = 86400.0
HERE = "this machine"
logger = logging.getLogger("dray.hub.access.bad_tokens")


class TooManyKnocks(TooManyRequests):
    """So many bad tokens from one peer that it is not told any more what is wrong with them."""


class _Peer:
    __slots__ = ("at", "left", "limited_at", "said_at", "times", "unsaid")

    def __init__(self, now: float) -> None:
        self.left, self.at = BURST, now
        self.times = self.unsaid = 0
        self.said_at = self.limited_at = -DAY_S


class Knocks:
    """The peers of one hub that came with bad tokens; the longest silent one is forgotten first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._peers: OrderedDict[str, _Peer] = OrderedDict()

    def miss(self, address: str, fault: str) -> None:
        """Count a bad token in; raises once there were too many of late."""
        name, now = _peer(address), self._clock()
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = _Peer(now)
            if len(self._peers) > PEERS:
                self._peers.popitem(last=False)
        self._peers.move_to_end(name)
        peer.left = min(BURST, peer.left + (now - peer.at) * PER_S) - 1
        peer.at = now
        peer.times += 1
        peer.unsaid += 1
        if now - peer.said_at >= SAY_EVERY_S:
            more = f" ({peer.unsaid} of late)" if peer.unsaid > 1 else ""
            logger.warning("a bad token from %s%s: %s", name, more, fault)
            peer.said_at, peer.unsaid = now, 0
        if peer.left < 0:
            peer.left = max(peer.left, -BURST)
            peer.limited_at = now
            raise TooManyKnocks(
                "too many bad tokens came from this address: ask less often", -peer.left / PER_S
            )

    def examine(self, state: State) -> dict[str, Any]:
        """For the doctor: who came with more bad tokens than anybody mistypes."""
        now = self._clock()
        found = [
            f"{peer.times} from {name}" for name, peer in self._peers.items() if now - peer.limited_at < DAY_S
        ]
        return {"name": "bad tokens", "ok": not found, "detail": "; ".join(found[:20])}


def _peer(address: str) -> str:
    """The peer behind an address: of IPv6 the network, since one machine has as many addresses there as it likes."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address or HERE
    if parsed.is_loopback:
        return HERE
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address
