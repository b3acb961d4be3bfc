"""Whose turn it is: queues by their share, users within a fair-share queue by their usage, then the queue's own order.

Knows nothing about room. Only the lines it is given take part: a pass gives those of shapes that are awake, so it costs
what changed. The surprising rule: a line whose party is over its soft budget goes behind everybody else's, whatever its
queue says.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dray.core.lifecycle.state.lines import RANGE, BucketKey, Entry
from dray.core.lifecycle.state.parties import Party, usage_of
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job


class Head(NamedTuple):
    """The first job of a line, as it waits for its turn. `rank`: late or not, minus the aged priority, its entry."""

    rank: tuple[int, int, Entry]
    line: BucketKey
    job: Job


# A rank in one tuple, the head at its end: of all comparisons of a large pass most are made between these.
Ranked = tuple[int, int, int, int, int, int, str, Head]


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


class Turns:
    """The heads of lines, in the order in which they are to be served."""

    def __init__(self, state: State, lines: Iterable[BucketKey]) -> None:
        self._state = state
        self._walks: dict[BucketKey, Iterator[tuple[Job, Entry]]] = {}
        self._groups: dict[tuple[str, str], Group] = {}
        self._waiting: dict[str, dict[str, Group]] = {}
        self._had: dict[str, float] = {}
        self._only: list[Ranked] | None = None
        # The first of `_only` was taken out, but for its place: most often another comes for it at once.
        self._vacant = False
        for line in lines:
            self._walks[line] = standing(state, line)
            self.push_next(line)
        # One queue whose users are not weighed against each other: nobody's share is asked for.
        self.alone = not self._waiting
        if len(self._waiting) == 1:
            (groups,) = self._waiting.values()
            if "" in groups:
                # Whoever is pushed without a line of his own may be of another queue: then nobody is alone.
                self.alone = True
                self._only = [
                    (*head.rank[:2], *head.rank[2], head) for head in next(iter(groups.values())).heap
                ]

    def is_contended(self, head: Head) -> bool:
        """Whether others than this head's own group wait, which was taken out: then turns are taken task by task."""
        if self.alone or not self._waiting:
            return False
        party = self._state.parties.all[head.line.party]
        groups = self._waiting.get(party.queue, {})
        return len(self._waiting) > 1 or len(groups) != 1 or self._group(party).user not in groups

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
        group = self._group(party)
        heapq.heappush(group.heap, head)
        self._waiting.setdefault(party.queue, {})[group.user] = group

    def pop(self) -> Head | None:
        """Take the head whose turn it is; None when all have been served."""
        if self._only is not None:
            if self._vacant:
                heapq.heappop(self._only)
            self._vacant = bool(self._only)
            return self._only[0][-1] if self._only else None
        if not self._waiting:
            return None
        queue = next(iter(self._waiting)) if len(self._waiting) == 1 else min(self._waiting, key=self._share)
        groups = self._waiting[queue]
        group = next(iter(groups.values())) if len(groups) == 1 else _first(groups)
        head = heapq.heappop(group.heap)
        if not group.heap:
            del groups[group.user]
            if not groups:
                del self._waiting[queue]
        return head

    def charge(self, head: Head, cost: int) -> None:
        """One more task was placed: its queue and its user have had that much more."""
        if self.alone:
            return
        party = self._state.parties.all[head.line.party]
        self._had[party.queue] = self._had.get(party.queue, party.of_queue.cost) + cost
        self._group(party).had += cost * self._state.policy.fair_share.entry_charge_s * 1000

    def _share(self, queue: str) -> tuple[int, float, str]:
        late = _first(self._waiting[queue]).heap[0].rank[0]
        held = self._had.get(queue)
        if held is None:
            held = self._had[queue] = float(self._state.parties.queues[queue].cost)
        return late, held / self._state.policy.queue(queue).weight, queue

    def _group(self, party: Party) -> Group:
        policy = self._state.policy
        user = party.user if party.rules.order == "fair_share" else ""
        group = self._groups.get((party.queue, user))
        if group is None:
            had, weight = 0.0, 1.0
            if user:
                had = usage_of(
                    policy, self._state.ledger, self._state.parties.users, user, self._state.now_ms
                )
                weight = policy.fair_share.weights.get(user, 1.0)
            group = self._groups[party.queue, user] = Group(user, had, weight)
        return group


def rank_of(state: State, line: BucketKey, job: Job, entry: Entry) -> tuple[int, int, Entry]:
    """What an entry is ordered by within its queue; the smaller is served first."""
    party = state.parties.all[line.party]
    if not party.budgets and party.rules.order != "priority":
        return 0, 0, entry
    late = int(party.is_late(state.now_ms)) if party.budgets else 0
    return late, -aged_priority(state, job) if party.rules.order == "priority" else 0, entry


def next_entry(state: State, job: Job) -> Entry:
    """The entry that stands for a job's next task: one that is queued again goes before the range."""
    return entry_of(state, job, min(state.requeued_of.get(job.id, ()), default=RANGE))


def entry_of(state: State, job: Job, position: int) -> Entry:
    """The entry that stands for a job's range, or for one of its tasks that is queued again."""
    return Entry(*state.place_of(job, position), job.seq, position, job.id)


def aged_priority(state: State, job: Job) -> int:
    """The priority a job waits with: read by the `priority` policy only, one point more per `ageing_s` of waiting."""
    queue = state.parties.all[job.party].rules
    if queue.order != "priority":
        return 0
    waited_ms = max(0, state.now_ms - job.waiting_since_ms)
    return job.priority + (int(waited_ms / (queue.ageing_s * 1000)) if queue.ageing_s else 0)


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


def standing(state: State, line: BucketKey) -> Iterator[tuple[Job, Entry]]:
    """The entries of a line that still mean work."""
    bucket, jobs = state.backlog.buckets[line], state.jobs
    entries = bucket.entries
    for place in range(bucket.head, len(entries)):
        entry = entries[place]
        if stands(state, line, entry):
            yield jobs[entry.job_id], entry


def stands(state: State, line: BucketKey, entry: Entry) -> bool:
    """Whether an entry still means work: its job waits here with a range, or this very task is queued again."""
    job, position = state.jobs.get(entry.job_id), entry.position
    if job is None:
        return False
    # What most often is over is asked first.
    if job.untouched <= 0 if position == RANGE else position not in state.requeued_of.get(job.id, ()):
        return False
    if job.barred or (job.party, job.priority, job.shape) != line:
        return False
    # Its place in the line may have changed since: then another entry stands for it, and this one is what is left.
    return state.place_of(job, position) == (entry.ahead, entry.order)


def _first(groups: dict[str, Group]) -> Group:
    return min(groups.values(), key=lambda group: group.share)
