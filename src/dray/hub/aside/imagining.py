"""The work of a side process that asks "what if": one scene run forward as it is, and as it would be after a change.

Both runs draw the same run times, so what differs comes of the change. The surprising rule: workers that are imagined
are copies of one that is there, under names that no worker has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.state.events import (
    Clock,
    CreditSet,
    HoldChanged,
    PolicyChanged,
    SessionOpened,
    WorkerDrained,
    WorkerRegistered,
)
from dray.core.lifecycle.state.state import NEVER, State
from dray.core.model.capability import Slots
from dray.core.scheduling.passes.snapshot import PLENTY, TaskKey, build_scene
from dray.hub.aside.foreseeing import DRAWS, Foreseen, Foresight, run_forward

BINS = 48
# What a copy has of the worker that it is like.
OFFERED = ("capability", "devices", "features", "base", "resources", "ports")
Floats = np.ndarray[Any, np.dtype[np.float64]]


class Change(msgspec.Struct):
    """What would be otherwise: a policy as it is stored, workers that get nothing new, copies of workers by how many,
    and jobs of the scene that are there only then. `horizon_ms`: for how long it is told who holds what.
    """

    policy: bytes = b""
    drain: list[str] = []
    more: list[tuple[str, int]] = []
    guests: list[str] = []
    horizon_ms: int = 6 * 3_600_000


class Outlook(msgspec.Struct, array_like=True):
    """How it goes on: when tasks start, of how many nobody can say when, and shares of all cards held, bin by bin."""

    found: list[Foreseen]
    unknown: list[TaskKey]
    held: list[float]
    gpus: int


class Contrast(msgspec.Struct, array_like=True):
    """Today beside then."""

    today: Outlook
    then: Outlook


class Course(Protocol):
    """Whether to go on, and who hears how far it has come."""

    def __call__(self) -> bool: ...
    def tell(self, done: int, of: int, what: str = "") -> None: ...


def imagine(pieces: Sequence[bytes], course: Course) -> Contrast:
    """The first piece says what would be otherwise, the others are the scene."""
    change = msgspec.msgpack.decode(pieces[0], type=Change)
    outlooks = []
    for number, changed in enumerate((False, True)):
        state, clock, wanted = build_scene(pieces[1:])
        if changed:
            put_in_place(state, clock, change)
        else:
            wanted = [key for key in wanted if key[0] not in change.guests]
            _leave_out(state, change.guests, clock)

        def tell(draws: int, before: int = number * DRAWS) -> None:
            course.tell(before + draws, 2 * DRAWS, "runs")

        found = run_forward(state, clock, wanted, course, tell)
        outlooks.append(_outlook(state, found, wanted, change.horizon_ms))
    return Contrast(*outlooks)


def put_in_place(state: State, clock: Clock, change: Change) -> None:
    """Let a state be as it would be."""
    if change.policy:
        apply(state, PolicyChanged(change.policy, "imagined"), clock)
    for worker_id in change.drain:
        if worker_id in state.workers:
            apply(state, WorkerDrained(worker_id, True), clock)
    for like, count in change.more:
        for number in range(count):
            _add_copy(state, like, f"{like}+{number + 1}", clock)


def _add_copy(state: State, like: str, name: str, clock: Clock) -> None:
    """Another worker that is free and open, whatever the one is that it is a copy of."""
    origin, seen = state.workers[like], state.presence[like].slots
    slots = seen if seen.batch_total or seen.service_total else origin.slots
    free = Slots(batch_total=slots.batch_total, service_total=slots.service_total)
    offer = {field: getattr(origin, field) for field in OFFERED}
    came = WorkerRegistered(name, 1, labels=origin.all_labels, slots=free, **offer)
    for event in (SessionOpened(name, 1, ""), came, CreditSet(name, PLENTY, free)):
        apply(state, event, clock)


def _leave_out(state: State, guests: Iterable[str], clock: Clock) -> None:
    for job_id in guests:
        apply(state, HoldChanged(job_id, True), clock)


def _outlook(state: State, found: Foresight, wanted: Sequence[TaskKey], horizon_ms: int) -> Outlook:
    known = {(task.job_id, task.index) for task in found.found}
    open_cards = sum(
        len(worker.devices) or worker.capability.gpu_count
        for worker in state.workers.values()
        if not worker.draining and state.columns.get("open", state.columns.row_of[worker.id])
    )
    return Outlook(
        found.found,
        [key for key in wanted if key not in known],
        _held(state, found, horizon_ms, open_cards),
        open_cards,
    )


def _held(state: State, found: Foresight, horizon_ms: int, cards: int) -> list[float]:
    """Shares of the cards that are held, by the run in which everybody takes their middle run time."""
    if not cards:
        return []
    edges = np.linspace(0, horizon_ms, BINS + 1)
    held: Floats = np.zeros(BINS)
    for attempt in state.attempts.values():
        ask = state.ask(attempt)
        if attempt.phase.live and ask.gpus:
            _add(held, edges, 0, found.ends.get(attempt.uid, NEVER), ask.gpus * ask.gpu_milli / 1000)
    for one in found.placed:
        if one.devices and (job := state.jobs.get(one.job_id)) is not None:
            share = state.asks(job.shape)[0].gpu_milli / 1000
            _add(held, edges, one.begin_ms, one.end_ms, len(one.devices) * share)
    return [round(float(share), 4) for share in np.minimum(1, held / (horizon_ms / BINS) / cards)]


def _add(held: Floats, edges: Floats, begin_ms: int, end_ms: int, cards: float) -> None:
    """So many cards are held from one moment to another."""
    held += cards * np.maximum(0, np.minimum(edges[1:], end_ms) - np.maximum(edges[:-1], begin_ms))
