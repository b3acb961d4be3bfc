"""Ends of calls on their way to the hub: gathered per lane, sealed into messages when they can leave, kept until acked.

Pure. Surprising rule: nothing is sealed before the link has room, so that a message holds as many calls as came
meanwhile; what was sealed never changes, since it is sent again as it was.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import msgspec

from dray.agent.decide.effects import Tell

SEALED_CALLS = 512
SEALED_BYTES = 1 << 20
PULLED_BYTES = 2 << 20
CALL_BYTES = 24

Value = bytes | tuple[str, int] | None


class Columns(msgspec.Struct):
    """Ended calls of one lane that are not sealed yet."""

    job: str
    index: list[int] = []
    no: list[int] = []
    state: list[str] = []
    value: list[Value] = []
    wall_us: list[int] = []
    details: dict[int, tuple[str, str]] = {}

    def take(self) -> tuple[Columns, int]:
        """Cut off as much as one message may hold; with its size."""
        size = count = 0
        for value in self.value[:SEALED_CALLS]:
            size += CALL_BYTES + (len(value) if value is not None else 0)
            count += 1
            if size >= SEALED_BYTES:
                break
        taken = Columns(self.job)
        for name in ("index", "no", "state", "value", "wall_us"):
            column = getattr(self, name)
            setattr(taken, name, column[:count])
            del column[:count]
        if self.details:
            taken.details = {one: self.details.pop(one) for one in taken.index if one in self.details}
        return taken, size


class Sealed(msgspec.Struct):
    """One message that the hub has not acked."""

    lane: str
    size: int
    payload: dict[str, Any]
    sent_ms: int = 0


def first_number(incarnation: str) -> int:
    """Where an agent begins to number what it sends: not where the one before it did, whose acks may still come."""
    return zlib.crc32(incarnation.encode()) << 20


class CallResults:
    """The ends of all calls of one agent that the hub has not acked."""

    def __init__(self, first: int = 0) -> None:
        self._open: dict[str, Columns] = {}
        self._unsent: dict[int, None] = {}
        self.sealed: dict[int, Sealed] = {}
        self._of_lane: dict[str, int] = {}
        self._seq = first

    def columns(self, lane: str, job: str) -> Columns:
        """Where ends of a lane are gathered: the caller appends to every column."""
        found = self._open.get(lane)
        if found is None:
            found = self._open[lane] = Columns(job)
        return found

    def has(self, lane: str) -> bool:
        """Whether anything of a lane is not acked."""
        return lane in self._open or lane in self._of_lane

    @property
    def waiting(self) -> bool:
        """Whether there is something to send."""
        return bool(self._open or self._unsent)

    def pull(self, now_ms: int) -> Iterator[Tell]:
        """What may leave now, as much as fits into one frame."""
        size = 0
        while size < PULLED_BYTES and (self._unsent or self._open):
            seq = next(iter(self._unsent)) if self._unsent else self._seal()
            self._unsent.pop(seq, None)
            sealed = self.sealed[seq]
            sealed.sent_ms = now_ms
            size += sealed.size
            yield Tell("calls_result", sealed.payload)

    def _seal(self) -> int:
        lane, columns = next(iter(self._open.items()))
        taken, size = columns.take()
        if not columns.index:
            del self._open[lane]
        self._seq += 1
        states = taken.state
        alike = states[0] if states.count(states[0]) == len(states) else None
        payload: dict[str, Any] = {
            "seq": self._seq,
            "lane": lane,
            "job": taken.job,
            "index": taken.index,
            "no": taken.no,
            "state": alike or states,
            "value": taken.value,
            "wall_us": taken.wall_us,
        }
        if taken.details:
            payload["details"] = {str(one): detail for one, detail in taken.details.items()}
        self.sealed[self._seq] = Sealed(lane, size, payload)
        self._of_lane[lane] = self._of_lane.get(lane, 0) + 1
        return self._seq

    def acked(self, seq: int) -> Sealed | None:
        """The hub has this one; None where that was known."""
        sealed = self.sealed.pop(seq, None)
        if sealed is None:
            return None
        self._unsent.pop(seq, None)
        left = self._of_lane[sealed.lane] - 1
        if left:
            self._of_lane[sealed.lane] = left
        else:
            del self._of_lane[sealed.lane]
        return sealed

    def repeat_all(self) -> None:
        """A new session: all that was not acked is sent again."""
        self._unsent = dict.fromkeys(self.sealed)

    def repeat_late(self, now_ms: int, patience_ms: int) -> None:
        """Send again what has waited too long for its ack."""
        for seq, sealed in self.sealed.items():
            if sealed.sent_ms and now_ms - sealed.sent_ms >= patience_ms:
                self._unsent[seq] = None
