"""Many jobs changed by one request: which of them are meant, and what becomes of each.

The jobs are chosen once, by a walk over what lives, in steps; then they are changed some hundred to a turn, so that
signs of life go in between. The surprising rule: whether a job is still meant is asked again in its turn. One that was
chosen because it waited is left alone if it has started since, and one that came later is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from dray.core.lifecycle.state.events import CancelRequested, Clock, Event, HoldChanged, RequeueRequested
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import OPEN_STATES, Job
from dray.core.model.specs.spec import unpack_spec
from dray.core.model.wildcards import match_name
from dray.errors import Forbidden, InvalidInput, Problem
from dray.hub.access.caller import Caller
from dray.hub.engine.turns import Decision
from dray.hub.store.base import AuditRecord
from dray.wire.messages.client import Act

# So many jobs are changed in one turn: about fifteen milliseconds, and half the commits that 512 would take.
TURN_JOBS = 1024
# So many are looked at between two stops.
STEP_JOBS = 256
SHOWN_IDS = 100
_LIVE = tuple(state.value for state in OPEN_STATES)
MISSING = "there is no such job that lives, or it is not yours"
ENDED = "it has ended meanwhile"
OTHER = "it is no longer one of those that were asked for"


class Change(NamedTuple):
    """One action: the event that carries it out, and why it would come to nothing for a job (empty: it would not)."""

    event: Callable[[Job, Act, str], Event]
    idle: Callable[[State, Job], str]


def _requeue_idle(state: State, job: Job) -> str:
    if unpack_spec(job.spec).at_most_once:
        return "it may start once only (at_most_once)"
    live = (state.attempts[uid] for uid in state.live_of.get(job.id, ()))
    return "" if any(not attempt.cancel for attempt in live) else "nothing of it runs"


CHANGES: dict[str, Change] = {
    "cancel": Change(
        lambda job, ask, user: CancelRequested(job.id, -1, user, -1 if ask.grace_s is None else ask.grace_s),
        lambda state, job: "",
    ),
    "hold": Change(
        lambda job, ask, user: HoldChanged(job.id, True, user),
        lambda state, job: "held already" if job.held else "",
    ),
    "release": Change(
        lambda job, ask, user: HoldChanged(job.id, False, user),
        lambda state, job: "" if job.held else "it was not held",
    ),
    "requeue": Change(lambda job, ask, user: RequeueRequested(job.id, -1, user), _requeue_idle),
}


def check_act(caller: Caller, ask: Act) -> None:
    """Refuse what names no jobs, or others' jobs: whoever means all of them has to say so."""
    problems = []
    if not (ask.all or ask.ids or ask.states or ask.user or ask.queue or ask.name or ask.labels):
        what = "say which jobs are meant: ids, states, user, queue, name or labels; or all: true for all that live"
        problems.append(Problem("all", what))
    problems += [
        Problem("states", f"{state!r} cannot be changed any more: jobs that live are {' or '.join(_LIVE)}")
        for state in ask.states
        if state not in _LIVE
    ]
    if ask.grace_s is not None and ask.action != "cancel":
        problems.append(Problem("grace_s", f"goes with cancel, not with {ask.action}"))
    if problems:
        raise InvalidInput(f"{problems[0].where}: {problems[0].what}", problems)
    if ask.user and not caller.sees(ask.user):
        raise Forbidden(
            f"only an admin token may {ask.action} jobs of {ask.user!r}: this one is {caller.user!r}'s"
        )


class Chosen(NamedTuple):
    """What a request comes to so far: jobs to change, and how many there are by state, by user, and unchanged why."""

    ids: list[str]
    states: dict[str, int]
    users: dict[str, int]
    unchanged: dict[str, int]


def choose_steps(state: State, caller: Caller, ask: Act) -> Iterator[Chosen]:
    """Look for the jobs that are meant; what is said last holds."""
    chosen = Chosen([], {}, {}, {})
    is_meant = _test_of(caller, ask)
    idle = CHANGES[ask.action].idle
    looked_at = list(dict.fromkeys(ask.ids)) if ask.ids else list(state.jobs)
    for first in range(0, len(looked_at), STEP_JOBS):
        yield chosen
        for job_id in looked_at[first : first + STEP_JOBS]:
            job = state.jobs.get(job_id)
            if job is None or job.state not in OPEN_STATES or not caller.sees(job.user):
                if ask.ids:
                    _count(chosen.unchanged, MISSING)
            elif is_meant(job):
                if why := idle(state, job):
                    _count(chosen.unchanged, why)
                else:
                    chosen.ids.append(job_id)
                    _count(chosen.states, job.state.value)
                    _count(chosen.users, job.user)
    yield chosen


def act(caller: Caller, ask: Act, ids: Sequence[str]) -> Callable[[State, Clock], Decision]:
    """Make the decision about some of the chosen jobs; the answer is how many were left as they were, and why."""
    is_meant = _test_of(caller, ask)
    change = CHANGES[ask.action]

    def decide(state: State, clock: Clock) -> Decision:
        events: list[Event] = []
        audit: list[AuditRecord] = []
        unchanged: dict[str, int] = {}
        for job_id in ids:
            job = state.jobs.get(job_id)
            if job is None or job.state not in OPEN_STATES:
                _count(unchanged, ENDED)
            elif not is_meant(job):
                _count(unchanged, OTHER)
            elif why := change.idle(state, job):
                _count(unchanged, why)
            else:
                events.append(change.event(job, ask, caller.user))
                audit.append(
                    AuditRecord(clock.at_ms, caller.user, caller.token_id, ask.action, job_id, "of many")
                )
        return Decision(events, lambda after: unchanged, tuple(audit))

    return decide


def _test_of(caller: Caller, ask: Act) -> Callable[[Job], bool]:
    """Whether a job is one of those that are asked for. Labels come last: they alone need the spec opened."""
    tests: list[Callable[[Job], bool]] = []
    if "admin" not in caller.scopes:
        tests.append(lambda job: job.user == caller.user)
    if ask.states:
        states = frozenset(ask.states)
        tests.append(lambda job: job.state.value in states)
    if ask.user:
        tests.append(lambda job: job.user == ask.user)
    if ask.queue:
        tests.append(lambda job: job.queue == ask.queue)
    if ask.name:
        matches = match_name(ask.name)
        tests.append(lambda job: matches(job.name))
    if ask.labels:
        wanted = ask.labels.items()
        tests.append(lambda job: wanted <= unpack_spec(job.spec).labels.items())
    if len(tests) <= 1:
        return tests[0] if tests else lambda job: True
    return lambda job: all(test(job) for test in tests)


def _count(counts: dict[str, int], word: str) -> None:
    counts[word] = counts.get(word, 0) + 1


def spell(ask: Act, chosen: Chosen, changed: int) -> dict[str, Any]:
    """The answer: how many, and the first of them by id."""
    shown = chosen._asdict() | {"ids": chosen.ids[:SHOWN_IDS]}
    return {"action": ask.action, "dry_run": ask.dry_run, "count": changed, **shown}
