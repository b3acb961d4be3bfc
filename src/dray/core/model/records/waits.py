"""What work waits for, as a job's ledger of its waiting has it: so much time for each first reason.

A ledger is a tuple of milliseconds, one for each of `REASONS` in this order; a shorter one ends in zeros. Reasons are
only ever appended, since ledgers are stored.
"""

from __future__ import annotations

from collections.abc import Sequence

REASONS = (
    "room", "turn", "limit", "held", "after", "service", "quota", "pace", "cap", "workload", "restart",
)  # fmt: skip
ROOM, TURN, LIMIT, HELD, AFTER, SERVICE, QUOTA, PACE, CAP, WORKLOAD, RESTART = range(len(REASONS))
WORDS = {
    "room": "no room",
    "turn": "others came first",
    "limit": "its own limit at once",
    "held": "held",
    "after": "other jobs",
    "service": "a service",
    "quota": "quota",
    "pace": "pace",
    "cap": "cap",
    "workload": "its workload",
    "restart": "a restart of the hub",
}
NOTHING: tuple[int, ...] = (0,) * len(REASONS)
# A gate's rule by the first word of its key.
_GATES = {
    "pace": PACE, "cap": CAP, "switch": WORKLOAD, "width": WORKLOAD, "purse": WORKLOAD, "skew": WORKLOAD,
}  # fmt: skip


def reason_of_gate(gate: str) -> int:
    """What it is to wait behind a gate; whatever else a gate is about is a quota."""
    return _GATES.get(gate.partition(" ")[0], QUOTA)


def add(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """Two ledgers in one."""
    longer, shorter = (first, second) if len(first) >= len(second) else (second, first)
    return (*(one + more for one, more in zip(longer, shorter, strict=False)), *longer[len(shorter) :])


def put(ledger: Sequence[int], reason: int, span_ms: int) -> tuple[int, ...]:
    """A ledger with so much more of one reason."""
    whole = [*ledger, *NOTHING[len(ledger) :]]
    whole[reason] += span_ms
    return tuple(whole)
