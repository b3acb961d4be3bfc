"""Deliberate bugs in how gangs are placed, started, broken up and charged."""

from __future__ import annotations

from dray.sim.faults.mutants.mutants import Edit, Mutant

_GANGS = "dray.core.lifecycle.tasks.gangs:"
_CANCELS = "dray.core.lifecycle.happenings.cancels:"
_JOBS = "dray.core.lifecycle.tasks.jobs:"
_RESULTS = "dray.core.lifecycle.tasks.results:"
_WORKERS = "dray.core.lifecycle.happenings.workers:"


def _one(name: str, sentence: str, where: str, old: str, new: str) -> Mutant:
    return Mutant(name, sentence, (Edit(where, old, new),))


GANGS = (
    _one(
        "go-before-all-accepted",
        "A gang is told to start with its first acceptance.",
        _GANGS + "accepted",
        "job.broken or not _all_accepted(state, job)",
        "job.broken",
    ),
    _one(
        "member-concluded-alone",
        "A member that ends is retried or recorded by itself.",
        _RESULTS + "conclude",
        "if job.gang:",
        "if False:",
    ),
    _one(
        "generation-not-counted",
        "A gang that is tried again stays in its first generation.",
        _JOBS + "planned",
        "job.generation += whole",
        "job.generation = 1",
    ),
    _one(
        "gang-succeeds-early",
        "The first member that succeeds decides for all.",
        _GANGS + "_conclude_if_over",
        "if job.live:",
        "if job.live and job.broken:",
    ),
    _one(
        "next-generation-early",
        "A broken gang is queued again while members of it still run.",
        _GANGS + "_conclude_if_over",
        "if job.live:",
        "if job.live and not job.broken:",
    ),
    _one(
        "prepared-member-left",
        "A member that was accepted is not stopped when its gang is released.",
        _GANGS + "_dismiss",
        'return jobs.stop_attempt(state, attempt, "gang", TIERS[job.tier].grace_s if attempt.go else 0, clock)',
        "return []",
    ),
    Mutant(
        "go-said-once",
        "The word to start is sent once, and may be lost.",
        (
            Edit("dray.core.lifecycle.timers:_go", "return [GoDue(uid)]", "return []"),
            Edit(
                _WORKERS + "_keep",
                "return [Go(attempt.worker, attempt.uid)] if gangs.waits_for_go(attempt) else []",
                "return []",
            ),
        ),
    ),
    _one(
        "barrier-not-written",
        "The rows do not show that a gang passed its barrier.",
        _GANGS + "_open_barrier",
        "state.touched.attempts[member.uid] = None",
        "pass",
    ),
    _one(
        "break-not-written",
        "The rows do not show that a generation broke.",
        _GANGS + "_break",
        "state.touched.jobs[job.id] = None",
        "state.touched.jobs.pop(job.id, None)",
    ),
    _one(
        "ended-member-released",
        "Memory lets go of members that ended before their gang did.",
        "dray.core.lifecycle.recovery:release",
        "or gangs.is_member(state, attempt)",
        "",
    ),
    _one(
        "ended-member-not-recalled",
        "A hub that starts does not find the members that ended before their gang did.",
        "dray.hub.engine.recovery:Fold.__init__",
        "(task.queued or task.current)",
        "task.queued",
    ),
    Mutant(
        "lost-member-adopted",
        "A lost member is taken back by itself while its gang waits.",
        (
            Edit(_JOBS + "adopt", "if job.gang:", "if False:"),
            Edit(_WORKERS + "_report", " and not state.jobs[attempt.job_id].gang", ""),
            Edit(
                "dray.core.lifecycle.holding.attempts:adoptable",
                " and not state.jobs[attempt.job_id].gang",
                "",
            ),
        ),
    ),
    _one(
        "gang-failure-charged-by-member",
        "A generation that fails is charged to the task that failed alone.",
        _GANGS + "_judge",
        "retries.after_failure(state, job, first, breaker, tasks)",
        "retries.after_failure(state, job, first, breaker, tasks[breaker.index : breaker.index + 1])",
    ),
    _one(
        "gang-loss-free",
        "A loss costs a gang nothing.",
        _GANGS + "_judge",
        "if how == LOST and ran:",
        "if False:",
    ),
    _one(
        "cancel-forgets-ended-members",
        "A cancelled gang leaves the members without a result that had ended.",
        _CANCELS + "cancelled",
        "range(job.cursor) if job.gang or job.service else live",
        "live",
    ),
    _one(
        "half-a-gang-cancelled",
        "A cancel of one member lets the others go on.",
        _CANCELS + "cancelled",
        "event.index >= 0 and not job.gang",
        "event.index >= 0",
    ),
    _one(
        "start-not-waited-for",
        "An agent starts a member of a gang as soon as it has it.",
        "dray.agent.decide.machine:Machine.assigned",
        "lease_s, message.gang, start_by_ms)",
        "lease_s, None, start_by_ms)",
    ),
    _one(
        "forgotten-member-held-ready",
        "A member that waits for a hub which has forgotten it holds its ports for good.",
        "dray.agent.decide.attempts:let_forgotten_go",
        "if not attempt.listed or attempt.known",
        "if True or attempt.known",
    ),
)
