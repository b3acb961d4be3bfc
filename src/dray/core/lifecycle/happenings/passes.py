"""What passes decide, folded in: who is left out of them, what is kept for whom, when somebody is looked at again.

Rules only write down what they are told: whether an entry stands or a worker has room is for scheduling to say.
"""

from __future__ import annotations

from collections.abc import Iterable

from dray.core.lifecycle.state.effects import Alarm, Effect, Note, NoWork, SolveWanted
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.lines import BucketKey
from dray.core.lifecycle.state.pass_events import (
    BatchClosed,
    BatchOpened,
    Braked,
    EmptyingLooked,
    HeadsStale,
    HintsGiven,
    LanesHungry,
    LanesKept,
    LanesSeen,
    LeadsSeen,
    LineWatch,
    PassBegan,
    PassSettled,
    PollsAnswered,
    RebalanceLooked,
    RoomReleased,
    SolverTold,
    TurnBegan,
)
from dray.core.lifecycle.state.state import NEVER, Batch, State

# So long hints are good for, which is also how often batches are made at most.
HINTS_MS = 1_000
BATCH = "batch"


def turn_began(state: State, event: TurnBegan, clock: Clock) -> list[Effect]:
    """Time has passed, which `apply` has noted already."""
    return []


def braked(state: State, event: Braked, clock: Clock) -> list[Effect]:
    """Tell people."""
    text = (
        "over half the workers fell silent within a minute: no loss is decided until they are back; "
        "if they are gone for good, drain them (dray worker drain)"
    )
    return [Alarm(text), Note("alarm", data={"text": text})]


def room_released(state: State, event: RoomReleased, clock: Clock) -> list[Effect]:
    """What was kept is there for others, and nobody else will say so."""
    columns = state.columns
    for key in event.moves:
        row = columns.row_of.get(state.moves.pop(key).worker)
        if row is not None:
            columns.roomier[row] = None
    for slot, still_due in event.slots:
        kept = state.reservations.pop(slot)
        columns.roomier.update(dict.fromkeys(spot[1] for spot in kept.spots))
        if still_due:
            state.note_due(kept.job_id)
    return []


def pass_began(state: State, event: PassBegan, clock: Clock) -> list[Effect]:
    """All rows that gained room were looked at; those that reservations leave are for the next pass."""
    for shape in event.woken:
        state.backlog.wake(shape)
    state.parties.eased.clear()
    if event.whole:
        state.backlog.settle()
    state.columns.roomier.clear()
    state.reservations.update(event.kept)
    for job_id in event.answered:
        del state.unprotected[job_id]
    state.backlog.doubts = dict.fromkeys(event.answered) if state.unprotected else None
    _protect_later(state, event.due, event.watches)
    state.columns.roomier.update(dict.fromkeys(event.left))
    return []


def heads_stale(state: State, event: HeadsStale, clock: Clock) -> list[Effect]:
    """Entries that mean nothing leave their lines."""
    _drop_heads(state, event.lines)
    return []


def pass_settled(state: State, event: PassSettled, clock: Clock) -> list[Effect]:
    """Leave out what found no room or stands behind a gate, and what was looked at."""
    backlog = state.backlog
    for shape in event.parked:
        backlog.park(shape, full=True)
    for line, gate in event.gated:
        # Also where others stand behind it already: they may wait for an end, and this line for a moment.
        opens_ms = state.parties.gates[gate].opens_ms(state.now_ms)
        if opens_ms and opens_ms < backlog.opens.get(gate, NEVER):
            backlog.opens[gate] = opens_ms
            state.set_timer(opens_ms, "gate", gate)
        backlog.shut(line, gate)
    _protect_later(state, event.due, event.watches)
    for job_id, at_ms in event.looks:
        if at_ms < state.looking.get(job_id, NEVER):
            state.looking[job_id] = at_ms
            state.set_timer(at_ms, "look", job_id)
    _drop_heads(state, event.stale)
    for shape in event.seen:
        backlog.park(shape, full=False)
    return []


