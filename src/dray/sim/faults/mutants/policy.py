"""Deliberate bugs in whose turn it is, what rules hold back, whose room is kept and who is stopped for whom;
in what providers cost, how they are doing, and who goes there all the same.
"""

from __future__ import annotations

from dray.sim.faults.mutants.mutants import Edit, Mutant

_HEALTH = "dray.core.lifecycle.providers.health:"
_PASS = "dray.core.scheduling.passes.planning:"
_GATES = "dray.core.scheduling.turns.gates:Gates."
_PARTIES = "dray.core.lifecycle.state.parties:"
_ATTEMPTS = "dray.core.lifecycle.holding.attempts:"
_PRECEDENCE = "dray.core.scheduling.turns.victim_rules:"
_MOVES = "dray.core.scheduling.claims.moving_aside:"
_CLAIMS = "dray.core.scheduling.claims.moving_room:claim_moves"
_KEPT = "dray.core.scheduling.claims.reservations:"
_VICTIMS = "dray.core.scheduling.claims.victims:"
_REGIME = "dray.core.lifecycle.happenings.policy:"
_LINES = "dray.core.lifecycle.state.lines:Backlog."
_JOBS = "dray.core.lifecycle.tasks.jobs:"
_RESULTS = "dray.core.lifecycle.tasks.results:"


def _one(name: str, sentence: str, where: str, old: str, new: str) -> Mutant:
    return Mutant(name, sentence, (Edit(where, old, new),))


RULES = (
    _one(
        "quota-forgets-the-pass",
        "What a pass has given out itself does not count for quotas, paces and caps.",
        _GATES + "room_at",
        "*self._taken.get(gate.key, (0, 0))",
        "0, 0",
    ),
    _one(
        "quota-counts-tasks",
        "A quota counts what ends and not what begins.",
        _PARTIES + "Gate.hold",
        "self.gpu_milli += sign * gpu_milli",
        "self.gpu_milli += min(sign, 0) * gpu_milli",
    ),
    _one(
        "amounts-ignored",
        "More cores, memory or tasks start at once than a quota allows.",
        _PARTIES + "AmountGate.room",
        "return max(0, self.limit - self.gpu_milli - taken_milli) // gpu_milli",
        "return ENDLESS",
    ),
    _one(
        "hard-budget-ignored",
        "Work starts over a hard budget.",
        _PARTIES + "QuotaGate.room",
        "if self.hard_ms and",
        "if False and",
    ),
    _one(
        "budget-forgets-what-ended",
        "Only what still runs counts for a budget.",
        _ATTEMPTS + "account",
        "if charge and isinstance",
        "if False and isinstance",
    ),
    _one(
        "gate-never-opens",
        "Nobody looks at the lines behind a gate when what held it shut has ended.",
        _ATTEMPTS + "account",
        "state.open_gate(gate.key)",
        "pass",
    ),
    _one(
        "gate-timer-not-set",
        "Nobody looks at a gate that time alone opens.",
        "dray.core.lifecycle.happenings.passes:pass_settled",
        'state.set_timer(opens_ms, "gate", gate)',
        "pass",
    ),
    _one(
        "token-not-taken",
        "A start takes nothing from its pace.",
        _PARTIES + "PaceGate.start",
        "self.tokens_ms -= self._token_ms",
        "pass",
    ),
    _one(
        "pace-without-end",
        "A pace that was not used saves up more than its burst.",
        _PARTIES + "PaceGate.tokens_at",
        "min(self._most_ms, self.tokens_ms + now_ms - self.since_ms)",
        "self.tokens_ms + now_ms - self.since_ms",
    ),
    _one(
        "cap-one-too-many",
        "One task more than a cap allows may run.",
        _PARTIES + "CapGate.room",
        "self.rule.most -",
        "self.rule.most + 1 -",
    ),
    _one(
        "regroup-forgets-running",
        "A new policy counts what waits and forgets what runs.",
        _REGIME + "regroup",
        "for uids in state.held.values():",
        "for uids in ():",
    ),
    _one(
        "sent-again-counted-apart",
        "What is sent again begins anew, and was counted from its first beginning.",
        _ATTEMPTS + "count_anew",
        "for sign in (-1, 1):",
        "attempt.assigned_ms = now_ms\n    for sign in ():",
    ),
    _one(
        "lines-of-a-shape-forgotten",
        "A line behind a gate is parked with its shape and stays so when the gate opens.",
        "dray.core.lifecycle.state.lines:Backlog.open",
        "self.wake(key.shape)",
        "pass",
    ),
)

