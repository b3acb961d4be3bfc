"""`dray` with every step of its event loop timed: `python watched_hub.py FILE WORDS ...` writes what took long to FILE.

Steps are told apart by what was called: a callback, or the coroutine of a task. While one lasts longer than `LONG_S` a
thread looks once where it stands. Runs on asyncio's own loop, since only there steps can be seen from outside.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import sys
import threading
import time
from typing import Any, NamedTuple

LONG_S = 0.002
LOOK_S = 0.0005
OWN = "/dray/"
# The hub's own start and stop: nobody is served then.
OUTSIDE = "_serve"


class LongStep(NamedTuple):
    """One step, in seconds: how long it took, how much of that it ran, and how much it could have run and had no core.

    The rest it waited: for a file, a socket, or the interpreter's lock. `place` is where it was seen standing.
    """

    name: str
    span_s: float
    ran_s: float
    queued_s: float
    place: str


class Watch:
    """Steps so far: how many there were, and which were long."""

    def __init__(self, path: str) -> None:
        self._path, self._main = path, threading.get_ident()
        self._waits = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self.count = 0
        self.long: list[LongStep] = []
        self._since = 0.0
        self._place = ""

    def install(self) -> None:
        run = asyncio.Handle._run

        def timed(handle: Any) -> None:
            callback = handle._callback
            queued, ran = self._queued_s(), time.thread_time()
            self._place = ""
            self._since = began = time.perf_counter()
            run(handle)
            span_s = time.perf_counter() - began
            self._since = 0.0
            self.count += 1
            if span_s > LONG_S and (name := name_of(callback)) != OUTSIDE:
                ran, queued = time.thread_time() - ran, self._queued_s() - queued
                self.long.append(LongStep(name, span_s, ran, queued, self._place))

        asyncio.Handle._run = timed  # type: ignore[method-assign, assignment]  # this is what the file is for
        threading.Thread(target=self._look, daemon=True).start()
        atexit.register(self._write)

    def _queued_s(self) -> float:
        return int(os.pread(self._waits, 64, 0).split()[1]) / 1e9

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_S)
            since = self._since
            if since and not self._place and time.perf_counter() - since > LONG_S:
                place = place_of(sys._current_frames().get(self._main))
                if since == self._since:
                    self._place = place

    def _write(self) -> None:
        with open(self._path, "w") as file:
            json.dump({"steps": self.count, "long": [step._asdict() for step in self.long]}, file)


def name_of(callback: Any) -> str:
    """What a step ran, as people know it."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return getattr(owner.get_coro(), "__qualname__", "a task")
    found: str = getattr(callback, "__qualname__", type(callback).__name__)
    return found


def place_of(frame: Any) -> str:
    """The innermost function of dray that a stack stands in."""
    while frame is not None:
        if OWN in frame.f_code.co_filename:
            return str(frame.f_code.co_qualname)
        frame = frame.f_back
    return "elsewhere"


def main() -> None:
    # The product asks for it and goes on without.
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # as `import` documents it
    Watch(sys.argv[1]).install()
    from dray.cli.main import main as run

    sys.argv[1:] = sys.argv[2:]
    sys.exit(run())


if __name__ == "__main__":
    main()
