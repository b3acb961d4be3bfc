"""Receipts of preemptions as the documents that people and programs read, and what they come to over a while.

A receipt is shown to whoever made others stop and to whoever was stopped, and says to both whose job it was made for:
who takes your machine has a name. The ids of others' jobs stay theirs, and so do the names of other victims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from dray.core.lifecycle.holding.receipts import number_of, receipts
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.model.ids import is_fake, task_id
from dray.core.model.records.ledger import Receipt, Victim
from dray.core.model.records.records import Attempt, Phase, Task
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.claims.reservations import MOST_ROWS, earliest
from dray.errors import NotFound
from dray.hub.access.caller import Caller
from dray.hub.documents.records import Document, moment
from dray.hub.rows import Rows

TOP_USERS = 10
STOPPING, WAITING, STARTING, RUNNING, GONE = "stopping", "waiting", "starting", "running", "gone"


class ReceiptFilter(NamedTuple):
    """Which receipts of preemptions are wanted; `before` is the number of the last one that was seen (0: none)."""

    job: str = ""
    user: str = ""
    limit: int = 50
    before: int = 0
    window_s: float = 86400


class ReceiptSight(NamedTuple):
    """Who looks, and at what."""

    caller: Caller
    rows: Rows

    @property
    def state(self) -> State:
        return self.rows.state

    def sees(self, receipt: Receipt) -> bool:
        """Whether this receipt is any business of the caller's."""
        return self.caller.sees(receipt.user) or any(
            self.caller.sees(victim.user) for victim in receipt.victims
        )

    def wants(self, receipt: Receipt, wanted: ReceiptFilter) -> bool:
        """Whether it is asked for, and is any business of the caller's."""
        return (
            self.sees(receipt)
            and (not wanted.job or self.concerns_job(receipt, wanted.job))
            and (not wanted.user or self.concerns_user(receipt, wanted.user))
        )

    def concerns_job(self, receipt: Receipt, job_id: str) -> bool:
        """Whether a job has to do with it, as far as the caller may know."""
        mine = receipt.job_id == job_id and self.caller.sees(receipt.user)
        return mine or any(
            victim.job_id == job_id and self.caller.sees(victim.user) for victim in receipt.victims
        )

    def concerns_user(self, receipt: Receipt, user: str) -> bool:
        """Whether a user has to do with it, as far as the caller may know."""
        hit = self.caller.sees(user) and any(victim.user == user for victim in receipt.victims)
        return receipt.user == user or hit

    def spell(self, job_id: str, index: int) -> str:
        """A task's id as people write it: the only task of a job goes by the job's."""
        job = self.rows.job(job_id)
        return task_id(job_id, job.spelled(index) if job is not None else -1)


def list_document(sight: ReceiptSight, wanted: ReceiptFilter, clock: Clock) -> Document:
    """Receipts, newest first, and what all of the window come to, as far as the caller may know."""
    known = [receipt for receipt in receipts(sight.state) if not receipt.is_move]
    found = [receipt for receipt in known if sight.wants(receipt, wanted)]
    page = [receipt for receipt in found if not wanted.before or number_of(receipt) < wanted.before]
    shown = page[: wanted.limit]
    since_ms = clock.now_ms - round(wanted.window_s * 1000)
    recent = [receipt for receipt in found if receipt.now_ms >= since_ms]
    return {
        "preemptions": sight.rows.each(lambda receipt: receipt_document(sight, receipt), shown),
        "next_cursor": str(number_of(shown[-1])) if len(page) > len(shown) else None,
        "statistics": statistics_document(sight, recent, wanted.window_s),
    }


def find_document(sight: ReceiptSight, receipt_id: str, clock: Clock) -> Document:
    """One receipt by its id, whole."""
    record = sight.state.ledger.get(("receipt", receipt_id))
    if not isinstance(record, Receipt) or record.is_move or not sight.sees(record):
        raise NotFound(f"there is no receipt {receipt_id!r}, or it is not yours: see `dray preemptions`")
    return receipt_document(sight, record, clock)


def receipt_document(sight: ReceiptSight, receipt: Receipt, clock: Clock | None = None) -> Document:
    """One receipt; with the time of day also when its waiting victims may come back at the earliest."""
    mine = sight.caller.sees(receipt.user)
    served_ms = receipt.served_at_ms - receipt.at_ms if receipt.served_at_ms else None
    return {
        "id": receipt.id,
        "status": receipt.status,
        "rule": receipt.rule,
        "kind": receipt.kind,
        "job_id": receipt.job_id if mine else None,
        "task_id": sight.spell(receipt.job_id, receipt.index) if mine else None,
        "user": receipt.user,
        "priority": receipt.priority,
        "queue": receipt.queue,
        "workers": list(receipt.workers),
        "fake": any(map(is_fake, receipt.workers)),
        "victims": sight.rows.each(
            lambda victim: _victim_document(sight, receipt, victim, clock), receipt.victims
        ),
        "lost_s": _seconds(sum(victim.lost_ms for victim in receipt.victims)),
        "decided_at": moment(receipt.at_ms),
        "served_at": moment(receipt.served_at_ms),
        "ended_at": moment(receipt.ended_at_ms),
        "wait_s": None if served_ms is None else _seconds(max(0, served_ms)),
    }


