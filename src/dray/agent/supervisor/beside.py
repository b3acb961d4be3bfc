"""Processes beside running tasks (`dray exec`), and people at the terminals of tasks (`dray attach`): each on a line of
its own, which lives as long as that does.

The agent opens one more connection for each, asks, and gets the outer ends of its input and output as descriptors: the
bytes never come through this process. When the line closes, by whichever death, the process is hung up; when it ends,
its line says how. A request names no user, folder or limit: all of that is the task's.
"""

from __future__ import annotations

import functools
import os
import selectors
import signal
from typing import TYPE_CHECKING

from dray.agent.supervisor.attempts.exec import Exec
from dray.agent.supervisor.attempts.spec import read_argv, read_env, read_uid
from dray.agent.supervisor.processes.marks import VARIABLE
from dray.agent.supervisor.processes.program import describe_failure
from dray.agent.supervisor.processes.spawn import Barrier
from dray.agent.supervisor.processes.stdio import DEFAULT_SIZE, Stdio

if TYPE_CHECKING:
    from dray.agent.supervisor.attempts.attempt import Attempt
    from dray.agent.supervisor.connection import Connection
    from dray.agent.supervisor.processes.spawn import Spawner
    from dray.agent.supervisor.processes.timers import Timers
    from dray.agent.supervisor.records.journal import Record
    from dray.agent.supervisor.server import Server

MOST_EXECS = 64
# What a person's terminal sends, and what ends or pauses a program; nothing else is passed on.
SIGNALS = {
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGKILL,
    signal.SIGTSTP,
    signal.SIGSTOP,
    signal.SIGCONT,
}