KEPT = (
    _one(
        "keeper-admits-everybody",
        "Room that is kept for one task is given to whoever asks.",
        _KEPT + "Keeper.admits",
        "admitted = spare.holds(ask, devices)",
        "admitted = True",
    ),
    _one(
        "reservation-ignores-limits",
        "Work may pass a reservation however long it runs.",
        _KEPT + "Keeper.admits",
        "self._window.until_ms <= self._start_ms",
        "self._window.until_ms <= self._start_ms + 10**9",
    ),
    _one(
        "one-keeper-replaces-another",
        "Two kept parts of one worker: only the last is guarded.",
        _KEPT + "Keepers.admits",
        "for keeper in self._all)",
        "for keeper in self._all[-1:])",
    ),
    _one(
        "keeper-not-told",
        "A keeper lets in as if nobody had been let in before.",
        _KEPT + "Keeper.took",
        "self._spare.take(ask, devices)",
        "pass",
    ),
    _one(
        "reservation-outlives-its-job",
        "Room stays kept for a job that no longer waits.",
        _KEPT + "find_stale",
        "if waits and all(",
        "if True or all(",
    ),
    _one(
        "owner-waits-its-turn",
        "Whoever stands before the owner of kept room is refused it, and so nobody gets it.",
        _PASS + "_Pass.run",
        "self._serve_owners()",
        "pass",
    ),
    _one(
        "promise-moved-back",
        "A reservation moves to a later start.",
        _KEPT + "_improve",
        "<= kept.start_ms:",
        "> 0:",
    ),
    _one(
        "promised-twice",
        "A job that has a reservation of its user's is given its queue's too.",
        "dray.core.scheduling.turns.reservation_rights:Slots.of",
        "if kept_for(self._draft, job) is not None:",
        "if False:",
    ),
    _one(
        "promise-handed-on",
        "Whoever is due gets the reservation that another has.",
        "dray.core.scheduling.turns.reservation_rights:Slots.of",
        'return "" if slot in self._draft.reservations else slot',
        "return slot",
    ),
    _one(
        "room-left-untold",
        "Room that a pass leaves to others is not looked at until something else happens.",
        "dray.core.scheduling.passes.turn:take_pass",
        "again = decided.cut or bool(state.columns.roomier)",
        "again = decided.cut",
    ),
)

