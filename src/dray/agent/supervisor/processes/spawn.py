"""Two ways to start a process: at once, or behind a barrier.

At once (posix_spawn, which shares this process's memory until exec) costs a quarter of a fork but returns only when the
program runs already: whoever asks for it has put on record that it is about to start, and the child carries a mark by
which it is found should its pid never be recorded. Behind the barrier (os.fork) a child exists and has a pid, and runs
nothing until it is let go. One barrier and one error pipe serve many children. The child ends at once when the barrier
closes without a go byte: a dead supervisor releases nobody.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import pwd
import resource
import signal
from typing import TYPE_CHECKING

from dray.agent.supervisor.processes.identity import now_ticks
from dray.agent.supervisor.processes.process import Pipes, Process
from dray.agent.supervisor.processes.program import HOST_ERRORS, find_program
from dray.agent.supervisor.processes.stdio import Stdio, take_terminal
from dray.processes import HAS_PROC, look_up

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from dray.agent.supervisor.records.journal import Record

# The one signal that matters to both sides of a fork: in the child it must end the task, here it is a message.
BLOCKED_WHILE_FORKING = (signal.SIGTERM,)


def prepare_signals(listen_to_children: bool) -> None:
    """Ignore nothing, handle instead: exec gives a child the default back for what is handled, not for what is ignored.

    So a child has to reset no more than SIGTERM itself, where every call would be paid for with copied pages.
    """
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    for number in (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGPIPE,
        signal.SIGXFSZ,
        signal.SIGTERM,
    ):
        signal.signal(number, _swallow)
    if listen_to_children:
        signal.signal(signal.SIGCHLD, _swallow)


def _swallow(number: int, frame: object) -> None:
    """The loop hears of signals through its wake-up descriptor."""


class Barrier:
    """One pipe shared by all children forked in one turn of the loop; each waits for one byte of it."""

    __slots__ = ("_waiting", "read_fd", "write_fd")

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        self._waiting = 0

    def add(self) -> None:
        self._waiting += 1

    def release(self) -> None:
        os.write(self.write_fd, b"g" * self._waiting)
        self.close()

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self.write_fd)


class Identity:
    """Who the task runs as, resolved before the fork: looking names up may talk to a directory service."""

    __slots__ = ("gid", "groups", "uid")

    def __init__(self, user: str) -> None:
        try:
            found = pwd.getpwnam(user)
        except KeyError:
            raise ValueError(f"user {user!r} does not exist on this worker") from None
        if os.geteuid() not in (0, found.pw_uid):
            own = os.geteuid()
            raise ValueError(f"cannot run as user {user!r}: the worker runs as uid {own}, not as root")
        self.uid = found.pw_uid
        self.gid = found.pw_gid
        self.groups = os.getgrouplist(user, found.pw_gid) if os.geteuid() == 0 else []

    def assume(self) -> None:
        if os.geteuid() == 0:
            os.setgroups(self.groups)
            os.setgid(self.gid)
            os.setuid(self.uid)


class NotStarted(Exception):
    """The task's own fault: `failure` as a forked child would have told it."""

    def __init__(self, failure: Record) -> None:
        super().__init__(failure["text"])
        self.failure = failure


