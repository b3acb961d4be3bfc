"""The client proves the hub before it sends the token: pinned certificates, authorities, strangers."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

import dray
from dray.errors import InvalidConfig
from dray.testing import RunningHub, running_hub


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def hub(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    folder = tmp_path_factory.mktemp("tls")
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    for part in certificate.cert_chain_pems:
        part.write_to_path(folder / "cert.pem", append=True)
    with running_hub(folder / "hub", tls_cert=folder / "cert.pem", tls_key=folder / "key.pem") as running:
        yield running


def _fingerprint(hub: RunningHub) -> str:
    host, port = hub.url.removeprefix("https://").split(":")
    pem = ssl.get_server_certificate((host, int(port)))
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def test_the_hub_of_this_home_is_pinned_by_its_note(hub: RunningHub) -> None:
    assert hub.url.startswith("https://")
    with dray.connect(home=hub.home) as client:
        job = client.submit(["true"])
        assert job.state is dray.JobState.PENDING
        assert list(job.logs()) == []


def test_a_given_fingerprint_or_authority_is_enough(
    hub: RunningHub, authority: trustme.CA, tmp_path: Path
) -> None:
    pinned = f"sha256:{_fingerprint(hub)}"
    with dray.connect(hub.url, hub.token, tmp_path, fingerprint=pinned) as client:
        assert client.ping()["ready"] is True
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with dray.connect(hub.url, hub.token, tmp_path, cafile=tmp_path / "ca.pem") as client:
        assert client.ping()["ready"] is True


def test_a_stranger_gets_no_token(hub: RunningHub, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="another certificate"):
        dray.connect(hub.url, hub.token, tmp_path, fingerprint=f"sha256:{'0' * 64}")
    with pytest.raises(dray.HubUnavailable, match="certificate"):
        dray.connect(hub.url, hub.token, tmp_path)
