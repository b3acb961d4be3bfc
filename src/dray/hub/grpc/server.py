"""The server: its port, TLS, what a connection may cost, health and reflection. Calls go to `hub.grpc.serving`.

Lives as long as the process, as the server of HTTP does: while no hub is there whoever calls is told to ask again, and
where another hub leads his call is passed on. The surprising rule: gRPC's own support for forks has to be off
before it is loaded, or every program that the hub starts prints warnings.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from dray.errors import DrayError, HubUnavailable, InvalidConfig, NotReady
from dray.hub.grpc.methods import SERVICES
from dray.hub.grpc.serving import KNOWN, Call, Refused
from dray.hub.grpc.statuses import Refusal, refusal_of
from dray.hub.grpc.streams import StreamMethod

MOST_CALLS, MOST_STREAMS = 4096, 256
SLOW_READER_S = 30.0
IDLE_MS, ALIVE_MS, HANDSHAKE_MS = 600_000, 30_000, 10_000
METADATA_BYTES = 16 << 10
log = logging.getLogger("dray.hub.grpc")


class Answering(Protocol):
    """Whoever answers calls: the hub of this process, or its way to the one that leads."""

    async def answer(self, name: str, raw: bytes, call: Call) -> bytes: ...
    def stream(self, name: str, requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]: ...


class Certificate:
    """Certificate and key as gRPC takes them, read again where they were renewed."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert, self._key = cert, key
        self._taken = self.read()
        self._news = False

    def read(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(self._key.read_bytes(), self._cert.read_bytes())])

    def reload(self) -> None:
        """Take the files up for connections from here on; raises OSError."""
        self._taken, self._news = self.read(), True

    def credentials(self) -> grpc.ServerCredentials:
        # None stands for the one before, which its stubs do not know.
        fetch: Any = self._fetch
        return grpc.dynamic_ssl_server_credentials(self._taken, fetch)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        if not self._news:
            return None
        self._news = False
        return self._taken


