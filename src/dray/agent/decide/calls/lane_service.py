"""How a lane's calls get on: a runner for it, calls for the runner, their ends for the hub. Pure.

The inner half of calls.py, which brings in what hub, runners and clock have to say. Surprising rule: a runner is given
few calls at a time and more before it is through with them, so that what it has not begun can be had back.
"""

from __future__ import annotations

from dray.agent.decide.calls.call_results import CallResults, Columns, Value, first_number
from dray.agent.decide.calls.lanes import Lane, RunnerRecord
from dray.agent.decide.calls.runner_pool import RunnerPool
from dray.agent.decide.effects import BindRunner, Effect, FeedRunner, LetGo, Recall, Tell
from dray.agent.decide.yields import Yields

BATCH = 8
IDLE_LANES = 64
PREEMPTED = ("preempted", "requeued", "revoked", "drain")


class LaneService:
    """The lanes of one agent and what serves them."""

    def __init__(self, incarnation: str, ready: int, kept: int) -> None:
        self.lanes: dict[str, Lane] = {}
        self.pool = RunnerPool(incarnation, ready, kept)
        self.results = CallResults(first_number(incarnation))
        self._waiting: dict[str, None] = {}
        self._idle: dict[str, None] = {}
        self._busy: dict[str, None] = {}
        self.yields = Yields()

    def settle(self, now_ms: int) -> list[Effect]:
        """Keep the pool as large as it should be."""
        wanted = [self.lanes[name].binding for name in self._waiting]
        return self.pool.settle(wanted, now_ms)

    def bar(self, barred: bool, now_ms: int) -> list[Effect]:
        """Whether this worker can start runners now. While it cannot, what waits for one goes back."""
        self.pool.barred = barred
        if not barred:
            return self.settle(now_ms)
        self.pool.excuse()
        effects: list[Effect] = []
        for name in list(self._waiting):
            effects = self._serve(self.lanes[name], effects, now_ms)
        return effects

    def send_on(self, lane: Lane) -> list[Effect]:
        """Give back all that a lane has not begun."""
        for index in lane.queue:
            self._end(lane, index, "returned")
        lane.queue.clear()
        return [Recall(lane.runner)] if len(lane.fed) > 1 else []

    def _serve(self, lane: Lane, effects: list[Effect], now_ms: int) -> list[Effect]:
        """See to it that a lane's calls get on: a runner where it has none, more calls where that one has few."""
        for index in [index for index in lane.later if index not in lane.calls] if lane.later else ():
            lane.calls[index] = lane.later.pop(index)
            lane.queue.append(index)
        if lane.stopping is not None or not lane.calls:
            return self._rest(lane, effects, now_ms)
        if not lane.queue or lane.yielded:
            return effects
        if lane.runner:
            record = self.pool.records[lane.runner]
            if record.phase == "ending" or (record.worn and self.pool.has_successor(lane.binding)):
                if lane.fed:
                    return effects
                self._release(lane, record)
                if record.phase != "ending":
                    effects.append(self.pool.retire(record, "worn"))
        if not lane.runner and not self._find_runner(lane, effects):
            if self.pool.barred:
                return self._rest(lane, effects + self.send_on(lane), now_ms)
            return effects + self.settle(now_ms)
        if len(lane.fed) <= BATCH:
            self._feed(lane, effects, now_ms)
        return effects

    def _find_runner(self, lane: Lane, effects: list[Effect]) -> bool:
        record = self.pool.choose(lane.binding, lane.job)
        if record is None:
            self._waiting[lane.uid] = None
            return False
        self._waiting.pop(lane.uid, None)
        record.phase, record.lane, record.job = "busy", lane.uid, lane.job
        lane.runner = record.uid
        self._busy[lane.uid] = None
        assert lane.spec is not None  # it has calls
        effects.append(BindRunner(record.uid, lane.uid, lane.job, lane.spec, lane.devices, lane.token))
        return True

    def _feed(self, lane: Lane, effects: list[Effect], now_ms: int) -> None:
        if lane.careful and lane.fed:
            return
        queue, calls, fed = lane.queue, lane.calls, lane.fed
        if not lane.begun:
            lane.begun = True
            effects.append(self._started(lane))
        if not fed:
            lane.since_ms, lane.nudged, lane.recall_ms = now_ms, False, 0
        index = [queue.popleft() for _ in range(1 if lane.careful else min(BATCH, len(queue)))]
        for one in index:
            fed[one] = None
        given = [calls[one] for one in index]
        effects.append(FeedRunner(lane.runner, index, [no for no, _ in given], [arg for _, arg in given]))

    def _rest(self, lane: Lane, effects: list[Effect], now_ms: int) -> list[Effect]:
        """A lane has nothing to run: its runner is free for others.

        One that ran a call with care stays until the hub has the end of it: its record of that call, which goes with
        the next, is all that an agent after this one would know of it.
        """
        self._waiting.pop(lane.uid, None)
        if lane.runner and not (lane.fed or (lane.careful and (lane.done or lane.landing))):
            record = self.pool.records[lane.runner]
            self._release(lane, record)
            if record.phase == "busy":
                record.phase, record.idle_ms = "idle", now_ms
                effects.append(LetGo(record.uid))
                if record.worn:
                    effects.append(self.pool.retire(record, "worn"))
                effects += self._serve_waiting(now_ms)
        effects += self._conclude(lane, now_ms)
        if not lane.calls and lane.stopping is None:
            self._idle[lane.uid] = None
            if len(self._idle) > IDLE_LANES:
                self._trim_idle()
        return effects

    def _serve_waiting(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        for name in list(self._waiting):
            effects = self._serve(self.lanes[name], effects, now_ms)
        return effects if self._waiting or not self.pool.crowded else [*effects, *self.settle(now_ms)]

    def _trim_idle(self) -> None:
        """Forget the oldest lanes that hold nothing: the hub has closed them."""
        for name in [name for name in self._idle if not self.lanes[name].live][
            : len(self._idle) - IDLE_LANES
        ]:
            self._drop(self.lanes[name])

    def _drop(self, lane: Lane) -> None:
        self._idle.pop(lane.uid, None)
        self._waiting.pop(lane.uid, None)
        self._forget_yield(lane)
        del self.lanes[lane.uid]

    def _release(self, lane: Lane, record: RunnerRecord) -> None:
        lane.runner, record.lane = "", ""
        self._busy.pop(lane.uid, None)

    def _end_runner(self, lane: Lane, why: str, grace_s: float) -> list[Effect]:
        """Stop the call that a lane's runner is in, by ending the whole process; its others go to the next runner."""
        record = self.pool.records[lane.runner]
        if record.phase == "ending":
            return []
        # A call that takes the signal for a reason to return must not be followed by the next one there.
        recall: list[Effect] = [Recall(record.uid)] if len(lane.fed) > 1 else []
        return [
            *recall,
            self.pool.retire(record, why, grace_s, "time_limit" if why == "time_limit" else "user"),
        ]

    def _moved(self, lane: Lane, now_ms: int) -> None:
        """Calls of a lane have run: whatever is next has just begun."""
        lane.since_ms, lane.nudged, lane.recall_ms, lane.deaths = now_ms, False, 0, 0
        if not lane.fed:
            self._forget_yield(lane)

    def _forget_yield(self, lane: Lane) -> None:
        """The call that waited is over: the hub closes a lane that has yielded and holds nothing."""
        if lane.yielded:
            lane.yielded = False
            self.yields.ended(lane.uid)

    def _end(
        self,
        lane: Lane,
        index: int,
        state: str,
        exit_class: str = "",
        error: str = "",
        value: Value = None,
        wall_us: int = 0,
    ) -> None:
        """Note how a call ended."""
        no, _ = lane.calls.pop(index)
        lane.done[index] = no
        lane.cancelled.pop(index, None)
        columns = self.results.columns(lane.uid, lane.job)
        append_end(columns, index, no, state, value, wall_us)
        if exit_class:
            columns.details[index] = (exit_class, error)

    def _conclude(self, lane: Lane, now_ms: int) -> list[Effect]:
        """Tell the end of a lane that was stopped, once nothing of it runs and nothing of it is untold."""
        if lane.stopping is None or lane.result is not None or lane.calls or lane.fed:
            return []
        if lane.landing or self.results.has(lane.uid):
            return []
        reason = lane.stopping.reason
        lane.result = {
            "task_id": lane.job,
            "attempt": lane.uid,
            "state": "preempted" if reason in PREEMPTED else "killed",
            "exit_code": None,
            "exit_class": "cancelled",
            "error": "drain" if reason == "drain" else f"stopped ({reason})",
        }
        return [self._tell_result(lane, now_ms)]

    def _tell_result(self, lane: Lane, now_ms: int) -> Tell:
        assert lane.result is not None  # asked only of lanes that have ended
        lane.sent_ms = now_ms
        return Tell("job_result", lane.result)

    def _started(self, lane: Lane) -> Tell:
        record = self.pool.records.get(lane.runner)
        pid, devices = (record.pid if record is not None else 0), list(lane.devices)
        return Tell("job_started", {"task_id": lane.job, "attempt": lane.uid, "pid": pid, "devices": devices})


def append_end(columns: Columns, index: int, no: int, state: str, value: Value, wall_us: int) -> None:
    columns.index.append(index)
    columns.no.append(no)
    columns.state.append(state)
    columns.value.append(value)
    columns.wall_us.append(wall_us)
