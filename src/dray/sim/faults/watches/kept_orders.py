"""Whether orders that are kept from pass to pass are what working them out anew would give: of workers, and of turns.

Asks for scores as a pass would and throws the answers away. Knows nothing of what a score should be. A line may stand
before where it belongs, which its turn will show; never behind it, nor outside of its roster.
"""

from __future__ import annotations

import numpy as np

from dray.core.lifecycle.state.lines import BucketKey
from dray.core.lifecycle.state.state import State
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.placement.candidates import score_all
from dray.core.scheduling.placement.kept_keys import is_plain, keep_keys
from dray.core.scheduling.placement.placer import make_placer
from dray.core.scheduling.placement.scorers import Wish
from dray.core.scheduling.turns.order import Head, Turns
from dray.core.scheduling.turns.ranks import next_entry, rank_of, stands
from dray.core.scheduling.turns.rosters import (
    CLOSE,
    FADED,
    NOTHING,
    Key,
    Roster,
    half_lives,
    ready,
    rosters_of,
    share_key,
)
from dray.core.scheduling.turns.unprotected import may_start, unprotected_of


def find_misjudged(state: State) -> list[str]:
    """Shapes whose workers stand otherwise than they should; each is asked for once."""
    found, asked = [], set()
    for job in state.jobs.values():
        placer = make_placer(state, Rooms(state))
        key, asks = (job.shape, placer.flavour(job) if placer.personal else ""), state.asks(job.shape)
        if key not in placer.rooms.memory.standings or key in asked or not is_plain(asks):
            continue
        asked.add(key)
        wish = Wish(state, asks[0], job)
        kept, anew = keep_keys(placer, *key, wish), score_all(make_placer(state, Rooms(state)), wish)
        if not np.array_equal(kept, anew):
            found.append(f"workers stand for {job.id} as {kept.tolist()}, and should as {anew.tolist()}")
    return found


def find_misplaced(state: State) -> list[str]:
    """Lines that no pass would look at in their turn."""
    backlog, rosters = state.backlog, rosters_of(state)
    found = [f"line {line} begins with what means nothing, and no pass hears of it" for line in _stale(state)]
    for shape, kept in rosters.of_shape.items():
        if kept.crowds is not backlog.of_shape.get(shape):
            continue
        for line in backlog.lines_of(shape):
            if _is_heard(state, line) or backlog.is_gated(line):
                continue
            belongs, roster = _key(state, line), rosters.home.get(line)
            if belongs is None:
                continue
            if roster is None:
                found.append(f"line {line} stands in no roster, and belongs at {belongs}")
            elif not (line in roster.lagging or _is_due(state, roster, line)):
                key = roster.keys[line]
                if key > _slack(state, roster, belongs):
                    found.append(f"line {line} stands at {key} in its roster, behind {belongs}")
    return found


def find_misprotected(state: State) -> list[str]:
    """Those due for a reservation who would be asked out of turn, or not as soon as they may not start."""
    if not state.unprotected:
        return []
    due, anew = unprotected_of(state), Turns(state, ())
    vain = due.look(state)
    held_back = []
    for job_id in state.unprotected:
        job = state.jobs.get(job_id)
        if job is None or not may_start(state, job):
            held_back.append(job_id)
        else:
            line = state.line_of(job)
            anew.push(Head(rank_of(state, line, job, next_entry(state, job)), line, job))
    kept = Turns(state, (), [roster for roster in due.rosters.values() if roster.order], due.walk)
    turns, expected = _take_all(kept), _take_all(anew)
    found = []
    if turns != expected:
        found.append(f"due for a reservation are {turns} in turn, and should be {expected}")
    if sorted(vain) != sorted(held_back):
        found.append(f"due no longer are {sorted(vain)}, and should be {sorted(held_back)}")
    return found


def _take_all(turns: Turns) -> list[str]:
    taken = []
    while (head := turns.pop()) is not None:
        taken.append(head.job.id)
        if head.line in turns.seen:
            turns.push_next(head.line)
    return taken


def _stale(state: State) -> list[BucketKey]:
    backlog = state.backlog
    return [
        line
        for line, bucket in backlog.buckets.items()
        if line not in backlog.stirred.get(line.shape, ())
        and not stands(state, line, bucket.entries[bucket.head])
    ]


def _is_heard(state: State, line: BucketKey) -> bool:
    """Whether the next pass over its shape looks at it in any case."""
    return (
        line in state.backlog.stirred.get(line.shape, ())
        or state.parties.all[line.party].user in state.parties.eased
    )


def _is_due(state: State, roster: Roster, line: BucketKey) -> bool:
    return any(at_ms <= state.now_ms and other == line for at_ms, other in roster.later)


def _key(state: State, line: BucketKey) -> Key | None:
    party = state.parties.all[line.party]
    for job, entry in ready(state, line):
        rank = rank_of(state, line, job, entry)
        if party.rules.order == "fair_share":
            return rank[0], share_key(state, party), party.user, line
        return *rank, line
    return None


def _slack(state: State, roster: Roster, key: Key) -> Key:
    """What rounding may make of a place."""
    if not roster.fair:
        return key
    if key[1] == NOTHING:
        # What was left of it is no number any more, and is taken for nothing.
        return key[0], half_lives(state) - FADED, *key[2:]
    return key[0], key[1] + CLOSE * (1 + abs(key[1]) + half_lives(state)), *key[2:]
