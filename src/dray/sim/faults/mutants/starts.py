"""Deliberate bugs around work that a worker is given and cannot start, or that is to start after other work there."""

from __future__ import annotations

from dray.sim.faults.mutants.mutants import Edit, Mutant

_ATTEMPTS = "dray.core.lifecycle.holding.attempts:"
_REFUSALS = "dray.core.lifecycle.holding.refusals:"
_QUARANTINES = "dray.core.lifecycle.holding.quarantines:"
_MACHINE = "dray.agent.decide.machine:Machine."
_READINESS = "dray.agent.decide.readiness:Readiness."


def _one(name: str, sentence: str, where: str, old: str, new: str) -> Mutant:
    return Mutant(name, sentence, (Edit(where, old, new),))


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
        "faulty-worker-kept",
        "A worker on which everything fails is given the next job all the same.",
        (Edit("dray.core.lifecycle.timers:_faulty", "if worker is None or", "if True or"),),
    ),
    Mutant(
        "quarantined-for-little",
        "Two jobs that fail take a worker out.",
        (Edit(_QUARANTINES + "find_fault", "enough = rules.quarantine_failures", "enough = 2"),),
    ),
    Mutant(
        "trial-lets-all-in",
        "A worker on trial is given as much as it asks for.",
        (Edit("dray.core.model.records.worker:usable_credit", "if worker.on_trial:", "if False:"),),
    ),
    Mutant(
        "handed-back-too-early",
        "An agent gives back what its supervisor may still start.",
        (Edit(_MACHINE + "_is_overdue", "attempt.start_by_ms + MARGIN_MS", "attempt.start_by_ms - 9000"),),
    ),
    Mutant(
        "lease-runs-from-the-start",
        "A lease is counted from when a worker began, and not from when the hub last heard of it.",
        (
            Edit(_MACHINE + "assigned", "self._contact.heard_ms if lease_s is not None else 0", "0"),
            Edit(_MACHINE + "assigned", "self._contact.heard_ms + 1000 * lease_s <= now_ms", "False"),
        ),
    ),
    Mutant(
        "output-forgotten-with-its-supervisor",
        "What ended as its supervisor died is told of, and what it printed is not sent.",
        (Edit(_MACHINE + "report", "if attempt.known else []", "if False else []"),),
    ),
    Mutant(
        "output-forgotten-unnamed",
        "What ended while its agent took it for unknown to the hub is told of, and what it printed is not sent.",
        (Edit("dray.agent.decide.attempts:ship_late", "if late else []", "if False else []"),),
    ),
    Mutant(
        "output-forgotten-with-its-agent",
        "A new agent takes for sent what ended before it, where the hub answers the result before the registration.",
        (Edit(_MACHINE + "attached", "(attempt.said, False)", "(attempt.said, True)"),),
    ),
    Mutant(
        "never-ready-again",
        "A worker that could start nothing once never tries again.",
        (Edit(_READINESS + "tries", "if self._probed_ms or not due:", "if True:"),),
    ),
)

BEHIND = (
    _one(
        "place-not-taken-over",
        "Whoever stood behind an attempt that has ended is forgotten with it.",
        _ATTEMPTS + "_let_go",
        "if not uid:",
        "if not ahead:",
    ),
    _one(
        "row-breaks",
        "When one leaves a row, those behind it are taken for the first of another.",
        _ATTEMPTS + "_let_go",
        'attempt.behind, follower.behind = "", ahead',
        'attempt.behind, follower.behind = "", ""',
    ),
    _one(
        "waiting-holds",
        "One that stands behind another holds a place of its own.",
        _ATTEMPTS + "hold",
        "if not attempt.behind:",
        "if True:",
    ),
    _one(
        "taken-over-not-counted",
        "A place that is taken over is nobody's in the accounts.",
        _ATTEMPTS + "_let_go",
        "account(state, job, follower, ask, 1, start=True)",
        "pass",
    ),
    _one(
        "silence-forgets-those-behind",
        "What runs on a lost worker in a place taken over is never given up.",
        "dray.core.lifecycle.timers:_silence",
        "attempts.with_followers(state, state.held.get(worker_id, ()))",
        "list(state.held.get(worker_id, ()))[:-1]",
    ),
)
