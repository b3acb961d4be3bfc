"""A mirror fed by hand from a store in memory, and all that Redis holds of it, for tests to compare."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import msgspec
import redis
from msgspec.msgpack import encode

from dray.core.lifecycle.state.effects import Note
from dray.core.model.records.records import Attempt, Job, JobState, Phase
from dray.core.model.records.worker import Worker
from dray.core.model.specs.spec import JobSpec, pack_spec
from dray.hub.mirror.mirror import Mirror
from dray.hub.store.base import AttemptRow, JobRow, Projection, Turn
from dray.hub.store.memory import MemoryFile, MemoryStore

START_MS = 1_700_000_000_000
SPEC = pack_spec(JobSpec())


def make_job(number: int, queue: str = "default", **fields: Any) -> Job:
    """A job of one task that waits."""
    given: dict[str, Any] = {"id": f"j{number}", "seq": number, "user": "ada", "name": "", "queue": queue}
    given |= {"priority": 0, "tier": "default", "spec": SPEC, "numbered": False, "total": 1}
    given |= {"submitted_at_ms": START_MS + number}
    return Job(**given | fields)


def make_attempt(job: Job, number: int, index: int = 0, **fields: Any) -> Attempt:
    """An attempt of it that runs."""
    given: dict[str, Any] = {"uid": f"1-{number}", "job_id": job.id, "index": index, "no": 1, "fence": number}
    given |= {"worker": "w", "shape": 0, "phase": Phase.RUNNING, "started": True}
    given |= {"started_at_ms": 1_700_000_001_000 + number}
    return Attempt(**given | fields)


class Feeder:
    """Writes rows to a store, and hands them to a mirror, as a hub does."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore(MemoryFile())
        if not self.store.epoch:
            self.store.begin_epoch()
        self.seq = self.store.position().seq
        self.mirrors: list[Mirror] = []

    def write(
        self,
        jobs: Iterable[Job] = (),
        attempts: Iterable[Attempt] = (),
        workers: Iterable[Worker] = (),
        gone: Iterable[str] = (),
        notes: Iterable[Note] = (),
    ) -> None:
        """One turn."""
        told = list(notes)
        rows = [AttemptRow(attempt, "", "ada", "", "") for attempt in attempts]
        changed = ([JobRow(job, {}) for job in jobs], (), rows, list(workers), list(gone))
        self.hand_in(Projection(0, 0, b"", *changed), told)

    def hand_in(self, projection: Projection, notes: Sequence[Note] = ()) -> None:
        """Commit, write and hand on rows, under the next number."""
        self.seq += 1
        packed = encode(
            [(note.type, note.job_id, note.task_id, note.worker, dict(note.data)) for note in notes]
        )
        self.store.commit(Turn(self.seq, self.seq, START_MS + self.seq, encode([]), packed))
        for mirror in self.mirrors:
            if notes:
                mirror.take_notes(self.seq, START_MS + self.seq, notes)
        projection = projection._replace(applied_seq=self.seq, now_ms=self.seq)
        self.store.project(projection)
        for mirror in self.mirrors:
            mirror.take_rows(projection)

    def submit(self, first: int, count: int, queue: str = "default", **fields: Any) -> list[Job]:
        """Jobs that wait."""
        jobs = [make_job(number, queue, **fields) for number in range(first, first + count)]
        self.write(jobs, notes=[Note("job_submitted", job.id) for job in jobs])
        return jobs


@contextlib.asynccontextmanager
async def mirroring(
    feeder: Feeder, url: str, documents_s: float = 3600, **options: Any
) -> AsyncIterator[Mirror]:
    """A mirror that runs."""
    mirror = Mirror(
        url, feeder.store, documents_s=documents_s, **({"prefix": "dray", "words": "a test"} | options)
    )
    feeder.mirrors.append(mirror)
    mirror.start()
    try:
        yield mirror
    finally:
        feeder.mirrors.remove(mirror)
        await mirror.close()


def read_view(clients: Iterable[Any], documents: bool = True, events: bool = False) -> dict[str, Any]:
    """All that Redis holds: collections, numbers, documents; not when it was written, nor by whom."""
    view: dict[str, Any] = {}
    for client in clients:
        for key in client.scan_iter(count=1000):
            if key.endswith(":writer") or ":new:" in key:
                continue
            kind = client.type(key)
            if kind == "zset":
                view[key] = dict(client.zrange(key, 0, -1, withscores=True))
            elif kind == "hash":
                view[key] = client.hgetall(key)
                if key.endswith(":stats"):
                    view[key] = {
                        name: value
                        for name, value in view[key].items()
                        if name not in ("at_ms", "epoch", "seq", "events_seq")
                    }
            elif kind == "set":
                view[key] = client.smembers(key)
            elif kind == "string" and documents:
                view[key] = {
                    name: value for name, value in json.loads(client.get(key)).items() if name != "as_of"
                }
            elif kind == "stream" and events:
                view[key] = [(at, fields["type"]) for at, fields in client.xrange(key)]
    return view


async def until(predicate: Any, limit_s: float = 30.0, what: str = "it") -> Any:
    """Wait for something that may fail to be asked meanwhile."""
    deadline = asyncio.get_running_loop().time() + limit_s
    while True:
        with contextlib.suppress(redis.RedisError, KeyError):
            if value := predicate():
                return value
        assert asyncio.get_running_loop().time() < deadline, f"{what} did not come true"
        await asyncio.sleep(0.01)


def ended(job: Job, state: JobState = JobState.SUCCEEDED) -> Job:
    """The same job, over."""
    return msgspec.structs.replace(
        job, state=state, rest=state, cursor=job.total, succeeded=job.total, running=0, requeued=0
    )
