"""Dialling a WebSocket of the hub: whoever is there is known before the token is sent, and refusals have words."""

from __future__ import annotations

import asyncio

from dray.client.reach.discovery import Target, trust
from dray.errors import DrayError, Forbidden, HubUnavailable, NotLeader, Unauthenticated
from dray.wire.reach.addresses import Elsewhere
from dray.wire.reach.dialling import Line, Opening, tell_broken
from dray.wire.reach.refusals import read_refusal
from dray.wire.reach.websocket import KEEPALIVE_S, HandshakeRefused, WebSocket, dial, make_address

OPEN_S = 10.0
SEVERAL_OPEN_S, SEVERAL_KEEPALIVE_S = 3.0, 4.0


async def dial_hub(
    target: Target, path: str, subprotocol: str, more: tuple[str, ...] = (), one_of_several: bool = False
) -> WebSocket:
    """Open one; raises what the hub refused with, `HubUnavailable` where none answers.

    A hub that is one of several is not waited for as long: when it stands still, another one leads.
    """
    limit_s, keepalive_s = (SEVERAL_OPEN_S, SEVERAL_KEEPALIVE_S) if one_of_several else (OPEN_S, KEEPALIVE_S)
    try:
        line = await _open(target, limit_s)
        address = make_address(target.url, path, subprotocol, target.token, more)
        return await dial(address, line, limit_s, keepalive_s)
    except HandshakeRefused as refusal:
        raise _read_refusal(target.url, refusal.status, refusal.body) from None
    except (OSError, TimeoutError) as fault:
        words = f"no hub answers at {target.url}: {str(fault) or 'no answer'}"
        raise (tell_broken(fault) or HubUnavailable(words)) from None


async def _open(target: Target, limit_s: float) -> Line:
    try:
        return await Opening(target.way, limit_s, lambda: trust(target)).wait(asyncio.to_thread)
    except RuntimeError as fault:
        # At the end of a program there are no threads to be had any more, and nobody to be told of it.
        raise HubUnavailable(f"{target.url} cannot be dialled: {fault}") from None


def _read_refusal(url: str, status: int, body: bytes) -> DrayError:
    refusal = read_refusal(body)
    if refusal is None:
        return HubUnavailable(f"what answers at {url} is not a dray hub (status {status}): look at DRAY_HUB")
    if isinstance(refusal, (Unauthenticated, Forbidden)):
        return refusal
    if isinstance(refusal, NotLeader):
        return Elsewhere(f"the hub at {url} does not lead: {refusal.message}", refusal.leader)
    return HubUnavailable(f"the hub at {url} refuses: {refusal.message}")
