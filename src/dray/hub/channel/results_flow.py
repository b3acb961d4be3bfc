"""One client socket's side of calls: what it asks, and how much of what it is told fits into its queue.

A socket that is read slowly is not closed over results: it falls behind, and goes on from the store once its queue has
room. So a map of any size needs no more memory here than one that is read at once.
"""

from __future__ import annotations

from collections.abc import Callable

from dray.hub.access.caller import Caller
from dray.hub.answers.calls import CallAnswers
from dray.hub.answers.service import Document
from dray.wire.messages.client import Calls, Collect


class ChannelCalls:
    """`push` queues a message on the socket, `queued_bytes` says how much waits there."""

    def __init__(
        self,
        answers: CallAnswers,
        caller: Caller,
        push: Callable[[bytes], None],
        queued_bytes: Callable[[], int],
        most_bytes: int,
    ) -> None:
        self._answers, self._caller = answers, caller
        self._push, self._queued_bytes, self._most = push, queued_bytes, most_bytes
        self._behind = self._closed = False

    async def add(self, body: Calls) -> Document:
        """Add calls to a job, which is made where it is new."""
        answer = await self._answers.add(self._caller, body, self)
        self._settle()
        return answer

    async def collect(self, body: Collect) -> Document:
        """Give results so far."""
        answer = await self._answers.collect(self._caller, body, self)
        self._settle()
        return answer

    def drained(self) -> None:
        """The socket took something: go on with what was held back."""
        if self._behind and self.has_room():
            self._answers.feed.catch_up(self)

    def close(self) -> None:
        """Hear no more of anything."""
        self._closed = True
        self._answers.feed.leave(self)

    def has_room(self) -> bool:
        """Whether another chunk of results may be queued."""
        return self._queued_bytes() < self._most

    def push_calls(self, message: bytes) -> None:
        """Queue what is to be told."""
        if not self._closed:
            self._push(message)

    def lag(self, behind: bool) -> None:
        """Take note that something was held back, or that all of it has been told."""
        self._behind = behind

    def _settle(self) -> None:
        if self._closed:
            # The socket went away meanwhile, and its interest was dropped before this began.
            self._answers.feed.leave(self)
