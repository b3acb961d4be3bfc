"""One channel to the hub: dialled, kept, dialled again; every request is answered once, however often it was sent.

Owns the socket, the requests without an answer and the watches. Requests are encoded once and sent again, byte for
byte, after a break: a submit carries its idempotency key inside, so a retry can never double a job. Lives in one
event loop; the blocking face calls in from outside. What is ready when the socket takes it shares a frame; no timer
batches anything.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from dray import errors
from dray.client.reach.discovery import Target
from dray.client.reach.sockets import dial_hub
from dray.client.reach.watches import Watch, Watchlist
from dray.errors import DrayError, HubUnavailable, InvalidInput, TooLarge, Unauthenticated
from dray.wire.messages import client as wire
from dray.wire.reach.addresses import Addresses, Elsewhere
from dray.wire.reach.dialling import TURN_HEADER
from dray.wire.reach.refusals import read_error
from dray.wire.reach.websocket import WebSocket

FRAME_BYTES = 1 << 20
MESSAGE_BYTES = 8 << 20
RETRY_MIN_S, RETRY_MAX_S = 0.1, 5.0
# A restart takes less: nobody needs to hear of it.
SAY_AFTER_S = 3.0
NOT_READY_S = 0.2
# By then one that stands by leads, if any is there.
TAKEOVER_S = 15.0
logger = logging.getLogger("dray.client")
_WORD = re.compile(r"[A-Za-z0-9_=-]{1,128}")
_FATAL_CLOSES: dict[int, type[DrayError]] = {4400: InvalidInput, 4401: Unauthenticated, 1009: TooLarge}


class Listener(NamedTuple):
    """Whoever hears of what the hub sends unasked, and of breaks."""

    pushed: Callable[[str, Any], None]
    resumed: Callable[[], None]
    failed: Callable[[DrayError], None]


class _Asked:
    """A request that waits for its answer."""

    __slots__ = ("answer", "message", "patient_until")

    def __init__(self, message: bytes, answer: asyncio.Future[Any]) -> None:
        self.message, self.answer = message, answer
        self.patient_until = 0.0


class Channel:
    """`find` says where the hub is, anew at each dial. After `away_s` without a hub, what waits is given up."""

    def __init__(
        self, find: Callable[[], Target], away_s: float = 600.0, site: Addresses | None = None, known: int = 1
    ) -> None:
        self._find, self._away_s = find, away_s
        self._site, self._known = site or Addresses(), known
        self._asked: dict[int, _Asked] = {}
        self._outbox: list[bytes] = []
        self._scheduled = False
        self._numbers = 0
        self._watchlist = Watchlist(self._ask_watches)
        self._keeper: asyncio.Task[None] | None = None
        self._socket: WebSocket | None = None
        self._failure: DrayError | None = None
        self._listener: Listener | None = None
        self.dials = 0
        # The last turn that the hub spoke of, in its own words: given back, a store that has lost it is found out.
        self._turn = ""

    async def open(self) -> None:
        """Dial for the first time: where no hub answers, the caller hears it at once."""
        if self._failure is not None:
            raise self._failure
        if self._keeper is None:
            socket = await self._dial_first()
            self._keeper = asyncio.create_task(self._keep(socket))

    async def close(self) -> None:
        """End the channel; what was asked and not answered fails."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        if self._socket is not None:
            await self._socket.close()
        self._failure = self._failure or HubUnavailable("this client was closed: connect again")
        self._fail(self._failure)

    def listen(
        self,
        pushed: Callable[[str, Any], None],
        resumed: Callable[[], None],
        failed: Callable[[DrayError], None],
    ) -> None:
        """Say who hears of results that are pushed, of every new session after a break, and of the end."""
        self._listener = Listener(pushed, resumed, failed)

    async def ask(self, kind: str, payload: Any) -> Any:
        """Ask, across breaks of the connection, until there is an answer; raises what the hub refused with."""
        return await self.post(kind, payload)

    def post(self, kind: str, payload: Any) -> asyncio.Future[Any]:
        """Ask without waiting: the answer comes by the future."""
        if self._failure is not None:
            raise self._failure
        self._numbers += 1
        number = self._numbers
        message = wire.write_message(kind, number, payload)
        if len(message) > MESSAGE_BYTES:
            raise TooLarge(
                f"this {kind} takes {len(message)} bytes, the limit is {MESSAGE_BYTES}: send it in several parts"
            )
        asked = self._asked[number] = _Asked(message, asyncio.get_running_loop().create_future())
        asked.answer.add_done_callback(lambda _: self._asked.pop(number, None))
        self._send_soon(message)
        return asked.answer

    def watch(self, job_id: str) -> Watch:
        """Follow a job until its end; everybody who asks for the same job shares one watch."""
        if self._failure is not None:
            raise self._failure
        return self._watchlist.add(job_id)

    # --- the connection -----------------------------------------------------------------------------------------------

    async def _dial_first(self) -> WebSocket:
        """A site of several hubs may be without a leader for a moment; of one address the caller hears at once."""
        loop = asyncio.get_running_loop()
        until = loop.time() + TAKEOVER_S
        while True:
            try:
                return await self._dial()
            except HubUnavailable:
                if not self._site.is_plural or loop.time() > until:
                    raise
            await asyncio.sleep(NOT_READY_S)

    async def _dial(self) -> WebSocket:
        """Dial the hub that leads, wherever it is; raises for the last address where none was found."""
        while True:
            self.dials += 1
            told = (f"{TURN_HEADER}: {self._turn}",)
            try:
                target, several = self._find(), self._site.is_plural
                socket = await dial_hub(target, wire.CLIENT_PATH, wire.SUBPROTOCOL_CLIENT, told, several)
            except Elsewhere as other:
                if not self._site.tell(other.leader, self._known):
                    raise
            except HubUnavailable:
                if not self._site.miss(self._known):
                    raise
            else:
                self._site.reached()
                return socket

    async def _keep(self, socket: WebSocket) -> None:
        """Session after session until a refusal that no retry can mend."""
        try:
            while True:
                await self._serve(socket)
                socket = await self._dial_again()
        except DrayError as failure:
            self._failure = failure
            self._fail(failure)
        except Exception as fault:
            # Whatever it is, nobody else would tell those who wait.
            logger.exception("the channel to the hub has ended")
            self._failure = HubUnavailable(f"the channel to the hub has ended: {fault!r}; connect again")
            self._fail(self._failure)

    async def _serve(self, socket: WebSocket) -> None:
        self._socket = socket
        self._outbox = [asked.message for asked in self._asked.values()]
        socket.on_message, socket.on_writable = self._take_frame, self._write
        self._watchlist.ask_again()
        if self._listener is not None:
            self._listener.resumed()
        self._write()
        try:
            # Shielded: a channel that is closed meanwhile must not cancel what the socket still fulfils.
            code, reason = await asyncio.shield(socket.closed)
            if code in _FATAL_CLOSES:
                raise _FATAL_CLOSES[code](f"the hub closed the channel: {reason}") from None
        finally:
            self._socket = None
            await socket.close()

    async def _dial_again(self) -> WebSocket:
        loop = asyncio.get_running_loop()
        began, delay_s, said = loop.time(), RETRY_MIN_S, False
        deadline = began + self._away_s
        while True:
            try:
                socket = await self._dial()
                if said:
                    logger.warning("the hub is back after %.0f s", loop.time() - began)
                return socket
            except HubUnavailable as fault:
                if not said and loop.time() - began > SAY_AFTER_S:
                    said = True
                    logger.warning("%s; dialling on. What was submitted goes on", fault.message)
                if loop.time() > deadline:
                    gave_up = f"{fault.message} (tried for {self._away_s:g} s; what was submitted goes on)"
                    self._fail(HubUnavailable(gave_up))
                    deadline = loop.time() + self._away_s
            await asyncio.sleep(random.uniform(delay_s / 2, delay_s))
            # Hubs that stand by answer, and one of them leads soon.
            delay_s = min(delay_s * 2, NOT_READY_S if self._site.is_plural else RETRY_MAX_S)

    def _write(self) -> None:
        """Send what waits, as far as the socket takes it."""
        self._scheduled = False
        socket = self._socket
        while self._outbox and socket is not None and socket.writable:
            count, size = 0, 0
            for message in self._outbox:
                size += len(message)
                if count and size > FRAME_BYTES:
                    break
                count += 1
            batch, self._outbox = self._outbox[:count], self._outbox[count:]
            socket.send(wire.join_messages(batch))

    def _send_soon(self, message: bytes) -> None:
        # While there is no socket the request waits among those without an answer, which the next session sends.
        if self._socket is not None:
            self._outbox.append(message)
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._write)

    @property
    def connected(self) -> bool:
        """Whether there is a connection at this moment, as far as is known."""
        return self._socket is not None

    def flush(self) -> None:
        """Send what waits now and not at the end of this step of the loop."""
        self._write()

    # --- what comes back ----------------------------------------------------------------------------------------------

    def _take_frame(self, frame: bytes) -> None:
        try:
            replies = wire.read_replies(frame)
        except InvalidInput as fault:
            logger.warning("%s: dialling again", fault.message)
            if self._socket is not None:
                self._socket.abort()
            return
        for reply in replies:
            self._take(reply)

    def _take(self, reply: wire.Reply) -> None:
        if reply.type == wire.CHANGED:
            self._watchlist.take(reply.payload["jobs"])
            return
        if reply.type in (wire.RESULTS, wire.ENDED):
            if self._listener is not None:
                self._listener.pushed(reply.type, reply.payload)
            return
        if reply.type == wire.TURN:
            if _WORD.fullmatch(word := str(reply.payload)):
                self._turn = word
            return
        number = reply.id if isinstance(reply.id, int) else 0
        asked = self._asked.get(number)
        if asked is None or asked.answer.done():
            return
        if reply.type != wire.ERROR:
            asked.answer.set_result(reply.payload)
            return
        refusal = read_error(reply.error)
        if isinstance(refusal, errors.NotReady):
            # The hub is about to stop or just starting: the request stays, and goes out again.
            asyncio.get_running_loop().call_later(NOT_READY_S, self._send_again, number)
        elif isinstance(refusal, errors.TooManyRequests) and self._waits(asked, refusal):
            pause_s = refusal.retry_after_s * random.uniform(1, 1.1) + 0.001
            asyncio.get_running_loop().call_later(pause_s, self._send_again, number)
        else:
            asked.answer.set_exception(refusal)

    def _waits(self, asked: _Asked, refusal: errors.TooManyRequests) -> bool:
        """Whether a request may still wait for its turn: as long as for a hub that is away, and no longer."""
        now = asyncio.get_running_loop().time()
        if not asked.patient_until:
            asked.patient_until = now + self._away_s
            logger.warning("%s; this client waits, for up to %g s", refusal.message, self._away_s)
        return now + refusal.retry_after_s <= asked.patient_until

    def _send_again(self, number: int) -> None:
        if number in self._asked:
            self._send_soon(self._asked[number].message)

    async def _ask_watches(self, ids: list[str]) -> Any:
        return await self.ask("watch", {"ids": ids})

    def _fail(self, failure: DrayError) -> None:
        for asked in list(self._asked.values()):
            if not asked.answer.done():
                asked.answer.set_exception(failure)
        self._watchlist.fail(failure)
        if self._listener is not None:
            self._listener.failed(failure)
