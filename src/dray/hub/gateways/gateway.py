"""A hub as a gateway: it holds sockets of workers, and carries what they say to whoever leads.

Lives as long as the process, whichever part that plays: its sockets outlive every leader, this hub's own reigns
included. Who may come in the leader says; nothing is acked here that the leader has not; what it has not done with is
kept, and sent again to the next one. What a leader of a lower epoch says is dropped.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from dray.errors import DrayError, NotReady
from dray.hub.access.entrance import Headers, Hosts, Receive, Scope, Send, read_headers
from dray.hub.gateways.frames import (
    Answer,
    Ask,
    Beat,
    BeatAck,
    CallerEnded,
    Close,
    Done,
    Down,
    Frame,
    Hello,
    OutputFiled,
    Registered,
    Told,
    TurnTold,
    Up,
    Welcome,
    read_down,
    write_frame,
)
from dray.hub.gateways.kept import Kept
from dray.hub.gateways.peers import Behind, Peer
from dray.hub.http.replies import deny_upgrade
from dray.hub.workers.frames import ADMIT, EXTENSION
from dray.hub.workers.outputs import Tell
from dray.hub.workers.session import BAD_INPUT, OVERLOADED, Frames, Limits
from dray.wire.messages.worker import SUBPROTOCOL_JSON, SUBPROTOCOL_MSGPACK, JobLog, worker_codec
from dray.wire.reach.refusals import read_error

BEAT_S = 0.25
ASK_S = 10.0
GOODBYE_S = 2.0
RELOADING, GOING_AWAY = 1012, 1001
logger = logging.getLogger("dray.hub.gateways")


class Line(Protocol):
    """The way to a leader."""

    @property
    def writable(self) -> bool: ...
    def send(self, frame: bytes) -> None: ...
    def abort(self) -> None: ...


class TurnTaker(Protocol):
    """Who follows the leader in this process."""

    def relinked(self) -> None:
        """The link is another one, or gone: what comes next may be of another leader."""

    def take(self, turn: TurnTold) -> None: ...


class Callers(Protocol):
    """Who keeps what the leader has said of clients."""

    def heard(self, header: str, payload: dict[str, Any]) -> None:
        """What the leader says of one, before anything else that it says."""

    def ended(self, token_id: str) -> None: ...
    def relinked(self) -> None: ...


class Filing(Protocol):
    """What files output beside the leader."""

    @property
    def is_full(self) -> bool: ...
    async def has_room(self) -> None: ...
    def take(self, worker: str, logs: tuple[JobLog, ...], tell: Tell) -> bool:
        """File all of it, and have `tell` called for each piece; False where that is the leader's to do."""


class _Asked(NamedTuple):
    """A question that waits: its answer, whose header it is about where that is a client."""

    answer: asyncio.Future[dict[str, Any]]
    client: str = ""


