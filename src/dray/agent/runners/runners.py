"""Runners as the machine's effects want them: started, bound, fed; and what they tell, brought to the machine.

The shell of decide/calls: it holds folders, sockets and transfers, and decides nothing. Surprising rule: the end of a
runner's process is passed on only when its socket has been read to the end, since results may still lie in it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dray.agent.decide.attempts import is_careful
from dray.agent.decide.calls.calls import Ended, is_runner
from dray.agent.decide.effects import (
    BindRunner,
    Effect,
    FeedRunner,
    Launch,
    LetGo,
    Nudge,
    Prefetch,
    Recall,
    StartRunner,
)
from dray.agent.decide.machine import Machine
from dray.agent.runners.blobs import Blobs, Refused
from dray.agent.runners.home import RunnerHome
from dray.agent.runners.lines import RunnerLines
from dray.agent.runners.notes import RunnerNotes, read_notes
from dray.agent.supervisor.records.owned_files import Place
from dray.agent.tasks.accounts import Account
from dray.agent.tasks.environment import build_environment
from dray.core.model.ids import split_task_id
from dray.wire.local.runner_frames import (
    ANSWER,
    BIND,
    BLOB,
    STATES,
    STDERR,
    STDOUT,
    TOO_LARGE,
    BadFrame,
    Results,
    calls_frame,
    json_frame,
    pick,
)

KEPT_FUNCTIONS = 64
INLINE_BYTES = 64 << 10
DRAIN_S = 0.1
LINGER_S = 2.0
ERROR_BYTES = 16 << 10
# More than any runner has that plays fair: it asks for one thing at a time.
IN_FLIGHT = 256
VALUE = re.compile(rb"([0-9a-f]{64}) ([1-9][0-9]{0,14}) ([0-9]{1,15})")
_SUCCEEDED = ("succeeded",) * 64
logger = logging.getLogger("dray.agent.runners.runners")


class Carrier(Protocol):
    """Whoever carries effects out and ships output."""

    def carry_out(self, effects: list[Effect]) -> None: ...
    def follow_call(self, lane: str, index: int, task_id: str, place: Place, ended: bool) -> None: ...
    def ships_from(self, folder: str) -> bool: ...
    def own_variables(
        self, lane: str, token: str, account: Account, uses: Sequence[str]
    ) -> dict[str, str]: ...


class Runners:
    """All runners of one agent."""

    def __init__(
        self,
        home: RunnerHome,
        machine: Machine,
        blobs: Blobs,
        carrier: Carrier,
        own: Mapping[str, str],
        work: str,
        cap_bytes: int,
    ) -> None:
        self.home, self._machine, self._blobs, self._carrier = home, machine, blobs, carrier
        self._own, self._work, self._cap_bytes = dict(own), work, cap_bytes
        self.lines = RunnerLines(home, self)
        self._bound: dict[str, BindRunner] = {}
        self._unsent: dict[str, bytes] = {}
        self._functions: dict[str, dict[str, None]] = {}
        self._notes: dict[str, RunnerNotes] = {}
        self._exits: dict[str, dict[str, Any]] = {}
        self._landings: dict[asyncio.Task[None], str] = {}

    # --- effects ------------------------------------------------------------------------------------------------------

    def make_task(self, effect: StartRunner) -> dict[str, Any]:
        """A runner as the supervisor's `run` entry; raises OSError where its folder cannot be made."""
        account = self.home.accounts.named(effect.account)
        self._notes[effect.uid] = self.home.make_notes(effect.uid, account)
        return self.home.make_task(effect.uid, account, effect.venv, effect.memory_bytes, self._own)

    def carry_out(self, effect: BindRunner | FeedRunner | LetGo | Recall | Nudge | Prefetch) -> None:
        """Do what the machine asks of runners that are there."""
        if isinstance(effect, FeedRunner):
            data = calls_frame(effect.indices, effect.no, effect.args)
            self.lines.write(effect.uid, self._unsent.pop(effect.uid, b"") + data)
        elif isinstance(effect, BindRunner):
            if self._stays_bound(effect):
                self._notes[effect.uid].resume()
            else:
                # Kept for the calls that follow: one write, and one read on the other side.
                self._unsent[effect.uid] = self._bind(effect)
                self._bound[effect.uid] = effect
        elif isinstance(effect, Recall):
            self.lines.recall(effect.uid)
        elif isinstance(effect, Nudge):
            self.lines.nudge(effect.uid)
        elif isinstance(effect, LetGo):
            if (notes := self._notes.get(effect.uid)) is not None:
                notes.release()
        else:
            self._blobs.prefetch(effect.digest)

    def _stays_bound(self, effect: BindRunner) -> bool:
        """Whether a runner comes back to the lane it served last: then it knows all of it.

        Not where calls must not run twice: being bound anew is what ends its last one in the runner's own notes.
        """
        known = self._bound.get(effect.uid)
        return (
            known is not None
            and known.lane == effect.lane
            and known.spec is effect.spec
            and (known.devices, known.token) == (effect.devices, effect.token)
            and not is_careful(effect.spec)
        )

    def _bind(self, effect: BindRunner) -> bytes:
        spec = effect.spec
        digest = hashlib.sha256(spec.function).hexdigest()
        sent = self._functions.setdefault(effect.uid, {})
        known = digest in sent
        sent[digest] = None
        if len(sent) > KEPT_FUNCTIONS:
            del sent[next(iter(sent))]
        launch = Launch(effect.lane, spec, None, 0.0, effect.devices, 1)
        machine, account = self._machine, self._account(effect.uid)
        document = {
            "lane": effect.lane,
            "job": effect.job,
            "numbered": spec.numbered,
            "function": digest,
            "env": build_environment(launch, machine.name, self._own | account.variables(), machine.devices),
            "own": self._carrier.own_variables(effect.lane, effect.token, account, spec.uses),
            "workdir": spec.workdir or account.work_folder(self._work),
            "careful": is_careful(spec),
            "number": self._notes[effect.uid].bind(effect.lane, effect.job),
        }
        return json_frame(BIND, document, b"" if known else spec.function)

    def _account(self, uid: str) -> Account:
        return self.home.accounts.named(self._machine.calls.pool.records[uid].account)

    # --- processes ----------------------------------------------------------------------------------------------------

    def annotate(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Add to what the supervisor says of runners which calls they were in; None where it must wait."""
        if event.get("ev") == "state":
            for item in event["attempts"]:
                if is_runner(item["uid"]):
                    item["now"] = self._read_notes(item["uid"])
            held = {item["uid"] for item in event["attempts"]}
            self.home.remove(self.home.list_others(held | self._machine.calls.pool.records.keys()))
        elif event.get("ev") == "exited":
            rest = [item for item in event["items"] if not is_runner(item["uid"])]
            for item in event["items"]:
                if is_runner(item["uid"]):
                    self._exited(item)
            return {**event, "items": rest} if rest else None
        elif event.get("ev") == "refused" and is_runner(event.get("uid") or ""):
            self.forget(event["uid"])
        return event

    def forget(self, uid: str) -> None:
        """Leave nothing of a runner that was never started."""
        if (notes := self._notes.pop(uid, None)) is not None:
            notes.close()
        self.home.remove([uid])

    async def mend(self) -> str:
        """Make the runners' folders and sockets anew where somebody removed them; gives the fault, if any."""
        try:
            self.home.make_folders()
            if not self.home.has_sockets():
                logger.warning("the runners' socket is gone: made anew")
                await self.lines.restart()
        except OSError as fault:
            return f"the runners' folder or socket cannot be made: {fault}"
        return ""

    def _exited(self, item: dict[str, Any]) -> None:
        uid = item["uid"]
        self._exits[uid] = item
        if uid not in self.lines.calls:
            self._conclude(uid)
        else:
            # A child that it forked may hold the socket open for ever.
            asyncio.get_running_loop().call_later(DRAIN_S, self._conclude, uid)

    def _conclude(self, uid: str) -> None:
        item = self._exits.pop(uid, None)
        if item is None:
            return
        self.lines.drop(uid)
        now = item["now"] = self._read_notes(uid)
        if now is not None and now["index"] >= 0:
            self._follow_last(uid, now["lane"], now["index"])
        self._bound.pop(uid, None)
        self._unsent.pop(uid, None)
        self._functions.pop(uid, None)
        if (notes := self._notes.pop(uid, None)) is not None:
            notes.close()
        self._tell(self._machine.supervised({"ev": "exited", "items": [item]}, _now_ms()))
        self._remove_later(uid)

    def _read_notes(self, uid: str) -> dict[str, Any] | None:
        notes = self._notes.get(uid)
        return read_notes(self.home.folder(uid)) if notes is None else notes.read()

    def _follow_last(self, uid: str, lane: str, index: int) -> None:
        """What a dead runner's last call has printed stays where it is: nothing else is printed there any more."""
        bound = self._bound.get(uid)
        if bound is not None and bound.lane == lane and self.home.has_printed(uid):
            task_id = _task_id(bound, index)
            self._carrier.follow_call(lane, index, task_id, self.home.live(uid), ended=True)

    def _remove_later(self, uid: str) -> None:
        """Its folder goes once nothing in it is on its way any more, and no later agent may have to read its notes."""
        landing, kept = uid in self._landings.values(), uid in self._machine.calls.kept
        if landing or kept or self._carrier.ships_from(self.home.folder(uid)):
            asyncio.get_running_loop().call_later(1.0, self._remove_later, uid)
        else:
            self.home.remove([uid])

    def look_live(self) -> None:
        """Ship what calls have printed that still run."""
        for uid, bound in self._bound.items():
            if not self.home.has_printed(uid):
                continue
            now = self._read_notes(uid)
            if now is not None and now["lane"] == bound.lane and self._has(bound.lane, now["index"]):
                task_id, live = _task_id(bound, now["index"]), self.home.live(uid)
                self._carrier.follow_call(bound.lane, now["index"], task_id, live, ended=False)
                self.home.cut_live(uid, self._cap_bytes)

    def _has(self, lane: str, index: int) -> bool:
        """Whether that call of a lane has been given to its runner and has not ended: a runner may name any."""
        known = self._machine.calls.lanes.get(lane)
        return known is not None and index in known.fed

    # --- what runners say ---------------------------------------------------------------------------------------------

    def line_ready(self, uid: str, pid: int) -> None:
        if (record := self._machine.calls.pool.records.get(uid)) is not None:
            record.pid = pid
        self._tell(self._machine.calls.runner_ready(uid, _now_ms()))

    def line_closed(self, uid: str) -> None:
        if uid in self._exits:
            self._conclude(uid)
        else:
            # Most often its exit comes next. One that lives on has lost the only way to tell how its calls end.
            asyncio.get_running_loop().call_later(LINGER_S, self.line_broken, uid)

    def line_broken(self, uid: str) -> None:
        """What a runner says makes no sense, or it can say nothing more."""
        self._tell(self._machine.calls.runner_broken(uid))

    def knows(self, uid: str) -> bool:
        return uid in self._machine.calls.pool.records

    def line_results(self, uid: str, results: Results) -> None:
        bound = self._bound.get(uid)
        if bound is None:
            return
        if any(results.flags):
            results = self._sort_out(uid, bound, results)
        values: Sequence[bytes | None] = results.value
        words = _SUCCEEDED[: len(values)]
        details: dict[int, tuple[str, str]] = {}
        if any(results.state) or len(words) < len(values):
            details = {
                index: (STATES[state], error[:ERROR_BYTES].decode(errors="replace"))
                for index, state, error in zip(results.indices, results.state, results.error, strict=True)
                if state
            }
            words = tuple("failed" if state else "succeeded" for state in results.state)
            values = [value or None for value in values]
        ended = Ended(results.indices, results.no, words, values, results.wall_us, details)
        self._tell(self._machine.calls.runner_ended(uid, ended, _now_ms()))

    def _sort_out(self, uid: str, bound: BindRunner, results: Results) -> Results:
        """Ship what was printed, and take out the calls whose values must go to the hub first."""
        places = []
        for place, index in enumerate(results.indices):
            flags = results.flags[place]
            if not flags or not self._has(bound.lane, index):
                places.append(place)
                continue
            if flags & (STDOUT | STDERR):
                printed = self.home.ended(uid, bound.lane, index)
                self._carrier.follow_call(bound.lane, index, _task_id(bound, index), printed, ended=True)
            if flags & BLOB:
                self._land(uid, bound.lane, index, results.wall_us[place], results.value[place])
            else:
                places.append(place)
        return pick(results, places)

    def line_returned(self, uid: str, indices: tuple[int, ...]) -> None:
        self._tell(self._machine.calls.runner_returned(uid, indices, _now_ms()))

    def line_grown(self, uid: str, growth_bytes: int, littered: bool) -> None:
        self._tell(self._machine.calls.runner_grown(uid, growth_bytes, littered, _now_ms()))

    def line_asked(self, uid: str, question: dict[str, Any]) -> None:
        if sum(asker == uid for asker in self._landings.values()) >= IN_FLIGHT:
            raise BadFrame(f"more than {IN_FLIGHT} questions and values at once")
        self._spawn(uid, self._answer(uid, question))

    def _tell(self, effects: list[Effect]) -> None:
        self._carrier.carry_out(effects)

    # --- values -------------------------------------------------------------------------------------------------------

    def _spawn(self, uid: str, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._landings[task] = uid
        task.add_done_callback(lambda done: self._landings.pop(done, None))

    def _land(self, uid: str, lane: str, index: int, wall_us: int, value: bytes) -> None:
        named = VALUE.fullmatch(value)
        if named is None:
            raise BadFrame(f"{value[:100]!r} names no value")
        digest, size, number = named[1].decode(), int(named[2]), int(named[3])
        self._tell(self._machine.calls.runner_landing(uid, index, _now_ms()))
        self._spawn(uid, self._upload(uid, number, lane, index, wall_us, (digest, size)))

    async def _upload(
        self, uid: str, number: int, lane: str, index: int, wall_us: int, named: tuple[str, int]
    ) -> None:
        """Bring a large value to the hub, then say how its call ended."""
        digest, size = named
        state, details = "succeeded", {}
        try:
            with self.home.open_value(uid, number) as file:
                await self._blobs.upload(file, digest, size, keep=not self.home.is_foreign)
        except Refused as fault:
            state = "failed"
            kind = STATES[TOO_LARGE] if fault.too_large else "environment"
            details = {index: (kind, f"its result of {size} bytes was not taken by the hub: {fault}")}
        except Exception as fault:  # noqa: BLE001  # a value whose end nobody tells would hold its lane for ever
            state = "failed"
            details = {index: ("environment", f"its result of {size} bytes did not reach the hub: {fault}")}
        value = named if state == "succeeded" else None
        ended = Ended([index], [0], [state], [value], [wall_us], details)
        self._tell(self._machine.calls.landed(lane, ended, _now_ms()))

    async def _answer(self, uid: str, question: dict[str, Any]) -> None:
        """Fetch what a runner asks for; small values travel with the answer."""
        answer: dict[str, Any] = {"id": question.get("id", 0)}
        data = b""
        try:
            path = await self._find(uid, question)
            if _size(path) <= INLINE_BYTES:
                data = _read(path)
            else:
                answer["path"] = path
        except Exception as fault:  # noqa: BLE001  # a runner without an answer would wait for ever
            answer["error"] = f"{_describe(question)} cannot be had from the hub: {fault}"
        self.lines.write(uid, json_frame(ANSWER, answer, data))

    async def _find(self, uid: str, question: dict[str, Any]) -> str:
        if "blob" in question:
            return await self._blobs.fetch(str(question["blob"][0]))
        job, index = split_task_id(str(question["value"])) or ("", 0)
        return await self._blobs.fetch_value(job, max(index, 0), self._bound[uid].token)

    def close(self) -> None:
        """Let all runners go, and what they had on its way."""
        self.lines.close()
        self._blobs.close()
        for task in self._landings:
            task.cancel()


def _describe(question: dict[str, Any]) -> str:
    if "value" in question:
        return f"the value of task {question['value']}"
    return f"the value {str(question.get('blob'))[:100]}"


def _task_id(bound: BindRunner, index: int) -> str:
    return f"{bound.job}/{index}" if bound.spec.numbered else bound.job


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