class Execs:
    def __init__(
        self, server: Server, selector: selectors.BaseSelector, timers: Timers, spawner: Spawner
    ) -> None:
        self._server = server
        self._selector = selector
        self._timers = timers
        self._spawner = spawner
        self._lines: dict[Exec, Connection] = {}
        self.leaders: dict[int, str] = {}
        self._attached: dict[str, set[Connection]] = {}

    def begin(self, connection: Connection, message: Record) -> None:
        """Start what was asked for, or say in a sentence why not."""
        try:
            attempt = self._find_attempt(read_uid(message))
            if message["op"] == "attach":
                self._attach(connection, attempt)
                return
            argv = read_argv(message, "argv")
            if not argv:
                raise ValueError("argv is empty: name the program to run")
            size = _read_size(message)
            env = {**attempt.spec.env, **read_env(message), VARIABLE: self._server.mark(attempt)}
            self._start(connection, attempt, argv, env, size)
        except ValueError as fault:
            connection.send({"ev": "refused", "error": str(fault)})
            connection.close()
        except OSError as fault:
            connection.send(
                {"ev": "refused", "error": f"this worker could not start another process: {fault}"}
            )
            connection.close()

    def _find_attempt(self, uid: str) -> Attempt:
        attempt = self._server.runner.attempts.get(uid)
        if attempt is None:
            raise ValueError("it does not run here any more")
        if attempt.process is None or attempt.exited or attempt.stage == "epilog":
            raise ValueError("it has not begun yet" if not attempt.released_at else "it is about to end")
        if attempt.stage == "prolog":
            raise ValueError("its prolog still runs: try again when the command itself does")
        if attempt.stop is not None:
            raise ValueError("it is being stopped")
        if isinstance(attempt.spec.meta, dict) and attempt.spec.meta.get("runner"):
            raise ValueError("calls of many jobs share its process")
        if len(self._lines) + sum(map(len, self._attached.values())) >= MOST_EXECS:
            raise ValueError(f"{MOST_EXECS} others run beside tasks of this worker already: end one of them")
        if refusal := self._server.refusal(0):
            raise ValueError(refusal)
        return attempt

    def _start(
        self,
        connection: Connection,
        attempt: Attempt,
        argv: list[str],
        env: dict[str, str],
        size: tuple[int, int] | None,
    ) -> None:
        stdio = Stdio(size, attempt.identity)
        try:
            barrier = Barrier()
            try:
                process = self._spawner.spawn_beside(
                    argv, env, attempt.spec.cwd, attempt.identity, barrier, stdio
                )
                if attempt.group is not None:
                    attempt.group.add(process.pid)
            except OSError:
                barrier.close()  # without a go byte: a child that is there ends
                raise
            finally:
                stdio.close_inner()
            running = Exec(attempt.uid, argv, process, self._timers)
            attempt.execs[process.pid] = running
            self.leaders[process.pid] = attempt.uid
            self._lines[running] = connection
            self._server.exec_started(running)
            barrier.release()
            connection.hand_over({"ev": "opened", "pid": process.pid}, stdio.outer)
        finally:
            stdio.close_outer()
        connection.on_line = functools.partial(self._heard, running)
        connection.on_close = running.hang_up
        process.prepare_watch()
        if process.pidfd >= 0:
            self._selector.register(
                process.pidfd, selectors.EVENT_READ, functools.partial(self._exited, running)
            )
        if connection.closed:
            running.hang_up()

    def _attach(self, connection: Connection, attempt: Attempt) -> None:
        """Hand over the terminal of a task, to type into. What it shows is output like any other's: the line says when
        there is more of it.
        """
        process = attempt.process
        if attempt.terminal_size is None or process is None or process.pipes[0] < 0:
            raise ValueError("it has no terminal")
        connection.hand_over({"ev": "opened", "pid": process.pid}, process.pipes[:1])
        connection.on_line = lambda message: None
        connection.on_close = functools.partial(self._detach, attempt, connection)
        self._attached.setdefault(attempt.uid, set()).add(connection)
        attempt.streams[0].grown = functools.partial(self._ring, attempt)

    def _ring(self, attempt: Attempt) -> None:
        for connection in list(self._attached.get(attempt.uid, ())):
            # One that is behind finds it anyway when it gets to what it was told before.
            if not connection.is_behind:
                connection.send({"ev": "grown"})

    def _detach(self, attempt: Attempt, connection: Connection) -> None:
        attached = self._attached.get(attempt.uid, set())
        attached.discard(connection)
        if not attached:
            self._attached.pop(attempt.uid, None)
            attempt.streams[0].grown = None

    def task_ended(self, attempt: Attempt) -> None:
        for connection in list(self._attached.get(attempt.uid, ())):
            connection.send({"ev": "ended", "code": 0, "error": ""})
            connection.close()

    def _heard(self, running: Exec, message: Record) -> None:
        number = message.get("number")
        if message.get("op") == "signal" and number in SIGNALS and running in self._lines:
            running.process.signal_group(int(number))

    def poll_exits(self) -> None:
        """Where there are no pidfds."""
        for running in list(self._lines):
            if running.process.poll_exit():
                self._exited(running)

    def _exited(self, running: Exec) -> None:
        process = running.process
        if process.pidfd >= 0:
            self._selector.unregister(process.pidfd)
            os.close(process.pidfd)
            process.pidfd = -1
        # What it leaves in its group ends with it; what has left that is the task's, and ends with the task.
        process.signal_group(signal.SIGKILL)
        status, _ = process.reap()
        running.ended()
        connection = self._lines.pop(running)
        del self.leaders[process.pid]
        attempt = self._server.runner.attempts.get(running.uid)
        cwd, env = None, {}
        if attempt is not None:
            del attempt.execs[process.pid]
            cwd, env = attempt.spec.cwd, attempt.spec.env
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        end = {"ev": "ended", "code": 128 + number if number else os.WEXITSTATUS(status), "error": ""}
        failure = self._spawner.take_failure(process.pid)
        if failure is not None:
            _, end["code"], end["error"] = describe_failure(failure, running.argv, env, cwd)
        connection.on_close = None
        connection.send(end)
        connection.close()


def _read_size(message: Record) -> tuple[int, int] | None:
    """The size of the terminal that is asked for; None without one."""
    if message.get("tty") is not True:
        return None
    rows, columns = (message.get(name) for name in ("rows", "columns"))
    if not isinstance(rows, int) or not isinstance(columns, int) or rows < 1 or columns < 1:
        return DEFAULT_SIZE
    return rows, columns
