"""Commands of dray forked from an interpreter that has loaded it: half of what the suite computed was imports.

Such a process has its own pid, session, environment, folder and descriptors, is killed and waited for like any other,
and starts whatever it starts itself as it always does. What it does not show is a start from nothing, and the words
and surroundings that the kernel shows of it are the server's. Starts from nothing are proven where people start things:
the pages, the demo, `dray up`, private hubs, the benchmarks, and every command that is no `python -m dray.cli.main`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, AnyStr

MODULE = "dray.cli.main"
LOADED = (
    MODULE,
    "dray.cli.machines.up_and_down",
    "dray.cli.machines.cluster",
    "dray.hub.app",
    "dray.agent.app",
    # What a hub loads at its start, and not before.
    "encodings.idna",
    "uvicorn.lifespan.off",
    "uvloop",
)
WAL_BYTES = 1 << 20
LONGEST = 1 << 18
STATUS_BYTES = 4
WAKE_BYTES = 4096
MOST_DESCRIPTORS = 4096
SPEED = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
# Arguments of Popen that a fork after the start cannot honour.
FRESH = ("executable", "preexec_fn", "pass_fds", "shell", "gid", "gids", "uid")


# --- the side of the tests --------------------------------------------------------------------------------------------


class Server:
    """The interpreter that commands are forked from; one for each process that runs tests."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={
                    name: value
                    for name, value in os.environ.items()
                    if not name.startswith(("DRAY_", "PYTHON"))
                },
            )

    def fork(self, request: Mapping[str, Any], fds: Sequence[int]) -> int:
        """Start a command; gives its pid."""
        with self._lock:
            socket.send_fds(self._ours, [json.dumps(request).encode()], list(fds))
            return int(self._ours.recv(LONGEST))

    def stop(self) -> None:
        self._ours.close()
        self._process.wait()


_servers: list[Server] = []
_starting = threading.Lock()


def _server() -> Server:
    with _starting:
        if not _servers:
            _servers.append(Server())
        return _servers[0]


def stop() -> None:
    """End the server, where there is one: it must not outlive the tests."""
    while _servers:
        _servers.pop().stop()


if TYPE_CHECKING:

    class _Base(subprocess.Popen[AnyStr]):
        """What typeshed leaves out; the names are the same in every Python from 3.11 on."""

        _waitpid_lock: threading.Lock

        def _execute_child(self, *given: Any) -> None: ...
        def _close_pipe_fds(self, *fds: int) -> None: ...
        def _handle_exitstatus(self, status: int) -> None: ...
        def _internal_poll(self, *given: Any, **named: Any) -> int | None: ...
        def _try_wait(self, flags: int) -> tuple[int, int]: ...
else:
    _Base = subprocess.Popen


class Popen(_Base[AnyStr]):
    """As its base, which starts whatever is no command of dray or cannot be forked."""

    _status = -1
    _close_status: Callable[[], object]

    def _execute_child(self, *given: Any) -> None:
        asked = _ARGUMENTS.bind(self, *given).arguments
        words = _words_of(asked["args"])
        env = {**(os.environ if asked["env"] is None else asked["env"])}
        strange = any(asked[name] not in (None, (), False, -1) for name in FRESH)
        if words is None or strange or _settings_of(env):
            super()._execute_child(*given)
            return
        ends: list[int] = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
        self._status, status = os.pipe()
        self._close_status = weakref.finalize(self, os.close, self._status)
        request = {
            "words": words,
            "env": env,
            "cwd": os.path.abspath(os.fsdecode(asked["cwd"] or ".")),
            "session": bool(asked["start_new_session"]),
        }
        try:
            self.pid = _server().fork(
                request, [*(fd if fd != -1 else own for own, fd in enumerate(ends)), status]
            )
            self._child_created = True
        finally:
            os.close(status)
            names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(asked[name] for name in names))

    def _internal_poll(self, *given: Any, **named: Any) -> int | None:
        if self._status < 0:
            return super()._internal_poll(*given, **named)
        if self._waitpid_lock.acquire(False):
            try:
                # Another thread may have waited: how it ended is read once, and the descriptor another's by now.
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if self._status < 0:
            return super()._try_wait(flags)
        waiting = select.poll()
        waiting.register(self._status, select.POLLIN)
        if not waiting.poll(0 if flags & os.WNOHANG else None):
            return 0, 0
        told = os.read(self._status, STATUS_BYTES)
        assert told, "the server of forked commands is gone, and took how this one ended with it"
        self._close_status()
        return self.pid, int.from_bytes(told, "big")


