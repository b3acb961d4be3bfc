"""Deliberate bugs around work that a worker is given and cannot start."""

from __future__ import annotations

from dray.sim.faults.mutants.mutants import Edit, Mutant

_REFUSALS = "dray.core.lifecycle.holding.refusals:"
_MACHINE = "dray.agent.decide.machine:Machine."
_READINESS = "dray.agent.decide.readiness:Readiness."

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
        "never-ready-again",
        "A worker that could start nothing once never tries again.",
        (Edit(_READINESS + "tries", "if self._probed_ms or not due:", "if True:"),),
    ),
)
