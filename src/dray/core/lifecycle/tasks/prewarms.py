"""Workers that get ready for a task before it is theirs: who was told to, and how often that was worth it.

None of it is durable: a hub that comes back foresees anew. Who is likely next where is for scheduling to say; here it
is written down, and judged by what happens: a worker that got a task with what it was to have was told rightly.
Surprising rule: what a worker has cannot be unsaid by dropping a hint; only its own word does.
"""

from __future__ import annotations

from dray.core.lifecycle.state.effects import Effect, GetReady
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.experience import Needs, needs_of
from dray.core.lifecycle.state.pass_events import Foreseen, WarmSeen
from dray.core.lifecycle.state.state import Prewarm, State
from dray.core.model.records.records import Job

SENT, USED, WASTED, LOST = "sent", "used", "wasted", "lost"


def foreseen(state: State, event: Foreseen, clock: Clock) -> list[Effect]:
    """Tell workers to get ready, and others that they need not any more."""
    effects: list[Effect] = []
    for worker, needs in event.dropped:
        known = _strike_out(state, worker, needs, WASTED)
        if known is not None:
            effects.append(GetReady(worker, known.job_id, known.user, needs, over=True))
    for worker, job_id, needs in event.wanted:
        told = Prewarm(job_id, state.jobs[job_id].user, clock.now_ms)
        state.prewarms.setdefault(worker, {})[needs] = told
        _count(state, SENT)
        effects.append(GetReady(worker, job_id, told.user, needs))
    for line, again in event.looked:
        # Behind those that were not looked at this time.
        state.eyed.pop(line, None)
        if again:
            state.eyed[line] = None
    state.foresee_ms = event.again_ms
    if state.eyed or state.prewarms:
        state.set_timer(event.again_ms, "foresee", "")
    return effects


def took(state: State, worker: str, job: Job) -> None:
    """A worker has got a task: what it was told of that is worth it."""
    told, needs = state.prewarms.get(worker), needs_of(job)
    if not told or needs is None:
        return
    wanted = {*needs.tokens}
    for other in [other for other in told if wanted & {*other.tokens}]:
        _strike_out(state, worker, other, USED)


def gone(state: State, worker: str) -> None:
    """A worker has left, or comes back as another: whatever it was told is of no meaning, and nobody's mistake."""
    for needs in list(state.prewarms.get(worker, ())):
        _strike_out(state, worker, needs, LOST)


def warm_seen(state: State, event: WarmSeen, clock: Clock) -> list[Effect]:
    """What a worker has, by its own word."""
    if event.worker in state.workers:
        state.experience.hear_warm(event.worker, event.tokens)
    return []


def _strike_out(state: State, worker: str, needs: Needs, how: str) -> Prewarm | None:
    told = state.prewarms.get(worker, {})
    known = told.pop(needs, None)
    if known is not None:
        _count(state, how)
        if not told:
            del state.prewarms[worker]
    return known


def _count(state: State, how: str) -> None:
    state.prewarm_ends[how] = state.prewarm_ends.get(how, 0) + 1