IDLING = (
    _one(
        "idle-before-its-time",
        "What idles is warned of, demoted or stopped as soon as it does.",
        "dray.core.lifecycle.happenings.idling:find_steps",
        "0 < rules.limit_s(step) <= idle_s",
        "0 < rules.limit_s(step)",
    ),
)
VICTIMS = (
    _one(
        "equal-band-stopped",
        "A task may stop another of its own band.",
        _PRECEDENCE + "_by_priority",
        "other.priority < job.priority",
        "other.priority <= job.priority",
    ),
    _one(
        "longer-work-stops-shorter",
        "Of two services the longer one may stop the shorter.",
        _PRECEDENCE + "_by_service",
        "> mine",
        "!= mine",
    ),
    _one(
        "share-not-left",
        "A user is stopped below the share of whoever it is stopped for.",
        _PRECEDENCE + "_by_share",
        " and (whole - gone) / weight >= mine",
        "",
    ),
    _one(
        "min-run-ignored",
        "A task may be stopped right after its start.",
        _VICTIMS + "Search._may_fall",
        "self.terms.min_run_s * 1000",
        "0",
    ),
    _one(
        "once-only-stopped",
        "A task that may start once is stopped for another.",
        _VICTIMS + "Search._starts_once",
        "unpack_spec(self._state.jobs[job_id].spec).at_most_once",
        "False",
    ),
    _one(
        "limits-ignored",
        "One job may be stopped any number of times.",
        _VICTIMS + "Search._spares",
        "of_job < limits.per_job and ",
        "",
    ),
    _one(
        "victim-room-given-away",
        "The room that victims leave is anybody's.",
        _KEPT + "Watch.preempt",
        "if row is None or not _is_open(state, row):",
        "if True:",
    ),
    _one(
        "victim-frees-at-once",
        "A victim's room counts as free as soon as it is asked to stop.",
        _JOBS + "stop_attempt",
        "attempt.cancel, attempt.grace_s, attempt.cancel_ms = reason, grace_s, clock.now_ms",
        "attempt.cancel, attempt.grace_s, attempt.cancel_ms = reason, grace_s, clock.now_ms\n"
        "    if reason == 'preempted': attempts.hold(state, attempt, -1)",
    ),
    _one(
        "victim-charged",
        "A task that was stopped for another is charged a failure.",
        _RESULTS + "conclude",
        "task.preemptions += 1",
        "task.failures += 1",
    ),
    _one(
        "victim-goes-last",
        "A task that was stopped for another goes back to its old place.",
        "dray.core.lifecycle.state.state:State.place_of",
        'ahead = -1 if task is not None and task.ahead and name != "srsf" else 0',
        "ahead = 0",
    ),
    _one(
        "receipt-outlives-cancel",
        "Room stays kept for a task that was cancelled.",
        _JOBS + "_ended",
        '*receipts.close(state, job, "rolled_back", clock), ',
        "",
    ),
    _one(
        "receipt-forgotten",
        "A hub that starts again forgets whose room it keeps.",
        "dray.core.lifecycle.holding.receipts:recall",
        "record.is_open",
        "False",
    ),
    _one(
        "shared-card-counted-whole",
        "A shared card counts as a whole one while it is given back.",
        "dray.core.lifecycle.state.columns:Columns.hold",
        "_add(used, index, sign * ask.gpu_milli)",
        "_add(used, index, sign * (ask.gpu_milli if sign > 0 else 1000))",
    ),
    _one(
        "memory-not-counted",
        "Memory is given out over and over.",
        "dray.core.lifecycle.state.columns:Columns.hold",
        'data["used_mem"][row] += sign * ask.memory_bytes',
        "pass",
    ),
    _one(
        "named-resource-not-claimed",
        "One pass gives a named resource to several tasks.",
        "dray.core.scheduling.capacity.remaining:Rooms.claim",
        "if ask.resources:",
        "if False:",
    ),
)

