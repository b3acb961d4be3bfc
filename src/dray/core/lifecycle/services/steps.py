"""The next step where replicas of a service are replaced, start then stop: by a new revision, by the one gone back to,
or off a worker that is drained. Reads records and changes nothing.

All three are one rule. Of the replicas some are as they should be and the others old. There may be `max_surge` more
than the service is to have, and as many old ones go as those that are as they should be, and have been ready for long
enough, leave over: counting those, ready ones never become fewer than its size less `max_unavailable` by this. Where
replicas are groups of several nodes all is counted in groups, each told of by its first task. The
surprising rule: a revision is whole only once all its replicas are settled, and until then goes back by itself.
"""

from __future__ import annotations

from typing import NamedTuple

from dray.core.lifecycle.holding import groups, rollouts
from dray.core.lifecycle.state.state import NEVER, State
from dray.core.lifecycle.tasks.replicas import furthest, ready_since_ms, tell_name, wanted
from dray.core.model.records.records import Job, Task
from dray.core.model.specs.spec import UpdateRules, unpack_spec

DONE, FAILED, OVER, BEGUN = "done", "failed", "over", "begun"


class Placed(NamedTuple):
    """A replica that was placed. `since_ms`: since when it is ready, -1 where it is not."""

    task: Task
    since_ms: int
    old: bool

    @property
    def ready(self) -> bool:
        return self.since_ms >= 0


class Rollout(NamedTuple):
    """A service of which replicas are replaced. `fresh`: those that are as they should be, `waiting` such that were
    never placed; `leaving` ones get no requests any more.
    """

    aim: int
    rules: UpdateRules
    fresh: list[Placed]
    waiting: int
    old: list[Placed]
    leaving: list[Task]
    forward: bool

    @property
    def size(self) -> int:
        """How many there are that are as they should be."""
        return len(self.fresh) + self.waiting

    @property
    def settle_ms(self) -> int:
        return round(self.rules.settle_s * 1000)

    @property
    def drain_ms(self) -> int:
        return round(self.rules.drain_s * 1000)

    def is_settled(self, one: Placed, now_ms: int) -> bool:
        """Whether a replica has been ready for long enough to rely on."""
        return one.ready and now_ms - one.since_ms >= self.settle_ms


class Step(NamedTuple):
    """What is to be done: so many more, these are to leave, these have left and are stopped; and what has come out.

    `next_ms`: when time alone may make another step possible.
    """

    more: int = 0
    leave: tuple[int, ...] = ()
    stop: tuple[int, ...] = ()
    outcome: str = ""
    why: str = ""
    next_ms: int = NEVER

    @property
    def due(self) -> bool:
        """Whether there is anything to be done now."""
        return bool(self.more or self.leave or self.stop or self.outcome)


def survey(state: State, job: Job) -> Rollout | None:
    """How a replacement stands; None where nobody is replaced."""
    fresh: list[Placed] = []
    old: list[Placed] = []
    leaving: list[Task] = []
    for task in rollouts.standing(state, job):
        one = _place(state, job, task)
        if task.leaving_ms:
            leaving.append(task)
        elif one.old:
            old.append(one)
        else:
            fresh.append(one)
    if job.aim < 0 and not old:
        return None
    rules = unpack_spec(job.spec).replacing
    waiting = job.untouched // job.group_size
    return Rollout(wanted(job), rules, fresh, waiting, old, leaving, job.revision != job.stable)


def _place(state: State, job: Job, task: Task) -> Placed:
    return Placed(task, ready_since_ms(state, job, task.index), is_old(state, job, task))


def is_old(state: State, job: Job, task: Task) -> bool:
    """Whether another replica is to take the place of one: it runs by another revision, or its worker is drained."""
    # A group that is broken goes from where it is anyhow; members of it may have ended before.
    group = groups.members(state, job, task.index) if not task.broken else []
    return task.revision != job.revision or any(rollouts.is_moving(state, member) for member in group)


