"""The warm processes of one machine that run calls: a queue each, one call at a time, and the mapped file that says
which one it is in.

They end with their agent, and what they were in can be read afterwards. What they run is noted down by the world.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from dray.agent.decide.calls.calls import Ended
from dray.agent.decide.effects import BindRunner, FeedRunner
from dray.sim.faults.nodes.runs import CallBehaviour, CallRuns, Execution, Runs
from dray.sim.faults.world.world import World

HELD = 8
SHORT_MS = 3


class Runner(msgspec.Struct):
    """One process. `now` is its mapped file; `held` are results that it has not told yet."""

    uid: str
    bound: BindRunner | None = None
    queue: list[tuple[int, int]] = []
    now: dict[str, Any] | None = None
    execution: Execution | None = None
    held: list[tuple[int, int, str, int]] = []
    waits: bool = False
    exit: dict[str, Any] | None = None
    stopping: bool = False

    @property
    def gone(self) -> bool:
        """Whether the process has ended."""
        return self.exit is not None

    @property
    def careful(self) -> bool:
        """Whether its calls must not run twice."""
        return self.bound is not None and self.bound.spec.at_most_once


class RunnerHost:
    """All of them. `tell` reaches the agent that started them: which method of its machine, and with what."""

    def __init__(self, world: World, name: str, machine: str, runs: Runs, callers: CallRuns) -> None:
        self._world, self._name, self._machine, self._runs, self._callers = (
            world,
            name,
            machine,
            runs,
            callers,
        )
        self.rng = random.Random(f"runners {world.seed} {machine}")  # a simulation's chance, no secret
        self.runners: dict[str, Runner] = {}
        self.tell: Callable[[str, tuple[Any, ...]], None] = lambda what, arguments: None
        self.exited: Callable[[dict[str, Any]], None] = lambda item: None

    def items(self) -> list[dict[str, Any]]:
        """As a supervisor lists them."""
        return [self._item(runner) for runner in self.runners.values()]

    def _item(self, runner: Runner) -> dict[str, Any]:
        phase = "exited" if runner.gone else "running"
        return {
            "uid": runner.uid,
            "task_id": runner.uid,
            "phase": phase,
            "now": runner.now,
            **(runner.exit or {}),
        }

    # --- what the agent asks for --------------------------------------------------------------------------------------

    def start(self, uid: str) -> None:
        """A process is started; it connects back in a moment."""
        runner = self.runners[uid] = Runner(uid)
        self._world.at(self.rng.randint(1, 60), self._ready, runner)

    def _ready(self, runner: Runner) -> None:
        if not runner.gone:
            self.tell("runner_ready", (runner.uid,))

    def bind(self, effect: BindRunner) -> None:
        """What follows is of this lane."""
        runner = self.runners.get(effect.uid)
        if runner is not None and not runner.gone:
            self._flush(runner)
            runner.bound = effect
            runner.now = {"lane": effect.lane, "job": effect.job, "index": -1, "no": 0}

    def feed(self, effect: FeedRunner) -> None:
        """Calls to run, one after the other."""
        runner = self.runners.get(effect.uid)
        if runner is None or runner.gone or runner.bound is None:
            return
        for index, no, arg in zip(effect.indices, effect.no, effect.args, strict=True):
            if arg != argument_of(runner.bound.job, index):
                self._world.fail(
                    f"call {runner.bound.job}/{index} was given {arg!r}, which is not its argument"
                )
            runner.queue.append((index, no))
        if runner.execution is None:
            self._next(runner)

    def recall(self, uid: str) -> None:
        """Give back what has not begun."""
        runner = self.runners.get(uid)
        if runner is not None and not runner.gone:
            self._flush(runner)
            indices = [index for index, _ in runner.queue]
            runner.queue.clear()
            self.tell("runner_returned", (uid, indices))

    def nudge(self, uid: str) -> None:
        """Tell what is held back."""
        runner = self.runners.get(uid)
        if runner is not None and not runner.gone:
            self._flush(runner)

    def cancel(self, uid: str, grace_ms: int) -> None:
        """End a process, whole."""
        runner = self.runners.get(uid)
        if runner is None:
            return
        if runner.gone:
            self.exited(self._item(runner))
            return
        runner.stopping = True
        self._world.at(min(grace_ms, self.rng.randint(0, 500)), self.kill, uid, 15)

    def granted(self, lane: str) -> None:
        """A call that waited for its slot goes on."""
        for runner in self.runners.values():
            run = runner.execution
            if run is not None and run.uid == lane and runner.waits:
                runner.waits, run.yielded = False, False
                self._world.at(self.rng.randint(1, 500), self._finish, runner, run)

    # --- what calls do ------------------------------------------------------------------------------------------------

    def _next(self, runner: Runner) -> None:
        if not runner.queue or runner.bound is None:
            runner.execution = None
            self._flush(runner)
            return
        index, no = runner.queue.pop(0)
        bound = runner.bound
        task_id = f"{bound.job}/{index}" if bound.spec.array is not None else bound.job
        runner.now = {"lane": bound.lane, "job": bound.job, "index": index, "no": no}
        behaviour = self._callers.behave(task_id)
        run = runner.execution = Execution(
            task_id,
            bound.lane,
            self._name,
            self._machine,
            self._world.now_ms,
            bound.devices,
            bound.spec.gpu_milli or 1000,
            round(bound.spec.limit_s * 1000),
            120_000,
            call=(index, no),
        )
        run.outcome = behaviour.state
        self._runs.begin(run)
        if behaviour.yields:
            self._world.at(self.rng.randint(0, 100), self._yield, runner, run, behaviour)
        else:
            self._world.at(behaviour.duration_ms, self._finish, runner, run)

    def _yield(self, runner: Runner, run: Execution, behaviour: CallBehaviour) -> None:
        if runner.execution is not run or runner.gone:
            return
        runner.waits = run.yielded = True
        self._world.counts["yield"] += 1
        self.tell("task_said", (run.uid, {"yield": {}}))
        self._world.at(behaviour.duration_ms, self._resume, runner, run)

    def _resume(self, runner: Runner, run: Execution) -> None:
        if runner.execution is run and runner.waits and not runner.gone:
            self.tell("task_said", (run.uid, {"resume": {}}))

    def _finish(self, runner: Runner, run: Execution) -> None:
        if runner.execution is not run or runner.gone:
            return
        took_ms = self._world.now_ms - run.began_ms
        index, no = run.call
        state = run.outcome
        self._runs.end(run, state)
        runner.held.append((index, no, state, took_ms))
        if runner.now is not None and not runner.careful:
            runner.now = runner.now | {"index": -1, "no": 0}
        if took_ms >= SHORT_MS or len(runner.held) >= HELD or runner.careful:
            self._flush(runner)
        self._next(runner)

    def _flush(self, runner: Runner) -> None:
        held, runner.held = runner.held, []
        if not held or runner.bound is None:
            return
        job = runner.bound.job
        ended = Ended(
            [index for index, *_ in held],
            [no for _, no, *_ in held],
            [state for _, _, state, _ in held],
            [value_of(job, index, no, state) for index, no, state, _ in held],
            [took_ms * 1000 for *_, took_ms in held],
            {index: ("raised", "it failed") for index, _, state, _ in held if state == "failed"},
        )
        self.tell("runner_ended", (runner.uid, ended))

    # --- ends ---------------------------------------------------------------------------------------------------------

    def kill(self, uid: str, signal: int = 9) -> None:
        """A process dies, whoever killed it."""
        runner = self.runners.get(uid)
        if runner is None or runner.gone:
            return
        self._end(runner, signal)
        self.exited(self._item(runner))

    def _end(self, runner: Runner, signal: int) -> None:
        if runner.execution is not None:
            self._runs.end(runner.execution, "killed")
            runner.execution = None
        runner.exit = {"state": "killed", "exit_code": -signal, "signal": signal, "exit_class": "signal"}

    def end_all(self) -> None:
        """They hear that their agent is gone and end, or somebody ends them all."""
        for runner in self.runners.values():
            if not runner.gone:
                self._end(runner, 9)

    def acked(self, uids: list[str]) -> None:
        """Their ends are known: let them go."""
        for uid in uids:
            if (runner := self.runners.get(uid)) is not None and runner.gone:
                del self.runners[uid]


def argument_of(job: str, index: int) -> bytes:
    """What a client gives a call."""
    return f"{job} {index}".encode()


def value_of(job: str, index: int, no: int, state: str) -> bytes:
    """What a call gives back: it says which try it was."""
    return f"{job} {index} {no} {state}".encode()
