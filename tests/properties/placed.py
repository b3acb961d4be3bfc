"""Placements of one pass put into a state's columns, as the next pass would find them."""

from __future__ import annotations

from tests.core.harness import Cluster

from dray.core.model.specs.resources import WHOLE, Ask


def hold_all(cluster: Cluster, worker: str, cpus: int, cpu: int, idle: list[int]) -> None:
    """Hold what a worker no longer has, of its cores and of each card: numbers that are kept must follow."""
    columns = cluster.state.columns
    columns.hold(worker, Ask(cpu_milli=cpus * 1000 - cpu), (), 1)
    for index, free in enumerate(idle):
        if free < WHOLE:
            columns.hold(worker, Ask(gpus=1, gpu_milli=WHOLE - free), (index,), 1)
