"""The socket and the HTTP server around the application: uvicorn, embedded.

Owns binding, TLS, limits of the connection and the stop within a deadline; knows nothing about the application.
The socket is bound before anything else is started, so that a taken port is one clear sentence. The signals stay
with the hub.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import is_ssl

from dray.descriptors import file_limit
from dray.errors import HubUnavailable, InvalidConfig
from dray.hub.access.connections import GONE, Connections, ReaderWatch
from dray.hub.workers.frames import ADMIT, FrameSocket, ServerConfig
from dray.wire.reach.dialling import SOCKET_NAME, short_path

HEADER_BYTES = 64 << 10
HEADER_S = 10.0
KEEP_ALIVE_S = 75
BACKLOG = 2048
DATE_S, ENDED_POLL_S = 1.0, 0.005
logger = logging.getLogger("dray.hub.http.server")


class Bound(NamedTuple):
    """A socket that is ours, and where it listens."""

    socket: socket.socket
    host: str
    port: int


def bind(host: str, port: int) -> Bound:
    """Take the address, or say in one sentence why not. Port 0 takes any free one."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as fault:
        raise InvalidConfig(f"the host {host!r} has no address: {fault.strerror or fault}") from None
    # A name may have both kinds of address; the one that every client can reach goes first.
    family, kind, proto, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Listening now and not later: a second hub must fail here, while it can still say so.
        listener.listen(BACKLOG)
    except OSError as fault:
        listener.close()
        raise _bind_error(host, port, fault) from None
    listener.setblocking(False)
    return Bound(listener, host, listener.getsockname()[1])


def _bind_error(host: str, port: int, fault: OSError) -> Exception:
    if fault.errno == errno.EADDRINUSE:
        return HubUnavailable(
            f"port {port} of {host} is taken, perhaps by another hub: `dray hub status` asks it, `dray down` stops it, "
            "--port 0 takes any free port"
        )
    if fault.errno == errno.EACCES:
        return HubUnavailable(
            f"port {port} of {host} needs more rights than this user has: take one above 1023"
        )
    if fault.errno == errno.EADDRNOTAVAIL:
        return InvalidConfig(f"{host} is no address of this machine: give one of its own, or 127.0.0.1")
    return HubUnavailable(f"cannot listen on {host} port {port}: {fault.strerror}")


def bind_local(home: Path) -> socket.socket | None:
    """Listen in the home too, for programs of its owner; None where the file system has no sockets.

    Whoever calls holds the home's lock, so a socket that is there was left by a hub that is gone.
    """
    path = home / SOCKET_NAME
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        with short_path(str(path)) as spelled:
            listener.bind(spelled)
        # Nobody can connect before it listens.
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except OSError as fault:
        listener.close()
        logger.warning("no socket in %s (%s): programs here reach the hub by its port", home, fault)
        return None
    listener.setblocking(False)
    return listener


class HttpServer:
    """One server on one bound socket, and on a local one. `stop` is graceful until its deadline, then final."""

    def __init__(
        self,
        app: Callable[..., Any],
        bound: Bound,
        cert: Path | None = None,
        key: Path | None = None,
        frame_bytes: int = 8 << 20,
        connections: Connections | None = None,
        local: socket.socket | None = None,
    ) -> None:
        self._bound = bound
        self.url = make_url(bound.host, bound.port, cert is not None)
        config = _config(app, cert, key, frame_bytes)
        config.connections = connections or Connections(file_limit())
        try:
            config.load()
        except OSError as fault:
            named = f"{cert} and {key}" if key is not None else str(cert)
            raise InvalidConfig(f"the certificate and key in {named} cannot be used: {fault}") from None
        self._server = _QuietServer(config, local)
        self._running: asyncio.Task[None] | None = None

    @property
    def started(self) -> bool:
        """Whether it answers."""
        return self._running is not None

    def reload_certificate(self) -> None:
        """Take certificate and key up from their files, for connections from here on; raises OSError."""
        config = self._server.config
        if config.ssl is not None and config.ssl_certfile is not None:
            config.ssl.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)

    async def start(self) -> None:
        """Answer requests from here on."""
        self._running = asyncio.ensure_future(self._server.serve(sockets=[self._bound.socket]))
        while not self._server.started:
            if self._running.done():
                await self._running
                raise HubUnavailable("the HTTP server ended before it began")
            await asyncio.sleep(0.001)

    async def stop(self, deadline_s: float = 5.0) -> None:
        """Take no more connections, let answers finish, and break what is left at the deadline."""
        if self._running is None:
            return
        self._server.end(deadline_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s + 1):
                await asyncio.shield(self._running)
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        await asyncio.wait([self._running], timeout=1)
        if not self._running.done():
            self._running.cancel()
            await asyncio.wait([self._running])


