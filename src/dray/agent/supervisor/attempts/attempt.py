"""One attempt: its stages (prolog, command, epilog), what was asked of it meanwhile, and the verdict at its end.

Holds state and draws conclusions; starts, signals and reaps nothing (lives.py does). Surprising rule: once an attempt
was asked to end for a reason (by TERM, or through its session where it heeds that), the reason decides the result,
whatever the program makes of it; a program that ended before is reported as it ended.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from dray.agent.supervisor.processes.output import STREAMS, OutputLimits, OutputStream
from dray.agent.supervisor.processes.program import HOST_ERRORS, describe_failure
from dray.agent.supervisor.processes.stdio import DEFAULT_SIZE

if TYPE_CHECKING:
    import resource

    from dray.agent.supervisor.attempts.exec import Exec
    from dray.agent.supervisor.attempts.spec import TaskSpec
    from dray.agent.supervisor.processes.cgroup import Group
    from dray.agent.supervisor.processes.process import Process
    from dray.agent.supervisor.processes.spawn import Identity
    from dray.agent.supervisor.processes.timers import Timer
    from dray.agent.supervisor.records.journal import Record
    from dray.processes import ProcessInfo

RSS_UNIT_BYTES = 1 if os.uname().sysname == "Darwin" else 1024
NO_EXIT_CODE = -1
LATE = "the supervisor did not get to it in time"
TAKES_LONG = "the one that it was to come after takes longer than was thought"


class Stop:
    """A request to end: TERM at once, KILL at `kill_at`. An attempt that heeds its session is `told` first, and TERM
    comes later.

    `known` are the processes seen below the leader while it lived: those that left its session can be recognised as its
    descendants only as long as their parents are there.
    """

    __slots__ = ("kill_at", "known", "reason", "term_sent", "term_timer", "timer", "told")

    def __init__(self, reason: str, kill_at: float) -> None:
        self.reason = reason
        self.kill_at = kill_at
        self.term_sent = False
        self.told = False
        self.known: dict[int, ProcessInfo] = {}
        self.timer: Timer | None = None
        self.term_timer: Timer | None = None


class Attempt:
    __slots__ = (
        "cpu_s",
        "drain_timer",
        "execs",
        "exited",
        "fresh",
        "group",
        "heeds",
        "identity",
        "lease_timer",
        "limit_timer",
        "looks",
        "max_rss_bytes",
        "open_pipes",
        "process",
        "released_at",
        "result",
        "spec",
        "stage",
        "started_at",
        "stop",
        "streams",
        "uid",
        "wait_timer",
        "withdrawn",
    )

    def __init__(self, spec: TaskSpec, output_directory: str, limits: OutputLimits) -> None:
        self.uid = spec.uid
        self.spec = spec
        self.stage = "prolog" if spec.prolog else "command"
        self.streams = [OutputStream(output_directory, name, limits) for name in STREAMS]
        self.process: Process | None = None
        self.open_pipes = 0
        self.exited = False
        # What was asked for beside it, by pid.
        self.execs: dict[int, Exec] = {}
        # Its first process, and whether that was ended before it was let go.
        self.fresh = self.withdrawn = False
        self.looks = 0
        self.identity: Identity | None = None
        self.group: Group | None = None
        self.stop: Stop | None = None
        self.heeds = False
        self.wait_timer: Timer | None = None
        self.limit_timer: Timer | None = None
        self.lease_timer: Timer | None = None
        self.drain_timer: Timer | None = None
        self.result: Record | None = None
        self.started_at = 0.0
        self.released_at = 0.0
        self.cpu_s = 0.0
        self.max_rss_bytes = 0

    def hang_up_execs(self) -> None:
        for running in self.execs.values():
            running.hang_up()

    @property
    def terminal_size(self) -> tuple[int, int] | None:
        """Of the terminal that its present stage runs in; None without one."""
        return DEFAULT_SIZE if self.spec.terminal and self.stage == "command" else None

    @property
    def argv(self) -> list[str]:
        if self.stage == "command":
            return self.spec.argv
        return (self.spec.prolog if self.stage == "prolog" else self.spec.epilog) or []

    def out(self) -> dict[str, int]:
        return {name: stream.total_bytes for name, stream in zip(STREAMS, self.streams, strict=True)}

    def add_usage(self, usage: resource.struct_rusage) -> None:
        self.cpu_s += usage.ru_utime + usage.ru_stime
        # Never below the supervisor's own size: a forked child starts out with the high-water mark of its parent.
        self.max_rss_bytes = max(self.max_rss_bytes, usage.ru_maxrss * RSS_UNIT_BYTES)

    def usage(self, now: float) -> dict[str, float]:
        wall_s = now - self.released_at if self.released_at else 0.0
        return {
            "wall_s": round(wall_s, 6),
            "cpu_s": round(self.cpu_s, 6),
            "max_rss_bytes": self.max_rss_bytes,
        }

    def judge(self, status: int, failure: Record | None, oom_killed: bool) -> Record:
        """The verdict over the stage that just ended, `status` as wait gives it."""
        signaled = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        code = 128 + signaled if signaled else os.WEXITSTATUS(status)
        if self.stop is not None and (self.stop.term_sent or self.stop.told or self.stage == "prolog"):
            return judge_stopped(self.stop.reason, code, signaled, self.spec.limit_s)
        if failure is not None:
            if failure["errno"] in HOST_ERRORS or (failure["kind"] == "workdir" and self.spec.own_cwd):
                return refuse_start(failure["text"])
            exit_class, code, error = describe_failure(failure, self.argv, self.spec.env, self.spec.cwd)
            return make_result("failed", code, 0, exit_class, error)
        if code == 0:
            return make_result("succeeded", 0, 0, "ok", "")
        if oom_killed and code == 128 + signal.SIGKILL:
            return make_result("failed", code, signaled, "oom", describe_oom(self.spec.memory_bytes))
        what = "prolog" if self.stage == "prolog" else "command"
        error = f"the {what} exited with code {code}"
        if signaled:
            error = f"the {what} was killed by signal {signaled} ({describe_signal(signaled)})"
        if oom_killed:
            error += "; the kernel killed one of its processes for memory"
        return make_result("failed", code, signaled, "signal" if signaled else "code", error)


def make_result(state: str, exit_code: int, number: int, exit_class: str, error: str) -> Record:
    return {
        "state": state,
        "exit_code": exit_code,
        "signal": number,
        "exit_class": exit_class,
        "error": error,
    }


def refuse_start(reason: str) -> Record:
    """It was not started, and could not have been: this worker's fault, not its own."""
    error = f"this worker could not start another process: {reason}"
    return {**make_result("failed", NO_EXIT_CODE, 0, "lost_unstarted", error), "host": True}


def give_back() -> Record:
    """It was not started, through nobody's fault: somebody else may have room for it."""
    return make_result("failed", NO_EXIT_CODE, 0, "lost_unstarted", TAKES_LONG)


def judge_stopped(reason: str, code: int, number: int, limit_s: float | None) -> Record:
    if reason == "time_limit":
        limit = f" of {limit_s:g} s" if limit_s is not None else ""
        return make_result("failed", code, number, "time_limit", f"stopped at its time limit{limit}")
    if reason == "lease":
        text = "stopped: the hub was out of reach for longer than its lease, and overlap is fenced"
        return make_result("failed", code, number, "lost", text)
    if reason == "port":
        text = "stopped: another program listens on the port that it was given"
        return make_result("failed", code, number, "lost", text)
    if reason == "preempted":
        return make_result("preempted", code, number, "cancelled", "stopped to make room for other work")
    return make_result("killed", code, number, "cancelled", f"cancelled ({reason})")


def describe_oom(memory_bytes: int) -> str:
    if memory_bytes:
        return f"killed for memory: it used more than its limit of {memory_bytes} bytes; ask for more"
    return "killed for memory: the worker ran out of it"


def describe_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unnamed"