def decide(state: State, job: Job, now_ms: int) -> Step:
    """The next step of a service, which may be none."""
    found = survey(state, job)
    if found is None or job.state.final:
        return Step()
    more = min(found.aim - found.size, found.aim + found.rules.max_surge - found.size - len(found.old))
    outcome, why = _conclude(state, job, found, now_ms)
    if job.aim < 0:
        # Also where nothing can be done yet: from here on every change about its replicas is a reason to look.
        outcome = BEGUN
    stop = [task.index for task in found.leaving if now_ms - task.leaving_ms >= found.drain_ms]
    return Step(
        max(0, more),
        (*_leave_old(job, found, now_ms), *_leave_fresh(state, job, found, now_ms)),
        tuple(stop),
        outcome,
        why,
        _next_ms(job, found, now_ms),
    )


def _leave_old(job: Job, found: Rollout, now_ms: int) -> list[int]:
    """As many as are left over, those first that are not ready; of a revision that is given up all that are not."""
    settled = sum(1 for one in found.fresh if found.is_settled(one, now_ms))
    spare = min(settled, found.aim) + len(found.old) - max(0, found.aim - found.rules.max_unavailable)
    ranked = sorted(found.old, key=lambda one: (one.ready, one.task.revision == job.stable, -one.task.index))
    going = ranked[: max(0, spare)]
    if not found.forward:
        going += [one for one in ranked[len(going) :] if not one.ready and one.task.revision != job.revision]
    return [one.task.index for one in going]


def _leave_fresh(state: State, job: Job, found: Rollout, now_ms: int) -> list[int]:
    """Those of which there are too many by now: never placed ones first, then those that serve nobody."""
    excess = found.size - found.aim
    if excess <= 0:
        return []
    never = [
        index
        for index in range(job.total - job.group_size, job.cursor - 1, -job.group_size)
        if (job.id, index) not in state.tasks
    ]
    ranked = sorted(found.fresh, key=lambda one: (one.ready, found.is_settled(one, now_ms), -one.task.index))
    return [*never, *(one.task.index for one in ranked)][:excess]


def _conclude(state: State, job: Job, found: Rollout, now_ms: int) -> tuple[str, str]:
    """What a replacement has come to, if anything, and why it failed."""
    if not found.forward:
        whole = not found.old and not found.leaving and found.size == found.aim
        return (OVER, "") if whole else ("", "")
    mine = [one for one in (*found.fresh, *found.old) if one.task.revision == job.revision]
    others = len(found.fresh) + len(found.old) - len(mine)
    settled = sum(1 for one in mine if found.is_settled(one, now_ms))
    if not others and settled >= found.aim:
        return DONE, ""
    for one in mine:
        if one.task.looping:
            return (
                FAILED,
                f"{tell_name(job, one.task.index)} keeps ending: {one.task.error or 'no reason given'}",
            )
    timeout_ms = round(found.rules.ready_timeout_s * 1000)
    if job.barred or now_ms < job.stepped_ms + timeout_ms:
        return "", ""
    return FAILED, f"{_lagging(state, job, found, mine, now_ms)} within {found.rules.ready_timeout_s:g} s"


def _lagging(state: State, job: Job, found: Rollout, mine: list[Placed], now_ms: int) -> str:
    """Which replica was not ready, or not for long enough, and what was said of it."""
    late = min((one for one in mine if not found.is_settled(one, now_ms)), key=_index, default=None)
    if late is None:
        return "no further replica found a place"
    name, group = tell_name(job, late.task.index), groups.members(state, job, late.task.index)
    if not group:
        ended = f" ({late.task.error})" if late.task.error else ""
        lacks = "was not ready" if late.task.again_ms else "found no place"
        return f"{name} {lacks}{ended}"
    attempt = furthest(state, job, group)
    # One that has ended time and again may be about to, at this very moment: how it did so last says most.
    known = attempt.health_note or late.task.error
    note = f" ({known})" if known and not late.ready else ""
    said = "ready for long enough" if late.ready else "ready"
    where = f"{state.spell(attempt)} of {name}" if job.gang else name
    return f"{where} on {attempt.worker} was not {said}{note}"


def _index(one: Placed) -> int:
    return one.task.index


def _next_ms(job: Job, found: Rollout, now_ms: int) -> int:
    moments = [task.leaving_ms + found.drain_ms for task in found.leaving]
    moments += [one.since_ms + found.settle_ms for one in (*found.fresh, *found.old) if one.ready]
    if found.forward:
        moments.append(job.stepped_ms + round(found.rules.ready_timeout_s * 1000))
    return min((moment for moment in moments if moment > now_ms), default=NEVER)
