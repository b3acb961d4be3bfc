"""What a registering worker says it has, against what the hub holds for it: one decision per attempt.

Pure, idempotent and free of order. It never stops what it does not know: unknown live work is listed, not killed,
since a hub restored from a backup is the one that has forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from dray.core.model.records.records import Phase

KEEP, STOP, ADOPT, QUARANTINE, RESEND, LOSE, ASK = (
    "keep",
    "stop",
    "adopt",
    "quarantine",
    "resend",
    "lose",
    "ask",
)


class Reported(NamedTuple):
    """One active task of a report, resolved to an attempt where the hub knows it."""

    key: str
    known: bool
    phase: Phase | None = None
    cancelled: bool = False
    adoptable: bool = False


class Decision(NamedTuple):
    """What to do about one attempt (or, for QUARANTINE, one task id)."""

    action: str
    key: str


def reconcile(
    held: Mapping[str, Phase],
    active: Sequence[Reported],
    finished: Sequence[str],
    same_journal: bool,
    lanes: Collection[str] = (),
    unanswered: Collection[str] = (),
) -> list[Decision]:
    """Decide for every attempt in the report and every one held here; results are recorded by their own rule.

    Of those held, `lanes` is sent again whatever its phase: a worker says nothing of a lane without calls, and one that
    lost some of them with its agent says so call by call. `unanswered` was asked to stop before its worker spoke of it:
    a worker does not list what its supervisor has yet to begin, so it is asked once more what became of it.
    """
    decisions = {item.key: _judge(item) for item in active}
    mentioned = {*decisions, *finished}
    for uid, phase in held.items():
        if uid not in mentioned:
            again = phase is Phase.ASSIGNED or (uid in lanes and phase is not Phase.STOPPING)
            resend = again and same_journal
            asks = uid in unanswered and same_journal
            decisions[uid] = RESEND if resend else ASK if asks else LOSE
    return [Decision(decisions[key], key) for key in sorted(decisions)]


def _judge(item: Reported) -> str:
    if not item.known or item.phase is None:
        return QUARANTINE
    if item.phase.live:
        return STOP if item.cancelled else KEEP
    return ADOPT if item.phase is Phase.LOST and item.adoptable else STOP
