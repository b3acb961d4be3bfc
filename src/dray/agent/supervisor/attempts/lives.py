"""The life of attempts as processes: launch, pump output, stop, settle, reap.

Owns every child, its pipes and its deadlines. Reports facts to its owner through `report` (a start to come, a started
process, an exit) and knows neither journal nor agent. Surprising rule: an exited leader is reaped last, after its
output is drained and its session is dealt with: as long as it is a zombie its pid cannot name anybody else.
"""

from __future__ import annotations

import functools
import os
import selectors
import signal
import time
from collections import deque
from typing import TYPE_CHECKING

from dray.agent.supervisor.attempts.attempt import (
    LATE,
    NO_EXIT_CODE,
    Attempt,
    Stop,
    give_back,
    judge_stopped,
    make_result,
    refuse_start,
)
from dray.agent.supervisor.attempts.followers import Followers
from dray.agent.supervisor.attempts.orphans import Orphans, with_kin
from dray.agent.supervisor.processes.cgroup import remove_soon
from dray.agent.supervisor.processes.identity import HAS_PIDFD, find_members, kill_exactly, snapshot_processes
from dray.agent.supervisor.processes.marks import VARIABLE
from dray.agent.supervisor.processes.output import OutputLimits, OutputStream, pump_pipe
from dray.agent.supervisor.processes.process import Pipes
from dray.agent.supervisor.processes.spawn import Barrier, Identity, NotStarted, Spawner
from dray.processes import HAS_PROC

if TYPE_CHECKING:
    from dray.agent.supervisor.attempts.report import Report
    from dray.agent.supervisor.attempts.spec import TaskSpec
    from dray.agent.supervisor.processes.cgroup import Group, Groups
    from dray.agent.supervisor.processes.process import Process
    from dray.agent.supervisor.processes.timers import Timers
    from dray.agent.supervisor.records.journal import Record
    from dray.processes import ProcessInfo

SPAWNS_PER_TURN = 64
DRAIN_S = 1.0
TOLD_SHARE = 0.5
SURVIVOR_POLL_S = 0.05
TABLE_FRESH_S = 0.03
MOST_LOOKS = 100


