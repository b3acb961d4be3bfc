"""What jobs use, from the process table of a real worker to what people see."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tests.e2e.cluster import Cluster, wait_for

# Works and holds memory in a child, in its second stage, until a file is there.
WORK = """
import os, sys
held = bytearray(b"x" * (64 << 20))
while not os.path.exists("go"): sum(range(100000))
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        cluster.start_hub()
        cluster.start_agent("w1", env={"DRAY_WORKER_SAMPLE_S": "0.2"})
        yield cluster
    finally:
        cluster.close()


def test_what_a_job_uses_is_known_while_it_runs_and_afterwards(lab: Cluster) -> None:
    command = ["sh", "-c", f"{sys.executable} -c '{WORK}'; true"]
    job = lab.submit(*command, prolog=["true"], memory_bytes=1 << 30, cpu_milli=1000)

    def used() -> float:
        attempts = lab.job(job)["attempts"]
        usage = attempts[0]["usage"] if attempts else {"cpu_s": 0, "max_rss_bytes": 0}
        return usage["cpu_s"] if usage["max_rss_bytes"] > 64 << 20 else 0

    seen_s = wait_for(used, "the hub knows what it uses")
    assert "you asked 1G of memory, used " in lab.dray("show", job).out
    # The next agent counts on: nothing is forgotten with the one before.
    lab.agents["w1"].kill()
    lab.start_agent("w1", env={"DRAY_WORKER_SAMPLE_S": "0.2"})
    wait_for(lambda: used() > seen_s, "more is used")
    (lab.folder / "go").touch()
    usage = lab.wait_state(job, "succeeded")["attempts"][0]["usage"]
    assert usage["cpu_s"] > seen_s
    assert usage["max_rss_bytes"] > 64 << 20
    assert (usage["gpu_s"], usage["gpu_seen_s"], usage["max_gpu_bytes"]) == (None, 0, None)
