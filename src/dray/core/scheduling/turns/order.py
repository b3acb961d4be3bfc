"""Whose turn it is: queues by their share, users within a fair-share queue by their usage, then the queue's own order.

Knows nothing about room. Only the lines it is given take part, and those of rosters when their turn comes: a pass
gives those of shapes that are awake, so it costs what changed. The surprising rule: a line whose party is over its soft
budget goes behind everybody else's, whatever its queue says.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import count, islice
from typing import NamedTuple

from dray.core.lifecycle.state.lines import RANGE, BucketKey, Entry
from dray.core.lifecycle.state.parties import Party, usage_of
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.core.scheduling.turns.ranks import rank_of, standing
from dray.core.scheduling.turns.rosters import (
    BEHIND_ALL,
    CLOSE,
    FADED,
    NOTHING,
    Key,
    Roster,
    half_lives,
    logarithm,
)


class Head(NamedTuple):
    """The first job of a line, as it waits for its turn. `rank`: late or not, minus the aged priority, its entry."""

    rank: tuple[int, int, Entry]
    line: BucketKey
    job: Job


# After every line.
BEYOND = (math.inf,)
# A rank in one tuple, the head at its end: of all comparisons of a large pass most are made between these.
Ranked = tuple[int, int, int, int, int, int, str, Head]
# Who of a line waits for a turn, first come first.
Walk = Callable[[State, BucketKey], Iterator[tuple[Job, Entry]]]


class Group:
    """Lines that are ordered among themselves: a queue, or one user's part of a fair-share queue."""

    __slots__ = ("had", "heap", "user", "weight")

    def __init__(self, user: str, had: float, weight: float) -> None:
        self.user, self.had, self.weight = user, had, weight
        self.heap: list[Head] = []

    @property
    def share(self) -> tuple[int, float, str]:
        """The less it has had for its weight, the sooner it is served; late work comes last."""
        return self.heap[0].rank[0], self.had / self.weight, self.user


class Feeder:
    """One roster on its way through a pass. `key`: of the line that comes next, None: there is none."""

    __slots__ = ("_at", "_taken", "above", "key", "roster")

    def __init__(self, roster: Roster, taken: Container[BucketKey]) -> None:
        self.roster, self._taken = roster, taken
        self._at = 0
        self.above: int | None = None
        self.key: Key | None = None
        self.go_on()

    def go_on(self) -> None:
        """To the next line that has not had its turn. `above`: lines of a higher priority alone are left."""
        order, above = self.roster.order, self.above
        while self._at < len(order):
            self.key = order[self._at]
            self._at += 1
            line = self.key[-1]
            if line not in self._taken and (above is None or line.priority > above):
                return
        self.key = None

    def has_others(self, user: str) -> bool:
        """Whether lines of other users are to come."""
        if self.key is None:
            return False
        left = islice(self.roster.order, self._at - 1, None)
        return any(key[-2] != user for key in left if key[-1] not in self._taken)

    def rise(self, priority: int) -> bool:
        """Leave lines out that are not above a priority; gives whether any other may be left."""
        if max(self.roster.priorities) <= priority:
            return False
        self.above = priority if self.above is None else max(priority, self.above)
        if self.key is not None and self.key[-1].priority <= self.above:
            self.go_on()
        return self.key is not None


