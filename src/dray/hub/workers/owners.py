"""Which token speaks for which worker: the one that first registered it, for as long as that token is good.

Owns the rule and the memory of who broke it; the binding itself is a fact (`WorkerRegistered.owner`), so it is durable
with the registration and folds back after a restart. A worker's token speaks for one id; an admin's for any that nobody
else holds; a join token for none, it is exchanged for one of the worker's own. The surprising rule: nothing releases an
id but the end of its token, so revoking is how an admin frees one.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

from dray.core.lifecycle.state.effects import Alarm, CloseSession
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.errors import Conflict
from dray.hub.access.caller import Caller
from dray.hub.access.tokens import Tokens
from dray.hub.engine.turns import Decision
from dray.hub.store.base import AuditRecord

NOT_YOURS = 4403
REMEMBERED = 256
# One who tries again and again is told each time, and written down once in so long.
QUIET_MS = 60_000
DAY_MS = 86_400_000
Audit = Callable[[AuditRecord], Awaitable[Any]]
logger = logging.getLogger("dray.hub.workers.owners")


class Trespass(NamedTuple):
    """How often a token tried to be a worker that is not its own, and when it was last seen and last written down."""

    times: int
    at_ms: int
    noted_ms: int


class Owners:
    """Asked inside the turn that registers a worker, so that two who race for one id cannot both win."""

    def __init__(self, tokens: Tokens, state: Callable[[], State], audit: Audit) -> None:
        self._tokens, self._state, self._audit = tokens, state, audit
        self._tried: OrderedDict[tuple[str, str], Trespass] = OrderedDict()
        self.tell_join: Callable[[str], str] = lambda token: ""

    def holder(self, state: State, worker_id: str) -> str:
        """The token that an id belongs to; empty where it is free."""
        if made_for := self._tokens.made_for(worker_id):
            return made_for
        known = state.workers.get(worker_id)
        if known is None or not known.owner or self._tokens.fault_of(known.owner):
            return ""
        return known.owner

    def fault(self, state: State, caller: Caller, worker_id: str) -> str:
        """Say why this caller may not be that worker; empty where it may."""
        token_id = caller.token_id
        holder = self.holder(state, worker_id)
        if holder and holder != token_id:
            return (
                f"worker id {worker_id} was registered with another token: give this machine another name, or have "
                "that token revoked (`dray token ls` names it)"
            )
        other = self.worker_of(token_id)
        if other and other != worker_id and self._tokens.is_single(token_id):
            return (
                f"token {token_id} speaks for worker {other} and no other: keep that name, or make {worker_id} a "
                "token of its own (`dray token create --scope worker`)"
            )
        return ""

    def claim(self, state: State, caller: Caller, worker_id: str, clock: Clock) -> tuple[AuditRecord, ...]:
        """What is written down of a registration that was let in: nothing unless the id changes hands."""
        known = state.workers.get(worker_id)
        before = known.owner if known is not None else ""
        if before == caller.token_id:
            return ()
        detail = f"was token {before}'s, which has ended" if before else ""
        return (AuditRecord(clock.at_ms, caller.user, caller.token_id, "worker.bind", worker_id, detail),)

    async def issue(
        self,
        by: Caller,
        worker_id: str,
        user: str = "",
        expires_s: float | None = None,
        *,
        on_purpose: bool = False,
    ) -> dict[str, Any]:
        """Make a worker a token of its own. For an admin this is how an id changes hands: its token so far ends.

        An agent asks by itself, with the admin's token where it finds that: while another machine of its name is
        connected, only a person may want that one to go (`on_purpose`).
        """
        state = self._state()
        holder = self.holder(state, worker_id)
        if by.scopes == ("join",) and (own := self._tokens.worker_of(by.token_id)):
            return await self._exchange(by, own, worker_id, holder)
        if holder and not (by.may("admin") and (on_purpose or not _is_here(state, worker_id))):
            record, text = self._note(state, by, worker_id, "asked for its token", self._tokens.clock_ms())
            if record is not None:
                logger.error("alarm: %s", text)
                await self._audit(record)
            raise Conflict(
                f"worker id {worker_id} belongs to another token: give this machine another --name, or have an admin "
                "revoke that token first (`dray token ls` names it)"
            )
        if holder and self._tokens.is_single(holder):
            await self._tokens.revoke(by, holder)
        return await self._tokens.create(by, user or by.user, ("worker",), expires_s, worker_id)

    async def _exchange(self, by: Caller, own: str, worker_id: str, holder: str) -> dict[str, Any]:
        """Exchange a join token that was made for one worker: for that one, and once."""
        if own != worker_id:
            raise Conflict(
                f"this token lets worker {own} join and no other: start the agent with --name {own}"
            )
        if holder != by.token_id:
            raise Conflict(f"worker {worker_id} has joined already: a token lets it join once")
        await self._tokens.revoke(by, holder)
        return await self._tokens.create(by, by.user, ("worker",), None, worker_id)

    def refuse(
        self, state: State, caller: Caller, worker_id: str, fault: str, session: int, clock: Clock
    ) -> Decision:
        """Close the session; loudly and on record, though not more often than a person would read it."""
        closing = CloseSession(worker_id, session, NOT_YOURS, fault)
        record, text = self._note(state, caller, worker_id, "tried to register", clock.at_ms)
        return Decision([closing]) if record is None else Decision([closing, Alarm(text)], audit=(record,))

    def _note(
        self, state: State, caller: Caller, worker_id: str, what: str, at_ms: int
    ) -> tuple[AuditRecord | None, str]:
        key = (caller.token_id, worker_id)
        times, _, noted_ms = self._tried.pop(key, Trespass(0, 0, 0))
        is_news = at_ms - noted_ms >= QUIET_MS or at_ms < noted_ms
        self._tried[key] = Trespass(times + 1, at_ms, at_ms if is_news else noted_ms)
        if len(self._tried) > REMEMBERED:
            self._tried.popitem(last=False)
        holder = self.holder(state, worker_id)
        whose = f"token {holder}'s" if holder and holder != caller.token_id else "not its own"
        text = f"token {caller.token_id} {what} as worker {worker_id}, which is {whose}: refused"
        record = AuditRecord(
            at_ms, caller.user, caller.token_id, "worker.refuse", worker_id, f"{what}; {whose}"
        )
        return record if is_news else None, text

    def worker_of(self, token_id: str) -> str:
        """The worker that a token speaks for, the last one where it is an admin's; empty where it never did."""
        return self._tokens.worker_of(token_id) or self._state().owned.get(token_id, "")

    def workers_of(self, token_id: str) -> list[str]:
        """All workers that a token speaks for."""
        if self._tokens.is_single(token_id):
            return [worker] if (worker := self.worker_of(token_id)) else []
        return [worker.id for worker in self._state().workers.values() if worker.owner == token_id]

    def examine(self, state: State) -> dict[str, Any]:
        """For the doctor: who tried to be somebody else lately, and which tokens stand for many machines."""
        found = [*self._tell_tried(), *self._tell_shared(state)]
        return {"name": "worker tokens", "ok": not found, "detail": "; ".join(found[:20])}

    def _tell_tried(self) -> Iterator[str]:
        now_ms = self._tokens.clock_ms()
        for (token_id, worker_id), trespass in self._tried.items():
            if now_ms - trespass.at_ms < DAY_MS:
                times = f", {trespass.times} times" if trespass.times > 1 else ""
                yield f"token {token_id} tried to register as worker {worker_id} and was refused{times}"

    def _tell_shared(self, state: State) -> Iterator[str]:
        shared: dict[str, list[str]] = {}
        for worker in state.workers.values():
            if worker.owner and self._tokens.is_shared(worker.owner):
                shared.setdefault(worker.owner, []).append(worker.id)
        for token_id, names in shared.items():
            if len(names) > 1:
                yield (
                    f"token {token_id} is shared by {len(names)} workers ({', '.join(sorted(names)[:3])}…), each of "
                    "which could pose as the others: give each a token of its own"
                )


def _is_here(state: State, worker_id: str) -> bool:
    presence = state.presence.get(worker_id)
    return presence is not None and bool(presence.session)
