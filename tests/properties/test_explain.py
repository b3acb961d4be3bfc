"""The survey refuses exactly what the filters refuse; what is said to fit is placed; a change that is offered works."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given
from tests.core.harness import Cluster
from tests.properties.test_matching import CARDS, OFFERS, SPECS, ask

from dray.core.lifecycle.state.events import Event, NewJob, Suspected, WorkerDrained, WorkerSilent
from dray.core.lifecycle.tasks.jobs import draft_job
from dray.core.model.specs.check import check_spec
from dray.core.model.specs.resources import asks_of
from dray.core.model.specs.spec import pack_spec
from dray.core.scheduling.capacity.matching import rejections
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.capacity.survey import Scan, Survey
from dray.core.scheduling.explain.dry_run import Rehearsal, rehearse
from dray.core.scheduling.explain.explain import View, explain, headline, look_ahead
from dray.core.scheduling.explain.fixes import seek_change

WORKERS = st.lists(st.tuples(OFFERS, st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=4)
JOBS = st.lists(st.tuples(SPECS, CARDS), min_size=1, max_size=5)
Workers = list[tuple[dict[str, Any], int, int]]
Jobs = list[tuple[dict[str, Any], dict[str, Any]]]


def build(workers: Workers) -> Cluster:
    cluster = Cluster()
    for number, (offer, credit, mood) in enumerate(workers):
        name = f"w{number}"
        cluster.join(name, credit=credit, **offer)
        moods: list[Event] = [WorkerDrained(name, True), Suspected(name), WorkerSilent(name)]
        cluster.turn(*moods[mood : mood + 1])
    return cluster


@given(WORKERS, JOBS)
def test_a_survey_refuses_by_exactly_the_rules_of_the_filters(workers: Workers, jobs: Jobs) -> None:
    cluster = build(workers)
    for number, (spec, cards) in enumerate(jobs):
        wanted = ask(spec, cards)
        if wanted is None:
            continue
        rooms = Rooms(cluster.state)
        scan = Scan(Survey(cluster.state, rooms), wanted)
        for row in range(len(workers)):
            ruled = {(no.kind, no.ever) for no in rejections(wanted, rooms.room(row, wanted.pool))}
            assert {kind for kind, mask in scan.refused.items() if mask[row]} == ruled
            assert bool(scan.fits[row]) == (not ruled)
            assert bool(scan.possible[row]) == (not any(ever for _, ever in ruled))
        cluster.submit(f"j{number}", **spec, **cards)


@given(WORKERS, JOBS)
def test_what_fits_was_placed_and_a_change_that_is_offered_works(workers: Workers, jobs: Jobs) -> None:
    cluster = build(workers)
    for number, (spec, cards) in enumerate(jobs):
        if ask(spec, cards) is not None:
            cluster.submit(f"j{number}", **spec, **cards)
    state = cluster.state
    for job in [job for job in state.jobs.values() if job.waiting]:
        reason = explain(state, job)
        look_ahead(state, job, reason)
        assert not reason.fits, f"{job.id} fits and was not placed: {reason.summary}"
        assert headline(state, job, View(state)) == reason.summary
        assert sum(group.workers for group in reason.classes) == len(state.workers)
        found = [None, *seek_change(state, job.id)][-1]
        number = int(job.id[1:])
        if found is not None and found.kind in _FIELDS:
            spec, cards = jobs[number]
            cluster.submit(f"again{number}", **_apply(found.kind, found.value, found.was, spec, cards))
            assert cluster.current(f"again{number}"), f"{found.message}, it was said"
            cluster.cancel(f"again{number}")
            cluster.end(cluster.state.tasks[f"again{number}", 0].last_uid, "killed")


_FIELDS = {
    "gpu": "gpu_count",
    "cpu": "cpu_milli",
    "gpu_type": "gpu_type",
    "backend": "gpu_backend",
    "label": "require",
}


def _apply(kind: str, value: str, was: str, spec: dict[str, Any], cards: dict[str, Any]) -> dict[str, Any]:
    given = {**spec, **cards}
    new: Any = value
    if kind == "gpu":
        new = int(value)
    elif kind == "cpu":
        new = round(float(value) * 1000)
    elif kind == "label":
        new = [condition for condition in spec["require"] if condition != was]
    return {**given, _FIELDS[kind]: new}


@given(WORKERS, JOBS)
def test_a_rehearsal_says_what_a_submit_does_and_leaves_nothing_behind(workers: Workers, jobs: Jobs) -> None:
    cluster = build(workers)
    state = cluster.state
    for number, (spec, cards) in enumerate(jobs):
        if ask(spec, cards) is None:
            continue
        checked = check_spec({"command": ["true"], **spec, **cards})
        job = draft_job(state, NewJob("?", "ann", pack_spec(checked)), cluster.clock)
        before = _trace(cluster)
        found = Rehearsal(job=job, tasks=job.total)
        for _ in rehearse(state, found, asks_of(checked)):
            pass
        assert _trace(cluster) == before
        assert found.reason is not None
        cluster.submit(f"j{number}", **spec, **cards)
        placed = [state.attempts[uid].worker for uid in state.live_of.get(f"j{number}", ())]
        assert sorted(place.worker for place in found.placed) == sorted(placed)
        assert found.reason.fits == bool(placed)


def _trace(cluster: Cluster) -> tuple[Any, ...]:
    state = cluster.state
    return (
        list(state.jobs),
        state.parties.mark(),
        sum(state.shapes.refs),
        len(state.backlog.buckets),
        dict(state.backlog.awake),
        dict(state.columns.roomier),
        state.counters.next_job,
        state.counters.next_attempt,
        dict(state.reservations),
    )