class Gateway:
    """`hub_id` names this hub among those of its database."""

    def __init__(self, hub_id: str, hosts: Iterable[str], limits: Limits) -> None:
        self._id, self._boot, self._hosts, self._limits = hub_id, secrets.token_hex(8), Hosts(hosts), limits
        self.peers: dict[int, Peer] = {}
        self.kept = Kept()
        self._numbers, self._asked, self._digests = (itertools.count(1) for _ in range(3))
        self._codecs = {True: worker_codec(True), False: worker_codec(False)}
        self._line: Line | None = None
        self._welcomed = self._knows = self._flushing = False
        self._leader = ""
        self._max_epoch = self._told_seq = 0
        # Heartbeats that the next digest tells of, by session, and those of digests that were not acked yet.
        self._heard: dict[int, int] = {}
        self._told: dict[int, dict[int, int]] = {}
        self._beating: asyncio.TimerHandle | None = None
        self._waiting: dict[int, _Asked] = {}
        # Where turns go that the leader tells of; nobody follows one that is in this very process.
        self.follows: TurnTaker | None = None
        # Where it goes what the leader says of clients, and by whom it is heard that a leader is linked to or lost.
        self.callers: Callers | None = None
        # Where output goes that need not pass through the leader.
        self.filing: Filing | None = None
        self._filed_names: dict[str, None] = {}
        self.tell_link: Callable[[], None] = lambda: None

    # --- the link -----------------------------------------------------------------------------------------------------

    @property
    def is_linked(self) -> bool:
        """Whether there is a leader to carry things to."""
        return self._welcomed

    @property
    def knows_callers(self) -> bool:
        """Whether there is one that says who clients are."""
        return self._welcomed and self._knows

    @property
    def max_epoch(self) -> int:
        """The latest epoch that was heard of."""
        return self._max_epoch

    def linked(self, line: Line) -> None:
        """A way to a leader stands: greet it with all that is held here."""
        self._line, self._welcomed = line, False
        held = tuple(peer.held() for peer in self.peers.values() if peer.closing is None)
        if self.follows is not None:
            self.follows.relinked()
        known = self._max_epoch, self._told_seq
        self._say(Hello(self._id, self._boot, *known, held, follows=self.follows is not None))

    def unlinked(self, line: Line) -> None:
        """It is gone. Sockets stay; what the leader has not done with waits for the next one."""
        if line is not self._line:
            return
        self._line, self._welcomed = None, False
        if self.follows is not None:
            self.follows.relinked()
        self.kept.rewind(self.peers)
        for digest in self._told.values():
            self._heard = {**digest, **self._heard}
        self._told.clear()
        for peer in self.peers.values():
            peer.forget_said()
        for asked in self._waiting.values():
            if not asked.answer.done():
                asked.answer.set_exception(NotReady("the hub that leads went away: ask again in a second"))
        self._waiting.clear()
        if self.callers is not None:
            self.callers.relinked()
        self.tell_link()

    def take(self, raw: bytes) -> None:
        """Take one frame of the leader."""
        frame: Down = read_down(raw)
        if isinstance(frame, Answer):
            self._take_answer(frame)
            return
        if frame.epoch < self._max_epoch:
            logger.warning("a leader of epoch %d is not heeded: %d was seen", frame.epoch, self._max_epoch)
            if self._line is not None:
                self._line.abort()
            return
        self._max_epoch = frame.epoch
        if not isinstance(frame, Registered | Close | CallerEnded | Welcome):
            self._told_seq = max(self._told_seq, frame.seq)
        _TAKE[type(frame)](self, frame)

    def _take_answer(self, frame: Answer) -> None:
        asked = self._waiting.pop(frame.id, None)
        if asked is None:
            return
        if asked.client and self.callers is not None:
            # In this very step: the word that a token has ended may be the next one.
            self.callers.heard(asked.client, frame.payload)
        if not asked.answer.done():
            asked.answer.set_result(frame.payload)

    def _take_caller_ended(self, frame: CallerEnded) -> None:
        if self.callers is not None:
            self.callers.ended(frame.token_id)

    def _take_welcome(self, frame: Welcome) -> None:
        self._welcomed, self._leader, self._knows = True, frame.url, frame.knows
        if frame.seq < self._told_seq:
            logger.error(
                "the store went back from turn %d to %d: workers register", self._told_seq, frame.seq
            )
            self.close_all(RELOADING, "the hub has lost turns: register")
        self._told_seq = frame.seq
        self._flush()
        self._beat_soon()
        self.tell_link()

    def _take_told(self, frame: Told) -> None:
        for no, said, credit in frame.items:
            if (peer := self.peers.get(no)) is not None:
                peer.push(said, credit)

    def _take_registered(self, frame: Registered) -> None:
        if (peer := self.peers.get(frame.session)) is not None:
            peer.registered(frame.worker, frame.incarnation, frame.registered_at_ms)

    def _take_close(self, frame: Close) -> None:
        if (peer := self.peers.get(frame.session)) is not None:
            peer.close(frame.code, frame.reason, frame.at_once)

    def _take_done(self, frame: Done) -> None:
        self.kept.done(frame.upto)

    def _take_beat_ack(self, frame: BeatAck) -> None:
        strange = frozenset(frame.strange)
        for no, beat in self._told.pop(frame.d, {}).items():
            peer = self.peers.get(no)
            if peer is not None and no not in strange:
                peer.ack(beat, frame.epoch, frame.seq, self._leader)

    def _take_turn(self, frame: TurnTold) -> None:
        if self.follows is not None:
            self.follows.take(frame)

    def _say(self, frame: Up) -> None:
        if self._line is not None:
            self._line.send(write_frame(frame))

    def flush(self) -> None:
        """Send what waits, as far as the link takes it."""
        self._flushing = False
        self._flush()

    def _flush(self) -> None:
        while self._welcomed and self._line is not None and self._line.writable:
            if (frame := self.kept.take()) is None:
                return
            self._say(frame)

    def _flush_soon(self) -> None:
        """Once all that this step of the loop brings is there."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def _beat_soon(self) -> None:
        if self._beating is None and self._heard:
            self._beating = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        self._beating = None
        if self._welcomed and self._heard:
            heard, self._heard = {no: beat for no, beat in self._heard.items() if no in self.peers}, {}
            digest = next(self._digests)
            self._told[digest] = heard
            self._say(Beat(digest, list(heard)))

    # --- sockets ------------------------------------------------------------------------------------------------------

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a worker's socket, whoever leads meanwhile."""
        offered: list[str] = list(scope.get("subprotocols") or ())
        chosen = next((name for name in offered if name in (SUBPROTOCOL_MSGPACK, SUBPROTOCOL_JSON)), None)
        no, binary = next(self._numbers), chosen == SUBPROTOCOL_MSGPACK
        try:
            headers = read_headers(scope["headers"])
            self._hosts.check_source(scope, headers)
            token_id = await self._let_in(no, binary, scope, headers)
        except DrayError as fault:
            await deny_upgrade(send, fault)
            return
        await receive()
        await send({"type": "websocket.accept", "subprotocol": chosen})
        frames: Frames | None = (scope.get("extensions") or {}).get(EXTENSION)
        peer = self.peers[no] = Peer(no, token_id, self._codecs[binary], send, frames, self._limits)
        pump = asyncio.create_task(peer.pump())
        if offered and chosen is None:
            peer.close(
                BAD_INPUT, f"this hub speaks {SUBPROTOCOL_MSGPACK} and plain JSON, not {offered[0][:40]}"
            )
        if not self._welcomed:
            # Whoever let it in has gone since, and the next one has not heard of it.
            peer.close(RELOADING, "the hub that leads went away: dial again")
        if frames is not None:
            frames.take_frames(lambda frame: self._take_now(peer, frame))
        code = 1006
        try:
            code = await self._read(peer, receive, frames)
        finally:
            self._left(peer, code, pump)

    async def _let_in(self, no: int, binary: bool, scope: Scope, headers: Headers) -> str:
        """Ask the leader whether somebody may come in; gives the id of his token."""
        if not self._welcomed:
            raise NotReady("this hub stands by, and reaches none that leads: ask again in a second")
        request = {"session": no, "binary": binary, "peer": str((scope.get("client") or ("",))[0])}
        found = await self._ask(headers.get(b"authorization", b"").decode("latin-1"), request)
        token_id = str(found["token"])
        if (admit := (scope.get("extensions") or {}).get(ADMIT)) is not None:
            try:
                admit(token_id)
            except DrayError:
                self.kept.close(no, 1006)
                self._flush_soon()
                raise
        return token_id

    async def know(self, header: str, peer: str) -> dict[str, Any]:
        """Ask the leader who a client is, by his Authorization header; raises as its own door does."""
        return await self._ask(header, {"caller": True, "peer": peer}, header)

    async def _ask(self, header: str, request: dict[str, Any], client: str = "") -> dict[str, Any]:
        number = next(self._asked)
        asked = self._waiting[number] = _Asked(asyncio.get_running_loop().create_future(), client)
        self._say(Ask(number, header, request))
        try:
            async with asyncio.timeout(ASK_S):
                found = await asked.answer
        except TimeoutError:
            raise NotReady("the hub that leads does not answer: ask again in a second") from None
        finally:
            self._waiting.pop(number, None)
        if "error" in found:
            raise read_error(found["error"])
        return found

    async def _read(self, peer: Peer, receive: Receive, frames: Frames | None) -> int:
        while True:
            got = await receive()
            if got["type"] == "websocket.disconnect":
                return int(got.get("code") or 1006)
            if peer.closing is not None:
                if frames is not None:
                    frames.abort_in(GOODBYE_S)
                continue
            peer.reading = True
            self._pass_on(peer, got["bytes"] if got.get("bytes") is not None else got.get("text") or "")
            await self.kept.has_room(peer.prints)
            if peer.prints and self.filing is not None:
                await self.filing.has_room()
            peer.reading = False

    def _take_now(self, peer: Peer, frame: bytes) -> bool:
        full = self.kept.is_full(peer.prints) or (
            peer.prints and self.filing is not None and self.filing.is_full
        )
        if peer.reading or peer.closing is not None or full:
            return False
        self._pass_on(peer, frame)
        return True

    def _pass_on(self, peer: Peer, frame: Frame) -> None:
        most = self._limits.binary_bytes if isinstance(frame, bytes) else self._limits.text_bytes
        if len(frame) > most:
            peer.close(BAD_INPUT, f"a frame of {len(frame)} bytes is over the limit of {most}")
            return
        read = peer.read(frame)
        if read.beat is not None:
            self._heard[peer.no] = read.beat
            self._beat_soon()
            return
        if read.logs and self._file(peer, read.logs):
            return
        if peer.filed < peer.printed:
            # Whoever hears how a task ended finds all that it printed before.
            peer.behind.append(Behind(frame, read.prints, peer.printed))
            return
        self.kept.add(peer.no, frame, read.prints)
        self._flush_soon()

    # --- output -------------------------------------------------------------------------------------------------------

    def _file(self, peer: Peer, logs: tuple[JobLog, ...]) -> bool:
        """File output of a worker that the leader knows; False where it goes to the leader, which is asked as ever."""
        # What went that way before may not be done yet, and comes first there.
        if self.filing is None or not (self.knows_callers and peer.worker) or self.kept.has_printed(peer.no):
            return False
        if not self.filing.take(peer.worker, logs, lambda ends: self._filed(peer, ends)):
            return False
        peer.printed += len(logs)
        return True

    def _filed(self, peer: Peer, ends: dict[str, dict[str, int]] | None) -> None:
        peer.filed += 1
        if ends is None:
            peer.close(OVERLOADED, "the hub could not file output: its log says why")
        else:
            peer.ack_output(ends)
            if not self._filed_names:
                asyncio.get_running_loop().call_soon(self._tell_filed)
            self._filed_names.update(dict.fromkeys(ends))
        self._pass_behind(peer, peer.filed)

    def _tell_filed(self) -> None:
        names, self._filed_names = self._filed_names, {}
        if self._welcomed and self._knows:
            self._say(OutputFiled(list(names)))

    def _pass_behind(self, peer: Peer, filed: int) -> None:
        """Pass on what waited for this much to be filed."""
        while peer.behind and peer.behind[0].printed <= filed:
            waiting = peer.behind.popleft()
            self.kept.add(peer.no, waiting.frame, waiting.prints)
            self._flush_soon()

    def _left(self, peer: Peer, code: int, pump: asyncio.Task[None]) -> None:
        self.peers.pop(peer.no, None)
        self._heard.pop(peer.no, None)
        pump.cancel()
        # It said this before it went.
        self._pass_behind(peer, peer.printed)
        self.kept.close(peer.no, code or 1006)
        self._flush_soon()

    def close_all(self, code: int, reason: str) -> None:
        """Say goodbye to everybody."""
        for peer in self.peers.values():
            peer.close(code, reason)


_TAKE: dict[type[Any], Callable[[Gateway, Any], None]] = {
    Welcome: Gateway._take_welcome,
    Told: Gateway._take_told,
    Registered: Gateway._take_registered,
    Close: Gateway._take_close,
    Done: Gateway._take_done,
    BeatAck: Gateway._take_beat_ack,
    TurnTold: Gateway._take_turn,
    CallerEnded: Gateway._take_caller_ended,
}