def make_url(host: str, port: int, tls: bool) -> str:
    """Spell the address for people; a hub on every address is reached on this machine by loopback."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"{'https' if tls else 'http'}://{f'[{shown}]' if ':' in shown else shown}:{port}"


def _config(app: Callable[..., Any], cert: Path | None, key: Path | None, frame_bytes: int) -> ServerConfig:
    return ServerConfig(
        app,
        http=_BoundedProtocol,
        ws=FrameSocket,
        loop="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        ws_max_size=frame_bytes,
        ws_per_message_deflate=False,
        # Silence is the business of the worker protocol; these only find sockets that are half open.
        ws_ping_interval=30.0,
        ws_ping_timeout=30.0,
        timeout_keep_alive=KEEP_ALIVE_S,
        backlog=BACKLOG,
        ssl_certfile=cert,
        ssl_keyfile=key,
        ssl_context_factory=_tls_context if cert is not None else None,
    )


def _tls_context(config: uvicorn.Config, default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    context = default()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class _QuietServer(uvicorn.Server):
    """Leaves the signals alone: the hub decides what SIGTERM means, and stops this server itself.

    Listens on a local socket as well, where what TLS is for is given: nobody else can open it. Ends when it is told to
    and its connections are closed; the base looks for that ten times a second and waits a fifth of one in any case.
    """

    def __init__(self, config: uvicorn.Config, local: socket.socket | None) -> None:
        super().__init__(config)
        self._local = local
        self._ending, self._deadline_s = asyncio.Event(), 0.0

    def end(self, deadline_s: float) -> None:
        """Take no more connections, and let answers finish until the deadline."""
        self._deadline_s = deadline_s
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # which writes the date that answers bear
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listening in (*self.servers, *(sockets or ())):
            listening.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self._deadline_s):
                while state.connections or state.tasks:  # noqa: ASYNC110 - the base's sets tell nobody that they are empty
                    await asyncio.sleep(ENDED_POLL_S)
                for server in self.servers:
                    await server.wait_closed()
        except TimeoutError:
            for task in state.tasks:
                task.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._local is not None:
            loop = asyncio.get_running_loop()
            self.servers.append(
                await loop.create_unix_server(self._make_protocol, sock=self._local, backlog=BACKLOG)
            )

    def _make_protocol(self) -> asyncio.Protocol:
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _AnswerTransport:
    """What one answer is written to. Its head waits for the body, where that follows in the same step of the loop: the
    base writes them apart, and each write wakes the reader.
    """

    __slots__ = ("_begun", "_head", "_loop", "_transport")

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop, self._transport = loop, transport
        self._begun, self._head = False, b""

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        elif self._begun:
            self._transport.write(data)
        else:
            self._begun, self._head = True, data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)


class _BoundedProtocol(HttpToolsProtocol):
    """Adds what this parser lacks: a limit on the size of headers, on the time they take, on connections and on readers
    that do not read, a way to break off, and word of the end to a request with others behind it: the base tells only
    the last one that came.

    The size is counted on what arrived while headers are unfinished, because the parser itself gathers a header of any
    length before it hands it over.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as its base class does
        # What the base does, which asks the system for each address twice.
        self.connections.add(self)
        self.transport, self.flow = transport, FlowControl(transport)
        local, remote = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        self.server = local[:2] if isinstance(local, tuple) else (local, None) if local else None
        self.client = remote[:2] if isinstance(remote, tuple) else None
        self.scheme = "https" if is_ssl(transport) else "http"
        self._gone: Callable[[], None] | None = None
        self._pending = 0
        self._latest: RequestResponseCycle | None = None
        self._earlier: list[RequestResponseCycle] = []
        self._timer: asyncio.TimerHandle | None = None
        self._reader = ReaderWatch(self.loop, transport)
        self._await_headers()
        self.config: ServerConfig
        self.config.connections.enter(transport, self.client[0] if self.client else "")

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        self._reader.resumed()
        self.config.connections.leave(self.transport)
        super().connection_lost(exc)
        if self._gone is not None:
            self._gone()
        for cycle in self._earlier:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader.paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reader.resumed()

    def handle_websocket_upgrade(self) -> None:
        self._reader.resumed()
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        connections, transport = self.config.connections, self.transport
        extensions: Any = {
            "dray.abort": transport.abort,
            GONE: self._tell_gone,
            ADMIT: lambda token_id: connections.admit(transport, token_id),
        }
        self.scope["extensions"] = extensions
        self._await_headers()

    def on_headers_complete(self) -> None:
        self._headers_came()
        if self._latest is not None and not self._latest.response_complete:
            self._earlier = [*(cycle for cycle in self._earlier if not cycle.response_complete), self._latest]
        super().on_headers_complete()
        if self.cycle is not self._latest:
            answer: Any = _AnswerTransport(self.loop, self.transport)
            self.cycle.transport = answer
        self._latest = self.cycle

    def _tell_gone(self, gone: Callable[[], None] | None) -> None:
        self._gone = gone
        if gone is not None:
            self.flow.resume_reading()
            if self.transport.is_closing():
                gone()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._timer is not None:
            self._pending += len(data)
            if self._pending > HEADER_BYTES:
                self._refuse_headers()

    def _await_headers(self) -> None:
        if self._timer is None:
            self._pending = 0
            self._timer = self.loop.call_later(HEADER_S, self.transport.abort)

    def _headers_came(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse_headers(self) -> None:
        self._refuse(431, "too_large", f"the headers are over {HEADER_BYTES} bytes")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "invalid_input", "this is not HTTP as the hub speaks it (HTTP/1.1)")

    def _refuse(self, status: int, code: str, message: str) -> None:
        body = json.dumps({"error": {"code": code, "message": message, "problems": []}}).encode()
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        self.transport.write(
            f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body
        )
        self.transport.close()
