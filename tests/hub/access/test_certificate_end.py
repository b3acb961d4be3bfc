"""A certificate that nears its end is warned of, a new one is taken up, and those who pin it go on."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from tests.hub.asking import wait_until

import dray
from dray.agent.link import Link
from dray.cli.main import main
from dray.config import AgentConfig
from dray.hub.access.certificate_watch import CertificateWatch
from dray.hub.access.certificates import TlsFiles, ensure_certificate, fingerprint
from dray.testing import RunningHub, running_hub
from dray.wire.reach.dialling import Way, WrongCertificate
from dray.wire.reach.http_line import HubConnection
from dray.wire.reach.pinned_tls import make_context


def issue(folder: Path, authority: trustme.CA, ends: datetime) -> TlsFiles:
    made = authority.issue_cert(
        "127.0.0.1", "localhost", not_before=ends - timedelta(days=90), not_after=ends
    )
    files = TlsFiles(folder / "cert.pem", folder / "key.pem")
    made.private_key_pem.write_to_path(files.key)
    made.cert_chain_pems[0].write_to_path(files.cert)
    return files


def ask_tls(hub: RunningHub, path: str, authority: trustme.CA) -> str:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    connection = http.client.HTTPSConnection(hub.url.removeprefix("https://"), timeout=30, context=context)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {hub.token}"})
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_the_end_is_told_and_a_new_one_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    files = issue(tmp_path, authority, datetime.now(UTC) + timedelta(days=10))
    script = tmp_path / "sitecustomize.py"
    script.write_text("import dray.hub.access.certificate_watch as watch\nwatch.LOOK_S = 0.1\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with running_hub(tmp_path / "hub", tls_cert=files.cert, tls_key=files.key) as hub:
        assert "ends in 9 days" in ask_tls(hub, "/api/v1/doctor", authority)
        assert "ends in 9 days" in (hub.home / "hub.err").read_text()
        (line,) = [
            line
            for line in ask_tls(hub, "/metrics", authority).splitlines()
            if line.startswith("dray_certificate_seconds ")
        ]
        assert 9 * 86400 < float(line.split()[1]) < 10 * 86400
        before = (hub.home / "hub.json").read_text()
        issue(tmp_path, authority, datetime.now(UTC) + timedelta(days=89))
        wait_until(lambda: (hub.home / "hub.json").read_text() != before)
        assert '"certificate","ok":true' in ask_tls(hub, "/api/v1/doctor", authority)
        with dray.connect(home=hub.home) as client:
            assert client.ping()["ready"] is True


def test_half_a_pair_leaves_the_old_one_in_force(tmp_path: Path) -> None:
    files = issue(tmp_path, trustme.CA(), datetime.now(UTC) + timedelta(days=60))
    watch = CertificateWatch(files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    watch.reload = lambda: context.load_cert_chain(files.cert, files.key)
    assert not watch.tend()
    old = files.key.read_bytes()
    issue(tmp_path, trustme.CA(), datetime.now(UTC) + timedelta(days=80))
    new = files.key.read_bytes()
    files.key.write_bytes(old)
    assert not watch.tend(), "the key does not fit yet"
    files.key.write_bytes(new)
    assert watch.tend()


def test_who_pins_a_certificate_is_not_concerned_by_its_end(tmp_path: Path) -> None:
    """A hub of five years and a day: its agents and clients know it by its bytes."""
    made = ensure_certificate(tmp_path, [], datetime.now(UTC) - timedelta(days=5 * 365 + 2))
    with running_hub(tmp_path / "hub", tls_cert=made.cert, tls_key=made.key) as hub:
        pinned = fingerprint(made.cert)
        with dray.connect(hub.url, hub.token, tmp_path, fingerprint=pinned) as client:
            assert client.ping()["ready"] is True
        assert look(hub.url, pinned) == 200
        # Another one is refused all the same.
        with pytest.raises(WrongCertificate, match="shows another certificate"):
            look(hub.url, f"sha256:{'0' * 64}")


def test_client_command_line_and_agent_read_a_fingerprint_alike(tmp_path: Path) -> None:
    """As `openssl x509 -fingerprint` prints it: in capitals, with colons."""
    made = ensure_certificate(tmp_path, [])
    with running_hub(tmp_path / "hub", tls_cert=made.cert, tls_key=made.key) as hub:
        plain = fingerprint(made.cert).removeprefix("sha256:")
        pinned = "sha256:" + ":".join(plain[at : at + 2] for at in range(0, 64, 2)).upper()
        assert look(hub.url, pinned) == 200
        with dray.connect(hub.url, hub.token, tmp_path, fingerprint=pinned) as client:
            assert client.ping()["ready"] is True
        given = ["--hub", hub.url, "--token", hub.token, "--fingerprint", pinned]
        assert main(["worker", "ls", *given]) == 0
        config = AgentConfig(home=tmp_path / "agent", hub=hub.url, token=hub.token, fingerprint=pinned)
        assert asyncio.run(join_once(config)), "the agent has registered"


async def join_once(config: AgentConfig) -> bool:
    link = Link(config, lambda kind, body, error: None)
    registered = asyncio.Event()

    def hello() -> dict[str, object]:
        registered.set()
        return {"worker_id": "far"}

    session = asyncio.create_task(link.run_session(hello))
    await asyncio.wait([session, asyncio.create_task(registered.wait())], return_when=asyncio.FIRST_COMPLETED)
    session.cancel()
    await asyncio.wait([session])
    return registered.is_set()


def look(url: str, pinned: str) -> int:
    connection = HubConnection(Way(url), "", 30, lambda: make_context(url, pinned))
    with contextlib.closing(connection):
        return connection.ask("GET", "/healthz").status
