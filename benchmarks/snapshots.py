"""A folder of 200 MB that travels with a job: packed, sent, sent again after an edit, and the start of a job in it.

The folder is 2,000 small files and eight of 20 MB, all of bytes that nothing can make shorter. Tasks run as
another account where the benchmark is root, and the worker fetches over HTTP then. The note says how trees are made.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.cluster import Cluster, running_cluster
from benchmarks.figures import Bar, Figure
from benchmarks.progress import tell
from dray.agent.trees.laying import can_clone
from dray.client.faces.hub import Hub, connect
from dray.client.reach.discovery import find_target, settle_config
from dray.client.reach.snapshots import send_snapshot
from dray.snapshots.memory import YOUNG_NS
from dray.snapshots.packing import pack

MB = 10**6


def measure(quick: bool) -> dict[str, Figure]:
    scale, turns = (20, 3) if quick else (1, 9)
    folder = Path(tempfile.mkdtemp(prefix="dray-bench-"))
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    try:
        tree = folder / "tree"
        size = _make_tree(tree, scale)
        packing = _measure_packing(tree, size, folder / "cache", turns)
        with running_cluster() as cluster:
            # Tasks of root get copies where nothing is cloned; a site gives its tasks an account.
            cluster.start_agent(2, "bench", *(("--task-user", "nobody") if os.geteuid() == 0 else ()))
            return {
                **packing,
                **_measure_sending(cluster, tree, turns),
                **_measure_starts(cluster, tree, turns),
            }
    finally:
        del os.environ["XDG_CACHE_HOME"]
        shutil.rmtree(folder, ignore_errors=True)


def _make_tree(tree: Path, scale: int) -> int:
    draw = random.Random(7)
    for number in range(2000 // scale):
        place = tree / f"package{number % 40}" / f"module{number}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(draw.randbytes(draw.randint(500, 30_000)))
    for number in range(8):
        (tree / f"weights{number}.bin").write_bytes(draw.randbytes(20 * MB // scale))
    # Or all of it would be too young to be remembered.
    time.sleep(YOUNG_NS / 1e9)
    return sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())


def _measure_packing(tree: Path, size: int, cache: Path, turns: int) -> dict[str, Figure]:
    rates = []
    for _ in range(turns):
        shutil.rmtree(cache, ignore_errors=True)
        began = time.perf_counter()
        pack(str(tree))
        rates.append(size / MB / (time.perf_counter() - began))
    tell(f"packing {size / MB:.0f} MB: {statistics.median(rates):.0f} MB/s")
    rate = statistics.median(rates)
    what = f"packing and hashing a folder of {size / MB:.0f} MB"
    return {"packing": Figure(what, "MB/s", rate, rates, bars=[Bar(at_least=400.0)])}


def _measure_sending(cluster: Cluster, tree: Path, turns: int) -> dict[str, Figure]:
    target = find_target(settle_config(cluster.home, hub=cluster.url, token=cluster.token))
    began = time.perf_counter()
    send_snapshot(lambda: target, str(tree))
    first = (time.perf_counter() - began) * 1000
    spans, sizes = [], []
    for turn in range(turns):
        path = tree / f"package{turn}" / f"module{turn}.py"
        path.write_bytes(path.read_bytes() + b"\n# one line more\n")
        began = time.perf_counter()
        sent = send_snapshot(lambda: target, str(tree))
        spans.append((time.perf_counter() - began) * 1000)
        sizes.append(sent.sent_bytes / MB)
    tell(f"after an edit: {statistics.median(spans):.0f} ms, {statistics.median(sizes):.2f} MB")
    return {
        "first": Figure("a folder sent for the first time", "ms", first),
        "again_ms": Figure(
            "the folder sent again after an edit of one line", "ms", statistics.median(spans), spans,
            bars=[Bar(at_most=300.0)],
        ),
        "again_mb": Figure(
            "bytes sent then", "MB", statistics.median(sizes), sizes, bars=[Bar(at_most=1.0)]
        ),
    }  # fmt: skip


def _measure_starts(cluster: Cluster, tree: Path, turns: int) -> dict[str, Figure]:
    with connect(cluster.url, cluster.token, cluster.home) as hub:
        cold = _span(hub, snapshot=str(tree))
        plain = [_span(hub) for _ in range(turns)]
        sent = hub.submit(["true"], snapshot=str(tree))
        hub.wait(sent)
        spec = hub.status(sent)["spec"]
        named = {name: spec[name] for name in ("snapshot_id", "snapshot_sha")}
        warm = [_span(hub, **named) for _ in range(turns)]
    added = statistics.median(warm) - statistics.median(plain)
    note = "clones" if can_clone(str(cluster.home)) else "hard links"
    tell(f"warm start: {added:.0f} ms above a plain one ({note}); cold {cold:.0f} ms")
    return {
        "cold": Figure("a job in that folder, packed, sent and fetched for it, until its end", "ms", cold),
        "warm": Figure(
            "a job in a folder that its worker has: what it takes more than a plain one",
            "ms",
            added,
            [span - statistics.median(plain) for span in warm],
            bars=[Bar(at_most=80.0)],
            note=note,
        ),
    }


def _span(hub: Hub, **terms: str) -> float:
    began = time.perf_counter()
    hub.wait(hub.submit(["true"], **terms))
    return (time.perf_counter() - began) * 1000
