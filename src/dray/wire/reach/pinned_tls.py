"""Trust in one certificate, known by its fingerprint: what the agent and the client pin.

Whoever compares the certificate's own bytes needs no authority, no name and no date: one that has run out is still the
one that was joined, and a cluster must not fall apart on its fifth birthday.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

# OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python does not name.
NO_CHECK_TIME = 0x200000


def trust_alone(pem: str) -> ssl.SSLContext:
    """Make this certificate the only one that a connection may show."""
    import ssl

    context = ssl.create_default_context(cadata=pem)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(NO_CHECK_TIME)
    return context
