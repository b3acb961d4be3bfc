"""Run N times `true` on HyperQueue and print the rate. Runs in HyperQueue's own environment: imports nothing of dray.

Output is discarded and nothing is journalled: the quickest that HyperQueue can do, which is what dray is held
against. `python hyperqueue_peer.py TASKS WIDTH`. With `latency` in front they go one after another, and the
milliseconds of each, from submit to result, are printed: its own client looks at a job twice a second, so the job is
asked for here.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import hyperqueue.client  # type: ignore[import-not-found]  # lives in an environment of its own
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig  # type: ignore[import-not-found]  # as above

LOOK_S = 0.0002


def run(client: Any, tasks: int) -> None:
    job = Job()
    for _ in range(tasks):
        job.program(["true"], stdout=None, stderr=None)
    if not client.wait_for_jobs([client.submit(job)]):
        raise SystemExit("a task failed")


class Unfinished(Exception):
    """Breaks the client's own wait off."""


def check(jobs: dict[int, dict[str, Any]]) -> None:
    if not all(job["completed"] for job in jobs.values()):
        raise Unfinished


def run_one(client: Any) -> float:
    """Milliseconds of one job."""
    began = time.perf_counter()
    job = Job()
    job.program(["true"], stdout=None, stderr=None)
    submitted = client.submit(job)
    while True:
        try:
            client.connection.wait_for_jobs((submitted.id,), check)
        except Unfinished:
            time.sleep(LOOK_S)
        else:
            return (time.perf_counter() - began) * 1000


def main(tasks: int, width: int, latency: bool = False) -> None:
    hyperqueue.client.create_progress_callback = lambda: lambda jobs: None
    with LocalCluster(worker_config=WorkerConfig(cores=width)) as cluster:
        client = cluster.client()
        if latency:
            spans = [run_one(client) for _ in range(tasks + 5)][5:]
            print(*spans)
            return
        run(client, width)
        began = time.perf_counter()
        run(client, tasks)
        print(tasks / (time.perf_counter() - began))


if __name__ == "__main__":
    one_by_one = sys.argv[1] == "latency"
    main(int(sys.argv[-2]), int(sys.argv[-1]), one_by_one)
