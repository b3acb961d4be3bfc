"""The list of deliberate bugs, by the part of the product they are planted in."""

from __future__ import annotations

from dray.sim.faults.mutants.calls import CALLS
from dray.sim.faults.mutants.control import CONTROL
from dray.sim.faults.mutants.gangs import GANGS, GROUPS
from dray.sim.faults.mutants.hubs import GATEWAYS, HUBS
from dray.sim.faults.mutants.mutants import Edit, Mutant
from dray.sim.faults.mutants.policy import POLICIES, PROVIDERS, UNHEARD
from dray.sim.faults.mutants.ports import PORTS
from dray.sim.faults.mutants.programs.leases import LEASES
from dray.sim.faults.mutants.programs.workloads import WORKLOADS
from dray.sim.faults.mutants.saves import SAVES
from dray.sim.faults.mutants.services import SERVICES, USES
from dray.sim.faults.mutants.shy import SHY
from dray.sim.faults.mutants.starts import BEHIND, STARTS

_TURN = "dray.hub.engine.turns:Conductor.turn"
_FOLD = "dray.hub.engine.recovery:Fold.take"
_BUILD = "dray.hub.engine.projection:build_projection"
_INBOUND = "dray.hub.workers.inbound:"
_COMMANDS = "dray.hub.decisions.commands:"
_RESULTS = "dray.core.lifecycle.tasks.results:"
_REVISIONS = "dray.core.lifecycle.tasks.revisions:"
_RETRIES = "dray.core.lifecycle.holding.retries:"
_CANCELS = "dray.core.lifecycle.happenings.cancels:"
_JOBS = "dray.core.lifecycle.tasks.jobs:"
_WORKERS = "dray.core.lifecycle.happenings.workers:"
_TIMERS = "dray.core.lifecycle.timers:"
_RECOVERY = "dray.core.lifecycle.recovery:"
_COLUMNS = "dray.core.lifecycle.state.columns:Columns."
_ROOMS = "dray.core.scheduling.capacity.remaining:Rooms."
_MACHINE = "dray.agent.decide.machine:Machine."


def _one(name: str, sentence: str, where: str, old: str, new: str) -> Mutant:
    return Mutant(name, sentence, (Edit(where, old, new),))


TURNS = (
    _one(
        "answer-before-commit",
        "A client hears its answer before the turn is durable.",
        _TURN,
        "        yield commit",
        "        yield Answer(gathered.answers)\n        yield commit",
    ),
    _one(
        "effects-before-commit",
        "Messages to workers leave before the turn is durable.",
        _TURN,
        "        yield commit",
        "        yield Deliver(gathered.effects)\n        yield commit",
    ),
    _one(
        "plan-not-logged",
        "Placements change the state and are not among the facts.",
        "dray.hub.engine.turns:Gathered.fold",
        "if is_fact(item):",
        'if is_fact(item) and kind.__name__ != "PlanDecided":',
    ),
    _one(
        "log-tail-not-folded",
        "Recovery reads the rows and skips what they had not caught up with.",
        _FOLD,
        "apply(self.state, fact, Clock(entry.now_ms, entry.at_ms))",
        "pass",
    ),
    _one(
        "rows-ahead-of-log",
        "Rows claim to show one turn more than they do.",
        _BUILD,
        "applied_seq=seq,",
        "applied_seq=seq + 1,",
    ),
    _one(
        "live-attempts-not-written",
        "Rows of attempts are written only once they have ended.",
        _BUILD,
        "for uid in touched.attempts if uid in state.attempts",
        "for uid in touched.attempts if uid in state.attempts and not state.attempts[uid].phase.live",
    ),
    _one(
        "epoch-not-raised",
        "A hub that starts takes over the epoch of the one before.",
        "dray.hub.store.memory:MemoryStore.begin_epoch",
        "self.file.epoch + 1",
        "self.file.epoch",
    ),
    _one(
        "epoch-not-checked",
        "A hub whose store was taken over goes on writing.",
        "dray.hub.store.memory:MemoryStore._check_epoch",
        "if self.epoch != self.file.epoch:",
        "if False:",
    ),
    _one(
        "idle-stale-hub-stays",
        "A hub that lost its store and has nothing to write goes on serving its workers.",
        "dray.hub.housekeeping:note_lost_epoch",
        'audit=(AuditRecord(clock.at_ms, "", "", "epoch_lost", "", ""),)',
        "",
    ),
    _one(
        "equal-epoch-trusted",
        "A restored hub that counts up to an epoch its workers know draws the same uids again.",
        _INBOUND + "is_outdated",
        " or (body.max_epoch_seen == epoch and not heard)",
        "",
    ),
    _one(
        "idempotency-key-ignored",
        "A submit that is sent again under its key makes another job.",
        _COMMANDS + "_known_by_key",
        "if not key:",
        "if True:",
    ),
    _one(
        "full-disk-ignored",
        "New jobs are taken on while the hub's disk is full.",
        _COMMANDS + "submit",
        'check_space(sources.low_space, "new jobs")',
        "pass",
    ),
    _one(
        "stale-session-heard",
        "Messages of a session that was replaced still count.",
        _INBOUND + "is_let_in",
        "presence is not None and presence.session == session",
        "presence is not None",
    ),
)

