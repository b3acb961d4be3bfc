"""HTTP to the hub that was found. Blocking, and loaded where it is needed: the channel does most of the asking."""

from __future__ import annotations

from dray.client.reach.discovery import Target, trust
from dray.errors import DrayError, HubUnavailable
from dray.wire.reach.http_line import HubConnection


def connect(target: Target, timeout_s: float) -> HubConnection:
    """A connection that dials when it is first asked."""
    return HubConnection(target.way, target.token, timeout_s, lambda: trust(target))


def tell_refusal(target: Target, status: int, body: bytes) -> DrayError:
    """What an answer that is none comes to."""
    from dray.wire.reach.refusals import read_refusal

    return read_refusal(body) or HubUnavailable(
        f"what answers at {target.url} is not a dray hub (status {status}): look at DRAY_HUB"
    )
