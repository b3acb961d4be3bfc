"""Commands of dray forked from an interpreter that has loaded it: half of what the suite computed was imports.

Such a process has its own pid, words, session, environment, folder and descriptors, is killed and waited for like any
other, and starts whatever it starts itself as it always does. What it does not show is a start from nothing, and the
surroundings that the kernel shows of it are the server's. Starts from nothing are proven where people start things: the
README, the tutorial, `dray up`, private hubs, the benchmark of starts, and every program that is none of `MAINS`.
Shells of other pages find a `dray` that asks for a fork (`write_command`).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import inspect
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, AnyStr, NamedTuple

DRAY = "dray.cli.main"
# What `python -m` may name, and how it begins. What is not dray itself stands in the folder where it is started, and
# the hubs, agents and commands that it starts are forked as well.
MAINS: dict[str, Callable[[list[str]], object]] = {
    DRAY: lambda words: importlib.import_module(DRAY).main(words),
    "benchmarks": lambda words: importlib.import_module("benchmarks.__main__").main(words),
    "tools.demo": lambda words: importlib.import_module("tools.demo").main(),
}
LOADED = (
    DRAY,
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
# Room for the words of a command, in the place where the kernel looks for those of the server.
WORDS_BYTES = 2048
STATUS_BYTES = 4
WAKE_BYTES = 4096
MOST_DESCRIPTORS = 4096
SPEED = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
# Arguments of Popen that a fork after the start cannot honour.
FRESH = ("executable", "preexec_fn", "pass_fds", "shell", "gid", "gids", "uid")


# --- the side of the tests --------------------------------------------------------------------------------------------


class Request(NamedTuple):
    """What to run and where. On its way a list of texts with a zero after each, which none of them can hold."""

    module: str
    words: list[str]
    env: dict[str, str]
    cwd: str
    session: bool = False
    # Whether hubs and agents that it starts are forked as well.
    passes_on: bool = False

    def pack(self) -> bytes:
        flags = [str(int(flag)) for flag in (self.session, self.passes_on)]
        texts = [self.module, self.cwd, *flags, str(len(self.words)), *self.words]
        return os.fsencode("\0".join([*texts, *(f"{name}={value}" for name, value in self.env.items())]))

    @classmethod
    def unpack(cls, data: bytes) -> Request:
        module, cwd, session, passes_on, count, *rest = os.fsdecode(data).split("\0")
        pairs = (text.partition("=") for text in rest[int(count) :])
        env = {name: value for name, _, value in pairs}
        return cls(module, rest[: int(count)], env, cwd, session == "1", passes_on == "1")


class Line:
    """The way to a server."""

    def __init__(self, address: str) -> None:
        self.address = address

    def fork(self, request: Request, fds: Sequence[int]) -> int:
        """Start a command; gives its pid."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.connect(self.address)
            socket.send_fds(line, [request.pack()], list(fds))
            return int(line.recv(LONGEST))

    def stop(self) -> None:
        """What somebody else has started goes on."""


class Server(Line):
    """The interpreter that commands are forked from; one for each process that runs tests."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="dw")
        super().__init__(f"{self._folder}/s")
        # It ends when nobody holds the other end any more, however that came about.
        ending, self._held = os.pipe()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.address)
            listener.listen(64)
            numbers = [listener.fileno(), ending]
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, *map(str, numbers), self.address, "." * WORDS_BYTES],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=numbers,
                env={
                    name: value
                    for name, value in os.environ.items()
                    if not name.startswith(("DRAY_", "PYTHON"))
                },
            )
        os.close(ending)

    def stop(self) -> None:
        os.close(self._held)
        self._process.wait()
        shutil.rmtree(self._folder)


_servers: list[Line] = []
_starting = threading.Lock()


def _server() -> Line:
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

    # Where the server tells how a forked one ended; closed once it is known. Not by a finalizer: of what hangs together
    # in a circle that would run before the `__del__` of the base, which then reads what is another's by now. Who drops
    # a process that still runs leaves it to the base, which asks for it later.
    _status = -1
    _forked = False

    def _execute_child(self, *given: Any) -> None:
        asked = _ARGUMENTS.bind(self, *given).arguments
        module, words = _program_of(asked["args"])
        env = {**(os.environ if asked["env"] is None else asked["env"])}
        strange = any(asked[name] not in (None, (), False, -1) for name in FRESH)
        if not module or strange or _settings_of(env):
            super()._execute_child(*given)
            return
        ends: list[int] = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
        self._status, status = os.pipe()
        self._forked = True
        cwd = os.path.abspath(os.fsdecode(asked["cwd"] or "."))
        session = bool(asked["start_new_session"])
        request = Request(module, words, env, cwd, session, passes_on=module != DRAY)
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
        if not self._forked:
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
        if not self._forked:
            return super()._try_wait(flags)
        waiting = select.poll()
        waiting.register(self._status, select.POLLIN)
        if not waiting.poll(0 if flags & os.WNOHANG else None):
            return 0, 0
        told = os.read(self._status, STATUS_BYTES)
        assert told, "the server of forked commands is gone, and took how this one ended with it"
        os.close(self._status)
        self._status = -1
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


def write_command(folder: Path, env: Mapping[str, str]) -> bool:
    """Put a `dray` there which is forked, with the hubs and agents that it starts; False where that cannot be."""
    if _settings_of(env) or not sys.platform.startswith("linux"):
        return False
    path = folder / "dray"
    path.write_text(COMMAND.format(python=sys.executable, module=DRAY, address=_server().address))
    path.chmod(0o755)
    return True


# Asks the server, hands on signals, and ends as the command does. Needs nothing that would have to be imported first.
COMMAND = """#!{python} -IS
import _signal, _socket, posix, sys

