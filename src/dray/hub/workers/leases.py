"""Workers that ask instead of being told: each call is one of theirs, and nothing stays open between two of them.

Such a worker is like any other. A lease is an attempt, and its id the attempt's uid; what a call says goes in as frames
of the worker protocol, by the same codec, checks and timers, and what the hub has for the worker waits here. The
surprising rule: credit lasts as long as the call that brought it. Nobody is given work while nobody asks, and an
assignment that comes as a call ends waits for the next one, or is taken back after `accept_s`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from dray.core.lifecycle.state.state import State
from dray.core.model.ids import is_id
from dray.core.model.records.records import Phase
from dray.core.model.specs.spec import FOREVER_NS
from dray.errors import DrayError, Forbidden, InvalidInput, NotReady, Problem, SessionEnded, Unauthenticated
from dray.hub.access.caller import Caller
from dray.hub.access.tokens import Tokens
from dray.hub.documents.records import Document
from dray.hub.engine.engine import Engine
from dray.hub.workers.session import GOING_AWAY, Session
from dray.hub.workers.sessions import Sessions
from dray.wire.messages.codec import Codec, message

MOST_LEASES, MOST_AT_ONCE = 4096, 1024
MOST_WAIT_S = 60.0
GOODBYE, BROKEN = 1000, 1006
# What is to be forgotten and not stopped: somebody else has it, or will.
DROPPED = ("revoked", "superseded")
RECORDED, SUPERSEDED, UNKNOWN, BEGUN = "recorded", "superseded", "unknown", "begun"
_encode = msgspec.msgpack.Encoder().encode


class RegisterLeasing(NamedTuple):
    """Who asks, what it has, and which leases it still works on, each with its task."""

    worker: str
    capabilities: dict[str, Any]
    slots: int
    incarnation: str = ""
    labels: dict[str, str] = {}  # noqa: RUF012 - a tuple's default, which nobody changes
    resources: dict[str, int] = {}  # noqa: RUF012 - as above
    active: Sequence[tuple[str, str]] = ()
    max_epoch_seen: int = 0


class Said(NamedTuple):
    """By whom something is said: the worker, and the session that it was given."""

    worker: str
    session: str


class Dequeue(msgspec.Struct):
    """Tasks wanted, so many at most, within so long."""

    by: Said
    max_tasks: int
    wait_s: float


class Renew(NamedTuple):
    """What is under way; `reports` are fields of `job_progress` beside `lease` and `started`."""

    by: Said
    reports: Sequence[dict[str, Any]]


class Complete(NamedTuple):
    """How leases ended; `results` are fields of `job_result` beside `lease` and `task_id`."""

    by: Said
    results: Sequence[dict[str, Any]]


class GiveBack(NamedTuple):
    """Leases that were not begun; `leaves`: with a goodbye."""

    by: Said
    leases: Sequence[str]
    reason: str
    leaves: bool = False


class LeaseSession(Session):
    """One such worker, between its calls."""

    def __init__(self, number: int, caller: Caller, codec: Codec, name: str, slots: int) -> None:
        super().__init__(number, caller, codec)
        self.id, self.slots = name, slots
        self.incarnation = ""
        self.fault: DrayError | None = None
        self.assigned: dict[str, Document] = {}
        self.orders: dict[str, Document] = {}
        self.accepted: set[str] = set()
        # What it named as it registered, and the hub knows nothing of.
        self.strays: set[str] = set()
        self.polling = asyncio.Lock()
        self.ended: Callable[[LeaseSession, int], None] = lambda session, code: None
        self.heard_s = asyncio.get_running_loop().time()
        self._beats = 0
        self._waiting: dict[tuple[str, Any], asyncio.Future[Any]] = {}
        self.news = asyncio.Event()

    def await_ack(self, kind: str, key: Any) -> asyncio.Future[Any]:
        """What the hub says to one thing that is about to be said."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[kind, key] = waiting
        return waiting

    def next_beat(self) -> int:
        self._beats += 1
        return self._beats

    # --- what the hub says --------------------------------------------------------------------------------------------

    def push(self, envelope: dict[str, Any]) -> None:
        kind, payload = envelope["type"], envelope.get("payload") or {}
        if kind == "job_assign":
            self.assigned[payload["attempt"]["uid"]] = payload
            self.news.set()
        elif kind == "job_cancel":
            self._order(payload)
        elif kind == "ack":
            self._hear_ack(payload)
        elif kind == "error":
            self._settle("register", "", InvalidInput(str(envelope["error"])))

    def _order(self, payload: Document) -> None:
        uid = payload["attempt"]
        if self.assigned.pop(uid, None) is None or payload["reason"] not in DROPPED:
            self.orders[uid] = payload

    def _hear_ack(self, payload: Document) -> None:
        if payload["re"] == "job_result":
            for uid, verdict in (payload.get("results") or {}).items():
                self.accepted.discard(uid)
                self.orders.pop(uid, None)
                self._settle("job_result", uid, verdict)
        else:
            self._settle(payload["re"], payload.get("beat", ""), payload)

    def _settle(self, kind: str, key: Any, found: Any) -> None:
        waiting = self._waiting.pop((kind, key), None)
        if waiting is None or waiting.done():
            return
        if isinstance(found, Exception):
            waiting.set_exception(found)
        else:
            waiting.set_result(found)

    def close(self, code: int, reason: str) -> None:
        fault: DrayError = SessionEnded(f"this session has ended ({reason}): register again")
        if code == GOING_AWAY:
            fault = NotReady(f"{reason}: ask again in a second, and register again")
        self._end(code, reason, fault)

    def end(self, why: str) -> None:
        self._end(BROKEN, why, Unauthenticated(f"{why}: the session has ended"))

    def _end(self, code: int, reason: str, fault: DrayError) -> None:
        if self.closing is not None:
            return
        self.closing, self.fault = (code, reason), fault
        for kind, key in list(self._waiting):
            self._settle(kind, key, fault)
        self.news.set()
        self.ended(self, code)