_ARGUMENTS = inspect.signature(_Base._execute_child)


def run(words: Sequence[str | bytes], limit_s: float, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """A command to its end, with what it wrote; killed at its limit, as `subprocess.run` would."""
    with Popen[bytes](
        [*words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess([*words], process.returncode, out, err)


def _settings_of(env: Mapping[str, str]) -> set[str]:
    """What an interpreter reads at its start, never again, and which is more than a matter of speed."""
    return {name for name in env if name.startswith("PYTHON") and name not in SPEED}


def _words_of(args: Any) -> list[str] | None:
    """What follows `python -P -m dray.cli.main`; None where it is another command, or no fork can be had here."""
    words = [os.fsdecode(word) for word in args] if isinstance(args, (list, tuple)) else []
    head = [word for word in words[:4] if word != "-P"][:3]
    if head != [sys.executable, "-m", MODULE] or not sys.platform.startswith("linux"):
        return None
    return words[words.index(MODULE) + 1 :]


# --- the server -------------------------------------------------------------------------------------------------------


def spare_the_disk() -> None:
    """Hubs of tests begin with a short log: thousands of times sixteen megabytes of zeros are seconds of the kernel."""
    setattr(importlib.import_module("dray.hub.store.sqlite.store"), "WAL_BYTES", WAL_BYTES)  # noqa: B010 - mypy knows no such name of a module


def serve(control: socket.socket) -> None:
    """Fork a command for each request and tell how it ended, until nobody asks any more."""
    for name in LOADED:
        importlib.import_module(name)
    spare_the_disk()
    for binary in (True, False):
        importlib.import_module("dray.wire.messages.worker").worker_codec(binary)
    gc.collect()
    gc.freeze()
    waking, wake = os.pipe()
    for end in (waking, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    told: dict[int, int] = {}
    while True:
        readable = select.select([control.fileno(), waking], [], [])[0]
        if waking in readable:
            os.read(waking, WAKE_BYTES)
            _tell_ends(told)
        if control.fileno() in readable:
            data, fds, _, _ = socket.recv_fds(control, LONGEST, 4)
            if not data:
                return
            pid = os.fork()
            if not pid:
                control.detach()
                _become(json.loads(data), fds)
            told[pid] = fds.pop()
            for fd in fds:
                os.close(fd)
            control.send(str(pid).encode())


def _tell_ends(told: dict[int, int]) -> None:
    while told:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        fd = told.pop(pid)
        os.write(fd, status.to_bytes(STATUS_BYTES, "big"))
        os.close(fd)


def _become(request: Mapping[str, Any], fds: Sequence[int]) -> None:
    """Be the command, as if started by exec; never comes back."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, fd in enumerate(fds[:3]):
        os.dup2(fd, target)
    os.closerange(3, MOST_DESCRIPTORS)
    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    tempfile.tempdir = None
    main = importlib.import_module(MODULE)
    sys.argv = [str(main.__file__), *request["words"]]
    try:
        code = main.main()
    except SystemExit as end:
        code = end.code
    _leave(code)


def _leave(code: object) -> None:
    """End as an interpreter does, without taking apart what is the server's: each page of it would be copied first."""
    if code is None or isinstance(code, int):
        threading._shutdown()  # type: ignore[attr-defined]  # what an interpreter calls first when it ends
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit((code or 0) & 0xFF)
    # A text is written, and lines that nobody reads are told of, by the interpreter itself.
    sys.exit(code)  # type: ignore[arg-type]  # whatever the command gave


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