MOVERS = (
    _one(
        "moved-without-room",
        "A task is moved aside that has room nowhere else.",
        _MOVES + "Aside.find",
        "return None",
        "continue",
    ),
    Mutant(
        "move-budget-ignored",
        "Any number of tasks may be moved.",
        (
            Edit(
                _VICTIMS + "Search._within_limits",
                "moved <= self._aside.most - self._hit.moves",
                "True",
            ),
            Edit(
                _VICTIMS + "Search._by_moving",
                "self._aside.most <= self._hit.moves",
                "not self._aside.most",
            ),
        ),
    ),
    _one(
        "moved-over-and-over",
        "The same task is moved again and again.",
        _MOVES + "Aside.may_move",
        "if key in state.moves or key in moved:",
        "if key in state.moves:",
    ),
    Mutant(
        "moved-room-given-away",
        "The room that a task moves to is anybody's.",
        (
            Edit(_CLAIMS, "rooms.claim(row, ask, devices)", "pass"),
            Edit(_CLAIMS, "rooms.claim(row, part, cards)", "pass"),
        ),
    ),
    _one(
        "moved-room-reckoned-with",
        "Whoever looks for victims counts on room that a task which moves has yet to get.",
        "dray.core.scheduling.capacity.remaining:Rooms.owe",
        "self.owed.setdefault(row, []).append((ask, devices))",
        "pass",
    ),
    _one(
        "moved-into-the-room-it-makes",
        "A task is moved to the very room that it makes.",
        _MOVES + "_beside",
        "spare.take(claim.ask, claim.devices)",
        "pass",
    ),
    _one(
        "better-work-moved",
        "A task may be moved aside for one of lower priority.",
        _MOVES + "Aside.may_move",
        " or mine.priority > job.priority",
        "",
    ),
    _one(
        "gang-member-moved",
        "One member of a gang is moved as if it were on its own.",
        _MOVES + "Aside.may_move",
        "attempt.lane or mine.gang or",
        "attempt.lane or",
    ),
)

POLICIES = (*RULES, *KEPT, *IDLING, *VICTIMS, *MOVERS)

# Something happens to a line, and the order that is kept from pass to pass does not hear of it.
UNHEARD = (
    _one(
        "joining-unheard",
        "Who joins a line that others of its shape stand beside is not put in order.",
        _LINES + "add",
        "self.stir(key)",
        "pass",
    ),
    _one(
        "hold-unheard",
        "A line stands where a job stood that is held.",
        "dray.core.lifecycle.happenings.edits:hold_changed",
        "state.stir(job)",
        "pass",
    ),
    _one(
        "opened-line-unheard",
        "A line that a gate lets through again is not put back in order.",
        _LINES + "open",
        "self.stir(key)",
        "pass",
    ),
    _one(
        "opened-cap-unheard",
        "A line whose first array may run one more is not put back in order.",
        _ATTEMPTS + "_book",
        "state.rouse(job)",
        "state.backlog.wake(job.shape)",
    ),
    _one(
        "capped-stays-due",
        "Whose array runs as many tasks as it may stays due for a reservation.",
        _ATTEMPTS + "_book",
        "state.backlog.doubt(state.line_of(job))",
        "pass",
    ),
    _one(
        "shut-out-stays-due",
        "Who stands behind a gate stays due for a reservation.",
        _LINES + "shut",
        "self.doubt(key)",
        "pass",
    ),
)

PROVIDERS = (
    _one(
        "bad-provider-gets-work",
        "Work goes to a bad provider though it fits elsewhere.",
        "dray.core.scheduling.placement.candidates:Walk._set_aside",
        "if shunned is None:",
        "if True:",
    ),
    _one(
        "health-without-hysteresis",
        "A provider is well again as soon as it is a little less ill.",
        _HEALTH + "judge",
        "share < lines[record.health][1]",
        "share < lines[record.health][0]",
    ),
    _one(
        "well-at-once",
        "A bad provider is well again without being degraded before.",
        _HEALTH + "judge",
        "better = HEALTHS[before - 1]",
        "better = HEALTHS[0]",
    ),
    _one(
        "price-of-the-wrong-hour",
        "An attempt is charged by the price list in force when it ends.",
        _ATTEMPTS + "learn_end",
        "if attempt.rate:",
        "if state.policy.providers and not _price(state, attempt):",
    ),
    _one(
        "paid-twice",
        "What a lost attempt has cost is charged once more when it went on.",
        _ATTEMPTS + "refund",
        "if attempt.rate:",
        "if False:",
    ),
    _one(
        "gone-and-counted",
        "A worker that fell silent goes on to add worker-days.",
        "dray.core.lifecycle.happenings.workers:silent",
        "providers.follow(state, event.worker)",
        "pass",
    ),
)
