"""Deliberate bugs around services: replicas that do not go on, rest wrongly, or are taken for well; and jobs that use
them, started without or never again.
"""

from __future__ import annotations

from dray.sim.faults.mutants.mutants import Edit, Mutant

_REPLICAS = "dray.core.lifecycle.tasks.replicas:"
_HEALTH = "dray.core.lifecycle.tasks.health:"
_USES = "dray.core.lifecycle.tasks.uses:"
_STEPS = "dray.core.lifecycle.services.steps:"
_UPDATED = "dray.core.lifecycle.services.updates:"
_ROLLOUTS = "dray.core.lifecycle.holding.rollouts:"


def _one(name: str, sentence: str, where: str, old: str, new: str) -> Mutant:
    return Mutant(name, sentence, (Edit(where, old, new),))


_UPDATES = (
    _one(
        "surge-ignored",
        "All replicas of a new revision are started at once.",
        _STEPS + "decide",
        "found.aim + found.rules.max_surge",
        "2 * found.aim + found.rules.max_surge",
    ),
    _one(
        "settle-ignored",
        "An old replica goes as soon as a new one has been ready for a moment.",
        _STEPS + "Rollout.is_settled",
        "return one.ready and now_ms - one.since_ms >= self.settle_ms",
        "return one.ready",
    ),
    _one(
        "ready-ones-go-first",
        "Of old replicas those go first that serve, and those stay that do not.",
        _STEPS + "_leave_old",
        "(one.ready, one.task.revision",
        "(not one.ready, one.task.revision",
    ),
    _one(
        "one-too-few",
        "One replica more than may be missing is stopped for an update.",
        _STEPS + "_leave_old",
        "max(0, found.aim - found.rules.max_unavailable)",
        "max(0, found.aim - found.rules.max_unavailable - 1)",
    ),
    _one(
        "leaving-replica-listed",
        "A replica that is replaced is sent requests until it stops.",
        _REPLICAS + "health_of",
        "if state.tasks[job.id, attempt.index].leaving_ms:",
        "if attempt.phase is Phase.REVOKED:",
    ),
    _one(
        "drain-left-out",
        "A replica that is replaced is stopped at once, with what it is asked.",
        _UPDATED + "_leave",
        "not unpack_spec(job.spec).replacing.drain_s:",
        "unpack_spec(job.spec).replacing.drain_s >= 0:",
    ),
    _one(
        "drain-cut-short",
        "A replica that is replaced is stopped right after it gets no more requests.",
        _STEPS + "decide",
        "now_ms - task.leaving_ms >= found.drain_ms",
        "now_ms > task.leaving_ms",
    ),
    _one(
        "bad-revision-waited-for",
        "A revision that does not get ready is waited for, for ever.",
        _STEPS + "_conclude",
        "if job.barred or now_ms < job.stepped_ms + timeout_ms:",
        "if now_ms < job.stepped_ms + 1000 * timeout_ms:",
    ),
    _one(
        "given-up-too-soon",
        "A revision is rolled back before its time to get ready is over.",
        _STEPS + "_conclude",
        "now_ms < job.stepped_ms + timeout_ms",
        "now_ms < job.stepped_ms + timeout_ms // 4",
    ),
    _one(
        "whole-too-soon",
        "An update is done once one replica of the new revision is settled.",
        _STEPS + "_conclude",
        "if not others and settled >= found.aim:",
        "if settled >= min(1, found.aim):",
    ),
    _one(
        "old-replica-by-new-spec",
        "An old replica that starts again in the middle of an update runs the new command.",
        _ROLLOUTS + "spec_of",
        "return job.spec if known is None else known.spec",
        "return job.spec",
    ),
    _one(
        "old-shape-forgotten",
        "A hub that was started anew thinks that old replicas hold what new ones ask for.",
        "dray.core.lifecycle.recovery:recall",
        "rollouts.shape_of(state, state.jobs[attempt.job_id], attempt.revision)",
        "state.jobs[attempt.job_id].shape",
    ),
    _one(
        "old-shape-in-line",
        "An old replica that has ended waits in the line of new ones, which ask for something else.",
        _ROLLOUTS + "is_over",
        "(task.leaving_ms > 0 or shape_of(state, job, task.revision) != job.shape)",
        "task.leaving_ms > 0",
    ),
    _one(
        "drain-spares-services",
        "Replicas stay on a worker that is drained.",
        _ROLLOUTS + "is_moving",
        "worker.draining and not worker.faults",
        "worker.draining and worker.faults > 0",
    ),
    _one(
        "update-forgotten",
        "A hub that was started anew forgets which services are updated.",
        "dray.core.lifecycle.recovery:wake_up",
        "rollouts.watch(state, job_id, clock.now_ms)",
        "pass",
    ),
    _one(
        "scale-lost-in-update",
        "A size that is given in the middle of an update is forgotten.",
        _UPDATED + "scaled",
        "_aim(state, job, event.replicas, clock)",
        "_aim(state, job, job.aim, clock)",
    ),
    _one(
        "rollback-stays",
        "A revision that is rolled back goes on.",
        _UPDATED + "abandoned",
        "_switch(state, job, back.number, keep_of_the_job(back.spec, job.spec), clock)",
        "_switch(state, job, number, job.spec, clock)",
    ),
)