class Leases:
    """The leasing workers of one hub."""

    def __init__(self, engine: Callable[[], Engine], sessions: Sessions, tokens: Tokens) -> None:
        self._engine, self._sessions, self._tokens = engine, sessions, tokens
        self._heartbeat_s = sessions.limits.heartbeat_s
        self._open: dict[str, LeaseSession] = {}
        self._held: dict[str, contextlib.ExitStack] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # --- calls --------------------------------------------------------------------------------------------------------

    async def register(self, caller: Caller, ask: RegisterLeasing) -> Document:
        """Let a worker in; again, by the same incarnation, changes nothing but what it offers."""
        if not 1 <= ask.slots <= MOST_LEASES:
            raise _wrong("slots", f"must be 1 to {MOST_LEASES} leases at once, got {ask.slots}")
        session = self._again(caller, ask) or self._begin(caller, ask)
        registered = session.await_ack("register", "")
        offer = {
            "id": ask.worker,
            "capabilities": ask.capabilities,
            "slots": _slots(session),
            "incarnation": ask.incarnation or None,
            "labels": ask.labels,
            "resources": ask.resources,
            "max_epoch_seen": ask.max_epoch_seen,
            "active_tasks": [{"task_id": task, "attempt": uid} for uid, task in ask.active],
        }
        try:
            await self._say(session, [message("register", offer)])
            ack = await registered
        except BaseException:
            if not session.worker or session.worker not in self._engine().state.workers:
                session.close(BROKEN, "it did not register")
            raise
        session.accepted = set(ack["keep"])
        session.strays = {uid for uid, _ in ask.active} - session.accepted - set(ack["stop"])
        orders = self._take_orders(session)
        stopped = {order["lease"] for order in orders}
        orders += [self._order_end(uid) for uid in ack["stop"] if uid not in stopped]
        told = {"session": session.id, "epoch": ack["epoch"], "renew_within_s": self._heartbeat_s}
        return {
            **told,
            "keep": ack["keep"],
            "orders": orders,
            "notes": ack.get("notes", []),
        }

    async def dequeue(self, caller: Caller, ask: Dequeue) -> Document:
        """Give tasks on lease, once there are some or the time is over."""
        if not 1 <= ask.max_tasks <= MOST_AT_ONCE:
            raise _wrong("max_tasks", f"must be 1 to {MOST_AT_ONCE}, got {ask.max_tasks}")
        session = self._find(caller, ask.by)
        async with session.polling:
            self._check_open(session)
            if len(session.assigned) < ask.max_tasks:
                await self._poll(session, ask)
            uids = list(session.assigned)[: ask.max_tasks]
            taken = [self._spell(uid, session.assigned.pop(uid)) for uid in uids]
        self._check_open(session)
        return {"leases": taken, "orders": self._take_orders(session)}

    async def _poll(self, session: LeaseSession, ask: Dequeue) -> None:
        """Ask for tasks until there is one; whoever waits is there, which its silence would deny."""
        credit = {"worker_id": session.worker, "slots": _slots(session)}
        beat = {**credit, "beat": 0}
        try:
            wanted = ask.max_tasks - len(session.assigned)
            await self._say(session, [message("ready_for_work", {**credit, "credits": wanted})])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(ask.wait_s, MOST_WAIT_S)):
                    while not session.assigned and session.closing is None:
                        # What was news may have been taken back since.
                        session.news.clear()
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(session.news.wait(), self._heartbeat_s)
                            continue
                        await self._say(session, [message("heartbeat", beat)])
        finally:
            if session.closing is None and len(session.assigned) < ask.max_tasks:
                frame = _encode(message("ready_for_work", {**credit, "credits": 0}))
                if not self._sessions.take(session, frame):
                    asyncio.ensure_future(self._sessions.take_slowly(session, frame)).add_done_callback(_look)

    async def renew(self, caller: Caller, ask: Renew) -> Document:
        """Keep leases alive; the first word of one accepts it."""
        session = self._find(caller, ask.by)
        _check_leases([str(report["lease"]) for report in ask.reports])
        said: list[dict[str, Any]] = []
        dropped: list[Document] = []
        for report in ask.reports:
            uid = report["lease"]
            if uid in session.strays and uid not in self._engine().state.attempts:
                # A hub that was put back to a backup does not know it, lists it, and lets it go on.
                continue
            if why := self._why_not(session, uid):
                dropped.append({"lease": uid, "task": "", "kind": "drop", "reason": why})
                continue
            about = {"task_id": self._task_of(uid), "attempt": uid}
            if uid not in session.accepted:
                said.append(message("job_accepted", about))
                session.accepted.add(uid)
            told = {
                name: report[name] for name in ("step", "saved_step", "fraction", "note") if report.get(name)
            }
            if told:
                said.append(message("job_progress", {**about, **told}))
        beat = session.next_beat()
        beaten = session.await_ack("heartbeat", beat)
        said.append(
            message("heartbeat", {"worker_id": session.worker, "slots": _slots(session), "beat": beat})
        )
        await self._say(session, said)
        await beaten
        known = {order["lease"] for order in dropped}
        orders = [order for order in self._take_orders(session) if order["lease"] not in known]
        return {"orders": [*dropped, *orders], "renew_within_s": self._heartbeat_s}

    async def complete(self, caller: Caller, ask: Complete) -> Document:
        """Record how leases ended; the first result of each counts."""
        session = self._find(caller, ask.by)
        _check_leases([str(result["lease"]) for result in ask.results])
        return {"verdicts": await self._report(session, ask.results)}

    async def give_back(self, caller: Caller, ask: GiveBack) -> Document:
        """Queue leases again that were not begun; one that was begun has to be completed."""
        session = self._find(caller, ask.by)
        _check_leases(ask.leases)
        verdicts, results = {}, []
        for uid in ask.leases:
            attempt = self._engine().state.attempts.get(uid)
            if why := self._why_not(session, uid):
                verdicts[uid] = why
            elif uid in session.accepted or attempt is None or attempt.phase is not Phase.ASSIGNED:
                verdicts[uid] = BEGUN
            else:
                session.assigned.pop(uid, None)
                about = {"lease": uid, "task_id": self._task_of(uid), "state": "preempted"}
                results.append({**about, "error": ask.reason or "returned by its executor"})
        verdicts |= await self._report(session, results)
        if ask.leaves:
            session.close(GOODBYE, "goodbye")
        return {"verdicts": verdicts}

    # --- what calls are made of ---------------------------------------------------------------------------------------

    async def _report(self, session: LeaseSession, results: Sequence[dict[str, Any]]) -> dict[str, str]:
        said: list[dict[str, Any]] = []
        waiting: dict[str, asyncio.Future[Any] | None] = {}
        for result in results:
            fields = dict(result)
            uid = fields.pop("lease")
            attempt = self._engine().state.attempts.get(uid)
            if attempt is not None and attempt.worker != session.worker:
                waiting[uid] = None
                continue
            waiting[uid] = session.await_ack("job_result", uid)
            said.append(message("job_result", {"attempt": uid, **fields}))
        if said:
            await self._say(session, said)
        return {uid: UNKNOWN if future is None else str(await future) for uid, future in waiting.items()}

    def _why_not(self, session: LeaseSession, uid: str) -> str:
        """Why a lease is not this worker's to go on with; what has ended may be in memory no more."""
        attempt = self._engine().state.attempts.get(uid)
        if attempt is None:
            return SUPERSEDED if uid in session.accepted else UNKNOWN
        if attempt.worker != session.worker:
            return UNKNOWN
        return "" if attempt.phase.live else SUPERSEDED

    def _order_end(self, uid: str) -> Document:
        """How a lease ends that was named at a registration: what is being stopped has to be completed still."""
        attempt = self._engine().state.attempts.get(uid)
        if attempt is None or not attempt.phase.live:
            return {"lease": uid, "task": "", "kind": "drop", "reason": SUPERSEDED}
        reason = attempt.cancel or SUPERSEDED
        return {"lease": uid, "task": self._task_of(uid), "kind": "stop", "reason": reason, "grace_s": 0.0}

    def _task_of(self, uid: str) -> str:
        state: State = self._engine().state
        return state.spell(state.attempts[uid])

    def _spell(self, uid: str, payload: Document) -> Document:
        state, spec = self._engine().state, payload["spec"]
        attempt, remaining = state.attempts.get(uid), payload["remaining_time"]
        lost_ms = attempt.lost_after_ms if attempt is not None else state.rules.lost_ms
        return {
            "lease": uid,
            "task": spec["id"],
            "number": payload["attempt"]["no"],
            "fence": payload["attempt"]["fence"],
            "spec": spec,
            "devices": payload["devices"],
            "remaining_s": remaining / 1e9 if remaining < FOREVER_NS else None,
            "accept_within_s": state.rules.accept_ms / 1000,
            "lost_after_s": lost_ms / 1000,
            "token": payload.get("token"),
        }

    def _take_orders(self, session: LeaseSession) -> list[Document]:
        taken, session.orders = session.orders, {}
        return [
            {
                "lease": uid,
                "task": payload["task_id"],
                "kind": "drop" if payload["reason"] in DROPPED else "stop",
                "reason": payload["reason"],
                "grace_s": payload["grace_s"],
            }
            for uid, payload in taken.items()
        ]

    async def _say(self, session: LeaseSession, messages: Sequence[dict[str, Any]]) -> None:
        session.heard_s = asyncio.get_running_loop().time()
        frame = _encode(messages[0] if len(messages) == 1 else list(messages))
        if not self._sessions.take(session, frame):
            await self._sessions.take_slowly(session, frame)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _find(self, caller: Caller, by: Said) -> LeaseSession:
        session = self._open.get(by.session)
        if session is None:
            raise SessionEnded(
                f"there is no session {by.session[:64]!r} (any more): register {by.worker[:64]!r} again"
            )
        if session.caller.token_id != caller.token_id or session.worker != by.worker:
            raise Forbidden(
                f"session {by.session[:64]!r} is not one of worker {by.worker[:64]!r} with this token"
            )
        return session

    def _check_open(self, session: LeaseSession) -> None:
        if session.fault is not None:
            raise session.fault

    def _again(self, caller: Caller, ask: RegisterLeasing) -> LeaseSession | None:
        for session in self._open.values():
            same = session.worker == ask.worker and session.incarnation == ask.incarnation
            if same and session.caller.token_id == caller.token_id:
                session.slots = ask.slots
                return session
        return None

    def _begin(self, caller: Caller, ask: RegisterLeasing) -> LeaseSession:
        if not is_id(ask.worker):
            raise _wrong("worker", f"{ask.worker[:64]!r} is no id of a worker")

        def make(number: int, codec: Codec) -> LeaseSession:
            name = f"{self._engine().state.counters.epoch}-{number}"
            return LeaseSession(number, caller, codec, name, ask.slots)

        session = self._sessions.begin(make)
        session.incarnation = ask.incarnation
        session.ended = self._ended
        self._open[session.id] = session
        held = self._held[session.id] = contextlib.ExitStack()
        held.enter_context(self._tokens.hold(caller.token_id, session.end))
        self._watch(session)
        return session

    def _ended(self, session: LeaseSession, code: int) -> None:
        if self._open.pop(session.id, None) is None:
            return
        if (timer := self._timers.pop(session.id, None)) is not None:
            timer.cancel()
        held = self._held.pop(session.id)
        # Not within the lease's own call.
        asyncio.get_running_loop().call_soon(held.close)
        if code == GOODBYE:
            session.closing = None
        self._sessions.leave([(session, code)])

    def _watch(self, session: LeaseSession) -> None:
        """End a session that has been silent for as long as leases last."""
        loop = asyncio.get_running_loop()
        left_s = session.heard_s + self._engine().state.rules.lost_ms / 1000 - loop.time()
        if left_s <= 0 and not session.polling.locked():
            session.close(BROKEN, "silent for too long")
        elif session.closing is None:
            self._timers[session.id] = loop.call_later(max(left_s, 1.0), self._watch, session)


def _slots(session: LeaseSession) -> dict[str, int]:
    return {"batch_total": session.slots, "batch_in_use": 0, "service_total": 0, "service_in_use": 0}


def _check_leases(leases: Sequence[str]) -> None:
    if len(leases) > MOST_LEASES:
        raise _wrong("leases", f"holds {len(leases)}, the limit is {MOST_LEASES}: say it in several calls")
    if len(set(leases)) != len(leases):
        raise _wrong("leases", "names a lease twice")


def _wrong(where: str, what: str) -> InvalidInput:
    return InvalidInput(f"{where}: {what}", [Problem(where, what)])


def _look(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.exception()
