"""What may be changed and by whom: submit, cancel. Checks, authorises, draws ids; the engine folds the events in.

Decisions that need the state are made inside the turn, so that two requests racing for one id or key cannot both win.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from dray.core.lifecycle.state.events import CancelRequested, Clock, JobsSubmitted, NewJob
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.policy import Policy
from dray.core.model.records.records import Job
from dray.core.model.specs.check import MAX_PROBLEMS, check_spec
from dray.core.model.specs.dependency import read_need
from dray.core.model.specs.spec import JobSpec, pack_spec
from dray.errors import Conflict, Forbidden, InvalidSpec, KeyReused, NotFound, Problem, TooLarge
from dray.hub.access.caller import Caller
from dray.hub.calls.reading import CallReader
from dray.hub.calls.snapshots import Holds, refs_of
from dray.hub.decisions.edits import check_deadlines, check_space
from dray.hub.decisions.notifying import check_notifications
from dray.hub.decisions.pacing import SubmitPacing, check_bounds
from dray.hub.decisions.policy import check_queue
from dray.hub.decisions.prerequisites import Open, resolve
from dray.hub.decisions.repeats import Repeats, is_same
from dray.hub.decisions.workloads import check_workloads
from dray.hub.engine.turns import Decision
from dray.hub.rows import RowKey, Rows, job_row, key_row
from dray.hub.store.base import AuditRecord, KeyRow
from dray.wire.messages.codec import MAX_DEPTH, depth_of

_BY_TEMPLATE = frozenset(("template", "params", "rendered"))
ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
Finish = Callable[[State, Sequence[str], bool], Any]
Expand = Callable[[dict[str, Any]], dict[str, Any]]


class KeyMemory:
    """Idempotency keys of the last requests, for those that race within one turn: the store shows a key once
    committed.
    """

    def __init__(self) -> None:
        self._ids: OrderedDict[tuple[str, str], tuple[str, ...]] = OrderedDict()

    def find(self, user: str, key: str) -> tuple[str, ...] | None:
        return self._ids.get((user, key))

    def add(self, user: str, key: str, ids: tuple[str, ...]) -> None:
        self._ids[user, key] = ids
        if len(self._ids) > 2048:
            self._ids.popitem(last=False)


def draw_ids(count: int) -> list[str]:
    """Draw job ids that are short enough to read out and too rare to meet twice.

    The bytes come in one call: one per id is a system call each, a tenth of what a job of a large batch costs.
    """
    drawn, size, ids = secrets.token_bytes(8 * count), len(ALPHABET), []
    for start in range(0, len(drawn), 8):
        number, letters = int.from_bytes(drawn[start : start + 8]), []
        for _ in range(12):
            number, place = divmod(number, size)
            letters.append(ALPHABET[place])
        ids.append("".join(letters))
    return ids


class Sources(NamedTuple):
    """What a submit is checked against beside the state."""

    rows: Rows
    calls: CallReader
    keys: KeyMemory
    low_space: Callable[[], bool]
    draw: Callable[[int], list[str]] = draw_ids
    pacing: SubmitPacing | None = None


def read_specs(
    caller: Caller,
    raws: Sequence[Any],
    most: int,
    calls: bool = False,
    expand: Expand | None = None,
    lay: Expand | None = None,
) -> list[JobSpec]:
    """Check every spec of a request and settle whose jobs they are, in one go."""
    *_, checked = read_steps(caller, raws, most, calls, expand, lay)
    return checked


def read_steps(
    caller: Caller,
    raws: Sequence[Any],
    most: int,
    calls: bool = False,
    expand: Expand | None = None,
    lay: Expand | None = None,
) -> Iterator[list[JobSpec]]:
    """Check every spec of a request and settle whose jobs they are, spec by spec; what is said last holds. All problems
    of all specs at once, up to a number that a person may still read. A function is taken only where its arguments
    come with it (`calls`). `expand` makes a spec of one that names a template, `lay` lays
    under it what its workload says.
    """
    if len(raws) > most:
        raise TooLarge(f"a batch holds at most {most} specs, got {len(raws)}: send several")
    specs: list[JobSpec] = []
    problems: list[Problem] = []
    for place, raw in enumerate(raws):
        if len(problems) >= MAX_PROBLEMS:
            break
        yield specs
        prefix = f"[{place}]." if len(raws) > 1 else ""
        if not isinstance(raw, dict) or depth_of(raw) > MAX_DEPTH:
            what = (
                "must be an object" if not isinstance(raw, dict) else f"nests deeper than {MAX_DEPTH} levels"
            )
            problems.append(Problem(prefix.rstrip(".") or "spec", what))
            continue
        try:
            if not _BY_TEMPLATE.isdisjoint(raw):
                raw = _expand(raw, expand)
            if raw.get("workload") and lay is not None:
                raw = lay(raw)
            specs.append(check_spec(raw))
            if specs[-1].function and not calls:
                what = "is submitted by `calls` over the client channel, with its arguments (hub.submit does that)"
                problems.append(Problem(f"{prefix}function", what))
        except InvalidSpec as fault:
            problems += [Problem(prefix + problem.where, problem.what) for problem in fault.problems]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InvalidSpec(f"{problems[0].where}: {problems[0].what}{more}", problems)
    for spec in specs:
        if spec.user_id and spec.user_id != caller.user and not caller.may("admin"):
            raise Forbidden(
                f"only an admin token may submit for {spec.user_id!r}: this one is {caller.user!r}'s"
            )
    _check_ids(specs)
    yield [msgspec.structs.replace(spec, user_id=spec.user_id or caller.user) for spec in specs]


def _expand(raw: dict[str, Any], expand: Expand | None) -> dict[str, Any]:
    """What the hub notes of a template is never taken from outside."""
    if raw.get("template") and "rendered" not in raw and expand is not None:
        return expand(raw)
    field = "rendered" if "rendered" in raw or expand is None else "params"
    what = (
        "is noted by the hub and cannot be given" if field == "rendered" else "goes with a template: name one"
    )
    raise InvalidSpec(f"{field}: {what}", [Problem(field, what)])


def _check_ids(specs: Sequence[JobSpec]) -> None:
    seen: dict[str, int] = {}
    for place, spec in enumerate(specs):
        if spec.id and spec.id in seen:
            raise Conflict(f"specs {seen[spec.id]} and {place} of the batch share the id {spec.id!r}")
        seen[spec.id] = place


def check_queues(policy: Policy, specs: Sequence[JobSpec]) -> None:
    """Refuse jobs for queues that the policy does not have."""
    faults = {queue: check_queue(policy, queue) for queue in dict.fromkeys(spec.queue for spec in specs)}
    problems = [
        Problem(f"[{place}].queue" if len(specs) > 1 else "queue", faults[spec.queue])
        for place, spec in enumerate(specs)
        if faults[spec.queue]
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InvalidSpec(f"{problems[0].where}: {problems[0].what}{more}", problems[:MAX_PROBLEMS])


def check_templates(policy: Policy, specs: Sequence[JobSpec]) -> None:
    """Refuse jobs by templates that the policy keeps for others."""
    for spec in specs if policy.templates else ():
        rule = policy.templates.get(spec.template_name)
        if rule is not None and rule.users and spec.user_id not in rule.users:
            raise Forbidden(
                f"template {spec.template_name} is for {', '.join(rule.users)} (the policy's templates), and not for "
                f"{spec.user_id}"
            )


def submit_rows(caller: Caller, specs: Sequence[JobSpec], key: str = "") -> tuple[RowKey, ...]:
    """The rows that a submit is checked against: its key, jobs under its ids, jobs that it waits for."""
    wants = [key_row(caller.user, key)] if key else []
    for spec in specs:
        if spec.id:
            wants.append(job_row(spec.id))
        wants += [job_row(read_need(text).job_id) for text in spec.after]
    return tuple(wants)


def submit(
    caller: Caller,
    specs: Sequence[JobSpec],
    key: str,
    sources: Sources,
    finish: Finish,
    repeats: Repeats | None = None,
    holds: Holds = MappingProxyType({}),
    retry: bool = False,
) -> Callable[[State, Clock], Decision]:
    """Make the decision of one submit: new jobs, the same ones again, or a conflict. `holds`: what snapshots of theirs
    are the first to need. `retry`: they are what failed of a workload, which takes that back though it is sealed.
    """
    asked, again = specs, repeats or Repeats()

    def decide(state: State, clock: Clock) -> Decision:
        known = _known_by_key(sources, caller, asked, key, again.mode == "keep")
        if known is None:
            known = again.find(sources.rows, caller, asked)
        if known is not None:
            ids = known
            return Decision(answer=lambda after: finish(after, ids, False))
        specs = [spec for spec in asked if spec.id not in again.kept] if again.kept else asked
        check_queues(state.policy, specs)
        check_templates(state.policy, specs)
        check_workloads(state, caller, specs, retry)
        check_notifications(state.policy.notifications, specs)
        check_bounds(state, specs)
        check_space(sources.low_space, "new jobs")
        check_deadlines(specs, clock)
        needs = resolve(sources.calls, caller, specs)
        if sources.pacing is not None:
            # Last of all checks: what is refused for another reason has cost nothing.
            sources.pacing.take(state.policy, specs, clock)
        drawn = sources.draw(len(specs))
        new = tuple(
            _new_job(state, spec, job_id, need)
            for spec, job_id, need in zip(specs, drawn, needs, strict=True)
        )
        made = iter(new)
        ids = tuple(spec.id if spec.id in again.kept else next(made).id for spec in asked)
        keys = (KeyRow(caller.user, key, clock.at_ms, ids),) if key else ()
        if key:
            sources.keys.add(caller.user, key, ids)
        record = AuditRecord(
            clock.at_ms, caller.user, caller.token_id, "submit", new[0].id, f"{len(new)} jobs"
        )
        pairs = zip(new, specs, strict=True) if holds else ()
        trees = [(job.id, spec.snapshot_id, spec.environment) for job, spec in pairs]
        refs = dict.fromkeys(ref for tree in trees for ref in refs_of(*tree, holds))
        return Decision([JobsSubmitted(new), *refs], lambda after: finish(after, ids, True), (record,), keys)

    return decide


def _new_job(state: State, spec: JobSpec, drawn: str, need: Open) -> NewJob:
    job_id = spec.id or drawn
    while not spec.id and job_id in state.jobs:
        (job_id,) = draw_ids(1)
    packed = pack_spec(msgspec.structs.replace(spec, id=""))
    return NewJob(job_id, spec.user_id, packed, need.after, need.broken)


def _known_by_key(
    sources: Sources, caller: Caller, specs: Sequence[JobSpec], key: str, keeps: bool
) -> tuple[str, ...] | None:
    if not key:
        return None
    ids = sources.keys.find(caller.user, key)
    if ids is None:
        row = sources.rows.key(caller.user, key)
        ids = row.job_ids if row is not None else None
    if ids is None:
        return None
    if len(ids) != len(specs):
        raise KeyReused(
            f"the idempotency key {key!r} was used for {len(ids)} jobs, this request has {len(specs)}"
        )
    for job_id, spec in zip(ids, specs, strict=True):
        if keeps and spec.id == job_id:
            # Perhaps it was left as it is, whatever its spec.
            continue
        job = sources.rows.job(job_id)
        if (spec.id and spec.id != job_id) or (job is not None and not is_same(job, spec)):
            raise KeyReused(
                f"the idempotency key {key!r} was used for another spec (job {job_id}): use a new key"
            )
    return ids


def owned(caller: Caller, job: Job | None, job_id: str) -> Job:
    """Give the job if the caller may see it; what belongs to others does not exist."""
    if job is None or not caller.sees(job.user):
        raise NotFound(f"there is no job {job_id!r}, or it is not yours")
    return job


def works_for(state: State, caller: Caller, user: str) -> bool:
    """Whether the caller is a worker that holds work of this user now: it may have the values that the work needs."""
    held = state.held.get(state.owned.get(caller.token_id, ""), ())
    return any(state.jobs[state.attempts[uid].job_id].user == user for uid in held)


def cancel(
    caller: Caller, job_id: str, index: int | None, grace_s: float | None, rows: Rows, finish: Finish
) -> Callable[[State, Clock], Decision]:
    """Make the decision of one cancel; a finished job is left as it is, and the answer says so."""

    def decide(state: State, clock: Clock) -> Decision:
        job = owned(caller, rows.job(job_id), job_id)
        if index is not None and not 0 <= index < job.total:
            raise NotFound(f"job {job_id!r} has no task {index}: it has {job.total}")
        if job.state.final or job.id not in state.jobs:
            return Decision(answer=lambda after: finish(after, (job_id,), False))
        wanted = -1 if index is None or not (job.numbered or job.service) else index
        event = CancelRequested(job_id, wanted, caller.user, -1 if grace_s is None else grace_s)
        target = job_id if wanted < 0 else f"{job_id}/{wanted}"
        record = AuditRecord(clock.at_ms, caller.user, caller.token_id, "cancel", target, "")
        return Decision([event], lambda after: finish(after, (job_id,), True), (record,))

    return decide
