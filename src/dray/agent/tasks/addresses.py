"""Where other machines reach this one: an address, and ports that nobody uses.

Opens sockets and sends nothing. A port is free when it is picked; a program that takes it before the task does makes
that try of the gang fail, and the next one gets another.
"""

from __future__ import annotations

import contextlib
import socket

LOOPBACK = ("127.", "::1", "localhost")
# Documentation addresses: asking for the way there sends nothing and says which of our addresses faces outwards.
OUTSIDE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


def find_address(toward_hub: str) -> str:
    """The address of our end of the hub's connection; where that is loopback, the one that faces outwards, if any.

    A worker on the hub's own machine joins over loopback, and its peers elsewhere could not meet it there.
    """
    if toward_hub and not toward_hub.startswith(LOOPBACK):
        return toward_hub
    for family, target in OUTSIDE:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            found = str(probe.getsockname()[0])
            if found and not found.startswith(LOOPBACK):
                return found
    return toward_hub or "127.0.0.1"


def find_port() -> int:
    """A port on which nobody listens now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
