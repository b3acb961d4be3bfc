"""Dialling a WebSocket of the hub: whoever is there is known before the token is sent, and refusals have words."""

from __future__ import annotations

import asyncio

from dray.client.reach.discovery import Target, trust
from dray.errors import DrayError, Forbidden, HubUnavailable, Unauthenticated
from dray.wire.reach.dialling import Line, Opening, tell_broken
from dray.wire.reach.refusals import read_refusal
from dray.wire.reach.websocket import HandshakeRefused, WebSocket, dial, make_address

OPEN_S = 10.0


async def dial_hub(target: Target, path: str, subprotocol: str, more: tuple[str, ...] = ()) -> WebSocket:
    """Open one; raises what the hub refused with, `HubUnavailable` where none answers."""
    try:
        line = await _open(target)
        address = make_address(target.url, path, subprotocol, target.token, more)
        return await dial(address, line, OPEN_S)
    except HandshakeRefused as refusal:
        raise _read_refusal(target.url, refusal.status, refusal.body) from None
    except (OSError, TimeoutError) as fault:
        words = f"no hub answers at {target.url}: {str(fault) or 'no answer'}"
        raise (tell_broken(fault) or HubUnavailable(words)) from None


async def _open(target: Target) -> Line:
    try:
        return await Opening(target.way, OPEN_S, lambda: trust(target)).wait(asyncio.to_thread)
    except RuntimeError as fault:
        # At the end of a program there are no threads to be had any more, and nobody to be told of it.
        raise HubUnavailable(f"{target.url} cannot be dialled: {fault}") from None


def _read_refusal(url: str, status: int, body: bytes) -> DrayError:
    refusal = read_refusal(body)
    if refusal is None:
        return HubUnavailable(f"what answers at {url} is not a dray hub (status {status}): look at DRAY_HUB")
    if isinstance(refusal, (Unauthenticated, Forbidden)):
        return refusal
    return HubUnavailable(f"the hub at {url} refuses: {refusal.message}")
