"""Start one process behind a barrier: it exists and has a pid, and runs nothing until it is let go.

os.fork in this small single-threaded process, not posix_spawn: that one is quicker but returns only after exec, and a
user's program that runs before its pid is on record could be neither found nor disproved after a crash. One barrier and
one error pipe serve many children, so an attempt costs no descriptors beyond its two output pipes. The child ends at
once when the barrier closes without a go byte: a dead supervisor releases nobody.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import json
import os
import pwd
import resource
import signal
from typing import TYPE_CHECKING

from .identity import HAS_PIDFD, look_up

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from .journal import Record

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
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


class Process:
    """A child of ours. It stays unreaped until its session is settled, so its pid cannot be handed out meanwhile."""

    __slots__ = ("pid", "pidfd", "pipes", "reaped", "start")

    def __init__(self, pid: int, start: int, pipes: list[int]) -> None:
        self.pid = pid
        self.start = start
        self.pidfd = -1
        self.pipes = pipes
        self.reaped: tuple[int, resource.struct_rusage] | None = None

    def prepare_watch(self) -> None:
        """Open what the loop listens on. Not done at the fork: see Runner.watch_launched."""
        for fd in self.pipes:
            os.set_blocking(fd, False)
        if HAS_PIDFD:
            self.pidfd = os.pidfd_open(self.pid)

    def poll_exit(self) -> bool:
        """Whether it has ended, for systems without pidfds; where waiting without reaping is missing too, it reaps."""
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid:
            self.reaped = (status, usage)
        return pid != 0

    def reap(self) -> tuple[int, resource.struct_rusage]:
        if self.reaped is None:
            _, status, usage = os.wait4(self.pid, 0)
            self.reaped = (status, usage)
        return self.reaped

    def has_group(self) -> bool:
        """Whether anybody is left in its group; only tells something once the leader is reaped."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def signal_group(self, number: int) -> None:
        """To the whole group. Only valid while the process is unreaped."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            # A child just forked has not yet made its group: it alone is meant, and gets the signal once it has.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
        except PermissionError:
            return


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
        gc.collect()
        gc.freeze()

    def spawn(
        self,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
        identity: Identity | None,
        barrier: Barrier,
    ) -> Process:
        """Fork behind the barrier. Raises OSError when the system has no room for another process."""
        fds: list[int] = []
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_WHILE_FORKING)
        try:
            fds.extend(os.pipe())
            fds.extend(os.pipe())
            pid = os.fork()
            if pid == 0:
                self._become(argv, env, cwd, identity, barrier, (fds[1], fds[3]))
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.close(fds[1])
        os.close(fds[3])
        info = look_up(pid)
        process = Process(pid, info.start if info is not None else 0, [fds[0], fds[2]])
        barrier.add()
        return process

    def _become(
        self,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
        identity: Identity | None,
        barrier: Barrier,
        outputs: tuple[int, int],
    ) -> NoReturn:
        kind = "start"
        try:
            os.setsid()
            os.dup2(self._null, 0)
            os.dup2(outputs[0], 1)
            os.dup2(outputs[1], 2)
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
            execute(argv, env)
        except BaseException as error:  # noqa: BLE001 - a forked child must never return into the loop
            reason = (error.errno if isinstance(error, OSError) else None) or 0
            report = {"pid": os.getpid(), "kind": kind, "errno": reason, "text": str(error)[:300]}
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


def execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    """Replace this process, searching the PATH of the environment that is given and no other."""
    program = argv[0]
    if "/" in program:
        os.execve(program, argv, env)
    refused: OSError | None = None
    for folder in env.get("PATH", DEFAULT_PATH).split(":"):
        path = f"{folder or '.'}/{program}"
        # Asking first is cheaper than a failing exec, which has to encode the whole environment.
        if not os.access(path, os.X_OK):
            if refused is None and os.path.isfile(path):
                refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            continue
        try:
            os.execve(path, argv, env)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                refused = refused or error
    raise refused or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)


def describe_failure(
    failure: Record, argv: list[str], env: dict[str, str], cwd: str | None
) -> tuple[str, int, str]:
    """(exit class, exit code, words) for a child that never became its program."""
    number, text = failure["errno"], failure["text"]
    reason = os.strerror(number) if number else text
    if failure["kind"] == "workdir":
        return "workdir", 125, f"working directory {cwd!r} cannot be used on this worker: {reason}"
    if failure["kind"] != "exec":
        return "not_executable", 126, f"the task could not be set up: {text}"
    program = argv[0]
    if number in (errno.ENOENT, errno.ENOTDIR):
        if "/" in program:
            if os.path.exists(os.path.join(cwd or "/", program)):
                return "not_found", 127, f"the interpreter of {program!r} was not found on this worker"
            return "not_found", 127, f"program {program!r} was not found on this worker"
        path = env.get("PATH", DEFAULT_PATH)
        return "not_found", 127, f"program {program!r} was not found on this worker (PATH={path})"
    hint = " (a script needs a first line like #!/bin/sh)" if number == errno.ENOEXEC else ""
    return "not_executable", 126, f"program {program!r} cannot be executed on this worker: {reason}{hint}"
