"""Calls added to a job: made, extended, closed, each time idempotently.

Decided inside the turn. The arguments of a call are kept in the very commit that makes it a call, and its index says
whether it was sent before: a client that heard nothing sends the same message again, whatever became of the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from dray.core.lifecycle.state.events import ArrayExtended, Clock, Event
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.core.model.specs.spec import MAX_TASKS, JobSpec
from dray.errors import (
    Closed,
    Conflict,
    InvalidInput,
    InvalidSpec,
    MissingBlobs,
    NotFound,
    Problem,
    TooLarge,
)
from dray.hub.access.caller import Caller
from dray.hub.calls.arguments import ArgsMemory, pack_args
from dray.hub.calls.results import digests_of
from dray.hub.decisions.commands import Sources, owned, read_specs, submit
from dray.hub.decisions.edits import check_space
from dray.hub.decisions.workloads import sealed_why
from dray.hub.engine.turns import Decision
from dray.hub.store.base import AuditRecord, BlobRef, Chunk
from dray.wire.messages.client import Calls, open_document

Finish = Callable[[State, str], Any]


class CallSources(NamedTuple):
    """What calls are checked against, and where their arguments wait. `missing` gives blobs a caller has not got: it
    reads, and so is asked before the turn.
    """

    submit: Sources
    args: ArgsMemory
    missing: Callable[[Caller, Sequence[str]], list[str]] = lambda caller, digests: []


def read_call_spec(
    caller: Caller, body: Calls, lay: Callable[[dict[str, Any]], dict[str, Any]] | None = None
) -> JobSpec | None:
    """Check the spec that came with calls: a function, alone or as an open array that begins empty."""
    given = open_document(body.spec)
    if given is None:
        return None
    if not isinstance(given, dict):
        raise InvalidInput("spec must be one job, an object")
    if given.get("id") not in (None, "", body.job):
        raise InvalidInput(f"spec.id is {str(given['id'])[:64]!r} and the calls are for {body.job!r}")
    (spec,) = read_specs(caller, [given | {"id": body.job}], 1, calls=True, lay=lay)
    array = spec.array
    problems = []
    if not spec.function:
        problems.append(Problem("function", "is empty: calls need a function; submit a command instead"))
    if array is not None and not (array.open and array.count == 0 and (array.first, array.step) == (0, 1)):
        problems.append(Problem("array", "must be open and empty (first 0, last -1): calls fill it"))
    if array is None and (len(body.args) != 1 or body.first):
        problems.append(
            Problem("args", f"a single call has one entry at first 0, got {len(body.args)} at {body.first}")
        )
    if problems:
        raise InvalidSpec(f"{problems[0].where}: {problems[0].what}", problems)
    return spec


def add_calls(
    caller: Caller, body: Calls, spec: JobSpec | None, sources: CallSources, finish: Finish
) -> Callable[[State, Clock], Decision]:
    """Make the decision of one `calls` message; whether its blobs are there is looked up now."""
    wanted = list(digests_of(body.args) | dict.fromkeys(body.blobs))
    missing = sources.missing(caller, wanted) if wanted else []

    def decide(state: State, clock: Clock) -> Decision:
        job = sources.submit.rows.job(body.job)
        if spec is None and (job is None or not caller.sees(job.user)):
            raise NotFound(
                f"there is no job {body.job!r}, or it is not yours: send its spec with the first calls"
            )
        _check_blobs(missing)
        made = Decision()
        if spec is not None:
            made = submit(caller, [spec], "", sources.submit, lambda after, ids, created: None)(state, clock)
        steps: Iterable[Event | Chunk]
        if job is None:
            _check_order(body, 0)
            steps = _open(state, body, spec, list(made.events), sources)
        else:
            steps = _extend(state, body, owned(caller, job, body.job), sources)
        audit = made.audit
        if job is not None and steps:
            said = f"{max(0, len(body.args) - (job.total - body.first))} more" + ", closed" * body.close
            audit = (AuditRecord(clock.at_ms, caller.user, caller.token_id, "calls", job.id, said),)
        return Decision(steps, lambda after: finish(after, body.job), audit)

    return decide


def _open(
    state: State, body: Calls, spec: JobSpec | None, first: Sequence[Any], sources: CallSources
) -> Iterator[Event | Chunk]:
    yield from first
    if spec is not None and spec.array is None:
        yield from _keep(body, 0, sources)
        return
    job = state.jobs[body.job]
    if not job.state.final:
        # One that can never start (what it waits for has failed) ended as it was made.
        yield from _grow(body, job, sources)


def _extend(state: State, body: Calls, job: Job, sources: CallSources) -> list[Event | Chunk]:
    if not job.calls:
        raise Conflict(f"job {job.id} runs a command: it takes no calls")
    _check_order(body, job.total)
    fresh = len(body.args) - (job.total - body.first)
    closed = not job.open or job.state.final or job.id not in state.jobs
    if not closed and fresh > 0 and (sealed := sealed_why(state, job.workload)):
        raise Closed(f"{sealed}: it takes no more calls")
    if closed and fresh > 0:
        why = f"has ended ({job.state})" if job.state.final else "was closed"
        raise Closed(f"job {job.id} {why} with {job.total} calls and takes no more: send these to a new job")
    if closed or (fresh <= 0 and not body.close):
        return []
    if fresh > 0:
        check_space(sources.submit.low_space, "new calls")
    if job.total + max(fresh, 0) > MAX_TASKS:
        raise TooLarge(
            f"job {job.id} would have {job.total + fresh} calls, the limit is {MAX_TASKS}: open another one"
        )
    return list(_grow(body, job, sources))


def _grow(body: Calls, job: Job, sources: CallSources) -> Iterator[Event | Chunk]:
    known = job.total
    fresh = max(0, len(body.args) - (known - body.first))
    yield from _keep(body, known, sources)
    if fresh or body.close:
        yield ArrayExtended(job.id, fresh, body.close)


def _keep(body: Calls, known: int, sources: CallSources) -> Iterator[Chunk]:
    """What is stored: the arguments that are new, and which blobs the job now needs."""
    args = body.args[known - body.first :]
    if args:
        sources.args.add(body.job, known, args)
        yield pack_args(body.job, known, args)
    for digest in digests_of(args) | dict.fromkeys(body.blobs):
        yield BlobRef(digest, body.job)


def _check_order(body: Calls, total: int) -> None:
    if body.first > total:
        raise Conflict(
            f"calls from index {body.first} on came before those from {total} on, which the hub does not have: "
            "send those first"
        )


def _check_blobs(missing: Sequence[str]) -> None:
    if missing:
        raise MissingBlobs(
            f"{len(missing)} of the values are not here (the first is {missing[0]}): "
            "upload them, then send the calls again",
            [Problem(digest, "is not here") for digest in missing],
        )
