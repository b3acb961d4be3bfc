"""What waits for the next turn, in two lines: what presses goes before bulk work.

Pressing is what brings hardly any work and whose answer loses its worth by waiting: a sign of life, a question. Both
lines keep their order. Whoever puts a message into the pressing line answers for what it overtakes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from dray.hub.engine.turns import Request


class Inbox:
    """`work` is how much a turn takes in, by weight: of what presses at most half of it, so that a flood of questions
    holds up nobody else.
    """

    def __init__(self, work: int) -> None:
        self._work = work
        self._line: deque[Request] = deque()
        self._pressing: deque[Request] = deque()
        self._patient = 0

    def __len__(self) -> int:
        return len(self._line) + len(self._pressing)

    def __iter__(self) -> Iterator[Request]:
        yield from self._pressing
        yield from self._line

    @property
    def is_behind(self) -> bool:
        """Whether the next turn will not take all of it: only then does anybody wait behind others' work."""
        return len(self) > self._work

    @property
    def hurries(self) -> bool:
        """Whether anything waits that cannot wait a little longer, or more than one turn takes."""
        waiting = len(self._line) + len(self._pressing)
        return waiting != self._patient or waiting > self._work

    def add(self, request: Request, presses: bool = False) -> None:
        """Queue a request at the end of its line."""
        (self._pressing if presses else self._line).append(request)
        if request.patient:
            self._patient += 1

    def take(self, work: int = 0) -> list[Request]:
        """Take the next batch: bounded by work, not by number, so that large submits do not hold up heartbeats."""
        left = work or self._work
        most, requests = left // 2, list[Request]()
        while self._pressing and left > most:
            requests.append(self._pressing.popleft())
            left -= requests[-1].weight
        while self._line and left > 0:
            requests.append(self._line.popleft())
            left -= requests[-1].weight
        if self._patient:
            self._patient -= sum(request.patient for request in requests)
        return requests

    def clear(self) -> None:
        """Forget all of it."""
        self._line.clear()
        self._pressing.clear()
        self._patient = 0
