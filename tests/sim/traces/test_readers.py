"""Each format read to the jobs and nodes it means."""

from __future__ import annotations

import gzip

import pytest
from tests.sim.traces.excerpts import GENERIC, NODES, PHILLY, PODS

from dray.core.model.specs.resources import asks_of_packed
from dray.errors import InvalidInput
from dray.sim.traces.readers import parse_cluster, read_jobs, read_nodes
from dray.sim.traces.workload import Shares, cut, make_spec

GIB = 1 << 30


def _file(tmp_path, text, name="trace.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_training_jobs_are_read_in_order_of_arrival(tmp_path):
    first, second, third = read_jobs(_file(tmp_path, PHILLY))
    assert (first.arrival_ms, first.duration_ms, first.gpus, first.restart_ms) == (0, 3_600_500, 4, 5000)
    assert (second.gpus, second.gpu_milli, second.cpu_milli, second.memory_bytes) == (1, 250, 2000, 4 * GIB)
    assert (third.arrival_ms, third.user, third.gpus) == (60_000, "ann", 16)
    assert (first.user, second.user) == ("red", "blue")


def test_a_wide_job_becomes_a_gang_of_whole_nodes(tmp_path):
    wide = read_jobs(_file(tmp_path, PHILLY))[2]
    assert cut(wide, 8) == Shares(2, 8)
    ask = asks_of_packed(make_spec(wide, cut(wide, 8)))[0]
    assert (ask.nodes, ask.gpus) == (2, 8)


def test_pods_are_read_with_shares_and_models(tmp_path):
    pods = {job.id[8:]: job for job in read_jobs(_file(tmp_path, PODS))}
    assert (pods["pod-b"].arrival_ms, pods["pod-b"].duration_ms) == (0, 20_000)
    assert pods["pod-b"].models == ("A10", "T4")
    assert (pods["pod-a"].gpu_milli, pods["pod-a"].memory_bytes) == (500, 2 * GIB)
    assert pods["pod-a"].duration_ms == 340_000
    assert (pods["pod-c"].gpus, pods["pod-c"].duration_ms) == (0, 3_600_000)
    asks = asks_of_packed(make_spec(pods["pod-b"], cut(pods["pod-b"], 8)))
    assert [ask.gpu_type for ask in asks] == ["a10", "t4"]


def test_any_workload_is_read_with_what_is_known(tmp_path):
    first, second = read_jobs(_file(tmp_path, GENERIC))
    assert (first.queue, first.user, first.deadline_ms, first.estimate_ms) == (
        "fast",
        "ann",
        500_000,
        120_000,
    )
    assert (first.memory_bytes, second.memory_bytes) == (4 * GIB, GIB // 2)
    assert (second.priority, second.queue, second.estimate_ms, second.deadline_ms) == (5, "default", 0, 0)


def test_a_packed_trace_is_unpacked(tmp_path):
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(GENERIC.encode()))
    assert len(read_jobs(path)) == 2


def test_nodes_come_from_a_list_or_from_a_size(tmp_path):
    nodes = read_nodes(_file(tmp_path, NODES))
    assert [(node.name, node.gpus, node.model) for node in nodes] == [("node-0", 2, "T4"), ("node-1", 0, "")]
    assert [(node.gpus, node.model) for node in parse_cluster("2x4xV100")] == [(4, "V100")] * 2
    groups = "name,count,gpus,gpu_model,cpus,memory\nbig,2,8,H100,96,1t\nsmall,1,0,,8,32g\n"
    assert [node.name for node in read_nodes(_file(tmp_path, groups))] == ["big-0", "big-1", "small"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no rows"),
        ("when,what\n1,2\n", "has the columns when, what"),
        ("arrival,duration\n1,2\nsoon,2\n", "line 3"),
        ("arrival,duration,gpus\n1,2,2.5\n", "whole cards"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, text, said):
    with pytest.raises(InvalidInput, match=said):
        read_jobs(_file(tmp_path, text))


def test_a_cluster_that_is_neither_says_what_one_is():
    with pytest.raises(InvalidInput, match="8x8"):
        parse_cluster("many")
