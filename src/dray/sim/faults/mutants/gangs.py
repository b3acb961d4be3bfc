"""Deliberate bugs in how gangs are placed, started, broken up and charged, and services whose replicas are groups."""

from __future__ import annotations

from dray.sim.faults.mutants.mutants import Edit, Mutant

_GANGS = "dray.core.lifecycle.tasks.gangs:"
_CANCELS = "dray.core.lifecycle.happenings.cancels:"
_JOBS = "dray.core.lifecycle.tasks.jobs:"
_RESULTS = "dray.core.lifecycle.tasks.results:"
_WORKERS = "dray.core.lifecycle.happenings.workers:"
_REPLICAS = "dray.core.lifecycle.tasks.replicas:"


def _one(name: str, sentence: str, where: str, old: str, new: str) -> Mutant:
    return Mutant(name, sentence, (Edit(where, old, new),))


GANGS = (
    _one(
        "go-before-all-accepted",
        "A gang is told to start with its first acceptance.",
        _GANGS + "accepted",
        "_broken(state, job, attempt) or not _all_accepted(state, job, attempt)",
        "_broken(state, job, attempt)",
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
        _GANGS + "_is_over",
        "if not job.live:",
        "if not job.live or not _broken(state, job, attempt):",
    ),
    _one(
        "next-generation-early",
        "A broken gang is queued again while members of it still run.",
        _GANGS + "_is_over",
        "if not job.live:",
        "if not job.live or _broken(state, job, attempt):",
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
        _GANGS + "break_up",
        "state.touched.jobs[job.id] = state.touched.tasks[job.id, first.index] = None",
        "state.touched.tasks.pop((job.id, first.index), None)",
    ),
    _one(
        "ended-member-released",
        "Memory lets go of members that ended before their gang did.",
        "dray.core.lifecycle.recovery:release",
        "or groups.is_member(state, attempt)",
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
    Mutant(
        "half-a-gang-cancelled",
        "A cancel of one member lets the others go on.",
        (
            Edit(
                _CANCELS + "cancelled",
                "event.index >= 0 and (job.service or not job.gang)",
                "event.index >= 0",
            ),
            Edit(_CANCELS + "_cancel_group", "in job.group_of(index):", "in (index,):"),
        ),
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

GROUPS = (
    _one(
        "member-starts-again-alone",
        "A member of a service's group that ends is started again by itself.",
        _RESULTS + "conclude",
        "if job.gang:",
        "if job.gang and not job.service:",
    ),
    _one(
        "member-that-exits-is-waited-for",
        "A member of a service's group that exits well is waited for, as one of batch work is.",
        _GANGS + "member_ended",
        "(job.service or attempt.phase is not Phase.SUCCEEDED)",
        "attempt.phase is not Phase.SUCCEEDED",
    ),
    _one(
        "group-again-too-soon",
        "A service's group that broke is queued again while members of it still run.",
        _GANGS + "_is_over",
        "return job.service and not any(one.phase.live for one in groups.members(state, job, attempt.index))",
        "return job.service",
    ),
    _one(
        "group-end-counted-by-member",
        "The end of a group counts once for each of its members.",
        _REPLICAS + "_rest",
        "first.restarts + 1",
        "first.restarts + len(tasks)",
    ),
    _one(
        "half-a-group-ready",
        "A group is ready when its first member is.",
        _REPLICAS + "ready_since_ms",
        "any(health_of(state, job, member) != READY for member in group)",
        "health_of(state, job, group[0]) != READY",
    ),
    _one(
        "every-member-listed",
        "Callers are sent to members of a group that do not serve them.",
        _REPLICAS + "ready_replicas",
        "attempt.index % job.group_size == 0",
        "attempt.index >= 0",
    ),
    _one(
        "scaled-by-member",
        "A service that is scaled up gets as many members more as it should get groups.",
        "dray.core.lifecycle.services.updates:scaled",
        "(event.replicas - before) * job.group_size",
        "event.replicas - before",
    ),
    _one(
        "drain-sees-first-members",
        "A group stays on a worker that is drained unless its first member runs there.",
        "dray.core.lifecycle.services.steps:is_old",
        "for member in group)",
        "for member in group[:1])",
    ),
    _one(
        "half-a-group-leaves",
        "Of a group that is replaced only the first member is known to leave.",
        "dray.core.lifecycle.services.updates:_leave",
        "for task in groups.tasks_of(state, job, index):",
        "for task in groups.tasks_of(state, job, index)[:1]:",
    ),
)
