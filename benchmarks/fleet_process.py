"""Many simulated workers in one process, steered by lines on standard input, answering with JSON lines.

`python -m benchmarks.fleet_process URL TOKEN FIRST COUNT SLOTS BEAT_S`. Commands: `connect` (answers once all are
registered), `work` (from here on tasks end at once), `report`, `reset` (forgets the heartbeat spans), `quit`. Workers
whose connection breaks dial again by themselves, with the delays and the jitter of dray's own agent.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from benchmarks.cluster import raise_file_limit
from benchmarks.figures import quantile
from benchmarks.worker_socket import Listener, Worker, WorkerSocket

DIALS_AT_ONCE = 64
RETRY_MIN_S, RETRY_MAX_S = 0.5, 30.0


class Fleet(Listener):
    """All workers of this process."""

    def __init__(self, url: str, token: str, first: int, count: int, slots: int, beat_s: float) -> None:
        self._parts, self._token, self.beat_s = urlsplit(url), token, beat_s
        self.workers = [Worker(f"sim-{number:05d}", slots) for number in range(first, first + count)]
        self.registered = 0
        self.new_attempts = self.resent = self.cancels = self.stops = self.breaks = 0
        self.spans: list[float] = []
        self.complete = asyncio.Event()
        self.complete_at_s = 0.0
        self._dials = asyncio.Semaphore(DIALS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def dial(self, worker: Worker, delay_s: float = 0.0) -> None:
        """Connect, however long it takes; after each failure wait a random part of a growing delay."""
        loop, limit_s = asyncio.get_running_loop(), RETRY_MIN_S
        if delay_s:
            await asyncio.sleep(random.uniform(0, delay_s))
        while True:
            try:
                async with self._dials:
                    _, worker.socket = await loop.create_connection(
                        lambda: WorkerSocket(worker, self, self._parts.netloc, self._token),
                        self._parts.hostname or "127.0.0.1",
                        self._parts.port or 80,
                    )
                return
            except OSError:
                await asyncio.sleep(random.uniform(0, limit_s))
                # As slow as their heartbeats at most: the small worlds of quick runs come back soon.
                limit_s = min(limit_s * 2, RETRY_MAX_S, 3 * self.beat_s)

    def beat(self, worker: Worker) -> None:
        """Send a heartbeat and book the next one, ten per cent either way."""
        if worker.socket is not None and worker.registered:
            worker.beat_sent_s = time.perf_counter()
            worker.socket.send(("heartbeat", worker.heartbeat()))
        delay_s = self.beat_s * random.uniform(0.9, 1.1)
        asyncio.get_running_loop().call_later(delay_s, self.beat, worker)

    def report(self) -> dict[str, Any]:
        spans = self.spans
        return {
            "registered": self.registered,
            "held": sum(len(worker.held) for worker in self.workers),
            "new_attempts": self.new_attempts,
            "resent": self.resent,
            "cancels": self.cancels,
            "stops": self.stops,
            "breaks": self.breaks,
            "complete_at_s": self.complete_at_s,
            "beats": len(spans),
            "beat_p50_ms": quantile(spans, 0.5) * 1000 if spans else None,
            "beat_p99_ms": quantile(spans, 0.99) * 1000 if spans else None,
        }

    # --- what the hub says --------------------------------------------------------------------------------------------

    def acked(self, worker: Worker, payload: dict[str, Any]) -> None:
        about = payload.get("re")
        if about == "heartbeat" and worker.beat_sent_s:
            self.spans.append(time.perf_counter() - worker.beat_sent_s)
            worker.beat_sent_s = 0.0
        elif about == "register" and not worker.registered:
            self.stops += len(payload.get("stop") or ())
            worker.registered = True
            self.registered += 1
            if worker.socket is not None and len(worker.held) < worker.slots:
                worker.socket.send(("ready_for_work", worker.readiness()))
            if self.registered == len(self.workers):
                self.complete_at_s = time.time()
                self.complete.set()

    def assigned(self, worker: Worker, task: str, uid: str) -> None:
        if uid in worker.seen:
            self.resent += 1
            return
        worker.seen.add(uid)
        self.new_attempts += 1
        if not worker.works:
            worker.held[uid] = task

    def cancelled(self, worker: Worker, payload: dict[str, Any]) -> None:
        self.cancels += 1

    def lost(self, worker: Worker, was_registered: bool) -> None:
        self.breaks += 1
        self.registered -= was_registered
        self.complete.clear()
        self.start(self.dial(worker, RETRY_MIN_S))


async def serve(fleet: Fleet) -> None:
    """Do what the lines say until the parent says `quit` or goes away."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode().strip():
        if line == "connect":
            for worker in fleet.workers:
                fleet.start(fleet.dial(worker))
                loop.call_later(random.uniform(0, fleet.beat_s), fleet.beat, worker)
            await fleet.complete.wait()
            # A full collection over ten thousand workers would be timed as the hub's delay.
            gc.collect()
            gc.freeze()
        elif line == "reset":
            fleet.spans.clear()
            fleet.new_attempts = fleet.resent = fleet.cancels = fleet.stops = fleet.breaks = 0
        elif line == "work":
            for worker in fleet.workers:
                worker.works = True
        elif line == "quit":
            return
        print(json.dumps(fleet.report()), flush=True)


async def main(words: list[str]) -> None:
    url, token, first, count, slots, beat_s = words
    raise_file_limit()
    await serve(Fleet(url, token, int(first), int(count), int(slots), float(beat_s)))


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(sys.argv[1:]))
