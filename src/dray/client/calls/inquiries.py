"""What can be asked about a call on its way: how it stands, why it waits, what it printed, that it stop.

Questions come from any thread and are asked in the client's loop. Surprising rule: an event loop is never kept waiting.
A cancel that comes from inside one, as `asyncio` sends it when a task is cancelled, leaves by itself later; every other
question from inside the very loop that would have to answer it is refused, since it would wait for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dray.client.futures.bell import Bell
from dray.client.futures.loop_thread import run_in
from dray.client.futures.status import Status
from dray.core.model.records.records import JobState
from dray.errors import DrayError, NotFound

if TYPE_CHECKING:
    from dray.client.futures.futures import CallFuture
    from dray.client.reach.channel import Channel

LOOK_S = 0.02
# Who waits looks by itself too: not every end of an array rings.
AGAIN_S = 0.5


class Inquiries:
    """Questions of one client about its calls. Made in the loop that it lives in."""

    def __init__(self, channel: Channel, read_logs: Callable[..., Iterator[bytes]], lock: Bell) -> None:
        self._channel, self._read_logs, self._lock = channel, read_logs, lock
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def await_recorded(self, future: CallFuture[Any]) -> None:
        """Wait until the hub has recorded a call, or its future has ended without that."""
        while future._index >= future._stream.recorded and future._state == "PENDING":
            self._refuse_own_loop()
            self._lock.wait_for(lambda: future._index < future._stream.recorded or None, AGAIN_S)

    def ask_cancel(self, future: CallFuture[Any]) -> bool:
        """Ask the hub to stop a call; False where it had ended."""
        if asyncio._get_running_loop() is not None:
            self._loop.call_soon_threadsafe(self._spawn, self._cancel_recorded, future)
            return True
        return bool(self._call(self._cancel(future.id)))

    def ask_state(self, future: CallFuture[Any]) -> JobState:
        return self.ask_status(future).state

    def ask_status(self, future: CallFuture[Any]) -> Status:
        """The document of a call's job, or of its task where it shares its job with others."""
        task_id, stream = future.id, future._stream
        if not stream.numbered:
            rows = self._call(self._channel.ask("get", {"ids": [task_id]}))["jobs"]
        else:
            wanted = {"id": stream.job, "limit": 1, "cursor": str(future._index)}
            rows = self._call(self._channel.ask("tasks", wanted))["tasks"]
        if not rows:
            raise NotFound(f"there is no task {task_id}, or it is not yours")
        return Status({"id": task_id, **rows[0]})

    def ask_why(self, future: CallFuture[Any]) -> dict[str, Any]:
        self.await_recorded(future)
        return self.ask_job_why(future._stream.job)

    def ask_job_why(self, job: str) -> dict[str, Any]:
        """Why a job waits that is recorded."""
        answer: dict[str, Any] = self._call(self._channel.ask("why", {"id": job}))
        return answer

    def read_logs(self, task_id: str, follow: bool, wanted: Mapping[str, Any]) -> Iterator[bytes]:
        return self._read_logs(task_id, follow=follow, **wanted)

    def _call(self, work: Any) -> Any:
        try:
            self._refuse_own_loop()
        except RuntimeError:
            work.close()
            raise
        return run_in(self._loop, work)

    def _refuse_own_loop(self) -> None:
        if asyncio._get_running_loop() is self._loop:
            raise RuntimeError(
                "this would wait for the event loop that it is called in: ask the AsyncHub (await hub.status(...)), or "
                "from another thread (asyncio.to_thread)"
            )

    # --- in the loop --------------------------------------------------------------------------------------------------

    async def _cancel_recorded(self, future: CallFuture[Any]) -> None:
        """Stop a call once the hub knows of it; where it was refused there is nothing to stop."""
        while future._index >= future._stream.recorded and not future._stream.closed:
            answers = list(future._stream.answers)
            await (asyncio.wait(answers) if answers else asyncio.sleep(LOOK_S))
        await self._cancel_quietly(future._name())

    async def _cancel(self, task_id: str) -> bool:
        job, _, index = task_id.partition("/")
        payload: dict[str, Any] = {"id": job, **({"task": int(index)} if index else {})}
        return "note" not in await self._channel.ask("cancel", payload)

    async def _cancel_quietly(self, job: str) -> None:
        with contextlib.suppress(DrayError):
            await self._cancel(job)

    def _spawn(self, work: Callable[..., Any], *given: Any) -> None:
        task = asyncio.create_task(self._quietly(work, *given))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self, work: Callable[..., Any], *given: Any) -> None:
        # A hub that is away for good fails everything that waits, by `fail` of the desk.
        with contextlib.suppress(DrayError):
            await work(*given)
