"""Deliberate bugs in workloads: their gates, purses, counts and results."""

from __future__ import annotations

from dray.sim.faults.mutants.mutants import Edit, Mutant

_VERBS = "dray.core.lifecycle.workloads.verbs:"
_COUNTING = "dray.core.lifecycle.counts.counting:"
_PARTIES = "dray.core.lifecycle.state.parties:"
_LANES = "dray.core.scheduling.passes.lane_feeding:"


def _one(name: str, sentence: str, where: str, old: str, new: str) -> Mutant:
    return Mutant(name, sentence, (Edit(where, old, new),))


WORKLOADS = (
    _one(
        "pause-shuts-no-gate",
        "A workload that nothing bounded is paused, and its jobs go on in the lines that they share with others.",
        _VERBS + "_follow",
        "_regroup(state, tally)",
        "pass",
    ),
    _one(
        "pause-feeds-lanes",
        "Lanes of a workload that is paused are given calls.",
        _LANES + "is_shut",
        "tally.is_shut(state.now_ms)",
        "False",
    ),
    _one(
        "pause-stops-nothing",
        "A workload that is to pause and stop lets go on what runs.",
        _VERBS + "switched",
        "if event.verb == PAUSE and event.stop:",
        "if False:",
    ),
    _one(
        "start-opens-nothing",
        "What waited behind the gate of a paused workload is not looked at when that is started again.",
        _VERBS + "_follow",
        'state.open_gate(str(GateKey(rule, "workload", tally.record.id)))',
        "pass",
    ),
    _one(
        "width-of-one-pass",
        "What runs of a workload is not counted where its width is asked for, only what the pass adds.",
        _PARTIES + "WidthGate.room",
        "width - self.live - taken",
        "width - taken",
    ),
    _one(
        "purse-of-what-ended",
        "What still runs takes nothing from a purse.",
        _PARTIES + "Tally.used_ms",
        "self.record.used_ms + self.gpu_milli * now_ms - self.starts",
        "self.record.used_ms",
    ),
    _one(
        "purse-never-shut",
        "An empty purse is told of, and keeps nothing from starting.",
        _PARTIES + "PurseGate.room",
        "self.rule.record.terms.budget.bounds and self.rule.is_empty(now_ms)",
        "False",
    ),
    _one(
        "purse-forgotten-at-restart",
        "After a restart nobody looks at a purse until something starts.",
        "dray.core.lifecycle.recovery:wake_up",
        "counting.watch_purse(state, tally)",
        "pass",
    ),
    _one(
        "spent-stops-nothing",
        "An empty purse that is to stop what runs stops nothing.",
        _VERBS + "spent",
        "if record.terms.budget.when_spent == STOP:",
        "if False:",
    ),
    _one(
        "used-twice",
        "What ends is charged to its workload, and counted as if it ran on.",
        _COUNTING + "hold",
        "tally.hold(sign, gpus_of(ask), attempt.rate, attempt.assigned_ms)",
        "if sign > 0:\n        tally.hold(sign, gpus_of(ask), attempt.rate, attempt.assigned_ms)",
    ),
    _one(
        "counted-anew-after-a-restart",
        "A job that is read from its row is counted once more.",
        _COUNTING + "recall",
        "tally.jobs[job.id] = counts_of(job)",
        "tally.jobs[job.id] = _NOTHING",
    ),
    _one(
        "ended-and-not-over",
        "A sealed workload whose last job ends is not over.",
        _COUNTING + "settle",
        "return conclude(state, tally, clock) if tally is not None else []",
        "return []",
    ),
    _one(
        "members-side-by-side",
        "A gang does not see how its own members lie.",
        "dray.core.scheduling.placement.placer:Distributed.gather",
        "self.lies.add(row, sign)",
        "pass",
    ),
    _one(
        "cancelled-jobs-go-on",
        "Jobs of a workload that is cancelled go on.",
        _VERBS + "_cancel",
        "for job in _jobs(state, tally):",
        "for job in ():",
    ),
)
