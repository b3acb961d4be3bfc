"""Why something failed, from what it printed on its worker to every place where a person looks."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests.e2e.cluster import DEADLINE_S, Cluster, wait_for

import dray

WORDS = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
SCRIPT = f'echo epoch 1; [ "$DRAY_TASK_INDEX" = 1 ] && exit 4; echo "{WORDS}" >&2; exit 1'


def test_a_verdict_is_told_everywhere(site: Cluster) -> None:
    job_id = site.submit("sh", "-c", SCRIPT)
    job = site.wait_state(job_id, "failed")
    verdict = job["verdict"]
    assert (verdict["kind"], verdict["evidence"][0]) == ("gpu_memory", WORDS)
    assert f"dray submit --from {job_id} --vram" in verdict["step"]
    assert job["attempts"][0]["verdict"] == verdict
    for command in ("why", "show"):
        told = site.dray(command, job_id).out
        assert "out of GPU memory" in told
        assert WORDS in told
        assert verdict["step"] in told
    (failure,) = json.loads(site.dray("why", job_id, "-o", "json").out)["failures"]
    assert (failure["kind"], failure["tasks"], failure["task_id"]) == ("gpu_memory", 1, job_id)
    with dray.connect(site.url, site.token) as hub:
        with pytest.raises(dray.CallFailed, match="out of GPU memory: torch"):
            hub.job(job_id).result(DEADLINE_S)
        assert hub.job(job_id).status().verdict == verdict
    assert "1 out of GPU memory" in site.dray("status").out


def test_an_array_s_failures_are_told_by_their_causes(site: Cluster) -> None:
    job_id = site.submit("sh", "-c", SCRIPT, array={"last": 2})
    site.wait_state(job_id, "failed")
    told = site.dray("why", job_id).out
    assert f"out of GPU memory (2 tasks, the first is {job_id}/0)" in told
    assert f"own code ({job_id}/1)" in told
    assert "epoch 1" in told
    assert f"then: dray requeue --failed {job_id}" in told, "most tasks of an array need not run again"
    (line,) = [line for line in site.dray("tasks", job_id).out.splitlines() if line.startswith(f"{job_id}/2")]
    assert "out of GPU memory" in line
    assert site.job(job_id)["verdict"] is None


def test_what_was_never_started_has_a_verdict_too(site: Cluster) -> None:
    first = site.submit("false")
    later = site.submit("true", after=[f"ok:{first}"])
    assert site.wait_state(later, "killed")["verdict"]["kind"] == "dependency"
    stopped = site.submit("true", hold=True)
    site.call("POST", f"/jobs/{stopped}/cancel")
    verdict = site.wait_state(stopped, "killed")["verdict"]
    assert verdict["kind"] == "person"
    assert "before it started" in verdict["evidence"][0]


def test_a_worker_that_was_just_killed_is_silent_and_what_runs_there_says_so(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    agent = cluster.start_agent("w1")
    job_id = cluster.submit("sleep", "600")
    cluster.wait_running(job_id)
    assert cluster.job(job_id)["reason"] == ""
    agent.kill()
    wait_for(lambda: cluster.job(job_id)["reason"].startswith("its worker w1 is silent since "), "it says so")
    assert "silent for " in cluster.dray("worker", "ls").out
    assert "its worker w1 is silent since" in cluster.dray("ps").out
