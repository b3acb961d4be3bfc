"""What if: another policy, workers that get nothing new, further workers, jobs that nobody has submitted.

The question is checked as if the change were made, so whoever asks for what cannot be is told so at once. The answer is
today's forecast beside then's, in one sentence, for all, for each user and for the jobs that change most.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.check import check_policy
from dray.core.model.policies.policy import pack_policy
from dray.core.model.records.records import Job
from dray.core.model.specs.spec import JobSpec
from dray.core.scheduling.explain.reason import span
from dray.core.scheduling.passes.snapshot import pack_scene
from dray.errors import InvalidInput, Problem
from dray.hub.access.caller import Caller
from dray.hub.answers.answers import Answers
from dray.hub.answers.estimates import FIRST
from dray.hub.aside.foreseeing import Foreseen
from dray.hub.aside.imagining import Change, Contrast, Outlook
from dray.hub.aside.process import SideProcess
from dray.hub.documents.records import Document
from dray.hub.documents.why_and_plan import make_guest
from dray.hub.engine.engine import Engine
from dray.hub.studies.studies import Study
from dray.hub.views.sight import Sight, sight_of
from dray.wire.schemas.studies import MoreWorkers, WhatIfRequest

MOST_JOBS = 50
MOST_GUESTS = 20
MOST_MORE = 64
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Contrast).decode


class WhatIf:
    """One hub's "what if"."""

    def __init__(self, engine: Engine, answers: Answers) -> None:
        self._engine, self._answers = engine, answers

    async def read(self, caller: Caller, asked: WhatIfRequest) -> tuple[Change, list[JobSpec]]:
        """Check a question."""
        if len(asked.jobs) > MOST_GUESTS:
            raise _odd("jobs", f"are {len(asked.jobs)}: at most {MOST_GUESTS} at a time")
        specs = [self._answers.read_one(caller, spec) for spec in asked.jobs]
        change = Change(horizon_ms=round(asked.horizon_s * 1000))
        if asked.policy is not None:
            change.policy = pack_policy(check_policy(asked.policy))
        change.drain = list(dict.fromkeys(asked.drain))
        change.more = await self._engine.read(lambda state: read_more(state, asked.more))
        await self._engine.read(lambda state: check_workers(state, change.drain, "drain"))
        return change, specs

    async def work(
        self, caller: Caller, change: Change, specs: Sequence[JobSpec], study: Study, side: SideProcess
    ) -> Document:
        """Ask a side process and put its answer into words."""
        guests: list[Job] = []

        def pack(state: State, clock: Clock) -> Iterator[bytes]:
            for number, spec in enumerate(specs):
                guest = make_guest(state, spec, clock)
                guest.id, guest.seq = f"?{number}", guest.seq + number
                guests.append(guest)
            change.guests = [guest.id for guest in guests]
            yield _encode(change)
            yield from pack_scene(state, clock, FIRST, guests)

        _, packed = await side.ask("imagine", pack, study.hear)
        contrast = _decode(packed)
        return await self._engine.read(
            lambda state: _spell(sight_of(state, caller), state, contrast, guests, change.horizon_ms)
        )


def read_more(state: State, asked: Sequence[MoreWorkers]) -> list[tuple[str, int]]:
    """Further workers, each kind named by one that is there."""
    check_workers(state, [one.like for one in asked], "more.like")
    if sum(one.count for one in asked) > MOST_MORE:
        raise _odd("more", f"are more than {MOST_MORE} workers")
    return [(one.like, one.count) for one in asked if one.count]


def check_workers(state: State, names: Iterable[str], where: str) -> None:
    """Refuse names that no worker has."""
    for name in names:
        if name not in state.workers:
            raise _odd(where, f"there is no worker {name[:64]!r} (dray worker ls)")


def _odd(where: str, what: str) -> InvalidInput:
    return InvalidInput(f"{where}: {what}", [Problem(where, what)])


