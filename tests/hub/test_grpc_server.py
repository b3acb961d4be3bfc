"""The server of gRPC: its certificate, its port, and hubs that have no libraries for it."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
import trustme
from tests.contracts.grpc_peer import Peer, refusal

from dray.hub.grpc.server import GrpcServer, make_certificate
from dray.testing import running_hub


def write_certificate(authority: trustme.CA, folder: Path) -> None:
    made = authority.issue_cert("127.0.0.1", "localhost")
    made.private_key_pem.write_to_path(folder / "key.pem")
    (folder / "cert.pem").write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))


def shown_certificate(address: str) -> str:
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port)), 30) as plain, context.wrap_socket(plain) as line:
        return ssl.DER_cert_to_PEM_cert(line.getpeercert(binary_form=True) or b"")


def test_tls_is_the_hubs_own_and_nothing_is_answered_without(tmp_path: Path) -> None:
    authority = trustme.CA()
    write_certificate(authority, tmp_path)
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    with running_hub(tmp_path / "hub", grpc_port=0, **files) as hub:
        plain = Peer(hub.home, hub.token)
        assert plain.refused("GetHub")[0] is grpc.StatusCode.UNAVAILABLE
        trust = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        peer = Peer(hub.home, hub.token, grpc.secure_channel(plain.address, trust))
        assert peer.ask("GetHub").hub.ready
        stranger = grpc.ssl_channel_credentials(trustme.CA().cert_pem.bytes())
        other = Peer(hub.home, hub.token, grpc.secure_channel(plain.address, stranger))
        assert other.refused("GetHub")[0] is grpc.StatusCode.UNAVAILABLE
        hub.restart()
        for one in (plain, peer, other):
            one.close()


async def test_a_renewed_certificate_is_shown_from_then_on(tmp_path: Path) -> None:
    authority = trustme.CA()
    write_certificate(authority, tmp_path)
    certificate = make_certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    server = GrpcServer("127.0.0.1", 0, certificate, 1 << 20)
    await server.start()
    try:
        for _ in range(2):
            shown = await asyncio.to_thread(shown_certificate, server.address)
            assert (tmp_path / "cert.pem").read_text().startswith(shown)
            write_certificate(authority, tmp_path)
            server.reload_certificate()
    finally:
        await server.stop(0)


def test_a_hub_says_why_it_has_no_grpc(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = start_hub(tmp_path / "a", str(taken.getsockname()[1]), "")
        assert "grpc_port" in said
        assert "something else listens" in said
    said = start_hub(tmp_path / "b", "0", "import sys; sys.modules['grpc'] = None; ")
    assert "pip install 'dray[grpc]'" in said


def start_hub(home: Path, port: str, before: str) -> str:
    code = f"{before}import sys; from dray.cli.main import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "hub", "--home", str(home), "--port", "0", "--grpc-port", port]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done
    return done.stderr


def test_calls_of_a_hub_that_stops_are_told_so(tmp_path: Path) -> None:
    with running_hub(tmp_path, grpc_port=0) as hub:
        peer = Peer(hub.home, hub.token)
        peer.ask("SubmitJob", job={"id": "held", "command": ["true"], "hold": True})
        watch = peer.ask("WatchJobs", jobs=["held"])
        next(watch)
        hub.stop()
        code, _, details = refusal(lambda: next(watch))
        assert (code, details["ErrorInfo"]["reason"]) == (grpc.StatusCode.UNAVAILABLE, "NOT_READY")
        peer.close()
        hub.start()
