"""`dray exec TASK -- true`, one after another, against the same program started here; and the whole command."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.cluster import Cluster, running_cluster
from benchmarks.figures import Bar, Figure, quantile
from benchmarks.floors import true_path
from benchmarks.progress import tell
from dray.cli.follow.remote import run_remote
from dray.client.faces.async_hub import AsyncHub
from dray.client.reach.discovery import find_target, settle_config
from dray.wire.streams.frames import TaskTarget

WARM = 5
TASK = "held"
WAIT_S = 0.02


def measure(quick: bool) -> dict[str, Figure]:
    count = 20 if quick else 200
    with running_cluster(2) as cluster:
        added = asyncio.run(_exec(cluster, count))
        whole = _spans(count // 4, lambda: _command(cluster, "exec", TASK, "--", "true"))
        bare = _spans(count // 4, lambda: _command(cluster, "version"))
        _command(cluster, "cancel", TASK, "--grace", "0s")
        _command(cluster, "wait", TASK, fails=True)
    path = true_path()
    floor = _spans(count, lambda: os.waitpid(os.posix_spawn(path, [path], dict(os.environ)), 0))
    tell(f"{count} execs: p50 {quantile(added, 0.5):.1f} ms; the command {quantile(whole, 0.5):.0f} ms")
    return {
        "exec_p50": Figure(
            f"exec of `true` beside a task, asked to ended ({count}), p50",
            "ms",
            quantile(added, 0.5),
            floors={"posix_spawn and wait": quantile(floor, 0.5)},
            bars=[Bar(at_most=60.0)],
        ),
        "exec_command_p50": Figure(
            f"the whole command `dray exec TASK -- true` ({count // 4}), p50",
            "ms",
            quantile(whole, 0.5),
            floors={"`dray version`, which asks the hub once": quantile(bare, 0.5)},
        ),
    }


async def _exec(cluster: Cluster, count: int) -> list[float]:
    config = settle_config(cluster.home, hub=cluster.url, token=cluster.token)
    async with AsyncHub(config) as hub:
        job = (await hub.submit_specs([{"id": TASK, "command": ["sleep", "1000"]}]))[0]
        while (await hub.status(job)).state != "running":  # noqa: ASYNC110 - a benchmark has nobody to wake it
            await asyncio.sleep(WAIT_S)
    target, spans = find_target(config), []
    for number in range(count + WARM):
        began = time.perf_counter()
        ended = await run_remote(target, TaskTarget(TASK, ["true"]), None, None, False)
        if ended.code:
            raise RuntimeError(f"true ended with {ended.code}: {ended.error}")
        if number >= WARM:
            spans.append((time.perf_counter() - began) * 1000)
    return spans


def _command(cluster: Cluster, *words: str, fails: bool = False) -> None:
    env = {**os.environ, "DRAY_HOME": str(cluster.home), "DRAY_HUB": cluster.url, "DRAY_TOKEN": cluster.token}
    subprocess.run(
        [sys.executable, "-P", "-m", "dray.cli.main", *words],
        env=env,
        check=not fails,
        stdout=subprocess.DEVNULL,
    )


def _spans(count: int, work: Callable[[], object]) -> list[float]:
    spans = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        spans.append((time.perf_counter() - began) * 1000)
    return spans
