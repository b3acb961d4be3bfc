"""The agent's socket to its hub: dialled, watched, dialled again with jitter.

Messages queue here and leave in as few frames as the hub's acks allow: two frames may be unanswered, what comes
meanwhile is the next one. Commit and ack clock the batching; no timer does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection, connect

from dray.agent.decide.effects import Tell
from dray.agent.own_token import OwnToken, TokenRefused, refusal_text
from dray.agent.runners.blobs import HubAccess
from dray.agent.tasks.aside import do_aside
from dray.config import AgentConfig
from dray.errors import HubUnavailable, InvalidInput
from dray.presence import read_hub_note
from dray.wire.messages.codec import Envelope, message
from dray.wire.messages.hub import hub_codec
from dray.wire.messages.worker import SUBPROTOCOL_MSGPACK
from dray.wire.reach.dialling import (
    SOCKET_NAME,
    Line,
    Trust,
    Way,
    WrongCertificate,
    check_url,
    open_line,
    tell_broken,
)
from dray.wire.reach.pinned_tls import make_context

UNANSWERED_FRAMES = 2
MAX_FRAME = 16 << 20
SILENCE_FACTOR = 3.0
HUB_FILE_POLL_S = 0.05
OPEN_S = 10.0
# Closes that only a person can mend: the token has ended, or is another worker's.
NOT_LET_IN = (4401, 4403)
NO_TOKEN = (
    "this worker gets no work until it has a token that the hub takes: start it again with a new one (--token); "
    "its tasks go on, and the hub is asked again now and then"
)
logger = logging.getLogger("dray.agent.link")
OnMessage = Callable[[str, Any, str], None]


class Link:
    """One session at a time. `on_message` gets every hub message decoded; `push` queues one for the hub."""

    def __init__(self, config: AgentConfig, on_message: OnMessage) -> None:
        self._config, self._on_message, self._own = config, on_message, OwnToken(config)
        self._codec = hub_codec(binary=True)
        self._queue: list[tuple[dict[str, Any], bool]] = []
        self._unanswered: deque[int] = deque()
        self._wake = asyncio.Event()
        self._socket: ClientConnection | None = None
        self.heartbeat_s = 10.0
        self.local_address = ""
        self.hub: HubAccess | None = None
        self.fingerprint = ""
        self._pull: Callable[[], list[Tell]] | None = None

    def pull_from(self, pull: Callable[[], list[Tell]]) -> None:
        """Ask `pull` for more whenever a frame can leave: what waits there grows until then."""
        self._pull = pull

    def wake(self) -> None:
        """There is something to pull."""
        if self._socket is not None:
            self._wake.set()

    def push(self, kind: str, payload: dict[str, Any], acked: bool) -> None:
        """Queue a message; `acked` ones hold back later frames until the hub has answered."""
        if self._socket is not None:
            self._queue.append((message(kind, payload), acked))
            self._wake.set()

    def answered(self) -> None:
        """Count one ack."""
        if self._unanswered:
            self._unanswered[0] -= 1
            if self._unanswered[0] <= 0:
                self._unanswered.popleft()
                self._wake.set()

    async def run_session(self, hello: Callable[[], dict[str, Any]]) -> None:
        """Dial, register, and serve until the session ends. Raises `HubUnavailable` where no hub answers,
        `WrongCertificate` where another one does."""
        way, pinned = self._target()

        def trust() -> ssl.SSLContext:
            return make_context(way.url, pinned, self._config.cafile)

        token = await self._own.settle(way, trust)
        line = await _dial(way, trust)
        # Host and path are what is said in the handshake; the connection itself stands already.
        url = ("wss" if line.context is not None else "ws") + way.url[way.url.index(":") :] + "/ws"
        try:
            socket = await connect(
                url,
                sock=line.sock,
                unix=line.local,
                additional_headers={"Authorization": f"Bearer {token}"},
                subprotocols=[websockets.Subprotocol(SUBPROTOCOL_MSGPACK)],
                ssl=line.context,
                compression=None,
                max_size=MAX_FRAME,
                ping_interval=None,
                open_timeout=OPEN_S,
                close_timeout=2,
                proxy=None,
            )
        except websockets.InvalidStatus as refusal:
            text, status = refusal_text(refusal.response.body), refusal.response.status_code
            kind = TokenRefused if status in (401, 403) else HubUnavailable
            raise kind(f"the hub answers {status}: {text}") from None
        except (OSError, TimeoutError, websockets.WebSocketException) as fault:
            raise (tell_broken(fault) or HubUnavailable(f"no hub answers at {way.url}: {fault!r}")) from None
        self.local_address = "127.0.0.1" if line.local else str(socket.local_address[0])
        self.fingerprint = pinned
        self.hub = HubAccess(way, token, lambda: line.context or trust(), line.uid)
        self._begin(socket, hello())
        writer = asyncio.create_task(self._write(socket))
        try:
            await self._read(socket)
        except websockets.ConnectionClosed:
            logger.info("the session ended: %s %s", socket.close_code, socket.close_reason)
            if socket.close_code in NOT_LET_IN:
                raise TokenRefused(f"the hub has ended this session: {socket.close_reason}") from None
        finally:
            self._socket = None
            writer.cancel()
            await asyncio.wait({writer})
            await socket.close()

    async def close(self, code: int, reason: str) -> None:
        """End the session from this side."""
        if self._socket is not None:
            with contextlib.suppress(websockets.WebSocketException):
                await self._socket.close(code, reason)

    def _begin(self, socket: ClientConnection, registration: dict[str, Any]) -> None:
        self._socket = socket
        self._queue, self._unanswered = [(message("register", registration), True)], deque()
        self._wake.set()

    async def _write(self, socket: ClientConnection) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if len(self._unanswered) >= UNANSWERED_FRAMES:
                continue
            batch, self._queue = self._queue[:256], self._queue[256:]
            pulled = self._pull() if self._pull is not None and not self._queue else []
            batch += [(message(told.type, told.payload), told.acked) for told in pulled]
            if not batch:
                continue
            expected = sum(1 for _, acked in batch if acked)
            if expected:
                self._unanswered.append(expected)
            try:
                await socket.send(self._codec.encode([envelope for envelope, _ in batch]))
            except websockets.ConnectionClosed:
                return  # the reader sees it too and ends the session
            if self._queue or pulled:
                self._wake.set()

    async def _read(self, socket: ClientConnection) -> None:
        """Take what the hub says; a hub that stays silent past several heartbeats is a half-open socket."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.heartbeat_s * SILENCE_FACTOR) as patience:
                while True:
                    frame = await socket.recv()
                    for envelope in self._split(frame):
                        self._take(envelope)
                    patience.reschedule(loop.time() + self.heartbeat_s * SILENCE_FACTOR)
        except TimeoutError:
            logger.warning(
                "the hub has been silent for %.0f s: dialling again", self.heartbeat_s * SILENCE_FACTOR
            )

    def _split(self, frame: str | bytes) -> list[Envelope]:
        try:
            return self._codec.split(frame)
        except InvalidInput as fault:
            logger.warning("a frame of the hub could not be read: %s", fault)
            return []

    def _take(self, envelope: Envelope) -> None:
        try:
            body = self._codec.open(envelope)
        except InvalidInput as fault:
            logger.warning("a message of the hub was ignored: %s", fault)
            return
        self._on_message(envelope.type, body, envelope.error)

    def _target(self) -> tuple[Way, str]:
        """Where to dial: as told, or by the hub.json of this home, read anew each time since a hub may have moved."""
        config = self._config
        try:
            note = read_hub_note(config.home)
        except (OSError, ValueError):
            note = {}
        url = (config.hub or note.get("url", "")).rstrip("/")
        if not url:
            raise NoHubYet(f"no hub runs with {config.home} yet")
        is_own = url == note.get("url")
        pinned = config.fingerprint or (note.get("fingerprint", "") if is_own else "")
        check_url(url)
        socket = str(config.home / SOCKET_NAME) if is_own and note.get("socket") else ""
        return Way(url, socket, config.hub_user), pinned


