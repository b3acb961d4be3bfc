"""The same function calls through a process pool and through other schedulers, in the same run as dray's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers import find_peer
from benchmarks.progress import tell

LIMIT_S = 400.0
NUMPY = "numpy==2.4.6"
PEERS = {
    "Ray": ("ray", ("ray==2.60.0", NUMPY)),
    "Dask": ("dask", ("distributed==2026.8.0", NUMPY)),
    "Parsl": ("parsl", ("parsl==2026.10.26", NUMPY)),
}
POOL = "ProcessPool"


def ask_peers(work: str, count: int, names: tuple[str, ...]) -> tuple[dict[str, dict[str, float]], str]:
    """Figures of each peer that could be run, and why the others could not."""
    found: dict[str, dict[str, float]] = {}
    absent = []
    for name in names:
        answer = _ask(name, work, count)
        if isinstance(answer, str):
            absent.append(answer)
        else:
            found[name] = answer
        tell(f"{name}, {work}: {answer}")
    return found, "; ".join(absent)


def _ask(name: str, work: str, count: int) -> dict[str, float] | str:
    short, requirements = PEERS.get(name, ("pool", ()))
    python = find_peer(name, *requirements) if requirements else Path(sys.executable)
    if isinstance(python, str):
        return python
    script = Path(__file__).with_name("function_peer.py")
    with tempfile.TemporaryDirectory(prefix="drayp-") as scratch:
        # Some start programs of their own environment by name.
        path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        environment = {**os.environ, "PATH": path, "PEER_SCRATCH": scratch}
        try:
            done = subprocess.run(
                [str(python), str(script), short, work, str(count)],
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
                env=environment,
                cwd=scratch,
            )
        except subprocess.TimeoutExpired:
            return f"{name} took longer than {LIMIT_S:g} s for {count} {work}"
    if done.returncode:
        return f"{name} failed: {done.stderr.strip()[-200:]}"
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def floor_of(found: dict[str, dict[str, float]], figure: str) -> dict[str, float]:
    return {name: figures[figure] for name, figures in found.items()}
