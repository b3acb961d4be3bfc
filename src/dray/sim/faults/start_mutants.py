"""Deliberate bugs around work that a worker is given and cannot start."""

from __future__ import annotations

from dray.sim.faults.mutants import Edit, Mutant

_REFUSALS = "dray.core.lifecycle.refusals:"
_MACHINE = "dray.agent.machine:Machine."
_READINESS = "dray.agent.readiness:Readiness."

STARTS = (
    Mutant(
        "refusal-charged",
        "What a worker could not start counts as a failure of the task.",
        (
            Edit(
                _MACHINE + "_hand_back",
                "**unstarted(error)",
                '"state": "failed", "exit_class": "refused", "error": error',
            ),
        ),
    ),
    Mutant(
        "refusals-unpunished",
        "A worker that starts nothing of what it is given is given the next task at once.",
        (Edit(_REFUSALS + "refused", "if attempt.cancel or", "if True or"),),
    ),
    Mutant(
        "pause-never-ends",
        "A worker that was paused once gets no work any more.",
        (Edit(_REFUSALS + "resume", "presence.paused, presence", "_, presence"),),
    ),
    Mutant(
        "handed-back-too-early",
        "An agent gives back what its supervisor may still start.",
        (Edit(_MACHINE + "_is_overdue", "attempt.start_by_ms + MARGIN_MS", "attempt.start_by_ms - 9000"),),
    ),
    Mutant(
        "never-handed-back",
        "An agent waits for ever for a supervisor that does not start what it was given.",
        (
            Edit(
                _MACHINE + "_is_overdue",
                "return held and now_ms > attempt.start_by_ms + MARGIN_MS",
                "return False",
            ),
            Edit("dray.core.lifecycle.timers:_accept", "if clock.now_ms < ready_ms:", "if True:"),
        ),
    ),
    Mutant(
        "never-ready-again",
        "A worker that could start nothing once never tries again.",
        (Edit(_READINESS + "tries", "if self._probed_ms or not due:", "if True:"),),
    ),
    Mutant(
        "readiness-said-once",
        "A worker says once that it is ready again, and never repeats it where that got lost.",
        (Edit(_READINESS + "repeats", "unsettled = bool(self.reason) or self.trial", "return False"),),
    ),
    Mutant(
        "calls-wait-for-no-runner",
        "Calls stay at a worker that cannot start a process for them.",
        (Edit("dray.agent.lane_service:LaneService._serve", "if self.pool.barred:", "if False:"),),
    ),
)
