"""A machine with a full disk, as people meet it: taken out with its reason, told everywhere, resumed by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.e2e.cluster import Cluster, wait_for


@pytest.fixture(scope="module")
def lab() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        cluster.start_hub()
        cluster.start_agent("ill")
        yield cluster
    finally:
        cluster.close()


def test_a_machine_on_which_everything_fails_is_taken_out_and_says_why(lab: Cluster) -> None:
    full = ("sh", "-c", "echo 'cp: No space left on device' >&2; exit 1")
    eaten = [lab.submit(*full) for _ in range(3)]
    for job in eaten:
        lab.wait_state(job, "failed")
    worker = wait_for(
        lambda: (found := lab.call("GET", "/workers/ill").json)["faults"] and found, "it is out"
    )
    assert worker["draining"]
    assert worker["drain_reason"].startswith("3 different jobs failed there within 60 s (")
    assert "node fault: cp: No space left on device" in worker["drain_reason"]
    assert "quarantined (3 different jobs" in lab.dray("worker", "ls").out
    status = lab.dray("status").out
    assert "ill: quarantined (3 different jobs" in status
    assert "draining" not in status
    waits = lab.submit("true")
    why = lab.dray("why", waits).out
    assert "quarantined: 3 different jobs failed there" in why
    assert "give it work again: dray worker resume ill" in why
    lab.kill_hub()
    lab.start_hub()
    wait_for(lambda: lab.call("GET", "/workers/ill").json["status"] != "offline", "it is back")
    assert lab.call("GET", "/workers/ill").json["faults"] == 1
    assert lab.call("GET", f"/jobs/{waits}").json["state"] == "pending"
    assert lab.dray("worker", "resume", "ill").out.startswith("ill: ")
    lab.wait_state(waits, "succeeded")
    assert lab.call("GET", "/workers/ill").json["state_detail"] == ""
