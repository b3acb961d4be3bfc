"""Where other machines reach this one: an address, and whether nobody uses a port.

Opens sockets and sends nothing. A port is free when it is asked about; a program that takes it before the task does
makes that try fail, and the next one gets another.
"""

from __future__ import annotations

import contextlib
import errno
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


def is_free(port: int) -> bool:
    """Whether a program could listen on a port now, at whatever address of this machine."""
    for family, anywhere in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                # As servers do: connections that are over must not keep the port from the next one.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((anywhere, port))
        except OSError as fault:
            if fault.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
    return True
