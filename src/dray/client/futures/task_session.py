"""A task's own line to its agent: `dray.session()`. The standard library and nothing else.

Outside of a task everything here is harmless: nothing is sent and nobody asks to stop. Inside, no call waits and none
raises: what cannot be sent now is kept, the latest of each kind, and sent when the agent is back. Surprising rule:
there is no thread; the socket is looked at, at most twenty times a second, by whoever calls.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import threading
import time

TYPE_CHECKING = False  # as in `dray/__init__.py`: `typing` costs more than all the rest
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LOOK_EVERY_S = 0.05
RETRY_S = 0.5
BURST, PER_S = 20, 10.0
LAST_WORDS_S = 1.0
UNSENT_BYTES = 64 << 10
LINE_BYTES = 16 << 10


class Session:
    """What a task tells its agent and hears from it. Safe to use from several threads, and after a fork."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        env = os.environ if environ is None else environ
        self._path = env.get("DRAY_SESSION", "")
        self._hello = {"attempt": env.get("DRAY_ATTEMPT_UID", ""), "key": env.get("DRAY_SESSION_KEY", "")}
        self.task_id: str = env.get("DRAY_TASK_ID", "")
        self.attempt: int = _number(env.get("DRAY_ATTEMPT"), 0)
        self.rank: int = _number(env.get("RANK"), 0)
        self.world_size: int = _number(env.get("WORLD_SIZE"), 1)
        self.devices: tuple[int, ...] = tuple(
            int(word) for word in env.get("DRAY_DEVICES", "").split(",") if word.strip().isdigit()
        )
        self._latest: dict[str, dict[str, Any]] = {}
        self._unsent: dict[str, None] = {}
        self._stop: tuple[str, float] | None = None
        self._watching = False
        self._waits, self._waiting, self._resumers, self._resuming = threading.Lock(), 0, 0, False
        self._granted = threading.Event()
        self._tokens, self._token_at = float(BURST), time.monotonic()
        self._reset()

    def _reset(self) -> None:
        """Begin without a connection."""
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = os.getpid()
        self._out = b""
        self._in = b""
        self._look_at = self._retry_at = 0.0

    # --- for the task -------------------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether this process runs inside a task that has a session."""
        return bool(self._path)

    def progress(self, step: int | None = None, fraction: float | None = None, note: str = "") -> None:
        """Say how far the work has come; shown by `dray ps` and `dray show`. What is left out stays as it was."""
        said: dict[str, Any] = {"note": str(note)} if note else {}
        if step is not None:
            said["step"] = int(step)
        if fraction is not None and fraction == fraction:  # noqa: PLR0124 - only a NaN is not itself
            said["fraction"] = min(1.0, max(0.0, float(fraction)))
        self._say("progress", said)

    def saved(self, step: int) -> None:
        """Say that all work up to `step` is safe: another attempt will go on from there. Steps only grow."""
        self._say("saved", {"step": int(step)})

    def finished(self) -> None:
        """Say that the work is whole: an exit with code 0 is then a success even if a stop was asked for meanwhile."""
        self._say("finished", {})

    def should_stop(self) -> bool:
        """Whether the task is to save its work and end. Costs next to nothing: call it as often as you like.

        The first call tells the agent that this task listens: it is then given half of its grace before SIGTERM.
        """
        if not self._watching:
            self._watching = True
            self._say("watch", {})
        if self._stop is None and self._path and time.monotonic() >= self._look_at:
            self._look()
        return self._stop is not None

    @property
    def stop_reason(self) -> str:
        """Why: `preempted`, `user`, `time_limit` and so on; empty while nobody asked."""
        return self._stop[0] if self._stop is not None else ""

    @property
    def grace_left_s(self) -> float:
        """How long until the task is killed; infinite while nobody asked it to stop."""
        return max(0.0, self._stop[1] - time.monotonic()) if self._stop is not None else float("inf")

    def wait_stop(self, timeout_s: float | None = None) -> bool:
        """Wait until the task is asked to stop; False after `timeout_s`, and at once outside of a task."""
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        while self._path and not self.should_stop():
            if ends_at is not None and time.monotonic() >= ends_at:
                break
            time.sleep(LOOK_EVERY_S)
        return self.should_stop()

    def yield_slot(self) -> None:
        """Say that the task waits on others and leaves its slot to them. Each call needs its `resume_slot`."""
        with self._waits:
            if self._resuming and not self._resumers:
                self._await_grant(None)  # asked for before, by somebody who has lost patience
                self._settle_grant()
            self._waiting += 1
            # While another thread waits to get the slot back, there is none to give up; it will give it up then.
            if self._waiting == 1 and not self._resuming:
                self._give_up()

    def resume_slot(self, timeout_s: float | None = None) -> bool:
        """Take the slot back: waits until there is one; False where none came within `timeout_s`.

        While another thread still waits on others the slot stays theirs, and this one goes on without.
        """
        with self._waits:
            self._waiting = max(0, self._waiting - 1)
            if self._waiting or "yield" not in self._latest:
                return True
            self._resumers += 1
            if not self._resuming:
                self._resuming = True
                # Both are repeated to a new agent, in this order: it has to know what it is asked to give back.
                self._say("resume", {})
        granted = self._await_grant(timeout_s)
        with self._waits:
            self._resumers -= 1
            if granted:
                self._settle_grant()
        return granted

    def _give_up(self) -> None:
        self._granted.clear()
        self._say("yield", {})
        self._flush(time.monotonic() + LAST_WORDS_S)

    def _await_grant(self, timeout_s: float | None) -> bool:
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        while self._path and not self._granted.is_set():
            if ends_at is not None and time.monotonic() >= ends_at:
                return False
            self._look()
            self._await_words(LOOK_EVERY_S)
        return True

    def _settle_grant(self) -> None:
        """The slot is back: whoever began to wait meanwhile gives it up anew."""
        if self._resuming:
            self._resuming = False
            self._latest.pop("yield", None)
            self._latest.pop("resume", None)
            if self._waiting:
                self._give_up()

    def _await_words(self, timeout_s: float) -> None:
        """Wait a moment for the agent to say something."""
        line = self._socket
        try:
            if line is None or not select.select([line], (), (), timeout_s)[0]:
                time.sleep(0 if line is not None else timeout_s)
        except (OSError, ValueError):
            time.sleep(timeout_s)

    def close(self, timeout_s: float = LAST_WORDS_S) -> bool:
        """Send what is left and end the connection; whether the agent has taken it all. Opens again when used."""
        ends_at = time.monotonic() + timeout_s
        done = self._flush(ends_at) and self._part(ends_at)
        with self._lock:
            self._drop(heard=done)
        return done

    # --- the line -----------------------------------------------------------------------------------------------------

    def _say(self, kind: str, body: dict[str, Any]) -> None:
        if not self._path:
            return
        if kind == "progress":
            body = {**self._latest.get(kind, {}), **body}
        self._latest[kind] = body
        self._unsent[kind] = None
        if kind != "progress" or self._may_speak():
            self._look()

    def _may_speak(self) -> bool:
        """A burst now and then is sent at once; a loop that calls thousands of times a second sends the latest only."""
        now = time.monotonic()
        self._tokens = min(float(BURST), self._tokens + (now - self._token_at) * PER_S)
        self._token_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _look(self) -> None:
        """Send what waits and read what came, without waiting for either. Errors of the line stay in here."""
        if self._pid != os.getpid():
            # The child of a fork has its own line, and what its parent said is not for it to repeat.
            self._latest = {kind: {} for kind in self._latest if kind == "watch"}
            self._reset()
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._look_at = time.monotonic() + LOOK_EVERY_S
            if self._socket is None and not self._connect():
                return
            self._write()
            self._read()
        except (OSError, ValueError):
            self._drop()
        finally:
            self._lock.release()

    def _connect(self) -> bool:
        now = time.monotonic()
        if now < self._retry_at:
            return False
        self._retry_at = now + RETRY_S
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.setblocking(False)
            line.connect(self._path)
        except OSError:
            line.close()
            return False
        self._socket = line
        self._out = _spell({"hello": self._hello})
        # Whatever the last agent heard, this one has not.
        self._unsent = dict.fromkeys(self._latest)
        return True

    def _drop(self, heard: bool = False) -> None:
        """Let the connection go; nobody knows how much of what was sent was `heard`."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._out, self._in = None, b"", b""
        if not heard:
            self._unsent = dict.fromkeys(self._latest)

    def _write(self) -> None:
        if len(self._out) < UNSENT_BYTES:
            for kind in list(self._unsent):
                self._unsent.pop(kind, None)  # first: another thread may say more at this moment
                self._out += _spell({kind: self._latest[kind]})
        while self._out and self._socket is not None:
            try:
                self._out = self._out[self._socket.send(self._out) :]
            except BlockingIOError:
                return

    def _read(self) -> None:
        while self._socket is not None:
            try:
                data = self._socket.recv(4096)
            except BlockingIOError:
                return
            if not data:
                raise ConnectionError("the agent has gone")
            self._take(data)

    def _take(self, data: bytes) -> None:
        *lines, self._in = (self._in + data).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))
        if len(self._in) > LINE_BYTES:
            raise ValueError("an endless line")

    def _hear(self, message: Any) -> None:
        if isinstance(message, dict) and "resumed" in message:
            self._granted.set()
        stop = message.get("stop") if isinstance(message, dict) else None
        if isinstance(stop, dict):
            ends_at = time.monotonic() + float(stop.get("grace_s", 0))
            if self._stop is None or ends_at < self._stop[1]:
                self._stop = (str(stop.get("reason", "")), ends_at)

    def _flush(self, ends_at: float) -> bool:
        """Send all that waits, for as long as that may take."""
        while self._path and (self._unsent or self._out):
            self._look()
            if (self._unsent or self._out) and time.monotonic() >= ends_at:
                return False
            if self._unsent or self._out:
                time.sleep(0.01)
        return True

    def _part(self, ends_at: float) -> bool:
        """Say that nothing more comes, and wait until the agent has read all of it."""
        line = self._socket
        if line is None:
            return True
        try:
            line.shutdown(socket.SHUT_WR)
            line.settimeout(max(0.01, ends_at - time.monotonic()))
            while data := line.recv(4096):
                self._take(data)
        except (OSError, ValueError):
            return False
        return True


def _spell(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def _number(text: str | None, otherwise: int) -> int:
    try:
        return int(text or otherwise)
    except ValueError:
        return otherwise


_known: dict[int, Session] = {}


def session() -> Session:
    """The session of this process: the same object each time, since a task has one line to its agent."""
    found = _known.get(os.getpid())
    if found is None:
        _known.clear()
        found = _known[os.getpid()] = Session()
        atexit.register(_say_goodbye, found)
    return found


def renew() -> None:
    """Part from the session of a call that is over: the next one, in the same process, has its own."""
    found = _known.pop(os.getpid(), None)
    if found is not None:
        atexit.unregister(_say_goodbye)
        _say_goodbye(found)
        found.close(0)


def _say_goodbye(found: Session) -> None:
    """The last words of a process that ends by itself: the agent must have them before it hears of the end."""
    if found._pid == os.getpid() and found._latest:
        weighty = "saved" in found._latest or "finished" in found._latest
        found.close(LAST_WORDS_S if weighty else LAST_WORDS_S / 10)
