"""The jobs a client follows: one `Watch` each, fed by rows of the hub, asked for anew after every break.

Knows no socket. Ids that are asked for in one step of the loop travel in one message. A row of an older turn than the
last one is dropped: the answer to `watch` may arrive after what its own turn pushed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from dray.errors import DrayError, NotFound
from dray.wire.messages.client import MAX_IDS

Row = dict[str, Any]
AskWatches = Callable[[list[str]], Awaitable[Any]]


class Watch:
    """One job as last heard of. `ended` gives its last row, which holds the whole document."""

    def __init__(self, job_id: str, ended: asyncio.Future[Row]) -> None:
        self.job_id, self.ended = job_id, ended
        self.row: Row | None = None
        self._changed = asyncio.Event()

    async def next(self) -> Row:
        """Wait for the next row, or give the last one again once the job has ended."""
        if not self.ended.done():
            await self._changed.wait()
        return self.ended.result() if self.ended.done() else self.row or {}

    def take(self, row: Row) -> None:
        """Take a row unless a newer one was taken before."""
        if self.ended.done() or (
            self.row is not None and row["turn"] < self.row["turn"] and "document" not in row
        ):
            return
        self.row = row
        if "document" in row:
            self.ended.set_result(row)
        self.ring()

    def fail(self, failure: DrayError) -> None:
        """Tell those who wait that nothing will come."""
        if not self.ended.done():
            self.ended.set_exception(failure)
            # Whoever waits hears of it; where nobody does, it is no fault of anybody.
            self.ended.exception()
        self.ring()

    def ring(self) -> None:
        """Wake those who wait for the next row."""
        self._changed.set()
        self._changed = asyncio.Event()


class Watchlist:
    """All watches of one channel; `ask` sends one `watch` and gives its answer."""

    def __init__(self, ask: AskWatches) -> None:
        self._ask = ask
        self._going: dict[str, Watch] = {}
        self._new: list[str] = []
        self._asking: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._going)

    def add(self, job_id: str) -> Watch:
        """Follow a job."""
        known = self._going.get(job_id)
        if known is not None:
            return known
        loop = asyncio.get_running_loop()
        watch = self._going[job_id] = Watch(job_id, loop.create_future())
        if not self._new:
            loop.call_soon(self._flush)
        self._new.append(job_id)
        return watch

    def ask_again(self) -> None:
        """After a break: the new session knows nothing of what was watched."""
        self._new = []
        self._send(list(self._going))

    def take(self, rows: Iterable[Row]) -> None:
        """Hand rows to their watches; a last row ends its watch."""
        for row in rows:
            watch = self._going.get(row["id"])
            if watch is not None:
                watch.take(row)
                if watch.ended.done():
                    del self._going[row["id"]]

    def fail(self, failure: DrayError) -> None:
        """Give every watch up."""
        going, self._going = self._going, {}
        for watch in going.values():
            watch.fail(failure)

    def _flush(self) -> None:
        ids, self._new = self._new, []
        self._send([job_id for job_id in ids if job_id in self._going])

    def _send(self, ids: list[str]) -> None:
        for start in range(0, len(ids), MAX_IDS):
            task = asyncio.create_task(self._ask_for(ids[start : start + MAX_IDS]))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask_for(self, ids: list[str]) -> None:
        try:
            while ids:
                answer = await self._ask(ids)
                self.take(answer["jobs"])
                for job_id in answer["missing"]:
                    self._drop(job_id, NotFound(f"there is no job {job_id!r}, or it is not yours"))
                ids = answer["left"]
        except DrayError as refusal:
            for job_id in ids:
                self._drop(job_id, refusal)

    def _drop(self, job_id: str, failure: DrayError) -> None:
        watch = self._going.pop(job_id, None)
        if watch is not None:
            watch.fail(failure)
