"""Deliberate bugs in how calls are given into lanes, counted, sent back, stopped and recorded; and in yields."""

from __future__ import annotations

from dray.sim.faults.mutants.mutants import Edit, Mutant

_CALLS = "dray.core.lifecycle.tasks.calls:"
_LANES = "dray.core.lifecycle.holding.lanes:"
_FEEDING = "dray.core.scheduling.passes.lane_feeding:"
_YIELDS = "dray.core.lifecycle.happenings.yields:"


def _one(name: str, sentence: str, where: str, old: str, new: str) -> Mutant:
    return Mutant(name, sentence, (Edit(where, old, new),))


CALLS = (
    _one(
        "call-stays-in-lane",
        "A call that succeeded is counted and stays outstanding.",
        _CALLS + "_succeeded",
        "number = calls.pop(one, 0)",
        "number = calls.get(one, 0)",
    ),
    _one(
        "lane-takes-calls-along",
        "What a lane had not ended goes with it.",
        _CALLS + "_end_lane",
        "return effects + send_back(state, job, lane, back, clock, why) +",
        "return effects +",
    ),
    _one(
        "lost-call-free",
        "A call that its worker lost is not charged.",
        _CALLS + "charge_loss",
        "retries.charge_loss(job, task, (task,))",
        "retries.charge_loss(job, task, ())",
    ),
    _one(
        "retries-of-calls-ignored",
        "The first failure of a call is its result.",
        _LANES + "is_final",
        "return retries.is_last_failure(",
        "return True or retries.is_last_failure(",
    ),
    _one(
        "return-charged",
        "A call that goes back unbegun counts as failed.",
        _CALLS + "_try_again",
        'if why == "failed":',
        "if True:",
    ),
    _one(
        "earlier-try-frees-a-call",
        "The late end of an earlier try frees the place of a call that was cancelled and still runs.",
        _LANES + "outstanding",
        "elif known < 0 and no[place] >= -known:",
        "elif known < 0:",
    ),
    _one(
        "cut-call-lets-go",
        "A call that is cancelled by itself gives its place up while it still runs.",
        _CALLS + "cut",
        "calls[index] = -number",
        "del calls[index]",
    ),
    _one(
        "cancelled-calls-forgotten",
        "What is in the lanes of a cancelled job has no end.",
        _CALLS + "stop_all",
        "left = lanes.drop_calls(state, job, lane)",
        "left = lanes.drop_calls(state, job, lane) and {}",
    ),
    _one(
        "returned-call-in-no-line",
        "A call that goes back stands in no line.",
        _CALLS + "send_back",
        "state.queue_up(job, index)",
        "pass",
    ),
    _one(
        "frame-recorded-whole",
        "Results that do not count are kept with those that do.",
        "dray.hub.calls.results:_end",
        "body = _pick(_shorten(frame), found.places)",
        "body = _shorten(frame)",
    ),
    _one(
        "retried-failure-kept",
        "A failure that is tried again is kept as a result too.",
        _LANES + "finals",
        "if is_final(state, lane, one, said[place])",
        'if said[place] != "returned"',
    ),
    _one(
        "calls-counted-by-message",
        "Calls that are sent again are added again.",
        "dray.hub.decisions.calls:_grow",
        "fresh = max(0, len(body.args) - (known - body.first))",
        "fresh = len(body.args)",
    ),
    Mutant(
        "held-job-fed",
        "The lanes of a held job get more calls.",
        (
            Edit(_FEEDING + "may_feed", "or job.barred", ""),
            Edit(_FEEDING + "Supply.__init__", "0 if job.barred else job.waiting", "job.waiting"),
        ),
    ),
    _one(
        "yielded-lane-fed",
        "A lane whose call waits for others gets more.",
        _FEEDING + "may_feed",
        "lane.yielded or ",
        "",
    ),
    _one(
        "resumed-without-room",
        "Whoever yielded goes on though its slot is taken.",
        _YIELDS + "has_room",
        "return free_slots > 0 and",
        "return",
    ),
    _one(
        "yield-gives-nothing",
        "Whoever yields keeps its slot and cores.",
        _YIELDS + "yielded",
        "state.columns.lend(attempt.worker, state.ask(attempt), 1)",
        "pass",
    ),
    _one(
        "resume-never-granted",
        "Nobody who yielded gets its slot back.",
        _FEEDING + "_resume",
        "if has_room(state, state.attempts[uid]):",
        "if False:",
    ),
    _one(
        "call-s-end-not-told",
        "Whoever waits for one call does not hear of its end.",
        _CALLS + "ended",
        "if job.id in state.task_waiters:",
        "if False:",
    ),
    _one(
        "call-s-failure-will-do",
        "Whoever waits for a call to succeed starts after its failure too.",
        "dray.core.lifecycle.holding.dependencies:task_followers",
        "if not is_met(need, final)",
        "if False",
    ),
    _one(
        "lane-rows-shared",
        "The row of a lane changes after it was taken.",
        "dray.hub.engine.projection:_attempt_row",
        "dict(attempt.calls)",
        "attempt.calls",
    ),
    Mutant(
        "lost-calls-not-sent-again",
        "Calls whose message was lost are never sent again.",
        (
            Edit(
                "dray.core.lifecycle.happenings.workers:_keep_lane",
                "return [Assign(lane.worker, lane.uid)]",
                "return []",
            ),
            Edit(
                "dray.core.lifecycle.happenings.workers:resend_due",
                "and not (attempt.calls and attempt.phase.live)",
                "",
            ),
        ),
    ),
)