def _spell(sight: Sight, state: State, found: Contrast, guests: Sequence[Job], horizon_ms: int) -> Document:
    """The whole answer. Jobs of others are in sums alone."""
    known = {guest.id: guest for guest in guests}
    today, then = ({(one.job_id, one.index): one for one in side.found} for side in (found.today, found.then))
    new = [key for key in [*then, *map(tuple, found.then.unknown)] if key[0] in known]
    old = [key for key in dict.fromkeys([*today, *then]) if key[0] not in known]
    users: dict[str, list[tuple[Foreseen | None, Foreseen | None]]] = {}
    jobs: dict[str, tuple[Foreseen | None, Foreseen | None]] = {}
    for key in old:
        job = state.jobs.get(key[0])
        if job is None:
            continue
        pair = today.get(key), then.get(key)
        if name := sight.name(job.user):
            users.setdefault(name, []).append(pair)
        if sight.sees(job.user):
            jobs.setdefault(job.id, pair)
    ordered = sorted(jobs.items(), key=lambda item: -abs(_change_ms(*item[1])))
    return {
        "today": _side(found.today),
        "then": _side(found.then, len(set(new))),
        "users": [_user(name, pairs) for name, pairs in sorted(users.items())],
        "jobs": [
            _job(state.jobs[job_id], *pair) for job_id, pair in ordered[:MOST_JOBS] if job_id in state.jobs
        ],
        "new": [_guest(guest, then.get((guest.id, 0))) for guest in guests],
        "horizon_s": horizon_ms / 1000,
        "headline": _tell(found, len(old), [pair for pairs in users.values() for pair in pairs]),
    }


def _change_ms(today: Foreseen | None, then: Foreseen | None) -> int:
    if today is None or then is None:
        return 0 if today is then else 1 << 40
    return then.p50_ms - today.p50_ms


def _start(one: Foreseen | None) -> Document | None:
    return None if one is None else {"p50_s": one.p50_ms / 1000, "p90_s": one.p90_ms / 1000}


def _side(side: Outlook, more: int = 0) -> Document:
    waits = sorted(one.p50_ms for one in side.found)
    return {
        "tasks": len(side.found) + len(side.unknown) - more,
        "unknown": len(side.unknown),
        "wait_p50_s": statistics.median(waits) / 1000 if waits else None,
        "wait_p90_s": waits[min(len(waits) - 1, len(waits) * 9 // 10)] / 1000 if waits else None,
        "gpus": side.gpus,
        "held": side.held,
        "held_share": round(statistics.fmean(side.held), 4) if side.held else None,
    }


def _median_s(found: Iterable[Foreseen | None]) -> float | None:
    waits = [one.p50_ms / 1000 for one in found if one is not None]
    return statistics.median(waits) if waits else None


def _user(name: str, pairs: Sequence[tuple[Foreseen | None, Foreseen | None]]) -> Document:
    return {
        "user": name,
        "tasks": len(pairs),
        "today_p50_s": _median_s(today for today, _ in pairs),
        "then_p50_s": _median_s(then for _, then in pairs),
    }


def _job(job: Job, today: Foreseen | None, then: Foreseen | None) -> Document:
    return {"id": job.id, "name": job.name, "user": job.user, "today": _start(today), "then": _start(then)}


def _guest(guest: Job, then: Foreseen | None) -> Document:
    return {"name": guest.name, "user": guest.user, "tasks": guest.total, "then": _start(then)}


def _tell(found: Contrast, waiting: int, pairs: Sequence[tuple[Any, Any]]) -> str:
    """In one sentence."""
    if not waiting:
        return "Nothing waits: nobody would start sooner or later."
    before, after = (_median_s(pair[side] for pair in pairs) for side in (0, 1))
    said = []
    if before is not None and after is not None:
        old, new = span(round(before * 1000)), span(round(after * 1000))
        same = abs(after - before) < max(1.0, 0.02 * before)
        when = f"{new}, as today" if same else f"{new} instead of {old}"
        whole = (
            f"half of the {waiting:,} tasks that wait start" if waiting > 1 else "the task that waits starts"
        )
        said.append(f"{whole} within {when}")
    gone, come = len(found.today.unknown), len(found.then.unknown)
    if gone != come:
        said.append(f"of {come:,} instead of {gone:,} nobody can say when")
    later = sum(_change_ms(*pair) > 60_000 for pair in pairs if None not in pair)
    if later:
        said.append(f"{later:,} start over a minute later")
    sentence = "; ".join(said) or f"of {waiting:,} that wait nobody can say when they start, today or then"
    return f"{sentence[0].upper()}{sentence[1:]}."
