"""The order of turns among many lines of one shape, kept from pass to pass: a pass looks at those whose turn comes.

A line stands in a roster by its head as it was when it was last looked at. It may have fallen behind since then, which
is noticed when its turn comes; it never comes forward unnoticed: a line that was stirred, a user who has used less than
was counted and what time alone changes (ageing, the end of a budget's period) are looked at before each pass. By fair
share a line stands by the logarithm of what its user has had, plus the half-lives that have gone by: what has ended
halves for everybody alike, so that this does not change with time, and grows only where something runs.

A cache: whoever makes a plan brings it up to date, and may throw the plan away.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from dray.core.lifecycle.state.lines import FEW_LINES, BucketKey, Crowd, CrowdKey, Entry
from dray.core.lifecycle.state.parties import Party, usage_of
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.core.scheduling.capacity.memory import memory_of
from dray.core.scheduling.turns.ranks import rank_of, standing

# Where a line stands. In turn by itself: (late, minus the aged priority, its entry, line); by its user's share:
# (late, the logarithm of it, user, line).
Key = tuple[Any, ...]
NOTHING = -math.inf
# The exact shares are compared where logarithms are this close, in parts of themselves.
CLOSE = 1e-9
# A share that has halved as often is no number any more, or has lost most of its digits.
FADED = 900.0
# After every user.
BEHIND_ALL = chr(0x10FFFF)
# So many shapes that have gone are no matter.
MANY = 64


class Roster:
    """Lines of one shape and queue in order. `lagging`: those that did not stand where they were thought to."""

    __slots__ = (
        "crowd",
        "fair",
        "keys",
        "lagging",
        "later",
        "order",
        "priorities",
        "queue",
        "ranked",
        "shape",
    )

    def __init__(self, queue: str, shape: int, fair: bool, crowd: Crowd | None) -> None:
        self.queue, self.shape, self.fair, self.crowd = queue, shape, fair, crowd
        self.order: list[Key] = []
        self.keys: dict[BucketKey, Key] = {}
        self.later: list[tuple[int, BucketKey]] = []
        self.lagging: dict[BucketKey, None] = {}
        self.priorities: dict[int, int] = {}
        self.ranked: dict[BucketKey, None] = {}

    @property
    def is_open(self) -> bool:
        """Whether no gate shuts out all of it."""
        return self.crowd is None or not self.crowd.gate

    def faded(self, bound: float) -> list[Key]:
        """Lines whose user has had so little that it may be nothing by now, but for those that had nothing before."""
        found: list[Key] = []
        for late in (0, 1):
            first = bisect_left(self.order, (late, NOTHING, BEHIND_ALL))
            found += self.order[first : bisect_left(self.order, (late, bound), lo=first)]
        return found

    def put(self, line: BucketKey, key: Key, again_ms: int, ranked: bool) -> None:
        """Let a line stand where it belongs; `again_ms`: when time may bring it forward, 0: never."""
        insort(self.order, key)
        self.keys[line] = key
        self.priorities[line.priority] = self.priorities.get(line.priority, 0) + 1
        if ranked:
            self.ranked[line] = None
        if again_ms:
            heapq.heappush(self.later, (again_ms, line))

    def drop(self, line: BucketKey) -> Key:
        """Take a line out of where it stands."""
        key = self.keys.pop(line)
        del self.order[bisect_left(self.order, key)]
        self.ranked.pop(line, None)
        self.priorities[line.priority] -= 1
        if not self.priorities[line.priority]:
            del self.priorities[line.priority]
        return key


class Kept(NamedTuple):
    """The rosters of one shape. `crowds`: those whose lines they are of; a shape that comes back has others."""

    crowds: dict[CrowdKey, Crowd]
    rosters: dict[tuple[Any, ...], Roster]


class Standings:
    """Lines that stand in rosters, and what may bring them forward."""

    def __init__(self) -> None:
        self._start(None)

    def _start(self, state: State | None) -> None:
        # What they are of: another policy makes other lines.
        self._backlog = None if state is None else state.backlog
        self._now_ms = 0
        self._recounted = 0
        self.home: dict[BucketKey, Roster] = {}
        self._of_user: dict[str, dict[BucketKey, None]] = {}

    def place(self, state: State, line: BucketKey) -> None:
        """Let a line stand where its head belongs now, or nowhere."""
        raise NotImplementedError

    def _is_of(self, state: State) -> bool:
        """Whether all that is known is of this state, and not of a later moment of it."""
        return self._backlog is state.backlog and state.now_ms >= self._now_ms

    def _catch_up(self, state: State) -> None:
        """What concerns lines of any roster."""
        self._now_ms = state.now_ms
        if self._recounted != state.parties.recounted:
            self._recounted = state.parties.recounted
            for line, roster in list(self.home.items()):
                if roster.keys[line][0]:
                    self.place(state, line)
        for user in state.parties.eased:
            for line in list(self._of_user.get(user, ())):
                self.place(state, line)

    def _look_again(self, state: State, roster: Roster) -> None:
        """Those that were not where they were thought to be, and those that time may have brought forward."""
        lagging, roster.lagging = roster.lagging, {}
        for line in lagging:
            self.place(state, line)
        while roster.later and roster.later[0][0] <= state.now_ms:
            _, line = heapq.heappop(roster.later)
            if self.home.get(line) is roster:
                self.place(state, line)
        for key in roster.faded(half_lives(state) - FADED) if roster.fair else ():
            self.place(state, key[-1])

    def _stand(self, state: State, line: BucketKey, roster: Roster, job: Job, entry: Entry) -> None:
        """Let a line stand where this job, its first, belongs."""
        party = state.parties.all[line.party]
        rank = rank_of(state, line, job, entry)
        key: Key = (*rank, line)
        if roster.fair:
            key = (rank[0], share_key(state, party), party.user, line)
            self._of_user.setdefault(party.user, {})[line] = None
        roster.put(line, key, _again_ms(state, party, job, rank[0]), job.ranked)
        self.home[line] = roster

    def _take_out(self, line: BucketKey) -> None:
        roster = self.home.pop(line, None)
        if roster is None:
            return
        key = roster.drop(line)
        if roster.fair:
            lines = self._of_user[key[-2]]
            del lines[line]
            if not lines:
                del self._of_user[key[-2]]


class Rosters(Standings):
    """All rosters of a state."""

    def _start(self, state: State | None) -> None:
        super()._start(state)
        self.of_shape: dict[int, Kept] = {}

    def look(self, state: State, shapes: Iterable[int]) -> tuple[list[BucketKey], list[Roster]]:
        """Bring the rosters of these shapes up to date; gives them, after the lines to be looked at one by one.

        One by one those of which something was heard, and all where there are few, behind gates or not.
        """
        self._catch_up(state)
        backlog = state.backlog
        lines: list[BucketKey] = []
        found: list[Roster] = []
        for shape in shapes:
            crowds = backlog.of_shape.get(shape, {})
            kept = self.of_shape.get(shape)
            if kept is not None and kept.crowds is not crowds:
                # Its last line has gone meanwhile, and the number is that of another shape.
                self._drop(shape)
                kept = None
            if kept is None and sum(len(crowd.lines) for crowd in crowds.values()) <= FEW_LINES:
                lines += backlog.lines_of(shape)
                continue
            stirred = backlog.stirred.get(shape, {})
            if kept is None:
                kept = self.of_shape[shape] = Kept(crowds, {})
                for line in list(backlog.lines_of(shape)):
                    self.place(state, line)
            else:
                self._renew(state, kept.rosters, stirred)
            lines += (line for line in stirred if line in backlog.buckets)
            found += [roster for roster in kept.rosters.values() if roster.order and roster.is_open]
        return lines, found

    def _drop(self, shape: int) -> None:
        for roster in self.of_shape.pop(shape).rosters.values():
            for line in list(roster.keys):
                self._take_out(line)

    def _catch_up(self, state: State) -> None:
        if not self._is_of(state):
            self._start(state)
        if len(self.of_shape) > 2 * len(state.backlog.of_shape) + MANY:
            for shape in [one for one in self.of_shape if one not in state.backlog.of_shape]:
                self._drop(shape)
        super()._catch_up(state)

    def _renew(self, state: State, kept: dict[tuple[Any, ...], Roster], stirred: Iterable[BucketKey]) -> None:
        for line in stirred:
            self.place(state, line)
        for name, roster in list(kept.items()):
            self._look_again(state, roster)
            if not roster.order:
                del kept[name]

    def place(self, state: State, line: BucketKey) -> None:
        self._take_out(line)
        bucket = state.backlog.buckets.get(line)
        if bucket is None:
            return
        roster = self._roster(state, line, bucket.crowd)
        if roster is None or line in state.backlog.gated:
            return
        for job, entry in ready(state, line):
            self._stand(state, line, roster, job, entry)
            return

    def _roster(self, state: State, line: BucketKey, crowd: Crowd) -> Roster | None:
        """Where a line is kept: its crowd has a roster of its own, unless it is small; None: it waits for a gate."""
        kept = self.of_shape[line.shape].rosters
        name = (crowd.key.queue, crowd.key.marks)
        own = kept.get(name)
        if own is not None:
            return own
        fair = state.policy.queue(crowd.key.queue).order == "fair_share"
        if len(crowd.lines) > FEW_LINES:
            own = kept[name] = Roster(crowd.key.queue, line.shape, fair, crowd)
            for other in [one for one in crowd.lines if one != line]:
                self.place(state, other)
            return own
        if crowd.gate:
            return None
        rest = kept.get((crowd.key.queue,))
        if rest is None:
            rest = kept[crowd.key.queue,] = Roster(crowd.key.queue, line.shape, fair, None)
        return rest


def rosters_of(state: State) -> Rosters:
    """The rosters that are kept for a state."""
    measures = memory_of(state).measures
    found = measures.get(Rosters)
    if not isinstance(found, Rosters):
        found = measures[Rosters] = Rosters()
    return found


def ready(state: State, line: BucketKey) -> Iterator[tuple[Job, Entry]]:
    """The entries of a line that stand, but for those whose job runs as many as its own cap allows."""
    return ((job, entry) for job, entry in standing(state, line) if not (job.limit and job.live >= job.limit))


def share_key(state: State, party: Party) -> float:
    """What orders the users of a fair-share queue whenever it is asked, as long as nothing of theirs runs."""
    policy, user = state.policy, party.user
    had = usage_of(policy, state.ledger, state.parties.users, user, state.now_ms)
    return logarithm(state, had / policy.fair_share.weights.get(user, 1.0))


def logarithm(state: State, share: float) -> float:
    """A share, as rosters have it."""
    return math.log2(share) + half_lives(state) if share > 0 else NOTHING


def half_lives(state: State) -> float:
    """How often all that was used has halved by now."""
    return state.now_ms / (state.policy.fair_share.half_life_s * 1000)


def _again_ms(state: State, party: Party, job: Job, late: int) -> int:
    """When time alone may bring a line forward at the soonest; 0: never."""
    moments = []
    ageing_ms = party.rules.ageing_s * 1000 if party.rules.order == "priority" else 0
    if ageing_ms:
        points = int(max(0, state.now_ms - job.waiting_since_ms) / ageing_ms) + 1
        moments.append(int(job.waiting_since_ms + points * ageing_ms))
    if late:
        moments += [(state.now_ms // gate.per_ms + 1) * gate.per_ms for gate in party.budgets]
    return max(min(moments), state.now_ms + 1) if moments else 0