RESULTS = (
    _one(
        "foreign-attempts-allowed",
        "A worker may speak for the attempts of others.",
        _RESULTS + "find",
        "attempt.worker != worker or ",
        "",
    ),
    Mutant(
        "duplicate-recorded-twice",
        "A result that comes again is concluded again.",
        (
            Edit(
                _RESULTS + "record",
                "if not attempt.phase.live:",
                "if attempt.phase in (Phase.LOST, Phase.REVOKED):",
            ),
            Edit(
                _RESULTS + "record",
                "if task.current != attempt.uid:",
                "if task.current not in ('', attempt.uid):",
            ),
        ),
    ),
    _one(
        "superseded-recorded",
        "An attempt that is no longer current decides the task all the same.",
        _RESULTS + "record",
        "if task.current != attempt.uid:",
        "if False:",
    ),
    _one(
        "unstarted-loss-charged",
        "A loss is charged though user code never ran.",
        _RESULTS + "_conclude_loss",
        "if not attempt.started:",
        "if False:",
    ),
    _one(
        "failure-not-charged",
        "A failure does not use up a retry.",
        _RESULTS + "conclude",
        "retries.after_failure(state, job, task, attempt, (task,))",
        "retries.after_failure(state, job, task, attempt, ())",
    ),
    _one(
        "one-retry-less",
        "A task gets one retry less than it asked for.",
        _RETRIES + "is_last_failure",
        "failures > job.retries",
        "failures >= job.retries",
    ),
    _one(
        "outgrown-card-again",
        "A job that ran out of GPU memory asks for the same card again.",
        _REVISIONS + "outgrow",
        "ask_beyond(job.spec, vram_bytes)",
        "job.spec",
    ),
    _one(
        "one-loss-less",
        "A task is given up one loss too early.",
        _RETRIES + "charge_loss",
        "task.losses <= job.losses_allowed",
        "task.losses < job.losses_allowed",
    ),
    _one(
        "at-most-once-ignored",
        "A task that may start once is started again after a loss.",
        _RETRIES + "charge_loss",
        "task.losses <= job.losses_allowed",
        "task.losses <= max(1, job.losses_allowed)",
    ),
    Mutant(
        "revoked-not-stopped",
        "An assignment that was taken back is not taken from its worker.",
        (
            Edit(
                _RESULTS + "revoked",
                '[Cancel(attempt.worker, state.spell(attempt), attempt.uid, "revoked", 0)]',
                "[]",
            ),
            Edit(
                _RESULTS + "accepted",
                '[*effects, Cancel(event.worker, state.spell(attempt), attempt.uid, "revoked", 0)]',
                "effects",
            ),
        ),
    ),
    _one(
        "start-not-recorded",
        "Nobody notes that user code has begun.",
        _RESULTS + "mark_started",
        "attempt.started = True",
        "attempt.started = False",
    ),
)

