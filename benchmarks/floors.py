"""What the same commands cost without a scheduler, and with another one: measured in the same run as dray."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from benchmarks.peers import find_peer

LIMIT_S = 180.0
HYPERQUEUE = "hyperqueue==0.27.0"


def xargs_rate(tasks: int, width: int) -> float:
    """Commands per second of `xargs -P width -n 1 true`."""
    lines = "".join(f"{number}\n" for number in range(tasks))
    began = time.perf_counter()
    command = ["xargs", f"-P{width}", "-n1", true_path()]
    subprocess.run(command, input=lines, text=True, check=True, timeout=LIMIT_S)
    return tasks / (time.perf_counter() - began)


def spawn_rate(tasks: int, width: int) -> float:
    """Commands per second of a bare loop in Python that keeps `width` children."""
    path, environment = true_path(), dict(os.environ)
    live = 0
    began = time.perf_counter()
    for _ in range(tasks):
        if live == width:
            os.waitpid(-1, 0)
            live -= 1
        os.posix_spawn(path, [path], environment)
        live += 1
    for _ in range(live):
        os.waitpid(-1, 0)
    return tasks / (time.perf_counter() - began)


def hyperqueue_rate(tasks: int, width: int) -> float | str:
    """Commands per second of HyperQueue's own server and worker, or why there is none."""
    said = _ask_hyperqueue(str(tasks), str(width))
    return said if isinstance(said, str) else said[-1]


def hyperqueue_spans(tasks: int) -> list[float] | str:
    """Milliseconds from submit to result of commands one after another on an idle HyperQueue, or why there are none."""
    return _ask_hyperqueue("latency", str(tasks), "2")


def _ask_hyperqueue(*words: str) -> list[float] | str:
    python = find_peer("HyperQueue", HYPERQUEUE)
    if isinstance(python, str):
        return python
    script = Path(__file__).with_name("hyperqueue_peer.py")
    done = subprocess.run(
        [str(python), str(script), *words], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        return f"HyperQueue failed: {done.stderr.strip()[-200:]}"
    return [float(word) for word in done.stdout.splitlines()[-1].split()]


def true_path() -> str:
    return shutil.which("true") or "/bin/true"