class GrpcServer:
    """One server on one port."""

    def __init__(self, host: str, port: int, certificate: Certificate | None, message_bytes: int) -> None:
        self._answering: Answering | None = None
        # Who answers while another hub leads.
        self.passing: Answering | None = None
        self._why, self._started = "the hub is starting: ask again in a second", False
        self._certificate = certificate
        self._telling: set[asyncio.Future[None]] = set()
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(options=_options(message_bytes), maximum_concurrent_rpcs=MOST_CALLS)
        made = [grpc.method_handlers_generic_handler(name, self._handlers(name)) for name in SERVICES]
        self._server.add_generic_rpc_handlers(tuple(made))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        served = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(served, self._server)
        self.address = self._bind(host, port, certificate)

    def _bind(self, host: str, port: int, certificate: Certificate | None) -> str:
        shown = f"[{host}]" if ":" in host else host or "0.0.0.0"
        try:
            if certificate is None:
                bound = self._server.add_insecure_port(f"{shown}:{port}")
            else:
                bound = self._server.add_secure_port(f"{shown}:{port}", certificate.credentials())
        except RuntimeError:
            raise HubUnavailable(
                f"grpc_port {port} of {shown} cannot be had: something else listens there, or this user may not; "
                "0 takes any free port"
            ) from None
        return f"{'127.0.0.1' if shown in ('0.0.0.0', '[::]') else shown}:{bound}"

    def reload_certificate(self) -> None:
        """Take certificate and key up from their files; raises OSError."""
        if self._certificate is not None:
            self._certificate.reload()

    async def start(self) -> None:
        """Answer calls from here on; again does nothing."""
        if not self._started:
            self._started = True
            await self._server.start()
            self._tell_serving(self.passing is not None or self._answering is not None)

    def open(self, answering: Answering) -> None:
        """Somebody is there from now on."""
        self._answering = answering
        self._tell_serving(True)

    def withdraw(self, why: str) -> None:
        """Nobody is there for a while."""
        self._answering, self._why = None, why
        self._tell_serving(self.passing is not None)

    def _tell_serving(self, serving: bool) -> None:
        """What health checks are told."""
        telling = asyncio.ensure_future(self._set_health(serving))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)

    async def _set_health(self, serving: bool) -> None:
        status = (
            health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in ("", *SERVICES):
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, let those under way finish, and break what is left at the deadline."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)

    # --- calls --------------------------------------------------------------------------------------------------------

    def _handlers(self, service: str) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        made: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        for name, known in KNOWN.items():
            if known.kinds.service != service:
                continue
            if not isinstance(known.row, StreamMethod):
                made[name] = grpc.unary_unary_rpc_method_handler(partial(self._unary, name))
            elif known.row.takes_many:
                made[name] = grpc.stream_stream_rpc_method_handler(partial(self._many, name))
            else:
                made[name] = grpc.unary_stream_rpc_method_handler(partial(self._stream, name))
        return made

    async def _unary(self, name: str, raw: bytes, context: Any) -> bytes:
        try:
            return await self._find().answer(name, raw, _Call(context))
        except Refused as refused:
            await _abort(context, refused.refusal)
        except DrayError as error:
            await _abort(context, refusal_of(error))
        raise AssertionError

    async def _stream(self, name: str, raw: bytes, context: Any) -> None:
        await self._send_all(name, _only(raw), context)

    async def _many(self, name: str, requests: AsyncIterator[bytes], context: Any) -> None:
        await self._send_all(name, requests, context)

    async def _send_all(self, name: str, requests: AsyncIterator[bytes], context: Any) -> None:
        answers = None
        try:
            answers = self._find().stream(name, requests, _Call(context))
            async for raw in answers:
                async with asyncio.timeout(SLOW_READER_S):
                    await context.write(raw)
        except TimeoutError:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "this peer does not read what it asked for"
            )
        except Refused as refused:
            await _abort(context, refused.refusal)
        except DrayError as error:
            await _abort(context, refusal_of(error))
        finally:
            close: Callable[[], Awaitable[Any]] | None = getattr(answers, "aclose", None)
            if close is not None:
                await close()

    def _find(self) -> Answering:
        found = self._answering or self.passing
        if found is None:
            raise NotReady(self._why)
        return found


class _Call:
    """What the server knows of a call."""

    __slots__ = ("_context",)

    def __init__(self, context: Any) -> None:
        self._context = context

    @property
    def authorization(self) -> str | None:
        for name, value in self._context.invocation_metadata() or ():
            if name == "authorization":
                return value if isinstance(value, str) else value.decode("latin-1")
        return None

    @property
    def address(self) -> str:
        """`ipv4:127.0.0.1:5000` without its ends."""
        _, _, place = self._context.peer().partition(":")
        host = place.replace("%5B", "[").replace("%5D", "]").rpartition(":")[0].strip("[]")
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            return ""

    def left_s(self) -> float | None:
        left: float | None = self._context.time_remaining()
        return left


async def _only(raw: bytes) -> AsyncIterator[bytes]:
    yield raw


async def _abort(context: Any, refusal: Refusal) -> None:
    await context.abort(refusal.code, refusal.message, refusal.metadata)


def _options(message_bytes: int) -> list[tuple[str, int]]:
    return [
        # Two hubs on one port would share its calls between them.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", MOST_STREAMS),
        ("grpc.max_metadata_size", METADATA_BYTES),
        ("grpc.max_connection_idle_ms", IDLE_MS),
        ("grpc.keepalive_time_ms", ALIVE_MS),
        ("grpc.keepalive_timeout_ms", ALIVE_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
    ]


def make_certificate(cert: Path, key: Path) -> Certificate:
    """Raises `InvalidConfig` where the files cannot be used."""
    try:
        return Certificate(cert, key)
    except OSError as fault:
        raise InvalidConfig(f"the certificate and key in {cert} and {key} cannot be used: {fault}") from None
