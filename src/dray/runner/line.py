"""A runner's two sockets to its agent, and the thread that listens while a call runs.

The main thread reads calls and writes results; the watcher hears what cannot wait: give back what has not begun, hand
over what is held, and the agent's death, with which this process ends. Surprising rule: the queue of calls is emptied
from both ends, by the main thread from the left and by the watcher from the right; each step of that is atomic.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections import deque

from dray.wire.local.runner_frames import (
    CALLS,
    HELLO,
    NUDGE,
    RECALL,
    HeldResult,
    Reader,
    json_frame,
    read_calls,
    results_frame,
    returned_frame,
)

TYPE_CHECKING = False  # as in `dray/__init__.py`
if TYPE_CHECKING:
    from typing import Any

READ_BYTES = 1 << 18
AGENT_GONE = 75


class Line:
    """The connection to the agent."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.queue: deque[tuple[int, int, bool, bytes]] = deque()
        self.held: deque[HeldResult] = deque()
        self._writing = threading.Lock()
        self._calls = self._connect(given, "calls")
        self._control = self._connect(given, "control")
        self._frames = Reader()
        self.running = False

    def _connect(self, given: dict[str, Any], role: str) -> socket.socket:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.connect(given["socket"])
        hello = {"runner": given["uid"], "key": given["key"], "role": role, "pid": os.getpid()}
        line.sendall(json_frame(HELLO, hello))
        return line

    def fds(self) -> tuple[int, int]:
        return self._calls.fileno(), self._control.fileno()

    def watch(self) -> None:
        """Begin to listen on the second socket."""
        threading.Thread(target=self._watch, name="dray-watcher", daemon=True).start()

    # --- the main thread's side ---------------------------------------------------------------------------------------

    def read(self, timeout_s: float | None) -> list[tuple[int, bytes]] | None:
        """Wait for frames; calls go to the queue, the others are given back. None when nothing came in time."""
        try:
            # Most often there is something: then it takes no second look. The socket itself never has a time limit,
            # since the watcher may be writing to it at this moment.
            data = self._calls.recv(READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            if not select.select([self._calls], (), (), timeout_s)[0]:
                return None
            data = self._receive()
        except OSError:
            data = b""
        if not data:
            end_with_agent()
        others = []
        for kind, body in self._frames.feed(data):
            if kind == CALLS:
                self.queue.extend(read_calls(body))
            else:
                others.append((kind, body))
        return others

    def _receive(self) -> bytes:
        try:
            return self._calls.recv(READ_BYTES)
        except OSError:
            return b""

    def write(self, data: bytes) -> None:
        """Write a frame, whole."""
        with self._writing:
            self._send(data)

    def _send(self, data: bytes) -> None:
        try:
            self._calls.sendall(data)
        except OSError:
            end_with_agent()

    def flush(self) -> None:
        """Write all results that are held."""
        with self._writing:
            results = []
            while self.held:
                results.append(self.held.popleft())
            if results:
                self._send(results_frame(results))

    # --- the watcher's side -------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        frames = Reader()
        while True:
            try:
                data = self._control.recv(4096)
            except OSError:
                data = b""
            if not data:
                end_with_agent()
            for kind, _ in frames.feed(data):
                if kind == RECALL:
                    self._give_back()
                elif kind == NUDGE:
                    self.flush()

    def _give_back(self) -> None:
        """Return what waits behind the present call, last first; then what is held, so that nothing stays behind.

        A runner that is about to begin keeps its first one: it would only come back.
        """
        indices = []
        while len(self.queue) > (0 if self.running else 1):
            try:
                indices.append(self.queue.pop()[0])
            except IndexError:
                break
        self.flush()
        self.write(returned_frame(indices[::-1]))


def end_with_agent() -> None:
    """The agent is gone, and with it whoever could take a result: end, with all that calls have started."""
    try:
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(AGENT_GONE)
