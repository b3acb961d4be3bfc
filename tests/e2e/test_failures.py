"""Why something failed, from what it printed on its worker to every place where a person looks."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.cluster import DEADLINE_S, Agent, Cluster, wait_for

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


# A driver as the agent asks it: a card that is as full, and as broken, as files beside it say.
DRIVER = """
import os, time
folder = os.environ["DRIVER_FOLDER"]
NVML_GPU_UTILIZATION_SAMPLES, NVML_ERROR_TIMEOUT, nvmlEventTypeXidCriticalError = 1, 10, 8
class NVMLError(Exception):
    value = 3
class Late(NVMLError):
    value = NVML_ERROR_TIMEOUT
class Place: domain = bus = device = 0
class Rates: gpu = 50
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return 7
def nvmlDeviceGetPciInfo(card): return Place
def nvmlDeviceGetMigMode(card): return (0, 0)
def nvmlDeviceGetUtilizationRates(card): return Rates
def fail(*_): raise NVMLError
nvmlDeviceGetSamples = nvmlDeviceGetComputeRunningProcesses = nvmlDeviceGetProcessUtilization = fail
def nvmlDeviceGetMemoryInfo(card):
    class Memory: total, used = 80 * 10**9, (79 if os.path.exists(folder + "/full") else 1) * 10**9
    return Memory
def nvmlEventSetCreate(): return 1
def nvmlDeviceRegisterEvents(card, kinds, events): pass
def nvmlEventSetWait_v2(events, timeout_ms):
    try:
        os.rename(folder + "/broken", folder + "/heard")
    except OSError:
        time.sleep(0.05)
        raise Late from None
    class Event: device, eventData = 7, 79
    return Event
"""


@pytest.fixture(scope="module")
def carded() -> Iterator[Cluster]:
    """A worker whose card is one in name, with a driver that says what it is told to say."""
    cluster = Cluster()
    try:
        cluster.start_hub()
        (cluster.folder / "pynvml.py").write_text(DRIVER)
        program = str(Path(__file__).parents[1] / "calls" / "carded_agent.py")
        command = [sys.executable, program, "--home", str(cluster.home), "--name", "g1", "--slots", "4"]
        cluster.agents["g1"] = Agent("g1", cluster.home, command, cluster.folder / "g1.log")
        env = {"DRAY_WORKER_SAMPLE_S": "0.2", "DRIVER_FOLDER": str(cluster.folder)}
        cluster.start_agent("g1", env=env | {"PYTHONPATH": str(cluster.folder)})
        yield cluster
    finally:
        cluster.close()


def test_a_card_that_breaks_is_a_node_fault_by_its_driver_s_word(carded: Cluster) -> None:
    job = carded.submit("sh", "-c", "while [ ! -e go-1 ]; do sleep 0.05; done; exit 1", gpu_milli=1000)
    carded.wait_running(job)
    (carded.folder / "broken").touch()
    log = carded.agents["g1"].log
    wait_for(lambda: "GPU 0: the GPU has fallen off the bus (Xid 79)" in log.read_text(), "its agent says so")
    (carded.folder / "go-1").touch()
    verdict = carded.wait_state(job, "failed")["verdict"]
    assert verdict["kind"] == "node"
    assert verdict["evidence"][0].startswith("NVRM: Xid 79 on GPU 0")
    assert "node fault" in carded.dray("why", job).out


def test_what_ends_on_a_full_card_without_a_word_ran_out_of_its_memory(carded: Cluster) -> None:
    (carded.folder / "full").touch()
    job = carded.submit("sh", "-c", "while [ ! -e go-2 ]; do sleep 0.05; done; kill -ABRT $$", gpu_milli=1000)

    def peak() -> int:
        attempts = carded.job(job)["attempts"]
        return (attempts[0]["usage"]["max_gpu_bytes"] or 0) if attempts else 0

    wait_for(lambda: peak() > 78 * 10**9, "it is seen that the card is full")
    (carded.folder / "go-2").touch()
    verdict = carded.wait_state(job, "failed")["verdict"]
    assert verdict["kind"] == "gpu_memory"
    assert "GPU 0 was full" in verdict["evidence"][0]