pid, early = 0, []


def hand_on(number, _):
    posix.kill(pid, number) if pid else early.append(number)


for number in (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTERM):
    if _signal.getsignal(number) != _signal.SIG_IGN:
        _signal.signal(number, hand_on)
ended, end = posix.pipe()
words = [word.encode("utf-8", "surrogateescape") for word in sys.argv[1:]]
env = [name + b"=" + value for name, value in posix.environ.items()]
line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
line.connect("{address}")
handed = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2, end))
asked = b"\\0".join([b"{module}", posix.getcwdb(), b"0", b"1", b"%d" % len(words), *words, *env])
line.sendmsg([asked], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, handed)])
posix.close(end)
pid = int(line.recv(32))
for number in early:
    posix.kill(pid, number)
status = int.from_bytes(posix.read(ended, 4), "big")
if posix.WIFSIGNALED(status):
    last = posix.WTERMSIG(status)
    if last != _signal.SIGKILL:
        _signal.signal(last, _signal.SIG_DFL)
    posix.kill(posix.getpid(), last)
posix._exit(posix.WEXITSTATUS(status))
"""


def _settings_of(env: Mapping[str, str]) -> set[str]:
    """What an interpreter reads at its start, never again, and which is more than a matter of speed."""
    return {name for name in env if name.startswith("PYTHON") and name not in SPEED}


def _program_of(args: Any) -> tuple[str, list[str]]:
    """The module of `python -P -m MODULE WORDS` and the words; nothing where it is another, or no fork can be had."""
    words = [os.fsdecode(word) for word in args] if isinstance(args, (list, tuple)) else []
    head = [word for word in words[:4] if word != "-P"][:3]
    module = head[2] if head[:2] == [sys.executable, "-m"] and len(head) == 3 else ""
    if module not in MAINS or not sys.platform.startswith("linux"):
        return "", []
    return module, words[words.index(module) + 1 :]


# --- the server -------------------------------------------------------------------------------------------------------


def spare_the_disk() -> None:
    """Hubs of tests begin with a short log: thousands of times sixteen megabytes of zeros are seconds of the kernel."""
    setattr(importlib.import_module("dray.hub.store.sqlite.store"), "WAL_BYTES", WAL_BYTES)  # noqa: B010 - mypy knows no such name of a module


def serve(listener: socket.socket, ending: int, address: str) -> None:
    """Fork a command for each request and tell how it ended, until nobody can ask any more."""
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
        readable = select.select([listener.fileno(), waking, ending], [], [])[0]
        if waking in readable:
            os.read(waking, WAKE_BYTES)
            _tell_ends(told)
        if ending in readable:
            return
        if listener.fileno() in readable:
            with listener.accept()[0] as line:
                data, fds, _, _ = socket.recv_fds(line, LONGEST, 4)
                if len(fds) < 4:
                    continue
                pid = os.fork()
                if not pid:
                    listener.detach()
                    line.detach()
                    _become(Request.unpack(data), fds, address)
                told[pid] = fds.pop()
                for fd in fds:
                    os.close(fd)
                # Who asked may have been killed meanwhile.
                with contextlib.suppress(BrokenPipeError):
                    line.send(str(pid).encode())


def _tell_ends(told: dict[int, int]) -> None:
    while told:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        fd = told.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(fd, status.to_bytes(STATUS_BYTES, "big"))
        os.close(fd)


def _become(request: Request, fds: Sequence[int], address: str) -> None:
    """Be the command, as if started by exec; never comes back."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, fd in enumerate(fds[:3]):
        os.dup2(fd, target)
    os.closerange(3, MOST_DESCRIPTORS)
    if request.session:
        os.setsid()
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.env)
    _show_words([sys.executable, "-P", "-m", request.module, *request.words])
    if request.passes_on:
        _servers.append(Line(address))
        setattr(subprocess, "Popen", Popen)  # noqa: B010 - mypy lets nobody replace a class
    time.tzset()
    tempfile.tempdir = None
    sys.argv = [request.module, *request.words]
    if request.module != DRAY:
        sys.path.insert(0, request.cwd)
    try:
        code = MAINS[request.module](request.words)
    except SystemExit as end:
        code = end.code
    _leave(code)


def _show_words(words: Sequence[str]) -> None:
    """Have the kernel show these words: whoever looks for the processes of a home looks at them."""
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    begin, end = int(fields[45]), int(fields[46])
    text = b"".join(os.fsencode(word) + b"\0" for word in words)
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(begin)
        memory.write(text[: end - begin - 1].ljust(end - begin, b"\0"))


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
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3])
