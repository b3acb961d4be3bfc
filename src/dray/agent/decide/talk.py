"""What tasks and calls say of themselves, kept and told to the hub at a bearable rate. Pure.

The inner half of machine.py. Surprising rule: what is said on the way out is told at once, whatever was told before:
there may be no later.
"""

from __future__ import annotations

from typing import Any

from dray.agent.decide.attempts import Running
from dray.agent.decide.calls.calls import Calls
from dray.agent.decide.calls.lanes import Lane
from dray.agent.decide.effects import Effect, Supervise, Tell
from dray.agent.decide.health import Health
from dray.agent.decide.preparing import laid
from dray.agent.decide.prewarming import Prewarming
from dray.agent.decide.words import Words

# Half of what a hub reads of one worker: what is said on the way out comes on top.
TOLD_PER_S = 100


class TaskTalk:
    """The attempts and lanes of one agent as far as they speak."""

    def __init__(self, calls: Calls) -> None:
        self.running: dict[str, Running] = {}
        self.calls = calls
        self.prewarming = Prewarming()
        self.yields = calls.yields
        self.registered = False
        # What a registration says besides: the version, and when this machine is taken away.
        self.said: dict[str, Any] = {}
        self.health = Health()
        self._told, self._told_since_ms = 0, 0

    def greeted(self, uid: str, now_ms: int) -> dict[str, Any]:
        """Answer the first word of a session: which task it is of, and whether it is to end."""
        attempt = self.running.get(uid) or self.calls.lanes.get(uid)
        if attempt is None:
            return {}
        stop = {} if attempt.stopping is None else {"stop": attempt.stopping.describe(now_ms)}
        return {"task_id": attempt.job if isinstance(attempt, Lane) else attempt.task_id, **stop}

    def task_said(self, uid: str, words: Words, now_ms: int) -> list[Effect]:
        """Keep what a task says of itself; what it saved goes to the hub at once, and ends a stop early."""
        if uid in self.calls.lanes:
            return self._lane_said(self.calls.lanes[uid], words, now_ms)
        attempt = self.running.get(uid)
        if attempt is None or attempt.phase == "exited":
            return []
        effects = self.yields.said(uid, attempt.task_id, words, now_ms)
        if "watch" in words and not attempt.said.heeds:
            attempt.said.heeds = True
            effects.append(Supervise({"op": "heed", "uid": uid}))
        attempt.said.hear(words, now_ms)
        effects += self._tell_progress([attempt], now_ms)
        if "saved" in words and attempt.stopping is not None:
            effects.append(Supervise({"op": "hasten", "uid": uid}))
        return effects

    def _lane_said(self, lane: Lane, words: Words, now_ms: int) -> list[Effect]:
        """The call that a lane is in speaks: the hub hears of its waiting, and of its progress as the lane's."""
        effects: list[Effect] = []
        if lane.fed:
            effects = self.yields.said(lane.uid, lane.job, words, now_ms)
            if (lane.uid in self.yields) != lane.yielded:
                effects += self.calls.yielded(lane.uid, lane.uid in self.yields, now_ms)
            if "watch" in words:
                effects.append(Supervise({"op": "heed", "uid": lane.runner}))
        lane.said.hear(words, now_ms)
        if self.registered and lane.said.is_due(now_ms):
            lane.said.told(now_ms)
            effects.append(Tell("job_progress", lane.said.payload(lane.job, lane.uid, now_ms), acked=False))
        return effects

    def _tell_progress(self, attempts: list[Running], now_ms: int) -> list[Effect]:
        """Tell the hub what it may hear now: latest words, those first that have waited longest."""
        if not self.registered:
            return []
        if now_ms - self._told_since_ms >= 1000:
            self._told, self._told_since_ms = 0, now_ms
        pressing = [a for a in attempts if a.known and self._is_pressing(a)]
        due = [a for a in attempts if a.known and a.said.is_due(now_ms) and not self._is_pressing(a)]
        due.sort(key=lambda attempt: attempt.said.told_ms or 0)
        chosen = [*pressing, *due[: max(0, TOLD_PER_S - self._told)]]
        self._told += len(chosen)
        for attempt in chosen:
            attempt.said.told(now_ms)
        return [Tell("job_progress", a.said.payload(a.task_id, a.uid, now_ms), acked=False) for a in chosen]

    def _is_pressing(self, attempt: Running) -> bool:
        """What is said on the way out cannot wait: there may be no later."""
        return attempt.said.untold and attempt.stopping is not None

    def laid(self, uid: str, fault: str = "", ours: bool = False) -> list[Effect]:
        """The tree of an attempt is there, or why there will be none; `ours`: this machine is to blame."""
        attempt = self.running.get(uid)
        return [] if attempt is None or attempt.phase == "exited" else laid(attempt, fault, ours)
