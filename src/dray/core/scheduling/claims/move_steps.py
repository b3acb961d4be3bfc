"""Which stage a move comes to next, if any: read from the records of its tasks, written down by `apply`.

Claimed, saving, starting, settling, done; or off the way: called off while nobody was asked to stop, returning where it
could not start, rolled back once it runs where it was, failed where it waits like any other. Nothing is remembered
beside the receipt, so a hub that comes back goes on where the last one stood. Surprising rule: nobody is asked to stop
before the room that all of them go to is there, but for what they themselves leave to each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from dray.core.lifecycle.holding import moves
from dray.core.lifecycle.state.service_events import MoveStepped
from dray.core.lifecycle.state.state import State
from dray.core.model.records.ledger import (
    CALLED_OFF,
    CLAIMED,
    DONE,
    FAILED,
    RETURNING,
    ROLLED_BACK,
    SAVING,
    SETTLING,
    STARTING,
    UNDER_WAY,
    Receipt,
    Victim,
)
from dray.core.model.records.records import JobState, Phase, Task
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.claims.moving_room import claim_moves, could_hold
from dray.core.scheduling.claims.reservations import Spare


def next_steps(state: State) -> Iterator[MoveStepped]:
    """The next step of each move that has one; to be folded in one by one, since each changes what the next may do."""
    for _ in UNDER_WAY:
        # One step may make another possible at once; stages only follow each other.
        found = False
        for step in _each(state):
            found = True
            yield step
        if not found:
            return


def _each(state: State) -> Iterator[MoveStepped]:
    for receipt in list(state.moving.values()):
        stages = {victim.stage for victim in receipt.victims}
        if stages == {CLAIMED}:
            step = _begin(state, receipt)
            if step is not None:
                yield step
            continue
        for victim in receipt.victims:
            if victim.stage in UNDER_WAY:
                step = _next(state, receipt, victim)
                if step is not None:
                    yield step


def _begin(state: State, receipt: Receipt) -> MoveStepped | None:
    """Ask all of them to stop once their room is there; nobody where one of them cannot go any more."""
    for victim in receipt.victims:
        attempt, job = state.attempts.get(victim.uid), state.jobs.get(victim.job_id)
        if attempt is None or job is None or attempt.cancel or not attempt.phase.live:
            return MoveStepped(
                receipt.id, CALLED_OFF, why="what was to be moved stops or has ended by itself"
            )
        if job.barred:
            return MoveStepped(receipt.id, CALLED_OFF, why="its job is held")
        if not _is_there(state, victim.to):
            return MoveStepped(receipt.id, CALLED_OFF, why=f"{victim.to} takes no work any more")
    if _has_room(state, receipt):
        return MoveStepped(receipt.id, SAVING)
    if state.now_ms >= receipt.now_ms + moves.CLAIM_MS:
        return MoveStepped(receipt.id, CALLED_OFF, why="the room it was to go to did not come free")
    return None


def _next(state: State, receipt: Receipt, victim: Victim) -> MoveStepped | None:
    key = victim.job_id, victim.index
    task = state.tasks.get(key)
    if task is None or task.state.final:
        return _ended(receipt, victim, task)
    if victim.stage == SAVING:
        return _after_saving(state, receipt, victim, task)
    waits_long = state.now_ms >= victim.since_ms + moves.START_MS
    attempt = state.attempts.get(task.current)
    if victim.stage == STARTING:
        if attempt is not None and attempt.uid == victim.uid:
            return _step(receipt, victim, ROLLED_BACK, f"{victim.worker} came back with it")
        if attempt is not None:
            if attempt.worker != victim.to:
                return _step(receipt, victim, FAILED, f"it went to {attempt.worker} instead")
            if attempt.started and attempt.phase in (Phase.ACCEPTED, Phase.RUNNING):
                return _step(receipt, victim, SETTLING)
        elif task.last_uid != victim.uid:
            return _back(state, receipt, victim, f"it did not start on {victim.to}: {_why(state, task)}")
        elif not _is_there(state, victim.to) or not _holds(state, victim.to, victim):
            return _back(state, receipt, victim, f"{victim.to} is gone")
        if waits_long and attempt is not None:
            return _step(receipt, victim, FAILED, f"{victim.to} has it, and has not begun with it")
        return _back(state, receipt, victim, f"it did not start on {victim.to}") if waits_long else None
    if victim.stage == SETTLING:
        if attempt is None or attempt.uid != victim.next_uid:
            return _back(state, receipt, victim, f"it did not last on {victim.to}: {_why(state, task)}")
        if state.now_ms >= attempt.started_ms + moves.SETTLE_MS:
            return _step(receipt, victim, DONE)
        return None
    if attempt is not None:
        if attempt.worker != victim.worker:
            return _step(receipt, victim, FAILED, f"it went to {attempt.worker} instead")
        if attempt.started:
            return _step(receipt, victim, ROLLED_BACK)
    elif (move := state.moves.get(key)) is None or task.last_uid != move.uid:
        return _step(receipt, victim, FAILED, f"nor did it start on {victim.worker} again")
    elif not _is_there(state, victim.worker):
        return _step(receipt, victim, FAILED, f"{victim.worker} is gone too")
    return _step(receipt, victim, FAILED, f"nor did it start on {victim.worker}") if waits_long else None


def _after_saving(state: State, receipt: Receipt, victim: Victim, task: Task) -> MoveStepped | None:
    """Asked to stop: until it has."""
    if task.queued:
        return _step(receipt, victim, STARTING)
    if task.current and task.current != victim.uid:
        return _step(receipt, victim, FAILED, "it was started anew meanwhile")
    return None


def _ended(receipt: Receipt, victim: Victim, task: Task | None) -> MoveStepped:
    """Its task has ended for good, wherever it stood."""
    if task is None or task.state is JobState.SUCCEEDED:
        stage = DONE if victim.stage == SETTLING else CALLED_OFF
        return _step(receipt, victim, stage, "it has ended")
    return _step(receipt, victim, CALLED_OFF, f"it has ended: {task.error or task.state.value}")


def _back(state: State, receipt: Receipt, victim: Victim, why: str) -> MoveStepped:
    """To where it was if that is kept and there, else into the line."""
    kept = (victim.job_id, victim.index) in state.origins
    if kept and _is_there(state, victim.worker) and not state.jobs[victim.job_id].barred:
        return _step(receipt, victim, RETURNING, why)
    return _step(receipt, victim, FAILED, why)


def _step(receipt: Receipt, victim: Victim, stage: str, why: str = "") -> MoveStepped:
    return MoveStepped(receipt.id, stage, victim.uid, why)


def _why(state: State, task: Task) -> str:
    last = state.attempts.get(task.last_uid)
    return (last.error or last.phase.value) if last is not None else "it was given back"


def _is_there(state: State, worker: str) -> bool:
    """Whether a worker may get work, with a socket just now or without: a hub that comes back has none of any."""
    known = state.workers.get(worker)
    return known is not None and not (known.left or known.draining or known.silent)


def _holds(state: State, worker: str, victim: Victim) -> bool:
    """Whether a worker that registered as another could still have this task, and a job that was edited suits it."""
    row, asks = state.columns.row_of[worker], state.asks(state.jobs[victim.job_id].shape)
    return victim.to_variant < len(asks) and could_hold(state, row, asks[victim.to_variant])


def _has_room(state: State, receipt: Receipt) -> bool:
    """Whether all of them have room where they go, once they have left what they hold now."""
    rooms, mine = Rooms(state), {(victim.job_id, victim.index) for victim in receipt.victims}
    claim_moves(state, rooms, mine)
    spares: dict[int, Spare] = {}
    for victim in receipt.victims:
        row, job = state.columns.row_of[victim.to], state.jobs[victim.job_id]
        asks = state.asks(job.shape)
        if victim.to_variant >= len(asks):
            return False
        ask = asks[victim.to_variant]
        if not rooms.class_mask(ask)[state.columns.get("offer", row)]:
            return False
        spare = spares.get(row)
        if spare is None:
            leaving = [state.attempts[one.uid] for one in receipt.victims if one.worker == victim.to]
            owed = rooms.owed.get(row, ())
            spare = spares[row] = Spare(state, rooms.room(row, ask.pool), ask.pool, leaving, owed)
            spare.slots = min(spare.slots, rooms.left(row).credit + len(leaving))
        devices = victim.to_devices if spare.holds(ask, victim.to_devices) else spare.cards_for(ask)
        if spare.pool != ask.pool or devices is None:
            return False
        spare.take(ask, devices)
    return True
