"""Advice about capacity against the truth: what a hub would have said from what it remembers at a moment, and what a
replay of the whole trace with those machines really gives.

The hub's memory at that moment is made by a replay on the machines that there were: jobs that had ended with their run
times, jobs that ran or waited with none, which the advice has to guess. Waits are compared over all jobs that had come
by then.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dray.core.model.policies.check import check_policy
from dray.core.model.policies.policy import pack_policy
from dray.core.model.records.records import Attempt, Job, JobState, Phase
from dray.core.model.records.worker import Worker
from dray.core.model.specs.spec import unpack_spec
from dray.sim.traces.asked import Asked, Rows, advise
from dray.sim.traces.ledger import Ledger
from dray.sim.traces.readers import parse_cluster, read_jobs
from dray.sim.traces.workload import EPOCH_MS, Node, TraceJob, cut, make_spec, register
from dray.sim.traces.world import World

CLUSTER = "8x8"
COUNTS = (1, 2, 4)
# At which shares of the time from the first arrival to the last the hub is asked.
MOMENTS = (0.5, 1.0)
POLICY = check_policy({"queues": {"default": {"order": "fifo"}}})


class Nobody:
    """Nobody waits for it."""

    def __call__(self) -> bool:
        return True

    def tell(self, done: int, of: int, what: str = "") -> None: ...


def run(traces: Path) -> list[dict[str, Any]]:
    """For each moment and number of further machines: waits as advised and as they would have been."""
    jobs, nodes = read_jobs(traces / "jobs/philly_t3.csv"), parse_cluster(CLUSTER)
    base = World(nodes, POLICY).run(jobs)
    found = []
    for moment in MOMENTS:
        at_ms = round(jobs[-1].arrival_ms * moment)
        here = sum(job.arrival_ms <= at_ms for job in jobs)
        # What comes later may pass by what waits: it is in nobody's question.
        before = World(nodes, POLICY).run(jobs[:here])
        truths = {count: World([*nodes, *_copies(nodes, count)], POLICY).run(jobs[:here]) for count in COUNTS}
        rows = remember(jobs[:here], nodes, base, at_ms)
        began = time.process_time()
        asked = Asked(EPOCH_MS + at_ms, [("in force", pack_policy(POLICY))], counts=list(COUNTS))
        pack = msgspec.msgpack.Encoder().encode
        advice = advise([pack(asked), pack(rows)], Nobody())
        cpu_s = time.process_time() - began
        for option in advice.options:
            true_p50, true_p90 = waits(truths[option.count], here)
            figures = option.figures
            found.append(
                {
                    "moment": moment,
                    "more": option.count,
                    "jobs": here,
                    "guessed": advice.guessed,
                    "before_p50_s": waits(before, here)[0],
                    "advised_p50_s": figures.wait_p50_s,
                    "true_p50_s": true_p50,
                    "advised_p90_s": figures.wait_p90_s,
                    "true_p90_s": true_p90,
                    "off_p50": _off(figures.wait_p50_s, true_p50),
                    "off_p90": _off(figures.wait_p90_s, true_p90),
                    "cpu_s": round(cpu_s / (1 + len(COUNTS)), 2),
                }
            )
    return found


def _off(advised: float, true: float) -> float:
    """How far an advice is from the truth."""
    return round(abs(advised - true) / max(true, 1.0), 4)


def _copies(nodes: Sequence[Node], count: int) -> list[Node]:
    return [msgspec.structs.replace(nodes[0], name=f"more{number}") for number in range(count)]


def waits(ledger: Ledger, first: int) -> tuple[float, float]:
    """The middle wait and its ninth tenth, in seconds, of the first jobs; what never started waited until the end."""
    columns = ledger.columns()
    started = np.where(columns["first"] < 0, ledger.makespan_ms, columns["first"])[:first]
    p50, p90 = np.percentile((started - columns["arrival"][:first]) / 1000, [50, 90])
    return round(float(p50), 1), round(float(p90), 1)


def remember(jobs: Sequence[TraceJob], nodes: Sequence[Node], ledger: Ledger, at_ms: int) -> Rows:
    """What the store of a hub holds at a moment, by the replay of what happened."""
    most = max(node.gpus for node in nodes)
    rows: list[tuple[Job, list[Attempt]]] = []
    for number, job in enumerate(jobs):
        shares = cut(job, most)
        packed = make_spec(msgspec.structs.replace(job, estimate_ms=0), shares)
        spec = msgspec.structs.replace(unpack_spec(packed), expected_runtime_s=0)
        first_ms, ended_ms = ledger.first_ms[number], ledger.ended_ms[number]
        attempts = []
        ran, ended = 0 <= first_ms <= at_ms, 0 <= ended_ms <= at_ms
        if ran:
            attempts = [
                _attempt(job, index, first_ms, ended_ms if ended else 0) for index in range(shares.nodes)
            ]
        record = Job(
            id=job.id, seq=number + 1, user=job.user, name=spec.name, queue=job.queue, priority=0, tier="training",
            spec=msgspec.msgpack.encode(spec), numbered=shares.nodes > 1, total=shares.nodes,
            cursor=shares.nodes if ran else 0, gang=shares.nodes > 1, nodes=shares.nodes if shares.nodes > 1 else 0,
            state=JobState.SUCCEEDED if ended else JobState.RUNNING if ran else JobState.PENDING,
            submitted_at_ms=EPOCH_MS + job.arrival_ms,
        )  # fmt: skip
        rows.append((record, attempts))
    return Rows(rows, [_worker(node) for node in nodes])


def _attempt(job: TraceJob, index: int, first_ms: int, ended_ms: int) -> Attempt:
    phase = Phase.SUCCEEDED if ended_ms else Phase.RUNNING
    began_ms = EPOCH_MS + first_ms
    return Attempt(
        uid=f"{job.id}-{index}", job_id=job.id, index=index, no=1, fence=1, worker="node-0", shape=0, phase=phase,
        started=True, started_at_ms=began_ms, ended_at_ms=EPOCH_MS + ended_ms if ended_ms else 0,
    )  # fmt: skip


def _worker(node: Node) -> Worker:
    said = register(node, 1)
    return Worker(
        id=node.name, capability=said.capability, devices=said.devices, slots=said.slots or node.slots,
        features=said.features, base=False, resources=node.resources, ports=node.ports,
    )  # fmt: skip