class NoHubYet(HubUnavailable):
    """The hub of this home has not said where it is: looking again costs nothing."""


async def _dial(way: Way, trust: Trust) -> Line:
    """Connect to the hub and to nobody else: the token has not been sent yet."""
    try:
        return await do_aside(open_line, way, OPEN_S, trust)
    except (OSError, TimeoutError) as fault:
        raise HubUnavailable(f"no hub answers at {way.url}: {fault!r}") from None


async def keep_dialling(
    link: Link, hello: Callable[[], dict[str, Any]], over: Callable[[], Awaitable[None]], config: AgentConfig
) -> None:
    """Session after session, with full jitter between tries: many agents must not come back in step."""
    delay_s = config.reconnect_min_s
    while True:
        started, refused = asyncio.get_running_loop().time(), False
        try:
            await link.run_session(hello)
        except NoHubYet:
            await asyncio.sleep(HUB_FILE_POLL_S)
            continue
        except TokenRefused as fault:
            refused = True
            logger.error("%s; %s", fault.message, NO_TOKEN)
        except WrongCertificate as fault:
            # The right one may come back.
            logger.info("%s: this is not the hub that was joined; trying again", fault.message)
        except HubUnavailable as fault:
            logger.info("%s; trying again", fault.message)
        await over()
        lasted = asyncio.get_running_loop().time() - started
        if refused:
            delay_s = config.reconnect_max_s
        elif lasted > config.reconnect_max_s:
            delay_s = config.reconnect_min_s
        else:
            delay_s = min(config.reconnect_max_s, delay_s * 2)
        await asyncio.sleep(random.uniform(delay_s / 2 if refused else 0, delay_s))