JOBS = (
    _one(
        "cancel-leaves-the-rest",
        "A cancelled job still gets its tasks placed that had not been.",
        _CANCELS + "cancelled",
        "    if job.untouched:",
        "    if False:",
    ),
    _one(
        "cancel-lets-run",
        "A cancelled task is ended for the record and its attempt goes on.",
        _CANCELS + "_cancel_task",
        "effects += jobs.stop_attempt(state, attempt, reason, _grace_s(job, event), clock)",
        "pass",
    ),
    _one(
        "queued-twice",
        "A task that goes back to the line is counted twice.",
        _JOBS + "requeue",
        "job.requeued += 1",
        "job.requeued += 2",
    ),
    _one(
        "newer-attempt-overlooked",
        "A lost attempt is taken back although a newer one runs.",
        _JOBS + "adopt",
        "task.last_uid != attempt.uid or not task.queued or ",
        "",
    ),
    _one(
        "holes-miscounted",
        "Tasks cancelled one by one are counted among the waiting for ever.",
        _JOBS + "take_waiting",
        "job.holes -= index - job.cursor",
        "job.holes -= 0",
    ),
    _one(
        "open-array-ends",
        "An open array ends while it may still grow.",
        _JOBS + "_derive",
        "job.ended < job.total or job.open",
        "job.ended < job.total",
    ),
    _one(
        "growth-not-queued",
        "Members that join an open array later find no place in the line.",
        _JOBS + "extended",
        "state.queue_up(job)",
        "pass",
    ),
    Mutant(
        "live-entity-released",
        "Memory lets go of attempts that still run.",
        (
            Edit(_RECOVERY + "release", "or groups.is_member(state, attempt)", ""),
            Edit(
                _RECOVERY + "release",
                "not attempt.phase.live and not attempts.adoptable",
                "not attempts.adoptable",
            ),
        ),
    ),
    _one(
        "array-limit-ignored",
        "An array runs more tasks at once than its own limit.",
        "dray.core.scheduling.passes.planning:_Pass._wanted",
        "min(most, job.limit - job.live - self._taken.get(job.id, 0))",
        "most",
    ),
)

WORKERS = (
    _one(
        "missing-kept",
        "What a worker came back without is believed to run on.",
        "dray.core.lifecycle.happenings.reconcile:reconcile",
        "ASK if asks else LOSE",
        "ASK if asks else KEEP",
    ),
    _one(
        "unaccepted-lost",
        "An assignment that was under way is given up instead of sent again.",
        "dray.core.lifecycle.happenings.reconcile:reconcile",
        "again = phase is Phase.ASSIGNED or",
        "again =",
    ),
    _one(
        "unaccepted-taken-for-gone",
        "One that was asked to stop before its worker spoke of it is believed gone when its worker registers.",
        "dray.core.lifecycle.happenings.reconcile:reconcile",
        "asks = uid in unanswered and same_journal",
        "asks = False",
    ),
    _one(
        "quarantine-kills",
        "Live work that the hub does not know is stopped.",
        "dray.core.lifecycle.happenings.reconcile:_judge",
        "return QUARANTINE",
        "return STOP",
    ),
    _one(
        "late-registration-believed",
        "A registration that arrives twice testifies about what came after it.",
        _WORKERS + "_reconcile",
        "() if event.again else attempts.with_followers(",
        "attempts.with_followers(",
    ),
    _one(
        "credit-added",
        "Readiness adds to the credit instead of setting it.",
        _WORKERS + "credit_set",
        "= event.credits, event.credits,",
        "= presence.credit + event.credits, event.credits,",
    ),
    _one(
        "flapping-tolerated",
        "Two machines under one name may throw each other out for ever.",
        _WORKERS + "session_opened",
        "if len(presence.takeovers) < state.rules.flap_takeovers:",
        "if True:",
    ),
    _one(
        "life-sign-missed",
        "Messages do not count as signs of life.",
        _WORKERS + "heard",
        "_hear(presence, clock)",
        "pass",
    ),
    Mutant(
        "drain-ignored",
        "A drained worker gets new work.",
        (
            Edit(_COLUMNS + "set_presence", "presence.suspect or worker.draining or", "presence.suspect or"),
            Edit("dray.core.scheduling.capacity.matching:presence", "if room.draining:", "if False:"),
        ),
    ),
    _one(
        "drain-without-end",
        "A worker that was drained until a moment stays drained.",
        "dray.core.lifecycle.timers:_drain",
        'return [WorkerDrained(worker_id, False, reason="its time is over", faults=worker.faults)]',
        "return []",
    ),
)

ROOM = (
    _one(
        "lost-wake-up",
        "Nobody looks at waiting work when an attempt ends and frees its place.",
        _COLUMNS + "hold",
        "if sign < 0:",
        "if False:",
    ),
    _one(
        "stale-standing",
        "A kept score outlives a change of its worker's room: whoever was full stays so for that shape.",
        "dray.core.scheduling.placement.kept_keys:keep_keys",
        "for row in dict.fromkeys(changed):",
        "for row in ():",
    ),
    Mutant(
        "reported-slots-trusted",
        "Free slots are what the worker last said, not what its live attempts leave.",
        (
            Edit(
                "dray.core.scheduling.capacity.remaining:_free_slots",
                "total - live if in_use < total else 0",
                "total - in_use",
            ),
            Edit(
                _ROOMS + "usable",
                'np.maximum(view[f"{pool}_in_use"][:count], view[f"{pool}_live"][:count])',
                'view[f"{pool}_in_use"][:count]',
            ),
        ),
    ),
    _one(
        "slots-counted-up-only",
        "A counter of live attempts never comes down again.",
        _COLUMNS + "hold",
        "data[_LIVE[ask.pool]][row] += sign",
        "data[_LIVE[ask.pool]][row] += max(sign, 0)",
    ),
    _one(
        "card-given-twice",
        "One pass gives the same card to two tasks.",
        _ROOMS + "claim",
        "left.used[index] = left.used.get(index, 0) + ask.gpu_milli",
        "pass",
    ),
)