SERVICES = (
    _one(
        "replica-ends",
        "A replica that exits well has ended for good.",
        "dray.core.lifecycle.tasks.results:conclude",
        "if job.service:",
        "if job.service and attempt.phase is not Phase.SUCCEEDED:",
    ),
    _one(
        "rest-not-doubled",
        "A replica that keeps ending is tried again every second.",
        _REPLICAS + "_rest",
        "rules.restart_ms << min(first.restarts, 20)",
        "rules.restart_ms",
    ),
    Mutant(
        "rest-cut-short",
        "A replica that has ended is queued again at once.",
        (
            Edit(_REPLICAS + "_rest", "state.set_timer(first.again_ms,", "state.set_timer(clock.now_ms,"),
            Edit(
                "dray.core.lifecycle.timers:_replica",
                "0 < task.again_ms <= clock.now_ms",
                "task.again_ms > 0",
            ),
        ),
    ),
    _one(
        "rest-forgotten",
        "A hub that was started anew forgets which replicas rest.",
        _REPLICAS + "arm_rests",
        "if job.resting:",
        "if job.resting and not state.started_ms:",
    ),
    _one(
        "crash-loop-unsaid",
        "A replica that keeps ending is not said to.",
        _REPLICAS + "_rest",
        "restarts, ends_ms, looping",
        "restarts, ends_ms, False",
    ),
    _one(
        "serving-ones-scaled-away",
        "Of fewer replicas those go first that serve, and those stay that do not.",
        _STEPS + "_leave_fresh",
        "(one.ready, found.is_settled",
        "(not one.ready, found.is_settled",
    ),
    _one(
        "lost-replica-charged",
        "A replica that comes back from a silent worker is let off a loss that it was never charged.",
        "dray.core.lifecycle.tasks.jobs:adopt",
        "if attempt.started and not job.service:",
        "if attempt.started:",
    ),
    Mutant(
        "health-of-anothers-replica",
        "A worker may say of another's replica that it is well.",
        (
            Edit(
                "dray.hub.workers.inbound:_health",
                'find(state, worker, job_id, index, body.attempt or "")',
                'state.attempts.get(body.attempt or "")',
            ),
            Edit(
                _HEALTH + "health_changed",
                "find(state, event.worker, event.job_id, event.index, event.uid)",
                "state.attempts.get(event.uid)",
            ),
        ),
    ),
    _one(
        "stopping-replica-listed",
        "A replica that was asked to stop is still sent requests.",
        _REPLICAS + "health_of",
        "if attempt.cancel or attempt.phase is Phase.STOPPING or not attempt.phase.live:",
        "if attempt.phase is Phase.REVOKED:",
    ),
    _one(
        "unchecked-replica-ready",
        "A replica with checks counts as ready before they have said so.",
        _REPLICAS + "_is_checked",
        "job.group_size) is not None",
        "job.group_size) is None",
    ),
    _one(
        "not-live-ignored",
        "A replica that does not live by its checks goes on.",
        _HEALTH + "health_changed",
        "if gives_up or not event.live:",
        "if gives_up:",
    ),
    _one(
        "third-time-ignored",
        "A worker that knows no more may say for ever that a replica is not well.",
        _HEALTH + "health_changed",
        "attempt.ills >= state.rules.most_ills",
        "attempt.ills > 100 * state.rules.most_ills",
    ),
    _one(
        "stop-spares-resting",
        "A service that is stopped keeps its replicas that rest.",
        "dray.core.lifecycle.happenings.cancels:cancelled",
        "if job.gang or job.service else live",
        "if job.gang else live",
    ),
    *_UPDATES,
)

USES = (
    _one(
        "use-never-opens",
        "Whoever waits for a service is not told when it becomes ready.",
        _USES + "find_changes",
        "yield UseChanged(user, uses, True)",
        "continue",
    ),
    _one(
        "use-never-closes",
        "Jobs go on starting when a service that they use is gone.",
        _USES + "find_changes",
        "if not unserved or note != before:",
        "if unserved and note != before:",
    ),
    _one(
        "unready-service-counts",
        "A service counts as ready as soon as it is there.",
        _USES + "missing",
        "not ready_replicas(state, found[0])",
        "found[0].state.final",
    ),
    _one(
        "one-of-two-services",
        "Of several services that a job uses the first is enough.",
        _USES + "missing",
        "for name in uses:",
        "for name in tuple(uses)[:1]:",
    ),
    _one(
        "unshared-service-used",
        "A job may use a service that is not shared with its user.",
        _USES + "_may_use",
        "return shared and not job.state.final",
        "return not job.state.final",
    ),
    _one(
        "unserved-in-line",
        "A job whose service is not ready stands in line.",
        "dray.core.model.records.records:Job.barred",
        " or self.unserved",
        "",
    ),
    _one(
        "use-forgotten-at-restart",
        "A hub that was started anew does not know who waits for a service.",
        "dray.core.lifecycle.holding.using:recall",
        "if job.uses:",
        "if job.uses and not job.unserved:",
    ),
    _one(
        "late-user-unserved",
        "Whoever comes when others use a service already waits for its next change.",
        "dray.core.lifecycle.holding.using:register",
        "state.jobs[next(iter(group))].unserved if group else True",
        "True",
    ),
)
