"""What a task says of itself while it runs: how far it has come, and up to where its work is saved.

Progress is a signal and lives in memory. A save is a fact: it decides how much of the time limit is used up by an
attempt that is cut short, and how much work a preemption would throw away. Surprising rule: steps of one attempt only
grow; an older save that comes late, or twice, changes nothing.
"""

from __future__ import annotations

from dray.core.lifecycle.holding.attempts import measured
from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import AttemptSaved, Clock, Progressed
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.results import find
from dray.core.model.records.records import Attempt
from dray.core.model.records.worker import Presence, Progress

WINDOW_MS = 1000


def progressed(state: State, event: Progressed, clock: Clock) -> list[Effect]:
    """Keep the latest word of a task. What a worker says beyond its share within a second is left unread."""
    presence = state.presence[event.worker]
    presence.flooding = _is_over_share(presence, state.rules.progress_per_s, clock)
    attempt = state.attempts.get(event.uid)
    if attempt is None or attempt.worker != event.worker or not attempt.phase.live or presence.flooding:
        return []
    before = state.progress.get(attempt.uid, Progress())
    state.progress[attempt.uid] = Progress(
        step=before.step if event.step is None else event.step,
        fraction=before.fraction if event.fraction is None else event.fraction,
        note=before.note if event.note is None else event.note,
        at_ms=clock.at_ms,
    )
    if event.step is not None:
        name, told = state.jobs[attempt.job_id].name, state.experience.speeds.told
        measured(state, attempt, told(attempt.uid, name, event.step, clock.at_ms))
    return []


def _is_over_share(presence: Presence, most: int, clock: Clock) -> bool:
    if clock.now_ms - presence.told_since_ms >= WINDOW_MS:
        presence.told_since_ms, presence.told = clock.now_ms, 0
    presence.told += 1
    return presence.told > most


def is_news(attempt: Attempt, step: int) -> bool:
    """Whether a save says anything that is not known: of a live attempt that has started, and further on."""
    return attempt.phase.live and attempt.started and (step > attempt.saved_step or not attempt.saved_ms)


def saved(state: State, event: AttemptSaved, clock: Clock) -> list[Effect]:
    """The work of an attempt is safe up to a step; its run time up to then is no longer at stake."""
    attempt = find(state, event.worker, event.job_id, event.index, event.uid)
    if attempt is None or not is_news(attempt, event.step):
        return []
    ran_ms = clock.now_ms - event.age_ms - attempt.started_ms
    # Never 0, which stands for "nothing saved".
    attempt.saved_step, attempt.saved_ms = event.step, max(1, attempt.saved_ms, ran_ms)
    state.touched.attempts[attempt.uid] = None
    data = {"attempt": attempt.no, "step": event.step, "ran_ms": attempt.saved_ms}
    return [Note("task_saved", attempt.job_id, state.spell(attempt), attempt.worker, data)]
