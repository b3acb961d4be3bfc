"""Calls on their way to workers: what a turn gave into lanes, as few messages as possible.

Collects during a turn's effects and speaks at their end, so that a lane which was opened, fed and resent in one turn
gets one message. Decides nothing: a call that was cancelled since, or a lane that is asked to stop, is simply left out.
The spec goes with a lane's first calls of a session; a session is named by its number, never held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job
from dray.core.model.specs.spec import FOREVER_NS, told_spec, unpack_spec, with_variant
from dray.hub.calls.arguments import ArgsMemory
from dray.wire.messages.codec import message
from dray.wire.messages.worker import MAX_CALLS, PackedValue

# A message beyond this would fill a frame by itself; a function and its first arguments still fit beside it.
MESSAGE_BYTES = 512 << 10
KNOWN_LANES = 4096
logger = logging.getLogger("dray.hub.calls")


class LaneFeed:
    """What the present turn gave into lanes, by lane; None stands for all that is outstanding there."""

    def __init__(self, state: State, args: ArgsMemory, token_of: Callable[[Job], str]) -> None:
        self._state, self._args, self._token_of = state, args, token_of
        self._wanted: dict[str, list[int] | None] = {}
        self._told: dict[str, int] = {}

    def feed(self, uid: str, indices: Sequence[int]) -> None:
        """Send these calls at the end of the turn."""
        known = self._wanted.setdefault(uid, [])
        if known is not None:
            known += indices

    def resend(self, uid: str) -> None:
        """Send all that is outstanding in a lane, and what a worker must know of it: that may be what was lost."""
        self._wanted[uid] = None
        self._told.pop(uid, None)

    def messages(self, session_of: Callable[[str], Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Give what is to be sent, with the session to send it on, and start anew."""
        wanted, self._wanted = self._wanted, {}
        for uid, indices in wanted.items():
            lane = self._state.attempts.get(uid)
            if lane is None or lane.calls is None or lane.cancel or not lane.phase.live:
                continue
            session = session_of(lane.worker)
            if session is not None:
                for payload in self._payloads(lane, indices, session.number):
                    yield session, message("calls_assign", payload)

    def _payloads(
        self, lane: Attempt, indices: Sequence[int] | None, session: int
    ) -> Iterator[dict[str, Any]]:
        calls, job = lane.calls or {}, self._state.jobs[lane.job_id]
        sent = [index for index in (calls if indices is None else indices) if calls.get(index, 0) > 0]
        args = self._args.give_out(job.id, sent)
        if None in args:
            missing = sent[args.index(None)]
            logger.error("call %s of job %s has no arguments in the store", missing, job.id)
            sent = [index for index, value in zip(sent, args, strict=True) if value is not None]
            args = [value for value in args if value is not None]
        for start, end in _portions(args):
            part = sent[start:end]
            payload: dict[str, Any] = {
                "lane": lane.uid,
                "job": job.id,
                "attempt": {"no": lane.no, "uid": lane.uid, "fence": lane.fence},
                "index": part,
                "no": [calls[index] for index in part],
                "args": args[start:end],
                "remaining_time": lane.limit_ms * 1_000_000 if lane.limit_ms else FOREVER_NS,
            }
            yield payload | self._preface(lane, job, session)

    def _preface(self, lane: Attempt, job: Job, session: int) -> dict[str, Any]:
        """What a worker must know of a lane before its first call; once per session."""
        if self._told.get(lane.uid) == session:
            return {}
        if len(self._told) >= KNOWN_LANES:
            live = self._state.attempts
            self._told = {uid: number for uid, number in self._told.items() if uid in live}
        self._told[lane.uid] = session
        spec = with_variant(unpack_spec(job.spec), lane.variant)
        document = told_spec(spec) | {"id": job.id, "user_id": job.user}
        return {"spec": document, "devices": list(lane.devices), "token": self._token_of(job)}


def _portions(args: Sequence[PackedValue | None]) -> Iterator[tuple[int, int]]:
    """Cut a column where its messages would grow too large."""
    start = size = 0
    for place, value in enumerate(args):
        cost = len(value) if type(value) is bytes else 96
        if place > start and (size + cost > MESSAGE_BYTES or place - start == MAX_CALLS):
            yield start, place
            start, size = place, 0
        size += cost
    if start < len(args):
        yield start, len(args)
