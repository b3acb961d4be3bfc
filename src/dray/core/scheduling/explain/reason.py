"""The one answer to "why does it wait", as values, and its words: API, command line and lists render this alone.

Values come from `explain`; here they only get their wording, once, so that no two places word a rule differently.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dray.core.lifecycle.state.state import NEVER
from dray.core.model.specs.resources import Rejection
from dray.core.model.units import format_seconds


class Blocker(NamedTuple):
    """One rule that stands in the way: what it needs, what is there (at the worker that comes closest), how many
    workers it rules out, whether for ever. `in_ms`: when time alone lifts it, 0 where it does not. `who`: the job that
    it is kept for.
    """

    kind: str
    need: str
    have: str
    workers: int = 0
    ever: bool = False
    message: str = ""
    variant: int = 0
    in_ms: int = 0
    who: str = ""


class WorkerClass(NamedTuple):
    """Workers of one make: how many, how many of them have room, and what rules the others out."""

    name: str
    workers: int
    fit: int
    blockers: tuple[Blocker, ...]
    variant: int = 0


class Holder(NamedTuple):
    """Who has what is missing, and in how long it is free at the latest; NEVER where nothing limits it."""

    task_id: str
    user: str
    worker: str
    what: str
    ends_in_ms: int


class Place(NamedTuple):
    """How many are served before it in its queue. `exact` False: more than were counted. `rivals`: users it takes
    turns with. `overdue`: it can no longer meet its deadline, and goes behind all that can.
    """

    queue: str
    order: str
    jobs_ahead: int
    tasks_ahead: int
    exact: bool
    rivals: int
    overdue: bool = False


class Start(NamedTuple):
    """The latest moment at which it starts by the time limits of what runs, and where; `reserved`: room is kept."""

    in_ms: int
    workers: tuple[str, ...]
    variant: int
    reserved: bool


class Underway(NamedTuple):
    """A preemption on its behalf: the receipt, who has not left yet, and how many of all start again elsewhere."""

    receipt: str
    rule: str
    stopping: tuple[str, ...]
    victims: int
    ends_in_ms: int
    moved: int = 0


class Change(NamedTuple):
    """One change to a job's ask that would let it start now, as found by the planner; `assign`: for `dray set`."""

    kind: str
    flag: str
    value: str
    was: str
    message: str
    size: float = 0.0
    worker: str = ""
    victims: int = 0
    assign: str = ""


class Reason(msgspec.Struct, kw_only=True):
    """All of it. `fix` is advice in words, `change` the smallest change that the planner has found to help."""

    state: str
    summary: str
    fits: bool = False
    ever: bool = False
    blockers: list[Blocker] = []
    classes: list[WorkerClass] = []
    workers: list[tuple[str, list[Rejection]]] = []
    known: int = 0
    holders: list[Holder] = []
    place: Place | None = None
    start: Start | None = None
    underway: Underway | None = None
    fix: str = ""
    change: Change | None = None


_MESSAGES = {
    "backend": "needs backend {need}, there is {have}",
    "device": "needs a {need} device, there is {have}",
    "gpu_type": "needs GPU type {need}, there is {have}",
    "label": "requires {need}, there is {have}",
    "feature": "needs a worker that knows {need!r}",
    "resource": "asks for {need}, there is {have}",
    "port": "asks for {need}, which is {have}",
    "ports": "asks for {need}, the largest worker has {have}",
    "gpu": "each task asks for {need}, the largest worker has {have}",
    "vram": "asks for VRAM of {need}, the largest worker has {have}",
    "cpu": "asks for {need}, the largest worker has {have}",
    "memory": "asks for {need} of memory, the largest worker has {have}",
    "offline": "offline",
    "draining": "{have}",
    "suspect": "silent for a while",
    "not_ready": "not ready: {have}",
    "slot": "no free {need}, there are {have}",
    "credit": "{have} for work yet",
    "reserved": "has room, but it is kept for a task that has waited longer",
    "ends": "has room, but it ends in {have}, before a task of it would be done",
}
# The same of one worker alone.
_OWN_MESSAGES = {
    kind: text.replace("the largest worker has", "this one has") for kind, text in _MESSAGES.items()
}
# The same of a class of worker, in few words.
_SHORT = {
    "backend": "not {need}",
    "device": "not {need}",
    "gpu_type": "not {need}",
    "label": "not {need}",
    "feature": "do not know {need!r}",
    "resource": "{have}",
    "port": "{need} {have}",
    "ports": "ports: {have}",
    "gpu": "{have} GPUs",
    "vram": "{have} of VRAM",
    "cpu": "{have}",
    "memory": "memory {have}",
    "offline": "offline",
    "draining": "{have}",
    "suspect": "silent",
    "not_ready": "not ready: {have}",
    "slot": "slots {have}",
    "credit": "{have} yet",
    "reserved": "kept for another task",
    "ends": "end in {have}",
}
START_CARDS = "start a worker that has GPUs"
_FIXES = {
    "gpu": "ask for {have} GPUs or fewer per task, or start a worker with {need}",
    "vram": "ask for {have} of VRAM or less, or start a worker with larger cards",
    "cpu": "ask for {have} or fewer, or start a larger worker",
    "memory": "ask for {have} of memory or less, or start a larger worker",
    "backend": "drop the backend, or start a worker with {need}",
    "gpu_type": "drop the GPU type, or start a worker with {need}",
    "device": "drop the device ask, or start a worker with {need}",
    "label": "drop {need}, or label a worker so (dray worker label)",
    "feature": "update the agents: none of them knows {need!r}",
    "resource": "drop the ask for {need}: no worker offers it",
    "ports": "ask for fewer ports, or give a worker a larger range: dray worker start --ports FIRST-LAST",
    "slot": "start a worker with {need}s: dray worker start {flag} N",
}


