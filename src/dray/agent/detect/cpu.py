"""How many cores this process may use: the least of affinity mask, cpuset and CPU quota.

Owns the reading of those limits. The surprising rule: a quota may be a fraction of a core and is offered as such
(`cores`), while slots are counted in whole cores, at least one (`usable_cores`).
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import NamedTuple

from dray.agent.detect.cgroup import read_limit_files


class CpuFound(NamedTuple):
    cores: float
    usable_cores: int
    note: str


def detect_cpu(root: Path = Path("/")) -> CpuFound:
    available = count_allowed_cores()
    limits = [
        f"{available} in the affinity mask" if hasattr(os, "sched_getaffinity") else f"{available} present"
    ]
    cores = float(available)
    cpuset = read_cpuset_cores(root)
    if cpuset is not None and cpuset < cores:
        limits.append(f"{cpuset} in the cpuset")
        cores = float(cpuset)
    quota = read_quota_cores(root)
    if quota is not None:
        limits.append(f"quota of {quota:g}")
        # Millicores are the finest that scheduling counts in.
        cores = min(cores, max(0.001, math.floor(quota * 1000) / 1000))
    usable = max(1, math.floor(cores))
    return CpuFound(cores, usable, f"cpu: {cores:g} cores ({', '.join(limits)})")


def count_allowed_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_cpuset_cores(root: Path) -> int | None:
    """The smallest cpuset of this group and those above it; None where there is none."""
    names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
    counts = [count_listed(text) for name in names for text in read_limit_files("cpuset", name, root)]
    return min((count for count in counts if count > 0), default=None)


def read_quota_cores(root: Path) -> float | None:
    """The tightest CPU quota of this group and those above it, in cores; None where none is set."""
    pairs = [text.split() for text in read_limit_files("cpu", "cpu.max", root)]
    v1_quotas = read_limit_files("cpu", "cpu.cfs_quota_us", root)
    v1_periods = read_limit_files("cpu", "cpu.cfs_period_us", root)
    if len(v1_quotas) == len(v1_periods):
        pairs += [[quota, period] for quota, period in zip(v1_quotas, v1_periods, strict=True)]
    quotas = [_to_cores(pair) for pair in pairs]
    return min((quota for quota in quotas if quota is not None), default=None)


def count_listed(text: str) -> int:
    """How many cores a kernel list such as `0-3,8` names; 0 for an empty or unreadable one."""
    total = 0
    for span in filter(None, text.split(",")):
        first, _, last = span.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return 0
        total += int(last or first) - int(first) + 1
    return total


def _to_cores(pair: list[str]) -> float | None:
    """`max 100000` (v2) and `-1` (v1) mean no quota: neither is a plain number."""
    if len(pair) != 2 or not pair[0].isdigit() or not pair[1].isdigit() or int(pair[1]) == 0:
        return None
    return int(pair[0]) / int(pair[1])
