"""Finding the hub, and never giving the token to the wrong one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import ssl

import pytest
import trustme

from dray.cli.main import main
from dray.client.reach.discovery import find_target
from dray.config import ClientConfig
from dray.errors import DrayError
from dray.wire.reach.dialling import check_url, read_fingerprint

TOKEN = "test-token"


@pytest.fixture
def certificate():
    return trustme.CA().issue_cert("127.0.0.1")


@pytest.fixture
def secure_hub(clean_environment, hub, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    fake = type(hub)(tls=context)
    fake.canned["GET", "/workers"] = (200, {"workers": []})
    yield fake
    with contextlib.suppress(OSError):
        fake.stop()


def fingerprint_of(certificate) -> str:
    der = ssl.PEM_cert_to_DER_cert(certificate.cert_chain_pems[0].bytes().decode())
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


def test_the_hub_of_the_home_is_found(hub, capfd):
    hub.canned["GET", "/workers"] = (200, {"workers": []})
    assert main(["worker", "ls", "-o", "json"]) == 0
    assert json.loads(capfd.readouterr().out) == {
        "workers": [],
        "stale": 0,
        "matched": 0,
        "next_cursor": None,
    }


def test_without_a_hub_the_message_says_what_to_do(clean_environment, capfd):
    assert main(["ps"]) == 1
    said = capfd.readouterr().err
    assert said == (
        f"dray: no hub is running here (looked in {clean_environment}): start one with `dray up`, or set DRAY_HUB"
        " (hub_unavailable)\n"
    )


def test_a_pinned_certificate_is_enough(secure_hub, certificate):
    pin = fingerprint_of(certificate)
    flags = ["--hub", secure_hub.url, "--token", TOKEN]
    assert main(["worker", "ls", *flags, "--fingerprint", pin]) == 0
    shouted = "sha256:" + ":".join(pin[7:][i : i + 2] for i in range(0, 64, 2)).upper()
    assert main([*flags, "--fingerprint", shouted, "worker", "ls"]) == 0


def test_another_certificate_never_sees_the_token(secure_hub, capfd):
    flags = ["--hub", secure_hub.url, "--token", TOKEN, "--fingerprint", f"sha256:{'0' * 64}"]
    assert main(["worker", "ls", *flags]) == 1
    assert "shows another certificate" in capfd.readouterr().err
    assert not secure_hub.requests


def test_an_unknown_authority_is_refused_and_a_given_one_trusted(secure_hub, tmp_path, capfd):
    flags = ["--hub", secure_hub.url, "--token", TOKEN]
    assert main(["worker", "ls", *flags]) == 1
    assert "is not trusted" in capfd.readouterr().err
    assert not secure_hub.requests
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "other.pem"))
    assert main(["worker", "ls", *flags, "--cafile", str(tmp_path / "other.pem")]) == 1
    assert not secure_hub.requests


def test_a_given_authority_is_trusted(hub, tmp_path):
    ca = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    fake = type(hub)(tls=context)
    fake.canned["GET", "/workers"] = (200, {"workers": []})
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    assert (
        main(["worker", "ls", "--hub", fake.url, "--token", TOKEN, "--cafile", str(tmp_path / "ca.pem")]) == 0
    )
    fake.stop()


def test_the_file_of_the_home_may_carry_the_fingerprint(secure_hub, clean_environment, certificate):
    note = {"url": secure_hub.url, "pid": 0, "epoch": 1, "fingerprint": fingerprint_of(certificate)}
    (clean_environment / "hub.json").write_text(json.dumps(note))
    assert main(["worker", "ls"]) == 0


def test_the_token_of_the_home_goes_to_no_stranger(hub, clean_environment):
    stranger = ClientConfig(home=clean_environment, hub="https://elsewhere.example:7373")
    with pytest.raises(DrayError, match="no token for https://elsewhere"):
        find_target(stranger)
    assert find_target(ClientConfig(home=clean_environment)).token == TOKEN
    assert find_target(ClientConfig(home=clean_environment, hub=hub.url)).token == TOKEN


def test_plain_http_beyond_this_machine_is_refused():
    with pytest.raises(DrayError, match="in the clear"):
        check_url("http://10.0.0.7:7373")
    for url in ("http://localhost:1", "http://[::1]:7373", "https://10.0.0.7"):
        check_url(url)
    for url in ("ftp://x", "127.0.0.1:7373", "http://", "http://localhost:port"):
        with pytest.raises(DrayError, match="not the address of a hub"):
            check_url(url)


@pytest.mark.parametrize("text", ["", "abc", "md5:00", "sha256:zz", f"sha256:{'0' * 63}"])
def test_bad_fingerprints(text):
    with pytest.raises(DrayError, match="not a fingerprint"):
        read_fingerprint(text)


def test_a_wrong_token_is_told(hub, capfd):
    assert main(["ps", "--token", "wrong"]) == 1
    assert capfd.readouterr().err == "dray: no such token (unauthenticated)\n"


def test_another_server_is_recognised(clean_environment, capfd):
    with socket.create_server(("127.0.0.1", 0)) as server:
        import threading

        def babble() -> None:
            connection, _ = server.accept()
            connection.recv(4096)
            connection.sendall(b"SSH-2.0-OpenSSH_9\r\n")
            connection.close()

        thread = threading.Thread(target=babble)
        thread.start()
        port = server.getsockname()[1]
        assert main(["ps", "--hub", f"http://127.0.0.1:{port}", "--token", "x"]) == 1
        thread.join()
    assert "is not a dray hub" in capfd.readouterr().err


def test_a_busy_hub_is_asked_again(hub, job):
    hub.set("a", state="running")
    replies = [(429, {"error": {"code": "too_many_requests", "message": "slow down"}}), (200, job("a"))]
    hub.canned["GET", "/jobs/a"] = replies[0]
    original = type(hub).asked

    def calm() -> None:
        hub.wait_asked("GET", "/jobs/a")
        hub.canned["GET", "/jobs/a"] = replies[1]

    import threading

    thread = threading.Thread(target=calm)
    thread.start()
    assert main(["show", "a"]) == 0
    thread.join()
    assert len(original(hub, "GET", "/jobs/a")) == 2
