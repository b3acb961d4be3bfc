"""What TLS must prove of a hub: that it shows the pinned certificate, or one that an authority has signed.

The one rule for client, command line and agent. Whoever compares the certificate's own bytes needs no authority, no
name and no date: one that has run out is still the one that was joined, and a cluster must not fall apart on its fifth
birthday. Surprising rule: the comparison is part of the handshake itself, so that nothing can be sent before it,
whoever uses the context. `ssl` takes long to load: import this module where a connection leaves the machine.
"""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path

from dray.errors import InvalidConfig
from dray.wire.reach.dialling import WrongCertificate, read_fingerprint


class OtherCertificate(ssl.SSLError):
    """The handshake was broken off. `told` is what a person is to hear of it."""

    def __init__(self, url: str, seen: str) -> None:
        self.told = WrongCertificate(
            f"{url} shows another certificate (sha256:{seen}) than the pinned one: nothing was sent. If the hub's "
            "certificate was renewed on purpose, use the new fingerprint; if not, somebody may stand in between"
        )
        super().__init__(ssl.SSL_ERROR_SSL, self.told.message)


class PinnedContext(ssl.SSLContext):
    """Lets one certificate through and no other."""

    pinned = url = ""

    def check(self, end: ssl.SSLSocket | ssl.SSLObject) -> None:
        """Compare what the peer has shown, and proved to be its own."""
        seen = hashlib.sha256(end.getpeercert(binary_form=True) or b"").hexdigest()
        if seen != self.pinned:
            raise OtherCertificate(self.url, seen)


class _Socket(ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        if isinstance(self.context, PinnedContext):
            self.context.check(self)


class _Object(ssl.SSLObject):
    """The same for event loops."""

    def do_handshake(self) -> None:
        super().do_handshake()
        if isinstance(self.context, PinnedContext):
            self.context.check(self)


def make_context(url: str, pinned: str = "", cafile: Path | None = None) -> ssl.SSLContext:
    """Trust the pinned certificate alone, or the given authority, or the system's."""
    if pinned:
        context = PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
        context.sslsocket_class, context.sslobject_class = _Socket, _Object
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.pinned, context.url = read_fingerprint(pinned), url
        return context
    try:
        return ssl.create_default_context(cafile=str(cafile) if cafile else None)
    except (OSError, ssl.SSLError) as fault:
        raise InvalidConfig(f"--cafile {cafile} cannot be used: {fault.strerror or fault}") from None
