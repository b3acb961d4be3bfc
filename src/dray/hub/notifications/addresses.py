"""Where a webhook may go: names are looked up once, each address is held against the rules, and that one is dialled.

A job's webhook must not lead the hub into the network that it stands in. The name is not looked up again after the
check, so that an answer which changes in between leads nowhere else.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from concurrent.futures import Executor

from dray.core.model.specs.notifying import Url

# Addresses that stand for others inside them: who may not reach those may not reach them this way.
_CARRIERS = (
    ipaddress.ip_network("64:ff9b::/96"),
    ipaddress.ip_network("2002::/16"),
    ipaddress.ip_network("2001::/32"),
)
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Forbidden(Exception):
    """An address that this receiver may not have."""


async def find_addresses(url: Url, pool: Executor) -> list[str]:
    """Look a host up, on threads of their own: a slow answer must not hold up what else the hub looks up."""
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(
        pool, lambda: socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    )
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def check_addresses(url: Url, found: Sequence[str], networks: Sequence[str]) -> None:
    """Refuse a job's address unless all its name stands for is of the internet, or of a network that is allowed."""
    for text in found:
        address = ipaddress.ip_address(text.partition("%")[0])
        if any(_is_in(address, network) for network in networks):
            continue
        if not is_public(address):
            raise Forbidden(
                f"{url.host} is {text}, inside a network of its own: only the policy's own receivers, and networks in "
                "notifications.jobs.networks, may be there"
            )
        if url.scheme != "https":
            raise Forbidden(f"{url.host} is on the internet, where only https is spoken")


def is_public(address: Address) -> bool:
    """Whether an address is one of the internet's, also where it is written inside another."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if any(address in network for network in _CARRIERS):
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _is_in(address: Address, network: str) -> bool:
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