class Runner:
    def __init__(
        self,
        selector: selectors.BaseSelector,
        timers: Timers,
        spawner: Spawner,
        groups: Groups,
        report: Report,
        attempts_directory: str,
        limits: OutputLimits,
        orphans: Orphans,
    ) -> None:
        self._selector = selector
        self._timers = timers
        self._spawner = spawner
        self._groups = groups
        self._report = report
        self._directory = attempts_directory
        self._limits = limits
        self._queue: deque[Attempt] = deque()
        self._intended: list[tuple[Attempt, Pipes, str]] = []
        self._launched: list[Attempt] = []
        self._leases = 0
        self._table: dict[int, ProcessInfo] = {}
        self._table_at = float("-inf")
        self._orphans = orphans
        self._looked = False
        self.attempts: dict[str, Attempt] = {}
        self.followers = Followers()

    @property
    def wants_turn(self) -> bool:
        return bool(self._queue)

    def accept(self, spec: TaskSpec, lease_ends_at: float | None = None) -> None:
        attempt = Attempt(spec, os.path.join(self._directory, spec.uid), self._limits)
        self.attempts[spec.uid] = attempt
        if spec.behind in self.attempts:
            self.followers.join(spec.uid, spec.behind)
            late = functools.partial(self.give_back, spec.uid)
            attempt.wait_timer = self._timers.at(time.monotonic() + spec.behind_s, late)
        else:
            self._queue.append(attempt)
        if spec.lease_s is not None:
            self._leases += 1
            self._arm_lease(attempt, lease_ends_at or (spec.heard_at or time.monotonic()) + spec.lease_s)

    # --- launching ---------------------------------------------------------------------------------------------------

    def launch_some(self) -> Barrier | None:
        """Prepare what waits, within one turn's share.

        The caller releases the barrier, and calls `start_intended`, once the records are safe.
        """
        barrier = None
        for _ in range(min(SPAWNS_PER_TURN, len(self._queue))):
            attempt = self._queue.popleft()
            if attempt.uid not in self.attempts:
                continue
            if self._is_late(attempt):
                self._end(attempt, refuse_start(LATE))
                continue
            try:
                self._prepare(attempt)
                if self._may_start_at_once(attempt):
                    self._intend(attempt)
                else:
                    barrier = barrier or Barrier()
                    self._launch(attempt, barrier)
            except ValueError as error:
                self._end(attempt, make_result("failed", 126, 0, "not_executable", str(error)))
            except OSError as error:
                self._fail_launch(attempt, error)
        return barrier

    def _is_late(self, attempt: Attempt) -> bool:
        """Whether its first process is due and must not start any more: asked for too long ago, it was given back."""
        return not attempt.released_at and attempt.spec.is_late()

    def _prepare(self, attempt: Attempt) -> None:
        spec = attempt.spec
        if not attempt.released_at:
            if spec.user:
                attempt.identity = Identity(spec.user)
            if spec.memory_bytes:
                attempt.group = self._groups.create(spec.uid, spec.memory_bytes)

    def _may_start_at_once(self, attempt: Attempt) -> bool:
        """Not what must enter a group, have a terminal or become another user first.

        Nor anything while a lease is kept here: until its exec a child started at once holds this process up, a file
        system that hangs would do so for long, and a lease has to be enforced meanwhile.
        """
        plain = attempt.identity is None and attempt.group is None and attempt.terminal_size is None
        return plain and not self._leases and self._spawner.can_start_at_once

    def _intend(self, attempt: Attempt) -> None:
        pipes = Pipes()
        mark = self._report.start_intended(attempt, pipes.read_inodes())
        self._intended.append((attempt, pipes, mark))

    def start_intended(self) -> None:
        """Start what was prepared to start at once: its intent is on record."""
        intended, self._intended = self._intended, []
        for attempt, pipes, mark in intended:
            if attempt.uid not in self.attempts:
                pipes.close()  # cancelled while the journal could not be written
            elif self._is_late(attempt):
                pipes.close()
                self._end(attempt, refuse_start(LATE))
            else:
                self._start(attempt, pipes, mark)
        if intended:
            os.chdir("/")

    def _start(self, attempt: Attempt, pipes: Pipes, mark: str) -> None:
        spec = attempt.spec
        try:
            process = self._spawner.start(attempt.argv, {**spec.env, VARIABLE: mark}, spec.cwd, pipes)
        except NotStarted as fault:
            self._end_stage(attempt, 127 << 8, fault.failure)
        except OSError as error:
            self._fail_launch(attempt, error)
        else:
            self._note_start(attempt, process)

    def _launch(self, attempt: Attempt, barrier: Barrier) -> None:
        env, cwd = {**attempt.spec.env, VARIABLE: self._report.mark(attempt)}, attempt.spec.cwd
        size = attempt.terminal_size
        process = self._spawner.spawn(attempt.argv, env, cwd, attempt.identity, barrier, size)
        if attempt.group is not None:
            self._join_group(attempt, attempt.group, process.pid)
        self._note_start(attempt, process)

    def _note_start(self, attempt: Attempt, process: Process) -> None:
        first = attempt.fresh = not attempt.released_at
        attempt.process = process
        attempt.exited = False
        self._launched.append(attempt)
        if first:
            attempt.started_at = time.time()
            attempt.released_at = time.monotonic()
        self._report.process_started(attempt, process, first)

    def withdraw_late(self) -> list[str]:
        """End what waits at its barrier and must not start any more; gives the attempts."""
        late: list[str] = []
        for attempt in self._launched:
            process = attempt.process
            if process is not None and process.barred and attempt.fresh and attempt.spec.is_late():
                attempt.withdrawn = True
                process.signal_group(signal.SIGKILL)
                late.append(attempt.uid)
        return late

    def watch_launched(self) -> None:
        """Begin to listen to what was just let go.

        Only now, because as long as a child waits at its barrier it shares every page with this process, and each one
        written here is copied first. Nothing is missed: readiness and exits stay readable.
        """
        launched, self._launched = self._launched, []
        ended = {a.uid for a in launched if a.process is not None and a.process.has_ended_at_once()}
        if ended:
            # One look at what they left, for all of them.
            self.watch_orphans()
            self._looked = True
        for attempt in launched:
            process = attempt.process
            if process is None:
                continue
            try:
                if attempt.uid in ended and self._settle_at_once(attempt, process):
                    continue
                self._watch(attempt, process)
            except OSError as error:
                self._lose(attempt, process, error)
                continue
            self._arm_limit(attempt, attempt.spec)
        self._looked = False
        if launched and not HAS_PIDFD:
            self.poll_exits()  # their SIGCHLD may have come while nobody listened

    def _arm_limit(self, attempt: Attempt, spec: TaskSpec) -> None:
        if attempt.stage == "epilog":
            cut = functools.partial(self._cut_epilog, attempt)
            attempt.limit_timer = self._timers.at(time.monotonic() + spec.epilog_limit_s, cut)
        elif attempt.limit_timer is None and spec.limit_s is not None:
            expired = functools.partial(self.cancel, attempt.uid, "time_limit", spec.grace_s)
            attempt.limit_timer = self._timers.at(attempt.released_at + spec.limit_s, expired)

    def _join_group(self, attempt: Attempt, group: Group, pid: int) -> None:
        try:
            group.add(pid)
        except OSError:
            group.remove()
            attempt.group = None

    def _fail_launch(self, attempt: Attempt, error: OSError) -> None:
        if attempt.result is not None:
            self._end(attempt, attempt.result)  # only the epilog was left, and that never changes a result
            return
        refusal = refuse_start(str(error))
        self._end(attempt, {**refusal, "exit_class": "lost"} if attempt.released_at else refusal)

    def _lose(self, attempt: Attempt, process: Process, error: OSError) -> None:
        """It runs but cannot be listened to (no descriptors left): end it rather than guess about it."""
        process.signal_group(signal.SIGKILL)
        for fd in (process.pidfd, *process.pipes):
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
            if fd >= 0:
                os.close(fd)
        _, usage = process.reap()
        attempt.process = None
        attempt.add_usage(usage)
        self._fail_launch(attempt, error)

    def _settle_at_once(self, attempt: Attempt, process: Process) -> bool:
        """Most of what is short has ended by now, its output closed: then there is nothing to listen to."""
        process.unblock()
        pipes = zip(process.pipes, attempt.streams, strict=True)
        if not all(pump_pipe(fd, stream) for fd, stream in pipes):
            return False
        process.close_pipes()
        attempt.exited = True
        self._settle(attempt)
        return True

    def _watch(self, attempt: Attempt, process: Process) -> None:
        attempt.open_pipes = 2
        process.prepare_watch()
        for fd, stream in zip(process.pipes, attempt.streams, strict=True):
            pump = functools.partial(self._pump, attempt, process, fd, stream)
            self._selector.register(fd, selectors.EVENT_READ, pump)
        if process.pidfd >= 0:
            exited = functools.partial(self._process_exited, attempt)
            self._selector.register(process.pidfd, selectors.EVENT_READ, exited)

    # --- output and exit ---------------------------------------------------------------------------------------------

    def _pump(self, attempt: Attempt, process: Process, fd: int, stream: OutputStream) -> None:
        if fd not in process.pipes:
            return  # closed earlier in this very turn
        if pump_pipe(fd, stream):
            self._close_pipe(attempt, process, fd)
            if attempt.exited and not attempt.open_pipes:
                self._settle(attempt)

    def _close_pipe(self, attempt: Attempt, process: Process, fd: int) -> None:
        self._selector.unregister(fd)
        os.close(fd)
        process.pipes[process.pipes.index(fd)] = -1
        attempt.open_pipes -= 1

    def poll_exits(self) -> None:
        """Where there are no pidfds: look at every child after SIGCHLD, without reaping."""
        for attempt in list(self.attempts.values()):
            process = attempt.process
            if process is None or attempt.exited or attempt in self._launched:
                continue
            if process.poll_exit():
                self._process_exited(attempt)

    def _process_exited(self, attempt: Attempt) -> None:
        process = attempt.process
        if process is None or attempt.exited:
            return
        attempt.exited = True
        if process.pidfd >= 0:
            self._selector.unregister(process.pidfd)
            os.close(process.pidfd)
            process.pidfd = -1
        for fd, stream in zip(list(process.pipes), attempt.streams, strict=True):
            if fd >= 0 and pump_pipe(fd, stream):
                self._close_pipe(attempt, process, fd)
        if attempt.open_pipes == 0 or (attempt.stop is not None and attempt.stop.term_sent):
            self._settle(attempt)
        else:
            attempt.drain_timer = self._timers.at(
                time.monotonic() + DRAIN_S, functools.partial(self._settle, attempt)
            )

    def _settle(self, attempt: Attempt) -> None:
        """The leader is gone: deal with what it left behind, then reap it and go on to the next stage."""
        process = attempt.process
        if process is None:
            return
        self._timers.cancel(attempt.drain_timer)
        attempt.drain_timer = None
        if (
            attempt.stop is not None
            and attempt.stop.term_sent
            and self._await_survivors(attempt, attempt.stop, process)
        ):
            return
        if process.reaped is None or attempt.open_pipes:
            process.signal_group(signal.SIGKILL)
        if self._end_left(attempt):
            return
        for fd, stream in zip(list(process.pipes), attempt.streams, strict=True):
            if fd >= 0:
                pump_pipe(fd, stream)
                self._close_pipe(attempt, process, fd)
        status, usage = process.reap()
        attempt.process = None
        attempt.add_usage(usage)
        failure = self._spawner.take_failure(process.pid) if process.barred else None
        self._end_stage(attempt, status, failure)

    def watch_orphans(self) -> bool:
        """Take over what has left its parents, end what no attempt is left for; whether there is anything to watch."""
        for orphan in self._orphans.look(self.attempts):
            self._report.process_adopted(orphan)
        self._orphans.end_unowned(self.attempts)
        return bool(self._orphans.known)

    def _end_left(self, attempt: Attempt) -> bool:
        """End what an attempt leaves behind, wherever it went; True while something of it lives, for a while."""
        inherited = bool(self._orphans.known) if self._looked else self.watch_orphans()
        left = self._orphans.of(attempt.uid, self.attempts) if inherited else []
        if not (left := [*left, *(running.info for running in attempt.execs.values())]):
            return False
        kill_exactly(with_kin(left, snapshot_processes()))
        attempt.looks += 1
        if attempt.looks > MOST_LOOKS:
            return False  # it cannot be killed now: looked at from time to time from here on
        self._settle_later(attempt)
        return True

    def _await_survivors(self, attempt: Attempt, stop: Stop, process: Process) -> bool:
        """The grace is the whole group's: a shell that dies of TERM must not cut short the program it started."""
        if not HAS_PROC:
            return self._await_group(attempt, stop, process)
        members = self._find_members(attempt, stop, process)
        if not members:
            return False
        if time.monotonic() >= stop.kill_at:
            kill_exactly(members)
        self._settle_later(attempt)
        return True

    def _await_group(self, attempt: Attempt, stop: Stop, process: Process) -> bool:
        """The same without a process table to read: all that can be asked is whether the group still exists."""
        if process.reaped is None or time.monotonic() >= stop.kill_at or not process.has_group():
            return False
        self._settle_later(attempt)
        return True

    def _settle_later(self, attempt: Attempt) -> None:
        again = functools.partial(self._settle, attempt)
        attempt.drain_timer = self._timers.at(time.monotonic() + SURVIVOR_POLL_S, again)

    def _find_members(self, attempt: Attempt, stop: Stop, process: Process) -> list[ProcessInfo]:
        """All that lives of this attempt: its session, descendants seen at any time since the stop, its group."""
        table = self._look_around()
        stop.known.update((info.pid, info) for info in find_members(process.pid, table))
        if self.watch_orphans():
            left = with_kin(self._orphans.of(attempt.uid, self.attempts), table)
            stop.known.update((info.pid, info) for info in left)
        if attempt.group is not None:
            stop.known.update((pid, table[pid]) for pid in attempt.group.pids() if pid in table)
        now = {pid: table.get(pid) for pid in stop.known}
        return [
            info
            for pid, info in now.items()
            if info is not None and info.alive and info.start == stop.known[pid].start
            # The table may be older than the leader's end.
            if not (attempt.exited and pid == process.pid)
        ]

    def _look_around(self) -> dict[int, ProcessInfo]:
        """The process table, at most a moment old: a hundred cancels at once must not read it a hundred times."""
        now = time.monotonic()
        if now - self._table_at > TABLE_FRESH_S:
            self._table, self._table_at = snapshot_processes(), now
        return self._table

    # --- stages ------------------------------------------------------------------------------------------------------

    def _end_stage(self, attempt: Attempt, status: int, failure: Record | None) -> None:
        if attempt.stage == "epilog":
            self._end(attempt, attempt.result or make_result("failed", NO_EXIT_CODE, 0, "lost", "no result"))
            return
        if attempt.withdrawn:
            self._end(attempt, refuse_start(LATE))
            return
        result = attempt.judge(status, failure, self._was_oom_killed(attempt, status))
        if attempt.stage == "prolog":
            if result["state"] == "succeeded":
                attempt.stage = "command"
                self._queue.append(attempt)
                return
            if result["exit_class"] not in ("cancelled", "time_limit", "lost_unstarted"):
                result["error"] = f"the command was not run, its prolog failed: {result['error']}"
                result["exit_class"] = "prolog"
            self._end(attempt, result)
            return
        self._timers.cancel(attempt.limit_timer)
        self._drop_stop(attempt)
        if attempt.spec.epilog:
            attempt.result = result
            attempt.stage = "epilog"
            self._queue.append(attempt)
            return
        self._end(attempt, result)

    def _was_oom_killed(self, attempt: Attempt, status: int) -> bool:
        if attempt.group is not None:
            return attempt.group.count_oom_kills() > 0
        return (
            os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and self._groups.own_kills_rose()
        )

    def _drop_stop(self, attempt: Attempt) -> None:
        if attempt.stop is not None:
            self._timers.cancel(attempt.stop.timer)
            self._timers.cancel(attempt.stop.term_timer)
            attempt.stop = None

    def _end(self, attempt: Attempt, result: Record) -> None:
        for timer in (attempt.limit_timer, attempt.lease_timer, attempt.wait_timer):
            self._timers.cancel(timer)
        self._drop_stop(attempt)
        for stream in attempt.streams:
            stream.close()
        if attempt.group is not None:
            remove_soon(attempt.group, self._timers)
        if attempt.spec.lease_s is not None:
            self._leases -= 1
        del self.attempts[attempt.uid]
        if after := self.followers.leave(attempt.uid):
            follower = self.attempts[after]
            self._timers.cancel(follower.wait_timer)
            self._queue.append(follower)
        self._report.attempt_ended(attempt, result)

    def give_back(self, uid: str) -> None:
        """End what has not begun: somebody else may have room for it."""
        attempt = self.attempts.get(uid)
        if attempt is not None and not attempt.released_at:
            self._end(attempt, give_back())

    # --- stopping ----------------------------------------------------------------------------------------------------

    def cancel(self, uid: str, reason: str, grace_s: float) -> None:
        attempt = self.attempts.get(uid)
        if attempt is None:
            return
        now = time.monotonic()
        if attempt.stage == "epilog":
            # The command has ended and its result stands; a cancel can only hurry the epilog.
            self._hasten_epilog(attempt, now + grace_s)
            return
        if attempt.process is None:
            self._end(attempt, judge_stopped(reason, NO_EXIT_CODE, 0, attempt.spec.limit_s))
            return
        if attempt.stop is not None:
            if now + grace_s < attempt.stop.kill_at:
                self._arm_stop(attempt, attempt.stop, now, grace_s)
            return
        attempt.stop = Stop(reason, now + grace_s)
        if attempt.exited:
            return
        attempt.stop.told = attempt.heeds
        self._arm_stop(attempt, attempt.stop, now, grace_s)
        self._report.attempt_stopping(attempt, attempt.stop)

    def _arm_stop(self, attempt: Attempt, stop: Stop, now: float, grace_s: float) -> None:
        """TERM and KILL in their time: what was told has half of its grace to save its work undisturbed."""
        self._arm_kill(attempt, stop, now + grace_s)
        if not (stop.told and grace_s):
            self._terminate(attempt, stop)
        elif not stop.term_sent:
            self._timers.cancel(stop.term_timer)
            late = functools.partial(self._terminate, attempt, stop)
            stop.term_timer = self._timers.at(now + grace_s * TOLD_SHARE, late)

    def _terminate(self, attempt: Attempt, stop: Stop) -> None:
        self._timers.cancel(stop.term_timer)
        process = attempt.process
        if stop.term_sent or process is None or attempt.exited or attempt.stop is not stop:
            return
        stop.term_sent = True
        members = self._find_members(attempt, stop, process)
        process.signal_group(signal.SIGTERM)
        process.signal_group(signal.SIGCONT)  # a stopped process would sit out its grace
        # What has left the group is asked too, or it would sit out the whole grace unasked.
        kill_exactly(attempt.spec.list_apart(members, process.pid), signal.SIGTERM)
        attempt.hang_up_execs()

    def heed(self, uid: str) -> None:
        """This attempt listens to its session: it is told of a stop there before TERM comes."""
        attempt = self.attempts.get(uid)
        if attempt is not None:
            attempt.heeds = True

    def hasten(self, uid: str) -> None:
        """An attempt that was told to stop has saved its work: nothing is gained by waiting."""
        attempt = self.attempts.get(uid)
        if attempt is not None and attempt.stop is not None:
            self._terminate(attempt, attempt.stop)

    def _arm_kill(self, attempt: Attempt, stop: Stop, kill_at: float) -> None:
        self._timers.cancel(stop.timer)
        stop.kill_at = kill_at
        stop.timer = self._timers.at(kill_at, functools.partial(self._kill, attempt))

    def renew_leases(self, age_s: float) -> None:
        """The hub was heard `age_s` ago: what must not run out of its reach may go on from there."""
        heard_at = time.monotonic() - age_s
        for attempt in self.attempts.values():
            if attempt.spec.lease_s is not None and attempt.lease_timer is not None:
                ends_at = heard_at + attempt.spec.lease_s
                if ends_at > attempt.lease_timer.when:
                    self._timers.cancel(attempt.lease_timer)
                    self._arm_lease(attempt, ends_at)

    def _arm_lease(self, attempt: Attempt, ends_at: float) -> None:
        attempt.lease_timer = self._timers.at(
            ends_at, functools.partial(self.cancel, attempt.uid, "lease", 0.0)
        )

    def _hasten_epilog(self, attempt: Attempt, cut_at: float) -> None:
        if attempt.process is None:
            return
        if attempt.limit_timer is not None and attempt.limit_timer.when > cut_at:
            self._timers.cancel(attempt.limit_timer)
            attempt.limit_timer = self._timers.at(cut_at, functools.partial(self._cut_epilog, attempt))

    def _cut_epilog(self, attempt: Attempt) -> None:
        if attempt.process is not None and attempt.stop is None:
            attempt.stop = Stop("time_limit", time.monotonic())
            attempt.stop.term_sent = True
            self._kill(attempt)

    def _kill(self, attempt: Attempt) -> None:
        process = attempt.process
        if process is None:
            return
        # Looked up before the kill: it breaks the ties by which descendants are recognised.
        members = self._find_members(attempt, attempt.stop, process) if attempt.stop is not None else []
        process.signal_group(signal.SIGKILL)
        kill_exactly(members)
        if attempt.group is not None:
            attempt.group.kill_all()
