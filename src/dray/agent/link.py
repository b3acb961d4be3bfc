"""The agent's socket to its hub: dialled, watched, dialled again with jitter.

Messages queue here and leave in as few frames as the hub's acks allow: two frames may be unanswered, what comes
meanwhile is the next one. Commit and ack clock the batching; no timer does.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from dray.agent.decide.effects import Tell
from dray.agent.own_token import OwnToken, TokenRefused, raise_elsewhere, refusal_text
from dray.agent.runners.blobs import HubAccess
from dray.agent.tasks.aside import do_aside
from dray.config import AgentConfig
from dray.core.model.specs.dependency import service_variable
from dray.errors import HubUnavailable, InvalidConfig, InvalidInput
from dray.presence import read_hub_note
from dray.wire.messages.codec import Envelope, message
from dray.wire.messages.hub import hub_codec
from dray.wire.messages.worker import SUBPROTOCOL_MSGPACK
from dray.wire.reach.addresses import Addresses, Elsewhere, split_addresses
from dray.wire.reach.dialling import (
    SOCKET_NAME,
    Line,
    Opening,
    Trust,
    Way,
    WrongCertificate,
    check_url,
    tell_broken,
)
from dray.wire.reach.pinned_tls import make_context
from dray.wire.reach.websocket import HandshakeRefused, WebSocket, dial, make_address

UNANSWERED_FRAMES = 2
MAX_FRAME = 16 << 20
SILENCE_FACTOR = 3.0
HUB_FILE_POLL_S = 0.05
OPEN_S = 10.0
# Where a site has several hubs, one of them leads within seconds.
TAKEOVER_MAX_S = 2.0
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
        self._scheduled = False
        self._socket: WebSocket | None = None
        self._heard_at = self._patience_s = 0.0
        self._silence: asyncio.TimerHandle | None = None
        self._fault: BaseException | None = None
        self.heartbeat_s = 10.0
        self.local_address = ""
        self.hub: HubAccess | None = None
        self.fingerprint = ""
        self._pull: Callable[[], list[Tell]] | None = None
        self._site, self._known = Addresses(), list[str]()

    def moves_on(self, fault: BaseException) -> bool:
        """Whether to dial another address of the site at once."""
        known = max(1, len(self._known))
        if isinstance(fault, Elsewhere):
            return self._site.tell(fault.leader, known)
        return self._site.miss(known)

    @property
    def is_one_of_several(self) -> bool:
        """Whether the site has several hubs: then one that stands by leads soon."""
        return self._site.is_plural

    def pull_from(self, pull: Callable[[], list[Tell]]) -> None:
        """Ask `pull` for more whenever a frame can leave: what waits there grows until then."""
        self._pull = pull

    def wake(self) -> None:
        """There is something to pull."""
        if not self._scheduled and self._socket is not None:
            # Once all that this step of the loop has to say is there.
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._write)

    def push(self, kind: str, payload: dict[str, Any], acked: bool) -> None:
        """Queue a message; `acked` ones hold back later frames until the hub has answered."""
        if self._socket is not None:
            self._queue.append((message(kind, payload), acked))
            self.wake()

    def answered(self) -> None:
        """Count one ack."""
        if self._unanswered:
            self._unanswered[0] -= 1
            if self._unanswered[0] <= 0:
                self._unanswered.popleft()
                self.wake()

    def variables(self) -> dict[str, str]:
        """What programs started here find in their environment of the way to the hub."""
        hub, config, variables = self.hub, self._config, dict[str, str]()
        if hub is not None:
            variables["DRAY_HUB"] = ",".join(self._site.order(self._known))
            if hub.way.socket:
                variables["DRAY_HUB_SOCKET"] = hub.way.socket
            if hub.uid > 0:
                # Calls may run as another account, which could not know that this one is the hub's.
                variables["DRAY_HUB_USER"] = str(hub.uid)
        if self.fingerprint:
            variables["DRAY_FINGERPRINT"] = self.fingerprint
        if config.cafile is not None:
            variables["DRAY_CAFILE"] = str(config.cafile)
        return variables

    def lead_at(self, url: str) -> None:
        """The hub that leads is at `url`, and this session goes by another one: what goes beside it (large values,
        tunnels, services) goes there, by the rules of any address.
        """
        if not url or self.hub is None or url == self.hub.way.url:
            return
        try:
            check_url(url)
        except InvalidConfig as fault:
            logger.warning("the hub names a leader that cannot be used: %s", fault.message)
            return
        pinned, cafile = self.fingerprint, self._config.cafile

        def trust() -> ssl.SSLContext:
            return make_context(url, pinned, cafile)

        self.hub = HubAccess(Way(url, "", self._config.hub_user), self.hub.token, trust, self.hub.uid)

    def name_services(self, uses: Sequence[str], token: str) -> dict[str, str]:
        """Where a task finds the services that it uses: through the hub, wherever they run and whatever port they have
        after the next restart.
        """
        if not uses or self.hub is None or not token:
            return {}
        url = self.hub.way.url.rstrip("/")
        found = {service_variable(name): f"{url}/proxy/{name}" for name in uses}
        found["DRAY_SERVICE_TOKEN"] = token
        if self.fingerprint:
            found["DRAY_SERVICE_FINGERPRINT"] = self.fingerprint
        if self._config.cafile is not None:
            found["DRAY_SERVICE_CAFILE"] = str(self._config.cafile)
        return found

    async def run_session(self, hello: Callable[[], dict[str, Any]]) -> None:
        """Dial, register, and serve until the session ends. Raises `HubUnavailable` where no hub answers,
        `WrongCertificate` where another one does."""
        way, pinned = self._target()

        def trust() -> ssl.SSLContext:
            return make_context(way.url, pinned, self._config.cafile)

        token = await self._own.settle(way, trust)
        line = await _dial(way, trust)
        local_address = "127.0.0.1" if line.local else str(line.sock.getsockname()[0])
        try:
            address = make_address(way.url, "/ws", SUBPROTOCOL_MSGPACK, token)
            socket = await dial(address, line, OPEN_S, keepalive_s=0, most_bytes=MAX_FRAME)
        except HandshakeRefused as refusal:
            raise_elsewhere(refusal.body)
            kind = TokenRefused if refusal.status in (401, 403) else HubUnavailable
            raise kind(f"the hub answers {refusal.status}: {refusal_text(refusal.body)}") from None
        except (OSError, TimeoutError) as fault:
            raise (tell_broken(fault) or HubUnavailable(f"no hub answers at {way.url}: {fault!r}")) from None
        self.local_address, self.fingerprint = local_address, pinned
        self._site.reached()
        self.hub = HubAccess(way, token, lambda: line.context or trust(), line.uid)
        try:
            self._begin(socket, hello())
            code, reason = await asyncio.shield(socket.closed)
        finally:
            self._end()
            await socket.close()
        if self._fault is not None:
            raise self._fault
        logger.info("the session ended: %s %s", code, reason)
        if code in NOT_LET_IN:
            raise TokenRefused(f"the hub has ended this session: {reason}")

    async def close(self, code: int, reason: str) -> None:
        """End the session from this side, after what is queued."""
        if self._socket is not None:
            self._write()
            await self._socket.close(code, reason)

    def _begin(self, socket: WebSocket, registration: dict[str, Any]) -> None:
        self._socket, self._fault = socket, None
        self._queue, self._unanswered = [(message("register", registration), True)], deque()
        socket.on_message, socket.on_writable = self._take_frame, self._write
        self._listen_for()
        self._write()

    def _end(self) -> None:
        self._socket = None
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _write(self) -> None:
        """Send what waits, as far as acks and the socket let it."""
        self._scheduled = False
        socket = self._socket
        while socket is not None and socket.writable and len(self._unanswered) < UNANSWERED_FRAMES:
            batch, self._queue = self._queue[:256], self._queue[256:]
            if self._pull is not None and not self._queue:
                batch += [(message(told.type, told.payload), told.acked) for told in self._pull()]
            if not batch:
                return
            expected = sum(1 for _, acked in batch if acked)
            if expected:
                self._unanswered.append(expected)
            socket.send(self._codec.encode([envelope for envelope, _ in batch]))

    def _listen_for(self) -> None:
        """Be patient from here on; a hub that stays silent past several heartbeats is a half-open socket."""
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        patience_s = self.heartbeat_s * SILENCE_FACTOR
        if patience_s != self._patience_s or self._silence is None:
            self._patience_s = patience_s
            if self._silence is not None:
                self._silence.cancel()
            self._silence = loop.call_later(patience_s, self._look_for_life)

    def _look_for_life(self) -> None:
        loop, due_at = asyncio.get_running_loop(), self._heard_at + self._patience_s
        if loop.time() < due_at:
            self._silence = loop.call_at(due_at, self._look_for_life)
        elif self._socket is not None:
            logger.warning("the hub has been silent for %.0f s: dialling again", self._patience_s)
            self._socket.abort()

    def _take_frame(self, frame: bytes) -> None:
        try:
            for envelope in self._split(frame):
                self._take(envelope)
            self._listen_for()
        except Exception as fault:  # noqa: BLE001 - raised again where the session is served
            self._fault = fault
            if self._socket is not None:
                self._socket.abort()

    def _split(self, frame: bytes) -> list[Envelope]:
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
        own_url = str(note.get("url", "")).rstrip("/")
        self._known = split_addresses(config.hub) or ([own_url] if own_url else [])
        if not self._known:
            raise NoHubYet(f"no hub runs with {config.home} yet")
        url = self._site.choose(self._known)
        is_own = url == own_url
        # The hub of this home knows which one leads its site, and that one has the same certificate.
        is_ours = is_own or (bool(self._site.told) and self._known == [own_url])
        pinned = config.fingerprint or (note.get("fingerprint", "") if is_ours else "")
        check_url(url)
        socket = str(config.home / SOCKET_NAME) if is_own and note.get("socket") else ""
        return Way(url, socket, config.hub_user), pinned


class NoHubYet(HubUnavailable):
    """The hub of this home has not said where it is: looking again costs nothing."""


async def _dial(way: Way, trust: Trust) -> Line:
    """Connect to the hub and to nobody else: the token has not been sent yet."""
    try:
        return await Opening(way, OPEN_S, trust).wait(do_aside)
    except (OSError, TimeoutError) as fault:
        raise HubUnavailable(f"no hub answers at {way.url}: {fault!r}") from None


async def keep_dialling(
    link: Link, hello: Callable[[], dict[str, Any]], over: Callable[[], Awaitable[None]], config: AgentConfig
) -> None:
    """Session after session, with full jitter between tries: many agents must not come back in step."""
    delay_s = config.reconnect_min_s
    while True:
        started, refused, on = asyncio.get_running_loop().time(), False, False
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
            on = link.moves_on(fault)
        except HubUnavailable as fault:
            logger.info("%s; trying again", fault.message)
            on = link.moves_on(fault)
        await over()
        if on:
            continue
        lasted = asyncio.get_running_loop().time() - started
        if refused:
            delay_s = config.reconnect_max_s
        elif lasted > config.reconnect_max_s:
            delay_s = config.reconnect_min_s
        else:
            most_s = TAKEOVER_MAX_S if link.is_one_of_several else config.reconnect_max_s
            delay_s = min(most_s, config.reconnect_max_s, delay_s * 2)
        await asyncio.sleep(random.uniform(delay_s / 2 if refused else 0, delay_s))
