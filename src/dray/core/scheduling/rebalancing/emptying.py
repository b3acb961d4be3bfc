"""Places for what runs on workers that somebody empties: single tasks one by one, gangs whole.

Work that may start once only stays until it has ended, and so does what finds no room; places are looked for again
every few seconds. Replicas of services are not looked at: those leave a drained worker by themselves, the new first.
Surprising rule: a gang stops as a whole, so members on other workers start again where they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dray.core.lifecycle.state.pass_events import EmptyingLooked
from dray.core.lifecycle.state.service_events import Move, MovesDecided
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job
from dray.core.scheduling.rebalancing.proposals import EVACUATE
from dray.core.scheduling.rebalancing.scene import RUNS, Scene

AGAIN_MS = 5_000
# So many are asked to leave at once: each look stays short, and the next one is soon.
MOST_AT_ONCE = 64


def look_for_places(state: State) -> Iterator[MovesDecided | EmptyingLooked]:
    """What is to leave now, of each worker whose turn has come."""
    scene: Scene | None = None
    for worker_id, at_ms in list(state.emptying.items()):
        if at_ms > state.now_ms:
            continue
        if state.held.get(worker_id):
            scene = scene or Scene(state)
            worker = state.workers[worker_id]
            for moves in find_places(scene, worker_id)[:MOST_AT_ONCE]:
                why = f"{worker_id} is emptied" + (f": {worker.drain_reason}" if worker.drain_reason else "")
                yield MovesDecided(moves, EVACUATE, worker.drained_by, why=why)
        yield EmptyingLooked(worker_id, state.now_ms + AGAIN_MS)


def find_places(scene: Scene, worker_id: str) -> list[tuple[Move, ...]]:
    """Where what runs on a worker could go, each whole by itself; what stays is left out."""
    state, found = scene.state, []
    for uid in list(state.held.get(worker_id, ())):
        attempt = state.attempts[uid]
        job = state.jobs[attempt.job_id]
        moves = _find_group(scene, job, attempt) if job.gang else _find_one(scene, attempt)
        if moves:
            scene.take(moves)
            found.append(moves)
    return found


def _find_one(scene: Scene, attempt: Attempt) -> tuple[Move, ...]:
    if scene.why_not(attempt):
        return ()
    move = scene.find_place(attempt, lambda row: True)
    return (move,) if move is not None else ()


def _find_group(scene: Scene, job: Job, attempt: Attempt) -> tuple[Move, ...]:
    """Places for the members that have to go, on workers of their own; the others come back to theirs."""
    state, group = scene.state, job.group_of(attempt.index)
    if job.service or job.barred or scene.starts_once(job):
        return ()
    tasks = [state.tasks.get((job.id, index)) for index in group]
    members = [state.attempts.get(task.current) for task in tasks if task is not None]
    running = [one for one in members if one is not None and one.phase in RUNS and not one.cancel]
    if len(running) < len(group) or any((one.job_id, one.index) in state.moves for one in running):
        return ()
    leaving = [one for one in running if state.workers[one.worker].emptying]
    if not leaving or attempt.uid != leaving[0].uid:
        return ()  # found with another of them, or of an earlier generation
    return _place_group(scene, running, leaving)


def _place_group(scene: Scene, running: Sequence[Attempt], leaving: Sequence[Attempt]) -> tuple[Move, ...]:
    state = scene.state
    taken = {state.columns.row_of[one.worker] for one in running}
    moves: list[Move] = []
    for one in running:
        if one not in leaving:
            moves.append(Move(one.uid, one.worker, one.devices, one.variant))
            continue
        move = scene.find_place(one, lambda row: row not in taken)
        if move is None:
            return ()
        taken.add(state.columns.row_of[move.worker])
        moves.append(move)
    return tuple(moves)
