"""Who holds what, who waits how long, and is that fair: one row for each user that has work or has had some.

Shares are told among those who have work now: whoever holds twice their share is told so only while others are there.
What others do is shown by `visibility`; with sums they are one row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dray.core.lifecycle.holding.receipts import receipts
from dray.core.lifecycle.state.effects import Note
from dray.core.lifecycle.state.parties import usage_of
from dray.core.lifecycle.state.state import State
from dray.core.model.specs.resources import WHOLE
from dray.core.scheduling.explain.reason import span
from dray.hub.access.caller import Caller
from dray.hub.answers.slices import work_off
from dray.hub.decisions.holdings import Holding, holding_steps
from dray.hub.documents.queue_rates import QueueStatistics
from dray.hub.documents.records import Document
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.views.board import SLICE_S
from dray.hub.views.sight import OTHERS, Sight, sight_of

STEP_JOBS = 512
DAY_MS = 86_400_000
MOST_USERS = 1_000
# Told in the headline from so much more or less than a share on.
UNFAIR = 1.5
SUMMED = (
    "users",
    "running",
    "gpus_held",
    "used",
    "waiting",
    "share",
    "starts_per_min_1h",
    "stopped",
    "lost_s",
)


class UsersView:
    """One hub's users; how long their starts had waited is kept for an hour, as with queues."""

    def __init__(self, engine: Engine, clock: HubClock) -> None:
        self._engine, self._clock = engine, clock
        self._waits = QueueStatistics(clock.read().now_ms)

    def hear(self, note: Note) -> None:
        """Count a committed start for its user."""
        if note.type == "task_started" and (job := self._engine.state.jobs.get(note.job_id)) is not None:
            self._waits.note_start(job.user, note.data["waited_ms"], self._clock.read().now_ms)

    async def show(self, caller: Caller) -> Document:
        """Everybody that a caller may know of, those who hold most first."""
        return await work_off(self._engine, lambda state: self._steps(state, caller), SLICE_S)

    def _steps(self, state: State, caller: Caller) -> Iterator[Document]:
        answer: Document = {}
        waiting: dict[str, list[int]] = {}
        ids = list(state.jobs)
        for first in range(0, len(ids), STEP_JOBS):
            yield answer
            for job_id in ids[first : first + STEP_JOBS]:
                job = state.jobs.get(job_id)
                if job is not None and job.waiting and not job.barred:
                    line = waiting.setdefault(job.user, [0, job.submitted_at_ms])
                    line[0] += job.waiting
        held: dict[str, Holding] = {}
        for found in holding_steps(state):
            yield answer
            held = found["user"]
        now = self._clock.read()
        harm = _count_harm(state, now.now_ms)
        names = {*waiting, *held, *harm, *state.parties.users, *state.policy.fair_share.weights, caller.user}
        shares = _shares(state, {*waiting, *held})
        rows = []
        for place, user in enumerate(sorted(names)):
            if place % 64 == 0:
                yield answer
            rows.append(
                self._row(state, user, held.get(user, Holding()), waiting.get(user), shares, harm, now)
            )
        rows.sort(key=lambda row: (-row["gpus_held"], -row["running"], row["user"]))
        shown = show_rows(rows, sight_of(state, caller))[:MOST_USERS]
        yield {"headline": say_users(shown), "users": shown, "left_out": max(0, len(rows) - MOST_USERS)}

    def _row(
        self,
        state: State,
        user: str,
        held: Holding,
        line: list[int] | None,
        shares: dict[str, float],
        harm: dict[str, list[int]],
        now: Any,
    ) -> Document:
        rates, gpus = self._waits.rates(user, now.now_ms), held.gpu_milli / WHOLE
        policy, stopped = state.policy, harm.get(user, [0, 0])
        return {
            "user": user,
            "users": 1,
            "weight": policy.fair_share.weights.get(user, 1),
            "share": round(shares.get(user, 0.0), 4),
            "running": held.tasks,
            "gpus_held": gpus,
            "used": round(usage_of(policy, state.ledger, state.parties.users, user, now.now_ms), 3),
            "waiting": line[0] if line else 0,
            "oldest_wait_s": max(0, now.at_ms - line[1]) / 1000 if line else None,
            "starts_per_min_1h": rates.starts_1h,
            "wait_p50_s": rates.wait_p50_s,
            "wait_p90_s": rates.wait_p90_s,
            "stopped": stopped[0],
            "lost_s": stopped[1] / 1000,
        }


def _shares(state: State, active: set[str]) -> dict[str, float]:
    weights = {user: state.policy.fair_share.weights.get(user, 1.0) for user in active}
    total = sum(weights.values())
    return {user: weight / total for user, weight in weights.items()} if total else {}


def _count_harm(state: State, now_ms: int) -> dict[str, list[int]]:
    """How much was stopped for others within a day, and what of its run time was lost, by user."""
    found: dict[str, list[int]] = {}
    for receipt in receipts(state):
        if receipt.now_ms < now_ms - DAY_MS or receipt.is_move:
            continue
        for victim in receipt.victims:
            line = found.setdefault(victim.user, [0, 0])
            line[0] += victim.members
            line[1] += victim.lost_ms
    return found


def show_rows(rows: list[Document], sight: Sight) -> list[Document]:
    """What a caller may see of them: with sums all others are one row, which stands last."""
    gpus = sum(row["gpus_held"] for row in rows)
    shown: list[Document] = []
    others: Document | None = None
    for row in rows:
        mine = row["gpus_held"] / gpus / row["share"] if gpus and row["share"] else None
        row = {**row, "times_share": None if mine is None else round(mine, 2)}
        name = sight.name(row["user"])
        if name == row["user"]:
            shown.append(row)
        elif name and others is None:
            others = {**row, "user": OTHERS, "weight": None, "wait_p50_s": None, "wait_p90_s": None}
        elif name and others is not None:
            for field in SUMMED:
                others[field] = round(others[field] + row[field], 4)
            oldest = [wait for wait in (others["oldest_wait_s"], row["oldest_wait_s"]) if wait is not None]
            others["oldest_wait_s"] = max(oldest, default=None)
    if others is not None:
        share = others["share"]
        others["times_share"] = round(others["gpus_held"] / gpus / share, 2) if gpus and share else None
        shown.append(others)
    return shown


def say_users(rows: list[Document]) -> str:
    """Who uses, who waits, is it fair?"""
    named = [row for row in rows if row["user"] != OTHERS]
    said = []
    most = max(named, key=lambda row: row["times_share"] or 0, default=None)
    if most is not None and (most["times_share"] or 0) >= UNFAIR:
        said.append(f"{most['user']} holds {most['times_share']:.1f} × their share")
    late = max(named, key=lambda row: row["oldest_wait_s"] or 0, default=None)
    if late is not None and late["waiting"]:
        times = f" with {late['times_share']:.1f} × theirs" if late["times_share"] is not None else ""
        said.append(f"{late['user']} waits {span(round(late['oldest_wait_s'] * 1000))}{times}")
    if not said:
        running = sum(row["running"] for row in rows)
        return f"{running:,} task{' runs' if running == 1 else 's run'}, and nobody waits."
    return f"{'; '.join(said)}."
