"""What a worker says that it runs, judged against the rows of a hub that has long let go of it."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.state.effects import Cancel, Effect
from dray.core.lifecycle.state.events import Event
from dray.hub.engine.projection import build_projection
from dray.hub.rows import Rows
from dray.hub.store.memory import MemoryStore
from dray.hub.workers.inbound import register
from dray.wire.messages.worker import Register


@pytest.mark.parametrize(
    ("worker", "task", "stopped"),
    [("w1", "job", True), ("w2", "job", False), ("w1", "other", False)],
    ids=["its-own", "another-worker's", "another-job's"],
)
def test_unknown_work_is_not_taken_for_anothers_by_its_uid(worker: str, task: str, stopped: bool) -> None:
    cluster, store = Cluster(), MemoryStore()
    store.begin_epoch()
    cluster.join("w1", credit=1)
    cluster.submit("job")
    uid = cluster.current("job")
    cluster.run(uid)
    cluster.end(uid)
    store.project(build_projection(cluster.state, cluster.state.touched, 0, cluster.clock))
    said = {
        "id": worker,
        "capabilities": {"backend": "cpu"},
        "active_tasks": [{"task_id": task, "attempt": uid, "state": "running"}],
    }
    effects: list[Effect] = []
    for step in register(Rows(cluster.state, store), 4711, msgspec.convert(said, Register), worker):
        effects += cluster.fold(cast("Event", step))
    stops = [effect.uid for effect in effects if isinstance(effect, Cancel)]
    assert stops == ([uid] if stopped else [])
    assert cluster.state.workers[worker].quarantined == (() if stopped else (task,))
