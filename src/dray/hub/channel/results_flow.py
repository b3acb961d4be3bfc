"""One client socket's side of calls: how much of what it is told fits into its queue.

A socket that is read slowly is not closed over results: it falls behind, and goes on from the store once its queue has
room. So a map of any size needs no more memory here than one that is read at once.
"""

from __future__ import annotations

from collections.abc import Callable

from dray.hub.calls.subscriptions import CallFeed


class ResultsFlow:
    """`push` queues a message on the socket, `queued_bytes` says how much waits there."""

    def __init__(
        self,
        feed: CallFeed,
        push: Callable[[bytes], None],
        queued_bytes: Callable[[], int],
        most_bytes: int,
    ) -> None:
        self._feed, self._push, self._queued_bytes, self._most = feed, push, queued_bytes, most_bytes
        self._behind = self._closed = False

    def drained(self) -> None:
        """The socket took something: go on with what was held back."""
        if self._behind and self.has_room():
            self._feed.catch_up(self)

    def close(self) -> None:
        """Hear no more of anything."""
        self._closed = True
        self._feed.leave(self)

    def settle(self) -> None:
        """Leave again where the socket went away while something was asked, and its interest was dropped before."""
        if self._closed:
            self._feed.leave(self)

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
