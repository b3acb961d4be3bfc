"""What an agent decides about function calls, pure: lanes, their calls, and which runner gets what.

Beside machine.py and of the same shape: values in, effects out, no clock, no process, no socket. Calls of a lane run
one at a time in the order given, in one runner. It reports facts: a call succeeded, failed, was killed, goes back
unbegun (`returned`), or was lost with an earlier agent. Surprising rule: a lane's own end is told only when the hub has
acked the ends of all its calls, since it would otherwise take the later ones back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from dray.agent.decide.calls.call_results import Value
from dray.agent.decide.calls.lane_service import LaneService, append_end
from dray.agent.decide.calls.lanes import RUNNER_PREFIX, Lane, RunnerRecord, Stopping
from dray.agent.decide.effects import Effect, Nudge, Prefetch, Recall, Supervise, Tell, Warn
from dray.core.model.ids import split_task_id
from dray.wire.messages.hub import CallsAck, CallsAssign, JobCancel
from dray.wire.messages.worker import LAST_TRY

NUDGE_MS = 20
BEHIND_MS = 50
BEHIND_MEANS = 4
ASKED = 1 << 62  # what is behind was asked for, and the runner has not answered yet
RESEND_MS = 5000
DEATHS = 3
QUIET_MS = 1000


class Ended(NamedTuple):
    """Ends of calls as a runner tells them, in columns; `details` by index where there is more to say."""

    indices: Sequence[int]
    no: Sequence[int]
    state: Sequence[str]
    value: Sequence[Value]
    wall_us: Sequence[int]
    details: dict[int, tuple[str, str]]

    def pick(self, places: Sequence[int]) -> Ended:
        """Some of them, by their places in the columns."""
        indices = [self.indices[place] for place in places]
        return Ended(
            indices,
            [self.no[place] for place in places],
            [self.state[place] for place in places],
            [self.value[place] for place in places],
            [self.wall_us[place] for place in places],
            {index: told for index, told in self.details.items() if index in indices},
        )


class Calls(LaneService):
    """All lanes of one agent. `ready` runners are started ahead of any call, up to `kept` stay when there is none."""

    def __init__(self, incarnation: str, ready: int, kept: int) -> None:
        super().__init__(incarnation, ready, kept)
        self._old: dict[str, dict[str, Any] | None] = {}
        # Runners that are gone, with the call that each was in: the supervisor keeps them until the hub has its end.
        self.kept: dict[str, dict[str, Any]] = {}
        # What is known to keep runners from starting on this worker, in words.
        self.obstacle = ""

    # --- the hub's side -----------------------------------------------------------------------------------------------

    def assigned(self, message: CallsAssign, now_ms: int) -> list[Effect]:
        """Take calls on; those that are here already, or ended here, change nothing."""
        lane = self.lanes.get(message.lane)
        if lane is None or lane.spec is None or message.spec is not None:
            if message.spec is None:
                return self._send_back(message)
            lane = self.lanes.setdefault(message.lane, Lane(uid=message.lane, job=message.job))
            # What comes with the spec holds for the lane: it is not said again.
            lane.spec, lane.devices, lane.token = message.spec, tuple(message.devices), message.token
        if lane.stopping is not None:
            return []
        lane.inherited = False
        lane.set_limit(message.remaining_time)
        self._idle.pop(lane.uid, None)
        fresh = not lane.calls and not lane.begun
        effects = self._take_on(lane, message)
        if fresh or not effects:
            # Said again where all of it was here already: the hub asks because it has not heard.
            effects = [*self._first_words(lane), *effects]
        known = [effect for effect in effects if effect is not None]
        if self.pool.account_of(lane.spec.user_id) is None:
            for index in lane.queue:
                self._end(lane, index, "failed", *tell_no_account(lane.spec.user_id))
            lane.queue.clear()
        if lane.yielded:
            # Sent before the hub had heard of it: they would wait for as long as the call that they are behind.
            return known + self.send_on(lane)
        return self._serve(lane, known, now_ms)

    def _take_on(self, lane: Lane, message: CallsAssign) -> list[Effect | None]:
        """Queue what is new; one entry for each new call: None, or the blob that it needs."""
        taken: list[Effect | None] = []
        calls, done, queue = lane.calls, lane.done, lane.queue
        for index, no, arg in zip(message.index, message.no, message.args, strict=True):
            known = calls.get(index)
            if done.get(index, 0) >= no or (known is not None and known[0] >= no):
                continue
            if index in lane.fed or index in lane.landing:
                lane.later[index] = (no, arg)
            else:
                calls[index] = (no, arg)
                if known is None:
                    queue.append(index)
            taken.append(None if type(arg) is bytes else Prefetch(*arg))
        return taken

    def _first_words(self, lane: Lane) -> list[Effect]:
        words: list[Effect] = [Tell("job_accepted", {"task_id": lane.job, "attempt": lane.uid})]
        return [*words, self._started(lane)] if lane.begun else words

    def _send_back(self, message: CallsAssign) -> list[Effect]:
        """Calls of a lane whose job is not known here: cannot be run, and need not be lost."""
        columns = self.results.columns(message.lane, message.job)
        for index, no in zip(message.index, message.no, strict=True):
            if index not in columns.index:
                append_end(columns, index, no, "returned", None, 0)
        return []

    def acked(self, message: CallsAck, now_ms: int) -> list[Effect]:
        """Forget ends that the hub has recorded."""
        effects: list[Effect] = []
        for seq in message.seq:
            sealed = self.results.acked(seq)
            lane = self.lanes.get(sealed.lane) if sealed is not None else None
            if sealed is None or lane is None:
                continue
            done = lane.done
            for index, no in zip(sealed.payload["index"], sealed.payload["no"], strict=True):
                if done.get(index) == no:
                    del done[index]
            if lane.careful and not lane.calls:
                effects = self._rest(lane, effects, now_ms)
            else:
                effects += self._conclude(lane, now_ms)
        return effects

    def cancelled(self, message: JobCancel, now_ms: int) -> list[Effect]:
        """Stop a lane that is here, or one call of it."""
        lane = self.lanes[message.attempt]
        _, index = split_task_id(message.task_id) or ("", -1)
        if index >= 0 and message.task_id != lane.job:
            return self._cancel_call(lane, index, message, now_ms)
        grace_s = lane.grace_s if message.grace_s is None else message.grace_s
        return self._stop(lane, message.reason, grace_s, now_ms)

    def _cancel_call(self, lane: Lane, index: int, message: JobCancel, now_ms: int) -> list[Effect]:
        if index in lane.later:
            no, _ = lane.later.pop(index)
            append_end(self.results.columns(lane.uid, lane.job), index, no, "killed", None, 0)
        if index not in lane.calls:
            if lane.done.get(index) != LAST_TRY and not lane.stopping:
                # Which try is meant is not said: none of them is here, and none that comes late will be run.
                lane.done[index] = LAST_TRY
                append_end(self.results.columns(lane.uid, lane.job), index, LAST_TRY, "killed", None, 0)
            return []
        if index in lane.fed:
            lane.cancelled[index] = None
            if index != lane.first_fed():
                return [Recall(lane.runner)]
            grace_s = lane.grace_s if message.grace_s is None else message.grace_s
            return self._end_runner(lane, "cancel", grace_s)
        if index not in lane.landing:
            lane.queue.remove(index)
            self._end(lane, index, "killed", "cancelled", f"cancelled ({message.reason})")
        return self._serve(lane, [], now_ms)

    def _stop(self, lane: Lane, reason: str, grace_s: float, now_ms: int) -> list[Effect]:
        """End a lane: what has not begun is dropped, since the lane's own end takes it back; what runs is stopped."""
        if lane.stopping is not None:
            return self._stop_again(lane, grace_s, now_ms)
        lane.stopping = Stopping(reason, now_ms + round(1000 * grace_s))
        for index in lane.queue:
            lane.calls.pop(index, None)
        lane.queue.clear()
        lane.later.clear()
        self._waiting.pop(lane.uid, None)
        effects: list[Effect] = []
        if lane.fed:
            effects += self._end_runner(lane, "stop", grace_s)
            effects.append(Warn(lane.uid, lane.stopping.describe(now_ms)))
        return effects + self._conclude(lane, now_ms) + self.settle(now_ms)

    def _stop_again(self, lane: Lane, grace_s: float, now_ms: int) -> list[Effect]:
        """Asked once more: there is less time now, or the answer was not heard."""
        if lane.result is not None:
            return [self._tell_result(lane, now_ms)]
        if not lane.fed:
            return []
        return [Supervise({"op": "cancel", "uid": lane.runner, "reason": "user", "grace_s": grace_s})]

    def drain(self, now_ms: int) -> list[Effect]:
        """The agent stops: runners end with it, so every lane goes back."""
        self.pool.stopped = True
        effects: list[Effect] = []
        for lane in list(self.lanes.values()):
            if lane.calls and lane.stopping is None:
                effects += self._stop(lane, "drain", 0.0, now_ms)
        return effects

    def forget(self, uid: str) -> bool:
        """The hub has recorded a lane's end."""
        lane = self.lanes.get(uid)
        if lane is None or lane.result is None:
            return False
        self._drop(lane)
        return True

    def describe_active(self) -> list[dict[str, Any]]:
        """The lanes that a new session must know of."""
        live = [lane for lane in self.lanes.values() if lane.live and lane.result is None]
        return [
            {"task_id": lane.job, "state": "running" if lane.begun else "accepted", "attempt": lane.uid}
            for lane in live
        ]

    def unfinished(self) -> list[str]:
        """Lanes that have calls, by uid."""
        return [lane.uid for lane in self.lanes.values() if lane.calls]

    def finished(self) -> list[dict[str, Any]]:
        """Ends of lanes that the hub has not recorded."""
        return [lane.result for lane in self.lanes.values() if lane.result is not None]

    def registered(self, now_ms: int) -> list[Effect]:
        """A new session: everything unacked is told again. With the first one runners are made ready."""
        self.results.repeat_all()
        self.pool.opened = True
        return self.settle(now_ms)

    def yielded(self, uid: str, yielded: bool, now_ms: int) -> list[Effect]:
        """The call that a lane is in waits on others, or goes on: what is behind it need not wait with it."""
        lane = self.lanes[uid]
        lane.yielded = yielded
        return self.send_on(lane) if yielded else self._serve(lane, [], now_ms)

    def disconnected(self) -> None:
        """Lanes with nothing in them are of the session that is over."""
        for lane in list(self.lanes.values()):
            lane.inherited = False
            if not lane.live:
                self._drop(lane)

    # --- runners ------------------------------------------------------------------------------------------------------

    def runner_ready(self, uid: str, now_ms: int) -> list[Effect]:
        """A runner has connected."""
        if self.pool.started(uid, now_ms) is None:
            return []
        effects: list[Effect] = []
        for name in list(self._waiting):
            effects = self._serve(self.lanes[name], effects, now_ms)
        return effects + self.settle(now_ms)

    def runner_ended(self, uid: str, ended: Ended, now_ms: int) -> list[Effect]:
        """Take the ends of calls that a runner tells of."""
        record = self.pool.records.get(uid)
        lane = self.lanes.get(record.lane) if record is not None else None
        if record is None or lane is None:
            return []
        calls, fed, done = lane.calls, lane.fed, lane.done
        known = [place for place, index in enumerate(ended.indices) if index in calls]
        counted = ended if len(known) == len(ended.indices) else ended.pick(known)
        if known:
            for index in counted.indices:
                fed.pop(index, None)
                done[index] = calls.pop(index)[0]
            columns = self.results.columns(lane.uid, lane.job)
            columns.index += counted.indices
            columns.no += [done[index] for index in counted.indices]
            columns.state += counted.state
            columns.value += counted.value
            columns.wall_us += counted.wall_us
            if counted.details:
                columns.details.update(counted.details)
            lane.took(sum(counted.wall_us) // len(known))
        if lane.cancelled:
            for index in ended.indices:
                lane.cancelled.pop(index, None)
        self._moved(lane, now_ms)
        effects = self.pool.wear(record, len(ended.indices))
        return self._serve(lane, effects, now_ms)

    def runner_landing(self, uid: str, index: int, now_ms: int) -> list[Effect]:
        """A call has run and its value is being brought to the hub: the runner is past it."""
        record = self.pool.records.get(uid)
        lane = self.lanes.get(record.lane) if record is not None else None
        if record is None or lane is None or index not in lane.fed:
            return []
        del lane.fed[index]
        lane.landing[index] = None
        self._moved(lane, now_ms)
        return self._serve(lane, self.pool.wear(record, 1), now_ms)

    def landed(self, lane_uid: str, ended: Ended, now_ms: int) -> list[Effect]:
        """Values have reached the hub, or cannot: tell how those calls ended."""
        lane = self.lanes.get(lane_uid)
        if lane is None:
            return []
        for place, index in enumerate(ended.indices):
            if lane.landing.pop(index, 0) is None and index in lane.calls:
                told = ended.details.get(index, ("", ""))
                state, value = ended.state[place], ended.value[place]
                self._end(lane, index, state, *told, value=value, wall_us=ended.wall_us[place])
        return self._serve(lane, [], now_ms)

    def runner_returned(self, uid: str, indices: Iterable[int], now_ms: int) -> list[Effect]:
        """A runner gives back what it has not begun: the hub may find a better place for it."""
        record = self.pool.records.get(uid)
        lane = self.lanes.get(record.lane) if record is not None else None
        if lane is None:
            return []
        for index in indices:
            if index not in lane.fed:
                continue
            del lane.fed[index]
            if lane.stopping is not None:
                lane.calls.pop(index, None)
            elif index in lane.cancelled:
                self._end(lane, index, "killed", "cancelled", "cancelled (user)")
            else:
                self._end(lane, index, "returned")
        if len(lane.fed) > 1:
            # It gives nothing back while it has not read what it was fed: it is asked again, ever less often.
            lane.recall_ms = 2 * (now_ms - lane.since_ms)
        return self._serve(lane, [], now_ms)

    def runner_grown(self, uid: str, growth_bytes: int, littered: bool, now_ms: int) -> list[Effect]:
        """A runner tells how much memory it has gained, and whether calls left processes behind that outlive them."""
        record = self.pool.records.get(uid)
        if record is None or record.phase == "ending":
            return []
        if littered and record.phase == "idle":
            return [self.pool.retire(record, "littered"), *self.settle(now_ms)]
        return self.pool.wear(record, 0, growth_bytes) + self.settle(now_ms)

    def never_came(self, uid: str) -> bool:
        """Whether a runner is on its way still."""
        record = self.pool.records.get(uid)
        return record is not None and record.phase == "starting"

    def runner_broken(self, uid: str) -> list[Effect]:
        """A runner says what makes no sense, or cannot say anything more: it is ended, which ends its call."""
        record = self.pool.records.get(uid)
        return [self.pool.retire(record, "broken")] if record is not None and record.phase != "ending" else []

    def runner_littered(self, uid: str, now_ms: int) -> list[Effect]:
        """A call has left a process behind that outlives it: its runner, with which that ends, serves nobody else."""
        record = self.pool.records.get(uid)
        return [] if record is None else self.pool.replace(record) + self.settle(now_ms)

    def runner_exited(self, item: dict[str, Any], now_ms: int) -> list[Effect]:
        """A runner process has ended; `item["now"]` is the call that it was in."""
        uid = item["uid"]
        if uid in self.kept:
            return []
        if uid in self._old:
            now = self._old.pop(uid)
            self._lose(now)
            return self._part(uid, now)
        record = self.pool.gone(uid, now_ms)
        if record is None:
            return self._part(uid, None)
        effects: list[Effect] = []
        lane = self.lanes.get(record.lane)
        if lane is not None and lane.runner == uid:
            effects += self._bereave(lane, record, item, now_ms)
        effects += self._give_up_starts(record, item, now_ms)
        now = item.get("now")
        named = self.lanes.get(now["lane"]) if now is not None else None
        effects += self._part(uid, now if named is not None and named.careful else None)
        return effects + self.settle(now_ms)

    def _part(self, uid: str, now: dict[str, Any] | None) -> list[Effect]:
        """Let the supervisor forget a runner, once the hub has the end of the call that it was in: this agent may die
        before it is told, and the next one, which is sent that call again, knows from nobody else that it has begun.
        """
        if now is not None and self._is_untold(now):
            self.kept[uid] = now
            return []
        return [Supervise({"op": "acked", "uids": [uid]})]

    def _is_untold(self, now: dict[str, Any]) -> bool:
        lane, index = self.lanes.get(now["lane"]), now["index"]
        if lane is None or index < 0:
            return False
        return lane.stopping is not None or index in lane.landing or lane.done.get(index, 0) >= now["no"]

    def _part_with_told(self) -> list[Effect]:
        told = [uid for uid, now in self.kept.items() if not self._is_untold(now)]
        for uid in told:
            del self.kept[uid]
        return [Supervise({"op": "acked", "uids": told})] if told else []

    def _bereave(self, lane: Lane, record: RunnerRecord, item: dict[str, Any], now_ms: int) -> list[Effect]:
        """A lane's runner is gone: the call it was in has ended, the others are run by the next one."""
        lane.runner, lane.nudged, lane.recall_ms = "", False, 0
        self._busy.pop(lane.uid, None)
        left = list(lane.fed)
        lane.fed.clear()
        self._forget_yield(lane)
        ran = self._find_victim(lane, left, item.get("now") or {})
        for index in left:
            if lane.stopping is not None:
                lane.calls.pop(index, None)
            elif index in lane.cancelled:
                self._end(lane, index, "killed", "cancelled", "cancelled (user)")
            elif index == ran:
                self._end(lane, index, "failed", *_verdict(lane, record, item))
        lane.queue.extendleft(reversed([index for index in left if index in lane.calls]))
        return self._serve(lane, [], now_ms)

    def _find_victim(self, lane: Lane, left: list[int], now: dict[str, Any]) -> int | None:
        """The call that a runner died of. One that dies again and again before it begins any dies of the first."""
        ran = int(now["index"]) if now.get("lane") == lane.uid else None
        if ran in left:
            lane.deaths = 0
            return ran
        lane.deaths += bool(left)
        if lane.deaths < DEATHS:
            return None
        lane.deaths = 0
        return left[0]

    def _give_up_starts(self, record: RunnerRecord, item: dict[str, Any], now_ms: int) -> list[Effect]:
        """Where no runner of an environment ever comes up, its calls fail with the reason."""
        if record.phase != "starting" or not self.pool.is_hopeless(record.venv):
            return []
        effects: list[Effect] = []
        for lane in [self.lanes[name] for name in self._waiting]:
            if lane.binding.venv != record.venv:
                continue
            where = f"in the environment {record.venv!r}" if record.venv else "on this worker"
            reason = self.obstacle or item.get("error") or "no reason given"
            error = f"no process to run it could be started {where}: {reason}"
            for index in list(lane.queue):
                self._end(lane, index, "failed", "environment", error)
            lane.queue.clear()
            effects += self._serve(lane, [], now_ms)
        return effects

    # --- runners of an earlier agent ----------------------------------------------------------------------------------

    def attached(self, items: list[dict[str, Any]], asked: set[str], now_ms: int) -> list[Effect]:
        """Settle what the supervisor holds: processes of an earlier agent are ended, of this one's some may be gone."""
        effects: list[Effect] = []
        held = {item["uid"]: item for item in items}
        for uid in [uid for uid in self.pool.records if uid not in held and uid not in asked]:
            effects += self.runner_exited({"uid": uid, "error": "the supervisor does not have it"}, now_ms)
        for uid, item in held.items():
            if uid in self.kept:
                continue
            ours = uid in self.pool.records
            if not ours and uid not in self._old:
                self._inherit(uid, item.get("now"))
            if item["phase"] == "exited":
                effects += self.runner_exited(item, now_ms)
            elif not ours:
                effects.append(
                    Supervise({"op": "cancel", "uid": uid, "reason": "superseded", "grace_s": 0.0})
                )
        return effects + self.settle(now_ms)

    def _inherit(self, uid: str, now: dict[str, Any] | None) -> None:
        self._old[uid] = now
        if now is None:
            return
        lane = self.lanes.get(now["lane"])
        if lane is None:
            # What else the earlier agent had for this lane is not known: the hub sends it again.
            lane = Lane(uid=now["lane"], job=now["job"], begun=True, inherited=True)
            self.lanes[lane.uid] = lane
        if now["index"] >= 0 and now["index"] not in lane.calls:
            # A lane may have had several processes, one after the other: each was in a call of its own.
            lane.done[now["index"]] = max(now["no"], lane.done.get(now["index"], 0))

    def _lose(self, now: dict[str, Any] | None) -> None:
        """A process of an earlier agent is confirmed gone: the call it was in is lost, and that one only."""
        lane = self.lanes.get(now["lane"]) if now is not None else None
        if now is None or lane is None or now["index"] < 0:
            return
        columns = self.results.columns(lane.uid, lane.job)
        append_end(columns, now["index"], now["no"], "lost", None, 0)
        columns.details[now["index"]] = ("lost", "its agent was restarted while it ran")

    # --- time ---------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether `tick` has anything to watch."""
        return bool(self._busy)

    def is_quiet(self, now_ms: int) -> bool:
        """Whether nothing is due soon: every call has run for long, and none of them is near its limit."""
        for name in self._busy:
            lane = self.lanes[name]
            age_ms = now_ms - lane.since_ms
            if age_ms < QUIET_MS or (lane.limit_ms is not None and lane.limit_ms - age_ms < QUIET_MS):
                return False
        return True

    def tick(self, now_ms: int) -> list[Effect]:
        """Watch the calls that run: time limits, results held back, calls that wait behind a long one."""
        effects: list[Effect] = []
        for name in list(self._busy):
            lane = self.lanes[name]
            first = lane.first_fed()
            if first is None:
                continue
            age_ms = now_ms - lane.since_ms
            if lane.limit_ms is not None and age_ms >= lane.limit_ms:
                effects += self._end_runner(lane, "time_limit", lane.grace_s)
            elif first in lane.cancelled:
                effects += self._end_runner(lane, "cancel", lane.grace_s)
            elif age_ms >= NUDGE_MS:
                effects += self._hurry(lane, age_ms)
        return effects

    def _hurry(self, lane: Lane, age_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if not lane.nudged and len(lane.fed) > 1:
            lane.nudged = True
            effects.append(Nudge(lane.runner))
        patience_ms = max(BEHIND_MS, BEHIND_MEANS * lane.mean_us // 1000, lane.recall_ms)
        if age_ms >= patience_ms and (lane.queue or len(lane.fed) > 1):
            lane.recall_ms = ASKED
            effects += self.send_on(lane)
        return effects

    def resend(self, now_ms: int) -> list[Effect]:
        """Send again what was not acked in time."""
        self.results.repeat_late(now_ms, RESEND_MS)
        due = self.settle(now_ms) if self.pool.holds_back else []
        due += self._part_with_told() if self.kept else []
        late = [lane for lane in self.lanes.values() if lane.result is not None]
        return due + [self._tell_result(lane, now_ms) for lane in late if now_ms - lane.sent_ms >= RESEND_MS]


def is_runner(uid: str) -> bool:
    """Whether a supervised process is a runner and no attempt of a task."""
    return uid.startswith(RUNNER_PREFIX)


def tell_no_account(user: str) -> tuple[str, str]:
    """Exit class and words for work of a user who has no account here."""
    words = (
        f"this worker has no account for tasks of user {user!r}: its administrator can name one in task_users of "
        "[worker] (`*` is everybody else); until then `require` the label of a worker that has one"
    )
    return "no_account", words


def _verdict(lane: Lane, record: RunnerRecord, item: dict[str, Any]) -> tuple[str, str]:
    """Exit class and words for the call that a runner was in when it ended."""
    if record.why == "time_limit":
        limit_s = (lane.limit_ms or 0) / 1000
        return "time_limit", f"stopped at its time limit of {limit_s:g} s"
    if record.why == "broken":
        return "crashed", "the process that ran it was ended: it no longer spoke sense to its worker"
    if item.get("exit_class") == "oom":
        return "oom", str(item.get("error") or "killed for memory")
    if number := item.get("signal"):
        # A supervisor speaks of the command that it runs; the caller of a function knows of none.
        told = str(item.get("error") or "").removeprefix("the command was killed by ")
        named = told if told.startswith(f"signal {number}") else f"signal {number}: {told}"
        return "crashed", f"the process that ran it was killed in the middle of it by {named}"
    if item.get("exit_code") is not None and item["exit_code"] >= 0:
        return (
            "crashed",
            f"the process that ran it ended with exit code {item['exit_code']} in the middle of it",
        )
    return "crashed", f"the process that ran it is gone: {item.get('error') or 'no reason given'}"
