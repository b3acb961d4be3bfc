"""What a hub that stands by answers itself: of its own state, which follows the leader's turn by turn.

Only what the log and the rows decide: jobs that have ended, the policy, templates. Whatever only the leader has (who is
connected, what waits and why, how far a task that runs has come and what it uses) is not there to be looked at: who
reaches for it, or finds nothing, is passed on. An answer says the last turn that it knows of. One that must know of
more waits for that a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple, Never, Protocol, TypeVar

from dray.core.lifecycle.state.state import State
from dray.errors import NotFound, StoreError
from dray.hub.access.caller import Caller
from dray.hub.access.entrance import Headers, Receive, Scope, Send
from dray.hub.access.request_budgets import Budgets
from dray.hub.answers.job_documents import JobDocuments, JobReads
from dray.hub.answers.site import policy_answer
from dray.hub.calls.reading import CallReader
from dray.hub.documents.records import Document
from dray.hub.engine.follower import Follower
from dray.hub.engine.recovery import Fold
from dray.hub.engine.turns import MOST_ROUNDS
from dray.hub.http.replies import encode, send_whole
from dray.hub.http.routes import Request, Route, read_query
from dray.hub.rows import RowKey, Rows, RowsWanted
from dray.hub.store.base import Store
from dray.hub.templates.answers import TemplateReads
from dray.wire.reach.dialling import MIN_SEQ_HEADER, SEQ_HEADER

T = TypeVar("T")
# How long ago the store may have been looked at: until then nobody else has led for long.
FRESH_S = 3.0
# How long an answer may wait for a turn, and for rows.
REACH_S, ROWS_S = 1.0, 1.0
SEQ_DIGITS = 18
_MIN_SEQ, _SEQ = MIN_SEQ_HEADER.lower().encode(), SEQ_HEADER.lower().encode()


class NotHere(Exception):
    """Only the leader can tell."""


class Source(Protocol):
    """A state that follows the leader's, and the rows beside it."""

    @property
    def follower(self) -> Follower: ...
    @property
    def store(self) -> Store: ...
    async def reach(self, seq: int, within_s: float) -> bool: ...


class Asked(NamedTuple):
    """One request that was let in."""

    scope: Scope
    receive: Receive
    headers: Headers
    route: Route
    path: dict[str, str]


class _Nowhere:
    """Stands where only the leader has something."""

    def __getattr__(self, name: str) -> Never:
        raise NotHere

    def __getitem__(self, key: object) -> Never:
        raise NotHere

    def __contains__(self, key: object) -> bool:
        raise NotHere

    def __iter__(self) -> Iterator[Never]:
        raise NotHere

    def __len__(self) -> int:
        raise NotHere


class _OfLive:
    """What only the leader has of attempts that live, and nobody of others."""

    def __init__(self, state: State) -> None:
        self._attempts = state.attempts

    def get(self, uid: str) -> None:
        attempt = self._attempts.get(uid)
        if attempt is not None and attempt.phase.live:
            raise NotHere


# What turns do not bring: it is of sessions, of passes, and of clocks that nobody winds here.
_LEADERS_OWN = (
    *(
        "presence",
        "columns",
        "backlog",
        "reservations",
        "unprotected",
        "watched",
        "looking",
        "hungry",
        "busy",
    ),
    *("lingering", "leads", "taken_over", "spent_on", "resuming", "polls", "timers", "suspicions", "moves"),
)


def _view(state: State) -> State:
    """The state, without what only the leader has."""
    shown: Any = copy.copy(state)
    for name in _LEADERS_OWN:
        setattr(shown, name, _NOWHERE)
    shown.progress = shown.uses = _OfLive(state)
    found: State = shown
    return found


_NOWHERE = _Nowhere()


class _NoForecasts:
    """Estimates are the leader's."""

    def now_ms(self) -> int:
        """Of what has ended nothing waits on: no moment is needed."""
        return 0

    def document(self, job_id: str) -> Never:
        raise NotHere


