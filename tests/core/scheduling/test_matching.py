"""Who may get what: kinds of worker, kinds of work, and the words for "not now" and "never"."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster, assigned

from dray.core.lifecycle.state.events import WorkerChanged, WorkerDrained
from dray.core.model.capability import Capability, Device, GpuInfo
from dray.core.scheduling.explain.explain import explain, look_ahead, message_of

A100: dict[str, Any] = {"gpus": 2, "vram_gb": 160, "gpu_type": "A100"}


def test_cpu_work_goes_to_gpu_workers_last(cluster: Cluster) -> None:
    cluster.join("a-gpu", credit=9, **A100)
    cluster.join("b-cpu", credit=1)
    cluster.submit("first")
    cluster.submit("second")
    assert cluster.attempt(cluster.current("first")).worker == "b-cpu"
    assert cluster.attempt(cluster.current("second")).worker == "a-gpu"


def test_the_tightest_fit_wins_and_ties_end_in_the_name(cluster: Cluster) -> None:
    cluster.join("large", credit=1, cpus=32)
    cluster.join("small-b", credit=1, cpus=4)
    cluster.join("small-a", credit=1, cpus=4)
    for job in ("one", "two", "three"):
        cluster.submit(job, cpu_milli=2000)
    workers = [cluster.attempt(cluster.current(job)).worker for job in ("one", "two", "three")]
    assert workers == ["small-a", "small-b", "large"]


def test_base_only_workers_get_no_gangs_functions_or_shared_cards(cluster: Cluster) -> None:
    cluster.join("base", credit=9, base=True, **A100)
    assert assigned(cluster.submit("gang", node_count=2)) == []
    assert assigned(cluster.submit("function", command=[], function=b"x")) == []
    assert assigned(cluster.submit("share", gpu_milli=500)) == []
    assert cluster.blockers("share") == [("feature", "shared_gpu", "base protocol only")]
    assert len(assigned(cluster.submit("plain", gpu_count=1))) == 1


def test_shares_of_one_card_add_up_to_one_card(cluster: Cluster) -> None:
    cluster.join("w1", credit=9, gpus=2, vram_gb=80)
    for number in range(3):
        cluster.submit(f"half{number}", gpu_milli=500)
    cards = [cluster.attempt(cluster.current(f"half{number}")).devices for number in range(3)]
    assert cards == [(0,), (0,), (1,)]
    assert assigned(cluster.submit("whole", gpu_count=1)) == []
    assert cluster.blockers("whole") == [("gpu", "1", "0 free of 2")]
    assert cluster.summary("whole").startswith("cannot start now: ")


def test_services_take_slots_of_their_own_pool(cluster: Cluster) -> None:
    cluster.join("w1", credit=9, batch=1, service=1)
    cluster.submit("batch")
    assert assigned(cluster.submit("batch2")) == []
    assert len(assigned(cluster.submit("service", type="service"))) == 1
    assert assigned(cluster.submit("service2", type="service")) == []
    cluster.join("none", credit=9, batch=1, service=0)
    assert assigned(cluster.submit("service3", type="service")) == []
    assert cluster.current("batch2")
    assert {kind for kind, _, _ in cluster.blockers("service3")} == {"slot"}


def test_a_batch_job_may_ask_for_the_service_pool(cluster: Cluster) -> None:
    cluster.join("w1", credit=9, batch=0, service=1)
    assert len(assigned(cluster.submit(slot_pool="service"))) == 1


@pytest.mark.parametrize(("ask", "placed"), [({}, 1), ({"cpu_milli": 1}, 0), ({"memory_bytes": 1}, 0)])
def test_unknown_totals_only_stand_in_the_way_of_an_ask(
    cluster: Cluster, ask: dict[str, Any], placed: int
) -> None:
    cluster.join("w1", credit=1, cpus=0, memory_gb=0, base=True)
    assert len(assigned(cluster.submit(**ask))) == placed


def test_unknown_vram_cannot_satisfy_an_ask_for_it(cluster: Cluster) -> None:
    cluster.join("w1", credit=2, gpus=1, vram_gb=0)
    assert assigned(cluster.submit("vram", min_vram_gb=1)) == []
    assert len(assigned(cluster.submit("card", gpu_count=1))) == 1


@pytest.mark.parametrize(
    ("ask", "matches"),
    [("A100", True), ("a100", True), ("H100", False), ("PCIe", True), ("A10", False), ("80GB", True)],
)
def test_a_type_matches_the_short_model_or_a_whole_word(cluster: Cluster, ask: str, matches: bool) -> None:
    info = GpuInfo(gpu_type="NVIDIA A100-PCIe 80GB", count=1)
    cluster.join("w1", gpus=1, gpu_type="A100")
    cluster.turn(WorkerChanged("w1", Capability("nvidia", 1, "A100", 80, 8, 16, gpu_info=info)))
    cluster.poll("w1", 1)
    assert bool(assigned(cluster.submit(gpu_type=ask))) is matches


@pytest.mark.parametrize(
    ("spec", "matches"),
    [
        ({"gpu_backend": "nvidia"}, True),
        ({"gpu_backend": "metal"}, False),
        ({"device": {"kind": "gpu", "variant": "auto"}}, True),
        ({"device": {"kind": "gpu", "variant": "a100"}}, True),
        ({"device": {"kind": "gpu", "variant": "h100"}}, False),
        ({"device": {"kind": "tpu"}}, False),
        ({"device": {"kind": "cpu"}}, True),
        ({"require": ["zone=a", "!spot"]}, True),
        ({"require": ["zone=b"]}, False),
        ({"resources": {"license": 1}}, False),
        ({"resources": {"license": 0}}, True),
    ],
)
def test_kinds_labels_and_resources(cluster: Cluster, spec: dict[str, Any], matches: bool) -> None:
    cluster.join("w1", credit=1, labels={"zone": "a"}, **A100)
    assert bool(assigned(cluster.submit(**spec))) is matches


def test_cards_asked_for_by_number_may_be_of_any_kind(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, gpus=4, gpu_type="TPU v5", backend="vulkan")
    assert len(assigned(cluster.submit(gpu_count=4))) == 1


def test_a_card_that_is_not_healthy_is_not_given_out(cluster: Cluster) -> None:
    cards = (Device(0, vram_bytes=1, healthy=False), Device(1, vram_bytes=1))
    cluster.join("w1", credit=2, gpus=2, devices=cards)
    cluster.submit("one", gpu_count=1)
    assert cluster.attempt(cluster.current("one")).devices == (1,)
    assert assigned(cluster.submit("two", gpu_count=2)) == []
    assert "cannot ever" in cluster.summary("two")


def test_never_and_not_now_are_different_answers(cluster: Cluster) -> None:
    assert (cluster.submit("any"), cluster.summary("any"))[1] == "no worker has joined yet"
    cluster.cancel("any")
    cluster.join("w1", credit=9, cpus=4, memory_gb=8, **A100)
    cluster.submit("busy", cpu_milli=3000)
    cluster.submit("later", cpu_milli=2000)
    cluster.submit("never", cpu_milli=5000, gpu_count=3)
    later, never = (explain(cluster.state, cluster.job(job)) for job in ("later", "never"))
    assert (later.ever, later.fix) == (False, "")
    assert later.summary.startswith("cannot start now: asks for 2 cores")
    assert cluster.blockers("later") == [("cpu", "2 cores", "1 free of 4 cores")]
    assert never.ever
    assert never.summary.startswith("cannot ever start on any known worker: asks for 5 cores")
    assert never.fix == (
        "ask for 4 cores or fewer, or start a larger worker, and then ask for 2 GPUs or fewer per task, "
        "or start a worker with 3, and then it waits for room"
    )
    assert cluster.blockers("never") == [("cpu", "5 cores", "4 cores"), ("gpu", "3", "2")]
    assert [item.kind for item in never.workers[0][1]] == ["gpu", "cpu"]
    assert all(message_of(item) for item in never.workers[0][1])


def test_one_worker_that_could_is_enough_for_not_now(cluster: Cluster) -> None:
    cluster.join("small", credit=1, cpus=1)
    cluster.join("large", credit=1, cpus=8)
    cluster.turn(WorkerDrained("large", True))
    cluster.submit(cpu_milli=4000)
    assert cluster.summary().startswith("cannot start now: ")
    assert [kind for kind, _, _ in cluster.blockers()] == ["draining", "cpu"]


def test_the_words_for_what_does_not_wait(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit()
    assert cluster.summary().startswith("given to w1 0 s ago, which has not accepted it yet")
    cluster.run(cluster.current())
    assert cluster.summary() == "nothing waits: the job is running"
    cluster.end(cluster.current())
    assert cluster.summary() == "the job has ended: succeeded"


def test_what_is_there_is_named_for_memory_and_vram(cluster: Cluster) -> None:
    cluster.join("w1", credit=9, memory_gb=8, **A100)
    cluster.submit("memory", memory_bytes=2**40)
    cluster.submit("vram", min_vram_gb=161, gpu_count=2)
    cluster.submit("each", vram_per_gpu_bytes=81 * 10**9)
    assert cluster.blockers("memory") == [("memory", "1T", "7.45G")]
    assert cluster.blockers("vram") == [("vram", "161G", "160G")]
    [(kind, need, have)] = cluster.blockers("each")
    assert (kind, need.startswith("81G "), have) == ("vram", True, "80G")


def test_a_worker_gets_no_more_asks_than_its_range_has_ports(cluster: Cluster) -> None:
    cluster.join("w1", credit=1 << 20, ports=3)
    for number in range(2):
        cluster.submit(f"job{number}", ports=["http", "grpc"])
    cluster.submit("one", ports=["http"])
    cluster.submit("fixed", ports=["http=8080"])
    cluster.submit("none")
    cluster.submit("many", ports=["a", "b", "c", "d"])
    assert [bool(cluster.current(job)) for job in ("job0", "job1", "one", "fixed", "none", "many")] == [
        *(True, False, True, True, True, False)
    ]
    said = "asks for 2 ports, the largest worker has 0 of 3 left (1 worker)"
    assert cluster.summary("job1") == f"cannot start now: {said}"
    reason = explain(cluster.state, cluster.state.jobs["job1"])
    look_ahead(cluster.state, cluster.state.jobs["job1"], reason)
    assert [message_of(no) for _, rejections in reason.workers for no in rejections] == [
        "asks for 2 ports, this one has 0 of 3 left"
    ]
    assert {(holder.task_id, holder.what) for holder in reason.holders} == {
        ("job0", "2 ports"),
        ("one", "1 port"),
    }
    assert "asks for 4 ports, the largest worker has a range of 3" in cluster.summary("many")
    cluster.end(cluster.current("job0"))
    assert cluster.current("job1")


def test_ports_of_a_worker_that_does_not_say_how_many_are_not_counted(cluster: Cluster) -> None:
    cluster.join("counted", credit=1 << 20, ports=0)
    cluster.join("foreign", credit=1 << 20)
    for number in range(8):
        cluster.submit(f"job{number}", ports=["a", "b"])
    assert {cluster.attempt(cluster.current(f"job{number}")).worker for number in range(8)} == {"foreign"}