class Lineup:
    """Who waits in one queue: groups, the one whose turn it is first, and rosters of which more come in their turn."""

    def __init__(self, state: State, queue: str) -> None:
        self._state = state
        self.queue = queue
        self.fair = state.policy.queue(queue).order == "fair_share"
        self.groups: dict[str, Group] = {}
        self.order: list[tuple[int, float, str, int, Group]] = []
        self.feeders: list[tuple[Key, int, Feeder]] = []
        self.waiting = 0
        self._number = count()

    def feed(self, feeder: Feeder) -> None:
        """Let the lines of a roster come in as well."""
        if feeder.key is not None:
            key = feeder.key
            if self.fair and NOTHING < key[1] < half_lives(self._state) - FADED:
                # So little is left of it that the number may be nothing by now.
                key = (key[0], NOTHING, "")
            heapq.heappush(self.feeders, (key, next(self._number), feeder))

    def group_of(self, party: Party) -> Group:
        """The group that a party's lines are in."""
        user = party.user if self.fair else ""
        group = self.groups.get(user)
        if group is None:
            had, weight = 0.0, 1.0
            if user:
                state = self._state
                policy, users = state.policy, state.parties.users
                had = usage_of(policy, state.ledger, users, user, state.now_ms)
                weight = policy.fair_share.weights.get(user, 1.0)
            group = self.groups[user] = Group(user, had, weight)
        return group

    def push(self, head: Head, group: Group) -> None:
        """Let a head wait in its group."""
        self.waiting += not group.heap
        heapq.heappush(group.heap, head)
        if group.heap[0] is head:
            heapq.heappush(self.order, (*group.share, next(self._number), group))

    def first(self) -> Group | None:
        """The group whose turn it is, of those that are here."""
        order = self.order
        while order:
            late, had, user, _, group = order[0]
            if not group.heap:
                heapq.heappop(order)
            elif group.share == (late, had, user):
                return group
            else:
                # It has had more since, or what is first of it now is late.
                heapq.heapreplace(order, (*group.share, next(self._number), group))
        return None

    def next_line(self, group: Group | None) -> BucketKey | None:
        """The line of a roster whose turn may come before a group's, which is the first of those that are here."""
        if not self.feeders:
            return None
        key, _, feeder = self.feeders[0]
        if group is not None and self._bound(group) < key:
            return None
        heapq.heappop(self.feeders)
        found = feeder.key
        feeder.go_on()
        self.feed(feeder)
        if found is None:
            return None
        line: BucketKey = found[-1]
        # It may have fallen behind where it stands: the next pass looks.
        feeder.roster.lagging[line] = None
        return line

    def take(self, group: Group) -> Head:
        """Take the first head of the group whose turn it is."""
        heapq.heappop(self.order)
        head = heapq.heappop(group.heap)
        if group.heap:
            heapq.heappush(self.order, (*group.share, next(self._number), group))
        else:
            self.waiting -= 1
        return head

    def prune(self, keep: Callable[[Feeder], bool]) -> None:
        """Leave out rosters of which nobody else need be looked at."""
        kept = [feeder for _, _, feeder in self.feeders if keep(feeder)]
        self.feeders.clear()
        for feeder in kept:
            self.feed(feeder)

    def has_others(self, user: str) -> bool:
        """Whether others than one group wait."""
        own = self.groups.get(user)
        if self.waiting > (own is not None and bool(own.heap)):
            return True
        return self.fair and any(feeder.has_others(user) for _, _, feeder in self.feeders)

    def _bound(self, group: Group) -> Key:
        """Whoever stands before this in a roster may come before a group."""
        if not self.fair:
            return group.heap[0].rank
        late, share, user = group.share
        if share <= 0:
            # His other lines are to be here too: which of them is first says their own order.
            return late, NOTHING, user, BEYOND
        exact = logarithm(self._state, share)
        return late, exact + CLOSE * (1 + abs(exact) + half_lives(self._state)), BEHIND_ALL


