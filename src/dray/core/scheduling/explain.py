"""Why a job waits: every rule asked of every worker, then put into words once for CLI, API and dashboard alike.

Asks the very filters that a pass uses. "Cannot now" and "cannot ever on any known worker" are different answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dray.core.lifecycle.state import State
from dray.core.model.dependency import read_need
from dray.core.model.records import Job, JobState
from dray.core.model.resources import Ask, Rejection
from dray.core.scheduling.filters import rejections
from dray.core.scheduling.rooms import Rooms


class Blocker(NamedTuple):
    """One rule that stands in the way, with the worker that comes closest and how many it rules out."""

    kind: str
    need: str
    have: str
    workers: int
    ever: bool
    message: str


class Explanation(NamedTuple):
    """The whole answer to `why`."""

    summary: str
    blockers: list[Blocker]
    workers: list[tuple[str, list[Rejection]]]
    fix: str
    ever: bool


_MESSAGES = {
    "backend": "needs backend {need}, there is {have}",
    "device": "needs a {need} device, there is {have}",
    "gpu_type": "needs GPU type {need}, there is {have}",
    "label": "requires {need}, but the labels are {have}",
    "feature": "needs a worker that knows {need!r}",
    "resource": "asks for {need}, there is {have}",
    "gpu": "each task asks for {need}, the largest worker has {have}",
    "vram": "asks for VRAM of {need}, the largest worker has {have}",
    "cpu": "asks for {need}, the largest worker has {have}",
    "memory": "asks for {need} of memory, the largest worker has {have}",
    "offline": "offline",
    "draining": "draining",
    "suspect": "silent for a while",
    "slot": "no free {need}, there are {have}",
    "credit": "not ready for work yet",
}
# The same of one worker alone.
_OWN_MESSAGES = {
    kind: text.replace("the largest worker has", "this one has") for kind, text in _MESSAGES.items()
}
_FIXES = {
    "gpu": "ask for {have} GPUs or fewer per task, or start a worker with {need}",
    "vram": "ask for {have} of VRAM or less, or start a worker with larger cards",
    "cpu": "ask for {have} or fewer, or start a larger worker",
    "memory": "ask for {have} of memory or less, or start a larger worker",
    "backend": "drop the backend, or start a worker with {need}",
    "gpu_type": "drop the GPU type, or start a worker with {need}",
    "device": "drop the device ask, or start a worker with {need}",
    "label": "drop {need}, or label a worker so (dray worker start --label)",
    "feature": "update the agents: none of them knows {need!r}",
    "resource": "drop the ask for {need}: no worker offers it",
    "slot": "start a worker with room for it: dray worker start --slots N --service-slots N",
}


def explain(state: State, job: Job) -> Explanation:
    """Ask every rule of every worker on behalf of a job."""
    if job.state.final:
        return Explanation(f"the job has ended: {job.state}", [], [], "", False)
    if not job.waiting:
        return Explanation(f"nothing waits: the job is {job.state}", [], [], "", False)
    if job.barred:
        return _explain_barred(job)
    if job.limit and job.live >= job.limit:
        text = f"{job.live} of its tasks run already, its own cap is {job.limit}"
        return Explanation(
            text,
            [Blocker("array_limit", f"fewer than {job.limit}", str(job.live), 0, False, text)],
            [],
            "",
            False,
        )
    return explain_ask(state, state.asks(job.shape)[0])


def _explain_barred(job: Job) -> Explanation:
    """A job in no line: no worker need be asked."""
    blockers, fixes = [], []
    if job.held:
        who = f"held by {job.held_by}" if job.held_by else "held"
        blockers.append(Blocker("held", "a release", who, 0, False, who))
        fixes.append(f"release it: dray release {job.id}")
    if job.after:
        needs = [read_need(text) for text in job.after]
        more = f" and {len(needs) - 3} more" if len(needs) > 3 else ""
        text = f"waits for {', '.join(need.words for need in needs[:3])}{more}"
        blockers.append(Blocker("dependency", ", ".join(job.after[:3]), "not ended", 0, False, text))
        fixes.append(f"wait for them, or drop the condition: dray set {job.id} after=")
    return Explanation("; ".join(blocker.message for blocker in blockers), blockers, [], fixes[0], False)


def explain_ask(state: State, ask: Ask) -> Explanation:
    """Ask every rule of every worker on behalf of a task with this ask."""
    rooms = Rooms(state)
    answers = [
        (worker_id, list(rejections(ask, rooms.room(state.columns.row_of[worker_id], ask.pool))))
        for worker_id in sorted(state.workers)
    ]
    if not answers:
        return Explanation("no worker has joined yet", [], [], "start one: dray worker start", False)
    blockers = _blockers(answers)
    possible = [found for _, found in answers if not any(item.ever for item in found)]
    if ask.nodes > 1 and possible:
        return _explain_gang(state, ask, blockers, answers)
    if any(not found for _, found in answers):
        return Explanation("it fits now and is about to start", blockers, answers, "", False)
    if possible:
        kinds = _first_words(blockers, possible)
        return Explanation(f"cannot start now: {kinds}", blockers, answers, "", False)
    first = next(blocker for blocker in blockers if blocker.ever)
    return Explanation(
        f"cannot ever start on any known worker: {first.message}", blockers, answers, _fix(first), True
    )


def _explain_gang(
    state: State, ask: Ask, blockers: list[Blocker], answers: list[tuple[str, list[Rejection]]]
) -> Explanation:
    """The same of a gang: enough workers must do at once, all of one backend unless it was told otherwise."""
    could: dict[str, list[list[Rejection]]] = {}
    for worker_id, found in answers:
        if not any(item.ever for item in found):
            backend = "" if ask.mixed_backends else state.workers[worker_id].capability.gpu_backend or "cpu"
            could.setdefault(backend, []).append(found)
    _, most = max(could.items(), key=lambda pair: (len(pair[1]), pair[0]))
    fit = max(sum(1 for found in group if not found) for group in could.values())
    if len(most) < ask.nodes:
        have, alike = str(len(most)), "" if ask.mixed_backends else " of one backend"
        text = (
            f"needs {ask.nodes} workers{alike} at once, {have} of {len(answers)} could ever run a task of it"
        )
        nodes = Blocker("nodes", str(ask.nodes), have, len(answers) - len(most), True, text)
        fix = f"ask for {have} nodes or fewer, or start {ask.nodes - len(most)} more such workers"
        summary = f"cannot ever start on the known workers: {text}"
        return Explanation(summary, [nodes, *blockers], answers, fix, True)
    if fit >= ask.nodes:
        return Explanation("it fits now and is about to start", blockers, answers, "", False)
    text = f"needs {ask.nodes} workers at once, {fit} of {len(answers)} have room now"
    nodes = Blocker("nodes", str(ask.nodes), str(fit), len(answers) - fit, False, text)
    words = _first_words(blockers, [found for group in could.values() for found in group])
    return Explanation(
        f"cannot start now: {text}{'; ' if words else ''}{words}", [nodes, *blockers], answers, "", False
    )


def reason(state: State, job: Job) -> str:
    """One line for lists."""
    return explain(state, job).summary if job.state is JobState.PENDING else ""


def message_of(rejection: Rejection) -> str:
    """Word one rejection of one worker."""
    return _OWN_MESSAGES[rejection.kind].format(need=_need(rejection), have=rejection.have)


def _need(rejection: Rejection) -> str:
    if rejection.kind != "gpu":
        return rejection.need
    return f"{rejection.need} GPU{'' if rejection.need == '1' else 's'}"


def _blockers(answers: Iterable[tuple[str, list[Rejection]]]) -> list[Blocker]:
    groups: dict[tuple[str, bool], list[Rejection]] = {}
    for _, found in answers:
        for rejection in found:
            groups.setdefault((rejection.kind, rejection.ever), []).append(rejection)
    blockers = []
    for (kind, ever), group in groups.items():
        best = max(group, key=lambda item: item.amount)
        seen = list(dict.fromkeys(item.have for item in group))
        have = best.have if best.amount or len(seen) == 1 else ", ".join(seen[:4])
        count = f"{len(group)} worker{'' if len(group) == 1 else 's'}"
        text = f"{_MESSAGES[kind].format(need=_need(best), have=have)} ({count})"
        blockers.append(Blocker(kind, best.need, have, len(group), ever, text))
    return sorted(blockers, key=lambda blocker: (-blocker.ever, -blocker.workers, blocker.kind))


def _first_words(blockers: list[Blocker], possible: list[list[Rejection]]) -> str:
    kinds = {item.kind for found in possible for item in found}
    words = [blocker.message for blocker in blockers if not blocker.ever and blocker.kind in kinds]
    return "; ".join(words[:3])


def _fix(blocker: Blocker) -> str:
    if blocker.kind in ("gpu", "vram") and blocker.have.split()[0] == "0":
        return "start a worker that has GPUs"
    return _FIXES[blocker.kind].format(need=blocker.need, have=blocker.have) if blocker.kind in _FIXES else ""
