"""A store of very many jobs: carried from SQLite to PostgreSQL and compared, read at a start in both; and what it costs
to follow a leader, beside leading.
"""

from __future__ import annotations

import collections
import itertools
import time
from pathlib import Path

from benchmarks.cluster import temporary_home
from benchmarks.figures import Bar, Figure, median_figure
from benchmarks.hub_restart import fill_store, write_jobs
from benchmarks.progress import tell
from benchmarks.servers import running_postgres
from dray.core.lifecycle.state.timings import Rules
from dray.hub.engine.follower import Follower
from dray.hub.store.base import Store
from dray.hub.store.copying import copy_store
from dray.hub.store.memory import MemoryFile, MemoryStore
from dray.hub.store.postgres.address import Address
from dray.hub.store.postgres.store import PgStore
from dray.hub.store.sqlite.store import SqliteStore


def measure(quick: bool) -> dict[str, Figure]:
    jobs, runs = (2_000, 1) if quick else (1_000_000, 3)
    with temporary_home() as home, running_postgres() as server:
        path, url = home / "hub.sqlite", server.url("postgres")
        fill_store(path, jobs)
        began = time.perf_counter()
        copy_store(str(path), url, lambda copied: None)
        copied_s = time.perf_counter() - began
        tell(f"{jobs:,} jobs carried over and compared in {copied_s:.1f} s")
        pairs = [(_read_there(url, home, jobs), _read_here(path, jobs)) for _ in range(runs)]
    there, here = zip(*pairs, strict=True)
    tell(f"rows read: PostgreSQL {there}, SQLite {here}")
    floors, bars = {"SQLite": sorted(here)[len(here) // 2]}, [Bar(at_most=1.0, of="SQLite")]
    what = f"{jobs:,} waiting jobs"
    return {
        "copy": Figure(
            f"{what} copied from SQLite to PostgreSQL, every table compared",
            "s",
            copied_s,
            bars=[Bar(at_most=60)],
        ),
        "read": median_figure(
            f"rows of {what} read from PostgreSQL at a start", "s", there, floors=floors, bars=bars
        ),
        "follow": _measure_following(6_000 if quick else 100_000),
    }


def _read_there(url: str, home: Path, jobs: int) -> float:
    store = PgStore.open(Address(url), home)
    try:
        return _read(store, jobs)
    finally:
        store.close(clean=False)


def _read_here(path: Path, jobs: int) -> float:
    store = SqliteStore.open(path, check="never")
    try:
        return _read(store, jobs)
    finally:
        store.close(clean=True)


def _read(store: Store, jobs: int) -> float:
    began = time.perf_counter()
    found = store.load()
    count = sum(1 for _ in found.jobs)
    collections.deque(itertools.chain(found.tasks, found.attempts, found.workers), maxlen=0)
    found.close()
    if count != jobs:
        raise RuntimeError(f"{jobs} jobs were written, {count} are read")
    return time.perf_counter() - began


def _measure_following(jobs: int) -> Figure:
    """On one thread and without a server: what is compared is the work of the two, turn by turn."""
    file = MemoryFile()
    leading, follower = MemoryStore(file), Follower(MemoryStore(file), Rules())
    leading.begin_epoch()
    turns = write_jobs(leading, jobs, cancelled=True)
    led_s = followed_s = 0.0
    # Loaded before there is anything: what counts is what it folds.
    while follower.look():
        pass
    while True:
        began = time.thread_time()
        state = next(turns, None)
        ended = time.thread_time()
        if state is None:
            break
        while follower.look():
            pass
        led_s, followed_s = led_s + ended - began, followed_s + time.thread_time() - ended
    reached, seq = follower.reached, leading.position().seq
    if follower.loads != 1 or reached is None or reached.seq != seq:
        raise RuntimeError(f"turn {seq} was to be folded: {reached} after {follower.loads} loads")
    tell(f"{jobs:,} jobs: led {led_s:.2f} s of CPU, followed {followed_s:.2f} s")
    what, bars = (
        f"CPU to follow {jobs:,} jobs that are submitted and cancelled",
        [Bar(at_most=0.6, of="leading")],
    )
    return Figure(what, "s", followed_s, floors={"leading": led_s}, bars=bars)