def polls_answered(state: State, event: PollsAnswered, clock: Clock) -> list[Effect]:
    """Say to whoever asked for more than there was that there is none."""
    none: list[Effect] = []
    for worker, polls in state.polls.items():
        none += [NoWork(worker)] * (polls - event.served.get(worker, 0))
    state.polls.clear()
    return none


def emptying_looked(state: State, event: EmptyingLooked, clock: Clock) -> list[Effect]:
    """Look again later for what found no place yet."""
    if event.worker in state.emptying:
        state.emptying[event.worker] = event.again_ms
        state.set_timer(event.again_ms, "move", event.worker)
    return []


def rebalance_looked(state: State, event: RebalanceLooked, clock: Clock) -> list[Effect]:
    """Remember what was seen, and look again."""
    state.outlook = event.outlook
    state.set_timer(event.outlook.look_ms, "move", "")
    return []


def lanes_seen(state: State, event: LanesSeen, clock: Clock) -> list[Effect]:
    """Look at these lanes again once they have results."""
    for uid in event.uids:
        state.hungry.pop(uid, None)
    return []


def lanes_hungry(state: State, event: LanesHungry, clock: Clock) -> list[Effect]:
    """Look at these lanes."""
    state.hungry.update(dict.fromkeys(event.uids))
    return []


def lanes_kept(state: State, event: LanesKept, clock: Clock) -> list[Effect]:
    """Look at lanes without calls again after a while."""
    for uid, due_ms in event.until_ms:
        state.set_timer(due_ms, "linger", uid)
        state.lingering[uid] = due_ms
    return []


def leads_seen(state: State, event: LeadsSeen, clock: Clock) -> list[Effect]:
    """Look at these again once another has taken a place over."""
    for uid in event.uids:
        state.leads.pop(uid, None)
    return []


def _protect_later(state: State, due: Iterable[str], watches: Iterable[LineWatch]) -> None:
    for job_id in due:
        state.note_due(job_id)
    for job_id, after_ms, at_ms in watches:
        state.watched[job_id] = after_ms
        state.set_timer(at_ms, "protect", job_id)


def _drop_heads(state: State, lines: Iterable[tuple[BucketKey, int]]) -> None:
    """Forget stale entries, and the line when nothing is left."""
    for line, count in lines:
        bucket = state.backlog.buckets[line]
        for _ in range(count):
            bucket.drop_head()
        if bucket.head >= len(bucket.entries):
            state.backlog.remove_bucket(line)


def batch_opened(state: State, event: BatchOpened, clock: Clock) -> list[Effect]:
    """Leave these shapes out of passes for a moment, and have somebody asked."""
    state.batches += 1
    state.batch = Batch(state.batches, event.until_ms, event.shapes)
    state.set_timer(event.until_ms, BATCH, str(state.batches))
    return [SolveWanted(state.batches)]


def hints_given(state: State, event: HintsGiven, clock: Clock) -> list[Effect]:
    """Have the next passes know where tasks are best placed. An answer to a batch that is over is none."""
    if event.number and (state.batch is None or state.batch.number != event.number or not state.batch.shapes):
        return []
    if not event.number:
        state.batches += 1
    hints = {(job_id, index): worker for job_id, index, worker in event.hints}
    until_ms = clock.now_ms + HINTS_MS
    state.batch = Batch(state.batches, until_ms, (), hints)
    state.set_timer(until_ms, BATCH, str(state.batches))
    return []


def batch_closed(state: State, event: BatchClosed, clock: Clock) -> list[Effect]:
    """Place one by one what is left; one that nobody answered in time makes no room for another at once."""
    batch = state.batch
    if batch is None or batch.number != event.number or batch.until_ms > clock.now_ms:
        return []
    state.batch = None
    if batch.shapes:
        state.batch = Batch(batch.number, clock.now_ms + HINTS_MS)
        state.set_timer(state.batch.until_ms, BATCH, str(batch.number))
    return []


def solver_told(state: State, event: SolverTold, clock: Clock) -> list[Effect]:
    """Know whether many tasks may be given to a solver."""
    state.solver = event.ready
    return []
