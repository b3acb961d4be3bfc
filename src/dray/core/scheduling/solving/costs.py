"""What each of many waiting tasks would cost on each worker, and for how many of them there is room there.

Costs are what the policy's own scorers say against a worker, but for how full it is: that changes with every task
placed. Tasks that take the same of a worker are one group, in which any may stand for any other; tasks of one shape
and flavour share a row of costs. What is more than that (several alternatives, gangs, named resources) is left to be
placed one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dray.core.lifecycle.state.columns import Numbers
from dray.core.lifecycle.state.state import State, TaskKey
from dray.core.model.records.records import Job
from dray.core.model.specs.resources import WHOLE, Ask
from dray.core.scheduling.capacity.remaining import Left, Rooms
from dray.core.scheduling.placement.placer import Greedy
from dray.core.scheduling.placement.scorers import Wish

UNIT = 1000
# More rows of costs than this are not worth their time, whoever solves them.
MOST_COSTS = 4_000_000
Footprint = tuple[str, int, int, int, int]


class Hint(NamedTuple):
    """Where a task is best placed, all others of its batch considered."""

    job_id: str
    task: int
    worker: str


class Group(NamedTuple):
    """Tasks that take the same of a worker. `kind_of` says which row of `costs` each task has; below 0: not there.
    `room`: how many of them fit on each worker.
    """

    keys: list[TaskKey]
    kind_of: Numbers
    costs: Numbers
    room: Numbers


Solve = Callable[[Group], Sequence[int]]
"""Who goes where: a worker's row for each task, or -1."""


def is_plain(state: State, shape: int) -> bool:
    """Whether tasks of a shape can be placed by hints."""
    asks = state.asks(shape)
    ask = asks[0]
    return len(asks) == 1 and ask.nodes == 1 and ask.pool == "batch" and not ask.resources


def assign(state: State, keys: Sequence[TaskKey], solve: Solve) -> list[Hint]:
    """Place tasks by a solver, group by group in their order; those for which it finds nothing are left out."""
    rooms, hints = Rooms(state), list[Hint]()
    for group in _groups(state, rooms, keys):
        for (job_id, index), row in zip(group.keys, solve(group), strict=True):
            ask = state.asks(state.jobs[job_id].shape)[0]
            devices = rooms.fit(row, ask, job_id) if row >= 0 else None
            if devices is not None:
                rooms.claim(row, ask, devices)
                hints.append(Hint(job_id, index, state.columns.worker_of[row]))
    return hints


def _groups(state: State, rooms: Rooms, keys: Sequence[TaskKey]) -> Iterator[Group]:
    """A group after the other, each with the room that those before have left."""
    sorted_keys: dict[Footprint, list[TaskKey]] = {}
    for key in keys:
        ask = state.asks(state.jobs[key[0]].shape)[0]
        footprint = (ask.pool, ask.cpu_milli, ask.memory_bytes, ask.gpus, ask.gpu_milli)
        sorted_keys.setdefault(footprint, []).append(key)
    for some in sorted_keys.values():
        job = state.jobs[some[0][0]]
        room = count_room(rooms, state.asks(job.shape)[0])
        yield _group(state, rooms, some[: int(room.sum())], room)


def _group(state: State, rooms: Rooms, keys: list[TaskKey], room: Numbers) -> Group:
    placer = Greedy(state, rooms)
    kinds: dict[tuple[int, str], int] = {}
    costs: list[Numbers] = []
    kind_of: list[int] = []
    for job_id, _ in keys:
        job = state.jobs[job_id]
        kind = (job.shape, placer.flavour(job))
        if kind not in kinds:
            kinds[kind] = len(kinds)
            costs.append(
                _costs(placer, rooms, job) if len(costs) * len(room) < MOST_COSTS else costs[-1] * 0 - 1
            )
        kind_of.append(kinds[kind])
    packed = np.array(costs, dtype=np.int64).reshape(len(costs), len(room))
    return Group(keys, np.array(kind_of, dtype=np.intp), packed, room)


def _costs(placer: Greedy, rooms: Rooms, job: Job) -> Numbers:
    """What speaks against each worker, -1 where it does not fit."""
    ask = placer.state.asks(job.shape)[0]
    placer.score(placer.sight, Wish(placer.state, ask, job))
    steady = placer.steady()
    good = sum(steady) if steady else np.zeros(placer.state.columns.count)
    found: Numbers = np.rint((np.max(good, initial=0.0) - good) * UNIT).astype(np.int64)
    fits = rooms.mask(ask)
    if placer.shunned is not None:
        fits = fits & ~placer.shunned
    found[~fits] = -1
    return found


def count_room(rooms: Rooms, ask: Ask) -> Numbers:
    """How many tasks of an ask fit on each worker beside each other, after the claims; no guard is asked."""
    columns = rooms.columns
    view, count = columns.view, columns.count
    slots = np.where(
        view["batch_in_use"][:count] < view["batch_total"][:count],
        view["batch_total"][:count] - view["batch_live"][:count],
        0,
    )
    room = np.minimum(view["credit"][:count], slots)
    if ask.cpu_milli:
        room = np.minimum(room, rooms.free("cpu") // ask.cpu_milli)
    if ask.memory_bytes:
        room = np.minimum(room, rooms.free("mem") // ask.memory_bytes)
    if ask.gpus:
        room = np.minimum(room, _cards(rooms, ask))
    found: Numbers = np.where(rooms.usable(ask.pool), np.maximum(room, 0), 0)
    for row in dict.fromkeys(rooms.claimed):
        found[row] = min(int(found[row]), _left(rooms.left(row), ask))
    return found


def _cards(rooms: Rooms, ask: Ask) -> Numbers:
    free = rooms.columns.device_free[: rooms.columns.count]
    fitting: Numbers = (free // ask.gpu_milli).sum(axis=1)
    return fitting // ask.gpus if ask.gpu_milli == WHOLE else fitting


def _left(left: Left, ask: Ask) -> int:
    times = left.times(ask, 1 << 30)
    if not ask.gpus:
        return times
    free = [WHOLE - left.used.get(card.index, 0) for card in left.cards if card.healthy]
    fitting = sum(milli // ask.gpu_milli for milli in free)
    return min(times, fitting // ask.gpus if ask.gpu_milli == WHOLE else fitting)
