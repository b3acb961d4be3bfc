"""Attempts that wait for others: they give their slot and cores up meanwhile, and take them back before they go on.

Memory and cards stay theirs, since their process does. That one wants to go on is a signal, which its agent repeats
until it hears that it may; on its worker it goes before everything new.
"""

from __future__ import annotations

from dray.core.lifecycle.holding import attempts, lanes
from dray.core.lifecycle.state.effects import Effect, Note, Resume
from dray.core.lifecycle.state.events import AttemptResumed, AttemptYielded, Clock, ResumeAsked
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt


def may_yield(state: State, worker: str, uid: str) -> Attempt | None:
    """The attempt of a worker that may yield now: it lives and has not done so."""
    attempt = state.attempts.get(uid)
    if attempt is None or attempt.worker != worker or not attempt.phase.live or attempt.yielded:
        return None
    if attempt.behind:
        # What it runs in is still another's, by all that is known here.
        return None
    return attempt


def yielded(state: State, event: AttemptYielded, clock: Clock) -> list[Effect]:
    """Give a slot and cores up; a lane is not fed meanwhile."""
    attempt = may_yield(state, event.worker, event.uid)
    if attempt is None:
        return []
    attempt.yielded = True
    state.touched.attempts[attempt.uid] = None
    state.columns.lend(attempt.worker, state.ask(attempt), 1)
    return [Note("task_yielded", attempt.job_id, state.spell(attempt), attempt.worker)]


def resume_asked(state: State, event: ResumeAsked, clock: Clock) -> list[Effect]:
    """Remember who wants to go on; one that may already is told again."""
    attempt = state.attempts.get(event.uid)
    if attempt is None or attempt.worker != event.worker or not attempt.phase.live:
        return []
    if not attempt.yielded:
        return [Resume(attempt.worker, attempt.uid)]
    if attempt.uid not in state.resuming:
        state.resuming[attempt.uid] = None
        state.presence[attempt.worker].resuming += 1
        state.touch_worker(attempt.worker)
    return []


def has_room(state: State, attempt: Attempt) -> bool:
    """Whether the slot and the cores of an attempt that yielded are free on its worker."""
    columns, ask = state.columns, state.ask(attempt)
    row = columns.row_of[attempt.worker]
    free_slots = columns.get(f"{ask.pool}_total", row) - columns.get(f"{ask.pool}_live", row)
    free_cpu = columns.get("total_cpu", row) - columns.get("used_cpu", row)
    return free_slots > 0 and (not ask.cpu_milli or ask.cpu_milli <= free_cpu)


def resumed(state: State, event: AttemptResumed, clock: Clock) -> list[Effect]:
    """Let an attempt go on."""
    attempt = state.attempts.get(event.uid)
    if attempt is None or not attempt.phase.live or not attempt.yielded:
        return []
    attempt.yielded = False
    state.touched.attempts[attempt.uid] = None
    state.columns.lend(attempt.worker, state.ask(attempt), -1)
    attempts.stop_resuming(state, attempt)
    # What was held back on its worker while it waited may go on as well.
    lanes.wake_worker(state, attempt.worker)
    note = Note("task_resumed", attempt.job_id, state.spell(attempt), attempt.worker)
    return [Resume(attempt.worker, attempt.uid), note]