class Spawner:
    def __init__(self, close_in_child: Sequence[int]) -> None:
        # While a child waits it must keep neither the home locked nor a dead supervisor's address answering.
        self._close_in_child = list(close_in_child)
        self._null = os.open(os.devnull, os.O_RDWR)
        read_fd, write_fd = os.pipe()
        # Above every number that the child's own dup2 calls use.
        self._errors_out = fcntl.fcntl(write_fd, fcntl.F_DUPFD_CLOEXEC, 10)
        os.close(write_fd)
        self._errors_in = read_fd
        os.set_blocking(read_fd, False)
        self._failures: dict[int, Record] = {}
        # Our own limit is raised for many pipes at once; the children get back what was there before.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._nofile: tuple[int, int] | None = None
        wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            self._nofile = (soft, hard)
        self._own_nofile = (wanted, hard)
        self._at_once = _can_start_at_once()
        gc.collect()
        gc.freeze()

    @property
    def can_start_at_once(self) -> bool:
        return self._at_once

    def start(self, argv: list[str], env: dict[str, str], cwd: str | None, pipes: Pipes) -> Process:
        """Start at once; returns when the program runs. Takes the pipes over, whatever comes of it.

        Raises NotStarted where the task itself is at fault, OSError when the host has no room for another process.
        """
        kind = "workdir"
        try:
            # From the root, where a forked child would begin, wherever the start before this one has led.
            os.chdir(os.path.join("/", cwd or ""))
            kind = "exec"
            before = now_ticks()
            pid = self._spawn_limited(argv, env, pipes)
        except (OSError, ValueError) as error:
            pipes.close()
            if kind == "exec" and isinstance(error, OSError) and error.errno in HOST_ERRORS:
                raise
            raise NotStarted(describe_error(kind, error, argv)) from None
        pipes.close_writers()
        # Born between two looks at the clock: where both say the same there is no need to ask the kernel.
        start = before if before == now_ticks() else read_start(pid)
        return Process(pid, start, pipes.read_fds, barred=False)

    def _spawn_limited(self, argv: list[str], env: dict[str, str], pipes: Pipes) -> int:
        actions = [
            (os.POSIX_SPAWN_DUP2, self._null, 0),
            (os.POSIX_SPAWN_DUP2, pipes.write_fds[0], 1),
            (os.POSIX_SPAWN_DUP2, pipes.write_fds[1], 2),
        ]
        # A limit cannot be named for the child alone, so this process takes its own down for the moment of the start.
        if self._nofile is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._nofile)
        try:
            return find_program(
                argv,
                env,
                lambda path: os.posix_spawn(path, argv, env, file_actions=actions, setsid=True),
            )
        finally:
            if self._nofile is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, self._own_nofile)

    def spawn(
        self,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
        identity: Identity | None,
        barrier: Barrier,
        size: tuple[int, int] | None = None,
    ) -> Process:
        """Fork behind the barrier, in a terminal where a size is given: what it prints is output, and errors end at
        once. Raises OSError when the system has no room for another process.
        """
        if size is not None:
            return self._spawn_in_terminal(argv, env, cwd, identity, barrier, size)
        pipes = Pipes()
        try:
            pid = self._fork(argv, env, cwd, identity, barrier, (self._null, *pipes.write_fds), False)
        except OSError:
            pipes.close()
            raise
        pipes.close_writers()
        return Process(pid, read_start(pid), pipes.read_fds, barred=True)

    def _spawn_in_terminal(
        self,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
        identity: Identity | None,
        barrier: Barrier,
        size: tuple[int, int],
    ) -> Process:
        ended, writer = os.pipe()
        os.close(writer)
        try:
            stdio = Stdio(size, identity)
        except OSError:
            os.close(ended)
            raise
        try:
            process = self.spawn_beside(argv, env, cwd, identity, barrier, stdio)
        except OSError:
            stdio.close_outer()
            os.close(ended)
            raise
        finally:
            stdio.close_inner()
        process.pipes = [*stdio.outer, ended]
        return process

    def spawn_beside(
        self,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
        identity: Identity | None,
        barrier: Barrier,
        stdio: Stdio,
    ) -> Process:
        """The same for a process whose input and output are somebody else's. Raises OSError likewise."""
        pid = self._fork(argv, env, cwd, identity, barrier, stdio.inner, stdio.is_terminal)
        return Process(pid, read_start(pid), [], barred=True)

    def _fork(
        self,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
        identity: Identity | None,
        barrier: Barrier,
        stdio: tuple[int, int, int],
        terminal: bool,
    ) -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_WHILE_FORKING)
        try:
            pid = os.fork()
            if pid == 0:
                self._become(argv, env, cwd, identity, barrier, stdio, terminal)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
        barrier.add()
        return pid

    def _become(
        self,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
        identity: Identity | None,
        barrier: Barrier,
        stdio: tuple[int, int, int],
        terminal: bool,
    ) -> NoReturn:
        kind = "start"
        try:
            os.setsid()
            if terminal:
                take_terminal(stdio[0])
            for number, fd in enumerate(stdio):
                os.dup2(fd, number)
            os.close(barrier.write_fd)
            for fd in self._close_in_child:
                os.close(fd)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            if self._nofile is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, self._nofile)
            if os.read(barrier.read_fd, 1) != b"g":
                os._exit(0)
            if identity is not None:
                kind = "user"
                identity.assume()
            if cwd is not None:
                kind = "workdir"
                os.chdir(cwd)
            kind = "exec"
            find_program(argv, env, lambda path: os.execve(path, argv, env))
        except BaseException as error:  # noqa: BLE001 - a forked child must never return into the loop
            report = {"pid": os.getpid(), **describe_error(kind, error, argv)}
            os.write(self._errors_out, json.dumps(report).encode() + b"\n")
        finally:
            os._exit(127)

    def take_failure(self, pid: int) -> Record | None:
        """Why this child never became its program, if it did not; asked once it has exited."""
        while True:
            try:
                data = os.read(self._errors_in, 1 << 16)
            except BlockingIOError:
                break
            for line in data.splitlines():
                report = json.loads(line)
                self._failures[report["pid"]] = report
        return self._failures.pop(pid, None)


def read_start(pid: int) -> int:
    info = look_up(pid)
    return info.start if info is not None else 0


def describe_error(kind: str, error: BaseException, argv: list[str]) -> Record:
    """Why a program did not start, told where it would have: in its folder, and with no more rights than its user's."""
    number = (error.errno if isinstance(error, OSError) else None) or 0
    there = kind == "exec" and "/" in argv[0] and os.path.exists(argv[0])
    return {"kind": kind, "errno": number, "text": str(error)[:300], "there": there}


def _can_start_at_once() -> bool:
    """Whether this system starts a session with posix_spawn, and lets a process be found by what it carries."""
    if not HAS_PROC or not hasattr(os, "posix_spawn"):
        return False
    try:
        os.posix_spawn("/proc/no/program", ["none"], {}, setsid=True)
    except NotImplementedError:
        return False
    except OSError:
        return True
    return False