def message_of(rejection: Rejection) -> str:
    """Word one rejection of one worker."""
    return _OWN_MESSAGES[rejection.kind].format(need=_need(rejection), have=rejection.have)


def word_blocker(rejection: Rejection, have: str, workers: int, variant: int = 0) -> Blocker:
    """One rule over all the workers that it rules out."""
    text = (
        f"{_MESSAGES[rejection.kind].format(need=_need(rejection), have=have)} ({count(workers, 'worker')})"
    )
    return Blocker(rejection.kind, rejection.need, have, workers, rejection.ever, text, variant)


def word_short(rejection: Rejection, workers: int, of: int, variant: int = 0) -> Blocker:
    """One rule over the workers of one class."""
    text = _SHORT[rejection.kind].format(need=_need(rejection), have=rejection.have)
    if workers < of:
        text = f"{text} ({workers} of them)"
    return Blocker(rejection.kind, rejection.need, rejection.have, workers, rejection.ever, text, variant)


def advise(blocker: Blocker) -> str:
    """What helps against something that no known worker can do."""
    if blocker.kind in ("gpu", "vram") and blocker.have.split()[0] == "0":
        return START_CARDS
    flag = "--service-slots" if blocker.need.startswith("service") else "--slots"
    words = _FIXES.get(blocker.kind, "")
    return words.format(need=blocker.need, have=blocker.have, flag=flag)


def count(number: int, noun: str) -> str:
    """A number and its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def span(ms: int) -> str:
    """How long, as people say it."""
    return "no time limit" if ms >= NEVER else format_seconds(max(0, round(ms / 1000)))


def tell_class(group: WorkerClass) -> str:
    """One class of worker in a line: how many, of what make, and what is missing there."""
    told = [blocker.message for blocker in group.blockers]
    if group.fit:
        told.insert(0, "room for it" if group.fit == group.workers else f"room for it on {group.fit}")
    return f"{count(group.workers, 'worker')} {group.name}: {'; '.join(told)}"


def tell_holder(holder: Holder) -> str:
    """One holder in a line."""
    who = f"{holder.task_id} ({holder.user})" if holder.task_id else "a task of another user"
    until = "no time limit" if holder.ends_in_ms >= NEVER else f"for at most {span(holder.ends_in_ms)} more"
    return f"{who} holds {holder.what} on {holder.worker}, {until}"


def tell_place(place: Place) -> str:
    """Where it stands in its queue."""
    about = "" if place.exact else "at least "
    line = f"queue {place.queue} ({place.order})"
    rivals = f", taking turns with {count(place.rivals, 'other user')}" if place.rivals else ""
    if place.overdue:
        rivals += ", since it can no longer meet its deadline behind all that can"
    if not place.jobs_ahead:
        return f"first in {line}{rivals}"
    ahead = f"{about}{count(place.jobs_ahead, 'job')} with {count(place.tasks_ahead, 'task')}"
    return f"{ahead} before it in {line}{rivals}"


def tell_start(start: Start) -> str:
    """When it starts at the latest."""
    where = ", ".join(start.workers[:3]) + (
        f" and {len(start.workers) - 3} more" if len(start.workers) > 3 else ""
    )
    if start.reserved:
        return f"reserved on {where}, starts in {span(start.in_ms)} at the latest"
    return f"by the time limits of what runs there is room on {where} in {span(start.in_ms)} at the latest"


def tell_underway(underway: Underway) -> str:
    """A preemption on its behalf."""
    left = f"{len(underway.stopping)} of {count(underway.victims, 'task')} still stopping"
    if underway.moved:
        left = f"{left} ({underway.moved} moved to where there is room)"
    return f"preemption {underway.receipt} makes room for it: {left}, for at most {span(underway.ends_in_ms)} more"


def _need(rejection: Rejection) -> str:
    if rejection.kind != "gpu":
        return rejection.need
    if "." in rejection.need:
        return f"{rejection.need} of a GPU"
    return f"{rejection.need} GPU{'' if rejection.need == '1' else 's'}"
