"""An asyncio loop of one simulated process: what the product does in coroutines happens in the world's time.

Callbacks run in their order, when the process may run. One that was killed runs nothing more; its tasks are unwound at
once, since the interpreter would do it at a moment of its own.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from dray.sim.faults.world.process import Process

# Whoever is cancelled may await once more on the way out, and not for ever.
MOST_LAST_STEPS = 100_000
# In a moment of the world.
MOST_STEPS = 20_000


class ProcessLoop:
    """As much of a loop as asyncio asks for here. Ends with its process."""

    def __init__(self, process: Process) -> None:
        self._process, self._world = process, process.world
        self._self: Any = self
        self._ready: deque[asyncio.Handle] = deque()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._is_due = False
        self._fault: BaseException | None = None
        self.over = False

    # --- what asyncio asks of a loop --------------------------------------------------------------------------------

    def time(self) -> float:
        return self._world.now_ms / 1000

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.over

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._self, context)
        self._ready.append(handle)
        if not self._is_due and not self.over:
            self._is_due = True
            self._process.at(0, self._drain)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self._self, context)
        self._process.at(math.ceil(1000 * (when - self.time())), self._ring, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._self)

    def create_task(self, coro: Any, **more: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self._self, **more)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def run_in_executor(self, executor: object, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """What the product does on a thread takes no time here."""
        done = self.create_future()
        try:
            done.set_result(work(*args))
        except Exception as fault:  # noqa: BLE001 - whatever it is, it is for who waits
            done.set_exception(fault)
        return done

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._fault = self._fault or context.get("exception") or RuntimeError(str(context))

    # --- the world's side -------------------------------------------------------------------------------------------

    def begin(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Start a task."""
        self.call_soon(lambda: self.create_task(work()))

    def inside(self, work: Callable[[], None]) -> None:
        """Do something that is a step of this process."""
        before = events._get_running_loop()
        events._set_running_loop(self._self)
        try:
            work()
        finally:
            events._set_running_loop(before)

    def kill(self) -> None:
        """The process is gone: nothing of it reaches anybody any more."""
        if self.over:
            return
        self.over = True
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            task.cancel()
        self._run(MOST_LAST_STEPS)
        self._ready.clear()
        # What broke while it was unwound is nobody's any more.
        self._fault = None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = self._fault or fault

    def _ring(self, handle: asyncio.TimerHandle) -> None:
        if not self.over and not handle.cancelled():
            self._ready.append(handle)
            self._drain()

    def _drain(self) -> None:
        self._is_due = False
        if self.over:
            return
        self._run(MOST_STEPS)
        if self._ready:
            self._world.fail(f"a process of a hub never comes to rest: {self._ready[0]}")
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    def _run(self, most: int) -> None:
        self.inside(lambda: self._step(most))

    def _step(self, most: int) -> None:
        while self._ready and most:
            most -= 1
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()
