"""Deliberate bugs in holds, dependencies, edits and requeues: the fault simulation must notice each of them."""

from __future__ import annotations

from dray.sim.faults.mutants.mutants import Edit, Mutant

_CONTROL = "dray.core.lifecycle.happenings.edits:"
_REVISIONS = "dray.core.lifecycle.tasks.revisions:"
_JOBS = "dray.core.lifecycle.tasks.jobs:"
_RESULTS = "dray.core.lifecycle.tasks.results:"
_TIMERS = "dray.core.lifecycle.timers:"


def _one(name: str, sentence: str, where: str, old: str, new: str) -> Mutant:
    return Mutant(name, sentence, (Edit(where, old, new),))


CONTROL = (
    _one(
        "release-does-not-queue",
        "A released job finds no place in the line.",
        _CONTROL + "hold_changed",
        "jobs.join_all(state, job, clock)",
        "pass",
    ),
    Mutant(
        "hold-ignored",
        "A held job stands in line like any other.",
        (
            Edit(
                "dray.core.model.records.records:Job.barred",
                "self.held or bool(self.after)",
                "bool(self.after)",
            ),
        ),
    ),
    Mutant(
        "conditions-ignored",
        "A job that waits for others stands in line like any other.",
        (Edit("dray.core.model.records.records:Job.barred", "self.held or bool(self.after)", "self.held"),),
    ),
    _one(
        "followers-not-queued",
        "A job whose conditions are met finds no place in the line.",
        _JOBS + "settle",
        "join_all(state, waiting, clock)",
        "pass",
    ),
    _one(
        "followers-forgotten",
        "After a restart nobody remembers who waits for whom.",
        "dray.core.lifecycle.recovery:load",
        "dependencies.register(state, job)",
        "pass",
    ),
    _one(
        "ok-and-fail-swapped",
        "A job that waits for a success starts after a failure.",
        "dray.core.model.specs.dependency:is_met",
        'need.kind == "ok"',
        'need.kind == "fail"',
    ),
    _one(
        "broken-condition-ignored",
        "A condition that can no longer be met counts as met.",
        _JOBS + "settle",
        "if not broken:",
        "if True:",
    ),
    _one(
        "edit-leaves-entry",
        "An edited job is also placed from the line in which it stood before.",
        "dray.core.scheduling.turns.ranks:stands",
        "or (job.party, job.priority, job.shape) != line",
        "",
    ),
    _one(
        "edit-keeps-shape",
        "An edited job holds what it asked for before.",
        _REVISIONS + "_reshape",
        "state.shapes.take(asks_of_packed(packed))",
        "state.shapes.take(state.asks(before))",
    ),
    _one(
        "edit-not-sent",
        "A worker gets the spec as it was before the edit.",
        "dray.hub.workers.outbound:Runner._assign",
        "with_variant(unpack_spec(packed)",
        "with_variant(unpack_spec(job.original or packed)",
    ),
    _one(
        "edit-miscounts-queue",
        "A job that moves to another queue is still counted in the old one.",
        _REVISIONS + "revise",
        "state.backlog.count(job.queue, -job.waiting)",
        "pass",
    ),
    _one(
        "requeue-ends-task",
        "What is to be queued again ends for good.",
        _RESULTS + "conclude",
        'attempt.cancel == "requeued":',
        'attempt.cancel == "requeued" and False:',
    ),
    _one(
        "requeue-charged",
        "What is queued again on request counts as a failure.",
        _RESULTS + "conclude",
        'return _hand_back(state, job, task, attempt, clock, "requeued on request")',
        'task.failures += 1; return _hand_back(state, job, task, attempt, clock, "requeued on request")',
    ),
    _one(
        "requeue-before-gone",
        "What is queued again starts anew while the old attempt is still stopping.",
        _CONTROL + "requeue_requested",
        "effects += jobs.stop_attempt(state, attempt, REQUEUED, TIERS[job.tier].grace_s, clock)",
        "effects += jobs.stop_attempt(state, attempt, REQUEUED, TIERS[job.tier].grace_s, clock)"
        "; effects += jobs.requeue(state, job, task, clock, 'at once')",
    ),
    _one(
        "alternative-not-sent",
        "A worker gets the job without what its alternative changes.",
        "dray.hub.workers.outbound:Runner._assign",
        "with_variant(unpack_spec(packed), attempt.variant)",
        "unpack_spec(packed)",
    ),
    _one(
        "timeout-runs-while-barred",
        "The scheduling timeout of a held job runs out.",
        _TIMERS + "_wait",
        " or job.barred",
        "",
    ),
)
