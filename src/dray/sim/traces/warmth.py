"""What workers of a replay have ready, and how long a start waits for what they have not.

Each worker decides by the agent's own rules what it gets ready and when it makes way; fetching is a span of time here,
of which what was done stays done. Knows nothing of the trace but which snapshot a job needs and how long that takes
where it is not.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

from dray.agent.decide.prewarming import Cool, Prewarming, Warm
from dray.core.lifecycle.state.effects import GetReady
from dray.wire.messages.hub import PrewarmHint

# So many snapshots a worker keeps.
KEPT = 8


class WarmNode:
    """One worker."""

    def __init__(self) -> None:
        self.prewarming = Prewarming()
        self.have: OrderedDict[str, None] = OrderedDict()
        # How much of each was fetched already, and what is being fetched since when.
        self.done_ms: dict[str, int] = {}
        self.now: tuple[Warm, int] | None = None
        self.count = 0


class Warmth:
    """All of them. `cold_ms`: how long each snapshot takes."""

    def __init__(self, cold_ms: dict[str, int]) -> None:
        self._cold_ms = cold_ms
        self._nodes: dict[str, WarmNode] = {}
        self._heap: list[tuple[int, int, str, str]] = []
        self._uids: list[tuple[int, str, str]] = []
        self.delays_ms: list[int] = []

    def next_ms(self) -> int | None:
        """When something will be ready next."""
        ends = [heap[0][0] for heap in (self._heap, self._uids) if heap]
        return min(ends) if ends else None

    def hinted(self, told: GetReady, now_ms: int) -> None:
        """A worker hears from its hub."""
        node = self._node(told.worker)
        hint = PrewarmHint(told.job_id, told.needs.snapshot_id, user=told.user, over=told.over)
        self._follow(told.worker, node, node.prewarming.hinted(hint), now_ms)

    def begin(self, worker: str, uid: str, snapshot: str, now_ms: int) -> int:
        """A task starts; gives for how long it waits."""
        node = self._node(worker)
        self._follow(worker, node, node.prewarming.began(uid, ""), now_ms)
        wait_ms = 0
        if snapshot in node.have:
            node.have.move_to_end(snapshot)
        else:
            wait_ms = max(0, self._cold_ms[snapshot] - node.done_ms.get(snapshot, 0))
            self._keep(node, snapshot)
        heapq.heappush(self._uids, (now_ms + wait_ms, worker, uid))
        self.delays_ms.append(wait_ms)
        return wait_ms

    def pass_time(self, now_ms: int) -> dict[str, tuple[str, ...]]:
        """What has become ready by now; gives what the workers concerned have, in the hub's words."""
        changed: dict[str, None] = {}
        while self._heap and self._heap[0][0] <= now_ms:
            _, count, worker, snapshot = heapq.heappop(self._heap)
            node = self._node(worker)
            if node.now is None or node.count != count:
                continue
            (step, _), node.now = node.now, None
            self._keep(node, snapshot)
            changed[worker] = None
            self._follow(worker, node, node.prewarming.warmed(step), now_ms)
        while self._uids and self._uids[0][0] <= now_ms:
            _, worker, uid = heapq.heappop(self._uids)
            node = self._node(worker)
            changed[worker] = None
            self._follow(worker, node, node.prewarming.ended(uid), now_ms)
        return {worker: tuple(f"snapshot {one}" for one in self._nodes[worker].have) for worker in changed}

    def _node(self, worker: str) -> WarmNode:
        return self._nodes.setdefault(worker, WarmNode())

    def _keep(self, node: WarmNode, snapshot: str) -> None:
        node.done_ms.pop(snapshot, None)
        node.have.pop(snapshot, None)
        node.have[snapshot] = None
        while len(node.have) > KEPT:
            node.have.popitem(last=False)

    def _follow(self, worker: str, node: WarmNode, steps: list[Warm | Cool], now_ms: int) -> None:
        for step in steps:
            if node.now is not None:
                before, since_ms = node.now
                snapshot = before.snapshot_id
                node.done_ms[snapshot] = node.done_ms.get(snapshot, 0) + now_ms - since_ms
                node.now = None
            if isinstance(step, Warm):
                node.count += 1
                node.now = step, now_ms
                left_ms = max(0, self._cold_ms[step.snapshot_id] - node.done_ms.get(step.snapshot_id, 0))
                at_ms = now_ms + (0 if step.snapshot_id in node.have else left_ms)
                heapq.heappush(self._heap, (at_ms, node.count, worker, step.snapshot_id))