class Turns:
    """The heads of lines, in the order in which they are to be served."""

    def __init__(
        self, state: State, lines: Iterable[BucketKey], rosters: Sequence[Roster] = (), walk: Walk = standing
    ) -> None:
        self._state, self._walk = state, walk
        self._walks: dict[BucketKey, Iterator[tuple[Job, Entry]]] = {}
        self._lineups: dict[str, Lineup] = {}
        self._had: dict[str, float] = {}
        self._only: list[Ranked] | None = None
        # The first of `_only` was taken out, but for its place: most often another comes for it at once.
        self._vacant = False
        for line in lines:
            if line not in self._walks:
                self._walks[line] = walk(state, line)
                self.push_next(line)
        for roster in rosters:
            self._lineup(roster.queue).feed(Feeder(roster, self._walks))
        lineups = list(self._lineups.values())
        # One queue whose users are not weighed against each other: nobody's share is asked for.
        self.alone = not lineups
        if len(lineups) == 1 and not lineups[0].fair:
            # Whoever is pushed without a line of his own may be of another queue: then nobody is alone.
            self.alone = True
            if not rosters:
                heads = lineups[0].groups[""].heap
                self._only = [(*head.rank[:2], *head.rank[2], head) for head in heads]

    @property
    def seen(self) -> Iterable[BucketKey]:
        """The lines that were looked at."""
        return self._walks

    def is_contended(self, head: Head) -> bool:
        """Whether others than this head's own group wait, which was taken out: then turns are taken task by task."""
        if self.alone:
            return False
        party = self._state.parties.all[head.line.party]
        for lineup in self._lineups.values():
            if lineup.queue != party.queue:
                if lineup.waiting or lineup.feeders:
                    return True
            elif lineup.has_others(lineup.group_of(party).user):
                return True
        return False

    def leave_out(self, keep: Callable[[Feeder], bool]) -> None:
        """Nobody else of some rosters need be looked at: only those that have come out of them already are."""
        for lineup in self._lineups.values():
            if lineup.feeders:
                lineup.prune(keep)

    def push_next(self, line: BucketKey) -> None:
        """Let the next standing job of a line wait for its turn."""
        for job, entry in self._walks[line]:
            rank = rank_of(self._state, line, job, entry)
            # As `Head(rank, line, job)`, in half the time: one is made for every task of a large pass.
            self.push(tuple.__new__(Head, (rank, line, job)))
            return

    def push(self, head: Head) -> None:
        """Let a head wait (again): its job has more tasks, and others take turns with it."""
        if self._only is not None:
            late, aged, entry = head.rank
            ranked = (late, aged, *entry, head)
            if self._vacant:
                heapq.heapreplace(self._only, ranked)
                self._vacant = False
            else:
                heapq.heappush(self._only, ranked)
            return
        party = self._state.parties.all[head.line.party]
        lineup = self._lineup(party.queue)
        lineup.push(head, lineup.group_of(party))

    def pop(self) -> Head | None:
        """Take the head whose turn it is; None when all have been served."""
        if self._only is not None:
            if self._vacant:
                heapq.heappop(self._only)
            self._vacant = bool(self._only)
            return self._only[0][-1] if self._only else None
        waiting = {queue: group for queue, lineup in self._lineups.items() if (group := self._first(lineup))}
        if not waiting:
            return None
        queue = next(iter(waiting))
        if len(waiting) > 1:
            queue = min(waiting, key=lambda queue: self._share(queue, waiting[queue]))
        return self._lineups[queue].take(waiting[queue])

    def charge(self, head: Head, cost: int) -> None:
        """One more task was placed: its queue and its user have had that much more."""
        if self.alone:
            return
        party = self._state.parties.all[head.line.party]
        self._had[party.queue] = self._had.get(party.queue, party.of_queue.cost) + cost
        group = self._lineup(party.queue).group_of(party)
        group.had += cost * self._state.policy.fair_share.entry_charge_s * 1000

    def _first(self, lineup: Lineup) -> Group | None:
        """The group whose turn it is in a queue, once all have come in whose turn may be before it."""
        while True:
            group = lineup.first()
            line = lineup.next_line(group)
            if line is None:
                return group
            if line in self._state.backlog.buckets:
                self._walks[line] = self._walk(self._state, line)
                self.push_next(line)

    def _lineup(self, queue: str) -> Lineup:
        lineup = self._lineups.get(queue)
        if lineup is None:
            lineup = self._lineups[queue] = Lineup(self._state, queue)
        return lineup

    def _share(self, queue: str, first: Group) -> tuple[int, float, str]:
        held = self._had.get(queue)
        if held is None:
            held = self._had[queue] = float(self._state.parties.queues[queue].cost)
        return first.heap[0].rank[0], held / self._state.policy.queue(queue).weight, queue


def waiting_in_order(state: State, queue: str, limit: int) -> list[tuple[str, int]]:
    """The first of those that wait in a queue, as (job, index), index -1 for a job's whole range."""
    parties = state.parties.all
    turns = Turns(state, [line for line in state.backlog.buckets if parties[line.party].queue == queue])
    found: list[tuple[str, int]] = []
    while len(found) < limit and (head := turns.pop()) is not None:
        position = head.rank[2].position
        found.append((head.job.id, -1 if position == RANGE else position))
        turns.push_next(head.line)
    return found
