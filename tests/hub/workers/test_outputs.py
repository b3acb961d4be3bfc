"""Output that workers send and the disk does not take: a named pipe in place of a file is as slow as anybody wants.

And a place that is far: what comes while it is asked something is filed all the same.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.hub.asking import ask

from dray.core.model.records.records import Attempt
from dray.hub.files.base import Found, Tape
from dray.hub.files.shared import SharedTapes
from dray.hub.workers.outputs import Outputs
from dray.testing import MockWorker, RunningHub, running_hub
from dray.wire.messages.worker import JobLog

MIB = 1 << 20
# More MiB than may wait for the disk and fit into sockets, of which systems give up to 36, and less than is kept of
# an attempt: a hub that reads without a bound has read them by then.
AHEAD, LONG_ENOUGH_S = 60, 1.0
LIMIT_S = 60.0


class StuckFile:
    """A file that nobody gets past opening, until it is freed."""

    def __init__(self, path: Path) -> None:
        self._path, self._stuck = path, True
        path.parent.mkdir(parents=True)
        os.mkfifo(path)

    def free(self) -> None:
        """Give whoever waits for a writer one, and then the end; who opens it anew finds a common file."""
        if not self._stuck:
            return
        self._stuck = False
        common = self._path.with_name("common")
        common.touch()
        writer = os.open(self._path, os.O_RDWR)
        common.replace(self._path)
        os.close(writer)


def begin(hub: RunningHub, worker: MockWorker) -> tuple[str, Any]:
    worker.register()
    job_id = str(ask(hub, "POST", "/jobs", {"command": ["true"]})[1]["id"])
    worker.ready()
    task = worker.assigned(LIMIT_S)
    worker.accept(task)
    worker.started(task)
    return job_id, task


def send_output(worker: MockWorker, task: Any, data: bytes, offset: int = 0) -> None:
    about = {"task_id": task.task_id, "attempt": task.attempt, "stream": "stdout"}
    worker.send("job_log", about | {"offset": offset, "data": data})


def told(worker: MockWorker, kind: str) -> list[str]:
    """What a worker is answered to, up to an answer of one kind."""
    heard: list[str] = []
    while kind not in heard:
        heard.append(worker.recv("ack", LIMIT_S).payload.get("re", ""))
    return heard


def test_a_disk_that_stands_still_holds_up_only_what_is_printed() -> None:
    """Nothing is acked before it is in its file, what is sent ahead is bounded, and all others are served."""
    with (
        running_hub() as hub,
        MockWorker(hub.url, hub.token, "slow", features=("job_log",), msgpack=True) as slow,
        MockWorker(hub.url, hub.token, "other", features=("job_log",), msgpack=True) as other,
    ):
        (job, task), (beside, task_beside) = begin(hub, slow), begin(hub, other)

        def flood() -> None:
            for number in range(AHEAD):
                send_output(slow, task, b"x" * MIB, number * MIB + 6)
            slow.heartbeat()

        sender = threading.Thread(target=flood)
        file = StuckFile(hub.home / "output" / job / f"0.1.{task.attempt}")
        try:
            send_output(slow, task, b"first\n")
            slow.heartbeat()
            assert "job_log" not in told(slow, "heartbeat")
            sender.start()
            send_output(other, task_beside, b"beside\n")
            other.heartbeat()
            assert "job_log" not in told(other, "heartbeat"), "files are written in the order of arrival"
            assert ask(hub, "GET", f"/jobs/{job}")[1]["state"] == "running"
            sender.join(LONG_ENOUGH_S)
            assert sender.is_alive(), "all of it was read though none of it can be written"
        finally:
            file.free()
            if sender.ident is not None:
                sender.join(LIMIT_S)
        assert "job_log" in told(slow, "heartbeat")
        assert ask(hub, "GET", f"/jobs/{job}/logs")[1] == "first\n" + "x" * AHEAD * MIB
        assert told(other, "job_log")
        assert ask(hub, "GET", f"/jobs/{beside}/logs")[1] == "beside\n"


class SlowTapes(SharedTapes):
    """A place that is long about its answer when it is asked how far tapes are."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, lambda: 1)
        self.asked, self.answers = threading.Event(), threading.Event()

    def find(self, tapes: Sequence[Tape]) -> list[Found]:
        self.asked.set()
        self.answers.wait(LIMIT_S)
        return super().find(tapes)


async def test_what_comes_while_a_far_place_is_asked_something_is_filed(tmp_path: Path) -> None:
    attempt = Attempt(uid="1-1", job_id="j1", index=0, no=1, fence=1, worker="w1", shape=0)
    tapes, told = SlowTapes(tmp_path), asyncio.Event()
    outputs = Outputs(tapes, MIB, lambda worker, job_id, index, uid: attempt)
    outputs.start()

    async def show() -> bytes:
        return b"".join([piece async for piece in outputs.read(attempt, (0, 1), None)])

    reader = asyncio.create_task(show())
    await asyncio.to_thread(tapes.asked.wait, LIMIT_S)
    for offset in (0, 5):
        body = JobLog(task_id="j1/0", attempt="1-1", stream="stdout", offset=offset, data=b"text\n")
        outputs.take("w1", body, lambda ends: told.set())
    tapes.answers.set()
    async with asyncio.timeout(LIMIT_S):
        await told.wait()
        await reader
        assert await show() == b"text\n" * 2
    await outputs.close()


class LateTapes(SlowTapes):
    """A place whose answer is on its way while others file."""

    def find(self, tapes: Sequence[Tape]) -> list[Found]:
        found = SharedTapes.find(self, tapes)
        self.asked.set()
        self.answers.wait(LIMIT_S)
        return found


async def test_who_follows_hears_what_another_hub_files_while_a_look_is_under_way(tmp_path: Path) -> None:
    attempt = Attempt(uid="1-1", job_id="j1", index=0, no=1, fence=1, worker="w1", shape=0)
    tapes = LateTapes(tmp_path)
    mine = Outputs(tapes, MIB, lambda worker, job_id, index, uid: attempt)
    theirs = Outputs(SharedTapes(tmp_path, lambda: 1), MIB, lambda worker, job_id, index, uid: attempt)
    mine.start()
    theirs.start()
    filed = asyncio.Event()

    async def follow() -> bytes:
        # It has ended by now: what is not found within a moment is not waited for.
        return b"".join([piece async for piece in mine.read(attempt, (0, 1), lambda: False)])

    reader = asyncio.create_task(follow())
    await asyncio.to_thread(tapes.asked.wait, LIMIT_S)
    body = JobLog(task_id="j1/0", attempt="1-1", stream="stdout", offset=0, data=b"last words\n")
    theirs.take("w1", body, lambda ends: filed.set())
    async with asyncio.timeout(LIMIT_S):
        await filed.wait()
        mine.look_again(["1-1"])
        tapes.answers.set()
        assert await reader == b"last words\n"
    await mine.close()
    await theirs.close()
