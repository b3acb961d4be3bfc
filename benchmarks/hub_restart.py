"""How long a hub with very many waiting jobs takes to be ready again: after a clean stop, and after kill -9.

The store is filled through the hub's own core and store, turn by turn, as a hub would have written it: log and rows.
The hub that is killed has rows behind its log, as one that dies under load has.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.cluster import Cluster, resident_mib, running_cluster
from benchmarks.figures import Bar, Figure
from benchmarks.progress import tell
from benchmarks.specs import waiting_spec
from dray.core.lifecycle.recovery import release
from dray.core.lifecycle.state.events import CancelRequested, Clock, Fact, JobsSubmitted, NewJob
from dray.core.lifecycle.state.state import State, Touched
from dray.core.model.specs.check import check_spec
from dray.core.model.specs.spec import pack_spec
from dray.hub.engine.projection import build_projection
from dray.hub.engine.recovery import recover
from dray.hub.engine.turns import Commit, Conductor, Decide, Decision, Request
from dray.hub.rows import Rows
from dray.hub.store.base import Store
from dray.hub.store.sqlite.store import SqliteStore

BATCH = 2_000


def measure(quick: bool) -> dict[str, Figure]:
    jobs = 2_000 if quick else 1_000_000
    with running_cluster() as cluster:
        cluster.stop_hub()
        began = time.perf_counter()
        fill_store(find_store(cluster.home), jobs)
        tell(f"{jobs:,} jobs written in {time.perf_counter() - began:.1f} s")
        clean_s = cluster.start_hub()
        memory = resident_mib(cluster.hub_pid)
        tell(f"ready {clean_s:.1f} s after a clean stop")
        _check(cluster, jobs)
        late = 500 if quick else 10_000
        cluster.request("POST", "/jobs:batch", [waiting_spec() for _ in range(late)])
        cluster.kill_hub()
        killed_s = cluster.start_hub()
        tell(f"ready {killed_s:.1f} s after kill -9")
        _check(cluster, jobs + late)
    what = f"hub start with {jobs:,} waiting jobs, to ready"
    return {
        "clean": Figure(f"{what}: after a clean stop", "s", clean_s, bars=[Bar(at_most=30.0)]),
        "killed": Figure(f"{what}: after kill -9", "s", killed_s, bars=[Bar(at_most=60.0)]),
        "memory": Figure(f"hub memory with {jobs:,} waiting jobs, RSS", "MiB", memory),
    }


def find_store(home: Path) -> Path:
    """The store's file, whatever the hub calls it: the one that starts like an SQLite database."""
    for path in sorted(home.iterdir()):
        if path.is_file() and path.read_bytes()[:15] == b"SQLite format 3":
            return path
    raise RuntimeError(f"the hub left no store in {home}")


def fill_store(path: Path, jobs: int, prefix: str = "wait", cancelled: bool = False) -> None:
    """Write jobs as a hub would have: those that wait, or those that were cancelled before they began."""
    store = SqliteStore.open(path)
    try:
        store.begin_epoch()
        for _ in write_jobs(store, jobs, prefix, cancelled):
            pass
    finally:
        store.close(clean=True)


def write_jobs(store: Store, jobs: int, prefix: str = "wait", cancelled: bool = False) -> Iterator[State]:
    """The same in a store that is led already; gives the state after each turn and its rows."""
    recovered = recover(store, State().rules)
    state, conductor = recovered.state, Conductor(Rows(recovered.state, store), recovered.seq)
    spec = pack_spec(msgspec.structs.replace(check_spec(waiting_spec()), user_id="bench"))
    for first in range(0, jobs, BATCH):
        clock = Clock(recovered.now_ms + 1, round(time.time() * 1000))
        count = min(BATCH, jobs - first)
        new = tuple(NewJob(f"{prefix}{first + place:08d}", "bench", spec) for place in range(count))
        ends = [CancelRequested(job.id, user="bench") for job in new] if cancelled else []
        request = Request(_decide([JobsSubmitted(new), *ends]), None)
        for step in conductor.turn([request], (), clock):
            if isinstance(step, Commit):
                store.commit(step.turn)
        touched, state.touched = state.touched, Touched()
        store.project(build_projection(state, touched, conductor.seq, clock))
        release(state, touched.jobs, touched.tasks, touched.attempts)
        yield state


def _decide(facts: list[Fact]) -> Decide:
    return lambda state, clock: Decision(facts)


def _check(cluster: Cluster, jobs: int) -> None:
    waiting = sum(queue["waiting"] for queue in cluster.request("GET", "/queues")["queues"])
    if waiting != jobs:
        raise RuntimeError(f"{jobs} jobs were recorded, the hub holds {waiting}")
