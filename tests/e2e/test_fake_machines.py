"""Fake machines: made-up offers, real processes, and a mark that nothing leaves out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.cluster import DRAY, Cluster, wait_for

from dray.agent.fake import list_machines, pretend, read_fake
from dray.config import load_agent
from dray.errors import InvalidConfig

OFFER = "gpus=4,type=A100,vram=80G,cpus=64,memory=512G"
NAMES = ("fake-a100-1", "fake-a100-2")
WAIT = "until test -e {}; do sleep 0.02; done"


@pytest.fixture(scope="module")
def lab() -> Iterator[Cluster]:
    """A hub with two fake machines, which one process pretends."""
    cluster = Cluster()
    try:
        cluster.start_hub()
        words = [*DRAY, "worker", "start", "--home", str(cluster.home), "--fake", OFFER, "--count", "2"]
        cluster.spawn(words, cluster.folder / "fakes.log")
        for name in NAMES:
            cluster.wait_worker(name)
        yield cluster
    finally:
        cluster.close()


def test_offers_are_made_up_and_said_to_be(lab: Cluster) -> None:
    listed = lab.call("GET", "/workers").json["workers"]
    assert [(worker["id"], worker["fake"]) for worker in listed] == [(name, True) for name in NAMES]
    one = lab.call("GET", "/workers/fake-a100-1").json
    assert (one["gpu_count"], one["gpu_type"], one["vram_gb"], one["cpu_count"]) == (4, "A100", 320, 64)
    assert [card["uuid"] for card in one["devices"]] == [f"FAKE-a100-1-{number}" for number in range(4)]
    table = lab.dray("worker", "ls").out
    row = next(line.split() for line in table.splitlines() if line.startswith("fake-a100-1"))
    assert row[:8] == ["fake-a100-1", "ready", "fake", "nvidia", "4×", "A100", "320G", "64"]
    assert row[8] == "512G"
    assert "(fake)" in lab.dray("worker", "show", "fake-a100-2").out


def test_memory_of_a_machine_is_one_number_on_every_face(lab: Cluster) -> None:
    """Of the machine and of its cards, each counted as it is asked for: --mem 512G, --vram 80G."""
    lab.submit("true", id="large", memory_bytes=600 << 30, hold=False)
    lab.submit("true", id="fits", memory_bytes=512 << 30)
    lab.wait_state("fits", "succeeded")
    lab.submit("true", id="wide", gpu_count=1, vram_per_gpu_bytes=96 * 10**9)
    faces = {
        "worker ls": lab.dray("worker", "ls").out,
        "worker show": lab.dray("worker", "show", NAMES[0]).out,
        "why": lab.dray("why", "large").out,
        "plan": lab.dray("plan", "--mem", "600G", "--", "true").out,
        "show": lab.dray("show", "fits").out,
        "ps": lab.dray("ps").out,
    }
    for face, text in faces.items():
        assert "512G" in text, (face, text)
    cards = [
        faces["worker show"],
        lab.dray("why", "wide").out,
        lab.dray("plan", "--vram", "96G", "--", "true").out,
    ]
    lab.submit("true", id="late", memory_bytes=600 << 30, scheduling_timeout_s=0.1)
    error = lab.wait_state("late", "unschedulable")["error"]
    assert "512G" in error
    for text in cards:
        assert re.search(r"\b80G\b", text), text
    # What the same bytes are in the other base, and in another spelling.
    others = "549|550|476|74\\.5|85\\.9"
    all_of_it = (*faces.values(), *cards, error, lab.dray("top").out, lab.dray("status").out)
    assert not [text for text in all_of_it if re.search(rf"\b(?:{others})[0-9.]* ?G|[0-9] GB", text)]
    lab.dray("cancel", "large", "wide")


def test_processes_are_real_and_see_no_card(lab: Cluster) -> None:
    script = 'echo "$DRAY_WORKER $DRAY_DEVICES $CUDA_VISIBLE_DEVICES"'
    job = lab.submit("sh", "-c", script, gpu_count=2, gpu_type="A100", min_vram_gb=160)
    ended = lab.wait_state(job, "succeeded")
    worker = ended["worker"]
    assert ended["attempts"][0]["fake"] is True
    short = worker.removeprefix("fake-")
    assert lab.logs(job).decode().split() == [worker, "0,1", f"FAKE-{short}-0,FAKE-{short}-1"]


def test_plan_and_why_name_them(lab: Cluster) -> None:
    planned = lab.call("POST", "/plan", {"command": ["true"], "gpu_count": 1}).json
    assert planned["placements"][0]["fake"] is True
    assert {each["fake"] for each in planned["candidates"]} == {True}
    job = lab.submit("true", gpu_count=8)
    why = lab.call("GET", f"/jobs/{job}/why").json
    assert [(worker["id"], worker["fake"]) for worker in why["workers"]] == [(name, True) for name in NAMES]
    assert [group["name"] for group in why["classes"]] == ["fake nvidia a100 × 4, 64 cores"]
    lab.call("POST", f"/jobs/{job}/cancel", {})


def test_a_receipt_says_that_the_room_was_made_up(lab: Cluster) -> None:
    policy = {"queues": {"default": {"order": "priority"}}, "preemption": {"min_run_s": 0}}
    assert lab.call("PUT", "/policy", policy).status == 200
    low = [lab.submit("sh", "-c", WAIT.format("calm"), gpu_count=4, priority=1) for _ in range(2)]
    for job in low:
        lab.wait_running(job)
    urgent = lab.submit("true", gpu_count=4, priority=9)
    lab.wait_state(urgent, "succeeded")
    (receipt,) = lab.call("GET", "/preemptions", job=urgent).json["preemptions"]
    assert receipt["fake"] is True
    assert "made up" in lab.dray("preemptions", receipt["id"]).out
    (lab.folder / "calm").touch()
    for job in low:
        lab.wait_state(job, "succeeded")


def test_down_stops_them_too(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    words = [*DRAY, "worker", "start", "--home", str(cluster.home), "--fake", "cpus=2", "--count", "2"]
    process = cluster.spawn(words, cluster.folder / "fakes.log")
    cluster.wait_worker("fake-cpu-2")
    said = cluster.dray("down").out
    assert f"fake-cpu-1 stopped (process {process.pid})" in said
    wait_for(lambda: process.poll() is not None, "the process has ended")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu=4", "'gpu=4' is none of gpus=…"),
        ("gpus=4,vram=big,cpus=x", "vram: 'big' is not a size"),
        ("gpus=4,vram=big,cpus=x", "cpus: must be a whole number"),
        ("gpus=1,backend=cpu", "backend=cpu has no cards"),
    ],
)
def test_an_offer_that_cannot_be_read_says_all_that_is_wrong(text: str, words: str) -> None:
    with pytest.raises(InvalidConfig, match="--fake") as caught:
        read_fake(text)
    assert words in caught.value.message


def test_names_tell(tmp_path: Path) -> None:
    def names(**flags: object) -> list[str]:
        return [each.name for each in list_machines(load_agent(tmp_path, flags, env={}))]

    assert names(fake=OFFER, count=2) == ["fake-a100-1", "fake-a100-2"]
    assert names(fake=OFFER, name="big") == ["fake-big"]
    assert names(fake="cpus=4", name="fake-big", count=2) == ["fake-big-1", "fake-big-2"]
    with pytest.raises(InvalidConfig, match="names that begin with fake-"):
        load_agent(tmp_path, {"name": "fake-x"}, env={})
    with pytest.raises(InvalidConfig, match="--count goes with --fake"):
        load_agent(tmp_path, {"count": 2}, env={})


def test_what_is_not_said_has_a_default(tmp_path: Path) -> None:
    (one,) = list_machines(load_agent(tmp_path, {"fake": "gpus=1"}, env={}))
    found = pretend(one)
    assert (found.capability.gpu_type, found.devices[0].vram_bytes) == ("GPU", 16 * 10**9)
    assert one.runners == 0
    assert one.labels == {"fake": "true"}
