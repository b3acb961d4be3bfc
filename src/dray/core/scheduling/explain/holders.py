"""Who holds what a waiting task misses, until when at the latest, and when there will be room by time limits.

Looks at a bounded number of the workers that come closest: what it tells is true of those, and an earlier start may
exist elsewhere. "At the latest" is meant: tasks may end before their limits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dray.core.lifecycle.holding.receipts import receipts_about
from dray.core.lifecycle.state.state import NEVER, State
from dray.core.model.ids import task_id
from dray.core.model.records.ledger import CLAIMED, RETURNING, SAVING, STARTING, Receipt
from dray.core.model.records.records import Attempt, Job, Phase
from dray.core.model.specs.ports import LEASED, count_ports, is_port
from dray.core.model.specs.resources import Ask
from dray.core.model.units import format_bytes
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.capacity.survey import Scan
from dray.core.scheduling.claims.reservations import earliest, end_ms, row_start
from dray.core.scheduling.explain.reason import Blocker, Holder, Start, Underway
from dray.core.scheduling.turns.reservation_rights import kept_for

MOST_HOLDERS = 5
CLOSEST = 24
MOST_STARTS = 128


def find_holders(state: State, rooms: Rooms, scan: Scan) -> list[Holder]:
    """The holders of what is missing on the workers that come closest, those that end first before others."""
    ask, now_ms = scan.ask, state.now_ms
    rows = closest_rows(scan, CLOSEST)
    starts = {row: start.at_ms if (start := row_start(state, rooms, row, ask, 0)) else NEVER for row in rows}
    found: list[Holder] = []
    for row in sorted(rows, key=lambda row: (starts[row], rows.index(row))):
        missing = [kind for (kind, ever), mask in scan.refused.items() if not ever and mask[row]]
        held = [state.attempts[uid] for uid in state.held.get(state.columns.worker_of[row], ())]
        for attempt in sorted(held, key=lambda one: (end_ms(state, one), one.fence)):
            what = _shares(state.ask(attempt), missing, ask)
            if what:
                job = state.jobs[attempt.job_id]
                ends_ms = end_ms(state, attempt)
                left_ms = NEVER if ends_ms >= NEVER else max(0, ends_ms - now_ms)
                found.append(Holder(state.spell(attempt), job.user, attempt.worker, what, left_ms))
            if len(found) >= MOST_HOLDERS:
                return found
    return found


def closest_rows(scan: Scan, most: int) -> list[int]:
    """Workers that could ever do, those first that miss the least."""
    rooms, ask = scan.survey.rooms, scan.ask
    rows = np.flatnonzero(scan.possible)
    view = scan.survey.state.columns.view
    miss = np.zeros(len(rows), dtype=np.float64)
    for (kind, ever), mask in scan.refused.items():
        if not ever and kind in ("offline", "draining", "suspect", "not_ready"):
            miss += mask[rows] * 10.0
    if ask.cpu_milli:
        miss += np.maximum(0, ask.cpu_milli - rooms.free("cpu")[rows]) / ask.cpu_milli
    if ask.memory_bytes:
        miss += np.maximum(0, ask.memory_bytes - rooms.free("mem")[rows]) / ask.memory_bytes
    if ask.gpus:
        miss += np.maximum(0, ask.gpus - view["free_gpu"][rows]) / ask.gpus
    order = np.argsort(miss, kind="stable")[:most]
    return [int(row) for row in rows[order]]


def find_start(state: State, job: Job, rooms: Rooms, scans: Sequence[Scan]) -> Start | None:
    """Its reservation, or else the earliest start that the limits of what runs on the closest workers allow."""
    names = state.columns.worker_of
    kept = kept_for(state, job)
    if kept is not None and kept.spots:
        workers = tuple(names[spot[1]] for spot in kept.spots)
        return Start(max(0, kept.start_ms - state.now_ms), workers, kept.spots[0][2], True)
    if not scans:
        return None
    rows = list(dict.fromkeys(row for scan in scans for row in closest_rows(scan, MOST_STARTS)))
    starts = earliest(state, rooms, [scan.ask for scan in scans], rows)
    if not starts:
        return None
    at_ms = max(start.at_ms for start in starts)
    workers = tuple(names[start.row] for start in starts)
    return Start(max(0, at_ms - state.now_ms), workers, starts[0].variant, False)


def find_underway(state: State, job: Job) -> Underway | None:
    """The preemption that makes room for a job, if one does."""
    receipt = state.receipts.get(job.id)
    if receipt is None:
        return None
    left = [
        attempt
        for victim in receipt.victims
        if victim.uid not in receipt.gone and (attempt := state.attempts.get(victim.uid)) is not None
    ]
    stopping = [attempt for attempt in left if attempt.phase.live]
    ends_ms = max((_gone_ms(state, attempt) for attempt in stopping), default=state.now_ms)
    in_ms = NEVER if ends_ms >= NEVER else max(0, ends_ms - state.now_ms)
    spelled = tuple(state.spell(attempt) for attempt in stopping)
    moved = sum(1 for victim in receipt.victims if victim.to)
    return Underway(receipt.id, receipt.rule, spelled, len(receipt.victims), in_ms, moved)


def find_moved(state: State, job: Job) -> list[Blocker]:
    """Tasks of a job that are being moved aside, each with where to and for whom."""
    found = []
    for (job_id, index), move in state.moves.items():
        if job_id == job.id:
            name = task_id(job_id, job.spelled(index))
            receipt = next((one for one in receipts_about(state, job_id) if _moves(one, move.uid)), None)
            text = f"{name} is moved to {move.worker} to make room for other work"
            if receipt is not None and receipt.is_move:
                text = f"{name} {_tell_move(receipt, move.uid)}"
            elif receipt is not None:
                text = f"{text}, preemption {receipt.id}"
            who = receipt.job_id if receipt is not None and not receipt.is_move else ""
            found.append(Blocker("moved", f"room on {move.worker}", "kept for it", message=text, who=who))
    return found


def _moves(receipt: Receipt, uid: str) -> bool:
    return any(uid in (victim.uid, victim.next_uid) and victim.to for victim in receipt.victims)


_STAGES = {
    CLAIMED: "is to move to {to}: what it needs there is kept for it as it comes free",
    SAVING: "is asked to stop, and starts again on {to}, where its room is kept",
    STARTING: "starts again on {to}, where its room is kept",
    RETURNING: "goes back to {back}, where its room was kept",
}


def _tell_move(receipt: Receipt, uid: str) -> str:
    """How far the move of a task has come that is moved for its own sake."""
    victim = next(one for one in receipt.victims if uid in (one.uid, one.next_uid))
    text = _STAGES.get(victim.stage, "is moved to {to}").format(to=victim.to, back=victim.worker)
    return f"{text} ({receipt.cause}, move {receipt.id})"


def _gone_ms(state: State, attempt: Attempt) -> int:
    return end_ms(state, attempt) if attempt.phase is Phase.STOPPING else state.now_ms


def _shares(ask: Ask, missing: Sequence[str], wanted: Ask) -> str:
    """The part of what an attempt holds that is missing to somebody else."""
    parts = []
    if ask.gpus and ("gpu" in missing or "vram" in missing):
        milli = ask.gpus * ask.gpu_milli
        parts.append(f"{milli / 1000:g} GPU{'' if milli <= 1000 else 's'}")
    if ask.cpu_milli and "cpu" in missing:
        parts.append(f"{ask.cpu_milli / 1000:g} core{'' if ask.cpu_milli == 1000 else 's'}")
    if ask.memory_bytes and "memory" in missing:
        parts.append(f"{format_bytes(ask.memory_bytes)} of memory")
    if ask.resources and "resource" in missing:
        parts += [
            f"{amount} {name}" for name, amount in ask.resources if not is_port(name) and name != LEASED
        ]
    if "port" in missing:
        parts += [name for name, _ in ask.resources if is_port(name) and (name, 1) in wanted.resources]
    if "ports" in missing:
        parts += [count_ports(amount) for name, amount in ask.resources if name == LEASED]
    if not parts and ("slot" in missing or "credit" in missing):
        parts.append(f"a {ask.pool} slot")
    return ", ".join(parts)
