"""Retries that learn, from a job file to the next job of its name: real processes on fake cards of two sizes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.e2e.cluster import DEADLINE_S, DRAY, Cluster

import dray

OFFERS = ("gpus=1,type=T4,vram=16G,cpus=8,memory=32G", "gpus=1,type=L4,vram=24G,cpus=8,memory=32G")
SMALL, LARGE = "fake-t4-1", "fake-l4-1"
WORDS = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.00 GiB"
SCRIPT = f'if [ "$DRAY_WORKER" = {SMALL} ]; then echo "{WORDS}" >&2; exit 1; fi'
FILE = f"""
- id: first
  name: train
  gpus: 1
  vram: 10G
  retries: {{oom: bigger, node: elsewhere, code: 0}}
  command: [sh, -c, '{SCRIPT}']
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Cluster]:
    """A hub with two fake machines; a small card is the one that is chosen first."""
    cluster = Cluster()
    try:
        cluster.start_hub()
        for offer in OFFERS:
            words = [*DRAY, "worker", "start", "--home", str(cluster.home), "--fake", offer]
            cluster.spawn(words, cluster.folder / f"{offer[7:14]}.log")
        for name in (SMALL, LARGE):
            cluster.wait_worker(name)
        yield cluster
    finally:
        cluster.close()


def test_a_larger_card_is_asked_for_and_the_next_job_of_the_name_knows(lab: Cluster) -> None:
    path = lab.folder / "jobs.yaml"
    path.write_text(FILE)
    assert lab.dray("submit", str(path)).out.split() == ["first"]
    job = lab.wait_state("first", "succeeded", "failed")
    assert [attempt["worker"] for attempt in job["attempts"]] == [SMALL, LARGE], job
    assert job["spec"]["retries"] == {"oom": "bigger", "node": "elsewhere"}
    assert (job["failures"], job["losses"], job["outgrown"], job["edited"]) == (0, 0, 1, False)
    own = "asks for cards of more than 16G because it ran out of GPU memory there"
    assert job["learned"] == own
    shown = lab.dray("show", "first").out
    assert own in shown
    assert "1 on a larger card" in shown
    assert "asks for cards of more than 16G" in lab.dray("why", "first").out

    learned = own.replace("because it", "because job first")
    asks = ("-J", "train", "-G", "1", "--retries", "oom=bigger,code=1", "--", "sh", "-c", SCRIPT)
    assert learned in lab.dray("plan", *asks).out
    lab.kill_hub()
    lab.start_hub()
    for name in (SMALL, LARGE):
        lab.wait_worker(name)
    sent = lab.dray("submit", "--id", "second", *asks)
    assert learned in sent.err
    job = lab.wait_state("second", "succeeded", "failed")
    assert [attempt["worker"] for attempt in job["attempts"]] == [LARGE], job
    assert json.loads(lab.dray("why", "second", "-o", "json").out)["learned"] == learned
    plain = lab.dray("submit", "--id", "third", "--vram", "20G", *asks)
    assert "asks for" not in plain.err
    assert lab.wait_state("third", "succeeded")["learned"] == ""


def test_where_no_card_is_larger_it_fails_and_says_so(lab: Cluster) -> None:
    script = f'echo "{WORDS}" >&2; exit 1'
    with dray.connect(lab.url, lab.token) as hub:
        job = hub.submit(["sh", "-c", script], gpus=1, vram="20G", retries={"oom": "bigger", "code": 3})
        with pytest.raises(dray.CallFailed):
            job.result(DEADLINE_S)
    document = lab.job(job.id)
    assert len(document["attempts"]) == 1
    assert f"ran out of GPU memory on {LARGE} (a card of 24G), and no worker known here" in document["error"]
    assert document["verdict"]["kind"] == "gpu_memory"
    assert "no worker known here that suits it has a larger card" in lab.dray("why", job.id).out


def test_a_fault_of_the_machine_sends_it_elsewhere(lab: Cluster) -> None:
    script = f'if [ "$DRAY_WORKER" = {SMALL} ]; then echo "No space left on device" >&2; exit 1; fi'
    with dray.connect(lab.url, lab.token) as hub:
        job = hub.submit(["sh", "-c", script], gpus=1, vram="10G", retries="node=elsewhere")
        job.result(DEADLINE_S)
    document = lab.job(job.id)
    assert [attempt["worker"] for attempt in document["attempts"]] == [SMALL, LARGE]
    assert (document["failures"], document["losses"]) == (0, 1)
    assert "1 after a fault of its machine" in lab.dray("show", job.id).out
    hopeless = lab.submit(
        "sh", "-c", 'echo "No space left on device" >&2; exit 1', retries={"node": "elsewhere"}, losses=1
    )
    verdict = lab.wait_state(hopeless, "worker_failed")["verdict"]
    assert verdict["kind"] == "node"
    assert verdict["evidence"][0] == "No space left on device"
    assert verdict["evidence"][-1] == "a fault of its machine ended it 2 times, 1 allowed"


def test_rules_that_mean_nothing_are_refused_with_what_may_be_said(lab: Cluster) -> None:
    wrong = {
        "oom=smaller": "--retries (oom): must be one of bigger, got 'smaller'",
        "ooms=bigger": "--retries (ooms): is not a field of a job; did you mean 'oom'?",
        "code=-1": "--retries (code): must be a whole number, got '-1'",
        "often": "'often' is neither a number of tries nor rules: oom=bigger,node=elsewhere,code=2",
    }
    for rules, said in wrong.items():
        refused = lab.dray("submit", "--retries", rules, "--", "true")
        assert refused.code != 0, refused
        assert said in refused.err, refused
    with (
        dray.connect(lab.url, lab.token) as hub,
        pytest.raises(dray.DrayError, match="oom and node are rules for a command"),
    ):
        hub.submit(abs, -1, retries={"oom": "bigger"}).result(DEADLINE_S)
