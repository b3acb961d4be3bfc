"""The hub's own certificate, the rule that nothing beyond loopback is plain, and the line by which a worker joins.

Owns HOME/tls; knows nothing about the server that uses it. There is no authority behind the certificate: a worker
trusts it by its fingerprint, which travels in the join line together with the token. So a certificate of the hub's own
making is never renewed by itself, which would break every pin; whoever pins one does not look at its dates.
"""

from __future__ import annotations

import hashlib
import ipaddress
import shlex
import ssl
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dray.errors import InvalidConfig
from dray.hub.access.entrance import bare_host
from dray.hub.access.tokens import write_private

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

VALID_DAYS = 5 * 365


WARN_DAYS = 30


class TlsFiles(NamedTuple):
    """Where certificate and key lie, both PEM; `own` are those that the hub has made itself."""

    cert: Path
    key: Path
    own: bool = False


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address. A name counts only when it is `localhost`."""
    name = bare_host(host)
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def check_bind(host: str, tls: bool) -> None:
    """Refuse to send tokens in the clear over a network."""
    if not tls and not is_loopback(host):
        raise InvalidConfig(
            f"plain HTTP on {host or 'every address'} would send tokens in the clear: let the hub make a certificate, "
            "name your own (tls_cert and tls_key of [hub]), or bind to 127.0.0.1"
        )


def ensure_certificate(home: Path, names: Iterable[str], now: datetime | None = None) -> TlsFiles:
    """Give the certificate in HOME/tls, made at the first start and then kept: workers know its fingerprint."""
    files = TlsFiles(home / "tls" / "cert.pem", home / "tls" / "key.pem", own=True)
    if files.cert.exists() and files.key.exists():
        files.key.chmod(0o600)
        return files
    # Imported where a certificate is made, once in a home's life: every start would pay for it.
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    cert = _make_certificate(key, names, now or datetime.now(UTC))
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    # The key first: a certificate without its key would look finished to the next start.
    write_private(files.key, pem)
    write_private(files.cert, cert.public_bytes(serialization.Encoding.PEM))
    return files


def fingerprint(cert: Path | bytes) -> str:
    """Name a certificate (PEM) by the hash of its DER form."""
    pem = cert.read_bytes() if isinstance(cert, Path) else cert
    try:
        der = ssl.PEM_cert_to_DER_cert(
            pem[pem.index(b"-----BEGIN CERT") :].split(b"-----END", 1)[0].decode() + _END
        )
    except ValueError as fault:
        raise InvalidConfig(f"the certificate cannot be read as PEM: {fault}") from None
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


def seconds_left(cert: Path, now: datetime | None = None) -> float:
    """How long a certificate is still valid; negative once it has run out."""
    from cryptography import x509

    try:
        until = x509.load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as fault:
        raise InvalidConfig(f"the certificate {cert} cannot be read: {fault}") from None
    return (until - (now or datetime.now(UTC))).total_seconds()


def warn_of_end(files: TlsFiles, left_s: float) -> str:
    """Say that a certificate nears its end, and what to do; empty while there is time."""
    if left_s > WARN_DAYS * 86400:
        return ""
    days = int(left_s // 86400)
    when = f"ends in {days} days" if left_s > 0 else f"ended {-days} days ago"
    if not files.own:
        return (
            f"the certificate {files.cert} {when}: put a new one in its place, with its key in {files.key}; "
            "the hub takes it up within a minute"
        )
    return (
        f"the hub's own certificate {files.cert} {when}. Whoever pins its fingerprint goes on as before; for others "
        f"remove it and {files.key.name} and restart the hub, which makes a new one, and give the new fingerprint out"
    )


def join_line(urls: Sequence[str], fingerprint_text: str, token: str) -> str:
    """Spell the command that makes another machine a worker of this hub, or of the several hubs of a site."""
    words = ["dray", "worker", "start", *(word for url in urls for word in ("--hub", url))]
    if fingerprint_text:
        words += ["--fingerprint", fingerprint_text]
    return shlex.join([*words, "--token", token])


_END = "-----END CERTIFICATE-----\n"


def _make_certificate(
    key: ec.EllipticCurvePrivateKey, names: Iterable[str], now: datetime
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dray hub")])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of workers may be a little behind.
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=False)
        .add_extension(x509.SubjectAlternativeName(_alternatives(names)), critical=False)
    )
    return builder.sign(key, hashes.SHA256())


def _alternatives(names: Iterable[str]) -> list[x509.GeneralName]:
    from cryptography import x509

    found: list[x509.GeneralName] = []
    for name in dict.fromkeys(bare_host(name) for name in (*names, "localhost", "127.0.0.1", "::1")):
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            if name.isascii() and name:
                found.append(x509.DNSName(name))
            continue
        if not address.is_unspecified:
            found.append(x509.IPAddress(address))
    return found
