"""Deliberate bugs in how tasks stand behind others, take their places over and are given back."""

from __future__ import annotations

from dray.sim.faults.mutants.mutants import Edit, Mutant

_ATTEMPTS = "dray.core.lifecycle.holding.attempts:"


def _one(name: str, sentence: str, where: str, old: str, new: str) -> Mutant:
    return Mutant(name, sentence, (Edit(where, old, new),))


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
