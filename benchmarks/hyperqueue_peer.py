"""Run N times `true` on HyperQueue and print the rate. Runs in HyperQueue's own environment: imports nothing of dray.

Output is discarded and nothing is journalled: the quickest that HyperQueue can do, which is what dray is held
against. `python hyperqueue_peer.py TASKS WIDTH`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import hyperqueue.client  # type: ignore[import-not-found]  # lives in an environment of its own
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig  # type: ignore[import-not-found]  # as above


def run(client: Any, tasks: int) -> None:
    job = Job()
    for _ in range(tasks):
        job.program(["true"], stdout=None, stderr=None)
    if not client.wait_for_jobs([client.submit(job)]):
        raise SystemExit("a task failed")


def main(tasks: int, width: int) -> None:
    hyperqueue.client.create_progress_callback = lambda: lambda jobs: None
    with LocalCluster(worker_config=WorkerConfig(cores=width)) as cluster:
        client = cluster.client()
        run(client, width)
        began = time.perf_counter()
        run(client, tasks)
        print(tasks / (time.perf_counter() - began))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