def _victim_document(sight: ReceiptSight, receipt: Receipt, victim: Victim, clock: Clock | None) -> Document:
    mine = sight.caller.sees(victim.user)
    attempt, task = sight.rows.attempt(victim.uid), sight.rows.task(victim.job_id, victim.index)
    state = _tell_state(sight, attempt, task)
    if not mine and state != STOPPING:
        state = GONE
    next_one = _next_attempt(sight, victim, attempt, task) if mine else None
    back_at_ms = 0
    if clock is not None and state == WAITING and receipt.status != "open":
        back_at_ms = _earliest_ms(sight.state, victim.job_id, clock)
    return {
        "job_id": victim.job_id if mine else None,
        "task_id": sight.spell(victim.job_id, victim.index) if mine else None,
        "user": victim.user if mine else None,
        "worker": victim.worker,
        "priority": victim.priority,
        "ran_s": _seconds(victim.ran_ms),
        "lost_s": _seconds(victim.lost_ms),
        "members": victim.members,
        "moved_to": victim.to,
        "saved_step": attempt.saved_step if mine and attempt is not None and attempt.saved_ms else None,
        "grace_s": victim.grace_s,
        "state": state,
        "gone_at": moment(attempt.ended_at_ms) if attempt is not None else None,
        "back_at": moment(next_one.started_at_ms) if next_one is not None else None,
        "back_on": next_one.worker if next_one is not None else "",
        "earliest_back_at": moment(back_at_ms),
    }


def _tell_state(sight: ReceiptSight, attempt: Attempt | None, task: Task | None) -> str:
    """How the victim stands now: still stopping, or what became of its task."""
    if attempt is not None and attempt.phase.live:
        return STOPPING
    if task is None:
        return GONE
    if task.state.final:
        return task.state.value
    if not task.current:
        return WAITING
    newest = sight.rows.attempt(task.current)
    return RUNNING if newest is not None and newest.phase is not Phase.ASSIGNED else STARTING


def _next_attempt(
    sight: ReceiptSight, victim: Victim, attempt: Attempt | None, task: Task | None
) -> Attempt | None:
    """The attempt in which the task came back; None while it has not."""
    if attempt is None or task is None or task.attempts <= attempt.no:
        return None
    known = {row.uid: row for row in sight.rows.attempts(victim.job_id, victim.index)}
    if (newest := sight.state.attempts.get(task.last_uid)) is not None:
        known[newest.uid] = newest
    later = [one for one in known.values() if one.no > attempt.no and one.started_at_ms]
    return min(later, key=lambda one: one.no, default=None)


def _earliest_ms(state: State, job_id: str, clock: Clock) -> int:
    """When the time limits of what runs leave room for a job again; 0 where they do not tell."""
    job = state.jobs.get(job_id)
    if job is None or job.barred:
        return 0
    rows = [row for row in range(state.columns.count) if state.columns.get("open", row)]
    starts = earliest(state, Rooms(state), state.asks(job.shape), rows[:MOST_ROWS])
    if not starts:
        return 0
    return clock.at_ms + max(0, max(start.at_ms for start in starts) - clock.now_ms)


def statistics_document(sight: ReceiptSight, receipts: Sequence[Receipt], window_s: float) -> Document:
    """What these receipts come to: how many by rule and outcome, whom they hit, what they cost."""
    waits = [
        max(0, receipt.served_at_ms - receipt.at_ms) for receipt in receipts if receipt.status == "served"
    ]
    victims = [victim for receipt in receipts for victim in receipt.victims]
    return {
        "window_s": window_s,
        "receipts": len(receipts),
        "victims": sum(victim.members for victim in victims),
        "moved": sum(1 for victim in victims if victim.to),
        "lost_s": _seconds(sum(victim.lost_ms for victim in victims)),
        "by_rule": dict(sorted(Counter(receipt.rule for receipt in receipts).items())),
        "by_status": dict(sorted(Counter(receipt.status for receipt in receipts).items())),
        "serve_p50_s": _seconds(round(median(waits))) if waits else None,
        "users": _user_lines(sight, receipts, victims),
    }


def _user_lines(
    sight: ReceiptSight, receipts: Sequence[Receipt], victims: Sequence[Victim]
) -> list[Document]:
    """The users with most lost, the caller alone where others are none of their business."""
    lost, stopped = Counter[str](), Counter[str]()
    for victim in victims:
        lost[victim.user] += victim.lost_ms
        stopped[victim.user] += victim.members
    made = Counter(receipt.user for receipt in receipts)
    names = [name for name in sorted({*stopped, *made}) if sight.caller.sees(name)]
    names.sort(key=lambda name: (-lost[name], -stopped[name]))
    return [
        {"user": name, "stopped": stopped[name], "lost_s": _seconds(lost[name]), "preempted": made[name]}
        for name in names[:TOP_USERS]
    ]


def _seconds(spent_ms: int) -> float:
    return spent_ms / 1000