TIMERS = (
    _one(
        "grace-forgets-losses",
        "A loss that falls due within the start grace is looked at much later.",
        _TIMERS + "_silence",
        "later.append(grace_ends_ms)",
        "pass",
    ),
    _one(
        "start-grace-ignored",
        "Losses are decided right after a start.",
        _TIMERS + "_silence",
        "if clock.now_ms - state.started_ms < rules.start_grace_ms:",
        "if False:",
    ),
    _one(
        "brake-ignored",
        "Losses are decided while most workers fall silent at once.",
        _TIMERS + "brake",
        "return state.braked or len(fresh)",
        "return False and len(fresh)",
    ),
    _one(
        "loss-never-decided",
        "A worker that is gone keeps its tasks for ever.",
        _TIMERS + "_silence",
        "if over:",
        "if False:",
    ),
    _one(
        "service-timer-ignored",
        "A service is given up as late as a batch task, or a batch task as early.",
        _JOBS + "default_lost_after_ms",
        'if spec.type == "service"',
        'if spec.type == "batch"',
    ),
    _one(
        "acceptance-not-watched",
        "An assignment that nobody accepts waits for ever.",
        _TIMERS + "_accept",
        "return [AttemptRevoked(uid,",
        "return [] and [AttemptRevoked(uid,",
    ),
    _one(
        "wait-never-ends",
        "The scheduling timeout never fires.",
        _TIMERS + "_wait",
        "return [WaitTimedOut(job_id, reasons(job_id))]",
        "return []",
    ),
    _one(
        "limit-not-kept",
        "Nobody stops what a base-only worker runs past its limit.",
        _TIMERS + "_limit",
        "return [LimitPassed(uid)] if live else []",
        "return []",
    ),
    _one(
        "stop-asked-once",
        "A request to stop that was lost is not repeated.",
        _TIMERS + "_stop",
        "return [StopDue(uid)]",
        "return []",
    ),
)

AGENT = (
    _one(
        "result-not-resent",
        "An agent sends a result once and hopes.",
        _MACHINE + "resend",
        "if not self.registered:",
        "if True:",
    ),
    _one(
        "finished-not-reported",
        "An agent does not tell what ended while no hub was there.",
        _MACHINE + "registration",
        "if attempt.result is not None",
        "if False",
    ),
    _one(
        "limit-not-passed-on",
        "An agent runs tasks without their time limit.",
        _MACHINE + "assigned",
        "None if message.remaining_time >= FOREVER_NS else message.remaining_time / 1e9",
        "None",
    ),
    _one(
        "lease-not-kept",
        "An agent runs fenced tasks without a lease.",
        _MACHINE + "assigned",
        "message.lease_s * LEASE_SHARE or None",
        "None",
    ),
    _one(
        "lease-too-long",
        "A lease outlasts the hub's patience.",
        _MACHINE + "assigned",
        "message.lease_s * LEASE_SHARE or None",
        "message.lease_s * 2 or None",
    ),
    _one(
        "unknown-stop-unanswered",
        "An agent says nothing about an attempt that it does not have.",
        _MACHINE + "cancelled",
        'return [Tell("job_result", never_started(message.task_id, message.attempt))]',
        "return []",
    ),
    _one(
        "epoch-forgotten",
        "An agent does not remember the newest hub it has seen.",
        _MACHINE + "acked",
        "self.max_epoch = ack.epoch",
        "pass",
    ),
)

MUTANTS: tuple[Mutant, ...] = (
    *TURNS,
    *RESULTS,
    *JOBS,
    *WORKERS,
    *ROOM,
    *TIMERS,
    *AGENT,
    *GANGS,
    *GROUPS,
    *SAVES,
    *PORTS,
    *PROVIDERS,
    *CONTROL,
    *UNHEARD,
    *POLICIES,
    *BEHIND,
    *CALLS,
    *SHY,
    *STARTS,
    *SERVICES,
    *USES,
    *HUBS,
    *GATEWAYS,
    *WORKLOADS,
    *LEASES,
)