class FoldReader:
    """Reads the state of a follower for one request, of one job if any, as an engine would; raises `NotHere`."""

    def __init__(self, source: Source, fold: Fold, job_id: str) -> None:
        self._follower, self._fold, self._job_id = source.follower, fold, job_id
        self.rows = Rows(fold.state, source.store)
        self.seq = 0

    async def ask(self, look: Callable[[State], T], *wants: RowKey) -> T:
        return await self.read(look, *wants)

    async def read(self, look: Callable[[State], T], *wants: RowKey) -> T:
        """Look at the state after one turn, with rows that are of that turn or later."""
        wanted = wants
        for _ in range(MOST_ROUNDS):
            released = self._follower.released
            try:
                async with asyncio.timeout(ROWS_S):
                    await self.rows.fetch(wanted)
            except (TimeoutError, StoreError):
                raise NotHere from None
            with self._follower.reading() as fold:
                if fold is not self._fold:
                    raise NotHere
                if self._follower.released != released:
                    # What was let go meanwhile is in no memory, and was not in the rows.
                    continue
                try:
                    with self.rows.deciding():
                        self._check_ended()
                        found = look(_view(fold.state))
                except RowsWanted as missed:
                    wanted = tuple(dict.fromkeys((*wanted, *missed.keys)))
                    continue
                self.seq = fold.seq
                return found
        raise NotHere

    async def settle(self) -> None:
        """Lists are read from rows: those of this job have to be there."""
        with self._follower.reading():
            if not self._follower.is_written(self._job_id):
                raise NotHere

    def _check_ended(self) -> None:
        """What goes on with a job that has not ended the leader knows better, and rows may be ahead of the state."""
        job = self.rows.job(self._job_id) if self._job_id else None
        if job is not None and not job.state.final:
            raise NotHere


class Reads(NamedTuple):
    reader: FoldReader
    jobs: JobReads
    templates: TemplateReads


Answering = Callable[[Reads, Caller, Any], Awaitable[Document]]
# By the names of operations. Those on jobs are about the one that their path names.
ANSWERED: Mapping[str, Answering] = {
    "show_job": lambda reads, caller, ask: reads.jobs.job(caller, ask.id),
    "list_tasks": lambda reads, caller, ask: reads.jobs.tasks(caller, *ask),
    "list_job_events": lambda reads, caller, ask: reads.jobs.events(caller, ask.id),
    "show_policy": lambda reads, caller, ask: reads.reader.ask(policy_answer),
    "list_templates": lambda reads, caller, ask: reads.templates.list(caller),
    "show_template": lambda reads, caller, ask: reads.templates.show(caller, ask.spelled),
    "list_template_versions": lambda reads, caller, ask: reads.templates.history(caller, ask.name),
}


class FoldAnswers:
    """The answers of one process, while it follows another hub."""

    def __init__(self) -> None:
        self.source: Source | None = None
        self._budgets = Budgets()

    async def answer(self, caller: Caller, asked: Asked, send: Send) -> bool:
        """Answer a request; False where the leader is to be asked."""
        source, answering = self.source, ANSWERED.get(asked.route.name)
        if source is None or answering is None or asked.scope["method"] != "GET":
            return False
        query = read_query(asked.scope["query_string"], asked.route.params)
        if query.get("wait_s"):
            return False
        ask = asked.route.ask(Request(asked.scope, asked.receive, asked.headers, caller, asked.path, query))
        await self._budgets.enter_small(caller.token_id)
        try:
            if not await _has_reached(source, asked.headers.get(_MIN_SEQ)):
                return False
            found = await look_at(
                source, asked.path.get("id", ""), lambda reads: answering(reads, caller, ask)
            )
        finally:
            self._budgets.leave_small(caller.token_id)
        if found is None:
            return False
        document, seq = found
        await send_whole(send, 200, encode(document), more=[(_SEQ, b"%d" % seq)])
        return True


async def _has_reached(source: Source, wanted: bytes | None) -> bool:
    """Whether the state is as far as an answer must be, or comes to be so in a moment."""
    if not wanted:
        return True
    if not wanted.isdigit() or len(wanted) > SEQ_DIGITS:
        return False
    return await source.reach(int(wanted), REACH_S)


async def look_at(
    source: Source, job_id: str, answer: Callable[[Reads], Awaitable[Document]]
) -> tuple[Document, int] | None:
    follower = source.follower
    with follower.reading() as fold:
        if fold is None or time.monotonic() > follower.looked_s + FRESH_S:
            return None
    reader = FoldReader(source, fold, job_id)
    forecasts: Any = _NoForecasts()
    documents = JobDocuments(reader.rows, CallReader(reader.rows, tuple), forecasts)
    reads = Reads(reader, JobReads(reader, reader.rows, documents), TemplateReads(reader))
    # One that is not found may be newer than this state: the leader knows.
    with contextlib.suppress(NotHere, NotFound):
        return await answer(reads), reader.seq
    return None
