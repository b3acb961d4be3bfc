"""What the figures were measured on: cores, memory, versions, and what a sync of the disk costs there."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

SYNCS = 200


def gather_facts() -> dict[str, Any]:
    """Look once; `load_1m` tells how quiet the machine was when the run began."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": _cpu_model(),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "filesystem": _filesystem(tempfile.gettempdir()),
        "fsync_p50_us": round(measure_fsync_us(), 1),
        "fdatasync_p50_us": round(measure_fdatasync_us(), 1),
        "revision": _revision(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def measure_fsync_us(syncs: int = SYNCS) -> float:
    """Append a page and sync it, so that the file grows each time: the median in microseconds."""
    spans = []
    with tempfile.TemporaryFile() as file:
        page = os.urandom(4096)
        for _ in range(syncs):
            began = time.perf_counter()
            os.write(file.fileno(), page)
            os.fsync(file.fileno())
            spans.append(time.perf_counter() - began)
    return statistics.median(spans) * 1e6


def measure_fdatasync_us(syncs: int = SYNCS) -> float:
    """Overwrite a page of a file that has its size already, as a commit into a grown log does."""
    spans = []
    with tempfile.TemporaryFile() as file:
        page = os.urandom(4096)
        os.write(file.fileno(), page * 64)
        os.fsync(file.fileno())
        for number in range(syncs):
            began = time.perf_counter()
            os.pwrite(file.fileno(), page, (number % 64) * 4096)
            os.fdatasync(file.fileno())
            spans.append(time.perf_counter() - began)
    return statistics.median(spans) * 1e6


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _revision() -> str:
    """Which source was measured; a plus sign where it held changes that are not committed."""
    folder = Path(__file__).parent
    try:
        command = ["git", "describe", "--always", "--dirty=+"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def _filesystem(folder: str) -> str:
    """The kind of file system under the homes: a sync costs nothing on one that lives in memory."""
    best = ("", "unknown")
    for mount in psutil.disk_partitions(all=True):
        inside = folder == mount.mountpoint or folder.startswith(mount.mountpoint.rstrip("/") + "/")
        if inside and len(mount.mountpoint) >= len(best[0]):
            best = (mount.mountpoint, mount.fstype)
    return best[1]
