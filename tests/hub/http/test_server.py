"""The server itself: binding, TLS, limits of a connection, and stopping in time."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import signal
import socket
import ssl
import warnings

import pytest
import uvloop
import websockets.exceptions
import websockets.sync.client

from dray.errors import HubUnavailable, InvalidConfig
from dray.hub.access.certificates import ensure_certificate, fingerprint
from dray.hub.access.connections import GONE
from dray.hub.http.server import HEADER_BYTES, HttpServer, bind, bind_local, make_url


def receive_all(connection):
    pieces = []
    try:
        while piece := connection.recv(65536):
            pieces.append(piece)
    except ConnectionError:
        pass
    return b"".join(pieces)


def test_a_taken_port_is_one_clear_sentence():
    bound = bind("127.0.0.1", 0)
    try:
        with pytest.raises(HubUnavailable, match=rf"port {bound.port} of 127.0.0.1 is taken.*--port 0"):
            bind("127.0.0.1", bound.port)
    finally:
        bound.socket.close()


def test_addresses_that_cannot_be_had():
    with pytest.raises(InvalidConfig, match="no address of this machine"):
        bind("203.0.113.7", 0)
    with pytest.raises(InvalidConfig, match="has no address"):
        bind("no-such-host.invalid", 0)


def test_urls():
    assert make_url("127.0.0.1", 7373, tls=False) == "http://127.0.0.1:7373"
    assert make_url("::1", 1, tls=True) == "https://[::1]:1"
    assert make_url("0.0.0.0", 1, tls=True) == "https://127.0.0.1:1"


@pytest.mark.parametrize("broken", ["cert", "key"])
def test_a_certificate_that_cannot_be_used_is_named(home, broken):
    files = ensure_certificate(home, [])
    getattr(files, broken).write_text("nothing of the kind")
    bound = bind("127.0.0.1", 0)
    with bound.socket, pytest.raises(InvalidConfig, match=r"cert\.pem and .*key\.pem cannot be used"):
        HttpServer(lambda *_: None, bound, files.cert, files.key)


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_either_event_loop_serves(make_site, loop_factory):
    site = make_site(loop_factory=loop_factory)
    assert site.ask("POST", "/api/v1/jobs", {"command": ["true"]}).status == 201
    assert ("uvloop" in type(site.loop).__module__) == (loop_factory is uvloop.new_event_loop)


def test_port_0_is_reported(site):
    assert site.port > 0
    assert site.server.url == f"http://127.0.0.1:{site.port}"


def test_tls_with_a_pinned_fingerprint(make_site, home):
    files = ensure_certificate(home, ["hub.example", "10.0.0.7"])
    site = make_site(cert=files.cert, key=files.key)
    assert site.server.url.startswith("https://")
    context = ssl.create_default_context(cafile=files.cert)
    with (
        socket.create_connection(("127.0.0.1", site.port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="hub.example") as wrapped,
    ):
        der = wrapped.getpeercert(binary_form=True)
        assert der is not None
        assert f"sha256:{hashlib.sha256(der).hexdigest()}" == fingerprint(files.cert)
        head = (
            f"GET /api/v1/hub HTTP/1.1\r\nHost: hub.example\r\nAuthorization: Bearer {site.texts['read']}\r\n"
        )
        wrapped.sendall(f"{head}Origin: https://hub.example\r\nConnection: close\r\n\r\n".encode())
        assert receive_all(wrapped).startswith(b"HTTP/1.1 200")


def test_old_tls_and_plain_text_are_not_answered(make_site, home):
    files = ensure_certificate(home, [])
    site = make_site(cert=files.cert, key=files.key)
    with socket.create_connection(("127.0.0.1", site.port), timeout=60) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" not in receive_all(plain)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", site.port), timeout=60) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain)


@pytest.mark.parametrize("piece", [b"X-Filler: " + b"x" * 1000 + b"\r\n", b"x" * 1000])
def test_endless_headers_are_refused(site, piece):
    with socket.create_connection(("127.0.0.1", site.port), timeout=60) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        try:
            for _ in range(2 * HEADER_BYTES // len(piece)):
                connection.sendall(piece)
        except ConnectionError:
            return
        answer = receive_all(connection)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431")


def test_headers_that_never_end_run_out_of_time(site, monkeypatch, wait_until):
    monkeypatch.setattr("dray.hub.http.server.HEADER_S", 0.1)
    with socket.create_connection(("127.0.0.1", site.port), timeout=60) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: local")
        assert receive_all(connection) == b""
    with socket.create_connection(("127.0.0.1", site.port), timeout=60) as silent:
        assert receive_all(silent) == b""


def test_what_is_no_http_is_refused(site):
    for nonsense in (
        b"\x00\xff\x00\xff\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", site.port), timeout=60) as connection:
            connection.sendall(nonsense)
            answer = receive_all(connection)
        assert answer.startswith(b"HTTP/1.1 400")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_input"


def test_pipelined_requests_are_answered_in_order(site):
    with socket.create_connection(("127.0.0.1", site.port), timeout=60) as connection:
        one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
        connection.sendall(one + b"\r\n" + one + b"Connection: close\r\n\r\n")
        assert receive_all(connection).count(b'{"status":"ok"}') == 2


def test_a_frame_over_the_limit_closes_the_socket(site):
    headers = {"Authorization": f"Bearer {site.texts['worker']}"}
    url = f"ws://127.0.0.1:{site.port}/ws"
    with websockets.sync.client.connect(url, additional_headers=headers, proxy=None, max_size=None) as opened:
        opened.send("x" * (4 << 20))
        assert len(opened.recv(timeout=60)) > 4 << 20
        with contextlib.suppress(websockets.exceptions.ConnectionClosed):
            opened.send("x" * ((8 << 20) + 1))
        with pytest.raises(websockets.exceptions.ConnectionClosed):
            opened.recv(timeout=60)


async def test_signals_stay_with_the_hub():
    def application(scope, receive, send):
        raise AssertionError("nobody asks")

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    server = HttpServer(application, bind("127.0.0.1", 0))
    await server.start()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    await server.stop(1)


async def test_stopping_breaks_what_will_not_end():
    entered = asyncio.Event()

    async def stubborn(scope, receive, send):
        entered.set()
        await asyncio.sleep(600)

    bound = bind("127.0.0.1", 0)
    server = HttpServer(stubborn, bound)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", bound.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await entered.wait()
    async with asyncio.timeout(60):
        await server.stop(deadline_s=0.3)
        assert b"200" not in await reader.read()
    writer.close()
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection("127.0.0.1", bound.port)


async def test_stopping_does_not_wait_for_a_reader_that_takes_nothing(wait_until_async):
    started = asyncio.Event()

    async def generous(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * (64 << 20)})
        started.set()

    bound = bind("127.0.0.1", 0)
    server = HttpServer(generous, bound)
    await server.start()
    with socket.create_connection(("127.0.0.1", bound.port), timeout=60) as idle:
        idle.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await started.wait()
        await server.stop(deadline_s=0.3)
        await wait_until_async(lambda: not server._server.server_state.connections)


async def test_stopping_a_server_that_never_began():
    bound = bind("127.0.0.1", 0)
    await HttpServer(lambda *_: None, bound).stop()
    bound.socket.close()


HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]}


async def test_a_head_waits_for_its_body_for_no_longer_than_a_step():
    go_on = asyncio.Event()

    async def slow(scope, receive, send):
        await send(HEAD)
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"bo", "more_body": True})
        await send({"type": "http.response.body", "body": b"dy"})

    server = HttpServer(slow, bound := bind("127.0.0.1", 0))
    await server.start()
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", bound.port)
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
            assert not go_on.is_set()
            go_on.set()
            assert await reader.readexactly(4) == b"body"
            go_on.clear()
        writer.close()
    await server.stop()


async def test_a_request_hears_at_once_that_its_caller_has_gone_or_had():
    heard, late = asyncio.Event(), asyncio.Event()

    async def waiting(scope, receive, send):
        tell_gone = scope["extensions"][GONE]
        tell_gone(heard.set)
        await heard.wait()
        tell_gone(None)
        tell_gone(late.set)

    server = HttpServer(waiting, bound := bind("127.0.0.1", 0))
    await server.start()
    async with asyncio.timeout(30):
        _, writer = await asyncio.open_connection("127.0.0.1", bound.port)
        # With another behind it, for which nothing is read.
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        await asyncio.sleep(0)
        writer.close()
        await heard.wait()
        await late.wait()
    await server.stop()


async def test_a_request_knows_both_ends_of_its_connection(short_tmp):
    seen = []

    async def looking(scope, receive, send):
        seen.append((scope["server"], scope["client"]))
        await send(HEAD)
        await send({"type": "http.response.body", "body": b"body"})

    local = bind_local(short_tmp)
    server = HttpServer(looking, bound := bind("127.0.0.1", 0), local=local)
    await server.start()
    async with asyncio.timeout(30):
        for dialled in (
            asyncio.open_connection("127.0.0.1", bound.port),
            asyncio.open_unix_connection(str(short_tmp / "hub.sock")),
        ):
            reader, writer = await dialled
            name = writer.get_extra_info("sockname")
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).endswith(b"\r\n\r\nbody")
            writer.close()
            assert seen[-1][1] == (tuple(name) if name else None)
    assert seen[0][0] == ("127.0.0.1", bound.port)
    assert seen[1][0][1] is None
    await server.stop()
