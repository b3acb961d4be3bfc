"""Deliberate bugs around what tasks save and what that leaves of their time limit."""

from __future__ import annotations

from dray.sim.faults.mutants.mutants import Edit, Mutant

_CHECKPOINTS = "dray.core.lifecycle.happenings.saves:"

SAVES = (
    Mutant(
        "save-for-anothers-attempt",
        "A worker may say of another's attempt that it saved its work.",
        (
            Edit(
                "dray.hub.workers.inbound:_progress",
                'find(state, worker, job_id, index, body.attempt or "")',
                'state.attempts.get(body.attempt or "")',
            ),
            Edit(
                _CHECKPOINTS + "saved",
                "find(state, event.worker, event.job_id, event.index, event.uid)",
                "state.attempts.get(event.uid)",
            ),
        ),
    ),
    Mutant(
        "save-counted-twice",
        "An attempt that was given up and came back leaves what it had saved counted, and counts it again at its end.",
        (Edit("dray.core.lifecycle.tasks.jobs:adopt", "task.used_ms -= attempt.saved_ms", "pass"),),
    ),
    Mutant(
        "save-not-counted",
        "What an attempt saved before it was cut short does not count against the time limit.",
        (Edit("dray.core.lifecycle.tasks.jobs:requeue", "task.used_ms += attempt.saved_ms", "pass"),),
    ),
    Mutant(
        "retry-gets-less",
        "A retry after a failure has only what earlier attempts left of the time limit.",
        (Edit("dray.core.lifecycle.tasks.jobs:requeue", "task.used_ms = 0", "pass"),),
    ),
    Mutant(
        "save-of-the-future",
        "A save counts all of the hub's time, not that of its attempt.",
        (
            Edit(
                _CHECKPOINTS + "saved",
                "clock.now_ms - event.age_ms - attempt.started_ms",
                "clock.now_ms - event.age_ms",
            ),
        ),
    ),
)
