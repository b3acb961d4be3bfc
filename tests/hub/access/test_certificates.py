"""Certificates and the rule that nothing beyond loopback is plain."""

from __future__ import annotations

import shlex
import stat
from datetime import UTC, datetime

import pytest
import trustme
from cryptography import x509

from dray.errors import InvalidConfig
from dray.hub.access.certificates import check_bind, ensure_certificate, fingerprint, is_loopback, join_line

NOW = datetime(2026, 11, 15, tzinfo=UTC)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.9.9.9", "LocalHost"])
def test_loopback_may_be_plain(host):
    assert is_loopback(host)
    check_bind(host, tls=False)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "10.0.0.7", "hub.example", "localhost.evil.example", "2001:db8::1"]
)
def test_nothing_else_may(host):
    with pytest.raises(InvalidConfig, match=r"in the clear.*tls_cert.*127\.0\.0\.1"):
        check_bind(host, tls=False)
    check_bind(host, tls=True)


def test_a_certificate_is_made_once(tmp_path):
    files = ensure_certificate(tmp_path, ["hub.example", "10.0.0.7", "0.0.0.0"], NOW)
    assert [stat.S_IMODE(path.stat().st_mode) for path in files[:2]] == [0o600, 0o600]
    cert = x509.load_pem_x509_certificate(files.cert.read_bytes())
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["hub.example", "localhost"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "127.0.0.1", "::1"]
    assert (cert.not_valid_after_utc - NOW).days == 5 * 365
    before = files.cert.read_bytes(), files.key.read_bytes()
    files.key.chmod(0o644)
    again = ensure_certificate(tmp_path, ["other.example"], NOW)
    assert (again.cert.read_bytes(), again.key.read_bytes()) == before
    assert stat.S_IMODE(again.key.stat().st_mode) == 0o600


def test_a_start_that_died_half_way_begins_again(tmp_path):
    files = ensure_certificate(tmp_path, [], NOW)
    files.cert.unlink()
    assert ensure_certificate(tmp_path, [], NOW).cert.exists()


def test_fingerprints(tmp_path):
    files = ensure_certificate(tmp_path, [])
    cert = x509.load_pem_x509_certificate(files.cert.read_bytes())
    from cryptography.hazmat.primitives.hashes import SHA256

    assert fingerprint(files.cert) == f"sha256:{cert.fingerprint(SHA256()).hex()}"
    assert fingerprint(files.cert.read_bytes()) == fingerprint(files.cert)
    with pytest.raises(InvalidConfig, match="PEM"):
        fingerprint(b"nothing of the kind")


def test_the_fingerprint_of_a_chain_is_that_of_its_first_certificate():
    authority = trustme.CA()
    issued = authority.issue_cert("hub.example")
    chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems) + authority.cert_pem.bytes()
    assert fingerprint(chain) == fingerprint(issued.cert_chain_pems[0].bytes())


def test_the_join_line_can_be_pasted():
    line = join_line(["https://10.0.0.7:7373"], "sha256:ab", "dray_00000000_x-y_z")
    assert (
        line
        == "dray worker start --hub https://10.0.0.7:7373 --fingerprint sha256:ab --token dray_00000000_x-y_z"
    )
    assert shlex.split(join_line(["https://h:1"], "", "t; rm -rf ~"))[-1] == "t; rm -rf ~"
    assert "--fingerprint" not in join_line(["http://127.0.0.1:1"], "", "t")
